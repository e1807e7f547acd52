"""The NUMA scorer: how well a set of NUMA nodes would be used, 0 to 100."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

FULL_SCORE: Final = 100


class Usage(NamedTuple):
    """One resource on a set of NUMA nodes: capacity, what is used, what the request adds."""

    capacity: int
    used: int
    asked: int


def score(usages: Sequence[Usage], *, most_allocated: bool) -> int:
    """
    Return the mean score of the resources, all weighted alike.

    Rule: Koordinator contract 7: Least (cap - req) * 100 / cap, Most req * 100 / cap, in whole
    numbers; the request counts as used and is cut at the capacity; above it Least gives 0.
    """
    if not usages:
        return 0
    return sum(_score(usage, most_allocated=most_allocated) for usage in usages) // len(usages)


def _score(usage: Usage, *, most_allocated: bool) -> int:
    if usage.capacity <= 0:
        return 0
    requested = min(usage.used + usage.asked, usage.capacity)
    part = requested if most_allocated else usage.capacity - requested
    return part * FULL_SCORE // usage.capacity
