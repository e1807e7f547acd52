"""Many events in one transaction leave the rows that they leave one by one, on both databases."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledger.domain.log.events import LedgerEvent, PlanDropped
from ledger.domain.log.recorded import NewEvent
from ledger.store import schema
from ledger.store.proving.verify import verify
from ledger.store.reading.tables import in_key_order, rows_of
from ledger.store.writing.commands import Command, Recorded
from tests.property.test_ledger_histories import EVENTS
from tests.support.examples import examples
from tests.support.postgres import Server
from tests.support.stores import Clock, PostgresStore, SqliteStore, Store, node, planned, start

Tables = dict[str, list[tuple[Any, ...]]]
PLANS = st.builds(
    lambda group, pod, minors, name: planned(group, (pod, tuple(sorted(minors))), node=name),
    st.sampled_from(["g", "h"]),
    st.sampled_from([f"p{i}" for i in range(8)]),
    st.sets(st.integers(0, 2), min_size=1, max_size=2),
    st.sampled_from(["n-1", "n-2"]),
)
DROPS = st.sampled_from(["g", "h"]).map(lambda group: PlanDropped(group=group, reason="gone"))
MIXED = st.lists(st.one_of(EVENTS, EVENTS, EVENTS, PLANS, DROPS), min_size=1, max_size=24)
SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
FIRST = (node("n-1", cpus=4, gpus=3), node("n-2", cpus=4, gpus=3))


def recorded_by(store: Store, made: Sequence[NewEvent], size: int) -> tuple[list[bool], Tables]:
    """Record each event as a command, so many together; return who got in, and every row."""
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(Clock().all(*FIRST))
        commands = [Command(events=(each,)) for each in made]
        answers = [
            isinstance(answer, Recorded)
            for at in range(0, len(commands), size)
            for answer in writer.record(commands[at : at + size])
        ]
        assert verify(ledger).findings == ()
        with ledger.connection.begin():
            tables = {
                table.name: list(rows_of(ledger.connection, in_key_order(table)))
                for table in schema.METADATA.sorted_tables
            }
    return answers, tables


def same_rows(make: Callable[[], Store], events: Sequence[LedgerEvent], size: int) -> None:
    """Compare batches of `size` with one event at a time, and with what got in all at once."""
    clock = Clock()
    clock.made = 100  # other keys than those of the first events
    made = clock.all(*events)
    alone, rows = recorded_by(make(), made, 1)
    together, batched = recorded_by(make(), made, size)

    assert together == alone
    assert batched == rows
    good = [each for each, got_in in zip(made, alone, strict=True) if got_in]
    if good:
        _, at_once = recorded_by(make(), good, len(good))
        assert at_once == rows


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    """A migrated ledger without events."""
    store = SqliteStore(path=tmp_path_factory.mktemp("waves") / "empty.db")
    store.open("create").close()
    return store


@settings(max_examples=examples(60), suppress_health_check=SLOW)
@given(events=MIXED, size=st.integers(2, 24))
def test_a_batch_in_a_file_is_its_events_one_by_one(
    empty: SqliteStore, tmp_path: Path, events: list[LedgerEvent], size: int
) -> None:
    """Ends, facts and openings of one card in any order: the same answers and the same rows."""
    made = 0

    def make() -> SqliteStore:
        nonlocal made
        made += 1
        path = tmp_path / f"ledger-{made}.db"
        for old in tmp_path.glob(f"{path.name}*"):
            old.unlink()
        return SqliteStore(path=Path(shutil.copy(empty.path, path)))

    same_rows(make, events, size)


@settings(max_examples=6, deadline=None, suppress_health_check=SLOW)
@given(events=MIXED, size=st.integers(2, 24))
def test_a_batch_on_postgres_is_its_events_one_by_one(
    postgres: Server, empty_postgres: PostgresStore, events: list[LedgerEvent], size: int
) -> None:
    """The same where statements carry many rows in one message."""
    made: list[str] = []

    def make() -> PostgresStore:
        made.append(postgres.new_database(empty_postgres.database))
        return PostgresStore(server=postgres, database=made[-1])

    try:
        same_rows(make, events, size)
    finally:
        for database in made:
            postgres.drop(database)
