"""When a Pod gets CPUs of its own, and the rules of QoS and priority that go with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ledger.domain import resources
from ledger.domain.annotations import cpu
from ledger.domain.annotations.qos import (
    PriorityClass,
    QosClass,
    priority_class_of_qos,
    read_priority_class,
    read_qos_class,
    read_sub_priority,
)
from ledger.domain.annotations.wire import annotation_path, decoded, label_path
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.pod_spec import APP, INIT, ContainerSpec, PodSpec
from ledger.domain.quantity import ZERO
from ledger.domain.request import rules as checks
from ledger.domain.request.requests import ContainerCpus, CpuSetDemand, PlacementRules
from ledger.domain.request.rule_names import Rule

OWN_CPUS: Final = frozenset({QosClass.LSE, QosClass.LSR})
"""The QoS classes whose Pods ask for CPUs of their own (Koordinator contract 6.1)."""
_BINDING: Final = frozenset({cpu.CpuBindPolicy.FULL_PCPUS, cpu.CpuBindPolicy.SPREAD_BY_PCPUS})
_UNSET: Final = frozenset({cpu.CpuBindPolicy.UNSET, cpu.CpuBindPolicy.DEFAULT})
_NO_SPEC: Final = cpu.ResourceSpec()
_ARCH_LABELS: Final = frozenset({resources.LABEL_ARCH, resources.LABEL_ARCH_BETA})
_ARM: Final = frozenset({"arm64", "arm"})
_PRIORITIES: Final = {
    PriorityClass.PROD: 9500,
    PriorityClass.MID: 7500,
    PriorityClass.BATCH: 5500,
    PriorityClass.FREE: 3500,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CpusAsked:
    """
    What QoS, priority and CPU policies come to.

    Attributes:
        demand: None when the Pod shares CPUs; None too when there are errors.
        burst_milli: the limit that the shared pools of its NUMA nodes must hold; 0 = it does not
            burst.
        bound_cpus, kubelet_cpus: see `PodRequest`.
        priority: `spec.priority`, else the class's default (contract 5.3), else 0.
    """

    qos: QosClass = QosClass.NONE
    priority: int = 0
    demand: CpuSetDemand | None = None
    burst_milli: int = 0
    bound_cpus: int = 0
    kubelet_cpus: tuple[ContainerCpus, ...] = ()
    errors: tuple[FieldError, ...] = ()


def cpu_demand(spec: PodSpec) -> CpusAsked:
    """
    Return whether a Pod gets CPUs of its own, and how they are picked (contract 5.3, 6.1, 6.2).

    Raises:
        InputError: a `resource-spec` that does not parse.
    """
    wish = (
        decoded(spec.annotations, resources.ANNOTATION_RESOURCE_SPEC, cpu.decode_resource_spec)
        or _NO_SPEC
    )
    qos = read_qos_class(spec.labels)
    priority_class = _priority_class(spec, qos)
    errors = (*_check(spec, qos, priority_class), *_check_wish(spec, wish, qos))
    priority = _PRIORITIES.get(priority_class, 0) if spec.priority is None else spec.priority
    return CpusAsked(
        qos=qos,
        priority=priority,
        demand=None if errors else _demand(spec, qos, wish),
        burst_milli=0 if errors or not any(_bursts(wish)) else _limit_milli(spec),
        bound_cpus=0 if qos is not QosClass.NONE or any(_bursts(wish)) else _bound_cpus(spec),
        kubelet_cpus=kubelet_cpus_of(spec),
        errors=errors,
    )


def kubelet_cpus_of(spec: PodSpec) -> tuple[ContainerCpus, ...]:
    """
    Return the whole CPUs that kubelet's static CPU manager would give the Pod's containers.

    Rule: Kubernetes, CPU management policies: containers of Guaranteed Pods with whole CPUs, init
    containers too; others run in its shared pool, and so do those of a Pod with `spec.resources`.
    """
    if spec.pod_requests or spec.pod_limits or not all(map(is_guaranteed, spec.containers)):
        return ()
    amounts = (
        (container, container.requests[resources.CPU].milli()) for container in spec.containers
    )
    return tuple(
        ContainerCpus(kind=container.kind, cpus=milli // 1000)
        for container, milli in amounts
        if not milli % 1000
    )


def is_guaranteed(container: ContainerSpec) -> bool:
    """Tell whether requests equal limits (Kubernetes, Pod QoS); the Pod is if every one is."""
    return all(
        container.limits.get(name, ZERO) == container.requests.get(name, ZERO) != ZERO
        for name in (resources.CPU, resources.MEMORY)
    )


def _bound_cpus(spec: PodSpec) -> int:
    every = len(kubelet_cpus_of(spec)) == len(spec.containers)
    return spec.cpu_milli // 1000 if every and not spec.cpu_milli % 1000 else 0


def _priority_class(spec: PodSpec, qos: QosClass) -> PriorityClass:
    """
    Return the class the Pod names, by label, number or class name; unnamed, that of its QoS.

    Rule: Koordinator contract 5.3 and 6.1 ("with default"). Where nobody gives a priority, the API
    server writes 0 without a class name before it asks webhooks; in a file both may be missing.
    """
    named = read_priority_class(spec.labels, spec.priority)
    name = spec.priority_class_name
    given = spec.priority or (spec.priority is not None and name)
    if named is not PriorityClass.NONE or given:
        return named
    if resources.LABEL_PRIORITY_CLASS in spec.labels:
        return PriorityClass.NONE
    if name and name in set(PriorityClass):
        return PriorityClass(name)
    return priority_class_of_qos(qos)


def _check(spec: PodSpec, qos: QosClass, priority_class: PriorityClass) -> Iterator[FieldError]:
    yield from checks.check_qos(label_path(resources.LABEL_QOS_CLASS), qos, priority_class)
    yield from _check_sub_priority(spec)
    for container in spec.containers:
        for name in (resources.BATCH_CPU, resources.BATCH_MEMORY):
            if container.requests.get(name):
                yield from checks.check_batch_qos(container.field(name), qos)
    if qos not in OWN_CPUS:
        return
    yield from checks.under(Rule.CPU_LIMITS, _check_limits(spec))
    first = next(container for container in spec.containers if container.kind == APP)
    yield from checks.check_whole_cpus(first.field(resources.CPU), spec.cpu_milli)


def _check_limits(spec: PodSpec) -> Iterator[FieldError]:
    """
    Yield where cpu or memory may grow beyond what is asked.

    Rule: CPU proposal, QoS principle 1. Kubelet knows the CPUs of Guaranteed Pods alone, and those
    have equal memory, too.
    """
    for name in (resources.CPU, resources.MEMORY):
        for container in spec.containers:
            request, limit = container.requests.get(name), container.limits.get(name)
            yield from checks.check_equal_limits(container.field(name), name, request, limit)
        if name in spec.pod_requests and name in spec.pod_limits:
            path = f"spec.resources.requests[{name}]"
            request, limit = spec.pod_requests[name], spec.pod_limits[name]
            yield from checks.check_equal_limits(path, name, request, limit)


@checks.of_rule(Rule.SUB_PRIORITY)
def _check_sub_priority(spec: PodSpec) -> Iterator[FieldError]:
    try:
        read_sub_priority(spec.labels)
    except InputError as error:
        yield checks.invalid(
            error.field, spec.labels[resources.LABEL_PRIORITY], "must be an integer"
        )


def _arm_only(rules: PlacementRules) -> bool:
    if any(key in _ARCH_LABELS and value in _ARM for key, value in rules.node_selector):
        return True
    return bool(rules.affinity_terms) and all(
        any(
            part.key in _ARCH_LABELS and part.operator == "In" and set(part.values) <= _ARM
            for part in term
        )
        for term in rules.affinity_terms or ()
    )


def _check_wish(spec: PodSpec, wish: cpu.ResourceSpec, qos: QosClass) -> Iterator[FieldError]:
    path = annotation_path(resources.ANNOTATION_RESOURCE_SPEC)
    if _arm_only(spec.placement):
        yield from checks.check_arm_policies(path, wish)
    for name in _bursts(wish):
        policy = cpu.CpuBindPolicy.CONSTRAINED_BURST
        yield from checks.check_burst(f"{path}.{name}", policy, qos, _limit_milli(spec))


def _bursts(wish: cpu.ResourceSpec) -> Iterator[str]:
    """Yield the field that asks for ConstrainedBurst; a required other policy is before it."""
    if wish.required_bind_policy is cpu.CpuBindPolicy.CONSTRAINED_BURST:
        yield "requiredCPUBindPolicy"
    elif (
        wish.required_bind_policy in _UNSET
        and wish.preferred_bind_policy is cpu.CpuBindPolicy.CONSTRAINED_BURST
    ):
        yield "preferredCPUBindPolicy"


def _limit_milli(spec: PodSpec) -> int:
    """Return the Pod's cpu limit, 0 when a container that runs with others has none."""
    if resources.CPU in spec.pod_limits:
        return spec.pod_limits[resources.CPU].milli()
    running = [container for container in spec.containers if container.kind != INIT]
    if any(resources.CPU not in container.limits for container in running):
        return 0
    return sum(container.limits[resources.CPU].milli() for container in running)


def _demand(spec: PodSpec, qos: QosClass, wish: cpu.ResourceSpec) -> CpuSetDemand | None:
    required = wish.required_bind_policy not in _UNSET
    named = wish.required_bind_policy if required else wish.preferred_bind_policy
    effective = spec.vocabulary.default_bind_policy if named in _UNSET else str(named)
    if qos not in OWN_CPUS or effective not in _BINDING:
        return None
    exclusive = wish.preferred_exclusive_policy
    return CpuSetDemand(
        cpus=spec.cpu_milli // 1000,
        bind_policy=effective,
        required=required,
        exclusive_policy=(
            spec.vocabulary.default_exclusive_policy
            if exclusive is cpu.CpuExclusivePolicy.NONE
            else str(exclusive)
        ),
        alone=qos is QosClass.LSE,
    )
