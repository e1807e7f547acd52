"""A second holder is impossible: what the database refuses, and what it gives back."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.errors import CapacityError
from ledger.domain.log.events import LedgerEvent, PodVoided
from ledger.domain.request.requests import PodSnapshot
from tests.support.recorded import Recorded
from tests.support.stores import (
    GIB,
    SqliteStore,
    gpu,
    health,
    node,
    observed,
    released,
    reserved,
    share,
)

ALONE = "and an LSE Pod shares with nobody"


def test_core_is_given_out_once(store: SqliteStore) -> None:
    """Shares add up to the card's core and no percent more; the message names card and rest."""
    with store.open() as ledger:
        it = Recorded(ledger, node(), reserved("a", share(0, 80, gib=1)))
        it.refuses(
            reserved("b", share(0, 50, gib=1)),
            r"card n-1/gpu/0 \(GPU-n-1-0\) has 20 of 100 percent core left, 50 asked",
        )
        it.add(reserved("b", share(0, 20, gib=1)))

        assert it.used() == (100, 2 * GIB, 2, 0)
        assert it.proved()


def test_memory_is_given_out_once(store: SqliteStore) -> None:
    """Bytes are constrained whatever the core percent says: 0 for a dialect that has none."""
    with store.open() as ledger:
        it = Recorded(ledger, node(), reserved("a", share(0, 0, gib=79)))
        it.refuses(
            reserved("b", share(0, 0, gib=2)),
            rf"card n-1/gpu/0 \(GPU-n-1-0\) has {GIB} of {80 * GIB} bytes memory left,"
            rf" {2 * GIB} asked",
        )
        it.add(reserved("b", share(0, 0, gib=1)))

        assert it.proved()


def test_a_full_card_has_no_tenant_that_asks_nothing(store: SqliteStore) -> None:
    """Where core or memory is gone, a share of neither is refused; one of bytes still fits."""
    with store.open() as ledger:
        it = Recorded(ledger, node(), reserved("a", share(0, 100, gib=40)))
        it.refuses(reserved("b", share(0, 0, gib=0)), "has 0 of 100 percent core left, 0 asked")
        it.add(reserved("c", share(1, 0, gib=80)))
        it.refuses(reserved("d", share(1, 0, gib=0)), f"has 0 of {80 * GIB} bytes memory left")
        it.add(reserved("b", share(0, 0, gib=40)))

        assert it.proved()


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        pytest.param((gpu(0), gpu(0)), r"gpu/0 \(GPU-n-1-0\) is named twice", id="twice"),
        pytest.param((gpu(0), gpu(0, device_id="GPU-x")), r"\(GPU-x\) is named twice", id="place"),
    ],
)
@pytest.mark.parametrize("known", [(), (node(gpus=0),), (node(),)], ids=["new", "empty", "known"])
def test_an_inventory_that_makes_no_sense_is_refused(
    store: SqliteStore,
    known: tuple[LedgerEvent, ...],
    devices: tuple[DeviceRecord, ...],
    message: str,
) -> None:
    """A card named twice, by its id or by its place, is told from one that is full."""
    with store.open() as ledger:
        it = Recorded(ledger, *known)
        it.refuses(node(devices=devices), message)
        it.add(node(gpus=2))

        assert it.proved()


def test_cards_change_places_in_one_inventory(store: SqliteStore) -> None:
    """Two cards swap, a third moves where one is gone; each keeps its holders."""
    with store.open() as ledger:
        it = Recorded(
            ledger, node(gpus=4), reserved("a", share(0, 70)), reserved("b", share(1, 30))
        )
        moved = tuple(gpu(m, device_id=f"GPU-n-1-{was}") for m, was in enumerate((1, 0, 3)))
        it.add(node(devices=moved))

        assert (it.used(0)[0], it.used(1)[0]) == (30, 70)
        assert it.proved()


def test_ratios_constrain_nothing(store: SqliteStore) -> None:
    """Seven Pods of 2325 MiB fit on 16276 MiB although their rounded ratios exceed 100 %."""
    mib = 1 << 20
    card = gpu(0, memory_bytes=16_276 * mib)
    with store.open() as ledger:
        it = Recorded(ledger, node(devices=(card,)))
        for i in range(7):
            part = share(0, 0, memory_bytes=2_325 * mib, memory_ratio_percent=15)
            it.add(reserved(f"p{i}", part))

        assert it.used()[2] == 7
        assert it.proved()


def test_exclusive_needs_a_card_without_tenants(store: SqliteStore) -> None:
    """Neither a second holder beside an exclusive one nor an exclusive one beside a first."""
    alone: dict[str, Any] = {"exclusive": True, "gib": 1}
    with store.open() as ledger:
        it = Recorded(ledger, node(), reserved("a", share(0, 10, **alone)))
        it.refuses(
            reserved("b", share(0, 10, gib=1)),
            r"card n-1/gpu/0 .* has 90 of 100 percent core left, 10 asked \(held exclusively\)",
        )
        it.refuses(
            reserved("b", share(0, 10, gib=80)),
            rf"has {79 * GIB} of {80 * GIB} bytes memory left, {80 * GIB} asked \(held exclusively",
        )
        it.add(reserved("c", share(1, 10, gib=1)))
        it.refuses(
            reserved("d", share(1, 10, **alone)),
            r"has 90 of 100 percent core left, 10 asked \(1 holders, an exclusive one was asked\)",
        )
        it.add(released("c"), reserved("d", share(1, 10, **alone)))

        assert it.used(1) == (10, GIB, 1, 1)
        assert it.proved()


def test_the_whole_pod_is_reserved_or_nothing_of_it(store: SqliteStore) -> None:
    """A Pod whose second card is full takes nothing of its first, nor its CPUs."""
    with store.open() as ledger:
        it = Recorded(ledger, node(cpus=4), reserved("a", share(1, 100)))
        it.refuses(reserved("b", share(0, 100), share(1, 100), cpus=(0, 1)), "n-1/gpu/1")

        assert it.used(0) == (0, 0, 0, 0)
        it.add(reserved("c", share(0, 100), cpus=(0, 1)))
        assert it.proved()


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(released("a"), id="released"),
        pytest.param(
            PodVoided(pod_uid="uid-a", attempt=1, node_uid="uid-n-1", reason="fenced"), id="voided"
        ),
    ],
)
def test_what_ends_gives_back_exactly_once(store: SqliteStore, end: LedgerEvent) -> None:
    """The card is as it was after the first ending; a second one changes nothing."""
    with store.open() as ledger:
        it = Recorded(ledger, node(cpus=2), reserved("b", share(0, 25)))
        before = it.device()
        it.add(reserved("a", share(0, 50), share(1, 100), cpus=(0, 1)), end)
        assert it.device() == before
        it.add(end)

        assert it.device() == before
        assert it.proved()


def test_a_release_makes_room_inside_one_batch(store: SqliteStore) -> None:
    """Order inside a batch is the order of the events: release, then reserve the same card."""
    with store.open() as ledger:
        it = Recorded(ledger, node(), reserved("a", share(0, 100)))
        it.writer.append(
            it.clock.all(
                released("a"),
                reserved("b", share(0, 100)),
                released("b"),
                reserved("c", share(0, 100)),
                reserved("d", share(1, 100)),
            )
        )

        assert it.used() == (100, 80 * GIB, 1, 0)
        assert it.proved()


def test_a_card_is_full_inside_one_batch(store: SqliteStore) -> None:
    """The other order is refused, though the sum at the end would fit."""
    with store.open() as ledger:
        it = Recorded(ledger, node(), reserved("a", share(0, 100)))
        with pytest.raises(CapacityError, match="has 0 of 100 percent core left"):
            it.writer.append(it.clock.all(reserved("b", share(0, 100)), released("a")))
        assert it.proved()


def test_a_pod_holds_one_reservation_at_a_time(store: SqliteStore) -> None:
    """Neither the same attempt twice nor a second attempt before the first one ended."""
    with store.open() as ledger:
        it = Recorded(ledger, node(), reserved("a", share(0, 10)))
        it.refuses(reserved("a", share(1, 10)), "already holds a reservation: pod=team-a/a")
        it.refuses(reserved("a", share(1, 10), attempt=2), "already holds a reservation")
        it.add(released("a"), reserved("a", share(1, 10), attempt=2))

        assert it.proved()


def test_closed_cards_take_no_grants(store: SqliteStore) -> None:
    """An unhealthy card keeps its holders and takes no other; it opens again by an event."""
    with store.open() as ledger:
        it = Recorded(ledger, node(), reserved("a", share(0, 10)), health(0, healthy=False))
        it.refuses(reserved("b", share(0, 10)), r"card n-1/gpu/0 \(GPU-n-1-0\) is unhealthy")
        it.add(health(0, healthy=True, reason="replaced"), reserved("b", share(0, 10)))

        assert it.used()[2] == 2
        assert it.proved()


def test_a_card_that_vanished_keeps_its_holder_and_its_successor_is_new(store: SqliteStore) -> None:
    """Another UUID at the same minor is another card; the old one is gone with its holder."""
    successor = gpu(0, device_id="GPU-new")
    with store.open() as ledger:
        it = Recorded(ledger, node(), reserved("a", share(0, 100)), node(devices=(successor,)))
        it.refuses(reserved("b", share(0, 10)), r"card n-1/gpu/0 \(GPU-n-1-0\) is gone")
        it.add(reserved("b", share(0, 100, device_id="GPU-new")))
        it.add(released("a"), node(devices=(successor, gpu(1, device_id="GPU-n-1-0"))))
        it.add(reserved("c", share(1, 100, device_id="GPU-n-1-0")))

        assert it.proved()


def test_a_card_is_the_same_card_at_another_minor(store: SqliteStore) -> None:
    """Identity is the UUID: a card that comes back at another minor is still held."""
    with store.open() as ledger:
        it = Recorded(ledger, node(), reserved("a", share(0, 100)))
        it.add(node(devices=(gpu(1), gpu(3, device_id="GPU-n-1-0"))))
        moved = share(3, 10, device_id="GPU-n-1-0")
        it.refuses(reserved("b", moved), r"card n-1/gpu/3 \(GPU-n-1-0\) has 0 of 100 percent")

        assert it.proved()


def test_a_card_without_a_uuid_is_the_one_that_gets_it(store: SqliteStore) -> None:
    """Inventories without ids know a card by its minor; an id learned later is that card's."""
    nameless = tuple(gpu(minor, device_id="") for minor in range(2))
    with store.open() as ledger:
        it = Recorded(ledger, node(devices=nameless), reserved("a", share(0, 100, device_id="")))
        it.add(node(gpus=2))
        it.refuses(reserved("b", share(0, 10)), "has 0 of 100 percent core left")
        it.add(node(devices=nameless), reserved("b", share(1, 100, device_id="")))

        assert it.proved()


def test_a_card_that_shrank_closes_until_its_holders_leave(store: SqliteStore) -> None:
    """Facts against capacity are recorded: no grants, and the cap falls as holders leave."""
    with store.open() as ledger:
        it = Recorded(ledger, node(), *(reserved(p, share(0, 40, gib=30)) for p in ("a", "b")))
        it.add(node(devices=(gpu(0, core_percent=50, memory_bytes=40 * GIB),)))
        row = it.device()
        assert (row["core_reported"], row["core_cap"], row["core_used"]) == (50, 80, 80)
        assert (row["memory_reported"], row["memory_cap"]) == (40 * GIB, 60 * GIB)
        it.refuses(reserved("c", share(0, 0, gib=0)), "has -30 of 50 percent core left, 0 asked")
        it.add(released("a"))
        row = it.device()
        assert (row["core_reported"], row["core_cap"], row["core_used"]) == (50, 50, 40)
        it.refuses(reserved("c", share(0, 20, gib=1)), "has 10 of 50 percent core left, 20 asked")
        it.add(reserved("c", share(0, 10, gib=10)))

        assert it.proved()


def test_observed_holders_are_outside_the_constraint_and_close_what_they_fill(
    store: SqliteStore,
) -> None:
    """What others hold is always recorded, even beyond the card, and is never given out again."""
    with store.open() as ledger:
        it = Recorded(ledger, node(), reserved("a", share(0, 60)))
        it.add(observed("x", share(0, 100)), observed("y", share(1, 30)))
        it.refuses(reserved("b", share(0, 1, gib=0)), "has -60 of 100 percent core left")
        it.refuses(reserved("b", share(1, 80, gib=1)), "has 70 of 100 percent core left, 80 asked")
        it.refuses(
            reserved("b", share(1, 10, exclusive=True, gib=1)),
            r"has 70 of 100 percent core left, 10 asked \(1 holders, an exclusive one was asked\)",
        )
        it.add(observed("z", share(2, 100, gib=0)))
        it.refuses(
            reserved("c", share(2, 0, gib=1)),
            r"has 0 of 100 percent core left, 0 asked \(held by others\)",
        )
        it.add(reserved("b", share(1, 70)), released("x"), reserved("d", share(0, 40)))

        assert it.proved()


def test_an_observed_holder_of_an_unknown_card_is_recorded(store: SqliteStore) -> None:
    """A card, a CPU or a node that no inventory named holds facts, and takes no grants."""
    with store.open() as ledger:
        it = Recorded(ledger, node(gpus=1, cpus=1))
        it.add(observed("x", share(7, 100), cpus=(9,)))
        it.add(observed("y", share(0, 100, node="n-9"), node="n-9"))
        it.refuses(reserved("a", share(7, 10)), "n-1/gpu/7 .* is gone")
        it.refuses(reserved("a", cpus=(9,)), "cpu n-1/cpu/9 is gone")
        it.refuses(reserved("a", share(5, 10)), "no such card: pod=team-a/a, card=n-1/gpu/5")
        it.refuses(reserved("a", cpus=(5,)), "no such CPU: pod=team-a/a, cpu=n-1/cpu/5")
        it.refuses(reserved("a", node="n-8"), "no inventory of the node")
        it.add(node(gpus=8, cpus=16), node("n-9"))
        it.refuses(reserved("a", share(7, 10)), "has 0 of 100 percent core left")
        it.refuses(reserved("a", cpus=(9,)), "cpu n-1/cpu/9 has 1 of 1 holders")
        it.add(released("x"), reserved("a", share(7, 10), cpus=(9,)))

        assert it.proved()


def test_a_holder_of_a_card_nobody_can_name_closes_the_node_for_its_type(
    store: SqliteStore,
) -> None:
    """While it is open, the node grants nothing of that type; other types and nodes go on."""
    nic = DeviceRecord(device_type="rdma", minor=0, device_id="0000:3b:00.0")
    with store.open() as ledger:
        it = Recorded(ledger, node(devices=(gpu(0), nic)), node("n-2"))
        it.add(observed("x", unknown_types=("gpu",)), observed("y", unknown_types=("gpu",)))
        it.refuses(reserved("a", share(0, 10)), "may be held by a Pod on an unknown card")
        it.add(reserved("b", share(0, 10, node="n-2"), node="n-2"))
        on_nic = share(0, 10, gib=0, device_type="rdma", device_id=nic.device_id)
        it.add(reserved("c", on_nic), released("x"))
        it.refuses(reserved("a", share(0, 10)), "may be held by a Pod on an unknown card")
        it.add(released("y"), reserved("a", share(0, 10)))

        assert it.proved()


def test_cpus_are_counted(store: SqliteStore) -> None:
    """A CPU has as many holders as its node allows, and is free again after the last."""
    with store.open() as ledger:
        it = Recorded(ledger, node(cpus=8), node("n-2", cpus=8, refs=2))
        it.add(reserved("a", cpus=(0, 1)), reserved("b", cpus=(2,)))
        it.refuses(reserved("c", cpus=(1, 3)), "cpu n-1/cpu/1 has 1 of 1 holders, one more asked")
        it.add(reserved("d", cpus=(0,), node="n-2"), reserved("e", cpus=(0, 1), node="n-2"))
        it.refuses(reserved("f", cpus=(0,), node="n-2"), "cpu n-2/cpu/0 has 2 of 2 holders")
        it.add(released("a"), reserved("c", cpus=(1, 3)))

        assert it.proved()


def test_cpus_of_an_lse_pod_have_one_holder(store: SqliteStore) -> None:
    """Whatever a CPU's holders are bound by: LSE shares with nobody, whoever came first."""
    lse = PodSnapshot(qos="LSE")
    with store.open() as ledger:
        it = Recorded(ledger, node(cpus=8, refs=2))
        it.add(reserved("a", cpus=(0, 1), snapshot=lse), reserved("b", cpus=(2,)))
        it.add(observed("x", cpus=(3,), snapshot=lse), observed("y", cpus=(4,)))
        for cpu in (1, 3):
            it.refuses(reserved("c", cpus=(cpu,)), f"cpu n-1/cpu/{cpu} has 1 holders, {ALONE}")
        for cpu in (0, 2, 4):
            refused = reserved("c", cpus=(cpu,), snapshot=lse)
            it.refuses(refused, f"cpu n-1/cpu/{cpu} has 1 holders, {ALONE}")
        it.add(reserved("d", cpus=(2,)), released("a"), reserved("c", cpus=(0,), snapshot=lse))
        it.add(observed("z", cpus=(0,)))

        assert it.proved()


def test_cpus_follow_the_inventory(store: SqliteStore) -> None:
    """A CPU that vanished or allows fewer holders keeps those it has and takes no other."""
    with store.open() as ledger:
        it = Recorded(ledger, node(cpus=4, refs=2))
        it.add(reserved("a", cpus=(0, 3)), reserved("b", cpus=(0,)), node(cpus=2, refs=1))
        it.refuses(reserved("c", cpus=(0,)), "cpu n-1/cpu/0 has 2 of 1 holders")
        it.refuses(reserved("c", cpus=(3,)), "cpu n-1/cpu/3 is gone")
        it.add(released("a"), released("b"), reserved("c", cpus=(0,)))

        assert it.proved()


def test_a_virtual_function_has_one_holder(store: SqliteStore) -> None:
    """Slots are taken by their name inside the node, whatever is left of the device."""
    nic = DeviceRecord(device_type="rdma", minor=0, device_id="0000:3b:00.0")

    def vf(bus_id: str) -> DeviceShare:
        return share(0, 1, gib=0, device_type="rdma", device_id=nic.device_id, vf_bus_ids=(bus_id,))

    with store.open() as ledger:
        it = Recorded(ledger, node(devices=(nic,)), reserved("a", vf("0000:3b:00.2")))
        it.refuses(reserved("b", vf("0000:3b:00.2")), "n-1/0000:3b:00.2 has a holder")
        it.add(reserved("b", vf("0000:3b:00.3")), observed("x", vf("0000:3b:00.3")))
        it.add(released("a"), reserved("c", vf("0000:3b:00.2")), released("b"))
        it.refuses(reserved("d", vf("0000:3b:00.3")), "has a holder")

        assert it.proved()
