"""GPUs of one node whose slowest link is fastest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final

from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards.link_table import TABLE_GPUS_MAX, table_of

STEPS_MAX: Final = 20_000
"""Steps of one search among more free GPUs than a table holds; then the best found counts."""


def pick_linked(
    free: Iterable[int],
    count: int,
    links: LinkMatrix,
    *,
    within: Sequence[Iterable[int]] = (),
    ties_by_minor: bool = False,
) -> tuple[int, ...]:
    """
    Choose the `count` free GPUs whose slowest link is fastest.

    Rule: Koordinator GPU-topology proposal, "Pick GPUs of Node".

    Exact for up to `TABLE_GPUS_MAX` free GPUs, out of a table that nodes with equal matrices
    share. Ties go to the GPUs whose best ring (a closed way through all of them) has the fastest
    slowest link, then to those that leave the best GPUs to others, then to the lowest minors; for
    one GPU the rest alone decides. Among more free GPUs a search of `STEPS_MAX` steps is made for
    every speed it tries, and ties go to the lowest minors.

    Args:
        free: what the rest is part of: every GPU that the next Pod could have.
        within: sets of free GPUs, one of which holds the chosen ones, and at least one of which
            has so many; none = all that are free.
        ties_by_minor: ties go to the lowest minors at once, neither ring nor rest is looked at.

    Returns:
        Minors in ascending order. A minor that the matrix lacks has links of 0 GB/s.
    """
    minors = sorted(free)
    assert 1 <= count <= len(minors), (count, minors)
    if count == len(minors):
        return tuple(minors)
    size = len(links)
    if minors[-1] < size <= TABLE_GPUS_MAX:
        inside = tuple([_set_of(group, size) for group in within])
        table = table_of(links)
        return table.pick(_set_of(minors, size), count, within=inside, ties_by_minor=ties_by_minor)
    if len(minors) > TABLE_GPUS_MAX:
        scopes = sorted(sorted(group) for group in within) if within else [minors]
        found = [_searched(scope, count, links) for scope in scopes if len(scope) >= count]
        return max(found, key=lambda group: _slowest(group, links))
    place_of = {minor: place for place, minor in enumerate(minors)}
    speeds = tuple(tuple(speed_between(links, a, b) for b in minors) for a in minors)
    places = table_of(LinkMatrix(rows=speeds)).pick(
        (1 << len(minors)) - 1,
        count,
        within=tuple(_set_of(map(place_of.__getitem__, group), len(minors)) for group in within),
        ties_by_minor=ties_by_minor,
    )
    return tuple([minors[place] for place in places])


def _set_of(minors: Iterable[int], size: int) -> int:
    """Return these GPUs as the number that a table of this size knows them by."""
    chosen = 0
    for minor in minors:
        chosen |= 1 << (size - 1 - minor)
    return chosen


def _slowest(minors: Sequence[int], links: LinkMatrix) -> float:
    return min((speed_between(links, a, b) for a, b in combinations(minors, 2)), default=math.inf)


def speed_between(links: LinkMatrix, a: int, b: int) -> float:
    """Return the speed of the link between two GPUs, GB/s; 0 for a GPU that the matrix lacks."""
    return links.bandwidth_gbps(a, b) if max(a, b) < len(links) else 0.0


def _searched(minors: Sequence[int], count: int, links: LinkMatrix) -> tuple[int, ...]:
    """Try ever faster speeds, halving what is left of them."""
    speeds = {
        (a, b): speed_between(links, minors[a], minors[b])
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
    return _first_clique(higher, count)


def _first_clique(higher: Sequence[int], count: int) -> tuple[int, ...] | None:
    """Return the first `count` places that are all linked; None too when the steps run out."""
    path: list[int] = []
    levels = [(1 << len(higher)) - 1]  # the places still to try after each prefix of the path
    for _ in range(STEPS_MAX):
        left = levels[-1]
        if left.bit_count() < count - len(path):
            levels.pop()
            if not levels:
                return None
            path.pop()
            continue
        lowest = (left & -left).bit_length() - 1
        levels[-1] = left & (left - 1)
        path.append(lowest)
        if len(path) == count:
            return tuple(path)
        levels.append(levels[-1] & higher[lowest])
    return None
