"""
A replay that checks as it goes: capacity at every position, and every projected row.

The events say which rows there must be and when each ended; the rows that are there are read along
in the same order, so that a ledger of any length is compared in the memory of what is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, compress
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import astuple
from sqlalchemy import Connection, Select, Table

from ledger.domain.annotations.qos import QosClass
from ledger.domain.errors import CapacityError
from ledger.domain.log.events import LedgerEvent
from ledger.domain.log.state import GRANTED
from ledger.store import schema
from ledger.store.projections.project import Projection
from ledger.store.proving.accounts import Accounts, Cpu, Device
from ledger.store.reading import tables
from ledger.store.writing import statements
from ledger.store.writing.statements import Row, Statement


class SortedRows:
    """The rows of one table, read in key order beside the events that explain them."""

    def __init__(
        self,
        connection: Connection,
        table: Table,
        report: tables.Report,
        query: Select[Any] | None = None,
    ) -> None:
        self._table = table
        self._name = table.name
        self._keys = len(table.primary_key.columns)
        self._report = report
        self._ended = False
        self._source = tables.row_pages(
            connection, tables.in_key_order(table) if query is None else query
        )
        self._rows = chain.from_iterable(self._typed(self._source))
        self._next = next(self._rows, None)

    def take(self, expected: Row) -> Row | None:
        """Return the row of this row's key; report the rows before it, which nothing explains."""
        key, row = expected[: self._keys], self._next
        if row is None or row[: self._keys] != key:
            row = self.skip(key)
        if row is None or row[: self._keys] != key:
            if not self._ended:
                self._report(key[0], f"{self._name} lacks the row of this event: key={key}")
            return None
        self._next = next(self._rows, None)
        return row

    def skip(self, key: Row | None = None) -> Row | None:
        """Report the rows before `key`, or all, which nothing explains; return the next."""
        while self._next is not None and (key is None or self._next[: self._keys] < key):
            found = self._next[: self._keys]
            self._report(found[0], f"{self._name} has a row that no event explains: key={found}")
            self._next = next(self._rows, None)
        return self._next

    def close(self) -> None:
        """Let go of the query."""
        self._source.close()

    def _typed(self, pages: Iterable[list[Row]]) -> Iterator[list[Row]]:
        """Yield the rows whose values are of their columns; report the others, and a broken end."""
        try:
            yield from tables.typed_pages(self._table, pages, self._report)
        except tables.UnreadableError as error:
            self._ended = True
            self._report(None, f"{self._name} is unreadable: {error}")


class _Open(Struct):
    """What one reservation must end as: its recorded rows, and what it takes meanwhile."""

    pod_uid: str
    phase: Row  # and the position of the event that said it
    reservation: Row | None
    alone: bool = False  # its CPUs have no other holder (CPU proposal, QoS principle 2)
    parts: list[tuple[Table, Row]] = []
    shares: list[Row] = []
    cpus: list[Row] = []
    lost: Row = (None, None, None)  # the loss: position, moment, newest boot id of the machine


_RESERVATION: Final = schema.ledger_reservations.columns.keys()
PHASE: Final = slice(_RESERVATION.index("phase"), _RESERVATION.index("phase_position") + 1)
QOS_AT: Final = _RESERVATION.index("qos")
LOST_AT: Final = len(statements.RESERVATION.parameters)
"""Where the columns begin that a loss fills in, and behind them those of the ending."""
_BEFORE: Final = slice(PHASE.start)
_BEHIND: Final = slice(PHASE.stop, LOST_AT)
"""The columns that never change, before those of the phase and behind them."""
CLOSED_BY: Final = _RESERVATION.index("closed_position")
_N_LOST: Final = schema.ledger_nodes.columns.keys().index("lost_position")
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

    def __init__(self, connection: Connection, report: tables.Report) -> None:
        self._connection = connection
        self._report = report
        self._projection = Projection({}, self._take)
        self._recorded = {table: SortedRows(connection, table, report) for table in HISTORY}
        self._accounts = Accounts()
        self._machines: dict[int, Row] = {}
        self._nodes: dict[int, Row] = {}
        self._stands: dict[tuple[int, int], Row] = {}  # by node and machine
        self._open: dict[int, _Open] = {}
        self._places: dict[int, tuple[Row, Row | None]] = {}  # expected and found, by device
        self._handlers: Mapping[Statement, Callable[[Row], object]] = {
            statements.MACHINE: self._machine,
            statements.UPDATE_MACHINE: self._machine_facts,
            statements.LOSE_NODE: self._node_lost,
            statements.LOSE: self._lost,
            statements.NODE: self._node,
            statements.UPDATE_NODE: self._node_facts,
            statements.STAND: self._stand,
            statements.UPDATE_STAND: self._stand_facts,
            statements.DEVICE: self._accounts.add_device,
            statements.UPDATE_DEVICE: self._accounts.update_device,
            statements.CPU: self._accounts.add_cpu,
            statements.UPDATE_CPU: self._accounts.update_cpu,
            statements.RESERVATION: self._reserved,
            statements.HOLDING: self._held,
            statements.CPU_HOLDING: self._cpu_held,
            statements.SLOT_HOLDING: self._slot_held,
            statements.PHASE: self._phase,
            statements.CLOSE: self._closed,
            statements.HEALTH: partial(self._compared, schema.ledger_device_health, ends=0),
            statements.REFUSAL: partial(self._compared, schema.ledger_refusals, ends=0),
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
            recorded.skip()
        for table, rows in self._facts().items():
            self._compare(table, rows)

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
            for row in sorted(rows, key=by_key) if len(rows) > 1 else rows:
                handle(row)
            rows.clear()

    def _facts(self) -> Mapping[Table, Iterable[Row]]:
        """Return what the tables must say of machines and what they have, in key order."""
        accounts = self._accounts
        return {
            schema.ledger_machines: self._machines.values(),
            schema.ledger_nodes: self._nodes.values(),
            schema.ledger_stands: (self._stands[key] for key in sorted(self._stands)),
            schema.ledger_devices: map(astuple, accounts.devices.values()),
            schema.ledger_cpus: (astuple(accounts.cpus[key]) for key in sorted(accounts.cpus)),
        }

    def _compare(self, table: Table, expected: Iterable[Row]) -> None:
        recorded = SortedRows(self._connection, table, lambda _, text: self._report(None, text))
        for row in expected:
            found = recorded.take(row)
            if found is not None and found != row:
                self._differs(None, table.name, table.columns.keys(), row, found)
        recorded.skip()
        recorded.close()

    def _differs(
        self, position: int | None, table: str, names: Sequence[str], must: Row, found: Row
    ) -> None:
        wrong = ", ".join(
            f"{name}={there!r} (the events say {right!r})"
            for name, right, there in zip(names, must, found, strict=False)
            if right != there
        )
        self._report(position, f"{table} is not what the events say: key={must[:2]}, {wrong}")

    def _machine(self, row: Row) -> None:
        self._machines[row[0]] = row

    def _machine_facts(self, row: Row) -> None:
        *facts, number = row
        self._machines[number] = (number, *facts)

    def _node(self, row: Row) -> None:
        self._nodes[row[0]] = row

    def _node_facts(self, row: Row) -> None:
        *facts, number = row
        self._nodes[number] = (*self._nodes[number][:2], *facts)

    def _node_lost(self, row: Row) -> None:
        position, number = row
        node = self._nodes[number]
        self._nodes[number] = (*node[:_N_LOST], position, *node[_N_LOST + 1 :])

    def _lost(self, row: Row) -> None:
        phase, *loss, opened = row
        held = self._open[opened]
        held.phase, held.lost = (phase, held.phase[1]), tuple(loss)

    def _stand(self, row: Row) -> None:
        self._stands[row[:2]] = row

    def _stand_facts(self, row: Row) -> None:
        self._stands[row[-2:]] = (*row[-2:], *row[:-2])

    def _reserved(self, row: Row) -> None:
        position = row[0]
        found = self._recorded[schema.ledger_reservations].take(row)
        alone = row[QOS_AT] == QosClass.LSE
        held = self._open[position] = _Open(row[1], row[PHASE], found, alone)
        if len(row) > LOST_AT:
            held.lost = row[LOST_AT:]
        if found is None:
            return
        if found[_BEFORE] != row[_BEFORE] or found[_BEHIND] != row[_BEHIND]:
            must = (*row[_BEFORE], *found[PHASE], *row[_BEHIND])
            self._differs(position, "ledger_reservations", _RESERVATION, must, found)

    def _part(self, table: Table, row: Row) -> None:
        found = self._compared(table, row)
        if found is not None:
            self._open[row[0]].parts.append((table, found))

    def _compared(self, table: Table, row: Row, ends: int = 2) -> Row | None:
        """Return the row that is there for this one; report where it, but its end, differs."""
        found = self._recorded[table].take(row)
        if found is not None and found[: len(found) - ends] != row:
            self._differs(row[0], table.name, table.columns.keys(), row, found)
        return found

    def _held(self, row: Row) -> None:
        self._part(schema.ledger_holdings, row)
        position, number, kind = row[0], row[1], row[8]
        held, broken = self._open[position], self._accounts.take(row)
        waiting = self._places.get(number) if kind == GRANTED else None
        if waiting is not None and waiting[0][4] != held.pod_uid:
            _, _, _, group, pod_uid, _ = waiting[0]
            broken = f"was promised while it waited for {pod_uid} of group {group}"
        if broken:
            self._report(position, f"{self._card(self._accounts.devices[number])} {broken}")
        held.shares.append(row)

    def _card(self, device: Device) -> str:
        place = f"{self._node_name(device)}/{device.device_type}/{device.minor}"
        return f"card {place} ({device.device_id})"

    def _node_name(self, part: Device | Cpu) -> str:
        name: str = self._nodes[part.node_no][2]
        return name

    def _cpu_held(self, row: Row) -> None:
        self._part(schema.ledger_cpu_holdings, row)
        position, cpu_id, machine_no, _, _ = row
        held = self._open[position]
        for fact in self._accounts.take_cpu(row, alone=held.alone):
            node = self._node_name(self._accounts.cpus[machine_no, cpu_id])
            self._report(position, f"cpu {node}/cpu/{cpu_id} {fact}")
        held.cpus.append(row)

    def _slot_held(self, row: Row) -> None:
        self._part(schema.ledger_slot_holdings, row)
        position, slot, machine_no, number, kind, _ = row
        if self._accounts.take_slot(machine_no, slot) and kind == GRANTED:
            node = self._node_name(self._accounts.devices[number])
            self._report(position, f"slot {node}/{slot} was promised to a second holder")

    def _phase(self, row: Row) -> None:
        self._open[row[-1]].phase = row[:-1]

    def _closed(self, row: Row) -> None:
        phase, at_us, position, reason, opened = row
        held = self._open.pop(opened)
        held.phase = (phase, held.phase[1])
        self._compare_end(opened, held, (at_us, position, reason))
        for share in held.shares:
            self._accounts.devices[share[1]].count(share, -1)
        for cpu in held.cpus:
            self._accounts.give_back_cpu(cpu, alone=held.alone)
        for table, part in held.parts:
            if table is schema.ledger_slot_holdings:
                self._accounts.give_back_slot(part[2], part[1])

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

    def _waits(self, row: Row) -> None:
        """Check a place that a plan opens: on a whole card that nobody has or waits for."""
        position, number, _, group, pod_uid, _ = row
        device = self._accounts.devices[number]
        fact = ""
        if number in self._places:
            fact = "already waited for a group"
        elif device.tenants or device.observed_holders or self._accounts.is_clouded(device):
            fact = "had holders"
        elif not device.present or not device.healthy:
            fact = "was closed"
        if fact:
            text = f"{self._card(device)} {fact} when it came to wait for {pod_uid} of {group}"
            self._report(position, text)
        self._places[number] = (row, self._compared(schema.ledger_planned_cards, row))

    def _waits_no_more(self, row: Row) -> None:
        at_us, position, _, number = row
        must, found = self._places.pop(number)
        self._compare_place(must, found, (at_us, position))

    def _compare_place(self, must: Row, found: Row | None, end: Row) -> None:
        if found is not None and found[-2:] != end:
            names = schema.ledger_planned_cards.columns.keys()
            self._differs(must[0], "ledger_planned_cards", names, (*must, *end), found)


def by_key(row: Row) -> Row:
    """Return the key of a row whose key is its first two columns."""
    return row[:2]
