"""
The nearest changes that would make a refused request fit, each of them really decided.

A change is one smaller number, one wish less (policies, hints, models, labels), or Pods that end.

Rule: design section 4 (pure, same answer for the same input); every bound that ended a search is
named in the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ledger.domain.annotations.cpu import CpuBindPolicy
from ledger.domain.annotations.device_hints import (
    AllocateStrategy,
    DeviceExclusivePolicy,
    JointScope,
    PartitionPolicy,
    TopologyScope,
)
from ledger.domain.devices import GPU, WHOLE_PERCENT
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import DeviceDemand, PlacementRules, PodRequest, Toleration
from ledger.domain.resources import TAINT_UNSCHEDULABLE
from scheduler.decide.dialects.registry import chooser_of
from scheduler.decide.outcome import Placement
from scheduler.whatif.releases import Ending, smallest_ending
from scheduler.whatif.smaller import Smaller, smaller_requests
from scheduler.whatif.what_if import WhatIf

DECISIONS_MAX: Final = 10_000
"""Decisions per kind of change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Otherwise:
    """With this change of a wish, amounts unchanged, the request goes to `node`."""

    text: str
    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """
    What would make the request fit.

    Attributes:
        fits: index of the node that takes the request as it is; None = none does.
        smaller: one entry per dimension that helps alone.
        others: single changes of wishes that help.
        ending: Pods of one node whose end makes room, none in vain; None = no node could ever.
        cut: which searches a bound ended, in words.
    """

    fits: int | None
    smaller: tuple[Smaller, ...] = ()
    others: tuple[Otherwise, ...] = ()
    ending: Ending | None = None
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


def nearest_of_group(members: Sequence[PodRequest], what_if: WhatIf) -> GroupNearest:
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
    found = nearest(members[low], what_if)
    for placement in standing:
        what_if.undo(placement)
    return GroupNearest(members=len(members), together=low, next_one=found)


def nearest(request: PodRequest, what_if: WhatIf, *, decisions_max: int = DECISIONS_MAX) -> Nearest:
    """
    Return the nearest changes of the request, or of who holds something.

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
    ending, was_cut = smallest_ending(request, what_if, decisions_max=decisions_max)
    if was_cut:
        cut.append(f"Pods that could end: after {decisions_max} decisions")
    return Nearest(
        fits=None,
        smaller=tuple(smaller),
        others=tuple(_others(request, what_if)),
        ending=ending,
        cut=tuple(cut),
    )


def _others(request: PodRequest, what_if: WhatIf) -> Iterator[Otherwise]:
    for text, changed in alternatives(request, what_if.nodes):
        answer = what_if.decide(changed)
        if isinstance(answer, Placement):
            yield Otherwise(text=text, node=answer.node)


def alternatives(
    request: PodRequest, nodes: Sequence[NodeFacts]
) -> Iterator[tuple[str, PodRequest]]:
    """
    Yield the request with every single wish changed, amounts as they are.

    Each with what to do, as an order: `drop the required topology scope NUMANode`.
    """
    yield from _of_hints(request)
    yield from _of_gpus(request, nodes)
    yield from _of_cpus(request)
    yield from _of_placement(request, nodes)


def _of_hints(request: PodRequest) -> Iterator[tuple[str, PodRequest]]:
    for kind in dict.fromkeys(item.device_type for item in request.devices):
        hint = next(item.hint for item in request.devices if item.device_type == kind)
        if hint is None:
            continue
        scope, exclusive = hint.required_topology_scope, hint.exclusive_policy
        for words, field, none in (
            (f"requiredTopologyScope {scope}", "required_topology_scope", TopologyScope.UNSET),
            (f"exclusivePolicy {exclusive}", "exclusive_policy", DeviceExclusivePolicy.UNSET),
            ("the device selector", "selector", None),
            ("the vfSelector", "vf_selector", None),
        ):
            if getattr(hint, field) is not none:
                yield f"drop {words} of {kind}", _hinted(request, kind, {field: none})
        if hint.allocate_strategy is AllocateStrategy.APPLY_FOR_ALL:
            text = f"drop allocateStrategy {hint.allocate_strategy} of {kind}"
            yield text, _hinted(request, kind, {"allocate_strategy": AllocateStrategy.UNSET})
    joint = request.joint
    if joint is not None and joint.required_scope is JointScope.SAME_PCIE:
        loose = replace(joint, required_scope=JointScope.BEST_EFFORT)
        text = "drop the required scope SamePCIe of joint allocation"
        yield text, replace(request, joint=loose)
    yield from _of_partition(request)


def _hinted(request: PodRequest, kind: str, changes: Mapping[str, Any]) -> PodRequest:
    def change(item: DeviceDemand) -> DeviceDemand:
        return item if item.hint is None else replace(item, hint=replace(item.hint, **changes))

    return _with_demands(request, kind, change)


def _with_demands(
    request: PodRequest, kind: str, change: Callable[[DeviceDemand], DeviceDemand]
) -> PodRequest:
    devices = (change(each) if each.device_type == kind else each for each in request.devices)
    return replace(request, devices=tuple(devices))


def _of_partition(request: PodRequest) -> Iterator[tuple[str, PodRequest]]:
    spec = request.partition
    if spec is None:
        return
    if spec.allocate_policy is PartitionPolicy.RESTRICTED:
        free = replace(spec, allocate_policy=PartitionPolicy.BEST_EFFORT)
        text = "use allocatePolicy BestEffort instead of Restricted"
        yield text, replace(request, partition=free)
    if spec.ring_bus_bandwidth is not None:
        slow = replace(spec, ring_bus_bandwidth=None)
        yield "ask for no ringBusBandwidth", replace(request, partition=slow)
    yield "drop the GPU partition spec", replace(request, partition=None)


def _of_gpus(request: PodRequest, nodes: Sequence[NodeFacts]) -> Iterator[tuple[str, PodRequest]]:
    for kind in dict.fromkeys(item.device_type for item in request.devices if item.model_names):
        names = next(item.model_names for item in request.devices if item.device_type == kind)
        text = f"allow other {kind} models than {', '.join(names)}"
        yield text, _with_demands(request, kind, lambda item: replace(item, model_names=()))
    gpus = [item for item in request.devices if item.device_type == GPU]
    if any(item.exclusive and item.core_percent < WHOLE_PERCENT for item in gpus):
        shared = _with_demands(request, GPU, _alone_no_more)
        yield "share the cards: ask without exclusive", shared
    yield from chooser_of(request.dialect).alternatives(request, nodes)


def _alone_no_more(demand: DeviceDemand) -> DeviceDemand:
    return replace(demand, exclusive=False) if demand.core_percent < WHOLE_PERCENT else demand


def _of_cpus(request: PodRequest) -> Iterator[tuple[str, PodRequest]]:
    if request.numa is not None:
        yield f"drop the NUMA topology policy {request.numa.policy}", replace(request, numa=None)
    cpuset = request.cpuset
    if cpuset is None:
        return
    mine = cpuset.bind_policy
    if cpuset.required:
        text = f"prefer the CPU bind policy {mine} instead of requiring it"
        yield text, replace(request, cpuset=replace(cpuset, required=False))
    for policy in (CpuBindPolicy.FULL_PCPUS, CpuBindPolicy.SPREAD_BY_PCPUS):
        if mine != policy:
            turned = replace(cpuset, bind_policy=str(policy))
            text = f"use the CPU bind policy {policy} instead of {mine}"
            yield text, replace(request, cpuset=turned)
    yield "ask for no CPUs of its own (QoS LS)", replace(request, cpuset=None)


def _of_placement(
    request: PodRequest, nodes: Sequence[NodeFacts]
) -> Iterator[tuple[str, PodRequest]]:
    rules = request.placement

    def by(other: PlacementRules) -> PodRequest:
        return replace(request, placement=other)

    for pair in rules.node_selector:
        left = tuple(other for other in rules.node_selector if other != pair)
        yield f"drop the node selector {pair[0]}={pair[1]}", by(replace(rules, node_selector=left))
    if rules.affinity_terms is not None:
        yield "drop the required node affinity", by(replace(rules, affinity_terms=None))
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
        text = "uncordon a node" if cordon else f"tolerate the taint {named}"
        yield text, by(replace(rules, tolerations=(*rules.tolerations, toleration)))
