"""
Make every projection again from the events, and compare it with the one that is there.

Archived events are put back into the log meanwhile, where rules look events up. The rules of an
append stand aside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Table, delete, insert, select, table
from sqlalchemy import column as named_column
from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import CapacityError, CorruptLedgerError, InputError, LedgerError
from ledger.domain.log.events import LedgerEvent
from ledger.domain.log.quotes import Quotes
from ledger.domain.proofs.hashing import GENESIS
from ledger.store import schema
from ledger.store.archives.segment_files import SegmentFile
from ledger.store.archives.segments import segments_of
from ledger.store.ddl import postgres_guard, sqlite_triggers
from ledger.store.failures import advised, fact_of, refused_by_rule, unavailable
from ledger.store.mending.acts import voids_of
from ledger.store.open import Ledger
from ledger.store.profile_postgres import take_your_time
from ledger.store.projections.project import Projector
from ledger.store.proving.damage_postgres import rules_on
from ledger.store.reading.read import checked, checked_head, decoded
from ledger.store.reading.tables import (
    CONTRADICTION,
    UnreadableError,
    in_key_order,
    pages_of,
    rows_of,
)
from ledger.store.writing.statements import Row

DIFFERENCES_MAX: Final = 20
_RESTORE: Final = "run `tenure verify` for every finding, then restore a copy of the ledger"
_AT: Final = [column.name for column in schema.ledger_events.columns].index("at_us")
_IN_THE_WAY: Final = sqlite_triggers.REBUILDING
_TABLES: Final = (*schema.PROJECTIONS, schema.ledger_streams)
_PAGE_ROWS: Final = 1_000
_TRIGGERS: Final = (
    "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'ledger_events'"
)
_PARTITIONS: Final = (
    "SELECT inhrelid::regclass::text FROM pg_inherits"
    " WHERE inhparent = 'ledger_events'::regclass ORDER BY 1"
)
_names: Final = tuple(schema.ledger_events.columns.keys())


@dataclass(frozen=True, slots=True, kw_only=True)
class RebuildReport:
    """
    What `rebuild` found; nothing was written where the projections are `equal` to the events.

    `differences` are the first rows that were not, `untold` the first events that name what no
    event before them tells, both in words. `digest` is SHA-256 over every row of the projections
    now.
    """

    events: int
    equal: bool
    differences: tuple[str, ...]
    untold: tuple[str, ...]
    digest: str


def rebuild(ledger: Ledger, *, segments: Path | None = None) -> RebuildReport:
    """
    Replay every event into empty projections; keep them if the ones that were there differ.

    Rule: design section 4, "everything else can be dropped and rebuilt from it". All of it is one
    transaction: readers see the old rows or the new ones. The ledger must be open for writing.

    Args:
        segments: the folder of the archive, for a ledger whose first events moved there.

    Raises:
        InputError: events are in an archive, and its files are not at hand or not theirs.
        CorruptLedgerError: an event is not what was recorded; nothing was changed.
        LedgerError: the events themselves break a rule of the database; nothing was changed.
    """
    connection = ledger.connection
    try:
        with connection.begin() as transaction:
            if connection.dialect.name == "postgresql":
                take_your_time(connection)  # and no writer moves the head meanwhile
                connection.exec_driver_sql("SELECT id FROM ledger_head FOR UPDATE")
            report = _rebuilt(connection, segments)
            if report.equal:
                transaction.rollback()
    except CorruptLedgerError as error:
        error.add_note(_RESTORE)
        raise
    except (CapacityError, OverflowError) as error:  # or a number beyond what a column holds
        raise advised(LedgerError(f"the events break a rule: {error}"), _RESTORE) from error
    except DBAPIError as error:
        if refused_by_rule(error):
            broken = LedgerError(f"the events break a rule: {fact_of(error)}")
            raise advised(broken, _RESTORE) from error
        raise unavailable(error) from error
    return report


def _rebuilt(connection: Connection, segments: Path | None) -> RebuildReport:
    for each in _TABLES:
        copy = f"CREATE TEMP TABLE before_{each} AS SELECT * FROM {each}"
        connection.exec_driver_sql(copy)
    put_back = _rules_put_aside(connection)
    for each in reversed(_TABLES):
        connection.execute(each.delete())
    with whole_log(connection, segments):
        untold: list[str] = []
        events = _replay(connection, untold)
        _count_streams(connection)
    for text in put_back:
        connection.exec_driver_sql(text)
    differences: list[str] = []
    digest = hashlib.sha256()
    for each in _TABLES:
        for before, after in _side_by_side(connection, each):
            if after is not None:
                digest.update(repr(after).encode())
            if before != after and len(differences) < DIFFERENCES_MAX:
                differences.append(_difference(each, before, after))
        connection.exec_driver_sql(f"DROP TABLE before_{each}")
    return RebuildReport(
        events=events,
        equal=not differences,
        differences=tuple(differences),
        untold=tuple(untold[:DIFFERENCES_MAX]),
        digest=digest.hexdigest(),
    )


def _rules_put_aside(connection: Connection) -> tuple[str, ...]:
    """Take away the rules that stand in the way; return the statements that put them back."""
    if connection.dialect.name == "sqlite":
        for text in _IN_THE_WAY:
            connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {sqlite_triggers.named(text)}")
        return _IN_THE_WAY
    rules = [(each, name) for each in _TABLES for name in rules_on(connection, each.name)]
    inward = [
        (each, name)
        for each, name in rules
        if name.startswith("ledger_streams_") or name.endswith("_no_delete")
    ]
    connection.exec_driver_sql(postgres_guard.ALLOW)
    for each, name in inward:
        connection.exec_driver_sql(f"ALTER TABLE {each} DISABLE TRIGGER {name}")
    return tuple(f"ALTER TABLE {each} ENABLE ALWAYS TRIGGER {name}" for each, name in inward)


def _replay(connection: Connection, untold: list[str]) -> int:
    projector, voids, quotes = Projector(connection), voids_of(connection), Quotes()
    head = checked_head(connection)
    position, at_us, previous = 0, 0, GENESIS
    with closing(rows_of(connection, in_key_order(schema.ledger_events))) as rows:
        for found in pages_of(rows):
            page = checked(found, position, previous)
            for row in page.rows:
                position, at_us = row[0], row[_AT]
                event = decoded(row, voids)
                facts = quotes.untold(position, event)
                untold += (f"position {position}: {fact}" for fact in facts)
                _project(projector, position, at_us, event)
            if page.error is not None:
                raise page.error
            previous = page.chain_hash
            projector.flush()
    if (position, previous, at_us) != (head.position, head.chain_hash, head.at_us):
        raise CorruptLedgerError(
            f"the events do not end at the head: head={head.position}", position=position + 1
        )
    return position


def _project(projector: Projector, position: int, at_us: int, event: LedgerEvent) -> None:
    try:
        projector.add(position, at_us, event)
    except CONTRADICTION as error:
        fact = f"{type(error).__name__}: {error}"
        raise CorruptLedgerError(
            f"the event contradicts itself or those before it: {fact}", position=position
        ) from error


def _count_streams(connection: Connection) -> None:
    """Count the versions of every stream again; they follow from the events alone."""
    connection.exec_driver_sql(
        "INSERT INTO ledger_streams (stream, version)"
        " SELECT stream, max(stream_version) FROM ledger_events GROUP BY stream"
    )


def _side_by_side(connection: Connection, of: Table) -> Iterator[tuple[Row | None, Row | None]]:
    width = len(of.primary_key.columns)
    copy = table(f"before_{of.name}", *(named_column(each.name) for each in of.columns))
    keys = [copy.columns[each.name] for each in of.primary_key.columns]
    old_rows = rows_of(connection, select(*copy.columns).order_by(*keys))
    new_rows = rows_of(connection, in_key_order(of))
    old, new = next(old_rows, None), next(new_rows, None)
    while old is not None and new is not None:
        if old[:width] == new[:width]:
            yield old, new
            old, new = next(old_rows, None), next(new_rows, None)
        elif old[:width] < new[:width]:
            yield old, None
            old = next(old_rows, None)
        else:
            yield None, new
            new = next(new_rows, None)
    for left in (old, *old_rows) if old is not None else ():
        yield left, None
    for left in (new, *new_rows) if new is not None else ():
        yield None, left


def _difference(of: Table, before: Row | None, after: Row | None) -> str:
    width = len(of.primary_key.columns)
    if before is None or after is None:
        row = before or after or ()
        fact = "a row too many" if after is None else "a row was missing"
        return f"{of.name}: {fact}: key={row[:width]}"
    wrong = ", ".join(
        f"{column.name}={old!r} (the events say {new!r})"
        for column, old, new in zip_longest(of.columns, before, after)
        if old != new
    )
    return f"{of.name}: key={after[:width]}, {wrong}"


@contextmanager
def whole_log(connection: Connection, folder: Path | None) -> Iterator[None]:
    """
    Have every event in `ledger_events` inside of the block, in the transaction that is open.

    Raises:
        InputError: events are in an archive and `folder` is not, or its files are not theirs.
    """
    segments = segments_of(connection)
    if not segments:
        yield
        return
    if folder is None:
        files = ", ".join(segment.file_name for segment in segments[:3])
        fact = f"events are in an archive: positions=1-{segments[-1].last}, files={files}"
        raise advised(InputError(fact), "name the folder of the archive: --segments DIR")
    with _rules_aside(connection):
        for segment in segments:
            _put_back(connection, SegmentFile(folder / segment.file_name, segment))
    yield
    events = schema.ledger_events.c
    archived = select(schema.ledger_archived.c.position)
    connection.execute(delete(schema.ledger_events).where(events.position.in_(archived)))


def _put_back(connection: Connection, file: SegmentFile) -> None:
    fact = file.difference()
    if fact:
        raise InputError(fact)
    rows = (row for row in file.rows() if row[3] not in schema.KEPT)
    try:
        while page := list(islice(rows, _PAGE_ROWS)):
            words = [dict(zip(_names, row, strict=True)) for row in page]
            connection.execute(insert(schema.ledger_events), words)
    except UnreadableError as error:
        raise InputError(str(error)) from error


@contextmanager
def _rules_aside(connection: Connection) -> Iterator[None]:
    if connection.dialect.name == "sqlite":
        triggers = connection.exec_driver_sql(_TRIGGERS).all()
        for name, _ in triggers:
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
        yield
        for _, text in triggers:
            connection.exec_driver_sql(text)
        return
    connection.exec_driver_sql(postgres_guard.ALLOW)
    tables = ["ledger_events", *connection.exec_driver_sql(_PARTITIONS).scalars()]
    rules = [(each, name) for each in tables for name in rules_on(connection, each)]
    for each, name in rules:
        connection.exec_driver_sql(f"ALTER TABLE ONLY {each} DISABLE TRIGGER {name}")
    yield
    for each, name in rules:
        connection.exec_driver_sql(f"ALTER TABLE ONLY {each} ENABLE ALWAYS TRIGGER {name}")
