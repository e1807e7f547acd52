"""What kube-scheduler reads of a Pod and nothing here decides by, so that nobody misses it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ledger.domain.errors import FieldError
from ledger.domain.kube.object_fields import found_in, items_in, section
from ledger.domain.request.rules import forbidden, undecided
from ledger.domain.resources import GATE_TENURE_GANG, SCHEDULER_NAME
from scheduler.cluster.documents import Document, is_ended
from scheduler.cluster.kai import part_of

_ANYWHERE: Final = frozenset(
    {"configMap", "downwardAPI", "emptyDir", "hostPath", "image", "name", "projected", "secret"}
)
"""Kinds of volumes that every node has; `name` is the volume's own."""
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_CONTAINERS: Final = ("initContainers", "containers")
_LIMITS: Final = ("resources", "limits")
_SPREAD: Final = "topologySpreadConstraints"
_NAMED_MAX: Final = 5
_ALIKE: Final = frozenset({"default-scheduler", "koord-scheduler", SCHEDULER_NAME})
"""The schedulers whose rules those of a simulation are."""

Unread = tuple[str, Sequence[str]]
"""A Pod as `namespace/name`, and what of it is not looked at."""


def not_looked_at(body: Mapping[str, Any]) -> tuple[str, ...]:
    """
    Return what restricts where a Pod may go and is not looked at, in words, sorted.

    Rule: cli.md, Predicates: those that are listed there are ours, all others kube-scheduler's. An
    object that can't be read as the API describes it says nothing here; decoding refuses it.
    """
    return tuple(sorted(set(_found(section(body, "spec")))))


def by_quotas(pod: Document, quotas: Sequence[Document]) -> Iterator[str]:
    """
    Yield the quotas of a Pod's namespace that its scheduler counts, and the API server does not.

    Rule: docs/contracts/hami.md: of extended resources the API server counts requests alone.
    """
    containers = items_in(pod.body, "spec", "containers")
    limits = {f"limits.{name}" for each in containers for name in section(each, *_LIMITS)}
    for quota in quotas:
        names = sorted(n for n in limits & section(quota.body, "spec", "hard").keys() if "/" in n)
        if names and quota.namespace == pod.namespace:
            yield f"ResourceQuota {quota.name} ({', '.join(names)})"


def by_other_pods(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of a Pod's spec by which other Pods keep it off nodes."""
    spec = section(body, "spec")
    affinity = section(spec, "affinity")
    kinds = ("podAffinity", "podAntiAffinity")
    found = tuple(kind for kind in kinds if found_in(affinity, kind, _REQUIRED))
    spreads = items_in(spec, _SPREAD)
    is_required = any(each.get("whenUnsatisfiable") != "ScheduleAnyway" for each in spreads)
    return (*found, _SPREAD) if is_required else found


def is_placed_elsewhere(body: Mapping[str, Any]) -> bool:
    """Tell whether a scheduler places a Pod whose rules are not those of a simulation."""
    return (section(body, "spec").get("schedulerName") or SCHEDULER_NAME) not in _ALIKE


def keeps_others_off(body: Mapping[str, Any]) -> bool:
    """Tell whether a Pod that runs keeps others away, as kube-scheduler reads anti-affinity."""
    required = found_in(body, "spec", "affinity", "podAntiAffinity", _REQUIRED)
    return bool(required) and not is_ended(body) and bool(found_in(body, "spec", "nodeName"))


def gate_errors(body: Mapping[str, Any]) -> tuple[FieldError, ...]:
    """
    Return why a Pod is not to be scheduled at all yet; our own gate is lifted by us.

    Rule: Kubernetes, Pod Scheduling Readiness.
    """
    fact = "scheduling is blocked until the gate is lifted: "
    return tuple(
        forbidden(f"spec.schedulingGates[{number}]", f"{fact}{gate}")
        for number, gate in _gates(body)
    )


def gates_of(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the gates that others lift."""
    return tuple(gate for _, gate in _gates(body))


def _gates(body: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    for number, gate in enumerate(items_in(body, "spec", "schedulingGates")):
        if gate.get("name") != GATE_TENURE_GANG:
            yield number, str(gate.get("name", ""))


def not_decided(body: Mapping[str, Any], of_claims: str, by_card: str) -> Iterator[FieldError]:
    """
    Yield what of a Pod can't be judged here, so that it has no place.

    Args:
        of_claims: why its claims can't be, empty where they can.
        by_card: the field of which its scheduler alone knows what each card has left.
    """
    if by_card:
        who = section(body, "spec").get("schedulerName") or "another scheduler"
        yield undecided(by_card, f"{who} reckons it card by card")
    if of_claims:
        has_some = items_in(body, "spec", "resourceClaims")
        yield undecided(f"spec.{'resourceClaims' if has_some else 'containers'}", of_claims)
    if (part := part_of(body)) is not None:
        yield undecided(part.field, f"KAI's: asks for {part.text}")


def by_pod(found: Iterable[Unread]) -> Iterator[str]:
    """Yield one line per Pod with what of it is not looked at."""
    for path, constraints in found:
        yield f"{path}: not looked at: {', '.join(constraints)}"


def in_sum(found: Iterable[Unread]) -> Iterator[str]:
    """Yield one line per constraint with the Pods that have it, given (Pod, its constraints)."""
    pods: dict[str, list[str]] = {}
    for path, constraints in found:
        for constraint in constraints:
            pods.setdefault(constraint, []).append(path)
    for constraint, paths in sorted(pods.items()):
        more = f" and {len(paths) - _NAMED_MAX} more" if len(paths) > _NAMED_MAX else ""
        named = ", ".join(paths[:_NAMED_MAX])
        yield f"not looked at: {constraint}: pods={len(paths)}: {named}{more}"


def _found(spec: Mapping[str, Any]) -> Iterator[str]:
    affinity = section(spec, "affinity")
    for key, words in (("podAffinity", "pod affinity"), ("podAntiAffinity", "pod anti-affinity")):
        if any(section(affinity, key).values()):
            yield words
    if items_in(spec, _SPREAD):
        yield "topology spread"
    for volume in items_in(spec, "volumes"):
        yield from (f"volume {kind}" for kind in volume if kind not in _ANYWHERE)
    if is_placed_elsewhere({"spec": spec}):
        yield f"schedulerName {spec['schedulerName']} (decided here by our rules)"
    containers = [each for key in _CONTAINERS for each in items_in(spec, key)]
    for container in containers:
        if any("hostPort" in port for port in items_in(container, "ports")):
            yield "host ports"
        resources = section(container, "resources")
        names = {*section(resources, "requests"), *section(resources, "limits")}
        yield from (n for n in names if n.startswith("hugepages-") or n == "ephemeral-storage")
