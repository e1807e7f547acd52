"""What a Pod says of one reservation: a card once, and an end that an event gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import CapacityError
from ledger.domain.log.events import LedgerEvent, NodeLost, PodAssigned
from ledger.store import schema
from ledger.store.failures import fact_of
from ledger.store.projections.project import reservation_row
from ledger.store.proving.verify import verify
from tests.support.stores import (
    Clock,
    Store,
    bound,
    node,
    observed,
    released,
    reserved,
    share,
    start,
)


@pytest.mark.parametrize("make", [reserved, observed])
@pytest.mark.parametrize(
    "shares",
    [
        (share(0, 10), share(0, 20)),
        (share(0, 10, vf_bus_ids=("v",)), share(1, 10, vf_bus_ids=("v",))),
    ],
    ids=["a card", "a virtual function"],
)
def test_a_part_twice_in_one_pod_is_refused_in_one_way(
    store: Store, make: Callable[..., LedgerEvent], shares: tuple[object, ...]
) -> None:
    """In the same words on both databases, granted or given by others; nothing is recorded."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append([clock.new(node())])
        with pytest.raises(CapacityError) as caught:
            writer.append([clock.new(make("a", *shares))])
        namespace = "team-a" if make is reserved else "kube"
        minor = 1 if len({each.minor for each in shares}) > 1 else 0  # type: ignore[attr-defined]
        assert str(caught.value) == (
            f"a Pod names a part twice: pod={namespace}/a, card=n-1/gpu/{minor}"
        )
        assert writer.append([clock.new(make("a", share(0, 10)))]) == 3
        assert verify(ledger).ok


_CLOSED = "closed_position = 4, closed_at_us = (SELECT at_us FROM ledger_head) WHERE position = 3"
ENDS = {
    "an open one has a reason": (
        "UPDATE ledger_reservations SET end_reason = 'x' WHERE position = 3",
        "a constraint is not met: ck_ledger_reservations_open",
    ),
    "an open one is said to be released": (
        "UPDATE ledger_reservations SET phase = 'released' WHERE position = 3",
        "no event at position 3 says that pod team-a/a is released",
    ),
    "another reason than the event's": (
        f"UPDATE ledger_reservations SET phase = 'released', end_reason = 'x', {_CLOSED}",
        "no event at position 4 ends the reservation of pod team-a/a",
    ),
    "another end than the event's": (
        f"UPDATE ledger_reservations SET phase = 'voided', end_reason = 'completed', {_CLOSED}",
        "no event at position 4 ends the reservation of pod team-a/a",
    ),
}


@pytest.mark.parametrize(("statement", "words"), ENDS.values(), ids=list(ENDS))
def test_an_end_is_what_an_event_says(
    store: Store, statement: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By plain SQL as well, in the transaction that records the event and in any other."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node(), reserved("a", share(0, 10))))
        event = released("a") if _CLOSED in statement else node("n-2")
        monkeypatch.setattr("ledger.store.projections.project.Projection._ended", lambda *_: None)

        def change(connection: object) -> None:
            connection.exec_driver_sql(statement)  # type: ignore[attr-defined]

        with pytest.raises(DBAPIError) as caught:
            writer.commit([clock.new(event)], beside=change)
        assert fact_of(caught.value) == words
        monkeypatch.undo()
        writer.append([clock.new(released("a"))])
        assert verify(ledger).ok


_OPEN = "UPDATE ledger_reservations SET phase = {} WHERE position = 3"
PHASES = {
    "the one before": (_OPEN.format("'bound', phase_position = 4"), 4, "bound"),
    "the first one": (_OPEN.format("'reserved', phase_position = 3"), 3, "reserved"),
    "another one of the same event": (_OPEN.format("'bound'"), 5, "bound"),
    "one that no node was lost for": (_OPEN.format("'lost'"), 5, "lost"),
    "the binding of another Pod": (_OPEN.format("'bound', phase_position = 7"), 7, "bound"),
    "no event of a Pod": (_OPEN.format("'assigned', phase_position = 8"), 8, "assigned"),
}


@pytest.mark.parametrize(("statement", "position", "phase"), PHASES.values(), ids=list(PHASES))
def test_a_phase_is_what_an_event_says(
    store: Store, statement: str, position: int, phase: str
) -> None:
    """By plain SQL as well; a later event moves it on, and none moves it back."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node(), reserved("a", share(0, 10)), bound("a"), _assigned("a")))
        writer.append(clock.all(reserved("b", share(1, 10)), bound("b"), node("n-2")))
    with store.raw() as raw, pytest.raises(Exception, match="tenure ledger: ") as caught:
        raw.execute(statement)
    words = f"no event at position {position} says that pod team-a/a is {phase}"
    assert words in str(caught.value)
    with store.open() as ledger:
        assert verify(ledger).ok


@pytest.mark.parametrize("change", ["phase = 'assigned'", "phase_position = 3"])
def test_a_lost_pod_stays_lost(store: Store, change: str) -> None:
    """No event says another phase of it but the one that ends it."""
    clock, gone = Clock(), NodeLost(node_uid="uid-n-1", node_name="n-1", reason="deleted")
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node(), reserved("a", share(0, 10)), _assigned("a"), gone))
    with store.raw() as raw, pytest.raises(Exception, match="says that pod team-a/a is"):
        raw.execute(f"UPDATE ledger_reservations SET {change}")
    with store.open() as ledger:
        assert verify(ledger).ok


@pytest.mark.parametrize("row", ["phase", "phase_position"])
def test_a_reservation_begins_with_the_phase_of_its_event(
    store: Store, row: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes the row."""
    clock = Clock()
    column = schema.ledger_reservations.columns.keys().index(row)
    value = {"phase": "assigned", "phase_position": 2}[row]

    def told(*given: object) -> tuple[object, ...]:
        right = reservation_row(*given)  # type: ignore[arg-type]
        return (*right[:column], value, *right[column + 1 :])

    with store.open() as ledger:
        writer = start(ledger)
        writer.append([clock.new(node())])
        monkeypatch.setattr("ledger.store.projections.project.reservation_row", told)
        with pytest.raises(CapacityError, match="no event at position 3 opens this reservation"):
            writer.append([clock.new(reserved("a", share(0, 10)))])


def _assigned(pod: str) -> PodAssigned:
    return PodAssigned(pod_uid=f"uid-{pod}", attempt=1, node_uid="uid-n-1")
