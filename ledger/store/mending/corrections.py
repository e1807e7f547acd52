"""Corrections of the clock: what the log says of true times, and which views tell them."""

from __future__ import annotations

from typing import Final

from sqlalchemy import ColumnElement, Connection, column, func, literal_column, select, table

from ledger.domain.log.events import TimeCorrected
from ledger.store import schema
from ledger.store.ddl.audit_views import corrected_views
from ledger.store.ddl.words import Database
from ledger.store.mending.voids import void_event, voids_of

TIMES: Final = table("audit_times", column("position"), column("recorded_at_us"), column("at_us"))
"""The events whose times a correction concerns; empty without one."""
_events: Final = schema.ledger_events.c
_TYPE: Final[ColumnElement[str]] = literal_column(
    f"'{TimeCorrected.event_type}'"
)  # a value would hide the index
_ALL: Final = select(_events.position, _events.leaf_hash).where(_events.event_type == _TYPE)


def is_corrected(connection: Connection) -> bool:
    """Tell whether the clock was ever corrected, in the transaction that is open."""
    found = connection.execute(_ALL).all()
    voids = voids_of(connection) if found else {}
    return any(void_event(voids, position, bytes(leaf)) is None for position, leaf in found)


def first_corrected(connection: Connection) -> int | None:
    """Return the first position that true times are kept for, None without a correction."""
    if not is_corrected(connection):
        return None
    found: int | None = connection.execute(select(func.min(TIMES.c.position))).scalar()
    return found


def true_time(connection: Connection, position: int, at_us: int) -> int:
    """Return when the event at this position was recorded, by a clock that is right."""
    if not is_corrected(connection):
        return at_us
    query = select(TIMES.c.at_us).where(TIMES.c.position == position)
    found: int | None = connection.execute(query).scalar()
    return at_us if found is None else found


def tell_true_times(connection: Connection) -> None:
    """Put the views of a corrected ledger in their places, in the transaction that is open."""
    database: Database = "postgresql" if connection.dialect.name == "postgresql" else "sqlite"
    for name, text in corrected_views(database).items():
        if database == "postgresql":  # in place, for its rights stay
            text = text.replace("CREATE VIEW", "CREATE OR REPLACE VIEW", 1)  # noqa: PLW2901
        else:
            connection.exec_driver_sql(f"DROP VIEW {name}")
        connection.exec_driver_sql(text, execution_options={"no_parameters": True})
