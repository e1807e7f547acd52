"""Rows of archived events are proved without the files: by digests that the log commits to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import Connection, Table, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from ledger.domain.proofs.merkle import compact_range
from ledger.signing import Checkpoint
from ledger.store.archives.archived_proof import past_of
from ledger.store.profile import driver_connection
from ledger.store.proving.checkpoints import reader_of
from ledger.store.proving.proof import HISTORY
from ledger.store.proving.tree_proof import NO_WITNESS, KeptCheckpoint
from ledger.store.proving.verify import VerifyReport, verify
from tests.support.archives import (
    afterwards,
    archive_up_to,
    history,
    move,
)
from tests.support.stores import (
    Clock,
    PostgresStore,
    Store,
    released,
    reserved,
    share,
    start,
)

NAMES: Final = [table.name for table in HISTORY]
LAST: Final = 512
"""Where the second segment ends; 256 events and more behind it may still move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A ledger with an archive beside it."""

    store: Store
    folder: Path


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def moved_once(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Moved]:
    """A ledger in whose two segments rows of every table ended, on each database."""
    folder = tmp_path_factory.mktemp("moved")
    empty: Store = request.getfixturevalue(
        {"sqlite": "empty_ledger", "postgres": "empty_postgres"}[request.param]
    )
    store = empty.copy(folder / "ledger.db")
    clock = Clock()
    with store.open() as ledger:
        history(ledger, clock, events=260)
        move(ledger, folder)
        writer = start(ledger, "next")
        writer.append(afterwards(clock))
        for first in range(0, 252, 28):
            pods = [f"q{number}" for number in range(first, first + 28)]
            batch = [clock.all(reserved(pod, share(2, 10)), released(pod)) for pod in pods]
            writer.append(list(chain(*batch)))
        archive_up_to(ledger, folder, LAST)
    yield Moved(store=store, folder=folder)
    dropped(store)


@pytest.fixture
def moved(moved_once: Moved, tmp_path: Path) -> Iterator[Moved]:
    """A copy of it that a test may do anything to."""
    for path in moved_once.folder.glob("segment-*"):
        shutil.copy(path, tmp_path)
    copy = Moved(store=moved_once.store.copy(tmp_path / "ledger.db"), folder=tmp_path)
    yield copy
    dropped(copy.store)


def dropped(store: Store) -> None:
    """Drop a database of the server; a file goes with its folder."""
    if isinstance(store, PostgresStore):
        store.server.drop(store.database)


def kept(moved: Moved) -> KeptCheckpoint:
    """Return what somebody keeps of the ledger elsewhere: its checkpoint of now."""
    with moved.store.open("read") as ledger:
        head = ledger.head()
        with ledger.connection.begin():
            root = compact_range(reader_of(ledger.connection), head.position).root()
    signed = Checkpoint(origin=head.origin, size=head.position, root=root)
    return KeptCheckpoint(checkpoints=(signed,))


def proved(
    moved: Moved, witness: KeptCheckpoint = NO_WITNESS, segments: Path | None = None
) -> VerifyReport:
    """Verify as anybody may who reads it."""
    with moved.store.open("read") as ledger:
        return verify(ledger, witness=witness, segments=segments)


def words(report: VerifyReport) -> list[str]:
    """Return the findings in words."""
    return [str(each) for each in report.findings]


def an_ended(moved: Moved, table: str, last: int = LAST) -> str:
    """Return the condition of one row that ended in an archive."""
    by = "position" if table in {"ledger_device_health", "ledger_refusals"} else "closed_position"
    raw: Any
    with moved.store.raw() as raw:
        query = f"SELECT max(position) FROM {table} WHERE {by} <= {last}"
        ((position,),) = raw.execute(query).fetchall()
    return f"position = {position}"


def ended(table: Table, last: int) -> Any:  # noqa: ANN401 - a condition
    """Return the condition that a row ended up to a position."""
    by = "closed_position" if "closed_position" in table.columns else "position"
    return table.columns[by] <= last


def others(table: Table, row: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - a row
    """Yield one other value for each column, of its type."""
    for column in table.columns:
        value = row[column.name]
        if column.type.python_type is str:
            yield {column.name: "observed" if column.name == "kind" else f"{value or ''}x"}
        elif column.name == "exclusive":
            yield {column.name: 1 - value}
        else:
            step = 1 if column.name in {"closed_position", "healthy"} else 1_000
            yield {column.name: (value or 0) + step}
        if column.nullable and value is not None:
            yield {column.name: None}


def attempts(table: Table, row: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - a row
    """Yield what plain SQL may do to a row: other values, none, a second and an invented one."""
    here = [column == row[column.name] for column in table.primary_key.columns]
    for values in others(table, row):
        yield f"{table.name}: {values}", update(table).where(*here).values(values)
    yield f"{table.name}: deleted", delete(table).where(*here)
    key = list(table.primary_key.columns)[-1]
    free = 9_999 if key.type.python_type is int else "free"
    doubled = dict(row) | {key.name: -7 if key.name == "position" else free}
    yield f"{table.name}: doubled", insert(table).values(doubled)
    yield f"{table.name}: invented", insert(table).values(doubled | {"position": 1})


def unseen(connection: Connection, table: Table, row: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield what was done to a row, and passes: one change after another, each taken back."""
    for name, statement in attempts(table, row):
        try:
            with connection.begin_nested() as change:
                assert connection.execute(statement).rowcount != 0, name
                found: list[str] = []
                past_of(connection, partial(_note, found), None)
                if not any(text.startswith(f"{table.name}: ") for text in found):
                    yield name
                change.rollback()
        except IntegrityError:  # a CHECK of Postgres, or a slot that is open already
            refusals = connection.dialect.name == "postgresql" or "'closed_position': None" in name
            assert refusals, name


def _note(found: list[str], _position: int | None, text: str) -> None:
    found.append(text)


def free_of_rules(connection: Connection) -> None:
    """Take the rules away inside of the transaction that is open."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SET LOCAL tenure.migration = 'on'")
        for table in NAMES:
            connection.exec_driver_sql(f"ALTER TABLE {table} DISABLE TRIGGER ALL")
        return
    query = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    for (name,) in connection.exec_driver_sql(query).all():
        connection.exec_driver_sql(f"DROP TRIGGER {name}")


def test_nothing_that_plain_sql_does_to_an_ended_row_passes(moved_once: Moved) -> None:
    """Each column of each table changed, rows deleted, doubled and invented."""
    passed: list[str] = []
    tried = 0
    with moved_once.store.open() as ledger:
        if ledger.connection.dialect.name == "sqlite":
            driver = driver_connection(ledger.connection)
            for pragma in ("foreign_keys = OFF", "ignore_check_constraints = ON"):
                driver.execute(f"PRAGMA {pragma}")
        with ledger.connection.begin() as transaction:
            free_of_rules(ledger.connection)
            for table in HISTORY:
                rows = ledger.connection.execute(select(table).where(ended(table, LAST)))
                found = rows.mappings().all()
                row = found[-(len(found) % 2)]  # one that ended early, or late
                tried += sum(1 for _ in attempts(table, row))
                passed += unseen(ledger.connection, table, row)
            transaction.rollback()
    assert (tried > 100, passed) == (True, [])
