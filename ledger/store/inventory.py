"""What an inventory changes: which device is which, what came, what went. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ledger.domain.devices import DeviceRecord

GONE = "gone"
RETURNED = "returned"
INVENTORY = "inventory"


@dataclass(slots=True, kw_only=True)
class KnownDevice:
    """A device row as the ledger last wrote it. `number` is its `device_no`."""

    number: int
    device_type: str
    minor: int
    device_id: str
    model: str
    present: bool
    healthy: bool
    core_percent: int
    memory_bytes: int


@dataclass(slots=True, kw_only=True)
class KnownNode:
    """
    A node row, its devices ever seen in the order of their numbers, and its CPU ids.

    `open` has what is held on it now: (Pod UID, attempt) -> (position, kind).
    """

    number: int
    devices: list[KnownDevice] = field(default_factory=list)
    at: dict[tuple[str, int], KnownDevice] = field(default_factory=dict)  # present, by place
    cpus: set[int] = field(default_factory=set)
    open: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)

    def device(self, device_type: str, minor: int, device_id: str) -> KnownDevice | None:
        """Return the device that a share or an event names; None if it was never seen."""
        here = self.at.get((device_type, minor))
        if here is not None and (not device_id or not here.device_id):
            return here
        if here is not None and here.device_id == device_id:
            return here
        return find(self.devices, device_type, minor, device_id)

    def index(self) -> None:
        """Make `at` again after devices came, went or moved."""
        self.at = {(d.device_type, d.minor): d for d in self.devices if d.present}


def find(
    devices: Iterable[KnownDevice], device_type: str, minor: int, device_id: str
) -> KnownDevice | None:
    """
    Return the device with this UUID, else the one without a UUID at this minor.

    Rule: design section 8, "A device is (machine, UUID)": the minor is an attribute. A device that
    was first inventoried without a UUID is the one that is later found at its minor with one, and
    one whose UUID the inventory stops telling stays who it was.
    """
    same_type = [device for device in devices if device.device_type == device_type]
    if device_id:
        for device in same_type:
            if device.device_id == device_id:
                return device
    for device in same_type:
        if device.minor == minor and (not device.device_id or (not device_id and device.present)):
            return device
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChange:
    """
    One device after an inventory. `new` rows are inserted, the others updated.

    `reason` is set when the device was closed to grants or opened again by this inventory.
    """

    device: KnownDevice
    new: bool
    reason: str = ""


def inventory(
    node: KnownNode, records: Iterable[DeviceRecord], first_number: int
) -> Iterator[DeviceChange]:
    """
    Apply an inventory to `node` and yield every device row that comes or changes.

    New devices are numbered from `first_number` in the order of the records; devices that the
    records no longer name are gone, with their holders (design section 8: `lost`).
    """
    seen: set[int] = set()
    number = first_number
    for record in records:
        left = [device for device in node.devices if device.number not in seen]
        known = find(left, record.device_type, record.minor, record.device_id)
        if known is None:
            known = _new(number, record)
            number += 1
            node.devices.append(known)
            yield DeviceChange(device=known, new=True, reason="" if record.healthy else INVENTORY)
        elif not _same(known, record):
            reason = RETURNED if not known.present else ""
            if known.present and known.healthy != record.healthy:
                reason = INVENTORY
            _update(known, record)
            yield DeviceChange(device=known, new=False, reason=reason)
        seen.add(known.number)
    for device in node.devices:
        if device.present and device.number not in seen:
            device.present = False
            yield DeviceChange(device=device, new=False, reason=GONE)
    node.index()


def _new(number: int, record: DeviceRecord) -> KnownDevice:
    return KnownDevice(
        number=number,
        device_type=record.device_type,
        minor=record.minor,
        device_id=record.device_id,
        model=record.model,
        present=True,
        healthy=record.healthy,
        core_percent=record.core_percent,
        memory_bytes=record.memory_bytes,
    )


def _same(known: KnownDevice, record: DeviceRecord) -> bool:
    return (
        known.present
        and known.minor == record.minor
        and known.device_id == (record.device_id or known.device_id)
        and known.model == record.model
        and known.healthy == record.healthy
        and known.core_percent == record.core_percent
        and known.memory_bytes == record.memory_bytes
    )


def _update(known: KnownDevice, record: DeviceRecord) -> None:
    known.minor = record.minor
    known.device_id = record.device_id or known.device_id
    known.model = record.model
    known.present = True
    known.healthy = record.healthy
    known.core_percent = record.core_percent
    known.memory_bytes = record.memory_bytes
