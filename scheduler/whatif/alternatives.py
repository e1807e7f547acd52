"""The same request with one wish less: other policies, hints, models, labels; and other nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ledger.domain.annotations.cpu import CpuBindPolicy
from ledger.domain.annotations.device_hints import (
    AllocateStrategy,
    DeviceExclusivePolicy,
    DeviceHint,
    JointScope,
    PartitionPolicy,
    TopologyScope,
)
from ledger.domain.devices import GPU
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import CpuSetDemand, PodRequest, Toleration
from ledger.domain.resources import TAINT_UNSCHEDULABLE
from scheduler.decide.dialects.registry import chooser_of

Change = Callable[[PodRequest], PodRequest]


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
                apply=_hinted(kind, required_topology_scope=TopologyScope.UNSET),
            )
        if exclusive is not DeviceExclusivePolicy.UNSET:
            yield Alternative(
                text=f"drop exclusivePolicy {exclusive} of {kind}",
                apply=_hinted(kind, exclusive_policy=DeviceExclusivePolicy.UNSET),
            )
        if hint.selector is not None:
            yield Alternative(
                text=f"drop the device selector of {kind}", apply=_hinted(kind, selector=None)
            )
        if hint.vf_selector is not None:
            yield Alternative(
                text=f"drop the vfSelector of {kind}", apply=_hinted(kind, vf_selector=None)
            )
        if hint.allocate_strategy is AllocateStrategy.APPLY_FOR_ALL:
            yield Alternative(
                text=f"drop allocateStrategy {hint.allocate_strategy} of {kind}",
                apply=_hinted(kind, allocate_strategy=AllocateStrategy.UNSET),
            )
    joint = request.joint
    if joint is not None and joint.required_scope is JointScope.SAME_PCIE:
        loose = replace(joint, required_scope=JointScope.BEST_EFFORT)
        yield Alternative(
            text="drop the required scope SamePCIe of joint allocation",
            apply=lambda other: replace(other, joint=loose),
        )
    yield from _of_partition(request)


def _hinted(kind: str, **fields: object) -> Change:
    def change(request: PodRequest) -> PodRequest:
        devices = tuple(
            replace(item, hint=_changed(item.hint, fields))
            if item.device_type == kind and item.hint is not None
            else item
            for item in request.devices
        )
        return replace(request, devices=devices)

    return change


def _changed(hint: DeviceHint, fields: dict[str, object]) -> DeviceHint:
    values = {name: getattr(hint, name) for name in DeviceHint.__slots__}
    return DeviceHint(**{**values, **fields})


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
    if any(item.exclusive and item.core_percent < 100 for item in gpus):
        yield Alternative(text="share the cards: ask without exclusive", apply=_shared)
    for text, change in chooser_of(request.dialect).alternatives(request, nodes):
        yield Alternative(text=text, apply=change)


def _any_model(kind: str) -> Change:
    def change(request: PodRequest) -> PodRequest:
        devices = tuple(
            replace(item, model_names=()) if item.device_type == kind else item
            for item in request.devices
        )
        return replace(request, devices=devices)

    return change


def _shared(request: PodRequest) -> PodRequest:
    devices = tuple(
        replace(item, exclusive=False) if item.core_percent < 100 else item
        for item in request.devices
    )
    return replace(request, devices=devices)


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
            apply=partial(_with_cpus, turned),
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


def _with_cpus(demand: CpuSetDemand, request: PodRequest) -> PodRequest:
    return replace(request, cpuset=demand)


def _without_label(pair: tuple[str, str], request: PodRequest) -> PodRequest:
    rules = request.placement
    left = tuple(other for other in rules.node_selector if other != pair)
    return replace(request, placement=replace(rules, node_selector=left))


def _tolerating(toleration: Toleration, request: PodRequest) -> PodRequest:
    rules = request.placement
    return replace(request, placement=replace(rules, tolerations=(*rules.tolerations, toleration)))
