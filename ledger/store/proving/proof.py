"""
A replay that checks as it goes: capacity at every position, and every projected row.

The events say which rows there must be and when each ended; the rows that are there are read along
in the same order, so that a ledger of any length is compared in the memory of what is open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, compress
from typing import Any, Final

from msgspec import Struct
from sqlalchemy import Connection, Select, Table

from ledger.domain.annotations.qos import QosClass
from ledger.domain.errors import CapacityError
from ledger.domain.log.events import LedgerEvent
from ledger.domain.log.state import GRANTED
from ledger.store import schema
from ledger.store.projections.project import Projection
from ledger.store.reading.tables import (
    Report,
    UnreadableError,
    in_key_order,
    row_pages,
    typed_pages,
)
from ledger.store.writing import statements
from ledger.store.writing.statements import Row, Statement


class SortedRows:
    """The rows of one table, read in key order beside the events that explain them."""

    def __init__(
        self,
        connection: Connection,
        table: Table,
        report: Report,
        query: Select[Any] | None = None,
    ) -> None:
        self._table = table
        self._name = table.name
        self._keys = len(table.primary_key.columns)
        self._report = report
        self._ended = False
        self._source = row_pages(connection, in_key_order(table) if query is None else query)
        self._rows = chain.from_iterable(self._typed(self._source))
        self._next = next(self._rows, None)

    def take(self, key: Row) -> Row | None:
        """Return the row with this key; report the rows before it, which nothing explains."""
        keys = self._keys
        row = self._next
        if row is not None and row[:keys] == key:
            self._next = next(self._rows, None)
            return row
        row = self.skip(key)
        if row is None or row[:keys] != key:
            if not self._ended:
                self._report(key[0], f"{self._name} lacks the row of this event: key={key}")
            return None
        self._next = next(self._rows, None)
        return row

    def skip(self, key: Row) -> Row | None:
        """Report the rows before `key`, which nothing explains; return the next."""
        while self._next is not None and self._next[: self._keys] < key:
            self._unexplained(self._next)
            self._next = next(self._rows, None)
        return self._next

    def finish(self) -> None:
        """Report the rows that are left."""
        while self._next is not None:
            self._unexplained(self._next)
            self._next = next(self._rows, None)

    def close(self) -> None:
        """Let go of the query."""
        self._source.close()

    def _unexplained(self, row: Row) -> None:
        key = row[: self._keys]
        self._report(key[0], f"{self._name} has a row that no event explains: key={key}")

    def _typed(self, pages: Iterable[list[Row]]) -> Iterator[list[Row]]:
        """Yield the rows whose values are of their columns; report the others, and a broken end."""
        try:
            yield from typed_pages(self._table, pages, self._report)
        except UnreadableError as error:
            self._ended = True
            self._report(None, f"{self._name} is unreadable: {error}")


class _Open(Struct):
    """
    What one reservation must end as: its recorded rows, and what it takes meanwhile.

    Attributes:
        alone: its CPUs have no other holder (CPU proposal, QoS principle 2).
    """

    pod_uid: str
    phase: Row  # and the position of the event that said it
    reservation: Row | None
    alone: bool = False
    parts: list[tuple[Table, Row]] = []
    shares: list[Row] = []
    cpus: list[Row] = []
    lost: Row = (None, None, None)  # the loss: position, moment, newest boot id of the machine


_RESERVATION: Final = [column.name for column in schema.ledger_reservations.columns]
PHASE: Final = slice(_RESERVATION.index("phase"), _RESERVATION.index("phase_position") + 1)
QOS_AT: Final = _RESERVATION.index("qos")
LOST_AT: Final = len(statements.RESERVATION.parameters)
"""Where the columns begin that a loss fills in, and behind them those of the ending."""
_BEFORE: Final = slice(PHASE.start)
_BEHIND: Final = slice(PHASE.stop, LOST_AT)
"""The columns that never change, before those of the phase and behind them."""
CLOSED_BY: Final = _RESERVATION.index("closed_position")
PLACE: Final = [column.name for column in schema.ledger_planned_cards.columns]
_DEVICE: Final = {column.name: i for i, column in enumerate(schema.ledger_devices.columns)}
_CPU: Final = {column.name: i for i, column in enumerate(schema.ledger_cpus.columns)}
_D_TYPE, _D_MINOR, _D_ID = _DEVICE["device_type"], _DEVICE["minor"], _DEVICE["device_id"]
_D_NODE, _D_MODEL = _DEVICE["node_no"], _DEVICE["model"]
_D_MACHINE, _D_UNIQUE = _DEVICE["machine_no"], _DEVICE["unique_id"]
_D_PRESENT, _D_HEALTHY, _D_FACT = _DEVICE["present"], _DEVICE["healthy"], _DEVICE["fact_position"]
_D_CORE, _D_MEMORY = _DEVICE["core_reported"], _DEVICE["memory_reported"]
_D_CORE_CAP, _D_MEMORY_CAP = _DEVICE["core_cap"], _DEVICE["memory_cap"]
_D_CORE_USED, _D_MEMORY_USED = _DEVICE["core_used"], _DEVICE["memory_used"]
_D_TENANTS, _D_EXCLUSIVE = _DEVICE["tenants"], _DEVICE["exclusive_holders"]
_D_CORE_OTHER, _D_MEMORY_OTHER = _DEVICE["core_observed"], _DEVICE["memory_observed"]
_D_OTHERS: Final = _DEVICE["observed_holders"]
_C_REPORTED, _C_MAX, _C_USED = _CPU["ref_reported"], _CPU["ref_max"], _CPU["ref_used"]
_C_NODE: Final = _CPU["node_no"]
_NODE: Final = [column.name for column in schema.ledger_nodes.columns]
_N_LOST: Final = _NODE.index("lost_position")
_C_OTHERS, _C_PRESENT, _C_FACT = _CPU["ref_observed"], _CPU["present"], _CPU["fact_position"]
HISTORY: Final = (
    schema.ledger_reservations,
    schema.ledger_holdings,
    schema.ledger_cpu_holdings,
    schema.ledger_slot_holdings,
    schema.ledger_device_health,
    schema.ledger_refusals,
    schema.ledger_planned_cards,
)


class Proof:
    """Give it every event in order, then `finish`; it reports what does not hold."""

    def __init__(self, connection: Connection, report: Report) -> None:
        self._connection = connection
        self._report = report
        self._projection = Projection({}, self._take)
        self._recorded = {table: SortedRows(connection, table, report) for table in HISTORY}
        self._machines: dict[int, list[Any]] = {}
        self._nodes: dict[int, list[Any]] = {}
        self._stands: dict[tuple[int, int], list[Any]] = {}  # by node and machine
        self._twins: dict[tuple[str, str], list[int]] = {}  # devices by type and id
        self._unnamed: dict[tuple[str, int, int], int] = {}  # those without, by type, node, minor
        self._devices: dict[int, list[Any]] = {}
        self._cpus: dict[tuple[int, int], list[Any]] = {}
        self._alone: Counter[tuple[int, int]] = Counter()  # holders that share a CPU with nobody
        self._slots: dict[tuple[int, str], int] = {}  # open holders, granted or not
        self._open: dict[int, _Open] = {}
        self._places: dict[int, tuple[Row, Row | None]] = {}  # expected and found, by device
        self._handlers: Mapping[Statement, Callable[[Row], None]] = {
            statements.MACHINE: self._machine,
            statements.UPDATE_MACHINE: self._machine_facts,
            statements.LOSE_NODE: self._node_lost,
            statements.LOSE: self._lost,
            statements.NODE: self._node,
            statements.UPDATE_NODE: self._node_facts,
            statements.STAND: self._stand,
            statements.UPDATE_STAND: self._stand_facts,
            statements.DEVICE: self._device,
            statements.UPDATE_DEVICE: self._device_facts,
            statements.CPU: self._cpu,
            statements.UPDATE_CPU: self._cpu_facts,
            statements.RESERVATION: self._reserved,
            statements.HOLDING: self._held,
            statements.CPU_HOLDING: self._cpu_held,
            statements.SLOT_HOLDING: self._slot_held,
            statements.PHASE: self._phase,
            statements.CLOSE: self._closed,
            statements.HEALTH: self._health,
            statements.REFUSAL: self._refused,
            statements.PLACE: self._waits,
            statements.CLOSE_PLACE: self._waits_no_more,
        }
        self._waits_for(self._projection)

    def add(self, position: int, at_us: int, event: LedgerEvent) -> None:
        """Check one event against the state that the events before it left."""
        try:
            self._projection.add(position, at_us, event)
        except CapacityError as error:
            self._report(position, str(error))
        self._take()

    def finish(self) -> None:
        """Compare what is open now, and every counter, with the tables."""
        for position, held in self._open.items():
            self._compare_end(position, held, (None, None, None))
        for must, found in self._places.values():
            self._compare_place(must, found, (None, None))
        for recorded in self._recorded.values():
            recorded.finish()
        self._compare(schema.ledger_machines, self._machines.values())
        self._compare(schema.ledger_nodes, self._nodes.values())
        self._compare(schema.ledger_stands, [self._stands[key] for key in sorted(self._stands)])
        self._compare(schema.ledger_devices, self._devices.values())
        self._compare(schema.ledger_cpus, [self._cpus[key] for key in sorted(self._cpus)])

    def close(self) -> None:
        """Let go of every query, proved or not."""
        for recorded in self._recorded.values():
            recorded.close()

    def _waits_for(self, projection: Projection) -> None:
        """Take the rows that this projection collects; its lists stay the same."""
        self._projection = projection
        self._collected = tuple(projection.rows.values())
        self._handled = tuple(
            (self._handlers[each], rows) for each, rows in projection.rows.items()
        )

    def _take(self) -> None:
        for handle, rows in compress(self._handled, self._collected):  # few of them hold any
            for row in sorted(rows, key=_by_key) if len(rows) > 1 else rows:
                handle(row)
            rows.clear()

    def _compare(self, table: Table, expected: Iterable[list[Any]]) -> None:
        recorded = SortedRows(self._connection, table, lambda _, text: self._report(None, text))
        keys = len(table.primary_key.columns)
        names = [column.name for column in table.columns]
        for row in expected:
            found = recorded.take(tuple(row[:keys]))
            if found is not None and found != tuple(row):
                self._differs(None, table.name, names, tuple(row), found)
        recorded.finish()
        recorded.close()

    def _differs(
        self, position: int | None, table: str, names: list[str], must: Row, found: Row
    ) -> None:
        wrong = ", ".join(
            f"{name}={there!r} (the events say {right!r})"
            for name, right, there in zip(names, must, found, strict=False)
            if right != there
        )
        self._report(position, f"{table} is not what the events say: key={must[:2]}, {wrong}")

    def _machine(self, row: Row) -> None:
        self._machines[row[0]] = list(row)

    def _machine_facts(self, row: Row) -> None:
        self._machines[row[-1]][1:] = row[:-1]

    def _node(self, row: Row) -> None:
        self._nodes[row[0]] = list(row)

    def _node_lost(self, row: Row) -> None:
        position, number = row
        self._nodes[number][_N_LOST] = position

    def _lost(self, row: Row) -> None:
        phase, *loss, opened = row
        held = self._open[opened]
        held.phase, held.lost = (phase, held.phase[1]), tuple(loss)

    def _node_facts(self, row: Row) -> None:
        self._nodes[row[-1]][2:] = row[:-1]

    def _stand(self, row: Row) -> None:
        self._stands[row[0], row[1]] = list(row)

    def _stand_facts(self, row: Row) -> None:
        self._stands[row[-2], row[-1]][2:] = row[:-2]

    def _device(self, row: Row) -> None:
        self._devices[row[0]] = list(row)
        self._known_by_id(self._devices[row[0]])

    def _device_facts(self, row: Row) -> None:
        device = self._devices[row[-1]]
        device[_D_NODE], device[_D_MINOR], device[_D_ID] = row[0:3]
        device[_D_UNIQUE], device[_D_MODEL] = row[3:5]
        device[_D_PRESENT], device[_D_HEALTHY] = row[5:7]
        device[_D_CORE], device[_D_MEMORY] = row[7:9]
        device[_D_FACT] = row[-2]
        _cap(device)
        self._known_by_id(device)

    def _known_by_id(self, device: list[Any]) -> None:
        if not device[_D_ID]:
            self._unnamed[device[_D_TYPE], device[_D_NODE], device[_D_MINOR]] = device[0]
            return
        twins = self._twins.setdefault((device[_D_TYPE], device[_D_ID]), [])
        if device[0] not in twins:
            twins.append(device[0])

    def _cpu(self, row: Row) -> None:
        self._cpus[row[0], row[1]] = list(row)

    def _cpu_facts(self, row: Row) -> None:
        cpu = self._cpus[row[-2], row[-1]]
        cpu[2:6] = row[0:4]
        cpu[_C_PRESENT], cpu[_C_REPORTED], cpu[_C_FACT] = row[4], row[5], row[8]
        cpu[_C_MAX] = max(cpu[_C_REPORTED], cpu[_C_USED])

    def _reserved(self, row: Row) -> None:
        position = row[0]
        found = self._recorded[schema.ledger_reservations].take((position,))
        alone = row[QOS_AT] == QosClass.LSE
        held = self._open[position] = _Open(row[1], row[PHASE], found, alone)
        if len(row) > LOST_AT:
            held.lost = row[LOST_AT:]
        if found is None:
            return
        if found[_BEFORE] != row[_BEFORE] or found[_BEHIND] != row[_BEHIND]:
            must = (*row[_BEFORE], *found[PHASE], *row[_BEHIND])
            self._differs(position, "ledger_reservations", _RESERVATION, must, found)

    def _part(self, table: Table, keys: int, row: Row) -> None:
        position = row[0]
        found = self._recorded[table].take(row[:keys])
        if found is None:
            return
        self._open[position].parts.append((table, found))
        if found[:-2] != row:
            names = [column.name for column in table.columns]
            self._differs(position, table.name, names, row, found)

    def _held(self, row: Row) -> None:
        self._part(schema.ledger_holdings, 2, row)
        position, number, _, core, memory, _, exclusive, _, kind, _ = row
        device = self._devices[number]
        if kind != GRANTED:
            device[_D_CORE_OTHER] += core
            device[_D_MEMORY_OTHER] += memory
            device[_D_OTHERS] += 1
        else:
            broken = self._broken(device, core, memory, exclusive)
            place = self._places.get(number)
            if place is not None and place[0][4] != self._open[position].pod_uid:
                broken = f"was promised while it waited for {place[0][4]} of group {place[0][3]}"
            if broken:
                self._report(position, f"{self._name(device)} {broken}")
            device[_D_CORE_USED] += core
            device[_D_MEMORY_USED] += memory
            device[_D_TENANTS] += 1
            device[_D_EXCLUSIVE] += exclusive
            _cap(device)
        self._open[position].shares.append(row)

    def _broken(self, device: list[Any], core: int, memory: int, exclusive: int) -> str:
        """
        Return what this grant breaks, empty if nothing.

        Rule: design section 4: capacity counts what was granted and what others hold.
        """
        core_left = device[_D_CORE] - device[_D_CORE_USED] - device[_D_CORE_OTHER]
        memory_left = device[_D_MEMORY] - device[_D_MEMORY_USED] - device[_D_MEMORY_OTHER]
        if core > core_left:
            return f"was promised beyond its core: {core} asked, {core_left} percent left"
        if memory > memory_left:
            return f"was promised beyond its memory: {memory} asked, {memory_left} bytes left"
        if device[_D_EXCLUSIVE] or (exclusive and (device[_D_TENANTS] or device[_D_OTHERS])):
            return "was promised to a second holder beside an exclusive one"
        if not device[_D_PRESENT] or not device[_D_HEALTHY]:
            return "was promised while it was closed"
        if self._slots and self._unknown(device):
            return "was promised while a Pod held an unknown card of its node"
        if device[_D_UNIQUE] and self._claimed_twice(device):
            return "was promised while another machine claimed it too"
        if self._unnamed and device[_D_ID] and self._held_unnamed(device):
            return "was promised though it may be held from before it had an id"
        if device[_D_OTHERS] and (
            device[_D_CORE_OTHER] >= device[_D_CORE]
            or 0 < device[_D_MEMORY] <= device[_D_MEMORY_OTHER]
        ):
            return "was promised while others held it"
        return ""

    def _held_unnamed(self, device: list[Any]) -> bool:
        """Tell whether the node had a device without an id at this minor, which is held."""
        number = self._unnamed.get((device[_D_TYPE], device[_D_NODE], device[_D_MINOR]))
        if number in {None, device[0]}:
            return False
        unnamed = self._devices[number]
        return not unnamed[_D_ID] and bool(unnamed[_D_TENANTS] or unnamed[_D_OTHERS])

    def _claimed_twice(self, device: list[Any]) -> bool:
        twins = self._twins.get((device[_D_TYPE], device[_D_ID]), ())
        if len(twins) < 2:
            return False
        others = (self._devices[number] for number in twins if number != device[0])
        return any(each[_D_PRESENT] or each[_D_TENANTS] or each[_D_OTHERS] for each in others)

    def _name(self, device: list[Any]) -> str:
        node = self._nodes[device[_D_NODE]][2]
        return f"card {node}/{device[_D_TYPE]}/{device[_D_MINOR]} ({device[_D_ID]})"

    def _cpu_held(self, row: Row) -> None:
        self._part(schema.ledger_cpu_holdings, 2, row)
        position, cpu_id, machine_no, kind, _ = row
        cpu = self._cpus[machine_no, cpu_id]
        alone = self._open[position].alone
        if kind != GRANTED:
            cpu[_C_OTHERS] += 1
        else:
            held = cpu[_C_USED] + cpu[_C_OTHERS]
            name = f"cpu {self._nodes[cpu[_C_NODE]][2]}/cpu/{cpu_id}"
            if held >= cpu[_C_REPORTED] or not cpu[_C_PRESENT]:
                fact = f"was promised beyond its holders: {held} of {cpu[_C_REPORTED]}"
                self._report(position, f"{name} {fact}")
            if held and (alone or self._alone[machine_no, cpu_id]):
                self._report(position, f"{name} of an LSE Pod was promised to a second holder")
            cpu[_C_USED] += 1
            cpu[_C_MAX] = max(cpu[_C_REPORTED], cpu[_C_USED])
        self._alone[machine_no, cpu_id] += alone
        self._open[position].cpus.append(row)

    def _slot_held(self, row: Row) -> None:
        self._part(schema.ledger_slot_holdings, 2, row)
        position, slot, machine_no, number, kind, _ = row
        holders = self._slots.get((machine_no, slot), 0)
        if kind == GRANTED and holders:
            name = f"slot {self._nodes[self._devices[number][_D_NODE]][2]}/{slot}"
            self._report(position, f"{name} was promised to a second holder")
        self._slots[machine_no, slot] = holders + 1

    def _phase(self, row: Row) -> None:
        self._open[row[-1]].phase = row[:-1]

    def _closed(self, row: Row) -> None:
        phase, at_us, position, reason, opened = row
        held = self._open.pop(opened)
        held.phase = (phase, held.phase[1])
        self._compare_end(opened, held, (at_us, position, reason))
        for share in held.shares:
            self._give_back(self._devices[share[1]], share)
        for _, cpu_id, machine_no, kind, _ in held.cpus:
            cpu = self._cpus[machine_no, cpu_id]
            cpu[_C_USED if kind == GRANTED else _C_OTHERS] -= 1
            self._alone[machine_no, cpu_id] -= held.alone
            cpu[_C_MAX] = max(cpu[_C_REPORTED], cpu[_C_USED])
        for table, part in held.parts:
            if table is schema.ledger_slot_holdings:
                self._free_slot(part[2], part[1])

    def _free_slot(self, machine_no: int, slot: str) -> None:
        holders = self._slots.pop((machine_no, slot), 0)
        if holders > 1:
            self._slots[machine_no, slot] = holders - 1

    def _give_back(self, device: list[Any], share: Row) -> None:
        core, memory, exclusive, kind = share[3], share[4], share[6], share[8]
        if kind != GRANTED:
            device[_D_CORE_OTHER] -= core
            device[_D_MEMORY_OTHER] -= memory
            device[_D_OTHERS] -= 1
            return
        device[_D_CORE_USED] -= core
        device[_D_MEMORY_USED] -= memory
        device[_D_TENANTS] -= 1
        device[_D_EXCLUSIVE] -= exclusive
        _cap(device)

    def _compare_end(self, position: int, held: _Open, end: Row) -> None:
        """
        Compare how a reservation and its parts are recorded to have ended, if at all.

        An event that should have ended it is named too: it may be one that never did.
        """
        found = held.reservation
        if found is not None and (found[PHASE] != held.phase or found[LOST_AT:] != held.lost + end):
            recorded = (*found[PHASE], *found[LOST_AT:])
            must = (*held.phase, *held.lost, *end)
            names = [*_RESERVATION[PHASE], *_RESERVATION[LOST_AT:]]
            self._differs(position, "ledger_reservations", names, must, recorded)
            if end[1] is not None and found[CLOSED_BY] != end[1]:
                fact = f"ends the reservation at position {position}"
                self._report(end[1], f"the event {fact}, and its row does not say so")
        closed = end[:2]
        for table, part in held.parts:
            if part[-2:] != closed:
                names = ["closed_at_us", "closed_position"]
                self._differs(position, table.name, names, closed, part[-2:])

    def _health(self, row: Row) -> None:
        self._written(schema.ledger_device_health, 2, row)

    def _refused(self, row: Row) -> None:
        self._written(schema.ledger_refusals, 1, row)

    def _waits(self, row: Row) -> None:
        """Check a place that a plan opens: on a whole card that nobody has or waits for."""
        position, number, _, group, pod_uid, _ = row
        device = self._devices[number]
        fact = ""
        if number in self._places:
            fact = "already waited for a group"
        elif device[_D_TENANTS] or device[_D_OTHERS] or self._unknown(device):
            fact = "had holders"
        elif not device[_D_PRESENT] or not device[_D_HEALTHY]:
            fact = "was closed"
        if fact:
            text = f"{self._name(device)} {fact} when it came to wait for {pod_uid} of {group}"
            self._report(position, text)
        found = self._recorded[schema.ledger_planned_cards].take((position, number))
        if found is not None and found[:-2] != row:
            self._differs(position, "ledger_planned_cards", PLACE, row, found)
        self._places[number] = (row, found)

    def _waits_no_more(self, row: Row) -> None:
        at_us, position, _, number = row
        must, found = self._places.pop(number)
        self._compare_place(must, found, (at_us, position))

    def _compare_place(self, must: Row, found: Row | None, end: Row) -> None:
        if found is not None and found[-2:] != end:
            self._differs(must[0], "ledger_planned_cards", PLACE, (*must, *end), found)

    def _unknown(self, device: list[Any]) -> bool:
        return (device[_D_MACHINE], f"unknown/{device[_D_TYPE]}") in self._slots

    def _written(self, table: Table, keys: int, row: Row) -> None:
        found = self._recorded[table].take(row[:keys])
        if found is not None and found != row:
            names = [column.name for column in table.columns]
            self._differs(row[0], table.name, names, row, found)


def _by_key(row: Row) -> Row:
    return row[:2]


def _cap(device: list[Any]) -> None:
    core, used = device[_D_CORE], device[_D_CORE_USED]
    device[_D_CORE_CAP] = core if core > used else used  # noqa: FURB136 - a call of max costs more
    memory, used = device[_D_MEMORY], device[_D_MEMORY_USED]
    device[_D_MEMORY_CAP] = memory if memory > used else used  # noqa: FURB136 - likewise
