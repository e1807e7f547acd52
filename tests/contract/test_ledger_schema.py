"""Migrations and MetaData agree, and a ledger is only opened when it is one that we understand."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from ledger.domain.errors import InputError
from ledger.store.ddl import audit_views, sqlite_triggers
from ledger.store.migrate import configuration, migrations_path, upgrade
from ledger.store.open import Mode, open_ledger
from ledger.store.profile import create_file, sqlite_engine
from ledger.store.proving.verify import verify
from ledger.store.schema import METADATA, REVISIONS
from tests.support.stores import Clock, SqliteStore, Store, node, start

DEFINITIONS = (
    "SELECT name, type, tbl_name, sql FROM sqlite_master"
    " WHERE sql IS NOT NULL AND name <> 'alembic_version' ORDER BY name"
)
ROOT = Path(__file__).parents[2]
TABLES_OF_POSTGRES = "8689c8da9f46066f70a21cca6519129ee9d23a03c07c9646fe8de779876bbb6c"
"""The digest of the tables and indexes that revision 0003 makes there, as it was released."""


def test_migrations_make_what_the_metadata_says(sqlite_store: SqliteStore) -> None:
    """`alembic check` finds nothing to do, and every definition is the same text."""
    with sqlite_store.open() as ledger, ledger.connection.begin():
        context = MigrationContext.configure(ledger.connection)
        assert compare_metadata(context, METADATA) == []
        migrated = ledger.connection.exec_driver_sql(DEFINITIONS).all()
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        METADATA.create_all(connection)
        for text in (*sqlite_triggers.TRIGGERS, *audit_views.create_views("sqlite")):
            connection.exec_driver_sql(text)
        declared = connection.exec_driver_sql(DEFINITIONS).all()
    engine.dispose()

    assert migrated == declared


def test_the_tables_of_postgres_are_those_of_the_release() -> None:
    """SQLite's are in the digest that `verify` knows; Postgres's are compared with themselves."""
    revision = ScriptDirectory(str(migrations_path())).get_revision("0003")
    made = StringIO()
    offline = {"as_sql": True, "output_buffer": made}
    context = MigrationContext.configure(dialect_name="postgresql", opts=offline)
    with Operations.context(context):
        revision.module._tables().create_all(context.bind)
    statements = sorted(made.getvalue().split(";\n"))

    assert sha256("\n".join(statements).encode()).hexdigest() == TABLES_OF_POSTGRES


@pytest.mark.parametrize("table", ["ledger_events", "ledger_reservations", "ledger_holdings"])
def test_no_rule_looks_through_all_cards(sqlite_store: SqliteStore, table: str) -> None:
    """Whatever a grant or an ending asks of cards and nodes, an index finds it."""
    with sqlite_store.open() as ledger, ledger.connection.begin():
        named = "SELECT rootpage, name FROM sqlite_master"
        roots = {row[0]: row[1] for row in ledger.connection.exec_driver_sql(named)}
        names = METADATA.tables[table].columns.keys()
        marks = ", ".join("?" * len(names))
        insert = f"EXPLAIN INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})"
        steps = ledger.connection.exec_driver_sql(insert, (None,) * len(names)).all()

    opened: dict[int, str] = {}
    looked_through = set()
    for address, does, cursor, root, *_ in steps:
        if address == 0:  # a trigger's own program begins
            opened = {}
        elif does == "OpenRead":
            opened[cursor] = roots.get(root, "")
        elif does == "Rewind":
            looked_through.add(opened.get(cursor, ""))
    assert looked_through <= {"", "ledger_head", "ix_ledger_reservations_open"}


def test_every_revision_is_known(store: Store) -> None:
    """The revisions that may be opened are those of the migrations, in their order."""
    with store.open() as ledger:
        scripts = ScriptDirectory.from_config(configuration(ledger.connection))
        revisions = [each.revision for each in scripts.walk_revisions()]

    assert tuple(reversed(revisions)) == REVISIONS


def test_upgrading_the_newest_changes_nothing(sqlite_store: SqliteStore) -> None:
    """A second run of the migrations leaves the ledger as it is."""
    with sqlite_store.raw() as raw:
        before = list(raw.iterdump())
    with sqlite_store.open() as ledger:
        upgrade(ledger.connection)
    with sqlite_store.raw() as raw:
        assert list(raw.iterdump()) == before


def test_a_file_is_made_as_the_migrations_make_it(tmp_path: Path) -> None:
    """A new one repeats what they made, in an order of indexes of its own."""
    made, migrated = (SqliteStore(path=tmp_path / f"{number}.db") for number in range(2))
    made.open("create").close()
    create_file(migrated.path)
    with sqlite_engine(migrated.path, write=True).connect() as connection:
        upgrade(connection)

    dumps = []
    for store in (made, migrated):
        with store.raw() as raw:
            rules = raw.execute(
                "SELECT name FROM sqlite_master WHERE type = 'trigger' ORDER BY rowid"
            )
            dumps.append((sorted(raw.iterdump()), rules.fetchall()))
    assert dumps[0] == dumps[1]


def test_an_installed_wheel_brings_its_migrations(tmp_path: Path) -> None:
    """Where `ledger` is installed without the checkout, its migrations are found inside of it."""
    installed = tmp_path / "site"
    shutil.copytree(ROOT / "ledger", installed / "ledger")
    shutil.copytree(ROOT / "migrations", installed / "ledger" / "_migrations")
    path = tmp_path / "ledger.db"
    script = (
        "import ledger.store.migrate as m, ledger.store.open as o\n"
        f"assert str(m.migrations_path()).startswith({str(installed)!r}), m.migrations_path()\n"
        f"o.open_ledger({str(path)!r}, mode='create').close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr

    with open_ledger(str(path), mode="read") as ledger:
        assert verify(ledger).ok


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    """A new ledger has mode 0600, and so has what SQLite puts beside it."""
    path = tmp_path / "ledger.db"
    with open_ledger(str(path), mode="create") as ledger:
        start(ledger)
        files = list(tmp_path.iterdir())
        assert len(files) == 3
        assert {stat.S_IMODE(each.stat().st_mode) for each in files} == {0o600}


def test_a_writer_is_durable_and_a_reader_reads_only(sqlite_store: SqliteStore) -> None:
    """The profile of notes on SQLite: WAL, FULL, foreign keys and recursive triggers."""

    def pragma(ledger: object, name: str) -> object:
        connection = ledger.connection  # type: ignore[attr-defined]
        with connection.begin():
            return connection.exec_driver_sql(f"PRAGMA {name}").scalar()

    with sqlite_store.open() as ledger:
        assert pragma(ledger, "journal_mode") == "wal"
        assert pragma(ledger, "synchronous") == 2
        assert pragma(ledger, "foreign_keys") == 1
        assert pragma(ledger, "recursive_triggers") == 1
        assert pragma(ledger, "busy_timeout") == 5_000
    with sqlite_store.open("read") as ledger:
        assert pragma(ledger, "query_only") == 1
        assert pragma(ledger, "trusted_schema") == 0


def test_creating_takes_a_new_or_an_empty_file_only(tmp_path: Path) -> None:
    """An empty file and a ledger without events are taken, one with events is not."""
    path = tmp_path / "ledger.db"
    path.touch()
    open_ledger(str(path), mode="create").close()
    with open_ledger(f"sqlite:///{path}", mode="create") as ledger:
        start(ledger).append(Clock().all(node()))
    with pytest.raises(InputError, match=r"ledger.db: the ledger is not empty"):
        open_ledger(str(path), mode="create")
    with pytest.raises(InputError, match="no such directory"):
        open_ledger(str(tmp_path / "no" / "ledger.db"), mode="create")


def test_what_is_no_ledger_is_said_so(tmp_path: Path) -> None:
    """A missing file, another database, no database, another URL: one message with the place."""
    missing = tmp_path / "missing.db"
    with pytest.raises(InputError, match=r"missing.db: no such ledger"):
        open_ledger(str(missing), mode="read")
    assert not missing.exists()

    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE notes (text)")
    before = other.read_bytes()
    modes: tuple[Mode, ...] = ("read", "write", "create")
    for mode in modes:
        with pytest.raises(InputError, match=r"other.db: not a ledger: its tables are missing"):
            open_ledger(str(other), mode=mode)
    assert other.read_bytes() == before

    empty = tmp_path / "empty.db"
    empty.touch()
    for mode in modes[:2]:
        with pytest.raises(InputError, match=r"empty.db: not a ledger: it is empty"):
            open_ledger(str(empty), mode=mode)

    noise = tmp_path / "noise.db"
    noise.write_bytes(b"x" * 10_000)
    for mode in modes:
        with pytest.raises(InputError, match=r"noise.db: not a ledger: file is not a database"):
            open_ledger(str(noise), mode=mode)
    assert noise.read_bytes() == b"x" * 10_000

    with pytest.raises(InputError, match=r"mysql://db/x: not a ledger URL"):
        open_ledger("mysql://me:secret@db/x", mode="read")


@pytest.mark.parametrize("mode", ["read", "write", "create"])
def test_a_ledger_of_a_newer_version_is_not_opened(sqlite_store: SqliteStore, mode: Mode) -> None:
    """A revision that this release does not know is refused, and nothing is written."""
    with sqlite_store.raw() as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
        before = list(raw.iterdump())
    with pytest.raises(InputError, match="written by a newer version of tenure: schema=9999"):
        sqlite_store.open(mode)
    with sqlite_store.raw() as raw:
        assert list(raw.iterdump()) == before


def test_a_ledger_in_a_folder_that_cannot_be_written_is_read(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without room for the log's index beside it, a closed ledger is read as it stands."""
    with sqlite_store.open() as ledger:
        start(ledger).append(Clock().all(node()))
    real = sqlite3.connect

    def no_room(database: str, **words: Any) -> sqlite3.Connection:  # noqa: ANN401 - as there
        if "mode=ro" in database:
            raise sqlite3.OperationalError("unable to open database file")
        connection: sqlite3.Connection = real(database, **words)
        return connection

    monkeypatch.setattr(sqlite3, "connect", no_room)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with sqlite_store.open("read") as ledger:
        assert verify(ledger).ok


def test_a_second_writer_waits_and_then_is_told(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While someone else writes, an append says so and leaves nothing behind."""
    monkeypatch.setattr("ledger.store.profile.ALWAYS", ("PRAGMA busy_timeout = 20",))
    with sqlite_store.open() as ledger, sqlite_store.raw() as raw:
        writer = start(ledger)
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(Exception, match="another process writes this ledger"):
            writer.append(Clock().all(node()))
        raw.execute("ROLLBACK")

        assert writer.append(Clock().all(node())) == 2
