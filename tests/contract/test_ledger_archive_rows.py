"""Rows of archived events are proved without the files: by digests that the log commits to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast

import pytest
from msgspec import structs
from sqlalchemy import Connection, Table, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from ledger.domain.errors import CorruptLedgerError, LedgerError
from ledger.domain.log.events import (
    LedgerEvent,
    PositionVoided,
    SegmentArchived,
    TimeCorrected,
)
from ledger.domain.log.recorded import NewEvent
from ledger.domain.proofs.merkle import compact_range
from ledger.signing import Checkpoint
from ledger.store.archives.ended_rows import compare_ended, digests_of_ended
from ledger.store.mending.correcting import correct
from ledger.store.open import Ledger
from ledger.store.profile import driver_connection
from ledger.store.proving.checkpoints import reader_of
from ledger.store.proving.proof import HISTORY
from ledger.store.proving.tree_proof import NO_WITNESS, KeptCheckpoint
from ledger.store.proving.verify import VerifyReport, verify
from ledger.store.reading.kept import events_of
from tests.support.archives import (
    Meddled,
    afterwards,
    archive_silently,
    archive_up_to,
    changed,
    history,
    move,
)
from tests.support.stores import (
    Clock,
    PostgresStore,
    Store,
    refused,
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


def checkpoint_of(moved: Moved) -> KeptCheckpoint:
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


def committed(connection: Connection) -> list[SegmentArchived]:
    """Return the events that archive the segments."""
    return events_of(connection, SegmentArchived, 10_000)


def unseen(connection: Connection, table: Table, row: Any) -> Iterator[str]:  # noqa: ANN401
    """Yield what was done to a row, and passes: one change after another, each taken back."""
    archived = committed(connection)
    for name, statement in attempts(table, row):
        try:
            with connection.begin_nested() as change:
                assert connection.execute(statement).rowcount != 0, name
                found: list[str] = []
                compare_ended(connection, partial(_note, found), archived)
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


OTHER: Final = {
    "ledger_reservations": "namespace = 'x'",
    "ledger_holdings": "core_percent = 1",
    "ledger_cpu_holdings": "opened_at_us = 1",
    "ledger_slot_holdings": "opened_at_us = 1",
    "ledger_device_health": "reason = 'x'",
    "ledger_refusals": "message = 'x'",
    "ledger_planned_cards": "group_name = 'x'",
}


def test_verify_names_each_table_whose_ended_rows_are_others(moved: Moved) -> None:
    """With a kept checkpoint too; with the files it names the rows."""
    witness = checkpoint_of(moved)
    sound = proved(moved, witness)
    assert (words(sound), sound.outcome, sound.not_compared) == ([], "proved", ())
    rows = {name: an_ended(moved, name) for name in OTHER}
    forged = (f"UPDATE {name} SET {OTHER[name]} WHERE {row}" for name, row in rows.items())
    changed(moved.store, *forged)

    report = proved(moved, witness)
    read = proved(moved, segments=moved.folder)

    assert (report.ok, report.outcome) == (False, "not proved")
    for name, row in rows.items():
        position = int(row.rpartition(" ")[2])
        assert any(
            text.startswith(f"{name}: a row that ended in the positions ")
            and text.endswith("was changed, added or taken away")
            for text in words(report)
        ), name
        assert any(text.startswith(f"position {position}: {name} is ") for text in words(read))


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        pytest.param(
            "UPDATE ledger_reservations SET owner = 'x' WHERE {ledger_reservations}",
            "ledger_reservations: a row that ended in the positions 257 to 512 was changed",
            id="in a segment",
        ),
        pytest.param(
            "UPDATE ledger_reservations SET owner = 'x' WHERE position IN (600, 601)",
            "ledger_reservations is not what the events say",
            id="behind the segments",
        ),
        pytest.param(
            "INSERT INTO ledger_refusals SELECT 768, at_us, pod_uid, namespace, pod_name, stage,"
            " message, shape, gpu_core_percent, policy, owner FROM ledger_refusals"
            " WHERE {ledger_refusals}",
            "ledger_refusals has a row that no event explains",
            id="invented at the end",
        ),
        pytest.param(
            "UPDATE ledger_holdings SET closed_at_us = opened_at_us + 1, closed_position = 700"
            " WHERE closed_position IS NULL AND minor = 1",
            "ledger_holdings is not what the events say",
            id="ended too early",
        ),
    ],
)
def test_archiving_covers_no_change_up(moved: Moved, statement: str, text: str) -> None:
    """A digest is taken only of rows that are what the events say; nothing moves."""
    rows = {name: an_ended(moved, name) for name in NAMES}
    changed(moved.store, statement.format(**rows))
    with moved.store.open() as ledger:
        with pytest.raises(CorruptLedgerError, match=text):
            move(ledger, moved.folder)
        assert ledger.head().position < 900
    assert len(list(moved.folder.glob("segment-*"))) == 2


def test_a_row_that_changes_while_the_archivist_works_stops_it(moved: Moved) -> None:
    """Between the proof and the commit."""
    row = an_ended(moved, "ledger_reservations", 768)
    forged = f"UPDATE ledger_reservations SET owner = 'x' WHERE {row}"

    with moved.store.open() as ledger:
        meddled = Meddled(ledger, lambda _: changed(moved.store, forged))
        with pytest.raises(LedgerError, match="was changed since it was proved"):
            move(cast("Ledger", meddled), moved.folder)
        head = ledger.head().position
    assert proved(moved).events == head


def test_rows_that_no_digest_speaks_of_are_never_called_proved(moved: Moved) -> None:
    """Verify says which tables and positions; the next segment has digests, the files prove all."""
    with moved.store.open() as ledger:
        archive_silently(ledger, moved.folder, 768)

    report = proved(moved)

    assert (words(report), report.ok, report.outcome) == ([], False, "not compared")
    (unknown,) = report.not_compared
    assert (set(unknown.tables), unknown.first, unknown.last) == (set(NAMES), 513, 768)
    assert proved(moved, segments=moved.folder).outcome == "proved"
    with moved.store.open() as ledger:
        writer, clock = start(ledger, "more"), Clock(now_us=ledger.head().at_us)
        clock.made = 5_000
        for _ in range(4):
            writer.append(clock.all(*(refused(f"s{n}") for n in range(64))))
        move(ledger, moved.folder)
    assert proved(moved).not_compared == report.not_compared
    changed(
        moved.store,
        f"UPDATE ledger_refusals SET owner = 'x' WHERE {an_ended(moved, 'ledger_refusals', 1024)}",
    )
    assert proved(moved).outcome == "not proved"


def test_a_digest_of_a_table_that_is_not_there_compares_nothing(moved: Moved) -> None:
    """Nobody here can say what it is of, so that the rows are not called compared."""
    with moved.store.open("read") as ledger, ledger.connection.begin():
        first, last = committed(ledger.connection)
        last = structs.replace(last, rows={**last.rows, "ledger_unknown": "00"})
        found: list[str] = []
        (unknown,) = compare_ended(ledger.connection, partial(_note, found), [first, last])
    assert (found, unknown.tables, unknown.last) == ([], ("ledger_unknown",), LAST)


def appended(moved: Moved, event: LedgerEvent) -> int:
    """Append an event past the commands that refuse it; return its position."""
    key = f"forged:{event.event_type}"
    new = NewEvent(stream="sys", event=event, actor="x", idempotency_key=key, wall_us=0)
    with moved.store.open() as ledger:
        return start(ledger, "forger").append([new])


def test_the_past_is_not_archived_twice(moved: Moved) -> None:
    """A later event that commits to other rows takes no place of the first, whose word it is."""
    witness = checkpoint_of(moved)
    row = an_ended(moved, "ledger_reservations")
    changed(moved.store, f"UPDATE ledger_reservations SET namespace = 'x' WHERE {row}")
    with moved.store.open("read") as ledger, ledger.connection.begin():
        _, event = committed(ledger.connection)
        found: list[str] = []
        rows = digests_of_ended(ledger.connection, partial(_note, found), [256, LAST])[-1]
    assert (found, rows == event.rows) == ([], False)
    position = appended(moved, structs.replace(event, rows=rows))

    changed(moved.store, f"UPDATE ledger_segments SET position = {position} WHERE last = {LAST}")

    report = proved(moved, witness)
    assert any("archives no segment" in text for text in words(report)), report


@pytest.mark.parametrize("event_type", ["device.health_changed.v1", "group.planned.v1"])
def test_an_archived_event_is_not_declared_void(moved: Moved, event_type: str) -> None:
    """Past the command: readers would take another past than the one that was archived."""
    raw: Any
    query = "SELECT position, leaf_hash FROM ledger_events WHERE position <= 256"
    with moved.store.raw() as raw:
        rows = raw.execute(f"{query} AND event_type = '{event_type}'").fetchall()
    position, leaf = rows[0]

    at = appended(moved, PositionVoided(position=position, leaf_hash=bytes(leaf).hex(), reason="x"))

    fact = f"position {at}: the event changes what is in an archive: {position}"
    assert fact in words(proved(moved))


@pytest.mark.parametrize("first", [3, LAST, LAST + 1])
def test_an_archived_time_is_not_corrected(moved: Moved, first: int) -> None:
    """Nor that of the first event behind the archive, past the command and with its views."""
    event = TimeCorrected(first=first, last=LAST + 2, shift_seconds=-3_600, reason="x")
    with moved.store.open() as ledger:
        at = correct(start(ledger, "forger"), event, wall_us=0)
    fact = f"position {at}: the event changes what is in an archive: {first}"
    assert fact in words(proved(moved))
