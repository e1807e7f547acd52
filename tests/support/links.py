"""Machines named for the links of their GPUs, and the best choice on them by trying everything."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import combinations
from typing import Final

from ledger.domain.topology import LinkMatrix
from tests.oracles.links import Group, pick


def matrix_of(size: int, speed: Callable[[int, int], float]) -> LinkMatrix:
    """Return the matrix in which the link from a to b has this speed; the diagonal is 0."""
    return LinkMatrix(
        rows=tuple(
            tuple(0.0 if a == b else float(speed(a, b)) for b in range(size)) for a in range(size)
        )
    )


def islands(size: int, island: int, *, inside: float, between: float) -> LinkMatrix:
    """Return equal islands of neighbours: links inside are of one speed, between of another."""
    return matrix_of(size, lambda a, b: inside if a // island == b // island else between)


_TWO_NVLINKS: Final = {(0, 3), (0, 6), (1, 2), (1, 7), (2, 3), (4, 5), (4, 7), (5, 6)}
_ONE_NVLINK: Final = {(0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 7), (6, 7)}


def _cube_mesh(a: int, b: int) -> float:
    pair = (min(a, b), max(a, b))
    if pair in _TWO_NVLINKS:
        return 50.0
    if pair in _ONE_NVLINK:
        return 25.0
    return 12.0 if a // 4 == b // 4 else 9.0


DGX_1: Final = matrix_of(8, _cube_mesh)
"""
Eight V100 in a hybrid cube mesh: 25 GB/s per NVLink, 12 within a socket, 9 across.

Which GPUs have one and two NVLinks is read off the proposal's measured matrix, the same machine.
"""

DGX_A100: Final = islands(8, 8, inside=300.0, between=0.0)
"""Eight GPUs behind switches: every link is as fast as any other (DGX H100: 450 GB/s)."""

TWO_BY_FOUR_PCIE: Final = islands(8, 4, inside=24.0, between=9.0)
"""Eight GPUs under two PCIe roots, one per socket."""

SIXTEEN_TWO_ISLANDS: Final = islands(16, 8, inside=150.0, between=20.0)
"""Sixteen GPUs, two NVLink islands of eight."""

SIXTEEN_FOUR_ROOTS: Final = matrix_of(
    16, lambda a, b: 24.0 if a // 4 == b // 4 else 12.0 if a // 8 == b // 8 else 9.0
)
"""Sixteen GPUs under four PCIe roots, two per socket."""


def slower_ways(links: LinkMatrix) -> LinkMatrix:
    """Return the machine with its upper triangle measured twice as fast, and a wild diagonal."""
    ways = {-1: 1.0, 0: 7.0, 1: 2.0}
    return LinkMatrix(
        rows=tuple(
            tuple((speed or 7.0) * ways[(b > a) - (b < a)] for b, speed in enumerate(row))
            for a, row in enumerate(links.rows)
        )
    )


def groups_of(free: Iterable[int], count: int) -> list[Group]:
    """Return every group of so many, in text-book order."""
    return list(combinations(sorted(free), count))


def picked_by_trying(links: LinkMatrix, free: Iterable[int], count: int) -> Group:
    """Return the group that every rule of the choice leaves, one rule after the other."""
    minors = sorted(free)
    return pick(links, groups_of(minors, count), minors)


def best_bottlenecks(links: LinkMatrix) -> list[list[float]]:
    """
    Return for every set of GPUs (bit = minor) and every size the best bottleneck of its groups.

    A group is the whole set, or it lacks one of the set's GPUs: every group is tried.
    """
    size = len(links)
    whole = [math.inf] * (1 << size)
    best: list[list[float]] = [[math.inf]]
    for free in range(1, 1 << size):
        members = [minor for minor in range(size) if free >> minor & 1]
        lowest = members[0]
        to_lowest = (links.bandwidth_gbps(lowest, other) for other in members[1:])
        whole[free] = min(whole[free & (free - 1)], min(to_lowest, default=math.inf))
        without = [best[free ^ (1 << minor)] for minor in members]
        best.append([max(column) for column in zip(*without, strict=True)])
        best[free].append(whole[free])
    return best
