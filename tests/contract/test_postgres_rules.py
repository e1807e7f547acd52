"""
Anyone with a connection and a SQL prompt: what Postgres itself refuses, past our own code.

Rule: design section 4, "Append-only by the database, not by habit".

The statements are those that SQLite is tried with, in Postgres's words, and must be refused in the
same words. Beside them stands what only a server has: roles, partitions, replication roles.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import errors
from sqlalchemy import Engine, create_engine, make_url

from ledger.domain.errors import CapacityError, LedgerError
from ledger.domain.log.events import LedgerEvent
from ledger.store import schema
from ledger.store.ddl import sqlite_triggers
from ledger.store.open import Ledger, Mode, open_ledger
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from tests.contract.test_ledger_cheats import (
    BORROWED,
    EVENT,
    REFUSED,
    borrowed_events,
    full_events,
    holding,
)
from tests.support.postgres import Server
from tests.support.postgres_roles import apply_roles
from tests.support.stores import (
    Clock,
    PostgresStore,
    health,
    node,
    observed,
    refused,
    released,
    reserved,
    share,
    start,
)

Raw = psycopg.Connection[Any]

OTHER_WORDS = {
    "editing an event over another one": (
        "UPDATE ledger_events SET position = 2 WHERE position = 3",
        REFUSED["editing an event over another one"][1],
    ),
    "emptying a card's counters": (
        "UPDATE ledger_devices SET core_used = 0, memory_used = 0, tenants = 0 WHERE minor = 0",
        "what is used of a card is the sum of its holdings: n-1/gpu/0",
    ),
    "a second holder that ignores conflicts": (
        f"{holding(position=5)} ON CONFLICT DO NOTHING",
        "no reservation at position 5 asks for this card",
    ),
    "a second holder of a full card": (
        holding(position=3, device="2"),
        "no reservation at position 3 asks for this card",
    ),
}
"""Cases whose statement or order of checks differs: foreign keys hold on this database."""


def in_postgres(name: str, sql: str, message: str) -> tuple[str, str]:
    """Return the statement in Postgres's words, and what it must be refused with."""
    if name in OTHER_WORDS:
        return OTHER_WORDS[name]
    zero = "decode(repeat('00', 32), 'hex')"
    sql = sql.replace("INSERT OR REPLACE", "INSERT").replace("zeroblob(32)", zero)
    return sql.replace("UPDATE OR IGNORE", "UPDATE").replace("UPDATE OR REPLACE", "UPDATE"), message


ROW_ID = re.compile(r"\b(_?rowid_?|oid)\b")
"""A row's other names, which only SQLite has."""
CHEATS = {
    name: in_postgres(name, *case) for name, case in REFUSED.items() if not ROW_ID.search(case[0])
}
LOANS = {name: in_postgres(name, *case) for name, case in BORROWED.items()}


@contextmanager
def written(server: Server, template: str, *events: LedgerEvent) -> Iterator[PostgresStore]:
    """Yield a ledger with these events, in a database of its own."""
    store = PostgresStore(server=server, database=server.new_database(template))
    with store.open() as ledger:
        start(ledger).append(Clock().all(*events))
    yield store
    server.drop(store.database)


@pytest.fixture(scope="module")
def full(postgres: Server, empty_postgres: PostgresStore) -> Iterator[PostgresStore]:
    """A ledger whose card n-1/gpu/0 is full: events 1 to 9."""
    with written(postgres, empty_postgres.database, *full_events()) as store:
        engine = administrator(store)
        with engine.connect() as connection:
            apply_roles(connection)
        engine.dispose()
        yield store


@pytest.fixture(scope="module")
def borrowed(postgres: Server, empty_postgres: PostgresStore) -> Iterator[PostgresStore]:
    """Cards whose events a cheat may point at: n-1 at 2 and 8, n-2 at 9, a death on n-2 at 10."""
    with written(postgres, empty_postgres.database, *borrowed_events()) as store:
        yield store


def administrator(store: PostgresStore) -> Engine:
    """Return an engine of the superuser."""
    return create_engine(make_url(store.url).set(drivername="postgresql+psycopg"))


def rows(raw: Raw) -> list[Any]:
    """Return a digest of every row of every table."""
    return [
        raw.execute(
            f"SELECT md5(string_agg(t::text, ' ' ORDER BY t::text)) FROM {table} AS t"
        ).fetchone()
        for table in schema.METADATA.tables
    ]


def refuses(raw: Raw, sql: str, message: str) -> None:
    """Expect the database to refuse a statement in these words and to change nothing."""
    before = rows(raw)
    with pytest.raises(psycopg.Error) as refusal:
        raw.execute(sql.encode())
    assert message in str(refusal.value.diag.message_primary)
    assert refusal.value.sqlstate == "TL001"
    assert rows(raw) == before


@contextmanager
def acting_as(store: PostgresStore, role: str) -> Iterator[Raw]:
    """Connect with the rights of a role."""
    with store.raw() as raw:
        raw.execute(f"SET SESSION AUTHORIZATION {role}".encode())
        yield raw


def opened_as(store: PostgresStore, role: str, mode: Mode = "write") -> Ledger:
    """Open the ledger through the store with the rights of a role."""
    url = make_url(store.url).update_query_dict({"options": f"-c role={role}"})
    return open_ledger(url.render_as_string(hide_password=False), mode=mode)


@pytest.mark.parametrize("replica", [False, True], ids=["", "as a replica"])
@pytest.mark.parametrize(("sql", "message"), CHEATS.values(), ids=CHEATS)
def test_the_database_refuses(
    full: PostgresStore, sql: str, message: str, *, replica: bool
) -> None:
    """A superuser is told the place and changes nothing, with foreign keys asleep or not."""
    with full.raw() as raw:
        if replica:
            raw.execute("SET session_replication_role = replica")
        refuses(raw, sql, message)


@pytest.mark.parametrize(("sql", "message"), LOANS.values(), ids=LOANS)
def test_an_event_speaks_for_its_own_rows_only(
    borrowed: PostgresStore, sql: str, message: str
) -> None:
    """A row that points at an event must be what the body of that event says, and of its node."""
    with borrowed.raw() as raw:
        refuses(raw, sql, message)


def test_a_share_of_nothing_is_no_second_holder(postgres_store: PostgresStore) -> None:
    """A reservation whose card was never taken cannot take a full one by asking for nothing."""
    with postgres_store.open() as ledger:
        start(ledger).append(Clock().all(node(), reserved("a", share(0, 100)), reserved("b")))
    with postgres_store.raw() as raw:
        refuses(
            raw,
            "INSERT INTO ledger_holdings (position, device_no, minor, core_percent, memory_bytes,"
            " memory_ratio_percent, exclusive, instances, kind, opened_at_us)"
            " SELECT position, 1, 0, 0, 0, 0, 0, 1, kind, opened_at_us"
            " FROM ledger_reservations WHERE pod_name = 'b'",
            "has 0 of 100 percent core left, 0 asked",
        )


BY_ANY_WORD = {
    "update": "UPDATE ledger_events SET body = '{}' WHERE position = 3",
    "delete": "DELETE FROM ledger_events WHERE position = 3",
    "truncate": "TRUNCATE ledger_events",
    "truncate everything": "TRUNCATE ledger_nodes CASCADE",
    "truncate a partition": "TRUNCATE ledger_events_0",
    "upsert": EVENT.format(how="", position=3, version=2, key="idempotency_key")
    + " ON CONFLICT (position) DO UPDATE SET body = '{}'",
    "merge": "MERGE INTO ledger_events AS e USING (SELECT 3 AS p) AS s ON e.position = s.p"
    " WHEN MATCHED THEN UPDATE SET body = '{}'",
    "merge to delete": "MERGE INTO ledger_events AS e USING (SELECT 3 AS p) AS s"
    " ON e.position = s.p WHEN MATCHED THEN DELETE",
    "detach a partition": "ALTER TABLE ledger_events DETACH PARTITION ledger_events_0",
    "disable a rule": "ALTER TABLE ledger_events DISABLE TRIGGER ledger_events_no_update",
    "a rule that rewrites": "CREATE RULE mine AS ON INSERT TO ledger_refusals DO INSTEAD NOTHING",
    "another function for a rule": "CREATE OR REPLACE FUNCTION ledger_events_no_delete()"
    " RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN OLD; END'",
    "a trigger that swallows rows": "CREATE TRIGGER mine BEFORE INSERT ON ledger_events"
    " FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
    "a policy that hides rows": "CREATE POLICY mine ON ledger_events USING (false)",
    "another name for the log": "ALTER TABLE ledger_events RENAME TO mine",
    "another schema for a table": "ALTER TABLE ledger_refusals SET SCHEMA information_schema",
    "drop a rule": "DROP TRIGGER ledger_events_no_update ON ledger_events",
    "drop a partition": "DROP TABLE ledger_events_0",
    "drop the log": "DROP TABLE ledger_events CASCADE",
}


@pytest.mark.parametrize("sql", BY_ANY_WORD.values(), ids=BY_ANY_WORD)
def test_the_superuser_is_refused_by_a_rule(full: PostgresStore, sql: str) -> None:
    """Whatever statement would take an event away or a rule, a rule is in the way."""
    with full.raw() as raw:
        refuses(raw, sql, "tenure ledger: ")


@pytest.mark.parametrize("role", ["ledger_writer", "ledger_auditor"])
@pytest.mark.parametrize("sql", BY_ANY_WORD.values(), ids=BY_ANY_WORD)
def test_a_role_is_refused_by_its_rights(full: PostgresStore, sql: str, role: str) -> None:
    """Who appends or audits lacks the right before any rule is asked."""
    with acting_as(full, role) as raw, pytest.raises(errors.InsufficientPrivilege):
        raw.execute(sql.encode())


WRITER_MAY_NOT = {
    "silence the rules": "SET session_replication_role = replica",
    "move a counter": "UPDATE ledger_devices SET core_used = 0",
    "move a CPU's counter": "UPDATE ledger_cpus SET ref_used = 0",
    "end a holding": "UPDATE ledger_holdings SET closed_position = 9, closed_at_us = 9",
    "count a stream": "UPDATE ledger_streams SET version = version + 1",
    "make up a stream": "INSERT INTO ledger_streams VALUES ('mine', 1)",
    "call a partition into being": "SELECT ledger_add_partition(99)",
    "make a table": "CREATE TABLE public.mine (id int)",
    "become the owner": "SET ROLE ledger_owner",
}


@pytest.mark.parametrize("sql", WRITER_MAY_NOT.values(), ids=WRITER_MAY_NOT)
def test_the_writer_may_not(full: PostgresStore, sql: str) -> None:
    """Only the rules move what is counted; the writer's own rights do not reach it."""
    with acting_as(full, "ledger_writer") as raw, pytest.raises(errors.InsufficientPrivilege):
        raw.execute(sql.encode())


def test_the_writer_borrows_no_rights_of_the_rules(full: PostgresStore) -> None:
    """A function that runs as the owner can't be hung on a table of the writer's own."""
    with acting_as(full, "ledger_writer") as raw:
        raw.execute("CREATE TEMP TABLE mine (stream text, stream_version bigint)")
        with pytest.raises(errors.InsufficientPrivilege):
            raw.execute(
                "CREATE TRIGGER mine BEFORE INSERT ON mine"
                " FOR EACH ROW EXECUTE FUNCTION ledger_events_append()"
            )


def test_a_table_of_ones_own_shadows_nothing(full: PostgresStore) -> None:
    """A temporary table called like one of ours does not answer the rules' questions."""
    with acting_as(full, "ledger_writer") as raw:
        raw.execute("CREATE TEMP TABLE ledger_head AS SELECT 99::bigint AS position")
        with pytest.raises(psycopg.Error) as refusal:
            raw.execute(EVENT.format(how="", position=10, version=9, key="'x'").encode())
        assert "beyond the head" in str(refusal.value)


def test_the_writer_appends(full: PostgresStore, postgres: Server) -> None:
    """With its few rights the writer records a whole life, and full cards stay full."""
    copy = PostgresStore(server=postgres, database=postgres.new_database(full.database))
    with opened_as(copy, "ledger_writer") as ledger:
        writer, clock = start(ledger, "next"), Clock()
        clock.made = 100
        with pytest.raises(CapacityError, match="has 0 of 100 percent core left, 10 asked"):
            writer.append(clock.all(reserved("e", share(0, 10))))
        writer.append(clock.all(released("a"), reserved("e", share(0, 60), cpus=(0,))))
        writer.append(clock.all(node(cpus=4), health(3, healthy=True), refused("f")))
        head = writer.append(clock.all(observed("y", node="n-9", unknown_types=("gpu",))))
        assert head == 16
    with copy.raw() as raw:
        row = raw.execute("SELECT core_used, tenants FROM ledger_devices WHERE device_no = 1")
        assert row.fetchone() == (100, 2)
    postgres.drop(copy.database)


def test_the_auditor_reads(full: PostgresStore) -> None:
    """The auditor sees the views and what a proof needs, and writes nothing."""
    with acting_as(full, "ledger_auditor") as raw:
        for table in (*schema.METADATA.tables, "audit_devices"):
            raw.execute(f"SELECT * FROM {table} LIMIT 1".encode())
        with pytest.raises(errors.InsufficientPrivilege):
            raw.execute("INSERT INTO ledger_checkpoints VALUES (1, 'x')")
    with opened_as(full, "ledger_auditor", "read") as ledger:
        assert verify(ledger).findings == ()


def test_the_owner_rebuilds(full: PostgresStore) -> None:
    """Making the projections again is for the owner of the tables, not for the writer."""
    with opened_as(full, "ledger_owner") as ledger:
        assert rebuild(ledger).equal
    with pytest.raises(LedgerError), opened_as(full, "ledger_writer") as ledger:
        rebuild(ledger)


def test_a_ledger_needs_no_superuser(postgres: Server) -> None:
    """Its database's owner can make it; all rules but those about DDL are there."""
    store = PostgresStore(server=postgres, database=postgres.new_database())
    plain = f"{store.database}_plain"
    postgres.run(f"CREATE ROLE {plain}")
    postgres.run(f"ALTER DATABASE {store.database} OWNER TO {plain}")
    with opened_as(store, plain, "create") as ledger:
        start(ledger).append(Clock().all(node(), reserved("a", share(0, 50))))
    with store.open("read") as ledger:
        assert verify(ledger).findings == ()
    with store.raw() as raw:
        refuses(raw, "TRUNCATE ledger_events", "events are never deleted")
    postgres.drop(store.database)
    postgres.run(f"DROP ROLE {plain}")


NEXT = (
    "INSERT INTO ledger_events SELECT 9 + n, stream, 7 + n, event_type, body, actor, epoch, NULL,"
    " correlation_id, 'more:' || n, args_hash, at_us + 9, wall_us, leaf_hash, chain_hash"
    " FROM ledger_events, generate_series({numbers}) AS n WHERE position = 9"
)
MOVE = (
    "UPDATE ledger_head SET position = {position}, at_us = at_us + 9,"
    " chain_hash = decode(repeat('ab', 32), 'hex')"
)


@contextmanager
def undone(store: PostgresStore) -> Iterator[Raw]:
    """Yield a connection whose work is rolled back."""
    with store.raw() as raw, raw.transaction(force_rollback=True):
        yield raw


def test_many_rows_in_one_statement_are_dense_too(full: PostgresStore) -> None:
    """The rule of the next position and the streams hold from row to row of one INSERT."""
    with undone(full) as raw:
        raw.execute(MOVE.format(position=14).encode())
        last = raw.execute("SELECT stream_version FROM ledger_events WHERE position = 9").fetchone()
        assert last is not None
        sql = NEXT.replace("7 + n", f"{last[0]} + n")
        raw.execute(sql.format(numbers="1, 3").encode())
        with pytest.raises(psycopg.Error, match="the next position is 13, not 15"):
            raw.execute(sql.format(numbers="6, 8").encode())


def test_positions_with_a_gap_inside_of_a_statement(full: PostgresStore) -> None:
    """The second row of an INSERT may not leave one out."""
    with undone(full) as raw:
        raw.execute(MOVE.format(position=14).encode())
        with pytest.raises(psycopg.Error, match="the next position is 11, not 12"):
            raw.execute(NEXT.format(numbers="1, 5, 2").encode())


def test_two_holders_in_one_statement_are_refused(full: PostgresStore) -> None:
    """Rows that a statement brings together are no way around the sum of a card."""
    with full.raw() as raw, pytest.raises(psycopg.Error, match="tenure ledger: "):
        raw.execute(
            f"{holding(position=3, device='6')} UNION ALL SELECT 4, 6, 0, 90, 1, 0, 0, 1,"
            " 'granted', opened_at_us FROM ledger_reservations WHERE position = 4".encode()
        )


def test_two_sessions_cannot_share_what_is_left_of_a_card(
    postgres_store: PostgresStore,
) -> None:
    """Who comes second waits for the first, and then sees what the first took."""
    with postgres_store.open() as ledger:
        start(ledger).append(Clock().all(node(), *(reserved(pod) for pod in "ab")))
    take = (
        "INSERT INTO ledger_holdings (position, device_no, minor, core_percent, memory_bytes,"
        " memory_ratio_percent, exclusive, instances, kind, opened_at_us)"
        " SELECT position, 1, 0, 60, 1, 0, 0, 1, kind, opened_at_us"
        " FROM ledger_reservations WHERE pod_name = '{pod}'"
    )
    with postgres_store.raw() as raw:
        raw.execute("SET tenure.migration = 'on'")
        raw.execute("ALTER TABLE ledger_reservations DISABLE TRIGGER ledger_reservations_update")
        raw.execute("UPDATE ledger_reservations SET device_count = 1")
    with (
        postgres_store.raw() as first,
        postgres_store.raw() as second,
        ThreadPoolExecutor(1) as other,
    ):
        with first.transaction():
            first.execute(take.format(pod="a").encode())
            waiting = other.submit(second.execute, take.format(pod="b").encode())
            with pytest.raises(TimeoutError):
                waiting.result(0.3)
        with pytest.raises(psycopg.Error, match="has 40 of 100 percent core left, 60 asked"):
            waiting.result(5)


def test_an_owner_who_silences_a_rule_is_found(full: PostgresStore, postgres: Server) -> None:
    """What only the owner of the database can do, verify names."""
    copy = PostgresStore(server=postgres, database=postgres.new_database(full.database))
    with copy.raw() as raw:
        raw.execute("SET tenure.migration = 'on'")
        raw.execute("ALTER TABLE ledger_events DISABLE TRIGGER ledger_events_no_update")
    with copy.open("read") as ledger:
        texts = [finding.text for finding in verify(ledger).findings]
    postgres.drop(copy.database)

    assert any("ledger_events_no_update" in text for text in texts), texts


def test_a_ledger_that_was_tried_still_proves_itself(full: PostgresStore) -> None:
    """After every refused statement in a row, all of it verifies."""
    with full.raw() as raw:
        for sql, _ in CHEATS.values():
            with pytest.raises(psycopg.Error):
                raw.execute(sql.encode())
    with full.open("read") as ledger:
        assert verify(ledger).findings == ()


def test_every_rule_always_fires_and_looks_in_one_place(full: PostgresStore) -> None:
    """No rule sleeps on a replica, asks a table of the caller's own, or is for anyone to use."""
    with full.raw() as raw:
        asleep = raw.execute(
            "SELECT tgrelid::regclass::text, tgname FROM pg_trigger WHERE NOT tgisinternal"
            " AND tgenabled <> 'A' AND starts_with(tgrelid::regclass::text, 'ledger_')"
        ).fetchall()
        loose = raw.execute(
            "SELECT proname FROM pg_proc WHERE starts_with(proname, 'ledger_') AND (proconfig"
            " IS NULL OR has_function_privilege('ledger_auditor', oid, 'EXECUTE'))"
        ).fetchall()
        no_truncate = raw.execute(
            "SELECT relname FROM pg_class AS c WHERE relkind IN ('r', 'p')"
            " AND starts_with(relname, 'ledger_') AND NOT EXISTS (SELECT 1 FROM pg_trigger"
            " WHERE tgrelid = c.oid AND (tgtype & 32) > 0)"
        ).fetchall()
    assert (asleep, loose) == ([], [])
    assert no_truncate == [("ledger_snapshots",)]  # may always be deleted: made again from events


def test_roles_are_given_again_after_a_migration(full: PostgresStore) -> None:
    """Giving the rights a second time changes nothing."""
    engine = administrator(full)
    query = "SELECT relname, relowner::regrole::text, relacl::text FROM pg_class ORDER BY relname"
    with full.raw() as raw, engine.connect() as connection:
        before = raw.execute(query).fetchall()
        apply_roles(connection)
        assert sorted(map(_sorted_rights, raw.execute(query))) == sorted(
            map(_sorted_rights, before)
        )
    engine.dispose()


def _sorted_rights(row: tuple[str, str, str | None]) -> tuple[str, str, list[str]]:
    name, owner, rights = row
    return name, owner, sorted((rights or "").strip("{}").split(","))


IN_ANOTHER: dict[tuple[str, ...], tuple[str, str]] = {
    ("ledger_events_count", "ledger_events"): ("ledger_events_append", "ledger_events"),
    ("ledger_events_first", "ledger_events"): ("ledger_events_append", "ledger_events"),
    ("ledger_holdings_place", "ledger_holdings"): ("ledger_holdings_take", "ledger_holdings"),
    ("ledger_reservations_close_more", "ledger_reservations"): (
        "ledger_reservations_close",
        "ledger_reservations",
    ),
    ("ledger_reservations_fixed", "ledger_reservations"): (
        "ledger_reservations_update",
        "ledger_reservations",
    ),
}
"""Rules of SQLite that one of another name keeps here."""


def test_every_rule_of_the_file_is_a_rule_of_the_server(full: PostgresStore) -> None:
    """No trigger of SQLite is without its counterpart on the same table."""
    with full.raw() as raw:
        found = raw.execute(
            "SELECT tgname, tgrelid::regclass::text FROM pg_trigger WHERE NOT tgisinternal"
        ).fetchall()
    pattern = re.compile(r"CREATE TRIGGER (\w+)\s.*?\sON (\w+)", re.DOTALL)
    names = {made.groups() for text in sqlite_triggers.TRIGGERS if (made := pattern.match(text))}
    assert len(names) == len(sqlite_triggers.TRIGGERS)
    assert {IN_ANOTHER.get(each, each) for each in names} <= set(found)
