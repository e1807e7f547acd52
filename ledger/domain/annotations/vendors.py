"""Annotations for the device plugins of other vendors, and the node locks some of them take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from ledger.domain.annotations.device_allocated import DeviceAllocation
from ledger.domain.annotations.pods import encode_gpu_minors
from ledger.domain.annotations.wire import FALSE, annotation_path, dump
from ledger.domain.errors import InputError
from ledger.domain.resources import (
    ANNOTATION_CAMBRICON_ASSIGNED,
    ANNOTATION_CAMBRICON_PROFILE,
    ANNOTATION_HAMI_LOCK,
    ANNOTATION_HUAWEI_ASCEND_310P,
    ANNOTATION_HUAWEI_NPU_CORE,
    ANNOTATION_METAX_ALLOCATED,
    ANNOTATION_PREDICATE_TIME,
    GPU_CORE,
    GPU_MEMORY,
    LABEL_HAMI_VGPU_NODE,
)

NODE_LOCK_SECONDS: Final = 300
MIB: Final = 2**20
CAMBRICON_UNIT_BYTES: Final = 256 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLock:
    """Which Pod holds a node's vendor lock, and since when (UTC, whole seconds)."""

    taken_at: datetime
    namespace: str
    name: str

    def is_expired(self, now: datetime) -> bool:
        """Tell whether the lock is older than five minutes (Koordinator contract 8.9)."""
        return now - self.taken_at > timedelta(seconds=NODE_LOCK_SECONDS)


# predicate-time: "1767225600000000000"
# huawei.com/npu-core: "0,1", or "3-vir02" for a share
# huawei.com/Ascend310P: "Ascend310P-0,Ascend310P-1"


def encode_huawei(
    allocations: Sequence[DeviceAllocation], *, predicate_time_ns: int, ascend_310p: bool = False
) -> dict[str, str]:
    """
    Write what Huawei's device plugins read: whole cards by minor, or one card's template.

    Rule: Koordinator contract 8.9. `ascend_310p` adds the list that the plugin of that model reads.
    """
    first, minors = allocations[0], [allocation.minor for allocation in allocations]
    cores = f"{first.minor}-{first.template}" if first.template else encode_gpu_minors(minors)
    result = {
        ANNOTATION_PREDICATE_TIME: str(predicate_time_ns),
        ANNOTATION_HUAWEI_NPU_CORE: cores,
    }
    if ascend_310p:
        result[ANNOTATION_HUAWEI_ASCEND_310P] = ",".join(f"Ascend310P-{minor}" for minor in minors)
    return result


# CAMBRICON_DSMLU_ASSIGHED: "false"
# CAMBRICON_DSMLU_PROFILE: "2_40_33"


def encode_cambricon(allocation: DeviceAllocation) -> dict[str, str]:
    """
    Write what Cambricon's device plugin reads: minor, core percent, memory in 256 MiB (floor).

    Rule: Koordinator contract 8.9. The plugin takes one card per Pod.
    """
    core_percent = allocation.quantity(GPU_CORE).ceil()
    units = allocation.quantity(GPU_MEMORY).ceil() // CAMBRICON_UNIT_BYTES
    return {
        ANNOTATION_CAMBRICON_ASSIGNED: FALSE,
        ANNOTATION_CAMBRICON_PROFILE: f"{allocation.minor}_{core_percent}_{units}",
    }


# metax-tech.com/gpu-devices-allocated: [[{"uuid": "...", "compute": 30, "vRam": 8192}]]


def encode_metax(allocations: Sequence[DeviceAllocation]) -> dict[str, str]:
    """
    Write what MetaX's device plugin reads: UUID, core percent, memory in MiB (floor).

    Rule: Koordinator contract 8.9.
    """
    devices = [
        {
            "uuid": allocation.id,
            "compute": allocation.quantity(GPU_CORE).ceil(),
            "vRam": allocation.quantity(GPU_MEMORY).ceil() // MIB,
        }
        for allocation in sorted(allocations, key=lambda allocation: allocation.minor)
    ]
    return {ANNOTATION_METAX_ALLOCATED: dump([devices])}


def encode_hami(node_name: str) -> dict[str, str]:
    """Return the Pod label that HAMi isolation needs (Koordinator contract 2.1)."""
    return {LABEL_HAMI_VGPU_NODE: node_name}


# hami.io/mutex.lock and cambricon.com/dsmlu.lock on the Node: "2026-01-05T14:05:09Z,ml,t-0"


def encode_node_lock(lock: NodeLock) -> str:
    """Write a node lock: time, namespace, name."""
    return f"{lock.taken_at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ},{lock.namespace},{lock.name}"


def decode_node_lock(text: str, key: str = ANNOTATION_HAMI_LOCK) -> NodeLock:
    """
    Read a node lock.

    Raises:
        InputError: not three parts, or a first part that is no time with a zone.
    """
    moment, _, pod = text.partition(",")
    namespace, _, name = pod.partition(",")
    try:
        taken_at = datetime.fromisoformat(moment)
    except ValueError:
        taken_at = None
    if taken_at is None or taken_at.tzinfo is None or not namespace or not name or "," in name:
        msg = f"not a lock (time,namespace,name): value={text!r}"
        raise InputError(msg, field=annotation_path(key))
    return NodeLock(taken_at=taken_at.astimezone(UTC), namespace=namespace, name=name)
