"""What machines have and what is taken of it, counted from the events, each grant as it comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from ledger.domain.log.state import GRANTED
from ledger.store.writing.statements import Row


class Device(Struct):
    """A row of `ledger_devices`."""

    device_no: int
    machine_no: int
    node_no: int
    device_type: str
    minor: int
    device_id: str
    unique_id: int
    model: str
    present: int
    healthy: int
    core_reported: int
    memory_reported: int
    core_cap: int
    memory_cap: int
    core_used: int
    memory_used: int
    tenants: int
    exclusive_holders: int
    core_observed: int
    memory_observed: int
    observed_holders: int
    fact_position: int

    def count(self, share: Row, by: int) -> None:
        """Add a row of `ledger_holdings` to the counters, `by` 1, or take it off, `by` -1."""
        _, _, _, core, memory, _, exclusive, _, kind, _ = share
        if kind != GRANTED:
            self.core_observed += by * core
            self.memory_observed += by * memory
            self.observed_holders += by
            return
        self.core_used += by * core
        self.memory_used += by * memory
        self.tenants += by
        self.exclusive_holders += by * exclusive
        self.cap()

    def cap(self) -> None:
        """Let no cap be below what is used."""
        core, used = self.core_reported, self.core_used
        self.core_cap = core if core > used else used  # noqa: FURB136 - a call of max costs more
        memory, used = self.memory_reported, self.memory_used
        self.memory_cap = memory if memory > used else used  # noqa: FURB136 - likewise


class Cpu(Struct):
    """A row of `ledger_cpus`."""

    machine_no: int
    cpu: int
    node_no: int
    core: int
    socket: int
    numa: int
    present: int
    ref_reported: int
    ref_max: int
    ref_used: int
    ref_observed: int
    fact_position: int

    def count(self, kind: str, by: int) -> None:
        """Add a holder, `by` 1, or take one off, `by` -1."""
        if kind == GRANTED:
            self.ref_used += by
            self.ref_max = max(self.ref_reported, self.ref_used)
        else:
            self.ref_observed += by


class Accounts:
    """Devices, CPUs and slots with their holders. What is taken is counted whatever it breaks."""

    def __init__(self) -> None:
        self.devices: dict[int, Device] = {}
        self.cpus: dict[tuple[int, int], Cpu] = {}  # by machine and CPU
        self._twins: dict[tuple[str, str], list[Device]] = {}  # by type and id
        self._unnamed: dict[tuple[str, int, int], Device] = {}  # without id, by type, node, minor
        self._alone: Counter[tuple[int, int]] = Counter()  # holders that share a CPU with nobody
        self._slots: Counter[tuple[int, str]] = Counter()  # open holders, granted or not

    def add_device(self, row: Row) -> None:
        """Take a row of `ledger_devices`."""
        device = self.devices[row[0]] = Device(*row)
        self._index(device)

    def update_device(self, row: Row) -> None:
        """Take the values of `statements.UPDATE_DEVICE`."""
        device = self.devices[row[-1]]
        device.node_no, device.minor, device.device_id = row[0:3]
        device.unique_id, device.model, device.present, device.healthy = row[3:7]
        device.core_reported, device.memory_reported = row[7:9]
        device.fact_position = row[-2]
        device.cap()
        self._index(device)

    def add_cpu(self, row: Row) -> None:
        """Take a row of `ledger_cpus`."""
        self.cpus[row[0], row[1]] = Cpu(*row)

    def update_cpu(self, row: Row) -> None:
        """Take the values of `statements.UPDATE_CPU`."""
        cpu = self.cpus[row[-2], row[-1]]
        cpu.node_no, cpu.core, cpu.socket, cpu.numa, cpu.present, cpu.ref_reported = row[:6]
        cpu.fact_position = row[8]
        cpu.ref_max = max(cpu.ref_reported, cpu.ref_used)

    def take(self, share: Row) -> str:
        """Count a row of `ledger_holdings`; return what it breaks, empty if nothing."""
        device = self.devices[share[1]]
        broken = self._broken(device, share[3], share[4], share[6]) if share[8] == GRANTED else ""
        device.count(share, 1)
        return broken

    def take_cpu(self, row: Row, *, alone: bool) -> Iterator[str]:
        """Yield what a row of `ledger_cpu_holdings` breaks, and then, once exhausted, count it."""
        _, cpu_id, machine_no, kind, _ = row
        cpu = self.cpus[machine_no, cpu_id]
        if kind == GRANTED:
            holders = cpu.ref_used + cpu.ref_observed
            if holders >= cpu.ref_reported or not cpu.present:
                yield f"was promised beyond its holders: {holders} of {cpu.ref_reported}"
            if holders and (alone or self._alone[machine_no, cpu_id]):
                yield "of an LSE Pod was promised to a second holder"
        cpu.count(kind, 1)
        self.leave_alone(row, alone=alone)

    def leave_alone(self, row: Row, *, alone: bool) -> None:
        """Note that a holder, which the CPU's row has counted, shares it with nobody."""
        self._alone[row[2], row[1]] += alone

    def give_back_cpu(self, row: Row, *, alone: bool) -> None:
        """Undo `take_cpu`."""
        _, cpu_id, machine_no, kind, _ = row
        self.cpus[machine_no, cpu_id].count(kind, -1)
        self._alone[machine_no, cpu_id] -= alone

    def take_slot(self, machine_no: int, slot: str) -> int:
        """Count a holder of a slot; return how many there were."""
        holders = self._slots[machine_no, slot]
        self._slots[machine_no, slot] = holders + 1
        return holders

    def give_back_slot(self, machine_no: int, slot: str) -> None:
        """Undo `take_slot`."""
        holders = self._slots.pop((machine_no, slot), 0)
        if holders > 1:
            self._slots[machine_no, slot] = holders - 1

    def is_clouded(self, device: Device) -> bool:
        """Tell whether a Pod on an unknown card of the machine may hold the device."""
        return (device.machine_no, f"unknown/{device.device_type}") in self._slots

    def _index(self, device: Device) -> None:
        if not device.device_id:
            self._unnamed[device.device_type, device.node_no, device.minor] = device
            return
        twins = self._twins.setdefault((device.device_type, device.device_id), [])
        if all(each is not device for each in twins):
            twins.append(device)

    def _broken(self, device: Device, core: int, memory: int, exclusive: int) -> str:
        """
        Return what this grant breaks, empty if nothing.

        Rule: design section 4: capacity counts what was granted and what others hold.
        """
        core_left = device.core_reported - device.core_used - device.core_observed
        memory_left = device.memory_reported - device.memory_used - device.memory_observed
        if core > core_left:
            return f"was promised beyond its core: {core} asked, {core_left} percent left"
        if memory > memory_left:
            return f"was promised beyond its memory: {memory} asked, {memory_left} bytes left"
        if device.exclusive_holders or (exclusive and (device.tenants or device.observed_holders)):
            return "was promised to a second holder beside an exclusive one"
        if not device.present or not device.healthy:
            return "was promised while it was closed"
        if self._slots and self.is_clouded(device):
            return "was promised while a Pod held an unknown card of its node"
        if device.unique_id and self._is_claimed_twice(device):
            return "was promised while another machine claimed it too"
        if self._unnamed and device.device_id and self._is_held_unnamed(device):
            return "was promised though it may be held from before it had an id"
        if device.observed_holders and (
            device.core_observed >= device.core_reported
            or 0 < device.memory_reported <= device.memory_observed
        ):
            return "was promised while others held it"
        return ""

    def _is_held_unnamed(self, device: Device) -> bool:
        """Tell whether the node had a device without an id at this minor, which is held."""
        unnamed = self._unnamed.get((device.device_type, device.node_no, device.minor))
        if unnamed is None or unnamed is device or unnamed.device_id:
            return False
        return bool(unnamed.tenants or unnamed.observed_holders)

    def _is_claimed_twice(self, device: Device) -> bool:
        return any(
            each.present or each.tenants or each.observed_holders
            for each in self._twins.get((device.device_type, device.device_id), ())
            if each is not device
        )
