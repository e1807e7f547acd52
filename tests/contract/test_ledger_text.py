"""Text that databases differ about: its order, and what only some of them can hold."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec import structs

from ledger.domain.errors import InputError
from ledger.domain.log.events import LedgerEvent
from ledger.domain.request.requests import PodSnapshot
from ledger.store.fitting import UnfitTextError
from ledger.store.proving.verify import verify
from ledger.store.reading.query import run_sql
from ledger.store.writing.commands import Command, Recorded, Refused
from tests.support.stores import (
    MONDAY_US,
    ORIGIN,
    Clock,
    Store,
    health,
    node,
    refused,
    released,
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
HALF = "a\ud83d"  # the first half of a pair that only UTF-16 has


def test_text_is_in_the_order_of_its_bytes(store: Store) -> None:
    """The same names come in the same order on both databases: that of their UTF-8."""
    with store.open() as ledger:
        start(ledger).append(Clock().all(*map(refused, NAMES)))
        _, rows = run_sql(ledger, "SELECT pod_name FROM audit_refusals ORDER BY pod_name")
        assert [name for (name,) in rows] == sorted(NAMES, key=str.encode)
        _, largest = run_sql(ledger, "SELECT max(pod_name), min(pod_name) FROM audit_refusals")
        assert largest == [("\U0001f600", "10")]


LABELLED = reserved(
    "p", share(0, 10), snapshot=PodSnapshot(owner="job", labels={"a": NUL}, created_at_us=MONDAY_US)
)
UNFIT: dict[str, tuple[LedgerEvent, str]] = {
    "a message": (refused("p", message=NUL), "message"),
    "a Pod that was refused": (refused(NUL), "pod_uid"),
    "a reason": (health(1, healthy=False, reason=NUL), "reason"),
    "a Pod's name": (structs.replace(reserved("p", share(0, 10)), pod_name=NUL), "pod_name"),
    "a label": (LABELLED, "snapshot.labels.a"),
    "a label's name": (structs.replace(node(), labels={NUL: "a"}), "labels"),
    "half of a character": (refused("p", message=HALF), "message"),
    "half of a character in a card": (
        reserved("p", share(0, 10), share(1, 10, device_id=HALF)),
        "shares[1].device_id",
    ),
    "half of a character in a release": (
        structs.replace(released("p"), reason=HALF),
        "reason",
    ),
}
AROUND = ("stream", "actor", "idempotency_key", "correlation_id")


@pytest.mark.parametrize(("event", "field"), UNFIT.values(), ids=UNFIT)
def test_text_that_a_database_lacks_is_refused(
    store: Store, event: LedgerEvent, field: str
) -> None:
    """On both databases nothing of it is recorded, its field is named, and the writer goes on."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node()))
        before = writer.head
        with pytest.raises(UnfitTextError, match=rf"field={re.escape(field)}$"):
            writer.append(clock.all(event))
        assert writer.head == ledger.head() == before
        writer.append(clock.all(refused("next")))
        assert verify(ledger).findings == ()


@pytest.mark.parametrize("text", [NUL, HALF], ids=["NUL", "half of a character"])
@pytest.mark.parametrize("field", AROUND)
def test_text_around_an_event_is_looked_at_too(store: Store, field: str, text: str) -> None:
    """A command with it is refused alone, whatever stands beside it in the batch."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        first, bad, last = clock.all(node(), node("n-2"), node("n-3"))
        changed: dict[str, Any] = {field: text}
        bad = structs.replace(bad, **changed)
        with pytest.raises(UnfitTextError, match=f"event_type=node.inventoried.v1, field={field}$"):
            writer.append([bad])
        with pytest.raises(UnfitTextError):
            writer.append([bad], expected={bad.stream: 7})

        outcomes = writer.record([Command(events=(each,)) for each in (first, bad, last)])

        assert outcomes[::2] == [Recorded(first=2, last=2), Recorded(first=3, last=3)]
        assert isinstance(outcomes[1], Refused)
        assert isinstance(outcomes[1].error, UnfitTextError)
        again = Command(events=(bad,), expected={bad.stream: 7})
        repeat, _, _ = writer.record(
            [Command(events=(first,)), again, Command(events=(last,), expected={last.stream: 9})]
        )
        assert repeat == outcomes[0]
        assert verify(ledger).findings == ()


@pytest.mark.parametrize("words", [(NUL, ORIGIN), ("me", HALF)], ids=["holder", "origin"])
def test_nobody_takes_over_in_words_that_cannot_be_recorded(
    store: Store, words: tuple[str, str]
) -> None:
    """The head is left as it is."""
    holder, origin = words
    with store.open() as ledger:
        with pytest.raises(InputError, match="holds a NUL or half of a character"):
            ledger.start_epoch(holder, origin, "0.1.0", wall_us=MONDAY_US)
        with pytest.raises(UnfitTextError, match="field=tenure_version"):
            ledger.start_epoch("me", ORIGIN, NUL, wall_us=MONDAY_US)
        assert ledger.head().epoch == 0


def test_six_letters_that_only_look_like_a_nul_are_kept(store: Store) -> None:
    """A text with a backslash, `u0000`, is just that."""
    looks = refused("p", message="a\\u0000b \\\\u0000")
    with store.open() as ledger:
        start(ledger).append(Clock().all(looks))
        (event,) = ledger.read_events(after=1)
        assert event.event == looks
        assert verify(ledger).findings == ()
