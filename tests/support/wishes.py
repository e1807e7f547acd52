"""Annotations and labels that Tenure reads and never writes, as their writers put them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from ledger.domain.annotations.cpu import (
    CpuExclusivePolicy,
    NumaTopologySpec,
    ResourceSpec,
)
from ledger.domain.annotations.device_hints import (
    DeviceHint,
    JointAllocation,
    LabelSelector,
    PartitionSpec,
)
from ledger.domain.annotations.gang import SECOND_NS, Gang
from ledger.domain.annotations.node_cpu import (
    NodeReservation,
    SystemQosResource,
)
from ledger.domain.annotations.partitions import GpuPartition
from ledger.domain.annotations.pods import SchedulingHint
from ledger.domain.annotations.wire import Amounts, amounts_json, dump, present
from ledger.domain.cpuset import format_cpuset
from ledger.domain.dialects.gpushare.annotations import CardUnits
from ledger.domain.quantity import format_quantity
from ledger.domain.request.requests import GroupRef
from ledger.domain.resources import (
    ANNOTATION_GANG_GROUPS,
    ANNOTATION_GANG_MATCH_POLICY,
    ANNOTATION_GANG_MIN_AVAILABLE,
    ANNOTATION_GANG_MODE,
    ANNOTATION_GANG_NAME,
    ANNOTATION_GANG_TOTAL_NUMBER,
    ANNOTATION_GANG_WAITING_TIME,
    LABEL_GPU_GROUP_NAME,
    LABEL_GPU_GROUP_REPLICA,
)


def encode_resource_spec(spec: ResourceSpec) -> str:
    """Write a Pod's CPU policies; unset ones and the exclusive policy NONE are left out."""
    exclusive = spec.preferred_exclusive_policy
    fields = {
        "requiredCPUBindPolicy": str(spec.required_bind_policy),
        "preferredCPUBindPolicy": str(spec.preferred_bind_policy),
        "preferredCPUExclusivePolicy": (
            "" if exclusive is CpuExclusivePolicy.NONE else str(exclusive)
        ),
    }
    return dump(present(fields))


def encode_numa_topology_spec(spec: NumaTopologySpec) -> str:
    """Write a Pod's NUMA policy; unset fields are left out."""
    fields = {
        "numaTopologyPolicy": str(spec.policy),
        "singleNUMANodeExclusive": str(spec.exclusive),
    }
    return dump(present(fields))


def encode_device_hints(hints: Mapping[str, DeviceHint]) -> str:
    """Write device type -> hint; unset fields are left out, an empty selector is `{}`."""
    return dump({device_type: _encode_hint(hint) for device_type, hint in hints.items()})


def encode_joint_allocation(joint: JointAllocation) -> str:
    """Write which device types belong together, in the order given."""
    fields = {"deviceTypes": list(joint.device_types), "requiredScope": str(joint.required_scope)}
    return dump(present(fields))


def encode_partition_spec(spec: PartitionSpec) -> str:
    """Write a Pod's wish about partitions; the policy is always there."""
    bandwidth = spec.ring_bus_bandwidth
    fields = {
        "allocatePolicy": str(spec.allocate_policy),
        "ringBusBandwidth": None if bandwidth is None else format_quantity(bandwidth),
    }
    return dump(present(fields))


def _encode_hint(hint: DeviceHint) -> dict[str, object]:
    fields = present(
        {
            "allocateStrategy": str(hint.allocate_strategy),
            "requiredTopologyScope": str(hint.required_topology_scope),
            "exclusivePolicy": str(hint.exclusive_policy),
        }
    )
    if hint.selector is not None:
        fields["selector"] = _encode_selector(hint.selector)
    if hint.vf_selector is not None:
        fields["vfSelector"] = _encode_selector(hint.vf_selector)
    return fields


def _encode_selector(selector: LabelSelector) -> dict[str, object]:
    expressions = [
        {
            "key": requirement.key,
            "operator": str(requirement.operator),
            **present({"values": list(requirement.values)}),
        }
        for requirement in selector.match_expressions
    ]
    fields = {"matchLabels": dict(selector.match_labels), "matchExpressions": expressions}
    return present(fields)


def encode_gang(gang: Gang) -> dict[str, str]:
    """Write the annotations that say all of this; the groups only when there are some."""
    result = {
        ANNOTATION_GANG_NAME: gang.name,
        ANNOTATION_GANG_WAITING_TIME: format_duration(gang.waiting_time_ns),
        ANNOTATION_GANG_MODE: str(gang.mode),
        ANNOTATION_GANG_MATCH_POLICY: str(gang.match_policy),
    }
    if gang.min_available is not None:
        result[ANNOTATION_GANG_MIN_AVAILABLE] = str(gang.min_available)
    if gang.total_number is not None:
        result[ANNOTATION_GANG_TOTAL_NUMBER] = str(gang.total_number)
    if gang.groups:
        result[ANNOTATION_GANG_GROUPS] = dump(list(gang.groups))
    return result


def format_duration(duration_ns: int) -> str:
    """Write a duration as Go prints it: `10m0s`, `1.5s`, `2ms`, `0s`."""
    sign = "-" if duration_ns < 0 else ""
    rest = abs(duration_ns)
    for unit, scale in (("ns", 1), ("\N{MICRO SIGN}s", 10**3), ("ms", 10**6)):
        if 0 < rest < 1000 * scale:
            return f"{sign}{_decimal(rest, scale)}{unit}"
    hours, rest = divmod(rest, 3600 * SECOND_NS)
    minutes, rest = divmod(rest, 60 * SECOND_NS)
    seconds = f"{_decimal(rest, SECOND_NS)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else f"{sign}{seconds}"


def _decimal(number: int, unit: int) -> str:
    whole, part = divmod(number, unit)
    digits = f"{part:0{len(str(unit)) - 1}d}".rstrip("0") if part else ""
    return f"{whole}.{digits}" if digits else str(whole)


def encode_scheduling_hint(hint: SchedulingHint) -> str:
    """Write a scheduling hint; every extension is an empty object."""
    fields = {
        "nodeNames": list(hint.node_names),
        "preferredNodeNames": list(hint.preferred_node_names),
        "extensions": {name: {} for name in hint.extensions},
    }
    return dump(present(fields))


def encode_replace_resources(pairs: Sequence[tuple[str, str]]) -> str:
    """Write which resource names become which."""
    return ",".join(f"{old}:{new}" for old, new in pairs)


def encode_node_reservation(reservation: NodeReservation) -> str:
    """Write what a node keeps for itself; empty fields are left out."""
    fields = {
        "resources": amounts_json(reservation.resources),
        "reservedCPUs": format_cpuset(reservation.reserved_cpus),
        "applyPolicy": str(reservation.apply_policy),
    }
    return dump(present(fields))


def encode_system_qos_resource(resource: SystemQosResource) -> str:
    """Write the CPUs of SYSTEM Pods; `cpusetExclusive` is always there."""
    fields = {"cpusetExclusive": resource.exclusive}
    return dump({**fields, **present({"cpuset": format_cpuset(resource.cpus)})})


def encode_amplification_ratios(ratios: Mapping[str, Fraction]) -> str:
    """
    Write the ratios as numbers with two decimals, rounded half to even.

    Rule: Koordinator contract 2.3.
    """
    fields = (f"{dump(name)}:{_two_decimals(ratio)}" for name, ratio in sorted(ratios.items()))
    return "{" + ",".join(fields) + "}"


def encode_raw_allocatable(resources: Amounts) -> str:
    """Write a node's allocatable before amplification, in canonical quantities."""
    return dump(amounts_json(resources))


def _two_decimals(ratio: Fraction) -> str:
    hundredths = round(ratio * 100)
    return f"{hundredths // 100}.{hundredths % 100:02d}"


def encode_gpu_group(group: GroupRef) -> dict[str, str]:
    """Write the two labels of a group."""
    return {LABEL_GPU_GROUP_NAME: group.name, LABEL_GPU_GROUP_REPLICA: str(group.replica)}


def encode_unhealthy_cards(cards: frozenset[int]) -> str:
    """Write the card indexes to avoid, ascending."""
    return ",".join(map(str, sorted(cards)))


def encode_card_counts(counts: Sequence[int]) -> str:
    """Write the list of card counts."""
    return ",".join(map(str, counts))


def encode_card_units(shares: tuple[CardUnits, ...]) -> str:
    """Write container index -> card index -> units."""
    by_container: dict[str, dict[str, int]] = {}
    for share in shares:
        by_container.setdefault(str(share.container), {})[str(share.card)] = share.units
    return dump(by_container)


def encode_gpu_partitions(table: Mapping[int, tuple[GpuPartition, ...]]) -> str:
    """Write the table; fields that say nothing are left out."""
    return dump(
        {
            str(count): [_encode_partition(partition) for partition in partitions]
            for count, partitions in table.items()
        }
    )


def _encode_partition(partition: GpuPartition) -> dict[str, object]:
    bandwidth = partition.ring_bus_bandwidth
    fields = {
        "gpuLinkType": partition.link_type,
        "ringBusBandwidth": None if bandwidth is None else format_quantity(bandwidth),
        "allocationScore": partition.allocation_score or None,
    }
    return {"minors": list(partition.minors), **present(fields)}
