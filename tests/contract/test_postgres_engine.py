"""Postgres as the ledger's database: what is there, refused, found and lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from ledger.domain.errors import InputError, LedgerError
from ledger.store.ddl.postgres_guard import ALLOW
from ledger.store.migrate import upgrade
from ledger.store.open import Mode, open_ledger
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from ledger.store.reading.query import run_sql
from ledger.store.schema import METADATA
from tests.support.postgres import Server
from tests.support.stores import Clock, PostgresStore, node, reserved, share, start


@pytest.fixture
def told(postgres_store: PostgresStore) -> PostgresStore:
    """A ledger with a holder: events 1 to 3."""
    with postgres_store.open() as ledger:
        start(ledger).append(Clock().all(node(cpus=2), reserved("a", share(0, 60), cpus=(0,))))
    return postgres_store


def test_migrations_make_what_the_metadata_says(postgres_store: PostgresStore) -> None:
    """`alembic check` finds nothing to do, but for the log's partitions and their own keys."""

    def ours(_object: object, name: str | None, *_: object) -> bool:
        other = ("uq_ledger_events_idempotency_key", "alembic_version")
        return name not in other and not (name or "").startswith("ledger_events_")

    with postgres_store.open() as ledger, ledger.connection.begin():
        options = {"include_object": ours}
        context = MigrationContext.configure(ledger.connection, opts=options)
        assert compare_metadata(context, METADATA) == []


def test_upgrading_the_newest_changes_nothing(told: PostgresStore) -> None:
    """A second run of the migrations leaves the ledger as it is."""
    with told.open() as ledger:
        before = ledger.head()
        upgrade(ledger.connection)
        assert ledger.head() == before
        assert verify(ledger).ok


def test_what_is_no_ledger_is_said_so(postgres: Server, told: PostgresStore) -> None:
    """No database, an empty one, another one, one with events: one message with the place."""
    with pytest.raises(InputError, match="no such ledger: the server has no such database"):
        open_ledger(postgres.url("nowhere"), mode="create")
    with pytest.raises(InputError, match="the ledger is not empty"):
        told.open("create")
    other = PostgresStore(server=postgres, database=postgres.new_database())
    modes: tuple[Mode, ...] = ("read", "write")
    for mode in modes:
        with pytest.raises(InputError, match="not a ledger: it is empty"):
            other.open(mode)
    with other.raw() as raw:
        raw.execute("CREATE TABLE notes (text text)")
    for mode in (*modes, "create"):
        with pytest.raises(InputError, match="not a ledger: its tables are missing"):
            other.open(mode)
    postgres.drop(other.database)
    with told.raw() as raw:
        raw.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(InputError, match="written by a newer version of tenure: schema=9999"):
        told.open()


def test_a_server_that_is_not_there_is_said_so_without_the_password(tmp_path: Path) -> None:
    """The message names the database and what failed, and holds no secret."""
    url = f"postgresql://me:secret@/db?host={tmp_path}"
    with pytest.raises(LedgerError, match="can't connect to the database") as refusal:
        open_ledger(url, mode="read")
    assert "secret" not in str(refusal.value)


def test_a_reader_reads_one_state_and_writes_nothing(told: PostgresStore) -> None:
    """Its transactions are read-only snapshots; a writer's have limits and a name."""
    names = ("transaction_read_only", "transaction_isolation", "statement_timeout")
    with told.open("read") as ledger, ledger.connection.begin():
        found = [ledger.connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names]
        assert found == ["on", "repeatable read", "1min"]
    with told.open() as ledger, ledger.connection.begin():
        name = ledger.connection.exec_driver_sql("SHOW application_name").scalar()
        assert name == "tenure"


@pytest.mark.parametrize(
    "text",
    [
        "DELETE FROM ledger_refusals",
        "SELECT 1; DELETE FROM ledger_refusals",
        "WITH x AS (DELETE FROM ledger_refusals RETURNING 1) SELECT * FROM x",
        "COPY ledger_head TO PROGRAM 'cat'",
        "SELECT set_config('transaction_read_only', 'off', false)",
        "SET transaction_read_only = off",
        "DO $$ BEGIN END $$",
        "BEGIN",
        "",
    ],
)
def test_only_a_query_is_run(told: PostgresStore, text: str) -> None:
    """Everything that is not one SELECT is an input error."""
    with told.open("read") as ledger, pytest.raises(InputError):
        run_sql(ledger, text)


def test_numbers_come_as_numbers(told: PostgresStore) -> None:
    """A sum is an integer and a share a float, as on SQLite; a percent sign is itself."""
    asked = "SELECT sum(position), avg(position), 'a' LIKE 'a%' FROM ledger_events"
    with told.open("read") as ledger:
        _, rows = run_sql(ledger, asked)

    assert rows == [(6, 2.0, True)]
    assert [type(each) for each in rows[0]] == [int, float, bool]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (
            "ALTER TABLE ledger_events DISABLE TRIGGER ledger_events_no_update",
            "changed: trigger=ledger_events/ledger_events_no_update",
        ),
        (
            "DROP TRIGGER ledger_head_forward ON ledger_head",
            "missing: trigger=ledger_head/ledger_head_forward",
        ),
        (
            "ALTER TABLE ledger_devices DROP CONSTRAINT ck_ledger_devices_core_within_cap",
            "missing: constraint=ledger_devices/ck_ledger_devices_core_within_cap",
        ),
        ("CREATE INDEX mine ON ledger_head (epoch)", "an index was added to the database"),
        (
            """CREATE OR REPLACE FUNCTION ledger_head_forward() RETURNS trigger
            LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'""",
            "changed: function=ledger_head_forward",
        ),
        (
            "CREATE RULE mine AS ON INSERT TO ledger_refusals DO INSTEAD NOTHING",
            "a rule was added to the database",
        ),
    ],
)
def test_a_changed_rule_is_found(told: PostgresStore, statement: str, words: str) -> None:
    """What an owner did to the rules of the database is named."""
    with told.raw() as raw, raw.transaction():
        raw.execute(ALLOW)
        raw.execute(statement.encode())
    with told.open("read") as ledger:
        findings = [str(finding) for finding in verify(ledger).findings]

    assert any(words in finding for finding in findings), findings


def test_what_an_owner_altered_is_found_and_made_again(told: PostgresStore) -> None:
    """A counter changed past the rules is a finding; the events put it right."""
    with told.raw() as raw, raw.transaction():
        raw.execute(ALLOW)
        raw.execute("ALTER TABLE ledger_devices DISABLE TRIGGER USER")
        raw.execute("UPDATE ledger_devices SET core_used = 10 WHERE core_used = 60")
        raw.execute("ALTER TABLE ledger_devices ENABLE TRIGGER USER")
    with told.open() as ledger:
        assert not verify(ledger).ok
        report = rebuild(ledger)
        assert not report.equal
        assert "core_used=10 (the events say 60)" in "".join(report.differences)
        assert rebuild(ledger).equal


def test_a_connection_that_was_lost_is_made_again(told: PostgresStore) -> None:
    """An append on a dead connection records nothing and says so; the next one goes through."""
    clock = Clock()
    clock.made = 100
    with told.open() as ledger:
        writer = start(ledger)
        before = writer.head
        with told.raw() as raw:
            raw.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'tenure' AND datname = current_database()"
            )
        with pytest.raises(LedgerError):
            writer.append(clock.all(node("n-2")))
        assert writer.head == before

        assert writer.append(clock.all(node("n-2"))) == before.position + 1
        assert writer.head == ledger.head()
