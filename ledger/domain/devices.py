"""Devices and the parts of them that Pods hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from ledger.domain.annotations.wire import at_least
from ledger.domain.bounds import Count, Index, Name, Units
from ledger.domain.proofs.canonical import Recorded

GPU: Final = "gpu"

COUNTER: Final = "counter"
"""The type of accounts that are no device: what the devices of a pool of claims consume together.
What people are shown of devices leaves them out."""

WHOLE_PERCENT: Final = 100
"""Core percent and memory ratio of one whole device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTopology:
    """
    Where a device sits. `numa_node` -1 is unknown and passes every NUMA filter.

    Rule: Koordinator contract 3.1.
    """

    socket: Annotated[Index, "socketID", at_least(-1)] = -1
    numa_node: Annotated[Index, "nodeID", at_least(-1)] = -1
    pcie_id: str = ""
    bus_id: Name = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualFunction:
    """One VF of a NIC. `minor` -1 is not numbered (Koordinator contract 3.1)."""

    minor: Annotated[Index, at_least(-1)] = 0
    bus_id: Name = ""
    labels: Annotated[Mapping[str, str], None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
    """
    One device as the inventory reports it: (machine, id) is its identity, the rest attributes.

    Rule: design section 8, "A device is (machine, UUID)".

    Attributes:
        device_id: UUID or PF bus id; empty when the inventory has no Device object.
        core_percent: capacity, 100 for a whole device; other types count their units here.
        memory_bytes: 0 for a type without memory.
        topology: None when the inventory says nothing about it.
        unique_id: the id is unique in the world, as a GPU's UUID is; a bus address is so on its
            machine alone, and is never compared between machines.
        by_claims: given by claims alone, such as a card that only a ResourceSlice tells of, or a
            counter (docs/contracts/dra.md): an account like any other, and no Pod is placed on it.
    """

    device_type: Name
    minor: Index
    device_id: Name
    model: str = ""
    core_percent: Units = WHOLE_PERCENT
    memory_bytes: Count = 0
    healthy: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    topology: DeviceTopology | None = None
    vfs: tuple[VirtualFunction, ...] = ()
    unique_id: bool = False
    by_claims: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """Return (type, minor), the name of the device inside its node."""
        return (self.device_type, self.minor)


class ContainerShare(Recorded, frozen=True, kw_only=True, gc=False):
    """
    What one container gets of one device.

    `container` is the container's name, `index` its place in the spec: `<i>` for app containers,
    `init-<i>` for init containers (design section 3). Init containers reuse what app containers
    hold, so shares of one Pod overlap and must not be summed over both kinds.
    """

    container: str
    index: str
    core_percent: Units
    memory_bytes: Count


class DeviceShare(Recorded, frozen=True, kw_only=True, gc=False):
    """
    The part of one device that one Pod holds, in integers.

    Rule: design section 4; Koordinator contract 4.5 (both memory numbers are stored, bytes alone
    are constrained).

    Attributes:
        core_percent: 0 when the dialect does not ask for it (GPU share).
        memory_ratio_percent: for the wire and for display, never a constraint.
        exclusive: needs a device without any other tenant.
        instances: containers placed on the device, of which some dialects allow so many.
        vf_bus_ids: virtual functions held on this device.
        containers: in spec order; empty when the whole Pod shares the device.
    """

    device_type: Name
    minor: Index
    device_id: Name
    core_percent: Units = 0
    memory_bytes: Count = 0
    memory_ratio_percent: Units = 0
    exclusive: bool = False
    instances: Units = 1
    vf_bus_ids: tuple[Name, ...] = ()
    containers: tuple[ContainerShare, ...] = ()

    @property
    def key(self) -> tuple[str, int]:
        """Return (type, minor), the name of the device inside its node."""
        return (self.device_type, self.minor)


def device_in(
    devices: Iterable[DeviceRecord], device_type: str, *, minor: int, device_id: str
) -> DeviceRecord | None:
    """
    Return the device of this id, or of this minor where either side has no id.

    Rule: design section 8: a device is its id; another one at the same minor is not it.
    """
    of_type = [device for device in devices if device.device_type == device_type]
    for device in of_type if device_id else ():
        if device.device_id == device_id:
            return device
    for device in of_type:
        if device.minor == minor and not (device_id and device.device_id):
            return device
    return None


def cores_to_percent(cores: int, total_cores: int) -> int:
    """Return the core percent that AI cores are of a card, rounded down: no sum is above 100."""
    return cores * WHOLE_PERCENT // total_cores if total_cores else 0


def ratio_to_bytes(ratio_percent: int, total_bytes: int) -> int:
    """Return a ratio's bytes: 35 % of 24 GiB is 9019431321 bytes (Koordinator contract 4.5)."""
    return ratio_percent * total_bytes // WHOLE_PERCENT


def level_percent(core_percent: int, memory_ratio_percent: int) -> int:
    """Return what a share counts as: core percent, or the memory ratio where no core is asked."""
    return core_percent or memory_ratio_percent


def bytes_to_ratio(memory_bytes: int, total_bytes: int) -> int:
    """Return a request's ratio: truncated, at least 1 for a tenant (Koordinator contract 4.5)."""
    if memory_bytes == 0 or total_bytes == 0:
        return 0
    return max(1, memory_bytes * WHOLE_PERCENT // total_bytes)
