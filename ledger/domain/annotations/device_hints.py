"""
What a Pod asks of device choice: hints per type, joint allocation, the partition wish.

Rule: Koordinator contract 2.1. Every `decode_` raises InputError, with its path, for JSON, a type
or a text that is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from ledger.domain import resources
from ledger.domain.annotations.wire import an_object, annotation_path, load
from ledger.domain.errors import InputError
from ledger.domain.quantity import Quantity
from ledger.domain.typed import read, read_json, sorted_texts

_HINT_PATH: Final = annotation_path(resources.ANNOTATION_DEVICE_ALLOCATE_HINT)


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

    match_labels: Annotated[tuple[tuple[str, str], ...], sorted_texts] = ()
    match_expressions: tuple[Annotated[SelectorRequirement, _requirement], ...] = ()

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
    """Read device type -> hint."""
    by_type = an_object(load(text, _HINT_PATH), _HINT_PATH)
    return {
        device_type: read(DeviceHint, value, f"{_HINT_PATH}.{device_type}")
        for device_type, value in sorted(by_type.items())
    }


# {"deviceTypes": ["gpu", "rdma"], "requiredScope": "SamePCIe"}


def decode_joint_allocation(text: str) -> JointAllocation:
    """Read which device types belong together."""
    return read_json(JointAllocation, text, resources.ANNOTATION_DEVICE_JOINT_ALLOCATE)


# {"allocatePolicy": "Restricted", "ringBusBandwidth": "200Gi"}


def decode_partition_spec(text: str) -> PartitionSpec:
    """Read a Pod's wish about partitions; `{}` is a wish too."""
    return read_json(PartitionSpec, text, resources.ANNOTATION_GPU_PARTITION_SPEC)


def read_selector(value: object, path: str) -> LabelSelector | None:
    """Return a label selector, None without one. Raises InputError as `read` does."""
    return None if value is None else read(LabelSelector, value, path)


def _requirement(value: object, path: str) -> SelectorRequirement:
    item = read(SelectorRequirement, value, path)
    takes_values = item.operator in {SelectorOperator.IN, SelectorOperator.NOT_IN}
    if not item.key:
        raise InputError("missing; expected a label key", field=f"{path}.key")
    if takes_values != bool(item.values):
        fact = "needs values" if takes_values else "takes no values"
        raise InputError(f"operator {item.operator} {fact}", field=f"{path}.values")
    return item
