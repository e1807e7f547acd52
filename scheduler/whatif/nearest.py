"""
The nearest changes that would make a refused request fit, each of them really decided.

Rule: design section 4 (pure, same answer for the same input); every bound that ended a search is
named in the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from ledger.domain.annotations.cpu import NumaPolicy
from ledger.domain.devices import GPU
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest, is_whole
from scheduler.decide.dialects.registry import chooser_of
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings
from scheduler.whatif.alternatives import alternatives
from scheduler.whatif.releases import EXACT_MAX, Ending, fewest_endings
from scheduler.whatif.smaller import Smaller, smaller_requests
from scheduler.whatif.what_if import WhatIf

DECISIONS_MAX: Final = 10_000
"""Decisions per kind of change."""

WISHES_MAX: Final = 12
"""Single changes of wishes that are tried in pairs, where no single one helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Otherwise:
    """
    With these changes of wishes or nodes, amounts unchanged, the request goes to `node`.

    Attributes:
        ending: Pods that must end as well; None = no Pod must.
    """

    texts: tuple[str, ...]
    node: int
    ending: Ending | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """
    What would make the request fit.

    Attributes:
        fits: index of the node that takes the request as it is; None = none does.
        smaller: one entry per dimension that helps alone.
        others: single changes that help; pairs where no single one does; where no pair does
            either, changes of wishes that help once Pods have ended.
        ending: the fewest Pods of one node whose end makes room; None = no node could ever.
        at_most: where nothing else helps: what an empty cluster would take.
        cut: which searches a bound ended, in words.
    """

    fits: int | None
    smaller: tuple[Smaller, ...] = ()
    others: tuple[Otherwise, ...] = ()
    ending: Ending | None = None
    at_most: tuple[Smaller, ...] = ()
    cut: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNearest:
    """
    How far the members of a group or gang get together.

    Attributes:
        together: so many members, the first in their order, have places at the same time.
        next_one: what would help the first member beyond them, while they hold theirs; None where
            all have places.
    """

    members: int
    together: int
    next_one: Nearest | None


def nearest_of_group(
    members: Sequence[PodRequest], what_if: WhatIf, *, decisions_max: int = DECISIONS_MAX
) -> GroupNearest:
    """
    Return how many members of a group fit together, and what the next one lacks.

    The cluster is left as it was found.
    """
    members = [replace(member, gang=None) for member in members]  # how many is the question
    low, high = 0, len(members)
    while low < high:
        middle = (low + high + 1) // 2
        placed = what_if.plan_together(members[:middle])
        if all(placement is not None for placement in placed):
            low = middle
        else:
            high = middle - 1
    if low == len(members):
        return GroupNearest(members=low, together=low, next_one=None)
    standing = [p for p in (what_if.plan_together(members[:low]) if low else ()) if p is not None]
    for placement in standing:
        what_if.reserve(placement)
    found = nearest(members[low], what_if, decisions_max=decisions_max)
    for placement in standing:
        what_if.undo(placement)
    return GroupNearest(members=len(members), together=low, next_one=found)


def nearest(request: PodRequest, what_if: WhatIf, *, decisions_max: int = DECISIONS_MAX) -> Nearest:
    """
    Return the nearest changes of the request, the nodes or their holders.

    The cluster is left as it was found.

    Args:
        decisions_max: bound of each of the three searches.
    """
    answer = what_if.decide(request)
    if isinstance(answer, Placement):
        return Nearest(fits=answer.node)
    cut: list[str] = []
    smaller, was_cut = smaller_requests(request, what_if, decisions_max=decisions_max)
    if was_cut:
        cut.append(f"smaller requests: after {decisions_max} decisions")
    ending = _ending(request, what_if, decisions_max, cut)
    others = _others(request, what_if, cut)
    at_most: list[Smaller] = []
    if not (smaller or others or ending):
        others = _with_endings(request, what_if, decisions_max, cut)
        empty = WhatIf(what_if.nodes, (), what_if.settings, by_count=what_if.by_count)
        at_most, _ = smaller_requests(request, empty, decisions_max=decisions_max)
    return Nearest(
        fits=None,
        smaller=tuple(smaller),
        others=tuple(others),
        ending=ending,
        at_most=tuple(at_most),
        cut=tuple(dict.fromkeys(cut)),
    )


def _ending(
    request: PodRequest, what_if: WhatIf, decisions_max: int, cut: list[str]
) -> Ending | None:
    ending = fewest_endings(request, what_if, decisions_max=decisions_max)
    if ending is not None and not ending.exact:
        cut.append(
            f"fewest Pods: exact up to {EXACT_MAX} Pods and {decisions_max} decisions,"
            " beyond that a set none of which is there in vain"
        )
    return ending


def _with_endings(
    request: PodRequest, what_if: WhatIf, decisions_max: int, cut: list[str]
) -> list[Otherwise]:
    """Return changes of wishes that help once Pods have ended, the fewest Pods first."""
    found: list[Otherwise] = []
    for wish in list(alternatives(request, what_if.nodes))[:WISHES_MAX]:
        ending = _ending(wish.apply(request), what_if, decisions_max, cut)
        if ending is not None:
            found.append(Otherwise(texts=(wish.text,), node=ending.node, ending=ending))
    return sorted(found, key=lambda other: len(other.ending.holders) if other.ending else 0)


def _others(request: PodRequest, what_if: WhatIf, cut: list[str]) -> list[Otherwise]:
    wishes = list(alternatives(request, what_if.nodes))
    found: list[Otherwise] = []
    for wish in wishes:
        answer = what_if.decide(wish.apply(request))
        if isinstance(answer, Placement):
            found.append(Otherwise(texts=(wish.text,), node=answer.node))
    found += _other_nodes(request, what_if)
    if found or len(wishes) < 2:
        return found
    if len(wishes) > WISHES_MAX:
        cut.append(f"pairs of other wishes: the first {WISHES_MAX} of {len(wishes)}")
    for one, other in combinations(wishes[:WISHES_MAX], 2):
        answer = what_if.decide(other.apply(one.apply(request)))
        if isinstance(answer, Placement):
            found.append(Otherwise(texts=(one.text, other.text), node=answer.node))
    return found


def _other_nodes(request: PodRequest, what_if: WhatIf) -> Iterator[Otherwise]:
    """Yield what whoever runs the cluster could change: health, partition policy, settings."""
    for text, nodes, settings in _conversions(request, what_if):
        otherwise = WhatIf(nodes, what_if.holders.values(), settings, by_count=what_if.by_count)
        answer = otherwise.decide(request)
        if isinstance(answer, Placement):
            yield Otherwise(texts=(text,), node=answer.node)


def _conversions(
    request: PodRequest, what_if: WhatIf
) -> Iterator[tuple[str, tuple[NodeFacts, ...], SchedulingSettings]]:
    nodes, settings = what_if.nodes, what_if.settings
    gpus = [demand for demand in request.devices if demand.device_type == GPU]
    asked = {demand.device_type for demand in request.devices}
    if any(
        not item.healthy and item.device_type in asked for node in nodes for item in node.devices
    ):
        yield "open the closed devices again", tuple(map(_healed, nodes)), settings
    if gpus and all(map(is_whole, gpus)) and any(node.honors_partitions for node in nodes):
        free = tuple(replace(node, honors_partitions=False) for node in nodes)
        yield "let nodes Prefer their GPU partitions instead of Honor", free, settings
    if any(node.numa_policy for node in nodes):
        loose = tuple(replace(node, numa_policy=NumaPolicy.BEST_EFFORT) for node in nodes)
        yield "let nodes align NUMA resources by BestEffort", loose, settings
    yield from chooser_of(request.dialect).conversions(request, nodes, settings)


def _healed(node: NodeFacts) -> NodeFacts:
    devices = tuple(replace(record, healthy=True) for record in node.devices)
    return replace(node, devices=devices)
