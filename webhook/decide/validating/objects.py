"""Objects beside Pods: Nodes, Devices, NodeResourceTopologies and Bindings, each by its rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ledger.domain import resources
from ledger.domain.annotations import node_cpu
from ledger.domain.annotations.checkpoints import read_devices_checkpoints
from ledger.domain.annotations.cpu import NumaPolicy
from ledger.domain.annotations.partitions import decode_gpu_partitions
from ledger.domain.annotations.wire import FALSE, TRUE, an_object, annotation_path, label_path
from ledger.domain.cpuset import EMPTY, CpuSet, union
from ledger.domain.errors import FieldError, InputError
from ledger.domain.kube.device_objects import device_faults
from ledger.domain.kube.object_fields import annotations_of, labels_of, text_at
from ledger.domain.request.rule_names import Rule
from ledger.domain.request.rules import forbidden, of_rule, unknown_value
from ledger.domain.vocabulary import Vocabulary
from webhook.decide.answers import unreadable
from webhook.decide.dialects.registry import ADMISSIONS
from webhook.decide.facts import NamespaceFacts
from webhook.decide.review import CREATE, AdmissionRequest
from webhook.decide.settings import AdmissionSettings
from webhook.decide.validating import forgery
from webhook.decide.validating.findings import (
    Advice,
    FoundViolations,
    Json,
    Said,
    say,
    scheduler_of,
    shown,
)

_NONE: Final = "None"
_BIND_ALIAS: Final = "PCPUOnly"
_NUMA: Final = (_NONE, *(str(policy) for policy in NumaPolicy if policy))
_LEVELS: Final = ("PodLevel", "ContainerLevel")
_FLAGS: Final = (TRUE, FALSE)

NODE_LABEL_VALUES: Final[dict[str, tuple[str, ...]]] = {
    resources.LABEL_CPU_BIND_POLICY: (*map(str, node_cpu.NodeCpuBindPolicy), _BIND_ALIAS),
    resources.LABEL_NUMA_ALLOCATE_STRATEGY: tuple(
        str(item) for item in node_cpu.NumaAllocateStrategy if item
    ),
    resources.LABEL_NUMA_TOPOLOGY_POLICY: _NUMA,
    resources.LABEL_NUMA_TOPOLOGY_POLICY_PROPOSAL: _NUMA,
    resources.LABEL_ENABLE_NUMA_RESERVATION: _FLAGS,
    resources.LABEL_SECONDARY_DEVICE_WELL_PLANNED: _FLAGS,
    resources.LABEL_TENURE_OWNED: _FLAGS,
    **{label: values for each in ADMISSIONS for label, values in each.node_labels.items()},
}
"""Label -> the values that mean something. The empty text is as good as no label."""


def check_node(request: AdmissionRequest, settings: AdmissionSettings) -> FoundViolations:
    """
    Return everything that speaks against a change of a Node.

    Only what changes is looked at: kubelet must be able to report a node whatever its labels say.
    For the same reason a new Node is never refused over a label; it is said instead.
    """
    forged = tuple(forgery.check_node_marks(request, settings))
    meaningless = tuple(check_changes(request.obj or {}, request.old or {}))
    if request.operation != CREATE:
        return FoundViolations(errors=(*forged, *meaningless))
    said = tuple(say(Advice.UNKNOWN_VALUE, str(error)) for error in meaningless)
    return FoundViolations(errors=forged, said=said)


@of_rule(Rule.NODE_LABELS)
def check_changes(node: Json, old: Json) -> Iterator[FieldError]:
    """
    Yield every changed label and annotation of ours that means nothing.

    Rule: Koordinator contract 2.3 and 3.2; GPU-sharing contract A.1.
    """
    labels, before = labels_of(node), labels_of(old)
    for key, values in NODE_LABEL_VALUES.items():
        text = labels.get(key, "")
        if text and text != before.get(key) and text not in values and not _is_level(key, text):
            yield unknown_value(label_path(key), text, values)
    annotations, were = annotations_of(node), annotations_of(old)
    for key, read in NODE_READERS.items():
        if key in annotations and annotations[key] != were.get(key):
            try:
                read(annotations[key])
            except InputError as error:
                yield unreadable(error)


def _is_level(key: str, text: str) -> bool:
    """Take `RestrictedPodLevel` and the like too (Koordinator contract 3.2, ours)."""
    numa = key in {
        resources.LABEL_NUMA_TOPOLOGY_POLICY,
        resources.LABEL_NUMA_TOPOLOGY_POLICY_PROPOSAL,
    }
    return numa and text.endswith(_LEVELS) and node_cpu.numa_policy_of(text) is not NumaPolicy.NONE


def check_binding(
    request: AdmissionRequest, settings: AdmissionSettings, facts: NamespaceFacts
) -> FoundViolations:
    """
    Return everything that speaks against a Binding, by either of its two paths.

    Rule: design section 5.1. The Pod's scheduler makes it ours. A Pod that is not known is let
    through with a warning: a check that failed closed could stop a whole cluster, and what slips
    through is found by reconciliation. Nothing on the Pod switches the check off, since its author
    could write that too.
    """
    return FoundViolations(
        errors=(
            *forgery.check_allocations(request, settings),
            *check_takeover(request, settings, facts),
        ),
        said=tuple(_unknown(request, settings, facts)),
    )


@of_rule(Rule.BINDING_TAKEOVER)
def check_takeover(
    request: AdmissionRequest, settings: AdmissionSettings, facts: NamespaceFacts
) -> Iterator[FieldError]:
    """
    Yield the violation when someone else binds a Pod of our scheduler's.

    Rule: design section 5.1.
    """
    if facts.pod is None or forgery.is_ours(request.user, settings):
        return
    if scheduler_of(facts.pod) == settings.scheduler_name:
        fact = (
            f"pod {request.namespace}/{request.shown_name} is placed by the scheduler "
            f"{settings.scheduler_name}, which records what it holds; {shown(request.user.name)} "
            f"must not bind it to node {shown(_target(request))}: leave it to that scheduler, or "
            "create the pod with another spec.schedulerName"
        )
        yield forbidden("target", fact)


def _unknown(
    request: AdmissionRequest, settings: AdmissionSettings, facts: NamespaceFacts
) -> Iterator[Said]:
    if facts.pod is None and not forgery.is_ours(request.user, settings):
        name = f"{request.namespace}/{request.shown_name}"
        text = f"pod {name} could not be looked up, so nobody checked who may bind it"
        yield say(Advice.UNKNOWN_POD, text)


def _target(request: AdmissionRequest) -> str:
    target = an_object((request.obj or {}).get("target"), "target")
    return text_at(target, "name", "target")


def check_device(request: AdmissionRequest, settings: AdmissionSettings) -> FoundViolations:
    """
    Return everything that speaks against a Device object, and against who wrote it.

    Rule: Koordinator contract 2.5, 2.7, 3.1. What was so before the change does not count.
    """
    known = {*check_inventory(request.old, settings.vocabulary)} if request.old else set()
    return FoundViolations(
        errors=(
            *forgery.check_checkpoints(request, settings),
            *(
                error
                for error in check_inventory(request.obj or {}, settings.vocabulary)
                if error not in known
            ),
        )
    )


@of_rule(Rule.DEVICE_OBJECT)
def check_inventory(device: Json, vocabulary: Vocabulary) -> Iterator[FieldError]:
    """Yield everything in a Device that can't be read, or can't be true."""
    for fault in device_faults(device, vocabulary):
        yield unreadable(fault)
    annotations = annotations_of(device)
    table = annotations.get(resources.ANNOTATION_GPU_PARTITIONS)
    for read in (
        lambda: None if table is None else decode_gpu_partitions(table),
        lambda: read_devices_checkpoints(annotations),
    ):
        try:
            read()
        except InputError as error:
            yield unreadable(error)


Reader = Callable[[str], CpuSet]
"""An annotation's text to the CPUs that it names."""


def _no_cpus(read: Callable[[str], object]) -> Reader:
    def reader(text: str) -> CpuSet:
        read(text)
        return EMPTY

    return reader


NODE_READERS: Final[dict[str, Reader]] = {
    resources.ANNOTATION_NODE_RESERVATION: lambda text: (
        node_cpu.decode_node_reservation(text).reserved_cpus
    ),
    resources.ANNOTATION_SYSTEM_QOS_RESOURCE: lambda text: (
        node_cpu.decode_system_qos_resource(text).cpus
    ),
    resources.ANNOTATION_AMPLIFICATION_RATIO: _no_cpus(node_cpu.decode_amplification_ratios),
    resources.ANNOTATION_RAW_ALLOCATABLE: _no_cpus(node_cpu.decode_raw_allocatable),
}
"""What a Node may carry too; there nobody knows which CPUs exist."""

_READERS: Final[dict[str, Reader]] = {
    resources.ANNOTATION_CPU_TOPOLOGY: _no_cpus(node_cpu.decode_cpu_topology),
    resources.ANNOTATION_KUBELET_CPU_MANAGER_POLICY: lambda text: (
        node_cpu.decode_kubelet_cpu_policy(text).reserved_cpus
    ),
    resources.ANNOTATION_POD_CPU_ALLOCS: lambda text: union(
        alloc.cpus for alloc in node_cpu.decode_pod_cpu_allocs(text)
    ),
    resources.ANNOTATION_CPU_SHARED_POOLS: lambda text: union(
        pool.cpus for pool in node_cpu.decode_cpu_shared_pools(text)
    ),
    resources.ANNOTATION_BE_CPU_SHARED_POOLS: lambda text: union(
        pool.cpus for pool in node_cpu.decode_cpu_shared_pools(text, best_effort=True)
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
    exist = _cpus(resources.ANNOTATION_CPU_TOPOLOGY, annotations, _listed)
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
    return node_cpu.decode_cpu_topology(text).cpuset
