"""Text that databases differ about: its order, and what only some of them can hold."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from ledger.domain.bounds import NAME_MAX
from ledger.domain.devices import VirtualFunction
from ledger.domain.errors import InputError
from ledger.domain.log.events import LedgerEvent
from ledger.domain.request.requests import PodSnapshot
from ledger.store.proving.verify import verify
from ledger.store.reading.query import run_sql
from ledger.store.writing.commands import (
    AROUND_MAX,
    Command,
    Recorded,
    Refused,
    UnfitError,
)
from tests.support.stores import (
    MONDAY_US,
    ORIGIN,
    Clock,
    Store,
    gpu,
    health,
    node,
    observed,
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
    "a Pod that was refused": (structs.replace(refused("p"), pod_uid=NUL), "pod_uid"),
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
        with pytest.raises(UnfitError, match=rf"field={re.escape(field)}$"):
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
        with pytest.raises(UnfitError, match=f"event_type=node.inventoried.v1, field={field}$"):
            writer.append([bad])
        with pytest.raises(UnfitError, match=r"^a text holds a NUL or half of a character: "):
            writer.append([bad], expected={bad.stream: 7})

        outcomes = writer.record([Command(events=(each,)) for each in (first, bad, last)])

        assert outcomes[::2] == [Recorded(first=2, last=2), Recorded(first=3, last=3)]
        assert isinstance(outcomes[1], Refused)
        assert isinstance(outcomes[1].error, UnfitError)
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
        with pytest.raises(UnfitError, match="field=tenure_version"):
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


NOISE = "".join(map(chr, random.Random(1).choices(range(33, 127), k=20_000)))
"""So many letters that nothing makes shorter: no index has an entry of their size."""
WIDEST = "".join(map(chr, random.Random(2).choices(range(0x1F300, 0x1F600), k=NAME_MAX)))
"""As many characters as a name may have, each of four bytes."""


def named(name: str) -> dict[str, LedgerEvent]:
    """Return, by the field that is a key of an index, an event that has a name there."""
    card = gpu(0, device_id=name)
    vf = VirtualFunction(minor=0, bus_id=name)
    nic = replace(gpu(1), device_type="rdma", vfs=(vf,))
    return {
        "node_uid": node("n-2", node_uid=name),
        "node_name": node("n-2", node_name=name),
        "machine_id": node("n-2", machine_id=name, system_uuid="s"),
        "system_uuid": node("n-2", system_uuid=name),
        "boot_id": node("n-2", boot_id=name),
        "devices[0].device_id": node("n-2", devices=(card,)),
        "devices[0].device_type": node("n-2", devices=(gpu(0, device_type=name),)),
        "devices[0].vfs[0].bus_id": node("n-2", devices=(nic,)),
        "pod_uid": structs.replace(refused("p"), pod_uid=name),
        "namespace": structs.replace(refused("p"), namespace=name),
        "pod_name": structs.replace(refused("p"), pod_name=name),
        "shares[0].device_id": reserved("p", share(0, 10, device_id=name)),
        "shares[0].vf_bus_ids[0]": reserved("p", share(0, 10, vf_bus_ids=(name,))),
        "unknown_types[0]": structs.replace(observed("p"), unknown_types=(name,)),
    }


def test_a_name_that_no_index_holds_is_refused_alone(store: Store) -> None:
    """It fails no other command of its batch, and says which field it is."""
    clock, bad = Clock(), named(NOISE)
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node()))
        asked = [refused("before"), *bad.values(), refused("after")]
        first, *outcomes, last = writer.record(
            [Command(events=(clock.new(event),)) for event in asked]
        )
        assert (first, last) == (Recorded(first=3, last=3), Recorded(first=4, last=4))
        for field, outcome in zip(bad, outcomes, strict=True):
            assert isinstance(outcome, Refused), field
            assert isinstance(outcome.error, UnfitError), field
            assert str(outcome.error).startswith("a name is too long: ")
            assert f"field={field}, characters=20000, most=253" in str(outcome.error)
        assert verify(ledger).findings == ()


def test_the_longest_names_are_keys_of_every_index(store: Store) -> None:
    """Together too, where an index has two of them."""
    clock = Clock()
    pod = structs.replace(refused("p"), pod_uid=WIDEST, namespace=WIDEST, pod_name=WIDEST)
    machine = node(
        "n-2",
        node_uid=WIDEST,
        node_name=WIDEST,
        machine_id=WIDEST,
        system_uuid=WIDEST,
        devices=(gpu(0, device_id=WIDEST, device_type=WIDEST),),
    )
    around = structs.replace(
        clock.new(node("n-3")),
        idempotency_key=(WIDEST * 3)[:AROUND_MAX],
        stream=f"node/{WIDEST}",
        actor=(WIDEST * 3)[:AROUND_MAX],
    )
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(pod, machine))
        writer.append([structs.replace(around, stream="node/uid-n-3")])
        assert verify(ledger).findings == ()


@pytest.mark.parametrize("field", AROUND)
def test_what_is_recorded_around_an_event_is_short_too(store: Store, field: str) -> None:
    """A key, a stream and an actor are made of a few names."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        first, bad, last = clock.all(node(), node("n-2"), node("n-3"))
        changed: dict[str, Any] = {field: NOISE}
        outcomes = writer.record(
            [Command(events=(each,)) for each in (first, structs.replace(bad, **changed), last)]
        )
        assert [type(each) for each in outcomes] == [Recorded, Refused, Recorded]
        assert isinstance(outcomes[1], Refused)
        assert f"field={field}, characters=20000" in str(outcomes[1].error)
