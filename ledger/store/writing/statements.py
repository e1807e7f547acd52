"""
SQL texts for the driver, compiled once from the tables.

A row through Core would cost more than the row itself (docs/adr on sync store functions), so the
hot statements go to the driver as text with tuples.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.sql.dml import Insert, Update
from sqlalchemy.sql.elements import BindParameter

from ledger.store import schema

Row = tuple[Any, ...]


class Statement:
    """A statement with the names of its parameters, in the order in which a row gives them."""

    def __init__(self, construct: Insert | Update, *parameters: str) -> None:
        self.construct = construct
        self.parameters = parameters
        self._texts: dict[str, str] = {}

    def text(self, connection: sa.Connection) -> str:
        """Return the SQL in the words of the connection's driver."""
        driver = connection.dialect.driver
        if driver not in self._texts:
            names = list(self.parameters)
            compiled = self.construct.compile(dialect=connection.dialect, column_keys=names)
            order = getattr(compiled, "positiontup", None)
            assert order == names, (order, names)
            self._texts[driver] = str(compiled)
        return self._texts[driver]

    def run(self, connection: sa.Connection, rows: list[Row]) -> int:
        """Execute for every row in order; return how many rows of the table were touched."""
        if len(rows) == 1:
            return connection.exec_driver_sql(self.text(connection), rows[0]).rowcount
        if not connection.dialect.supports_sane_multi_rowcount:
            return sum(self.run(connection, [row]) for row in rows)
        return connection.exec_driver_sql(self.text(connection), rows).rowcount


def _insert(table: sa.Table, *, without: tuple[str, ...] = ()) -> Statement:
    names = [column.name for column in table.columns if column.name not in without]
    return Statement(sa.insert(table), *names)


def _update(
    table: sa.Table,
    *columns: str,
    where: tuple[str, ...],
    not_below: Mapping[str, str] = MappingProxyType({}),
) -> Statement:
    """
    Return the statement that takes new values of these columns, in the table's order, then the key.

    One that is never below another column of the row takes its value twice.
    """
    parameters: list[str] = []
    values: dict[str, sa.ColumnElement[Any]] = {}
    for name in columns:
        given: list[BindParameter[Any]] = [sa.bindparam(f"to_{name}")]
        values[name] = given[0]
        if name in not_below:
            least = table.c[not_below[name]]
            given.append(sa.bindparam(f"else_{name}"))
            values[name] = sa.case((least > given[0], least), else_=given[1])
        parameters += [each.key for each in given]
    found = (table.c[name] == sa.bindparam(f"of_{name}") for name in where)
    construct = sa.update(table).where(*found).values(values)
    return Statement(construct, *parameters, *(f"of_{name}" for name in where))


_CLOSING: Final = ("closed_at_us", "closed_position")
_LATER: Final = ("lost_position", "counted_until_us", "lost_boot_id", *_CLOSING, "end_reason")
_head: Final = schema.ledger_head.c

MOVE_HEAD: Final = Statement(
    sa.update(schema.ledger_head)
    .where(
        _head.id == sa.literal_column("1"),
        _head.epoch == sa.bindparam("e"),
        _head.position == sa.bindparam("p"),
    )
    .values(
        position=sa.bindparam("position"),
        at_us=sa.bindparam("at_us"),
        chain_hash=sa.bindparam("hash"),
    ),
    *("position", "at_us", "hash", "e", "p"),
)
"""The compare-and-set: touches no row once another writer has moved the head or the epoch."""

EVENT: Final = _insert(schema.ledger_events)
MACHINE: Final = _insert(schema.ledger_machines)
NODE: Final = _insert(schema.ledger_nodes)
STAND: Final = _insert(schema.ledger_stands)
DEVICE: Final = _insert(schema.ledger_devices)
CPU: Final = _insert(schema.ledger_cpus)
RESERVATION: Final = _insert(schema.ledger_reservations, without=_LATER)
HOLDING: Final = _insert(schema.ledger_holdings, without=_CLOSING)
CPU_HOLDING: Final = _insert(schema.ledger_cpu_holdings, without=_CLOSING)
SLOT_HOLDING: Final = _insert(schema.ledger_slot_holdings, without=_CLOSING)
HEALTH: Final = _insert(schema.ledger_device_health)
REFUSAL: Final = _insert(schema.ledger_refusals)
PLACE: Final = _insert(schema.ledger_planned_cards, without=_CLOSING)
TILE: Final = _insert(schema.ledger_tiles)

PHASE: Final = _update(schema.ledger_reservations, "phase", "phase_position", where=("position",))
CLOSE: Final = _update(
    schema.ledger_reservations, "phase", *_CLOSING, "end_reason", where=("position",)
)
"""Ends a reservation; triggers end its holdings with it and give back what they took."""

LOSE: Final = _update(
    schema.ledger_reservations,
    *("phase", "lost_position", "counted_until_us", "lost_boot_id"),
    where=("position",),
)
"""What a lost node's Pods hold is counted no further, and stays held."""

CLOSE_PLACE: Final = _update(
    schema.ledger_planned_cards, *_CLOSING, where=("position", "device_no")
)

UPDATE_NODE: Final = _update(
    schema.ledger_nodes,
    *schema.ledger_nodes.columns.keys()[2:],
    where=("node_no",),
)
UPDATE_MACHINE: Final = _update(
    schema.ledger_machines, "system_uuid", "machine_id", "fact_position", where=("machine_no",)
)
UPDATE_STAND: Final = _update(
    schema.ledger_stands,
    *("boot_id", "by_agent", "fact_position"),
    where=("node_no", "machine_no"),
)
LOSE_NODE: Final = _update(schema.ledger_nodes, "lost_position", where=("node_no",))
UPDATE_DEVICE: Final = _update(
    schema.ledger_devices,
    *("node_no", "minor", "device_id", "unique_id", "model", "present", "healthy"),
    *("core_reported", "memory_reported", "core_cap", "memory_cap", "fact_position"),
    where=("device_no",),
    not_below={"core_cap": "core_used", "memory_cap": "memory_used"},
)
UPDATE_CPU: Final = _update(
    schema.ledger_cpus,
    *("node_no", "core", "socket", "numa", "present", "ref_reported", "ref_max", "fact_position"),
    where=("machine_no", "cpu"),
    not_below={"ref_max": "ref_used"},
)
"""Facts follow the inventory; what is used stays, and what there is never falls below it."""
