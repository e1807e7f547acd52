"""Appending: dense positions, hashes, idempotency, expected versions, all or nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.domain.errors import (
    CapacityError,
    CorruptLedgerError,
    FencedError,
    IdempotencyError,
    InputError,
    LedgerError,
    StaleStreamError,
)
from ledger.domain.log.events import PodReserved
from ledger.domain.proofs.hashing import GENESIS, chain_hash
from ledger.store.proving.verify import verify
from tests.support.log_proofs import leaf_hash
from tests.support.stores import (
    MONDAY_US,
    ORIGIN,
    Clock,
    PostgresStore,
    SqliteStore,
    Store,
    node,
    released,
    reserved,
    share,
    start,
)


def test_positions_are_dense_and_every_event_links_to_the_one_before(store: Store) -> None:
    """What is appended comes back in order, chained from the genesis value, words unchanged."""
    clock = Clock()
    events = clock.all(node(), reserved("a", share()), released("a"))
    with store.open() as ledger:
        head = start(ledger).append(events)
        recorded = list(ledger.read_events())

    assert head == 4
    assert [each.envelope.position for each in recorded] == [1, 2, 3, 4]
    assert [each.event for each in recorded[1:]] == [new.event for new in events]
    previous = GENESIS
    for each in recorded:
        assert each.leaf_hash == leaf_hash(each.envelope)
        previous = chain_hash(previous, each.leaf_hash)
        assert each.chain_hash == previous


def test_the_head_is_the_last_event(store: Store) -> None:
    """The head row, the writer and the last event agree on position, chain value and time."""
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(Clock().all(node()))
        last = list(ledger.read_events())[-1]

        assert writer.head == ledger.head()
        assert writer.head.position == last.envelope.position
        assert writer.head.chain_hash == last.chain_hash
        assert writer.head.at_us == last.envelope.at_us


def test_streams_count_for_themselves(store: Store) -> None:
    """Each stream's versions are 1, 2, 3, whatever is between them."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node("n-1"), node("n-2")))
        writer.append(clock.all(reserved("a", share(node="n-2"), node="n-2")))
        versions = {
            (each.envelope.stream, each.envelope.stream_version) for each in ledger.read_events()
        }

        assert writer.stream_version("node/uid-n-2") == 2
    assert versions == {("sys", 1), ("node/uid-n-1", 1), ("node/uid-n-2", 1), ("node/uid-n-2", 2)}


def test_time_never_stands_still_or_runs_back(store: Store) -> None:
    """The order's time is the clock's, or a microsecond after the event before; both are kept."""
    clock = Clock()
    events = [clock.new(node(f"n-{i}"), at_us=MONDAY_US + at) for i, at in enumerate((50, 50, 10))]
    with store.open() as ledger:
        start(ledger).append(events)
        recorded = list(ledger.read_events())[1:]

    assert [each.envelope.at_us - MONDAY_US for each in recorded] == [50, 51, 52]
    assert [each.envelope.wall_us - MONDAY_US for each in recorded] == [50, 50, 10]


def test_the_same_events_give_the_same_bytes(store: Store, tmp_path: Path) -> None:
    """Two ledgers fed alike have the same chain value, in one commit or in many."""
    heads = []
    for name, size in (("one.db", 3), ("many.db", 1)):
        copy = store.copy(tmp_path / name)
        events = Clock().all(node(), reserved("a", share()), released("a"))
        with copy.open() as ledger:
            writer = start(ledger)
            for first in range(0, 3, size):
                writer.append(events[first : first + size])
            heads.append(ledger.head())

    assert heads[0] == heads[1]


def test_a_repeated_command_is_recorded_once(store: Store) -> None:
    """The same key with the same arguments changes nothing, alone or inside a larger batch."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append([clock.new(node(), key="inventory")])
        assert writer.append([clock.new(node(), key="inventory")]) == 2
        head = writer.append(
            [
                clock.new(reserved("a", share()), key="a"),
                clock.new(node(), key="inventory"),
                clock.new(reserved("a", share()), key="a"),
            ]
        )

        assert head == 3
        assert writer.head == ledger.head()
        assert len(list(ledger.read_events())) == 3


def test_a_key_with_other_arguments_is_refused(store: Store) -> None:
    """The same key for another command is an error, and nothing of its batch is recorded."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append([clock.new(node(), key="inventory")])
        before = writer.head
        with pytest.raises(IdempotencyError, match="idempotency_key=inventory"):
            writer.append([clock.new(node("n-2")), clock.new(node("n-3"), key="inventory")])

        assert writer.head == ledger.head() == before


def test_a_decision_on_an_older_version_is_stale(store: Store) -> None:
    """A stream that moved since the decision refuses the append before anything is written."""
    clock = Clock()
    stream = "node/uid-n-1"
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node()), expected={stream: 0})
        writer.append(clock.all(reserved("a", share())), expected={stream: 1})
        with pytest.raises(StaleStreamError, match="expected_version=1"):
            writer.append(clock.all(reserved("b", share())), expected={stream: 1})

        assert ledger.head().position == 3


def test_a_repeated_command_has_its_answer_even_when_its_version_is_old(store: Store) -> None:
    """A retry after a lost reply carries the version it was decided on, which its success moved."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node()))
        command = clock.all(reserved("a", share()))
        stream = command[0].stream
        expected = {stream: writer.stream_version(stream)}
        first = writer.append(command, expected=expected)

        assert writer.append(command, expected=expected) == first
        with pytest.raises(StaleStreamError):
            writer.append(clock.all(reserved("b", share())), expected=expected)


def test_a_trigger_that_swallows_rows_is_an_error_not_an_answer(sqlite_store: SqliteStore) -> None:
    """What is acknowledged is recorded: a hidden rule in the file can't drop a holding."""
    clock = Clock()
    with sqlite_store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node()))
        with sqlite_store.raw() as raw:
            raw.execute(
                "CREATE TRIGGER swallow BEFORE INSERT ON ledger_holdings "
                "BEGIN SELECT RAISE(IGNORE); END"
            )
            raw.commit()
        head = writer.head

        with pytest.raises(LedgerError, match="dropped rows"):
            writer.append(clock.all(reserved("a", share())))
        assert writer.head == head == ledger.head()


def test_a_batch_that_our_own_bug_broke_leaves_the_writer_clean(store: Store) -> None:
    """Rows of a batch that was rolled back never go in with the next one."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node()))
        broken = reserved("a", share(memory_bytes=2**63))
        with pytest.raises((LedgerError, OverflowError, AssertionError)):
            writer.append(clock.all(broken))

        writer.append(clock.all(reserved("b", share())))
        assert verify(ledger).ok


def test_a_batch_is_recorded_whole_or_not_at_all(store: Store) -> None:
    """One refused event takes its batch with it; the writer goes on from where it was."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node()))
        before = writer.head
        good, bad = reserved("a", share(0, 60)), reserved("b", share(0, 60))
        with pytest.raises(CapacityError):
            writer.append(clock.all(good, bad))
        assert writer.head == ledger.head() == before
        writer.append(clock.all(good, reserved("b", share(0, 40))))

        assert [type(each.event) for each in ledger.read_events(after=2)] == [PodReserved] * 2


def test_a_deposed_writer_changes_nothing(store: Store) -> None:
    """After another writer took over, the older one's append is fenced, whatever it appends."""
    clock = Clock()
    with store.open() as first, store.open() as second:
        old = start(first)
        old.append(clock.all(node()))
        new = start(second, holder="second")
        with pytest.raises(FencedError, match="another writer took over: epoch=1"):
            old.append(clock.all(reserved("a", share())))
        new.append(clock.all(reserved("b", share())))

        assert new.head == second.head()
        assert [each.envelope.epoch for each in second.read_events()] == [1, 1, 2, 2]


def test_an_empty_append_is_no_commit(store: Store) -> None:
    """Nothing to record is nothing recorded."""
    with store.open() as ledger:
        writer = start(ledger)

        assert writer.append([]) == 1


def test_a_foreign_ledger_is_refused(store: Store) -> None:
    """A ledger that belongs to another origin is not taken over, and stays as it was."""
    with store.open() as ledger:
        start(ledger)
        before = ledger.head()
        with pytest.raises(InputError, match="belongs to another origin: origin=simulation/test"):
            ledger.start_epoch("other", "ledger/cluster-uid", "0.1.0")

        assert ledger.head() == before
        assert ledger.is_simulation


def test_a_head_that_left_its_events_is_not_written_on(store: Store) -> None:
    """A head that its owner moved past the events is found before the next epoch begins."""
    with store.open() as ledger:
        start(ledger).append(Clock().all(node()))
    with store.raw() as raw:
        if isinstance(store, PostgresStore):
            raw.execute("SET tenure.migration = 'on'")
            raw.execute("ALTER TABLE ledger_head DISABLE TRIGGER ledger_head_settled")
        raw.execute("UPDATE ledger_head SET position = 9")
    with store.open() as ledger, pytest.raises(CorruptLedgerError, match="last=2: position=9"):
        start(ledger)


def test_a_commit_with_an_unknown_outcome_is_read_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error after the commit was durable is no error: the head says that the batch is there."""
    with store.open() as ledger:
        writer = start(ledger)
        dialect = ledger.connection.dialect
        commit = dialect.do_commit

        def lose_the_answer(connection: object) -> None:
            commit(connection)  # type: ignore[arg-type]
            monkeypatch.undo()
            raise dialect.loaded_dbapi.OperationalError("the answer was lost")

        monkeypatch.setattr(dialect, "do_commit", lose_the_answer)
        assert writer.append(Clock().all(node())) == 2

        assert writer.head == ledger.head()


def test_a_commit_that_failed_leaves_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error before the commit is an error, and the writer can append again."""
    with store.open() as ledger:
        writer = start(ledger)
        before = writer.head
        dialect = ledger.connection.dialect

        def fail(_: object) -> None:
            monkeypatch.undo()
            raise dialect.loaded_dbapi.OperationalError("database or disk is full")

        monkeypatch.setattr(dialect, "do_commit", fail)
        events = Clock().all(node())
        with pytest.raises(LedgerError, match="nothing was recorded, the disk is full"):
            writer.append(events)
        assert writer.head == ledger.head() == before

        assert writer.append(events) == 2


def test_a_full_disk_leaves_nothing_half_written(sqlite_store: SqliteStore) -> None:
    """The error says so, the ledger is as it was, and appending goes on when there is room."""
    clock = Clock()
    with sqlite_store.open() as ledger:
        writer = start(ledger)
        before = writer.head
        large = clock.all(*(node(f"n-{i}", cpus=128) for i in range(20)))
        pages = ledger.connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        ledger.connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + 10}")
        ledger.connection.rollback()
        with pytest.raises(LedgerError, match="nothing was recorded, the disk is full"):
            writer.append(large)
        assert writer.head == ledger.head() == before
        ledger.connection.exec_driver_sql("PRAGMA max_page_count = 100000")
        ledger.connection.rollback()

        assert writer.append(large) == 21
        assert verify(ledger).ok


def test_a_ledger_that_is_open_to_be_read_has_no_writer(store: Store) -> None:
    """Taking over needs a ledger that was opened to be written."""
    with store.open("read") as ledger, pytest.raises(LedgerError, match="open to be read"):
        start(ledger)


def test_reading_can_start_anywhere(store: Store) -> None:
    """`after` and `limit` cut the same sequence, over page borders too."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(*(node(f"n-{i}", gpus=0) for i in range(2_100))))
        everything = list(ledger.read_events())

        assert list(ledger.read_events(after=1_995, limit=10)) == everything[1_995:2_005]
        assert list(ledger.read_events(after=2_101)) == []
        assert len(everything) == 2_101
    with store.open("read") as ledger:
        assert list(ledger.read_events(limit=3)) == everything[:3]
        assert ledger.head().origin == ORIGIN
