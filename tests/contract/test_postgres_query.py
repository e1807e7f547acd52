"""
Anyone's SQL on Postgres, asked by somebody who may do everything: it can only look.

The ledger is opened as a superuser, which is what a careless administrator does. The query runs as
the auditor all the same, and a text that names what acts on the server is not run at all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, make_url

from ledger.domain.errors import InputError
from ledger.store import schema
from ledger.store.open import open_ledger
from ledger.store.reading.query import run_sql
from ledger.store.reading.query_postgres import HARMLESS
from ledger.store.writing.statements import Row
from tests.support.postgres import Server
from tests.support.postgres_roles import apply_roles
from tests.support.stores import Clock, PostgresStore, node, refused, reserved, share, start


@pytest.fixture(scope="module")
def told(postgres: Server, empty_postgres: PostgresStore) -> Iterator[PostgresStore]:
    """A ledger with roles, a holder and a refusal."""
    store = empty_postgres.copy()
    with store.open() as ledger:
        start(ledger).append(Clock().all(node(), reserved("a", share(0, 60)), refused("b")))
    engine = create_engine(make_url(store.url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        apply_roles(connection)
    engine.dispose()
    yield store
    postgres.drop(store.database)


def ask(store: PostgresStore, text: str, *, seconds: float = 20.0) -> list[Row]:
    """Run a query as whoever opened the ledger."""
    with store.open("read") as ledger:
        return run_sql(ledger, text, seconds=seconds)[1]


def test_whoever_asks_asks_as_the_auditor(told: PostgresStore) -> None:
    """A superuser's query has the auditor's rights, and sees no password of the server's."""
    assert ask(told, "SELECT current_user::text") == [("ledger_auditor",)]
    with pytest.raises(InputError, match="permission denied for table pg_authid"):
        ask(told, "SELECT rolpassword FROM pg_authid")


def test_who_may_not_be_the_auditor_asks_as_themselves(told: PostgresStore) -> None:
    """The writer is no member of the auditor; its query is read-only and limited all the same."""
    url = make_url(told.url).update_query_dict({"options": "-c role=ledger_writer"})
    with open_ledger(url.render_as_string(hide_password=False), mode="read") as ledger:
        assert run_sql(ledger, "SELECT current_user::text")[1] == [("ledger_writer",)]
        with pytest.raises(InputError, match="functions=nextval"):
            run_sql(ledger, "SELECT nextval('x')")


def test_a_ledger_open_for_writing_is_asked_as_safely(told: PostgresStore) -> None:
    """The limits are of the query, whatever its ledger was opened for."""
    with told.open("write") as ledger:
        _, rows = run_sql(ledger, "SELECT current_user::text, pg_sleep(0) IS NULL")
        assert rows == [("ledger_auditor", False)]
        with pytest.raises(InputError, match="ledger is read-only here"):
            run_sql(ledger, "SELECT 1 FROM ledger_head FOR UPDATE")


def test_a_ledger_without_roles_is_asked_too(postgres_store: PostgresStore) -> None:
    """Where the auditor has no rights on this ledger nobody acts for it."""
    assert ask(postgres_store, "SELECT current_user::text") == [("postgres",)]


def test_limits_are_of_the_transaction(told: PostgresStore) -> None:
    """It is read-only, one snapshot, and stopped in time, whatever the server's defaults are."""
    names = ("transaction_read_only", "transaction_isolation", "statement_timeout", "lock_timeout")
    columns = ", ".join(f"current_setting('{name}')" for name in names)
    assert ask(told, f"SELECT {columns}") == [("on", "repeatable read", "20s", "20s")]


def test_a_query_that_runs_too_long_is_stopped(told: PostgresStore) -> None:
    """A product of everything with everything ends when its time is over."""
    with pytest.raises(InputError, match=r"ran too long and was stopped: limit=0\.3 s"):
        ask(told, "SELECT count(*) FROM generate_series(1, 1000000000000)", seconds=0.3)
    with pytest.raises(InputError, match="ran too long"):
        ask(told, "SELECT pg_sleep(600)", seconds=0.3)


ACTS = {
    "its own time limit": "SELECT set_config('statement_timeout', '0', true)",
    "its own role": "SELECT set_config('role', 'none', true), pg_read_file('/etc/hostname')",
    "its own role, quoted": "SELECT \"set_config\"('role', 'none', true)",
    "its own role, by its full name": "SELECT pg_catalog . SET_CONFIG('role', 'none', true)",
    "its own role, escaped": "SELECT U&\"\\0073et_config\"('role', 'none', true)",
    "its own role, behind a comment": "SELECT set_config/**/('role', 'none', true)",
    "its own role, by another query": (
        "SELECT query_to_xml('SELECT set_co' || 'nfig(''role'', ''none'', true)', true, true, '')"
    ),
    "its own role, by statistics of text": (
        "SELECT * FROM ts_stat('SELECT to_tsvector(set_co' || 'nfig(''role'', ''none'', true))')"
    ),
    "a table as a document": "SELECT table_to_xml('pg_authid', true, true, '')",
    "a file": "SELECT pg_read_file('/etc/hostname')",
    "a binary file": "SELECT pg_read_binary_file('/etc/hostname')",
    "a folder": "SELECT pg_ls_dir('/')",
    "a file as a large object": "SELECT lo_import('/etc/hostname')",
    "a large object into a file": "SELECT lo_export(1, '/etc/hostname')",
    "a large object": "SELECT lo_get(1)",
    "another session": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity",
    "another session's query": "SELECT pg_cancel_backend(1)",
    "a lock that stays": "SELECT pg_advisory_lock(1)",
    "a lock of the transaction": "SELECT pg_advisory_xact_lock(1)",
    "a sequence": "SELECT nextval('mine')",
    "a sequence's value": "SELECT setval('mine', 9)",
    "other sessions' ears": "SELECT pg_notify('tenure', 'x')",
    "a snapshot that others take": "SELECT pg_export_snapshot()",
    "the server's settings": "SELECT pg_reload_conf()",
    "the server's statistics": "SELECT pg_stat_reset()",
    "the log of changes": "SELECT pg_logical_emit_message(false, 'a', 'b')",
    "a replication slot": "SELECT pg_create_physical_replication_slot('mine')",
    "a partition": "SELECT ledger_add_partition(10000000)",
}


@pytest.mark.parametrize("text", ACTS.values(), ids=ACTS)
def test_nothing_is_reached(told: PostgresStore, text: str) -> None:
    """A text that names a function that acts is not run, and the message says which."""
    with pytest.raises(InputError, match=r"functions=|Unicode escapes"):
        ask(told, text)


@pytest.mark.parametrize(
    "text",
    [
        "COPY (SELECT 1) TO PROGRAM 'cat'",
        "COPY ledger_head TO STDOUT",
        "SET ROLE ledger_owner",
        "RESET ROLE",
        "SET SESSION AUTHORIZATION DEFAULT",
        "SELECT 1; SET ROLE postgres",
        "SELECT 1); SET ROLE postgres --",
        "SELECT 1; COMMIT; DROP TABLE ledger_refusals",
        "SELECT 1 INTO mine",
        "SELECT * FROM ledger_head FOR UPDATE",
        "LOCK TABLE ledger_head",
        "CREATE TEMP TABLE mine (id int)",
        "CALL mine()",
        "DO $$ BEGIN PERFORM 1; END $$",
        "PREPARE mine AS SELECT 1",
        "LISTEN tenure",
        "EXPLAIN ANALYZE DELETE FROM ledger_refusals",
        "VACUUM",
        "WITH x AS (INSERT INTO ledger_refusals DEFAULT VALUES RETURNING 1) SELECT * FROM x",
        "TABLE mine",
    ],
)
def test_only_a_query_is_run(told: PostgresStore, text: str) -> None:
    """Whatever is not one SELECT is refused by the server, and leaves nothing behind."""
    with pytest.raises(InputError):
        ask(told, text)
    assert ask(told, "SELECT count(*) FROM ledger_refusals") == [(1,)]


def test_a_function_of_ones_own_counts_too(told: PostgresStore) -> None:
    """A function that someone added is taken to act, unless they said that it does not."""
    with told.raw() as raw:
        raw.execute("CREATE FUNCTION acts() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        raw.execute("CREATE FUNCTION looks() RETURNS int LANGUAGE sql STABLE AS 'SELECT 2'")
    with pytest.raises(InputError, match="functions=acts"):
        ask(told, "SELECT acts()")
    assert ask(told, "SELECT looks()") == [(2,)]


LOOKS = [
    "SELECT count(*) FROM audit_refusals WHERE namespace <> 'kube-system'",
    "SELECT now() IS NOT NULL, random() >= 0, version() IS NOT NULL",
    "SELECT pg_total_relation_size('ledger_events') > 0",
    "SELECT position('a' in 'ba'), date '2026-03-02', 'U&' || 'x'",
    "WITH a AS (SELECT 1 AS n) SELECT * FROM a UNION ALL VALUES (2)",
    "SELECT current_setting('server_version')",
]


@pytest.mark.parametrize("text", LOOKS)
def test_what_only_looks_is_run(told: PostgresStore, text: str) -> None:
    """Everyday words and functions are no ones that act."""
    assert ask(told, text)


def test_no_column_of_ours_is_taken_for_an_action(told: PostgresStore) -> None:
    """Every column of every table and view can be asked for by its name."""
    relations = ask(
        told,
        "SELECT table_name::text, column_name::text FROM information_schema.columns"
        " WHERE table_schema = 'public'",
    )
    assert {table for table, _ in relations} >= set(schema.METADATA.tables)
    for table in sorted({table for table, _ in relations}):
        columns = ", ".join(f'"{column}"' for each, column in relations if each == table)
        ask(told, f"SELECT {columns} FROM {table} LIMIT 1")


def test_what_is_harmless_is_there(told: PostgresStore) -> None:
    """Every exception is a function that the server has and takes for one that acts."""
    query = "SELECT DISTINCT proname::text FROM pg_proc WHERE provolatile = 'v'"
    assert {name for (name,) in ask(told, query)} >= HARMLESS
