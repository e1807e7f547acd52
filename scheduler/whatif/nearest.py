"""
The nearest changes that would make a refused request fit, each of them really decided.

A change is one wish less (policies, hints, models, labels), or other nodes.

Rule: design section 4 (pure, same answer for the same input); every bound that ended a search is
named in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ledger.domain.annotations.cpu import CpuBindPolicy, NumaPolicy
from ledger.domain.annotations.device_hints import (
    AllocateStrategy,
    DeviceExclusivePolicy,
    DeviceHint,
    JointScope,
    PartitionPolicy,
    TopologyScope,
)
from ledger.domain.devices import GPU, WHOLE_PERCENT
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import DeviceDemand, PodRequest, Toleration, is_whole
from ledger.domain.resources import TAINT_UNSCHEDULABLE
from scheduler.decide.dialects.registry import chooser_of
from scheduler.decide.outcome import Placement
from scheduler.decide.refusal.possible import opened_up
from scheduler.decide.settings import SchedulingSettings
from scheduler.whatif.releases import Ending, fewest_endings
from scheduler.whatif.smaller import Smaller, smaller_requests
from scheduler.whatif.what_if import WhatIf

DECISIONS_MAX: Final = 10_000
"""Decisions per kind of change."""

Change = Callable[[PodRequest], PodRequest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Otherwise:
    """With this change of a wish or of nodes, amounts unchanged, the request goes to `node`."""

    text: str
    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """
    What would make the request fit.

    Attributes:
        fits: index of the node that takes the request as it is; None = none does.
        smaller: one entry per dimension that helps alone.
        others: single changes of wishes or nodes that help.
        ending: Pods of one node whose end makes room, none in vain; None = no node could ever.
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
    members = [
        replace(each, gang=each.gang and replace(each.gang, min_available=0)) for each in members
    ]  # how many is the question; that they are members may close nodes
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
        decisions_max: bound of each of the searches.
    """
    answer = what_if.decide(request)
    if isinstance(answer, Placement):
        return Nearest(fits=answer.node)
    cut: list[str] = []
    smaller, was_cut = smaller_requests(request, what_if, decisions_max=decisions_max)
    if was_cut:
        cut.append(f"smaller requests: after {decisions_max} decisions")
    ending, was_cut = fewest_endings(request, what_if, decisions_max=decisions_max)
    if was_cut:
        cut.append(f"Pods that could end: after {decisions_max} decisions")
    others = tuple(_others(request, what_if))
    at_most: list[Smaller] = []
    if not (smaller or others or ending):
        empty = WhatIf(what_if.nodes, (), what_if.settings, by_count=what_if.by_count)
        at_most, _ = smaller_requests(request, empty, decisions_max=decisions_max)
    return Nearest(
        fits=None,
        smaller=tuple(smaller),
        others=others,
        ending=ending,
        at_most=tuple(at_most),
        cut=tuple(cut),
    )


def _others(request: PodRequest, what_if: WhatIf) -> Iterator[Otherwise]:
    """Yield other wishes, then what could change on nodes: health, partition policy, settings."""
    for wish in alternatives(request, what_if.nodes):
        answer = what_if.decide(wish.apply(request))
        if isinstance(answer, Placement):
            yield Otherwise(text=wish.text, node=answer.node)
    for text, nodes, settings in _conversions(request, what_if):
        otherwise = WhatIf(nodes, what_if.holders.values(), settings, by_count=what_if.by_count)
        answer = otherwise.decide(request)
        if isinstance(answer, Placement):
            yield Otherwise(text=text, node=answer.node)


def _conversions(
    request: PodRequest, what_if: WhatIf
) -> Iterator[tuple[str, tuple[NodeFacts, ...], SchedulingSettings]]:
    nodes, settings = what_if.nodes, what_if.settings
    gpus = [demand for demand in request.devices if demand.device_type == GPU]
    asked = {demand.device_type for demand in request.devices}
    if any(
        not item.healthy and item.device_type in asked for node in nodes for item in node.devices
    ):
        yield "open the closed devices again", tuple(map(opened_up, nodes)), settings
    if gpus and all(map(is_whole, gpus)) and any(node.honors_partitions for node in nodes):
        free = tuple(replace(node, honors_partitions=False) for node in nodes)
        yield "let nodes Prefer their GPU partitions instead of Honor", free, settings
    if any(node.numa_policy for node in nodes):
        loose = tuple(replace(node, numa_policy=NumaPolicy.BEST_EFFORT) for node in nodes)
        yield "let nodes align NUMA resources by BestEffort", loose, settings
    yield from chooser_of(request.dialect).conversions(request, nodes, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """
    One change of a wish.

    Attributes:
        text: what to do, as an order: `drop the required topology scope NUMANode`.
    """

    text: str
    apply: Change


def alternatives(request: PodRequest, nodes: Sequence[NodeFacts]) -> Iterator[Alternative]:
    """Yield every single change of a wish that leaves the amounts as they are."""
    yield from _of_hints(request)
    yield from _of_gpus(request, nodes)
    yield from _of_cpus(request)
    yield from _of_placement(request, nodes)


def _of_hints(request: PodRequest) -> Iterator[Alternative]:
    for kind in dict.fromkeys(item.device_type for item in request.devices):
        hint = next(item.hint for item in request.devices if item.device_type == kind)
        if hint is None:
            continue
        scope, exclusive = hint.required_topology_scope, hint.exclusive_policy
        if scope is not TopologyScope.UNSET:
            yield Alternative(
                text=f"drop requiredTopologyScope {scope} of {kind}",
                apply=_hinted(
                    kind, lambda own: replace(own, required_topology_scope=TopologyScope.UNSET)
                ),
            )
        if exclusive is not DeviceExclusivePolicy.UNSET:
            yield Alternative(
                text=f"drop exclusivePolicy {exclusive} of {kind}",
                apply=_hinted(
                    kind, lambda own: replace(own, exclusive_policy=DeviceExclusivePolicy.UNSET)
                ),
            )
        if hint.selector is not None:
            yield Alternative(
                text=f"drop the device selector of {kind}",
                apply=_hinted(kind, lambda own: replace(own, selector=None)),
            )
        if hint.vf_selector is not None:
            yield Alternative(
                text=f"drop the vfSelector of {kind}",
                apply=_hinted(kind, lambda own: replace(own, vf_selector=None)),
            )
        if hint.allocate_strategy is AllocateStrategy.APPLY_FOR_ALL:
            yield Alternative(
                text=f"drop allocateStrategy {hint.allocate_strategy} of {kind}",
                apply=_hinted(
                    kind, lambda own: replace(own, allocate_strategy=AllocateStrategy.UNSET)
                ),
            )
    joint = request.joint
    if joint is not None and joint.required_scope is JointScope.SAME_PCIE:
        loose = replace(joint, required_scope=JointScope.BEST_EFFORT)
        yield Alternative(
            text="drop the required scope SamePCIe of joint allocation",
            apply=lambda other: replace(other, joint=loose),
        )
    yield from _of_partition(request)


def _hinted(kind: str, change: Callable[[DeviceHint], DeviceHint]) -> Change:
    return partial(
        _with_demands,
        lambda item: (
            replace(item, hint=change(item.hint))
            if item.device_type == kind and item.hint is not None
            else item
        ),
    )


def _with_demands(
    change: Callable[[DeviceDemand], DeviceDemand], request: PodRequest
) -> PodRequest:
    return replace(request, devices=tuple(map(change, request.devices)))


def _of_partition(request: PodRequest) -> Iterator[Alternative]:
    spec = request.partition
    if spec is None:
        return
    if spec.allocate_policy is PartitionPolicy.RESTRICTED:
        free = replace(spec, allocate_policy=PartitionPolicy.BEST_EFFORT)
        yield Alternative(
            text="use allocatePolicy BestEffort instead of Restricted",
            apply=lambda other: replace(other, partition=free),
        )
    if spec.ring_bus_bandwidth is not None:
        slow = replace(spec, ring_bus_bandwidth=None)
        yield Alternative(
            text="ask for no ringBusBandwidth",
            apply=lambda other: replace(other, partition=slow),
        )
    yield Alternative(
        text="drop the GPU partition spec", apply=lambda other: replace(other, partition=None)
    )


def _of_gpus(request: PodRequest, nodes: Sequence[NodeFacts]) -> Iterator[Alternative]:
    for kind in dict.fromkeys(item.device_type for item in request.devices if item.model_names):
        names = next(item.model_names for item in request.devices if item.device_type == kind)
        yield Alternative(
            text=f"allow other {kind} models than {', '.join(names)}", apply=_any_model(kind)
        )
    gpus = [item for item in request.devices if item.device_type == GPU]
    if any(item.exclusive and item.core_percent < WHOLE_PERCENT for item in gpus):
        yield Alternative(
            text="share the cards: ask without exclusive",
            apply=partial(_with_demands, _alone_no_more),
        )
    for text, change in chooser_of(request.dialect).alternatives(request, nodes):
        yield Alternative(text=text, apply=change)


def _any_model(kind: str) -> Change:
    return partial(
        _with_demands,
        lambda item: replace(item, model_names=()) if item.device_type == kind else item,
    )


def _alone_no_more(demand: DeviceDemand) -> DeviceDemand:
    return replace(demand, exclusive=False) if demand.core_percent < WHOLE_PERCENT else demand


def _of_cpus(request: PodRequest) -> Iterator[Alternative]:
    if request.numa is not None:
        yield Alternative(
            text=f"drop the NUMA topology policy {request.numa.policy}",
            apply=lambda other: replace(other, numa=None),
        )
    cpuset = request.cpuset
    if cpuset is None:
        return
    if cpuset.required:
        loose = replace(cpuset, required=False)
        yield Alternative(
            text=f"prefer the CPU bind policy {cpuset.bind_policy} instead of requiring it",
            apply=lambda other: replace(other, cpuset=loose),
        )
    for policy in (CpuBindPolicy.FULL_PCPUS, CpuBindPolicy.SPREAD_BY_PCPUS):
        if cpuset.bind_policy == policy:
            continue
        turned = replace(cpuset, bind_policy=str(policy))
        yield Alternative(
            text=f"use the CPU bind policy {policy} instead of {cpuset.bind_policy}",
            apply=partial(replace, cpuset=turned),
        )
    yield Alternative(
        text="ask for no CPUs of its own (QoS LS)",
        apply=lambda other: replace(other, cpuset=None),
    )


def _of_placement(request: PodRequest, nodes: Sequence[NodeFacts]) -> Iterator[Alternative]:
    rules = request.placement
    for pair in rules.node_selector:
        yield Alternative(
            text=f"drop the node selector {pair[0]}={pair[1]}",
            apply=partial(_without_label, pair),
        )
    if rules.affinity_terms is not None:
        yield Alternative(
            text="drop the required node affinity",
            apply=lambda other: replace(
                other, placement=replace(other.placement, affinity_terms=None)
            ),
        )
    taints = {
        (taint.key, taint.value, taint.effect)
        for node in nodes
        for taint in node.taints
        if taint.effect != "PreferNoSchedule"
    }
    if any(node.unschedulable for node in nodes):
        taints.add((TAINT_UNSCHEDULABLE, "", "NoSchedule"))
    for key, value, effect in sorted(taints):
        toleration = Toleration(key=key, operator="Equal", value=value, effect=effect)
        cordon = key == TAINT_UNSCHEDULABLE
        named = f"{key}={value}:{effect}" if value else f"{key}:{effect}"
        yield Alternative(
            text="uncordon a node" if cordon else f"tolerate the taint {named}",
            apply=partial(_tolerating, toleration),
        )


def _without_label(pair: tuple[str, str], request: PodRequest) -> PodRequest:
    rules = request.placement
    left = tuple(other for other in rules.node_selector if other != pair)
    return replace(request, placement=replace(rules, node_selector=left))


def _tolerating(toleration: Toleration, request: PodRequest) -> PodRequest:
    rules = request.placement
    return replace(request, placement=replace(rules, tolerations=(*rules.tolerations, toleration)))
