"""
Partitions of the log on Postgres: made ahead, whole, and without anybody waiting.

Nobody appends ten million events in a test: the head is moved in a transaction that is undone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from ledger.store.ddl.postgres_log import AHEAD_EVENTS, PARTITION_EVENTS
from ledger.store.proving.damage import changed_rules
from tests.support.postgres import Server
from tests.support.stores import Clock, PostgresStore, node, start

Raw = psycopg.Connection[Any]
MARK = PARTITION_EVENTS - AHEAD_EVENTS


@pytest.fixture(scope="module")
def told(postgres: Server, empty_postgres: PostgresStore) -> Iterator[PostgresStore]:
    """A ledger with two events."""
    store = empty_postgres.copy()
    with store.open() as ledger:
        start(ledger).append(Clock().all(node()))
    yield store
    postgres.drop(store.database)


@contextmanager
def undone(store: PostgresStore) -> Iterator[Raw]:
    """Yield a connection whose work is rolled back."""
    with store.raw() as raw, raw.transaction(force_rollback=True):
        yield raw


def move(raw: Raw, position: int) -> None:
    """Move the head, as an append does before its events come."""
    raw.execute(
        "UPDATE ledger_head SET position = %s, at_us = at_us + 9,"
        " chain_hash = decode(repeat('ab', 32), 'hex')",
        [position],
    )


def partitions(raw: Raw) -> list[str]:
    """Return the names of the log's partitions."""
    found = raw.execute(
        "SELECT inhrelid::regclass::text FROM pg_inherits"
        " WHERE inhparent = 'ledger_events'::regclass ORDER BY 1"
    )
    return [name for (name,) in found]


def test_the_next_partition_is_made_ahead(told: PostgresStore) -> None:
    """A tenth before the end of a partition the next one is there, and no sooner."""
    with undone(told) as raw:
        move(raw, MARK - 1)
        assert partitions(raw) == ["ledger_events_0"]
        move(raw, MARK)
        assert partitions(raw) == ["ledger_events_0", "ledger_events_1"]
        move(raw, PARTITION_EVENTS + MARK - 1)
        assert partitions(raw) == ["ledger_events_0", "ledger_events_1"]
        move(raw, PARTITION_EVENTS + MARK + 1)
        assert partitions(raw) == [f"ledger_events_{number}" for number in range(3)]


def test_a_long_way_makes_every_partition_on_it(told: PostgresStore) -> None:
    """A head that goes on by more than a partition leaves none out."""
    with undone(told) as raw:
        move(raw, 3 * PARTITION_EVENTS)
        assert partitions(raw) == [f"ledger_events_{number}" for number in range(4)]


def test_a_partition_that_went_missing_is_made_before_its_first_event(
    told: PostgresStore,
) -> None:
    """Whatever became of the one that was made ahead, the head does not come without one."""
    with undone(told) as raw:
        move(raw, MARK)
        raw.execute("SET LOCAL tenure.migration = 'on'")
        raw.execute("DROP TABLE ledger_events_1")
        move(raw, PARTITION_EVENTS - 1)
        assert partitions(raw) == ["ledger_events_0"]
        move(raw, PARTITION_EVENTS)
        assert partitions(raw) == ["ledger_events_0", "ledger_events_1"]


def test_nobody_waits_for_a_partition(told: PostgresStore) -> None:
    """It is attached beside readers: the log is locked against changes of its schema alone."""
    with told.raw() as reader, reader.transaction(), undone(told) as raw:
        reader.execute("SELECT * FROM ledger_events").fetchall()
        raw.execute("SET LOCAL lock_timeout = '2s'")
        move(raw, MARK)
        found = raw.execute(
            "SELECT DISTINCT mode FROM pg_locks WHERE pid = pg_backend_pid()"
            " AND relation IN ('ledger_events'::regclass, 'ledger_events_0'::regclass)"
        )
        modes = {mode for (mode,) in found}
        assert "ShareUpdateExclusiveLock" in modes
        assert modes <= {"AccessShareLock", "RowShareLock", "ShareUpdateExclusiveLock"}
        assert len(reader.execute("SELECT * FROM ledger_events").fetchall()) == 2


def test_a_partition_is_as_the_first_one(told: PostgresStore) -> None:
    """It has every rule, always in force, and its own key; verify finds nothing wrong with it."""
    with undone(told) as raw:
        move(raw, MARK)
        rules = raw.execute(
            "SELECT tgrelid::regclass::text, array_agg(tgname || tgenabled::text ORDER BY tgname)"
            " FROM pg_trigger WHERE tgrelid::regclass::text LIKE 'ledger_events_%'"
            " AND NOT tgisinternal GROUP BY 1"
        ).fetchall()
        assert {name for name, _ in rules} == {"ledger_events_0", "ledger_events_1"}
        assert rules[0][1] == rules[1][1]
        assert all(each.endswith("A") for each in rules[0][1])
        with pytest.raises(psycopg.Error, match="events are never deleted"):
            raw.execute("TRUNCATE ledger_events_1")


def test_partitions_made_by_hand_are_no_damage(
    postgres: Server, empty_postgres: PostgresStore
) -> None:
    """What `ledger_add_partition` makes is what verify expects of a partition."""
    store = empty_postgres.copy()
    with store.raw() as raw:
        raw.execute("SELECT ledger_add_partition(10000000)")
    with store.open("read") as ledger, ledger.connection.begin():
        assert list(changed_rules(ledger.connection)) == []
    postgres.drop(store.database)
