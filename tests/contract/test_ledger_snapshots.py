"""Snapshots and time travel: the state at any moment is the fold of the events up to it."""

from __future__ import annotations

import zlib

import pytest

from ledger.domain.errors import FencedError, InputError
from ledger.domain.log.state_codec import encode_state, state_digest
from ledger.store.open import Ledger
from ledger.store.proving.verify import verify
from ledger.store.reading.snapshots import KEPT, take_snapshot
from ledger.store.reading.timetravel import load_state, position_at, state_at
from ledger.store.writing.append import Writer
from tests.support.folding import fold
from tests.support.stores import (
    Clock,
    SqliteStore,
    Store,
    health,
    node,
    observed,
    released,
    reserved,
    share,
    start,
)


def morning(ledger: Ledger, clock: Clock) -> Writer:
    """Record nine events with a snapshot at position 4."""
    writer = start(ledger)
    events = (node("n-1", gpus=2, cpus=4), reserved("a", share(0, 50)), observed("x", share(1, 50)))
    writer.append(clock.all(*events))
    take_snapshot(ledger, writer, wall_us=clock.now_us)
    writer.append(clock.all(released("a"), health(1, healthy=False), reserved("b", share(0, 100))))
    writer.append(clock.all(released("b")))
    return writer


def test_the_state_at_every_position_is_the_fold_up_to_it(store: Store) -> None:
    """Before, at and after the snapshot, and at the head."""
    with store.open() as ledger:
        morning(ledger, Clock())
        recorded = [(each.envelope.position, each.event) for each in ledger.read_events()]
        for position in range(len(recorded) + 1):
            loaded = state_at(ledger, position)
            assert loaded.state.nodes == fold(recorded[:position])
            assert loaded.snapshot_position == (4 if position >= 4 else 0)
            assert loaded.findings == ()
        assert load_state(ledger) == state_at(ledger, 9)
        for wrong in (-1, 10):
            with pytest.raises(InputError, match=f"no such position: position={wrong}, head=9"):
                state_at(ledger, wrong)


def test_a_moment_is_the_last_position_not_after_it(store: Store) -> None:
    """At an event's very time it counts, a microsecond before it does not."""
    with store.open() as ledger:
        assert position_at(ledger, 1) == 0
        morning(ledger, Clock())
        for each in ledger.read_events():
            position, at_us = each.envelope.position, each.envelope.at_us
            assert position_at(ledger, at_us) == position
            assert position_at(ledger, at_us - 1) == position - 1
        assert position_at(ledger, 1 << 52) == 9


def test_a_snapshot_is_taken_once_and_committed_to_by_the_log(store: Store) -> None:
    """The event behind it names its position and digest; nothing new means no new snapshot."""
    with store.open() as ledger:
        writer = morning(ledger, Clock())
        taken = take_snapshot(ledger, writer, wall_us=0)
        assert take_snapshot(ledger, writer, wall_us=0) == taken
        assert taken.at_position == 9
        text = encode_state(state_at(ledger, 9).state)
        assert taken.digest == state_digest(text).hex()
        assert load_state(ledger).snapshot_position == 9
        assert verify(ledger).findings == ()
    with store.open("read") as ledger:
        assert load_state(ledger).position == 10


def test_a_new_snapshot_takes_older_ones_away_but_the_last_few(store: Store) -> None:
    """The newest always stays, every state can still be folded, and nothing is found wrong."""
    clock = Clock()
    with store.open() as ledger:
        writer = morning(ledger, clock)
        states = {}
        for number in range(KEPT + 2):
            at = writer.head.position
            states[at] = state_at(ledger, at).state
            take_snapshot(ledger, writer, wall_us=0)
            writer.append(clock.all(health(1, healthy=number % 2 == 0)))
        with ledger.connection.begin():
            kept = ledger.connection.exec_driver_sql("SELECT position FROM ledger_snapshots")
            assert sorted(kept.scalars()) == sorted(states)[-KEPT:]
        assert load_state(ledger).snapshot_position == max(states)
        assert {at: state_at(ledger, at).state for at in states} == states
        assert verify(ledger).findings == ()


def test_a_fenced_writer_takes_no_snapshot(store: Store) -> None:
    """Neither the row nor the event is there."""
    with store.open() as ledger, store.open() as other:
        writer = morning(ledger, Clock())
        start(other, "other")
        with pytest.raises(FencedError):
            take_snapshot(ledger, writer, wall_us=0)
        assert load_state(other).snapshot_position == 4
        assert verify(other).findings == ()


def test_snapshots_never_change_but_may_be_deleted(store: Store) -> None:
    """The database refuses any other row; without the snapshot the state is folded from 1 on."""
    with store.open() as ledger:
        morning(ledger, Clock())
        expected = load_state(ledger).state
    forged = "INSERT INTO ledger_snapshots SELECT 3, format, body, digest FROM ledger_snapshots"
    with store.raw() as raw:
        for text, words in (
            ("UPDATE ledger_snapshots SET format = 'x'", "a snapshot does not change: position 4"),
            (forged, "the event after position 3 does not commit to this snapshot"),
            (forged.replace("3,", "4,"), "the event after position 4 does not commit"),
        ):
            with pytest.raises(Exception, match=words):
                raw.execute(text)
        raw.execute("DELETE FROM ledger_snapshots")
    with store.open() as ledger:
        loaded = load_state(ledger)
        assert (loaded.state, loaded.snapshot_position, loaded.findings) == (expected, 0, ())
        assert verify(ledger).findings == ()


@pytest.mark.parametrize(
    ("damage", "fact"),
    [
        ("body = x'ffffff'", "it can't be unpacked"),
        ("body = substr(body, 1, length(body) - 1)", "does not give its digest"),
        ("digest = zeroblob(32)", "does not give its digest"),
        ("format = 'state.v9'", "a form that this version does not know: format=state.v9"),
        ("position = 3", "the event behind it does not commit to it"),
    ],
)
def test_a_damaged_snapshot_is_never_trusted(
    sqlite_store: SqliteStore, damage: str, fact: str
) -> None:
    """It is left aside with a finding, verify finds it too, and the state is the same."""
    store = sqlite_store
    with store.open() as ledger:
        morning(ledger, Clock())
        expected = load_state(ledger).state
    with store.raw() as raw:
        raw.execute("DROP TRIGGER ledger_snapshots_no_update")
        raw.execute(f"UPDATE ledger_snapshots SET {damage}")
    with store.open() as ledger:
        loaded = load_state(ledger)
        assert (loaded.state, loaded.snapshot_position) == (expected, 0)
        assert len(loaded.findings) == 1
        assert fact in loaded.findings[0]
        assert any("snapshot" in each.text for each in verify(ledger).findings)


def test_a_snapshot_with_its_own_digest_is_still_not_the_fold(sqlite_store: SqliteStore) -> None:
    """Whoever changes the body and the digest beside it is found by the log."""
    store = sqlite_store
    with store.open() as ledger:
        morning(ledger, Clock())
        text = encode_state(state_at(ledger, 3).state)
    with store.raw() as raw:
        raw.execute("DROP TRIGGER ledger_snapshots_no_update")
        raw.execute(
            "UPDATE ledger_snapshots SET body = ?, digest = ?",
            (zlib.compress(text.encode()), state_digest(text)),
        )
    with store.open() as ledger:
        loaded = load_state(ledger)
        assert loaded.findings == (
            "the snapshot at position 4 is not used: the event behind it does not commit to it",
        )
        texts = [each.text for each in verify(ledger).findings]
    assert "the snapshot at position 4 is not the one that the log commits to" in texts


def test_verify_folds_again_what_a_writer_committed_to(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot of another state, committed to by its writer, is not the fold of the events."""
    with sqlite_store.open() as ledger:
        writer = morning(ledger, Clock())
        wrong = state_at(ledger, 3)
        monkeypatch.setattr("ledger.store.reading.snapshots.state_at", lambda *_: wrong)
        take_snapshot(ledger, writer, wall_us=0)
        texts = [str(each) for each in verify(ledger).findings]
    assert texts == ["position 10: the snapshot at position 9 is not the fold of the events"]


def test_a_snapshot_that_cannot_be_stored_leaves_no_event(sqlite_store: SqliteStore) -> None:
    """The row and the event are one transaction."""
    with sqlite_store.raw() as raw:
        raw.execute(
            "CREATE TRIGGER full BEFORE INSERT ON ledger_snapshots"
            " BEGIN SELECT RAISE(ABORT, 'no room'); END"
        )
    with sqlite_store.open() as ledger:
        writer = start(ledger)
        with pytest.raises(Exception, match="no room"):
            take_snapshot(ledger, writer, wall_us=0)
        assert writer.head.position == ledger.head().position == 1
        writer.append(Clock().all(node()))
        assert ledger.head().position == 2
