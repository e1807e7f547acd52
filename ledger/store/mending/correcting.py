"""A clock that was off: an event says when it really was, and the audit views tell it."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, func, not_, select

from ledger.domain.bounds import AT
from ledger.domain.errors import InputError
from ledger.domain.log.events import TimeCorrected
from ledger.store import schema
from ledger.store.archives.segments import last_segment
from ledger.store.failures import advised
from ledger.store.mending.acts import TIMES, record_act, tell_true_times, true_time
from ledger.store.open import Ledger
from ledger.store.writing.append import Writer

_SECOND_US: Final = 1_000_000
_events: Final = schema.ledger_events.c
_OWNS: Final = """
SELECT bool_and(pg_has_role(relowner, 'USAGE')) FROM pg_catalog.pg_class
WHERE relnamespace = 'public'::regnamespace AND relkind = 'v' AND starts_with(relname, 'audit_')
"""


def check_correction(ledger: Ledger, event: TimeCorrected) -> tuple[int, int]:
    """
    Return the true times of the first and the last position, which the event may correct.

    Rule: docs/adr/0012.

    Raises:
        InputError: there are no such positions in the log, the times are outside of the calendar
            or before the ledger began, or the role may not change the views.
    """
    with ledger.connection.begin():
        expect_right(ledger, _OWNS, "correct times")  # it changes views
        _expect_in_log(ledger.connection, event)
        first_us, earliest, latest, last_us = _moved(ledger.connection, event)
        began_us = _began(ledger.connection)
    after_began = earliest >= (began_us if event.first > 1 else AT[0])
    if not after_began:
        raise InputError("the times would be before the ledger began", field="shift")
    if latest > AT[1]:
        raise InputError("the times would be behind year 9999", field="shift")
    return first_us, last_us


def correct(writer: Writer, event: TimeCorrected, *, wall_us: int) -> int:
    """
    Record the correction, put true times into the views, and return the position of the event.

    Raises:
        FencedError, LedgerError: as `record_act`.
    """
    name = f"correct:{event.first}-{event.last}"
    return record_act(writer, event, name, wall_us=wall_us, beside=tell_true_times)


def false_correction(event: TimeCorrected, position: int) -> str:
    """Return why an event at this position corrects nothing, empty if it does."""
    if 1 <= event.first <= event.last < position:
        return ""
    return f"the event corrects times that are not before it: {event.first} to {event.last}"


def outside_of_calendar(connection: Connection) -> int | None:
    """Return the first position whose true time no calendar has, None if there is none."""
    query = select(func.min(TIMES.c.position)).where(not_(TIMES.c.at_us.between(*AT)))
    found: int | None = connection.execute(query).scalar()
    return found


def expect_right(ledger: Ledger, query: str, act: str) -> None:
    """Raise InputError where a query says that Postgres does not let the role do an owner's act."""
    connection = ledger.connection
    if connection.dialect.name == "postgresql" and not connection.exec_driver_sql(query).scalar():
        error = InputError(f"this role may not {act}", place=ledger.url)
        raise advised(error, "connect as ledger_migrator, see docs/operations.md")


def _expect_in_log(connection: Connection, event: TimeCorrected) -> None:
    head = connection.execute(select(schema.ledger_head.c.position)).scalar_one()
    if not 1 <= event.first <= event.last <= head:
        raise InputError(f"no such positions: first={event.first}, last={event.last}, head={head}")
    segment = last_segment(connection)
    if segment is not None and event.first <= segment.last + 1:
        raise InputError(
            f"the events before position {segment.last + 1} are in an archive, and with the next"
            f" one their times stay: first={event.first}"
        )


def _began(connection: Connection) -> int:
    query = select(_events.at_us).where(_events.position == 1)
    return true_time(connection, 1, connection.execute(query).scalar_one())


def _moved(connection: Connection, event: TimeCorrected) -> tuple[int, int, int, int]:
    e = _events
    query = (
        select(e.at_us, e.wall_us)
        .where(e.position.between(event.first, event.last))
        .order_by(e.position)
    )
    shift_us = event.shift_seconds * _SECOND_US
    moved = [(wall_us or at_us) + shift_us for at_us, wall_us in connection.execute(query)]
    return moved[0], min(moved), max(moved), moved[-1]
