"""A ledger whose beginning moved to a file answers everything as its twin does that has it all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from ledger.domain.errors import CapacityError
from ledger.domain.log.events import LedgerEvent, SettingsChanged
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.state_codec import encode_state
from ledger.store import schema
from ledger.store.open import Ledger
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from ledger.store.reading.tables import in_key_order
from ledger.store.reading.timetravel import load_state
from ledger.store.writing.append import Writer
from tests.property.test_ledger_histories import BATCHES
from tests.support.archives import move
from tests.support.examples import examples
from tests.support.stores import ORIGIN, Clock, SqliteStore, node, refused, start

Batches = list[list[LedgerEvent]]


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    """A migrated ledger without events."""
    store = SqliteStore(path=tmp_path_factory.mktemp("archives") / "empty.db")
    store.open("create").close()
    return store


def told(writer: Writer, clock: Clock, batches: Batches) -> tuple[list[NewEvent], list[str]]:
    """Record batches; return the events that were recorded, and what was refused of the others."""
    recorded: list[NewEvent] = []
    refusals: list[str] = []
    for batch in batches:
        events = clock.all(*batch, refused("w"))
        try:
            writer.append(events)
            recorded += events
        except CapacityError as error:
            refusals.append(str(error))
    return recorded, refusals


def filled(ledger: Ledger, clock: Clock, batches: Batches) -> list[NewEvent]:
    """Record the batches and so much else that a whole tile is full."""
    writer = start(ledger)
    first = clock.all(node("n-1", cpus=4, gpus=3), node("n-2", cpus=4, gpus=3))
    writer.append(first)
    recorded, _ = told(writer, clock, batches)
    missing = max(0, 256 - writer.head.position)
    filling = clock.all(*(refused(f"f{number}") for number in range(missing)))
    writer.append(filling)
    return [*first, *recorded, *filling]


def tables(ledger: Ledger) -> list[object]:
    """Return every row of every projection, and the folded state."""
    with ledger.connection.begin():
        rows = [
            ledger.connection.execute(in_key_order(table)).all()
            for table in (*schema.PROJECTIONS, schema.ledger_streams)
        ]
    return [*rows, encode_state(load_state(ledger).state)]


@settings(
    max_examples=examples(20),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(before=BATCHES, after=BATCHES)
def test_the_twin_that_was_archived_answers_the_same(
    empty: SqliteStore, tmp_path: Path, before: Batches, after: Batches
) -> None:
    """
    Rows, states and refusals behind the cut are the same, and so is the rebuilt past.

    Commands from before the cut are known when they come again.
    """
    for old in tmp_path.iterdir():
        old.unlink()
    answers = []
    for name in ("whole", "moved"):
        path = tmp_path / f"{name}.db"
        shutil.copy(empty.path, path)
        clock = Clock()
        with SqliteStore(path=path).open() as ledger:
            commands = filled(ledger, clock, before)
            if name == "moved":
                move(ledger, tmp_path)
            else:
                event = SettingsChanged(settings_hash="", settings="", tenure_version="")
                ledger.start_epoch("archivist", ORIGIN, "0.1.0").append(
                    [NewEvent(stream="sys", event=event, actor="", idempotency_key="", wall_us=0)]
                )
            writer = start(ledger, "next")
            _, refusals = told(writer, clock, after)
            head = writer.head.position
            assert writer.append(commands) == head
            assert verify(ledger).findings == ()
            answers.append((head, refusals, tables(ledger)))
            if name == "moved":
                assert verify(ledger, segments=tmp_path).findings == ()
                assert rebuild(ledger, segments=tmp_path).equal
    assert answers[0] == answers[1]
