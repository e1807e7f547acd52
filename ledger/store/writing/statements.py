"""
SQL texts for the driver, compiled once from the tables.

Passing Core for every row of an append would cost more than the row (notes in the ADR on sync store
functions), so the hot statements are handed to the driver as text with tuples.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Column, Connection, Table, bindparam, case, insert, literal_column, update
from sqlalchemy.sql.dml import Insert, Update
from sqlalchemy.sql.elements import BindParameter, Case

from ledger.store import schema

Row = tuple[Any, ...]


class Statement:
    """A statement with the names of its parameters, in the order in which a row gives them."""

    def __init__(self, construct: Insert | Update, *parameters: str) -> None:
        self.construct = construct
        self.parameters = parameters
        self._texts: dict[str, str] = {}

    def text(self, connection: Connection) -> str:
        """Return the SQL in the words of the connection's driver."""
        driver = connection.dialect.driver
        if driver not in self._texts:
            names = list(self.parameters)
            compiled = self.construct.compile(dialect=connection.dialect, column_keys=names)
            order = getattr(compiled, "positiontup", None)
            assert order == names, (order, names)
            self._texts[driver] = str(compiled)
        return self._texts[driver]

    def run(self, connection: Connection, rows: list[Row]) -> int:
        """Execute for every row in order; return how many rows of the table were touched."""
        if len(rows) == 1:
            return connection.exec_driver_sql(self.text(connection), rows[0]).rowcount
        if not connection.dialect.supports_sane_multi_rowcount:
            return sum(self.run(connection, [row]) for row in rows)
        return connection.exec_driver_sql(self.text(connection), rows).rowcount


def _insert(table: Table, *, without: tuple[str, ...] = ()) -> Statement:
    names = [column.name for column in table.columns if column.name not in without]
    return Statement(insert(table), *names)


_CLOSING: Final = ("closed_at_us", "closed_position")
_LATER: Final = ("lost_position", "counted_until_us", "lost_boot_id", *_CLOSING, "end_reason")
_head, _open = schema.ledger_head.c, schema.ledger_reservations.c
_nodes, _devices, _cpus = schema.ledger_nodes.c, schema.ledger_devices.c, schema.ledger_cpus.c


def _not_below(used: Column[int], reported: str) -> Case[int]:
    """Return what the unit must be taken to have: what is reported, or what is still promised."""
    first: BindParameter[int] = bindparam(f"{reported}_a")  # one value, given twice
    second: BindParameter[int] = bindparam(f"{reported}_b")
    return case((used > first, used), else_=second)


MOVE_HEAD: Final = Statement(
    update(schema.ledger_head)
    .where(
        _head.id == literal_column("1"),
        _head.epoch == bindparam("e"),
        _head.position == bindparam("p"),
    )
    .values(position=bindparam("position"), at_us=bindparam("at_us"), chain_hash=bindparam("hash")),
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
PLACE: Final = _insert(schema.ledger_places, without=_CLOSING)

PHASE: Final = Statement(
    update(schema.ledger_reservations)
    .where(_open.position == bindparam("p"))
    .values(phase=bindparam("phase"), phase_position=bindparam("said")),
    *("phase", "said", "p"),
)
CLOSE: Final = Statement(
    update(schema.ledger_reservations)
    .where(_open.position == bindparam("p"))
    .values(
        phase=bindparam("phase"),
        closed_at_us=bindparam("at"),
        closed_position=bindparam("end"),
        end_reason=bindparam("reason"),
    ),
    *("phase", "at", "end", "reason", "p"),
)
"""Ends a reservation; triggers end its holdings with it and give back what they took."""

LOSE: Final = Statement(
    update(schema.ledger_reservations)
    .where(_open.position == bindparam("p"))
    .values(
        phase=bindparam("phase"),
        lost_position=bindparam("lost"),
        counted_until_us=bindparam("until"),
        lost_boot_id=bindparam("boot"),
    ),
    *("phase", "lost", "until", "boot", "p"),
)
"""What a lost node's Pods hold is counted no further, and stays held."""

_places: Final = schema.ledger_places.c
CLOSE_PLACE: Final = Statement(
    update(schema.ledger_places)
    .where(_places.position == bindparam("p"), _places.device_no == bindparam("d"))
    .values(closed_at_us=bindparam("at"), closed_position=bindparam("end")),
    *("at", "end", "p", "d"),
)

_NODE_FACTS: Final = tuple(column.name for column in schema.ledger_nodes.columns)[2:]
UPDATE_NODE: Final = Statement(
    update(schema.ledger_nodes)
    .where(_nodes.node_no == bindparam("no"))
    .values({name: bindparam(f"to_{name}") for name in _NODE_FACTS}),
    *(f"to_{name}" for name in _NODE_FACTS),
    "no",
)
_machines: Final = schema.ledger_machines.c
UPDATE_MACHINE: Final = Statement(
    update(schema.ledger_machines)
    .where(_machines.machine_no == bindparam("no"))
    .values(
        system_uuid=bindparam("to_uuid"),
        machine_id=bindparam("to_id"),
        fact_position=bindparam("fact"),
    ),
    *("to_uuid", "to_id", "fact", "no"),
)
_stands: Final = schema.ledger_stands.c
UPDATE_STAND: Final = Statement(
    update(schema.ledger_stands)
    .where(_stands.node_no == bindparam("no"), _stands.machine_no == bindparam("machine"))
    .values(
        boot_id=bindparam("to_boot"),
        by_agent=bindparam("to_agent"),
        fact_position=bindparam("fact"),
    ),
    *("to_boot", "to_agent", "fact", "no", "machine"),
)
LOSE_NODE: Final = Statement(
    update(schema.ledger_nodes)
    .where(_nodes.node_no == bindparam("no"))
    .values(lost_position=bindparam("lost")),
    *("lost", "no"),
)
UPDATE_DEVICE: Final = Statement(
    update(schema.ledger_devices)
    .where(_devices.device_no == bindparam("no"))
    .values(
        node_no=bindparam("to_node"),
        minor=bindparam("to_minor"),
        device_id=bindparam("to_id"),
        unique_id=bindparam("to_unique"),
        model=bindparam("to_model"),
        present=bindparam("to_present"),
        healthy=bindparam("to_healthy"),
        core_reported=bindparam("core"),
        memory_reported=bindparam("memory"),
        core_cap=_not_below(_devices.core_used, "core"),
        memory_cap=_not_below(_devices.memory_used, "memory"),
        fact_position=bindparam("fact"),
    ),
    *("to_node", "to_minor", "to_id", "to_unique", "to_model", "to_present", "to_healthy"),
    *("core", "memory"),
    *("core_a", "core_b", "memory_a", "memory_b", "fact", "no"),
)
UPDATE_CPU: Final = Statement(
    update(schema.ledger_cpus)
    .where(_cpus.machine_no == bindparam("no"), _cpus.cpu == bindparam("id"))
    .values(
        node_no=bindparam("to_node"),
        core=bindparam("to_core"),
        socket=bindparam("to_socket"),
        numa=bindparam("to_numa"),
        present=bindparam("to_present"),
        ref_reported=bindparam("refs"),
        ref_max=_not_below(_cpus.ref_used, "refs"),
        fact_position=bindparam("fact"),
    ),
    *(
        "to_node",
        "to_core",
        "to_socket",
        "to_numa",
        "to_present",
        "refs",
        "refs_a",
        "refs_b",
        "fact",
    ),
    *("no", "id"),
)
"""Facts follow the inventory; what is used stays, and what there is never falls below it."""
