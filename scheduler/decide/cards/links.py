"""GPUs of one node whose slowest link is fastest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final

from ledger.domain.topology import LinkMatrix

GPU_COUNT_MAX: Final = 16
"""The choice is exact up to this many free GPUs; beyond it, exact among the lowest 16 minors."""


def pick_linked(free: Iterable[int], count: int, links: LinkMatrix) -> tuple[int, ...]:
    """
    Choose the `count` free GPUs whose slowest link is fastest.

    Rule: Koordinator GPU-topology proposal, "Pick GPUs of Node".

    Returns:
        Minors in ascending order. Ties go to the lowest minors. Without a link to compare (one
        GPU, a minor that the matrix lacks, more than 16 GPUs asked) the lowest minors.
    """
    minors = sorted(free)
    assert 1 <= count <= len(minors), (count, minors)
    if count == 1 or count > GPU_COUNT_MAX or minors[-1] >= len(links):
        return tuple(minors[:count])
    minors = minors[:GPU_COUNT_MAX]
    speeds = {
        (a, b): links.bandwidth_gbps(minors[a], minors[b])
        for a, b in combinations(range(len(minors)), 2)
    }
    best = tuple(range(count))
    slower, faster = 0, len(levels := sorted(set(speeds.values()))) - 1
    while slower <= faster:  # the fastest level at which `count` GPUs are all linked
        middle = (slower + faster) // 2
        group = _linked_group(speeds, len(minors), count, levels[middle])
        if group is None:
            faster = middle - 1
        else:
            best, slower = group, middle + 1
    return tuple(minors[place] for place in best)


def _linked_group(
    speeds: dict[tuple[int, int], float], size: int, count: int, at_least: float
) -> tuple[int, ...] | None:
    """Return the first group, in text-book order, in which every link is at least so fast."""
    higher = [0] * size  # bit b of higher[a]: a < b and their link is fast enough
    for (a, b), speed in speeds.items():
        if speed >= at_least:
            higher[a] |= 1 << b
    return _first_clique(higher, (1 << size) - 1, count)


def _first_clique(higher: Sequence[int], candidates: int, count: int) -> tuple[int, ...] | None:
    if count == 0:
        return ()
    while candidates.bit_count() >= count:
        lowest = (candidates & -candidates).bit_length() - 1
        candidates &= candidates - 1
        rest = _first_clique(higher, candidates & higher[lowest], count - 1)
        if rest is not None:
            return (lowest, *rest)
    return None
