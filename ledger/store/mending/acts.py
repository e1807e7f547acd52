"""Acts of those who mend a ledger: how one is recorded; what the log voids, withdraws, corrects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import InputError
from ledger.domain.log import events
from ledger.domain.log.recorded import NewEvent
from ledger.store import schema
from ledger.store.ddl.audit_views import corrected_views
from ledger.store.ddl.words import Database
from ledger.store.failures import unavailable
from ledger.store.reading.tables import rows_of
from ledger.store.writing.append import Writer

_Act = TypeVar("_Act", events.PositionVoided, events.CheckpointWithdrawn, events.KeyRotated)
Voids = Mapping[int, AbstractSet[str]]
"""Position -> the leaf hash, hex, of what is void there; of several only one can be its event's."""
NO_VOIDS: Final[Voids] = MappingProxyType({})
_events: Final = schema.ledger_events.c
_checkpoints: Final = schema.ledger_checkpoints.c

_NOTES: Final[Mapping[str, sa.Select[Any]]] = {
    dialect: sa.select(_checkpoints.size, as_bytes).order_by(_checkpoints.size)
    for dialect, as_bytes in (
        ("sqlite", sa.cast(_checkpoints.note, sa.LargeBinary)),
        ("postgresql", sa.literal_column("convert_to(note, 'UTF8')")),
    )
}
TIMES: Final = sa.table(
    "audit_times", sa.column("position"), sa.column("recorded_at_us"), sa.column("at_us")
)
"""The events whose times a correction concerns; empty without one."""

_TYPE: Final[sa.ColumnElement[str]] = sa.literal_column(
    f"'{events.TimeCorrected.event_type}'"
)  # a value would hide the index
_ALL: Final = sa.select(_events.position, _events.leaf_hash).where(_events.event_type == _TYPE)


def record_act(
    writer: Writer,
    event: events.LedgerEvent,
    name: str,
    *,
    wall_us: int,
    beside: Callable[[sa.Connection], None] | None = None,
) -> int:
    """
    Record an act and return its position; the same act may be repeated at another one.

    Args:
        name: tells acts apart that are recorded at one position, such as `void:12`.
        beside: writes what goes with it, in the same transaction.

    Raises:
        FencedError: another writer took over.
        LedgerError: the database failed; nothing is recorded.
    """
    new = NewEvent(
        stream="sys",
        event=event,
        actor=writer.head.holder,
        idempotency_key=f"{name}:{writer.head.position}",
        wall_us=wall_us,
    )
    try:
        return writer.commit([new], beside=beside)
    except DBAPIError as error:
        raise unavailable(error) from error


def voids_of(connection: sa.Connection) -> Voids:
    """Return what the log declares void, in the transaction that is open; `verify` proves it."""
    found: dict[int, set[str]] = {}
    for _, event in readable(connection, events.PositionVoided):
        found.setdefault(event.position, set()).add(event.leaf_hash)
    return found


def readable(
    connection: sa.Connection, kind: type[_Act], *columns: sa.ColumnElement[Any]
) -> Iterator[tuple[Any, _Act]]:
    """
    Yield rows of these columns, and events of a type, in order.

    What can't be read has no effect, and `verify` names it. A column that is not asked for may be
    damaged.
    """
    query = (
        sa.select(_events.body, *columns)
        .where(_events.event_type == kind.event_type)
        .order_by(_events.position)
    )
    for row in connection.execute(query):
        with suppress(InputError):
            event = events.decode_event(kind.event_type, row.body)
            assert isinstance(event, kind), event
            yield row, event


def void_event(voids: Voids, position: int, leaf: bytes) -> events.PositionVoided | None:
    """Return what stands for the event at this position, if its words are void."""
    if position not in voids or leaf.hex() not in voids[position]:
        return None
    return events.PositionVoided(position=position, leaf_hash=leaf.hex(), reason="")


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """What an event says of one kept checkpoint, and who recorded it; `verify` judges it."""

    position: int
    actor: str
    event: events.CheckpointWithdrawn


Withdrawals = Mapping[tuple[int, str], Withdrawal]
"""The first withdrawal of each checkpoint, by its size and the hash of its note, hex."""
NO_WITHDRAWALS: Final[Withdrawals] = MappingProxyType({})


def withdrawals_of(connection: sa.Connection, voids: Voids) -> Withdrawals:
    """Return what the log withdraws, in the transaction that is open."""
    found: dict[tuple[int, str], Withdrawal] = {}
    for row, event in readable(
        connection, events.CheckpointWithdrawn, _events.position, _events.actor, _events.leaf_hash
    ):
        if not void_event(voids, row.position, bytes(row.leaf_hash)):
            withdrawal = Withdrawal(position=row.position, actor=row.actor, event=event)
            found.setdefault((event.size, event.note_hash), withdrawal)
    return found


def kept_notes(connection: sa.Connection) -> Iterator[tuple[int, bytes]]:
    """
    Yield the checkpoints that the ledger stores, by size: notes as bytes, whatever they are.

    Raises:
        UnreadableError: a page is damaged.
    """
    yield from rows_of(connection, _NOTES[connection.dialect.name])


def note_hash(note: bytes) -> str:
    """Return by which hash an event names a note."""
    return sha256(note).hexdigest()


def is_corrected(connection: sa.Connection) -> bool:
    """Tell whether the clock was ever corrected, in the transaction that is open."""
    found = connection.execute(_ALL).all()
    voids = voids_of(connection) if found else {}
    return any(void_event(voids, position, bytes(leaf)) is None for position, leaf in found)


def first_corrected(connection: sa.Connection) -> int | None:
    """Return the first position that true times are kept for, None without a correction."""
    if not is_corrected(connection):
        return None
    found: int | None = connection.execute(sa.select(sa.func.min(TIMES.c.position))).scalar()
    return found


def true_time(connection: sa.Connection, position: int, at_us: int) -> int:
    """Return when the event at this position was recorded, by a clock that is right."""
    if not is_corrected(connection):
        return at_us
    query = sa.select(TIMES.c.at_us).where(TIMES.c.position == position)
    found: int | None = connection.execute(query).scalar()
    return at_us if found is None else found


def tell_true_times(connection: sa.Connection) -> None:
    """Put the views of a corrected ledger in their places, in the transaction that is open."""
    database: Database = "postgresql" if connection.dialect.name == "postgresql" else "sqlite"
    for name, text in corrected_views(database).items():
        if database == "postgresql":  # in place, for its rights stay
            text = text.replace("CREATE VIEW", "CREATE OR REPLACE VIEW", 1)  # noqa: PLW2901
        else:
            connection.exec_driver_sql(f"DROP VIEW {name}")
        connection.exec_driver_sql(text, execution_options={"no_parameters": True})
