"""What a Pod asks of device choice: hints per type, joint allocation, the partition wish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ledger.domain.annotations.wire import (
    a_choice,
    a_quantity,
    a_text,
    an_object,
    annotation_path,
    each,
    load,
)
from ledger.domain.errors import InputError
from ledger.domain.quantity import Quantity
from ledger.domain.resources import (
    ANNOTATION_DEVICE_ALLOCATE_HINT,
    ANNOTATION_DEVICE_JOINT_ALLOCATE,
    ANNOTATION_GPU_PARTITION_SPEC,
)

_HINT_PATH: Final = annotation_path(ANNOTATION_DEVICE_ALLOCATE_HINT)
_JOINT_PATH: Final = annotation_path(ANNOTATION_DEVICE_JOINT_ALLOCATE)
_PARTITION_PATH: Final = annotation_path(ANNOTATION_GPU_PARTITION_SPEC)


class SelectorOperator(StrEnum):
    """The operators of a Kubernetes label selector."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class AllocateStrategy(StrEnum):
    """How many RDMA or FPGA devices an uneven request means (Koordinator contract 8.3)."""

    UNSET = ""
    APPLY_FOR_ALL = "ApplyForAll"
    REQUESTS_AS_COUNT = "RequestsAsCount"


class TopologyScope(StrEnum):
    """The scope that all chosen GPUs must share; `depth` grows towards the device."""

    UNSET = ""
    NODE = "Node"
    NUMA_NODE = "NUMANode"
    PCIE = "PCIe"
    DEVICE = "Device"

    @property
    def depth(self) -> int:
        """Node is 1, Device is 4, unset is 0."""
        return tuple(TopologyScope).index(self)


class DeviceExclusivePolicy(StrEnum):
    """What must have no other tenant (Koordinator contract 8.3, quirk Q5)."""

    UNSET = ""
    DEVICE_LEVEL = "DeviceLevel"
    PCIE_LEVEL = "PCIeLevel"


class JointScope(StrEnum):
    """Whether jointly allocated devices must share a PCIe root, or only should."""

    BEST_EFFORT = ""
    SAME_PCIE = "SamePCIe"


class PartitionPolicy(StrEnum):
    """Whether only the best-scored partitions count."""

    BEST_EFFORT = "BestEffort"
    RESTRICTED = "Restricted"


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorRequirement:
    """One expression of a label selector."""

    key: str
    operator: SelectorOperator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether the labels meet it; NotIn also takes labels without the key."""
        present_value = labels.get(self.key)
        match self.operator:
            case SelectorOperator.IN:
                return present_value is not None and present_value in self.values
            case SelectorOperator.NOT_IN:
                return present_value is None or present_value not in self.values
            case SelectorOperator.EXISTS:
                return present_value is not None
            case SelectorOperator.DOES_NOT_EXIST:
                return present_value is None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSelector:
    """A Kubernetes label selector; an empty one matches everything."""

    match_labels: tuple[tuple[str, str], ...] = ()
    match_expressions: tuple[SelectorRequirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Tell whether the labels meet every part."""
        return all(labels.get(key) == value for key, value in self.match_labels) and all(
            requirement.matches(labels) for requirement in self.match_expressions
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHint:
    """
    How to choose devices of one type.

    Attributes:
        selector: None keeps all devices, as the empty selector does.
        vf_selector: not None (even empty) means one VF per chosen device.
    """

    selector: LabelSelector | None = None
    vf_selector: LabelSelector | None = None
    allocate_strategy: AllocateStrategy = AllocateStrategy.UNSET
    required_topology_scope: TopologyScope = TopologyScope.UNSET
    exclusive_policy: DeviceExclusivePolicy = DeviceExclusivePolicy.UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class JointAllocation:
    """Device types to allocate together; the first is the primary one."""

    device_types: tuple[str, ...] = ()
    required_scope: JointScope = JointScope.BEST_EFFORT


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """A Pod's wish about partitions; its presence makes the node's table mandatory."""

    allocate_policy: PartitionPolicy = PartitionPolicy.BEST_EFFORT
    ring_bus_bandwidth: Quantity | None = None


# {"rdma": {"selector": {"matchLabels": {"fabric": "roce"}},
#           "vfSelector": {"matchExpressions": [{"key": "use", "operator": "In",
#                                                "values": ["train"]}]},
#           "allocateStrategy": "RequestsAsCount", "exclusivePolicy": "DeviceLevel"},
#  "gpu": {"requiredTopologyScope": "NUMANode"}}


def decode_device_hints(text: str) -> dict[str, DeviceHint]:
    """
    Read device type -> hint.

    Rule: Koordinator contract 2.1.

    Raises:
        InputError: broken JSON, or a strategy, scope, policy or operator that is none of the
            known texts.
    """
    by_type = an_object(load(text, _HINT_PATH), _HINT_PATH)
    return {
        device_type: _decode_hint(value, f"{_HINT_PATH}.{device_type}")
        for device_type, value in sorted(by_type.items())
    }


# {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}


def decode_joint_allocation(text: str) -> JointAllocation:
    """
    Read which device types belong together.

    Rule: Koordinator contract 2.1.
    """
    value = an_object(load(text, _JOINT_PATH), _JOINT_PATH)
    return JointAllocation(
        device_types=each(value.get("deviceTypes"), f"{_JOINT_PATH}.deviceTypes", a_text),
        required_scope=a_choice(
            value.get("requiredScope"), JointScope, f"{_JOINT_PATH}.requiredScope"
        ),
    )


# {"allocatePolicy": "Restricted", "ringBusBandwidth": "200Gi"}


def decode_partition_spec(text: str) -> PartitionSpec:
    """
    Read a Pod's wish about partitions.

    Rule: Koordinator contract 2.1: `BestEffort` by default; `{}` is a wish too.
    """
    value = an_object(load(text, _PARTITION_PATH), _PARTITION_PATH)
    bandwidth = value.get("ringBusBandwidth")
    path = f"{_PARTITION_PATH}.ringBusBandwidth"
    return PartitionSpec(
        allocate_policy=a_choice(
            value.get("allocatePolicy"),
            PartitionPolicy,
            f"{_PARTITION_PATH}.allocatePolicy",
            default=PartitionPolicy.BEST_EFFORT,
        ),
        ring_bus_bandwidth=None if bandwidth is None else a_quantity(bandwidth, path),
    )


def _decode_hint(value: object, path: str) -> DeviceHint:
    hint = an_object(value, path)
    return DeviceHint(
        selector=read_selector(hint.get("selector"), f"{path}.selector"),
        vf_selector=read_selector(hint.get("vfSelector"), f"{path}.vfSelector"),
        allocate_strategy=a_choice(
            hint.get("allocateStrategy"), AllocateStrategy, f"{path}.allocateStrategy"
        ),
        required_topology_scope=a_choice(
            hint.get("requiredTopologyScope"), TopologyScope, f"{path}.requiredTopologyScope"
        ),
        exclusive_policy=a_choice(
            hint.get("exclusivePolicy"), DeviceExclusivePolicy, f"{path}.exclusivePolicy"
        ),
    )


def read_selector(value: object, path: str) -> LabelSelector | None:
    """
    Return a Kubernetes label selector, None where there is none.

    Raises:
        InputError: another shape, or an operator that does not go with its values.
    """
    if value is None:
        return None
    selector = an_object(value, path)
    labels = an_object(selector.get("matchLabels"), f"{path}.matchLabels")
    return LabelSelector(
        match_labels=tuple(
            (key, a_text(label, f"{path}.matchLabels[{key}]"))
            for key, label in sorted(labels.items())
        ),
        match_expressions=each(
            selector.get("matchExpressions"), f"{path}.matchExpressions", _decode_requirement
        ),
    )


def _decode_requirement(value: object, path: str) -> SelectorRequirement:
    item = an_object(value, path)
    key = a_text(item.get("key"), f"{path}.key")
    operator = a_choice(item.get("operator"), SelectorOperator, f"{path}.operator")
    values = each(item.get("values"), f"{path}.values", a_text)
    takes_values = operator in {SelectorOperator.IN, SelectorOperator.NOT_IN}
    if not key:
        raise InputError("missing; expected a label key", field=f"{path}.key")
    if takes_values != bool(values):
        fact = "needs values" if takes_values else "takes no values"
        raise InputError(f"operator {operator} {fact}", field=f"{path}.values")
    return SelectorRequirement(key=key, operator=operator, values=values)
