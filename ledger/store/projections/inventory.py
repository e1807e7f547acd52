"""
What an inventory changes: which machine and which device is which, what came, what went. Pure.

Rule: design section 4, "One account per physical device". Accounts are a machine's; Nodes come and
go over it. Of two Nodes of one machine the later inventory says where its devices are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from ledger.domain.devices import DeviceRecord, DeviceShare

GONE = "gone"
RETURNED = "returned"
INVENTORY = "inventory"
NOBODYS = ("", "")
"""The identity of a machine whose Node does not tell (systemUUID, machineID)."""


@dataclass(slots=True, kw_only=True)
class KnownDevice:
    """A device row as the ledger last wrote it. `number` is its `device_no`."""

    number: int
    machine: int
    node: int  # `node_no` of the Node whose inventory named it last
    device_type: str
    minor: int
    device_id: str
    unique_id: bool = False
    model: str = ""
    present: bool = False
    healthy: bool = True
    core_percent: int = 0
    memory_bytes: int = 0


@dataclass(slots=True, kw_only=True)
class KnownStand:
    """What a Node told last while it stood on a machine; `by_agent` whether its agent ever did."""

    boot_id: str = ""
    by_agent: bool = False
    fact_position: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownParts:
    """What a machine has: devices ever seen in the order of their numbers, and its CPU ids."""

    devices: list[KnownDevice] = field(default_factory=list)
    cpus: dict[int, int] = field(default_factory=dict)  # CPU -> `node_no` as of a device


@dataclass(slots=True, kw_only=True)
class KnownMachine:
    """
    A machine row, and what the machine has.

    `read` returns its parts by its number, once, when something is first done to them: a large
    ledger has a million CPUs, and a writer reads none at its start.
    """

    number: int
    identity: tuple[str, str] = NOBODYS
    stands: dict[int, KnownStand] = field(default_factory=dict)  # by `node_no`
    read: Callable[[int], KnownParts] = lambda _: KnownParts()
    _parts: KnownParts | None = None

    @property
    def devices(self) -> list[KnownDevice]:
        """Its devices ever seen, in the order of their numbers."""
        return self._read().devices

    @property
    def cpus(self) -> dict[int, int]:
        """Its CPU ids: CPU -> `node_no` as of a device."""
        return self._read().cpus

    def _read(self) -> KnownParts:
        if self._parts is None:
            self._parts = self.read(self.number)
        return self._parts

    def boot_id(self) -> str:
        """Return the boot id that was told last, wherever the Node stands now that told it."""
        stands = self.stands.values()
        return max(stands, key=lambda stand: stand.fact_position).boot_id if stands else ""

    def by_agent(self) -> bool:
        """Tell whether its agent has ever reported."""
        return any(stand.by_agent for stand in self.stands.values())


@dataclass(slots=True, kw_only=True)
class KnownNode:
    """
    A node row, and the machine that it stands on.

    Attributes:
        open: what is held on it now: (Pod UID, attempt) -> (position, kind).
        lost_open: those held when it was lost: key -> (position of the loss, newest boot id then).
        former: the other machines that it ever stood on, which may still have devices of its.
    """

    number: int
    machine: KnownMachine
    _at: dict[tuple[str, int], KnownDevice] | None = None
    open: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)
    lost_open: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)
    former: list[KnownMachine] = field(default_factory=list)
    moved_position: int | None = None
    lost_position: int | None = None

    def device(self, device_type: str, minor: int, device_id: str) -> KnownDevice | None:
        """Return the device that a share or an event names; None if it was never seen."""
        here = self.listed(device_type, minor)
        if here is not None and (not device_id or here.device_id in {"", device_id}):
            return here
        return find(self, self.machine.devices, device_type, minor, device_id)

    def listed(self, device_type: str, minor: int) -> KnownDevice | None:
        """Return what it listed at a minor, unless another Node of the machine lists it now."""
        here = self.at.get((device_type, minor))
        mine = here is not None and (here.node, here.minor) == (self.number, minor)
        return here if mine else None

    @property
    def at(self) -> dict[tuple[str, int], KnownDevice]:
        """Its devices that are present, by place."""
        if self._at is None:
            self._at = {(d.device_type, d.minor): d for d in self.own_devices() if d.present}
        return self._at

    def index(self) -> None:
        """Make `at` again, for devices came, went or moved."""
        self._at = None

    def own_devices(self) -> list[KnownDevice]:
        """Return the devices that this node's inventory named last."""
        own = [device for device in self.machine.devices if device.node == self.number]
        for machine in self.former:
            own += [device for device in machine.devices if device.node == self.number]
        return own


class KnownMachines:
    """Every machine by number and by identity; `last_device` is the highest number of a device."""

    def __init__(self, machines: Iterable[KnownMachine] = (), last_device: int = 0) -> None:
        self.last_device = last_device
        self.by_number = {machine.number: machine for machine in machines}
        self._by_identity = {
            machine.identity: machine
            for machine in self.by_number.values()
            if machine.identity != NOBODYS
        }

    def of(self, node: KnownNode | None, told: tuple[str, str]) -> KnownMachine:
        """
        Return the machine of a node that tells this (systemUUID, machineID), which may be new.

        A node that tells less than both stays where it is. The first full name is given to the
        node's machine, unless another machine has it: then the node is on that one from here on.
        """
        own = node.machine if node is not None else None
        identity = told if all(told) else NOBODYS
        if own is not None and identity in {NOBODYS, own.identity}:
            return own
        known = self._by_identity.get(identity)
        if known is not None:
            return known
        if own is None or own.identity != NOBODYS:
            own = KnownMachine(number=1 + len(self.by_number))  # numbers have no gaps
            self.by_number[own.number] = own
        if identity != NOBODYS:
            own.identity = identity
            self._by_identity[identity] = own
        return own


def find(
    node: KnownNode, devices: Iterable[KnownDevice], device_type: str, minor: int, device_id: str
) -> KnownDevice | None:
    """
    Return the device with this UUID, else the node's own one without a UUID at this minor.

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
        if (device.node, device.minor) != (node.number, minor):
            continue
        if not device.device_id or (not device_id and device.present):
            return device
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChange:
    """One device after an inventory, inserted if `new`; `reason` if that closed or opened it."""

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
    machine = node.machine
    for record in records:
        left = [device for device in machine.devices if device.number not in seen]
        known = find(node, left, record.device_type, record.minor, record.device_id)
        if known is None:
            known = new_device(number, node, record)
            _update(known, node, record)
            number += 1
            machine.devices.append(known)
            yield DeviceChange(device=known, new=True, reason="" if record.healthy else INVENTORY)
        elif not _same(known, node, record):
            reason = RETURNED if not known.present else ""
            if known.present and known.healthy != record.healthy:
                reason = INVENTORY
            _update(known, node, record)
            yield DeviceChange(device=known, new=False, reason=reason)
        seen.add(known.number)
    yield from withdrawn(node, seen, GONE)


def withdrawn(node: KnownNode, kept: set[int], reason: str) -> Iterator[DeviceChange]:
    """Yield every device of the node that is not `kept`: it is not there for grants any more."""
    for device in node.own_devices():
        if device.present and device.number not in kept:
            device.present = False
            yield DeviceChange(device=device, new=False, reason=reason)
    node.index()


def new_device(number: int, node: KnownNode, named: DeviceRecord | DeviceShare) -> KnownDevice:
    """Return a device that is named for the first time, of which nothing else is known."""
    return KnownDevice(
        number=number,
        machine=node.machine.number,
        node=node.number,
        device_type=named.device_type,
        minor=named.minor,
        device_id=named.device_id,
    )


def _same(known: KnownDevice, node: KnownNode, record: DeviceRecord) -> bool:
    return (
        known.present
        and known.node == node.number
        and known.unique_id == record.unique_id
        and known.minor == record.minor
        and known.device_id == (record.device_id or known.device_id)
        and known.model == record.model
        and known.healthy == record.healthy
        and known.core_percent == record.core_percent
        and known.memory_bytes == record.memory_bytes
    )


def _update(known: KnownDevice, node: KnownNode, record: DeviceRecord) -> None:
    known.node = node.number
    known.unique_id = record.unique_id
    known.minor = record.minor
    known.device_id = record.device_id or known.device_id
    known.model = record.model
    known.present = True
    known.healthy = record.healthy
    known.core_percent = record.core_percent
    known.memory_bytes = record.memory_bytes
