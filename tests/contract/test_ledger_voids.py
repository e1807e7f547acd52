"""
An event that can't be and is in the log: declared void by another one, it counts for nothing.

Rule: design section 4; what is recorded stays, and is corrected by what is recorded later.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger.domain.errors import CorruptLedgerError, InputError
from ledger.domain.log.events import (
    DriftFound,
    LedgerEvent,
    NodeCleared,
    NodeDescribed,
    NodeLost,
    PodVoided,
    PositionVoided,
    SettingsChanged,
    encode_event,
)
from ledger.store.mending.recover import incarnations
from ledger.store.mending.voiding import declare_void, impossible_event
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from ledger.store.reading.kept import events_of
from ledger.store.reading.snapshots import take_snapshot
from ledger.store.reading.timetravel import load_state, state_at
from tenure import offline
from tests.support.archives import changed
from tests.support.cli import CommandLine
from tests.support.forging import forge
from tests.support.stores import (
    Clock,
    PostgresStore,
    SqliteStore,
    Store,
    bound,
    node,
    released,
    reserved,
    share,
    start,
)

ODD = '{"attempt":1,"attempt":1,"node_uid":"uid-n-1","pod_uid":"uid-a"}'
GHOST = encode_event(reserved("ghost", share(1, 100)))


def fill(store: Store) -> None:
    """Make a ledger with a holder: events 1 to 4."""
    with store.open() as ledger:
        start(ledger).append(Clock().all(node(), reserved("a", share(0, 60)), bound("a")))


def void(store: Store, position: int) -> int:
    """Declare the event at a position void."""
    with store.open() as ledger:
        event = impossible_event(ledger, position)
        writer = start(ledger, "tenure ledger void")
        return declare_void(writer, event, "put in by hand", wall_us=0)


def test_an_event_that_nobody_can_read_stops_nobody_once_it_is_void(store: Store) -> None:
    """Readers take the void event in its place; the log and its hashes stay."""
    fill(store)
    position = forge(store, "pod.bound.v1", ODD)
    with store.open("read") as ledger:
        expected = state_at(ledger, position - 1).state
        with pytest.raises(CorruptLedgerError, match=f"position={position}"):
            list(ledger.read_events())

    void(store, position)

    with store.open() as ledger:
        recorded = list(ledger.read_events())
        assert recorded[position - 1].envelope.body == ODD
        assert isinstance(recorded[position - 1].event, PositionVoided)
        assert load_state(ledger).state == expected
        assert verify(ledger).findings == ()
        assert rebuild(ledger).equal
        start(ledger, "next").append([Clock().new(released("a"), key="next")])
        assert verify(ledger).findings == ()


def test_facts_and_settings_that_are_void_are_nobodys(
    sqlite_store: SqliteStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was said before counts, and no question stops at words that nobody can read."""
    fill(sqlite_store)
    with sqlite_store.open("read") as ledger, ledger.connection.begin():
        before = events_of(ledger.connection, SettingsChanged)
    facts = '{"facts":{"pods_max":-5,"version":1},"node_name":"n-1","node_uid":"uid-n-1"}'
    void(sqlite_store, forge(sqlite_store, "node.described.v1", facts))
    settings = '{"policy":0,"settings":"x","settings_hash":""}'
    void(sqlite_store, forge(sqlite_store, "settings.changed.v1", settings))

    with sqlite_store.open("read") as ledger, ledger.connection.begin():
        assert events_of(ledger.connection, SettingsChanged) == before
        assert events_of(ledger.connection, NodeDescribed) == []
    answer = CommandLine(sqlite_store.path, capsys).ask("map", "--cpus")
    assert answer.code == 0, answer


def test_a_damaged_word_of_a_void_leaves_its_event_void(sqlite_store: SqliteStore) -> None:
    """Only the damaged event is named: no reader asks more of a void than it needs."""
    fill(sqlite_store)
    event = void(sqlite_store, forge(sqlite_store, "pod.bound.v1", ODD))
    words = f"actor = CAST(x'ff' AS TEXT) WHERE position = {event}"
    changed(sqlite_store, f"UPDATE ledger_events SET {words}")
    with sqlite_store.open("read") as ledger:
        assert [each.position for each in verify(ledger).findings] == [event, None]
        with ledger.connection.begin():
            events_of(ledger.connection, SettingsChanged)


def test_a_recovery_that_is_void_is_passed_over(sqlite_store: SqliteStore) -> None:
    """Its words are nobody's, and no question about the ledger's lives stops at them."""
    fill(sqlite_store)
    void(sqlite_store, forge(sqlite_store, "ledger.recovered.v1", '{"lost_from":"x"}'))
    with sqlite_store.open("read") as ledger:
        lives, lost = incarnations(ledger)
    assert (len(lives), lost) == (1, ())


def test_a_grant_that_nothing_holds_is_none_once_it_is_void(sqlite_store: SqliteStore) -> None:
    """The card is free for the fold too; a snapshot with the ghost in it is gone."""
    fill(sqlite_store)
    position = forge(sqlite_store, "pod.reserved.v1", GHOST)
    with sqlite_store.open() as ledger:
        take_snapshot(ledger, start(ledger, "snap"), wall_us=0)
        assert {each.position for each in verify(ledger).findings} >= {position}

    void(sqlite_store, position)

    with sqlite_store.open() as ledger:
        assert verify(ledger).findings == ()
        assert rebuild(ledger).equal
        start(ledger, "next").append([Clock().new(reserved("b", share(1, 100)), key="b")])
        assert verify(ledger).findings == ()
        names = {
            each.pod_name for each in load_state(ledger).state.nodes["uid-n-1"].holdings.values()
        }
        assert names == {"a", "b"}


def test_a_loss_that_no_table_knows_is_none_once_it_is_void(sqlite_store: SqliteStore) -> None:
    """The node's Pods hold as before; a clearing behind it cleared nothing."""
    fill(sqlite_store)
    lost = NodeLost(node_uid="uid-n-1", node_name="n-1", reason="deleted")
    cleared = NodeCleared(node_uid="uid-n-1", node_name="n-1", evidence="act")
    position = forge(sqlite_store, lost.event_type, encode_event(lost))
    forge(sqlite_store, cleared.event_type, encode_event(cleared))

    void(sqlite_store, position)

    with sqlite_store.open() as ledger:
        assert verify(ledger).findings == ()
        (held,) = load_state(ledger).state.nodes["uid-n-1"].holdings.values()
        assert held.phase == "bound"


LOST = NodeLost(node_uid="uid-n-1", node_name="n-1", reason="deleted")
ENDS: dict[str, tuple[list[LedgerEvent], LedgerEvent]] = {
    "a release": ([], released("a")),
    "a reservation taken back": (
        [],
        PodVoided(pod_uid="uid-a", attempt=1, node_uid="uid-n-1", reason="gone"),
    ),
    "a machine that is cleared": (
        [LOST],
        NodeCleared(node_uid="uid-n-1", node_name="n-1", evidence="act"),
    ),
}


@pytest.mark.parametrize("case", ENDS.values(), ids=ENDS)
def test_an_end_that_ended_nothing_is_none_once_it_is_void(
    sqlite_store: SqliteStore, case: tuple[list[LedgerEvent], LedgerEvent]
) -> None:
    """It is named by its own position, and the Pod holds for the fold too, until it really ends."""
    before, event = case
    fill(sqlite_store)
    with sqlite_store.open() as ledger:
        writer = start(ledger, "next")
        writer.append([Clock().new(each, key=f"before:{each.event_type}") for each in before])
        expected = load_state(ledger).state
    position = forge(sqlite_store, event.event_type, encode_event(event))
    with sqlite_store.open("read") as ledger:
        assert {each.position for each in verify(ledger).findings} >= {3, position}
        assert load_state(ledger).state != expected

    void(sqlite_store, position)

    with sqlite_store.open() as ledger:
        assert verify(ledger).findings == ()
        assert load_state(ledger).state == expected
        assert rebuild(ledger).equal
        start(ledger, "last").append([Clock().new(event, key="really")])
        assert verify(ledger).findings == ()
        assert not load_state(ledger).state.nodes["uid-n-1"].holdings


@pytest.mark.parametrize("position", [1, 2, 3, 4])
def test_a_good_event_is_never_declared_void(store: Store, position: int) -> None:
    """Not even beside one that can't be."""
    fill(store)
    odd = forge(store, "pod.bound.v1", ODD)
    with store.open() as ledger, pytest.raises(InputError, match="finds nothing wrong"):
        impossible_event(ledger, position)
    with store.open() as ledger, pytest.raises(InputError, match="no such event"):
        impossible_event(ledger, odd + 1)


def test_a_good_event_that_plain_sql_declares_void_is_named(postgres_store: PostgresStore) -> None:
    """What the tables hold is held; what is read without them is not to be forgotten."""
    fill(postgres_store)
    drift = DriftFound(drift_id="d", kind="OverHeld", node_uid="uid-n-1", detail="")
    with postgres_store.open() as ledger:
        writer = start(ledger, "next")
        writer.append([Clock().new(drift, key="drift")])
        last = writer.head.position
        leaves = {each.envelope.position: each.leaf_hash.hex() for each in ledger.read_events()}
    for position in (3, last):
        body = PositionVoided(position=position, leaf_hash=leaves[position], reason="mine")
        forge(postgres_store, body.event_type, encode_event(body))
        with postgres_store.open("read") as ledger:
            assert position in {each.position for each in verify(ledger).findings}


def test_a_void_of_other_words_is_named(store: Store) -> None:
    """It says which words are void; others at that position stay what they are."""
    fill(store)
    body = PositionVoided(position=3, leaf_hash="ab" * 32, reason="mine")
    at = forge(store, body.event_type, encode_event(body))
    with store.open("read") as ledger:
        (finding, *_) = verify(ledger).findings
        assert (finding.position, "void" in finding.text) == (at, True)
        assert load_state(ledger).state.nodes["uid-n-1"].holdings


def test_the_command_says_what_is_wrong_and_declares_it_void(
    sqlite_store: SqliteStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run changes nothing; the export proves itself offline afterwards."""
    fill(sqlite_store)
    position = forge(sqlite_store, "pod.bound.v1", ODD)
    cli = CommandLine(sqlite_store.path, capsys)
    words = ("ledger", "void", str(position), "--reason", "put in by hand")

    dry = cli.ask(*words, "--dry-run")
    assert (dry.code, "would be void" in dry.out) == (0, True), dry
    assert cli.ask("verify").code == 1
    assert cli.ask(*words).code == 0
    assert cli.ask("verify").code == 0
    assert cli.ask("ledger", "void", "3", "--reason", "x").code == 2
    out = tmp_path / "export.gz"
    assert cli.ask("ledger", "export", "--out", str(out)).code == 0
    assert offline.read(out).last == position + 2


def test_a_void_of_other_words_takes_nothing_back(store: Store) -> None:
    """What was void before stays void, and the false one is named."""
    fill(store)
    position = forge(store, "pod.bound.v1", ODD)
    void(store, position)
    body = PositionVoided(position=position, leaf_hash="ab" * 32, reason="mine")
    at = forge(store, body.event_type, encode_event(body))
    with store.open("read") as ledger:
        assert [each.position for each in verify(ledger).findings][:1] == [at]
        assert load_state(ledger).state.nodes["uid-n-1"].holdings
