"""What kube-scheduler reads of a Pod and nothing here decides by, so that nobody misses it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ledger.domain.errors import FieldError
from ledger.domain.kube.object_fields import found_in, items_in, section
from ledger.domain.request.rules import forbidden
from ledger.domain.resources import GATE_TENURE_GANG
from scheduler.cluster.documents import is_ended

_ANYWHERE: Final = frozenset(
    {"configMap", "downwardAPI", "emptyDir", "hostPath", "image", "name", "projected", "secret"}
)
"""Kinds of volumes that every node has; `name` is the volume's own."""
_GATED: Final = "scheduling gates (not to be scheduled until they are lifted)"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_CONTAINERS: Final = ("initContainers", "containers")
_SPREAD: Final = "topologySpreadConstraints"
_NAMED_MAX: Final = 5
CLAIMS: Final = "resource claims"
"""Looked at in a simulation alone, as far as docs/dra.md says."""


Unread = tuple[str, Sequence[str]]
"""A Pod as `namespace/name`, and what of it is not looked at."""


def not_looked_at(body: Mapping[str, Any]) -> tuple[str, ...]:
    """
    Return what restricts where a Pod may go and is not looked at, in words, sorted.

    Rule: cli.md, Predicates: those that are listed there are ours, all others kube-scheduler's. An
    object that can't be read as the API describes it says nothing here; decoding refuses it.
    """
    found = sorted(set(_found(section(body, "spec"))))
    return (*found, *([_GATED] if gate_errors(body) else []))


def by_other_pods(body: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of a Pod's spec by which other Pods keep it off nodes."""
    spec = section(body, "spec")
    affinity = section(spec, "affinity")
    kinds = ("podAffinity", "podAntiAffinity")
    found = tuple(kind for kind in kinds if found_in(affinity, kind, _REQUIRED))
    spreads = items_in(spec, _SPREAD)
    is_required = any(each.get("whenUnsatisfiable") != "ScheduleAnyway" for each in spreads)
    return (*found, _SPREAD) if is_required else found


def keeps_others_off(body: Mapping[str, Any]) -> bool:
    """Tell whether a Pod that runs keeps others away, as kube-scheduler reads anti-affinity."""
    required = found_in(body, "spec", "affinity", "podAntiAffinity", _REQUIRED)
    return bool(required) and not is_ended(body) and bool(found_in(body, "spec", "nodeName"))


def gate_errors(body: Mapping[str, Any]) -> tuple[FieldError, ...]:
    """
    Return why a Pod is not to be scheduled at all yet; our own gate is lifted by us.

    Rule: Kubernetes, Pod Scheduling Readiness.
    """
    return tuple(
        forbidden(
            f"spec.schedulingGates[{number}]",
            f"scheduling is blocked until the gate is lifted: {gate.get('name', '')}",
        )
        for number, gate in enumerate(items_in(body, "spec", "schedulingGates"))
        if gate.get("name") != GATE_TENURE_GANG
    )


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
    if items_in(spec, "resourceClaims"):
        yield CLAIMS
    for volume in items_in(spec, "volumes"):
        yield from (f"volume {kind}" for kind in volume if kind not in _ANYWHERE)
    containers = [each for key in _CONTAINERS for each in items_in(spec, key)]
    for container in containers:
        if any("hostPort" in port for port in items_in(container, "ports")):
            yield "host ports"
        resources = section(container, "resources")
        names = {*section(resources, "requests"), *section(resources, "limits")}
        yield from (n for n in names if n.startswith("hugepages-") or n == "ephemeral-storage")
