"""A claim holds as a Pod does: the same accounts, the same constraint, events of its own."""

from __future__ import annotations

import pytest

from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.errors import CapacityError
from ledger.domain.log.events import (
    ClaimConsumed,
    ClaimVoided,
    LedgerEvent,
    NodeCleared,
    NodeLost,
)
from ledger.domain.request.requests import PodSnapshot
from ledger.domain.systems import Claimant
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from scheduler.record.events import by, of_claim
from tests.support.folding import fold
from tests.support.stores import (
    GIB,
    Clock,
    Store,
    claim,
    claim_bound,
    claim_ended,
    gpu,
    node,
    observed,
    released,
    reserved,
    seen_claim,
    share,
    start,
)

SLICE = "gpu.example.com/n-1/gpu-0/memory-slice-0"


def _counter(memory_bytes: int = 1) -> DeviceRecord:
    return DeviceRecord(
        device_type="counter",
        minor=0,
        device_id=SLICE,
        memory_bytes=memory_bytes,
        by_claims=True,
    )


def _of_counter(memory_bytes: int = 1) -> DeviceShare:
    return DeviceShare(
        device_type="counter", minor=0, device_id=SLICE, memory_bytes=memory_bytes, instances=0
    )


WHOLE = share(0, 100, gib=80, exclusive=True)
HALF = share(0, 50, gib=40)
OTHERS: dict[str, tuple[LedgerEvent, str]] = {
    "another claim": (claim("b", WHOLE), "has 0 of 100 percent core left"),
    "a Pod": (reserved("b", HALF), "has 0 of 100 percent core left"),
    "a part": (claim("b", share(0, 14, gib=10), _of_counter()), "has 0 of 100 percent core left"),
}


@pytest.mark.parametrize(("other", "words"), OTHERS.values(), ids=list(OTHERS))
def test_nobody_gets_a_card_that_a_claim_has(store: Store, other: LedgerEvent, words: str) -> None:
    """Whole is whole, whoever asks next; and free again when the claim has ended."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append([clock.new(node(devices=(gpu(0), gpu(1), _counter())))])
        writer.append([clock.new(claim("a", WHOLE))])
        with pytest.raises(CapacityError, match=words):
            writer.append([clock.new(other)])
        writer.append(clock.all(claim_bound("a"), claim_ended("a"), other))
        assert verify(ledger).findings == ()
        assert rebuild(ledger).equal


def test_a_claim_gets_no_card_that_a_pod_or_others_hold(store: Store) -> None:
    """Granted to a Pod or seen with one: it is one account."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append([clock.new(node(devices=(gpu(0), gpu(1))))])
        writer.append(clock.all(reserved("p", HALF), observed("o", share(1, 100, gib=80))))
        for taken in (claim("a", WHOLE), claim("a", share(1, 10, gib=1))):
            with pytest.raises(CapacityError):
                writer.append([clock.new(taken)])
        writer.append([clock.new(claim("a", HALF))])
        assert verify(ledger).ok


def test_partitions_that_overlap_are_refused_by_their_counter(store: Store) -> None:
    """The card has room for both, the slice that both consume has not."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append([clock.new(node(devices=(gpu(0), _counter())))])
        writer.append([clock.new(claim("a", _of_counter(), share(0, 14, gib=10)))])
        with pytest.raises(CapacityError, match="has 0 of 1 bytes memory left, 1 asked"):
            writer.append([clock.new(claim("b", _of_counter(), share(0, 14, gib=10)))])
        writer.append([clock.new(claim("b", share(0, 14, gib=10)))])


def test_what_is_seen_is_counted_and_not_refused(store: Store) -> None:
    """An allocation that nobody let through is a fact: the card takes no more, the log goes on."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append([clock.new(node(devices=(gpu(0), gpu(1))))])
        writer.append(clock.all(claim("a", WHOLE), seen_claim("b", WHOLE)))
        writer.append([clock.new(claim_ended("a"))])
        with pytest.raises(CapacityError, match="has 0 of 100 percent core left, 10 asked"):
            writer.append([clock.new(claim("c", share(0, 10, gib=1)))])
        assert verify(ledger).ok


def test_a_claim_has_one_reservation_and_takes_the_next_in_its_place(store: Store) -> None:
    """Voided and reserved anew in one append: nobody comes between, nothing counts twice."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append([clock.new(node(devices=(gpu(0), gpu(1))))])
        writer.append([clock.new(claim("a", HALF))])
        with pytest.raises(CapacityError, match="the claim already holds a reservation"):
            writer.append([clock.new(claim("a", HALF, attempt=2))])
        greater = claim("a", share(0, 60, gib=60), share(1, 50, gib=40), attempt=2)
        writer.append(clock.all(claim_ended("a", kind=ClaimVoided), greater))
        rows = ledger.connection.exec_driver_sql(
            "SELECT holder, pod_name, phase, core_percent FROM audit_holdings"
            " WHERE closed_position IS NULL ORDER BY device_no"
        ).all()
        ledger.connection.rollback()
        assert [tuple(row) for row in rows] == [
            ("claim", "a", "reserved", 60),
            ("claim", "a", "reserved", 50),
        ]
        assert verify(ledger).ok


def test_a_pods_end_does_not_end_a_claim_of_the_same_uid(store: Store) -> None:
    """Who ends a holding is told by the event, not by the UID alone; consumers come and go."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append([clock.new(node(devices=(gpu(0), gpu(1))))])
        used = ClaimConsumed(
            claim_uid="uid-a",
            attempt=1,
            node_uid="uid-n-1",
            consumers=(Claimant(name="x", uid="ux"), Claimant(name="y", uid="uy")),
        )
        writer.append(clock.all(claim("a", HALF), claim_bound("a"), used))
        with pytest.raises(CapacityError):
            writer.append([clock.new(released("a"))])
        recorded = [(each.envelope.position, each.event) for each in ledger.read_events()]
        [held] = fold(recorded)["uid-n-1"].everyone()
        assert (held.holder, held.phase) == ("claim", "bound")
        assert [each.name for each in held.consumers] == ["x", "y"]
        unused = ClaimConsumed(claim_uid="uid-a", attempt=1, node_uid="uid-n-1")
        writer.append([clock.new(unused)])
        with pytest.raises(CapacityError):
            writer.append([clock.new(reserved("p", WHOLE))])
        assert verify(ledger).ok


def test_memory_is_held_by_claims_and_pods_together(store: Store) -> None:
    """Bytes of both add up on one card."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append([clock.new(node(devices=(gpu(0),)))])
        writer.append(
            clock.all(claim("a", share(0, 0, gib=50)), reserved("p", share(0, 0, gib=20)))
        )
        with pytest.raises(CapacityError, match=f"has {10 * GIB} of {80 * GIB} bytes memory left"):
            writer.append([clock.new(claim("b", share(0, 0, gib=11)))])


def test_who_uses_a_claim_changes_also_without_another_version_of_it(store: Store) -> None:
    """One that was taken off the list runs on; its end is told at the same version, and once."""
    clock, version = Clock(), 7
    both = (Claimant(name="a-pod", uid="uid-a-pod"), Claimant(name="x", uid="ux"))
    with store.open() as ledger:
        writer = start(ledger)
        writer.append([clock.new(node(devices=(gpu(0),)))])
        writer.append(clock.all(claim("a", WHOLE), claim_bound("a")))
        for consumers in (both, both[:1], (), ()):
            event = ClaimConsumed(
                claim_uid="uid-a", attempt=1, node_uid="uid-n-1", consumers=consumers
            )
            writer.append([by("test", of_claim(event, clock.now_us, version))])
        told = [one.event for one in ledger.read_events() if isinstance(one.event, ClaimConsumed)]
        assert [len(one.consumers) for one in told] == [2, 1, 0]
        with pytest.raises(CapacityError):
            writer.append([clock.new(claim("b", HALF))])
        assert verify(ledger).findings == ()
        assert rebuild(ledger).equal


def test_a_claim_with_something_on_a_lost_node_takes_nothing_before_that_is_over(
    store: Store,
) -> None:
    """The API has forgotten it; a claim has one holding, and that is freed with the machine."""
    clock = Clock()
    lost = NodeLost(node_uid="uid-n-1", node_name="n-1", reason="deleted")
    cleared = NodeCleared(node_uid="uid-n-1", node_name="n-1", evidence="act", reason="rebooted")
    again = claim("a", share(0, 50, gib=40, node="n-2"), node="n-2", attempt=2)
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node(gpus=1), node("n-2", gpus=1)))
        writer.append(clock.all(claim("a", WHOLE), claim_bound("a"), lost))
        with pytest.raises(CapacityError, match="the claim already holds a reservation"):
            writer.append([clock.new(again)])
        writer.append(clock.all(cleared, again))
        assert verify(ledger).findings == ()
        assert rebuild(ledger).equal


CPU_HOLDERS: dict[str, LedgerEvent] = {
    "a claim": claim("h", cpus=(2, 3), snapshot=PodSnapshot(qos="LSE")),
    "an extender's Pod": reserved("h", cpus=(2, 3)),
    "an observed claim": seen_claim("h", cpus=(2, 3), snapshot=PodSnapshot(qos="LSE")),
    "an observed Pod": observed("h", cpus=(2, 3)),
}


@pytest.mark.parametrize("refs", [1, 2], ids=["one Pod for each CPU", "two Pods for each CPU"])
@pytest.mark.parametrize("holder", CPU_HOLDERS.values(), ids=list(CPU_HOLDERS))
def test_a_cpu_of_a_claim_has_one_holder(store: Store, holder: LedgerEvent, refs: int) -> None:
    """Whoever has it, whoever asks next, and whatever CPUs Pods may share."""
    clock, whole = Clock(), PodSnapshot(qos="LSE")
    with store.open() as ledger:
        writer = start(ledger)
        writer.append([clock.new(node(cpus=8, refs=refs))])
        writer.append([clock.new(holder)])
        with pytest.raises(CapacityError, match="cpu n-1/cpu/3"):
            writer.append([clock.new(claim("a", cpus=(3, 4), snapshot=whole))])
        writer.append([clock.new(claim("a", cpus=(4, 5), snapshot=whole))])
        with pytest.raises(CapacityError, match="cpu n-1/cpu/5"):
            writer.append([clock.new(reserved("p", cpus=(5, 6)))])
        with pytest.raises(CapacityError, match="no such CPU"):
            writer.append([clock.new(claim("b", cpus=(8,), snapshot=whole))])
        writer.append(clock.all(claim_ended("a"), reserved("p", cpus=(4, 5))))
        assert verify(ledger).findings == ()
        assert rebuild(ledger).equal
