"""NUMA hints: sets of NUMA nodes that could serve each resource, merged into one set for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations
from typing import Final

from ledger.domain.annotations.cpu import NumaPolicy
from scheduler.decide.refusal import reasons

DEVICE_CHOICE_SCORE: Final = 500
"""Score of a device hint that gives the devices which would be chosen without alignment."""
_BITS_PER_GROUP: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaHint:
    """
    NUMA nodes that can serve all that a request asks of one resource.

    Rule: Koordinator contract 7.

    Attributes:
        nodes: the mask.
        preferred: no smaller set serves the resource, or could of an empty machine.
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
    preferred: int | None = None,
) -> tuple[NumaHint, ...]:
    """
    Return the hints of the masks that serve a resource.

    Rule: Koordinator contract 7.

    Args:
        preferred: the size of the masks that are; 0 = of any size, None = the smallest.
    """
    size = min(map(int.bit_count, masks), default=0) if preferred is None else preferred
    return tuple(
        NumaHint(nodes=mask, preferred=size in {0, mask.bit_count()}, score=score(mask))
        for mask in masks
    )


class NumaUse(StrEnum):
    """What CPU sets sit on a NUMA node: only one-node sets, some many-node set, or none."""

    IDLE = "idle"
    SINGLE = "single"
    SHARED = "shared"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aligned:
    """
    What the hints come to.

    Attributes:
        nodes: the mask; None = any NUMA nodes, resource by resource as if nothing was asked.
        reasons: why the policy does not admit it; empty = admitted.
    """

    nodes: int | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusivity:
    """
    Whether one-node and many-node CPU sets may meet, and where they are now.

    Rule: Koordinator contract 7, exclusive use.
    """

    required: bool = False
    uses: Mapping[int, NumaUse] = field(default_factory=dict)

    def allows(self, nodes: int) -> bool:
        """Tell whether a set of NUMA nodes keeps the two apart."""
        if not self.required:
            return True
        unwanted = NumaUse.SHARED if nodes.bit_count() == 1 else NumaUse.SINGLE
        return all(use is not unwanted for node, use in self.uses.items() if nodes >> node & 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Best:
    """The best merged set; `common`: every resource with an opinion has a hint of just it."""

    nodes: int
    preferred: bool
    common: bool


def merge(
    policy: NumaPolicy,
    hints: Hints,
    numa_nodes: Sequence[int],
    exclusivity: Exclusivity = Exclusivity(),
) -> Aligned:
    """
    Merge one hint of each resource into one set of NUMA nodes, and say whether it is admitted.

    Rule: Koordinator contract 7, merge and the table of policies.

    A merged set is preferred only if every resource prefers it, and the same one. Best is:
    preferred, fewer nodes, the higher sum of the scores of hints of just that set, the lower
    mask. BestEffort always admits: where the best set is narrower than a hint it came from, all
    NUMA nodes are taken.
    """
    assert policy is not NumaPolicy.NONE, "without a policy there is nothing to merge"
    everywhere = sum(1 << node for node in numa_nodes)
    missing = tuple(
        f"{reasons.UNSATISFIED.text} {name}" for name, found in hints.items() if not found
    )
    if policy is NumaPolicy.BEST_EFFORT:
        if missing:
            return Aligned(nodes=everywhere)
        best = _best(list(hints.values()), everywhere, exclusivity)
        return Aligned(nodes=best.nodes if best.common else everywhere)
    if missing:
        return Aligned(reasons=missing)
    considered = list(hints.values())
    if policy is NumaPolicy.SINGLE_NUMA_NODE:
        considered = [
            [hint for hint in found if hint.preferred and hint.nodes.bit_count() == 1]
            for found in considered
        ]
    best = _best(considered, everywhere, exclusivity)
    if not best.preferred:
        return Aligned(reasons=(_unaligned(policy, hints),))
    if policy is NumaPolicy.SINGLE_NUMA_NODE and best.nodes == everywhere:
        return Aligned()
    return Aligned(nodes=best.nodes)


def _best(hints: Sequence[Sequence[NumaHint]], everywhere: int, exclusivity: Exclusivity) -> _Best:
    """
    Return the best merged set.

    A preferred one is a hint of every resource, so that looking at common sets is enough; only
    without one are merged sets enumerated, as sets and not as combinations of hints.
    """
    by_mask = [{hint.nodes: hint for hint in found} for found in hints]
    common = [
        mask for mask in (by_mask[0] if by_mask else ()) if all(mask in found for found in by_mask)
    ]
    preferred = [
        mask
        for mask in common
        if all(found[mask].preferred for found in by_mask) and exclusivity.allows(mask)
    ]
    if not by_mask:
        return _Best(nodes=everywhere, preferred=exclusivity.allows(everywhere), common=True)
    if preferred:
        nodes = min(preferred, key=lambda mask: _rank(by_mask, mask))
        return _Best(nodes=nodes, preferred=True, common=True)
    merged = {everywhere}
    for found in by_mask:
        merged = {nodes & mask for nodes in merged for mask in found} - {0}
    if not merged:
        return _Best(nodes=everywhere, preferred=False, common=True)
    nodes = min(merged, key=lambda mask: _rank(by_mask, mask))
    return _Best(nodes=nodes, preferred=False, common=nodes in common)


def _rank(by_mask: Sequence[Mapping[int, NumaHint]], mask: int) -> tuple[int, int, int]:
    """Return what orders merged sets, the best first."""
    score = sum(found[mask].score for found in by_mask if mask in found)
    return mask.bit_count(), -score, mask


def _unaligned(policy: NumaPolicy, hints: Hints) -> str:
    """Return `Unaligned NUMA Hint cause cpu prefer [01 10] among [01 10 11] & ...`."""
    parts = [
        f"{name} prefer [{_texts(hint.nodes for hint in found if hint.preferred)}]"
        f" among [{_texts(hint.nodes for hint in found)}]"
        for name, found in sorted(hints.items())
    ]
    between = "," if policy is NumaPolicy.SINGLE_NUMA_NODE else " & "
    return f"{reasons.UNALIGNED.text} {between.join(parts)}"


def _texts(masks: Iterable[int]) -> str:
    return " ".join(map(mask_text, masks))


def mask_text(mask: int) -> str:
    """
    Write NUMA nodes as kubelet's and the release's logs do: bits, node 0 last, in pairs.

    >>> mask_text(0b1), mask_text(0b101)
    ('01', '0101')
    """
    width = -(-mask.bit_length() // _BITS_PER_GROUP) * _BITS_PER_GROUP
    return f"{mask:0{width}b}"
