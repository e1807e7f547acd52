"""A group's GPUs on one node, shared out so that the slowest link inside any member is fastest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards.links import STEPS_MAX, speed_between


def split_linked(
    minors: Iterable[int], counts: Sequence[int], links: LinkMatrix
) -> list[tuple[int, ...]]:
    """
    Return the GPUs of every member, in their order; together they are all of `minors`.

    Rule: Koordinator GPU-topology proposal, "Pick GPUs of Node"; DIVERGENCES, "the GPUs of a
    group's members". Of splits as fast, the first members get the lowest minors. A search of
    `STEPS_MAX` steps is made for every speed it tries; by minor there always is a split.

    Args:
        counts: of each member, in sum the number of `minors`.
    """
    places = sorted(minors)
    assert sum(counts) == len(places), (counts, places)
    speeds = {
        (a, b): speed_between(links, places[a], places[b])
        for a, b in combinations(range(len(places)), 2)
    }
    levels = sorted(set(speeds.values()))
    best = _shared_out(counts, [(1 << len(places)) - 1] * len(places))
    slower, faster = 1, len(levels) - 1  # at the slowest level everything is linked
    while slower <= faster:
        middle = (slower + faster) // 2
        near = [0] * len(places)
        for (a, b), speed in speeds.items():
            if speed >= levels[middle]:
                near[a] |= 1 << b
                near[b] |= 1 << a
        found = _shared_out(counts, near)
        if found is None:
            faster = middle - 1
        else:
            best, slower = found, middle + 1
    assert best is not None, "where everything is linked the first try succeeds"
    return [
        tuple(minor for place, minor in enumerate(places) if part >> place & 1) for part in best
    ]


def _shared_out(counts: Sequence[int], near: Sequence[int]) -> list[int] | None:
    """Return a set of linked places per member, the lowest first; None too when steps run out."""
    steps = iter(range(STEPS_MAX))
    failed: set[tuple[int, int]] = set()

    def linked_sets(left: int, count: int) -> Iterator[int]:
        if not count:
            yield 0
            return
        while left.bit_count() >= count and next(steps, None) is not None:
            lowest = left & -left
            left ^= lowest
            for rest in linked_sets(left & near[lowest.bit_length() - 1], count - 1):
                yield lowest | rest

    def give(number: int, left: int) -> list[int] | None:
        if number == len(counts):
            return []
        if (number, left) in failed:
            return None
        alike = len(set(counts[number:])) == 1  # then somebody has the lowest: this member
        for part in linked_sets(left, counts[number]):
            if alike and part and not part & left & -left:
                break
            others = give(number + 1, left ^ part)
            if others is not None:
                return [part, *others]
        failed.add((number, left))
        return None

    return give(0, (1 << len(near)) - 1)
