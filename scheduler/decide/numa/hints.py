"""NUMA hints: the sets of NUMA nodes that could serve one resource of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from ledger.domain.annotations.cpu import NumaPolicy

DEVICE_CHOICE_SCORE: Final = 500
"""Score of a device hint that gives the devices which would be chosen without alignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaHint:
    """
    NUMA nodes that can serve all that a request asks of one resource.

    Rule: Koordinator contract 7.

    Attributes:
        nodes: the mask.
        preferred: no smaller set serves the resource; under Restricted every hint is.
        score: 0 to 100 of the NUMA scorer for cpu and memory, 0 or 500 for devices.
    """

    nodes: int
    preferred: bool = True
    score: int = 0


Hints = Mapping[str, Sequence[NumaHint]]
"""Resource -> its hints. No hints: nothing can serve it. Not there: nobody reports it."""


def masks_of(nodes: Sequence[int]) -> Iterator[int]:
    """
    Yield every set of these NUMA nodes, by size, then numerically.

    >>> [bin(mask) for mask in masks_of([0, 1])]
    ['0b1', '0b10', '0b11']
    """
    for size in range(1, len(nodes) + 1):
        yield from sorted(sum(1 << node for node in some) for some in combinations(nodes, size))


def hints_of(
    masks: Sequence[int],
    score: Callable[[int], int],
    policy: NumaPolicy,
    fewest: int | None = None,
) -> tuple[NumaHint, ...]:
    """
    Return the hints of the masks that serve a resource.

    Rule: Koordinator contract 7: preferred are the smallest; with Restricted all.

    Args:
        fewest: how many NUMA nodes the resource would need of an empty machine, where kubelet
            prefers no other number (CPU proposal, Story 3).
    """
    smallest = min((mask.bit_count() for mask in masks), default=0) if fewest is None else fewest
    every = policy is NumaPolicy.RESTRICTED and fewest is None
    return tuple(
        NumaHint(nodes=mask, preferred=every or mask.bit_count() == smallest, score=score(mask))
        for mask in masks
    )
