"""NodeResourceTopology objects: annotations that can be read and agree with one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ledger.domain.annotations.node_cpu import (
    decode_amplification_ratios,
    decode_cpu_shared_pools,
    decode_cpu_topology,
    decode_kubelet_cpu_policy,
    decode_node_reservation,
    decode_pod_cpu_allocs,
    decode_raw_allocatable,
    decode_system_qos_resource,
)
from ledger.domain.annotations.wire import annotation_path
from ledger.domain.cpuset import EMPTY, CpuSet, union
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.object_fields import annotations_of
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import of_rule
from ledger.domain.resources import (
    ANNOTATION_AMPLIFICATION_RATIO,
    ANNOTATION_BE_CPU_SHARED_POOLS,
    ANNOTATION_CPU_SHARED_POOLS,
    ANNOTATION_CPU_TOPOLOGY,
    ANNOTATION_KUBELET_CPU_MANAGER_POLICY,
    ANNOTATION_NODE_RESERVATION,
    ANNOTATION_POD_CPU_ALLOCS,
    ANNOTATION_RAW_ALLOCATABLE,
    ANNOTATION_SYSTEM_QOS_RESOURCE,
)
from webhook.decide.answers import unreadable
from webhook.decide.review import AdmissionRequest
from webhook.decide.settings import AdmissionSettings
from webhook.decide.validating import forgery
from webhook.decide.validating.findings import Advice, FoundViolations, Json, Said, say, shown

Reader = Callable[[str], CpuSet]
"""An annotation's text to the CPUs that it names."""


def _no_cpus(read: Callable[[str], object]) -> Reader:
    def reader(text: str) -> CpuSet:
        read(text)
        return EMPTY

    return reader


NODE_READERS: Final[dict[str, Reader]] = {
    ANNOTATION_NODE_RESERVATION: lambda text: decode_node_reservation(text).reserved_cpus,
    ANNOTATION_SYSTEM_QOS_RESOURCE: lambda text: decode_system_qos_resource(text).cpus,
    ANNOTATION_AMPLIFICATION_RATIO: _no_cpus(decode_amplification_ratios),
    ANNOTATION_RAW_ALLOCATABLE: _no_cpus(decode_raw_allocatable),
}
"""What a Node may carry too; there nobody knows which CPUs exist."""

_READERS: Final[dict[str, Reader]] = {
    ANNOTATION_CPU_TOPOLOGY: _no_cpus(decode_cpu_topology),
    ANNOTATION_KUBELET_CPU_MANAGER_POLICY: lambda text: (
        decode_kubelet_cpu_policy(text).reserved_cpus
    ),
    ANNOTATION_POD_CPU_ALLOCS: lambda text: union(
        alloc.cpus for alloc in decode_pod_cpu_allocs(text)
    ),
    ANNOTATION_CPU_SHARED_POOLS: lambda text: union(
        pool.cpus for pool in decode_cpu_shared_pools(text)
    ),
    ANNOTATION_BE_CPU_SHARED_POOLS: lambda text: union(
        pool.cpus for pool in decode_cpu_shared_pools(text, best_effort=True)
    ),
    **NODE_READERS,
}


def check_topology_object(
    request: AdmissionRequest, settings: AdmissionSettings
) -> FoundViolations:
    """
    Return everything that speaks against a NodeResourceTopology; what was so before is left.

    Rule: Koordinator contract 2.4 and 3.2.
    """
    known = {*check_topology(request.old)} if request.old else set()
    found = check_topology(request.obj or {})
    return FoundViolations(
        errors=(
            *forgery.check_pinned_cpus(request, settings),
            *(error for error in found if error not in known),
        ),
        said=tuple(strangers(request.obj or {})),
    )


@of_rule(Rule.TOPOLOGY_OBJECT)
def check_topology(nrt: Json) -> Iterator[FieldError]:
    """Yield every annotation of ours that can't be read."""
    annotations = annotations_of(nrt)
    for key, read in _READERS.items():
        if key in annotations:
            try:
                read(annotations[key])
            except InputError as error:
                yield unreadable(error)


def strangers(nrt: Json) -> Iterator[Said]:
    """
    Say which annotations name CPUs that the object's own CPU topology does not list.

    They are no error: the CPU-orchestration proposal's own example lists two CPUs of many.
    """
    annotations = annotations_of(nrt)
    exist = _cpus(ANNOTATION_CPU_TOPOLOGY, annotations, _listed)
    for key, read in _READERS.items() if exist else ():
        unknown = _cpus(key, annotations, read) - exist
        if unknown:
            text = f"{annotation_path(key)}: the cpu-topology does not list {shown(str(unknown))}"
            yield say(Advice.UNKNOWN_VALUE, text)


def _cpus(key: str, annotations: Mapping[str, str], read: Reader) -> CpuSet:
    try:
        return read(annotations[key]) if key in annotations else EMPTY
    except InputError:
        return EMPTY


def _listed(text: str) -> CpuSet:
    return decode_cpu_topology(text).cpuset
