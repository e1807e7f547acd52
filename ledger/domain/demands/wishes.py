"""Wishes about placement that Pods write into annotations, and which of them are honoured yet."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from ledger.domain.annotations.cpu import NumaPolicy, NumaTopologySpec, decode_numa_topology_spec
from ledger.domain.annotations.device_hints import (
    AllocateStrategy,
    DeviceExclusivePolicy,
    DeviceHint,
    JointAllocation,
    JointScope,
    LabelSelector,
    PartitionSpec,
    TopologyScope,
    decode_device_hints,
    decode_joint_allocation,
    decode_partition_spec,
)
from ledger.domain.annotations.pods import (
    SchedulingHint,
    decode_replace_resources,
    read_scheduling_hint,
)
from ledger.domain.annotations.wire import annotation_path
from ledger.domain.errors import FieldError
from ledger.domain.requests import DeviceDemand
from ledger.domain.resources import (
    ANNOTATION_DEVICE_ALLOCATE_HINT,
    ANNOTATION_DEVICE_JOINT_ALLOCATE,
    ANNOTATION_GPU_PARTITION_SPEC,
    ANNOTATION_NUMA_TOPOLOGY_SPEC,
    ANNOTATION_REPLACE_RESOURCES,
    ANNOTATION_SCHEDULING_HINT,
    TYPE_GPU,
)
from ledger.domain.rules import unsupported

_HINT = annotation_path(ANNOTATION_DEVICE_ALLOCATE_HINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Everything a Pod wishes beside amounts. None is an annotation that is absent."""

    hints: Mapping[str, DeviceHint] = field(default_factory=dict)
    joint: JointAllocation | None = None
    partition: PartitionSpec | None = None
    numa: NumaTopologySpec | None = None
    scheduling: SchedulingHint | None = None
    replaced: tuple[tuple[str, str], ...] = ()


NO_WISHES = Wishes()


def read_wishes(annotations: Mapping[str, str]) -> Wishes:
    """
    Read the wishes of a Pod.

    Rule: Koordinator contract 2.1.

    Raises:
        InputError: JSON that does not parse or says something unknown, with its field path.
    """
    if not annotations:
        return NO_WISHES
    hints = annotations.get(ANNOTATION_DEVICE_ALLOCATE_HINT)
    joint = annotations.get(ANNOTATION_DEVICE_JOINT_ALLOCATE)
    partition = annotations.get(ANNOTATION_GPU_PARTITION_SPEC)
    numa = annotations.get(ANNOTATION_NUMA_TOPOLOGY_SPEC)
    return Wishes(
        hints={} if hints is None else decode_device_hints(hints),
        joint=None if joint is None else decode_joint_allocation(joint),
        partition=None if partition is None else decode_partition_spec(partition),
        numa=None if numa is None else decode_numa_topology_spec(numa),
        scheduling=read_scheduling_hint(annotations),
        replaced=decode_replace_resources(annotations.get(ANNOTATION_REPLACE_RESOURCES, "")),
    )


def check_wishes(
    wishes: Wishes, demands: tuple[DeviceDemand, ...], broken: Collection[str] = ()
) -> Iterator[FieldError]:
    """
    Yield every wish that would change the answer and can't be honoured by this release.

    A wish that changes nothing passes: a hint for a type that is not asked for, a scope that one
    device always meets, the empty selector, a best-effort preference.

    Args:
        broken: types that are asked for in a way that is no demand; they count as one device, so
            that their wishes are judged all the same.
    """
    counts: dict[str, int] = dict.fromkeys(broken, 1)
    for demand in demands:
        counts[demand.device_type] = counts.get(demand.device_type, 0) + demand.count
    for device_type, hint in wishes.hints.items():
        if device_type in counts:
            yield from _check_hint(f"{_HINT}.{device_type}", device_type, hint, counts[device_type])
    joint = wishes.joint
    together = len(counts.keys() & set(joint.device_types)) > 1 if joint else False
    if joint and together and joint.required_scope is JointScope.SAME_PCIE:
        field = f"{annotation_path(ANNOTATION_DEVICE_JOINT_ALLOCATE)}.requiredScope"
        yield unsupported(field, "devices of several types under one PCIe root")
    if wishes.partition is not None and TYPE_GPU in counts:
        yield unsupported(annotation_path(ANNOTATION_GPU_PARTITION_SPEC), "GPU partitions")
    if wishes.numa and wishes.numa.policy not in {NumaPolicy.NONE, NumaPolicy.BEST_EFFORT}:
        field = f"{annotation_path(ANNOTATION_NUMA_TOPOLOGY_SPEC)}.numaTopologyPolicy"
        yield unsupported(field, f"NUMA policy {wishes.numa.policy}")
    if wishes.scheduling and wishes.scheduling.node_names:
        field = f"{annotation_path(ANNOTATION_SCHEDULING_HINT)}.nodeNames"
        yield unsupported(field, "node names as a scheduling hint; use a node selector")
    if wishes.replaced:
        yield unsupported(
            annotation_path(ANNOTATION_REPLACE_RESOURCES), "resources replaced by annotation"
        )


def _check_hint(path: str, device_type: str, hint: DeviceHint, count: int) -> Iterator[FieldError]:
    if hint.selector is not None and hint.selector != LabelSelector():
        yield unsupported(f"{path}.selector", "a device selector")
    if hint.vf_selector is not None:
        yield unsupported(f"{path}.vfSelector", "virtual functions")
    as_count = hint.allocate_strategy is AllocateStrategy.REQUESTS_AS_COUNT
    if hint.allocate_strategy is AllocateStrategy.APPLY_FOR_ALL:
        yield unsupported(f"{path}.allocateStrategy", "ApplyForAll")
    if device_type == TYPE_GPU:
        if as_count:
            yield unsupported(f"{path}.allocateStrategy", "RequestsAsCount of GPUs")
        yield from _check_scope(f"{path}.requiredTopologyScope", hint, count)
    alone = hint.exclusive_policy
    honoured = alone is DeviceExclusivePolicy.DEVICE_LEVEL and as_count and device_type != TYPE_GPU
    if alone is not DeviceExclusivePolicy.UNSET and not honoured:
        yield unsupported(f"{path}.exclusivePolicy", f"exclusive policy {alone} here")


def _check_scope(path: str, hint: DeviceHint, count: int) -> Iterator[FieldError]:
    """One GPU is under one scope of any depth, and a Pod is always on one node (quirk Q16)."""
    scope = hint.required_topology_scope
    if count > 1 and scope not in {TopologyScope.UNSET, TopologyScope.NODE}:
        yield unsupported(path, f"several GPUs under one {scope}")
