"""
Archived events back in the log for the length of a rebuild, whose rules look their events up there.

The rules of an append stand aside meanwhile, for these rows were appended long ago; they go again
under the rule that lets nothing go but what a segment holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, delete, insert, select

from ledger.domain.errors import InputError
from ledger.store import schema
from ledger.store.archives.segment_files import SegmentFile
from ledger.store.archives.segments import segments_of
from ledger.store.ddl import postgres_guard
from ledger.store.proving.damage_postgres import rules_on
from ledger.store.reading.tables import UnreadableError

_PAGE_ROWS: Final = 1_000
_TRIGGERS: Final = (
    "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'ledger_events'"
)
_PARTITIONS: Final = (
    "SELECT inhrelid::regclass::text FROM pg_inherits"
    " WHERE inhparent = 'ledger_events'::regclass ORDER BY 1"
)
_names: Final = tuple(schema.ledger_events.columns.keys())


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
        error = InputError(
            f"events are in an archive: positions=1-{segments[-1].last},"
            f" files={', '.join(segment.file_name for segment in segments[:3])}"
        )
        error.add_note("name the folder of the archive: --segments DIR")
        raise error
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
    rules = [(table, name) for table in tables for name in rules_on(connection, table)]
    for table, name in rules:
        connection.exec_driver_sql(f"ALTER TABLE ONLY {table} DISABLE TRIGGER {name}")
    yield
    for table, name in rules:
        connection.exec_driver_sql(f"ALTER TABLE ONLY {table} ENABLE ALWAYS TRIGGER {name}")
