"""Wishes about placement in annotations: what they do to demands, and which can't be honoured."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from ledger.domain import resources as names
from ledger.domain.annotations import pods
from ledger.domain.annotations.cpu import NumaPolicy, NumaTopologySpec, decode_numa_topology_spec
from ledger.domain.annotations.device_hints import (
    AllocateStrategy,
    DeviceExclusivePolicy,
    DeviceHint,
    JointAllocation,
    LabelSelector,
    PartitionSpec,
    TopologyScope,
    decode_device_hints,
    decode_joint_allocation,
    decode_partition_spec,
)
from ledger.domain.annotations.wire import annotation_path, decoded
from ledger.domain.device_types import DeviceType
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.registry import takes_wishes
from ledger.domain.errors import FieldError
from ledger.domain.request.requests import DeviceDemand, PodRequest
from ledger.domain.request.rules import unsupported
from ledger.domain.vocabulary import Vocabulary

_HINT = annotation_path(names.ANNOTATION_DEVICE_ALLOCATE_HINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """Everything a Pod wishes beside amounts. None is an annotation that is absent."""

    hints: Mapping[str, DeviceHint] = field(default_factory=dict)
    joint: JointAllocation | None = None
    partition: PartitionSpec | None = None
    numa: NumaTopologySpec | None = None
    scheduling: pods.SchedulingHint | None = None
    replaced: tuple[tuple[str, str], ...] = ()


NO_WISHES = Wishes()


def read_wishes(annotations: Mapping[str, str]) -> Wishes:
    """Read a Pod's wishes (Koordinator contract 2.1). Raises InputError where one can't be read."""
    if not annotations:
        return NO_WISHES
    return Wishes(
        hints=decoded(annotations, names.ANNOTATION_DEVICE_ALLOCATE_HINT, decode_device_hints)
        or {},
        joint=decoded(annotations, names.ANNOTATION_DEVICE_JOINT_ALLOCATE, decode_joint_allocation),
        partition=decoded(annotations, names.ANNOTATION_GPU_PARTITION_SPEC, decode_partition_spec),
        numa=decoded(annotations, names.ANNOTATION_NUMA_TOPOLOGY_SPEC, decode_numa_topology_spec),
        scheduling=pods.read_scheduling_hint(annotations),
        replaced=pods.decode_replace_resources(
            annotations.get(names.ANNOTATION_REPLACE_RESOURCES, "")
        ),
    )


def hinted(demands: tuple[DeviceDemand, ...], wishes: Wishes) -> tuple[DeviceDemand, ...]:
    """
    Return the demands with what the hints of their types say, where that changes anything.

    Rule: Koordinator contract 2.1 and 8.3. `DeviceLevel` asks for devices without other tenants.
    """
    if not wishes.hints:
        return demands
    counts = _counts(demands)
    return tuple(
        _with_hint(demand, wishes.hints.get(demand.device_type), counts[demand.device_type])
        for demand in demands
    )


def with_wishes(request: PodRequest, wishes: Wishes) -> PodRequest:
    """Return the request with the wishes that are about several devices or types at once."""
    types = {demand.device_type for demand in request.devices}
    joint = wishes.joint if wishes.joint and len(types & {*wishes.joint.device_types}) > 1 else None
    partition = wishes.partition if names.TYPE_GPU in types else None
    numa = wishes.numa if wishes.numa and wishes.numa.policy is not NumaPolicy.NONE else None
    if joint is None and partition is None and numa is None:
        return request
    return replace(request, joint=joint, partition=partition, numa=numa)


def check_wishes(
    wishes: Wishes,
    demands: tuple[DeviceDemand, ...],
    vocabulary: Vocabulary,
    broken: Collection[str] = (),
    dialect: Dialect | None = None,
) -> Iterator[FieldError]:
    """
    Yield every wish that would change the answer and can't be honoured by this release.

    A wish that changes nothing passes: a hint for a type that is not asked for, a scope that one
    device always meets, the empty selector, a best-effort preference.

    Args:
        broken: types that are asked for in a way that is no demand; they count as one device, so
            that their wishes are judged all the same.
    """
    counts = {**dict.fromkeys(broken, 1), **_counts(demands)}
    foreign = not takes_wishes(dialect)
    for device_type, hint in wishes.hints.items():
        path = f"{_HINT}.{device_type}"
        if device_type == names.TYPE_GPU and device_type in counts:
            yield from _check_gpu_hint(path, hint, counts[device_type], foreign=foreign)
        elif device_type in counts:
            yield from _check_unit_hint(path, hint, vocabulary.type_named(device_type))
    if wishes.partition is not None and foreign:
        spec = annotation_path(names.ANNOTATION_GPU_PARTITION_SPEC)
        yield unsupported(spec, f"GPU partitions for requests in the words of {dialect}")
    if wishes.scheduling and wishes.scheduling.node_names:
        field = f"{annotation_path(names.ANNOTATION_SCHEDULING_HINT)}.nodeNames"
        yield unsupported(field, "node names as a scheduling hint; use a node selector")
    if wishes.replaced:
        yield unsupported(
            annotation_path(names.ANNOTATION_REPLACE_RESOURCES), "resources replaced by annotation"
        )


def _counts(demands: tuple[DeviceDemand, ...]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for demand in demands:
        counts[demand.device_type] = counts.get(demand.device_type, 0) + demand.count
    return counts


def _with_hint(demand: DeviceDemand, hint: DeviceHint | None, count: int) -> DeviceDemand:
    if hint is None:
        return demand
    everywhere = (
        hint.allocate_strategy is AllocateStrategy.APPLY_FOR_ALL
        and demand.device_type != names.TYPE_GPU
        and demand.count == 1
    )
    alone = hint.exclusive_policy is DeviceExclusivePolicy.DEVICE_LEVEL
    under_root = hint.exclusive_policy is DeviceExclusivePolicy.PCIE_LEVEL
    left = DeviceHint(
        selector=None if hint.selector == LabelSelector() else hint.selector,
        vf_selector=hint.vf_selector,
        allocate_strategy=(
            AllocateStrategy.APPLY_FOR_ALL if everywhere else AllocateStrategy.UNSET
        ),
        required_topology_scope=_scope(demand, hint, count),
        exclusive_policy=(
            DeviceExclusivePolicy.PCIE_LEVEL if under_root else DeviceExclusivePolicy.UNSET
        ),
    )
    return replace(
        demand,
        exclusive=demand.exclusive or alone,
        hint=None if left == DeviceHint() else left,
    )


def _scope(demand: DeviceDemand, hint: DeviceHint, count: int) -> TopologyScope:
    """One GPU is under one scope of any depth, and a Pod is always on one node (quirk Q16)."""
    scope = hint.required_topology_scope
    if demand.device_type != names.TYPE_GPU or count < 2 or scope is TopologyScope.NODE:
        return TopologyScope.UNSET
    return scope


def _check_unit_hint(path: str, hint: DeviceHint, kind: DeviceType) -> Iterator[FieldError]:
    if hint.vf_selector is not None and not kind.virtual_functions:
        yield unsupported(f"{path}.vfSelector", f"virtual functions of {kind.name}")


def _check_gpu_hint(
    path: str, hint: DeviceHint, count: int, *, foreign: bool
) -> Iterator[FieldError]:
    """Yield what the hint says that GPUs can't be chosen by (Koordinator contract 2.1, Q16)."""
    if hint.vf_selector is not None:
        yield unsupported(f"{path}.vfSelector", "virtual functions of GPUs")
    if hint.allocate_strategy is not AllocateStrategy.UNSET:
        yield unsupported(f"{path}.allocateStrategy", f"{hint.allocate_strategy} of GPUs")
    alone = hint.exclusive_policy
    if foreign and alone is not DeviceExclusivePolicy.UNSET:
        yield unsupported(f"{path}.exclusivePolicy", f"exclusive policy {alone} here")
    scope = hint.required_topology_scope
    if count < 2 or scope in {TopologyScope.UNSET, TopologyScope.NODE}:
        return
    if foreign or scope is TopologyScope.DEVICE:
        yield unsupported(f"{path}.requiredTopologyScope", f"several GPUs under one {scope}")
