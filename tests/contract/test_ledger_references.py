"""Events that name what an event before them told: refused by the databases, named by `verify`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import InputError
from ledger.domain.log.events import DriftFound, DriftResolved, encode_event
from ledger.store.mending.voiding import declare_void, impossible_event
from ledger.store.proving.verify import verify
from tests.support.archives import history, move
from tests.support.forging import forge
from tests.support.stores import Clock, Store, refused, start

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


@contextmanager
def unruled(store: Store) -> Iterator[None]:
    """Take the rule away, and put it back."""
    with store.raw() as raw:
        if isinstance(raw, psycopg.Connection):
            raw.execute("SET tenure.migration = 'on'")
            raw.execute("ALTER TABLE ledger_events DISABLE TRIGGER ledger_events_words")
            yield
            raw.execute("ALTER TABLE ledger_events ENABLE ALWAYS TRIGGER ledger_events_words")
        else:
            query = "SELECT sql FROM sqlite_master WHERE name = 'ledger_events_words'"
            (rule,) = raw.execute(query).fetchone()
            raw.execute("DROP TRIGGER ledger_events_words")
            yield
            raw.execute(rule)


def test_a_resolution_of_no_drift_that_is_there_is_named_until_it_is_void(store: Store) -> None:
    """At its position, where somebody took the rule away; one that is right is never void."""
    with store.open() as ledger:
        start(ledger)
    sound = [put_in(store, each) for each in (FOUND, RESOLVED)][1]
    with unruled(store):
        forged = put_in(store, DriftResolved(drift_id=OTHER.drift_id, how="mine"))
    with store.open() as ledger:
        text = f"position {forged}: the event resolves a drift that is not open: {OTHER.drift_id}"
        assert [str(each) for each in verify(ledger).findings] == [text]
        with pytest.raises(InputError, match="verify finds nothing wrong with the event"):
            impossible_event(ledger, sound)
        declare_void(start(ledger, "void"), impossible_event(ledger, forged), "mine", wall_us=0)
        assert verify(ledger).findings == ()


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
