"""Tampering that the database could not refuse is found, and the finding names the position."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from ledger.domain.errors import CorruptLedgerError, InputError, TenureError, UnknownEventError
from ledger.domain.events import RequestRefused
from ledger.store.rebuild import rebuild
from ledger.store.verify import VerifyReport, verify
from tests.support.stores import (
    Clock,
    SqliteStore,
    bound,
    health,
    node,
    observed,
    refused,
    released,
    reserved,
    share,
    start,
)

EVENTS = 12


@pytest.fixture
def told(store: SqliteStore) -> SqliteStore:
    """A ledger with an event of most kinds."""
    with store.open() as ledger:
        start(ledger).append(
            Clock().all(
                node(gpus=2, cpus=4),
                reserved("a", share(0, 60), cpus=(0, 1)),  # position 3
                reserved("b", share(1, 40, vf_bus_ids=("0000:3b:00.2",))),
                bound("a"),
                refused("c"),
                health(1, healthy=False),
                observed("x", share(0, 10), unknown_types=("fpga",)),
                released("b"),
                released("a", reason="evicted"),
                reserved("d", share(0, 90)),
                released("x"),
            )
        )
    return store


def tampered(store: SqliteStore, *statements: str) -> VerifyReport:
    """Run SQL without the rules of the database, put them back, and verify."""
    with store.raw() as raw:
        rules = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        raw.execute("PRAGMA ignore_check_constraints = ON")
        raw.execute("BEGIN")
        for name, _ in rules:
            raw.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            raw.execute(statement)
        for _, sql in rules:
            raw.execute(sql)
        raw.execute("COMMIT")
    with store.open("read") as ledger:
        return verify(ledger)


def positions(report: VerifyReport) -> set[int | None]:
    """Return the positions that the findings name."""
    return {finding.position for finding in report.findings}


def test_an_untouched_ledger_is_proved(told: SqliteStore) -> None:
    """No findings, every event counted, the peak of what was granted, and progress on the way."""
    steps: list[tuple[int, int]] = []
    with told.open("read") as ledger:
        report = verify(ledger, lambda done, total: steps.append((done, total)))
        head = ledger.head()

    assert report.ok
    assert (report.events, report.chain_hash) == (EVENTS, head.chain_hash)
    assert (report.max_core_percent_seen, report.max_memory_percent_seen) == (90, 90)
    assert steps[-1] == (EVENTS, EVENTS)


def test_an_empty_ledger_is_proved(store: SqliteStore) -> None:
    """Nothing recorded, nothing wrong."""
    with store.open("read") as ledger:
        assert verify(ledger).ok


COLUMNS = {
    "stream": "stream = 'x' || substr(stream, 2)",
    "stream_version": "stream_version = stream_version + 1",
    "event_type": "event_type = replace(event_type, '.v1', '.v2')",
    "body": "body = replace(body, '\"attempt\":1', '\"attempt\":2')",
    "actor": "actor = 'Test'",
    "epoch": "epoch = epoch + 1",
    "causation_position": "causation_position = 1",
    "correlation_id": "correlation_id = 'd'",
    "idempotency_key": "idempotency_key = idempotency_key || 'x'",
    "args_hash": "args_hash = zeroblob(32)",
    "at_us": "at_us = at_us + 1",
    "wall_us": "wall_us = wall_us + 1",
    "leaf_hash": "leaf_hash = zeroblob(32)",
    "chain_hash": "chain_hash = zeroblob(32)",
}


@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("position", [3, EVENTS])
def test_a_changed_column_of_an_event_is_named(
    told: SqliteStore, column: str, position: int
) -> None:
    """Whichever column of whichever event, the first finding is that event."""
    report = tampered(
        told, f"UPDATE ledger_events SET {COLUMNS[column]} WHERE position = {position}"
    )

    assert report.findings[0].position == position
    assert "event" in report.findings[0].text or "chain" in report.findings[0].text


@pytest.mark.parametrize("position", [1, 3, EVENTS])
def test_a_deleted_event_is_named(told: SqliteStore, position: int) -> None:
    """A hole in the middle, a lost beginning and a lost end are each found where they are."""
    report = tampered(told, f"DELETE FROM ledger_events WHERE position = {position}")

    assert report.findings[0].position == position


def test_swapped_events_are_named(told: SqliteStore) -> None:
    """Two events that changed places are both not what was recorded there."""
    report = tampered(
        told,
        "UPDATE ledger_events SET position = 99 WHERE position = 3",
        "UPDATE ledger_events SET position = 3 WHERE position = 4",
        "UPDATE ledger_events SET position = 4 WHERE position = 99",
    )

    assert {3, 4} <= positions(report)
    assert report.findings[0].position == 3


def test_a_history_that_was_written_again_does_not_reach_the_head(told: SqliteStore) -> None:
    """An end that was cut off, with the head moved back to it, breaks what the projections say."""
    with told.raw() as raw:
        chain = raw.execute(
            "SELECT hex(chain_hash) FROM ledger_events WHERE position = 9"
        ).fetchone()
        at_us = raw.execute("SELECT at_us FROM ledger_events WHERE position = 9").fetchone()
    report = tampered(
        told,
        "DELETE FROM ledger_events WHERE position > 9",
        f"UPDATE ledger_head SET position = 9, at_us = {at_us[0]}, chain_hash = x'{chain[0]}'",
    )

    assert 11 in positions(report)  # a reservation that no event explains
    assert not report.ok


@pytest.mark.parametrize(
    ("statement", "position"),
    [
        pytest.param(
            "UPDATE ledger_reservations SET pod_uid = 'uid-me' WHERE position = 3",
            3,
            id="another Pod",
        ),
        pytest.param(
            "UPDATE ledger_reservations SET closed_position = NULL, closed_at_us = NULL"
            " WHERE position = 3",
            3,
            id="an ending taken back",
        ),
        pytest.param(
            "UPDATE ledger_holdings SET core_percent = 1 WHERE position = 11",
            11,
            id="a smaller share",
        ),
        pytest.param("DELETE FROM ledger_holdings WHERE position = 4", 4, id="a lost share"),
        pytest.param(
            "INSERT INTO ledger_holdings SELECT 11, 2, 1, 0, 0, 0, 0, 1, 'granted', 0, NULL, NULL",
            11,
            id="a share too many",
        ),
        pytest.param(
            "UPDATE ledger_holdings SET closed_at_us = 0 WHERE position = 3", 3, id="another end"
        ),
        pytest.param("DELETE FROM ledger_cpu_holdings WHERE cpu = 1", 3, id="a lost CPU"),
        pytest.param("DELETE FROM ledger_slot_holdings WHERE position = 4", 4, id="a lost slot"),
        pytest.param("UPDATE ledger_refusals SET message = 'fits'", 6, id="another refusal"),
        pytest.param("DELETE FROM ledger_device_health", 7, id="a death forgotten"),
        pytest.param("UPDATE ledger_devices SET healthy = 1", None, id="a healthy card"),
        pytest.param("UPDATE ledger_devices SET core_used = 0", None, id="counters emptied"),
        pytest.param("UPDATE ledger_cpus SET ref_used = 1 WHERE cpu = 3", None, id="a CPU held"),
        pytest.param("UPDATE ledger_nodes SET node_name = 'n-2'", None, id="another node"),
        pytest.param("UPDATE ledger_streams SET version = 3", None, id="another version"),
    ],
)
def test_a_changed_projection_is_found_and_made_again(
    told: SqliteStore, statement: str, position: int | None
) -> None:
    """Fold and tables must be equal; rebuild makes them so, and says what was wrong."""
    report = tampered(told, statement)
    assert position in positions(report)

    with told.open() as ledger:
        rebuilt = rebuild(ledger)
        assert not rebuilt.equal
        assert rebuilt.differences
        assert verify(ledger).findings == ()
        again = rebuild(ledger)
    assert again.equal
    assert again.digest == rebuilt.digest


def test_rebuilding_what_is_right_changes_nothing(told: SqliteStore) -> None:
    """The projections of an untouched ledger are, row for row, what the events make."""
    with told.raw() as raw:
        before = list(raw.iterdump())
    with told.open() as ledger:
        report = rebuild(ledger)
    with told.raw() as raw:
        assert list(raw.iterdump()) == before

    assert (report.equal, report.differences, report.events) == (True, (), EVENTS)


def test_a_rebuild_stops_at_an_altered_event(told: SqliteStore) -> None:
    """Nothing is made again from events that are not what was recorded."""
    tampered(told, "UPDATE ledger_events SET actor = 'me' WHERE position = 3")
    with told.open() as ledger, pytest.raises(CorruptLedgerError, match="position=3"):
        rebuild(ledger)


def test_reading_stops_at_an_altered_event(told: SqliteStore) -> None:
    """A reader gets every event before the first bad one, and then its position."""
    tampered(told, "UPDATE ledger_events SET body = '{}' WHERE position = 3")
    with told.open("read") as ledger:
        events = ledger.read_events()
        assert [next(events).envelope.position, next(events).envelope.position] == [1, 2]
        with pytest.raises(CorruptLedgerError, match=r"the event was altered.*position=3"):
            next(events)


@pytest.mark.parametrize("position", [1, 5, EVENTS])
def test_reading_stops_at_a_gap(told: SqliteStore, position: int) -> None:
    """A missing position is corruption, never concurrency; so is an end before the head."""
    tampered(told, f"DELETE FROM ledger_events WHERE position = {position}")
    with (
        told.open("read") as ledger,
        pytest.raises(CorruptLedgerError, match=f"an event is missing.*position={position}$"),
    ):
        list(ledger.read_events())


def test_an_event_of_a_newer_version_stops_readers(told: SqliteStore) -> None:
    """A type this release does not know is neither skipped nor guessed."""
    with told.open() as ledger:
        new = Clock().new(refused("z"), key="newer")
        kind = type("Newer", (RequestRefused,), {"event_type": "request.refused.v2"})
        words = {each.name: getattr(new.event, each.name) for each in fields(new.event)}
        start(ledger).append([replace(new, event=kind(**words))])
    with told.open("read") as ledger:
        with pytest.raises(UnknownEventError, match="newer version"):
            list(ledger.read_events())
        report = verify(ledger)

    assert [finding.position for finding in report.findings] == [EVENTS + 2, None]


def flipped(store: SqliteStore, path: Path, offset: int, bit: int) -> TenureError | VerifyReport:
    """Flip one bit of a copy of the file and verify the copy."""
    data = bytearray(store.path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)
    try:
        with SqliteStore(path=path).open("read") as ledger:
            return verify(ledger)
    except InputError as error:
        return error


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(lambda row: row[1].encode(), id="the body"),
        pytest.param(lambda row: row[2], id="the leaf hash"),
        pytest.param(lambda row: row[3], id="the chain hash"),
        pytest.param(lambda row: row[4], id="the hash of the arguments"),
    ],
)
def test_one_flipped_bit_of_an_event_in_the_file_is_named(
    told: SqliteStore, tmp_path: Path, words: Callable[[tuple[object, ...]], bytes]
) -> None:
    """Any bit of any event's words or hashes, flipped in a copy of the file, is that position."""
    told = told.copy(tmp_path / "whole.db")
    data = told.path.read_bytes()
    rng = random.Random(1)
    with told.raw() as raw:
        rows = raw.execute(
            "SELECT position, body, leaf_hash, chain_hash, args_hash FROM ledger_events"
            " WHERE position < 12"  # the head has the last chain hash too
        ).fetchall()
    for row in rows:
        needle = words(row)
        at = data.find(needle)
        assert at > 0
        report = flipped(told, tmp_path / "flipped.db", at + rng.randrange(32), rng.randrange(8))
        assert isinstance(report, VerifyReport)
        assert report.findings[0].position == row[0]


def test_no_flipped_bit_of_the_file_goes_unnoticed_or_unexplained(
    told: SqliteStore, tmp_path: Path
) -> None:
    """
    Wherever a bit flips, there is a finding or one clear error.

    Where there is neither, it changed nothing that the ledger says: room that no row uses.
    """
    told = told.copy(tmp_path / "whole.db")
    size = told.path.stat().st_size
    with told.raw() as raw:
        whole = list(raw.iterdump())
    rng = random.Random(2)
    silent = 0
    for _ in range(150):
        path = tmp_path / "flipped.db"
        report = flipped(told, path, rng.randrange(size), rng.randrange(8))
        if isinstance(report, VerifyReport) and report.ok:
            silent += 1
            with SqliteStore(path=path).raw() as raw:
                assert list(raw.iterdump()) == whole
    assert silent < 150


def test_a_page_of_noise_is_a_finding(told: SqliteStore, tmp_path: Path) -> None:
    """A page that was overwritten is told from an event that was altered, and is no traceback."""
    told = told.copy(tmp_path / "whole.db")
    data = told.path.read_bytes()
    with told.raw() as raw:
        root = raw.execute("SELECT rootpage FROM sqlite_master WHERE name = 'ledger_events'")
        page = root.fetchone()[0]
    for number in (page, page + 1):
        broken = bytearray(data)
        broken[(number - 1) * 4096 : number * 4096] = random.Random(number).randbytes(4096)
        (tmp_path / "noise.db").write_bytes(broken)
        with SqliteStore(path=tmp_path / "noise.db").open("read") as ledger:
            report = verify(ledger)
        assert any("damaged" in f.text or "integrity" in f.text for f in report.findings)
