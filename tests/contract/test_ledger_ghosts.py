"""
Events that plain SQL puts into the log: each can be read, and has done what it says.

Rule: design section 4, "Append-only by the database, not by habit".
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs
from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import LedgerError
from ledger.domain.log.events import LedgerEvent, NodeCleared, NodeLost, PodVoided, encode_event
from ledger.store.proving.verify import verify
from ledger.store.writing import statements
from ledger.store.writing.outbox import Outbox
from ledger.store.writing.statements import Row, Statement
from tests.support.forging import forge
from tests.support.stores import (
    MONDAY_US,
    Clock,
    PostgresStore,
    Store,
    node,
    observed,
    released,
    reserved,
    share,
    start,
)


def fill(store: Store) -> None:
    """Make a ledger with a holder."""
    with store.open() as ledger:
        start(ledger).append(Clock().all(node(cpus=4), reserved("a", share(0, 60))))


def later() -> Clock:
    """Return a clock that goes on behind what `fill` recorded, with keys of its own."""
    clock = Clock(MONDAY_US + 3_600_000_000)
    clock.made = 100
    return clock


@pytest.mark.parametrize(
    ("event_type", "body"),
    [
        pytest.param("pod.resered.v1", "{}", id="a type that nobody knows"),
        pytest.param("pod.bound.v2", "{}", id="a version that nobody knows"),
        pytest.param("pod", "{}", id="a part of a type"),
        pytest.param("pod.bound.v1 pod.observed.v1", "{}", id="two types"),
        pytest.param("pod.bound.v1", "[]", id="an array"),
        pytest.param("pod.bound.v1", '"{}"', id="a text"),
    ],
)
def test_an_event_that_nobody_can_read_is_not_let_in(
    store: Store, event_type: str, body: str
) -> None:
    """It would stop every reader, for ever; both databases refuse it in the same words."""
    fill(store)
    with pytest.raises(DBAPIError, match="nobody can read such an event: position 4, event_type="):
        forge(store, event_type, body)
    with store.open("read") as ledger:
        assert verify(ledger).findings == ()


def test_a_body_that_is_no_json_is_not_let_in(store: Store) -> None:
    """Postgres says so in words of its own."""
    fill(store)
    with pytest.raises(
        (DBAPIError, LedgerError), match=r"nobody can read|invalid input syntax for type json"
    ):
        forge(store, "pod.bound.v1", "{")


GRANTS = {
    "a grant": reserved("b", share(1, 50)),
    "a grant of CPUs": reserved("b", cpus=(0, 1)),
    "a grant of nothing": reserved("b"),
    "a holder that was seen": observed("b", share(1, 50)),
}


@pytest.mark.parametrize("event", GRANTS.values(), ids=GRANTS)
def test_a_grant_without_its_rows_does_not_commit(
    postgres_store: PostgresStore, event: LedgerEvent
) -> None:
    """The log would say of a card that it is held, the tables that it is free."""
    fill(postgres_store)
    with pytest.raises(DBAPIError, match="an event that grants has its rows: position 4"):
        forge(postgres_store, event.event_type, encode_event(event))
    with postgres_store.open("read") as ledger:
        assert verify(ledger).findings == ()


LESS = {
    "less of the card": ("core_percent", 1),
    "less memory": ("memory_bytes", 1),
    "not alone on the card": ("exclusive", 1),
}


@pytest.mark.parametrize(("column", "value"), LESS.values(), ids=LESS)
def test_a_grant_with_other_rows_does_not_commit(
    postgres_store: PostgresStore, column: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is held is what the event says, card by card."""
    fill(postgres_store)
    place = ("device_no", "minor", "core_percent", "memory_bytes", "ratio", "exclusive")
    at = 1 + place.index(column)
    with postgres_store.open() as ledger:
        writer = start(ledger, "next")
        add = Outbox.add

        def changed(
            outbox: Outbox,
            statement: Statement,
            rows: list[Row],
            error: Callable[[], LedgerError],
        ) -> None:
            if statement is statements.HOLDING:
                rows = [(*row[:at], value, *row[at + 1 :]) for row in rows]
            add(outbox, statement, rows, error)

        monkeypatch.setattr(Outbox, "add", changed)
        with pytest.raises(LedgerError, match="an event that grants has its rows: position 5"):
            writer.append([Clock().new(reserved("b", share(1, 50)), key="b")])


LOST = NodeLost(node_uid="uid-n-1", node_name="n-1", reason="deleted")
CLEARED = NodeCleared(node_uid="uid-n-1", node_name="n-1", evidence="act", reason="looked")
VOIDED = PodVoided(pod_uid="uid-a", attempt=1, node_uid="uid-n-1", reason="gone")
ENDS: dict[str, tuple[list[LedgerEvent], LedgerEvent]] = {
    "a release": ([], released("a")),
    "a reservation taken back": ([], VOIDED),
    "a release of what a lost node held": ([LOST], released("a")),
    "a lost node": ([], LOST),
    "a lost node that held nothing": ([node("n-2")], structs.replace(LOST, node_uid="uid-n-2")),
    "a lost node whose loss is known": ([LOST], LOST),
    "a machine that is cleared": ([LOST], CLEARED),
}


@pytest.mark.parametrize("case", ENDS.values(), ids=ENDS)
def test_an_end_that_ended_nothing_does_not_commit(
    postgres_store: PostgresStore, case: tuple[list[LedgerEvent], LedgerEvent]
) -> None:
    """The log would say of a card that it is free, the tables that it is held."""
    before, event = case
    fill(postgres_store)
    with postgres_store.open() as ledger:
        start(ledger, "next").append(later().all(*before))
        last = ledger.head().position
    with pytest.raises(DBAPIError, match=f"an event that ends has ended it: position {last + 1}"):
        forge(postgres_store, event.event_type, encode_event(event))
    with postgres_store.open("read") as ledger:
        assert verify(ledger).findings == ()


NOTHING: dict[str, tuple[list[LedgerEvent], LedgerEvent]] = {
    "a second release": ([released("a")], released("a")),
    "a release on another node": ([], released("a", node="n-2")),
    "a release of another attempt": ([], released("a", attempt=2)),
    "a lost node that nobody knows": ([], structs.replace(LOST, node_uid="uid-n-3")),
    "a machine where nothing was lost": ([], CLEARED),
    "a machine that is cleared already": ([LOST, CLEARED], CLEARED),
}


@pytest.mark.parametrize("case", NOTHING.values(), ids=NOTHING)
def test_an_end_of_nothing_commits(
    store: Store, case: tuple[list[LedgerEvent], LedgerEvent]
) -> None:
    """It changes nothing, whoever recorded it: what it names is not held any more, or never was."""
    before, event = case
    fill(store)
    with store.open() as ledger:
        start(ledger, "next").append(later().all(*before))
    forge(store, event.event_type, encode_event(event))
    with store.open("read") as ledger:
        assert verify(ledger).findings == ()


def test_an_end_that_a_later_one_brought_about_does_not_commit(
    postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one transaction too each event has its own effects."""
    fill(postgres_store)
    clock = later()
    with postgres_store.open() as ledger:
        writer = start(ledger, "next")
        twice = clock.all(released("a"), released("a"))
        add = Outbox.add

        def changed(
            outbox: Outbox,
            statement: Statement,
            rows: list[Row],
            error: Callable[[], LedgerError],
        ) -> None:
            if statement is statements.CLOSE:
                rows = [(row[0], row[1] + 1_000_000, row[2] + 1, *row[3:]) for row in rows]
            add(outbox, statement, rows, error)

        monkeypatch.setattr(Outbox, "add", changed)
        with pytest.raises(LedgerError, match="an event that ends has ended it: position 5"):
            writer.append(twice)
