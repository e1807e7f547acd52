"""Events that name what an event before them told: refused by the databases, named by `verify`."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from ledger.domain.log.events import DriftFound, DriftResolved, encode_event
from ledger.store.proving.verify import verify
from tests.support.archives import history, move
from tests.support.forging import forge
from tests.support.stores import Clock, PostgresStore, SqliteStore, Store, refused, start

FOUND = DriftFound(drift_id="OverHeld/n/1", kind="OverHeld", node_uid="uid-n-1", detail="x")
OTHER = DriftFound(drift_id="OverHeld/n/2", kind="OverHeld", node_uid="uid-n-1", detail="x")
RESOLVED = DriftResolved(drift_id=FOUND.drift_id, how="no longer so")


def put_in(store: Store, event: DriftFound | DriftResolved) -> int:
    """Put the event into the log with plain SQL."""
    return forge(store, event.event_type, encode_event(event))


@pytest.mark.parametrize(
    "before",
    [(), (OTHER,), (FOUND, RESOLVED)],
    ids=["never found", "another one", "it is over"],
)
def test_what_resolves_no_open_drift_is_refused(
    store: Store, before: tuple[DriftFound | DriftResolved, ...]
) -> None:
    """By the database, whoever connects; one that is open is resolved once, and may come again."""
    with store.open() as ledger:
        start(ledger)
    for event in before:
        put_in(store, event)
    with pytest.raises(DBAPIError, match="no such drift is open"):
        put_in(store, RESOLVED)
    for event in (FOUND, RESOLVED, FOUND):
        put_in(store, event)
    with store.open("read") as ledger:
        assert verify(ledger).findings == ()


def unruled(store: Store) -> None:
    """Take the rule away."""
    with store.raw() as raw:
        if isinstance(raw, psycopg.Connection):
            assert isinstance(store, PostgresStore)
            raw.execute("SET tenure.migration = 'on'")
            raw.execute("ALTER TABLE ledger_events DISABLE TRIGGER ledger_events_words")
        else:
            assert isinstance(store, SqliteStore)
            raw.execute("DROP TRIGGER ledger_events_words")


def test_a_resolution_of_no_drift_that_is_there_is_named(store: Store) -> None:
    """At its position, where somebody took the rule away."""
    with store.open() as ledger:
        writer = history(ledger, Clock(), events=20)
        clock = Clock(now_us=ledger.head().at_us)
        clock.made = 1_000
        writer.append(clock.all(FOUND))
    unruled(store)
    forged = put_in(store, DriftResolved(drift_id=OTHER.drift_id, how="mine"))
    text = f"position {forged}: the event resolves a drift that is not open: {OTHER.drift_id}"
    with store.open("read") as ledger:
        assert text in map(str, verify(ledger).findings)


def test_a_drift_that_an_archive_left_behind_is_still_open(store: Store, tmp_path: Path) -> None:
    """It was found before the archive's end, and is resolved once behind it."""
    with store.open() as ledger:
        clock = Clock()
        writer = history(ledger, clock, events=200)
        over = DriftResolved(drift_id=OTHER.drift_id, how="x")
        later = [refused(f"later-{number}") for number in range(60)]
        writer.append(clock.all(FOUND, OTHER, over, *later))
        move(ledger, tmp_path)
        start(ledger, "next").append(clock.all(RESOLVED))
        assert verify(ledger).findings == ()
    with pytest.raises(DBAPIError, match="no such drift is open"):
        put_in(store, RESOLVED)
