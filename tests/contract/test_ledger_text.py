"""Text that databases differ about: its order, and the one character that Postgres lacks."""

from __future__ import annotations

import pytest

from ledger.domain.errors import LedgerError
from ledger.domain.events import LedgerEvent
from ledger.domain.requests import PodSnapshot
from ledger.store.query import run_sql
from ledger.store.verify import verify
from tests.support.stores import (
    MONDAY_US,
    Clock,
    PostgresStore,
    Store,
    health,
    node,
    refused,
    reserved,
    share,
    start,
)

NAMES = [
    "b",
    "B",
    "a",
    "\u00e9",
    "z",
    "a b",
    "aB",
    "a-b",
    "\ufffd",
    "\U0001f600",
    "\u4e2d",
    "10",
    "9",
]
NUL = "a\x00b"


def test_text_is_in_the_order_of_its_bytes(store: Store) -> None:
    """The same names come in the same order on both databases: that of their UTF-8."""
    with store.open() as ledger:
        start(ledger).append(Clock().all(*map(refused, NAMES)))
        _, rows = run_sql(ledger, "SELECT pod_name FROM audit_refusals ORDER BY pod_name")
        assert [name for (name,) in rows] == sorted(NAMES, key=str.encode)
        _, largest = run_sql(ledger, "SELECT max(pod_name), min(pod_name) FROM audit_refusals")
        assert largest == [("\U0001f600", "10")]


@pytest.mark.parametrize(
    "event",
    [refused("p", message=NUL), refused(NUL), health(1, healthy=False, reason=NUL)],
    ids=["a message", "a Pod that was refused", "a reason"],
)
def test_a_nul_that_a_projection_would_hold_is_refused(store: Store, event: LedgerEvent) -> None:
    """On both databases nothing of it is recorded, and the writer goes on."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node()))
        before = writer.head
        with pytest.raises(LedgerError):
            writer.append(clock.all(event))
        assert writer.head == ledger.head() == before
        writer.append(clock.all(refused("next")))
        assert verify(ledger).findings == ()


def test_a_nul_in_a_pods_name_is_refused_on_one_database_only(store: Store) -> None:
    """No API server lets it pass. SQLite takes it, and what it recorded verifies."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node()))
        events = clock.all(reserved(NUL, share(0, 10)))
        if isinstance(store, PostgresStore):
            with pytest.raises(LedgerError, match=r"NUL|0x00"):
                writer.append(events)
        else:
            assert writer.append(events) == 3
        assert verify(ledger).findings == ()


def test_a_nul_in_a_label_is_recorded_as_the_body_says_it(store: Store) -> None:
    """A label is only ever held as JSON, where it is six letters: both databases keep it."""
    snapshot = PodSnapshot(owner="job", labels={"a": NUL}, created_at_us=MONDAY_US)
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(Clock().all(node(), reserved("p", share(0, 10), snapshot=snapshot)))
        assert verify(ledger).findings == ()
        (event,) = ledger.read_events(after=2)
        assert event.event == reserved("p", share(0, 10), snapshot=snapshot)
