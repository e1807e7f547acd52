"""
The proof of the projections from a segment's end on, and what is known at one's own end.

What was open at the segment's end is compared with the tables. Rows that had ended before are
explained by no event any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy import Connection, Select, Table, literal_column, or_

from ledger.store import schema
from ledger.store.archives.segments import START, End
from ledger.store.projections.known import (
    FACTS,
    OPEN,
    PlannedCardRow,
    PlannedCardRows,
    columns_of,
    known,
)
from ledger.store.projections.project import Projection
from ledger.store.proving import proof
from ledger.store.reading.tables import Report, in_key_order
from ledger.store.writing.statements import Row

_PARTS: Final = (
    schema.ledger_holdings,
    schema.ledger_cpu_holdings,
    schema.ledger_slot_holdings,
)


class ResumedProof(proof.Proof):
    """A `Proof` of the events behind `end` alone; the default end is before the first one."""

    def __init__(self, connection: Connection, report: Report, end: End = START) -> None:
        super().__init__(connection, report)
        if end.position:
            self.close()
            self._resume(end)

    def rows(self) -> Mapping[str, tuple[Row, ...]]:
        """Return what the tables must say now of facts and of what is open, as `End.rows`."""
        found: dict[str, list[Row]] = {table.name: [] for table in _PARTS}
        reservations: list[Row] = []
        for position in sorted(self._open):
            held = self._open[position]
            if held.reservation is not None:
                row = held.reservation[: proof.LOST_AT]
                now = (*row[: proof.PHASE.start], *held.phase, *row[proof.PHASE.stop :], *held.lost)
                reservations.append(now)
            for table, part in held.parts:
                found[table.name].append(part[:-2])
        return {
            **{table.name: tuple(rows) for table, rows in self._facts().items()},
            "ledger_reservations": tuple(reservations),
            **{name: tuple(sorted(rows, key=proof.by_key)) for name, rows in found.items()},
            "ledger_planned_cards": tuple(sorted(must for must, _ in self._places.values())),
        }

    def stop(self, position: int) -> None:
        """Report rows up to `position` that nothing explains, and those that ended too early."""
        for recorded in self._recorded.values():
            recorded.skip((position + 1,))
        for opened, held in self._open.items():
            ends = [part[-1] for _, part in held.parts]
            if held.reservation is not None:
                ends.append(held.reservation[proof.CLOSED_BY])
            if any(each is not None and each <= position for each in ends):
                self._compare_end(opened, held, (None, None, None))
        for must, found in self._places.values():
            if found is not None and found[-1] is not None and found[-1] <= position:
                self._compare_place(must, found, (None, None))

    def _resume(self, end: End) -> None:
        rows = end.rows
        for table, take in (
            (schema.ledger_machines, self._machine),
            (schema.ledger_nodes, self._node),
            (schema.ledger_stands, self._stand),
            (schema.ledger_devices, self._accounts.add_device),
            (schema.ledger_cpus, self._accounts.add_cpu),
        ):
            for row in rows[table.name]:
                take(row)
        facts = {
            table.name: columns_of(table, names, rows[table.name]) for table, names in FACTS.items()
        }
        held = schema.ledger_reservations
        nodes, machines = known(facts, columns_of(held, OPEN, rows[held.name]))
        self._waits_for(Projection(nodes, self._take, _places(rows), machines))
        self._recorded = self._readers(_open_at(end.position))
        for row in rows["ledger_reservations"]:
            self._reserved(row)
        for table in _PARTS:
            for row in rows[table.name]:
                self._part(table, row)
                self._count(table, row)
        for row in rows["ledger_planned_cards"]:
            self._places[row[1]] = (row, self._compared(schema.ledger_planned_cards, row))
        for recorded in self._recorded.values():
            recorded.skip()
        self.close()
        self._recorded = self._readers(
            lambda table: in_key_order(table).where(_position(table, ">", end.position))
        )

    def _readers(self, query: Callable[[Table], Select[Any]]) -> dict[Table, proof.SortedRows]:
        return {
            table: proof.SortedRows(self._connection, table, self._report, query(table))
            for table in proof.HISTORY
        }

    def _count(self, table: Table, row: Row) -> None:
        """Remember what a part gives back when it ends; the facts have it counted."""
        held = self._open.get(row[0])
        if table is schema.ledger_slot_holdings:
            self._accounts.take_slot(row[2], row[1])
        elif held is None:
            return
        elif table is schema.ledger_holdings:
            held.shares.append(row)
        else:
            held.cpus.append(row)
            self._accounts.leave_alone(row, alone=held.alone)


def _position(table: Table, operator: str, position: int) -> Any:  # noqa: ANN401 - a condition
    return literal_column(f"{table.name}.position {operator} {int(position)}")


def _open_at(position: int) -> Callable[[Table], Select[Any]]:
    """Return the query for the rows that were open behind the event at `position`."""

    def query(table: Table) -> Select[Any]:
        until = _position(table, "<=", position)
        if "closed_position" not in table.columns:
            return in_key_order(table).where(literal_column("1 = 0"))
        closed = table.columns["closed_position"]
        later: Any = literal_column(f"{table.name}.closed_position > {int(position)}")
        return in_key_order(table).where(until, or_(closed.is_(None), later))

    return query


def _places(rows: Mapping[str, tuple[Row, ...]]) -> PlannedCardRows:
    uids = {row[0]: row[1] for row in rows["ledger_nodes"]}
    return PlannedCardRows(
        PlannedCardRow(
            position=position, device_no=number, node_uid=uids[node_no], group=group, pod_uid=pod
        )
        for position, number, node_no, group, pod, _ in rows["ledger_planned_cards"]
    )
