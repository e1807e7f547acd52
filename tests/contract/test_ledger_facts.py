"""Facts that contradict capacity are recorded, close what they contradict, and crash nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from ledger.domain.errors import CapacityError
from ledger.domain.log.events import LedgerEvent
from ledger.store.projections.rebuild import rebuild
from tests.support.recorded import Recorded
from tests.support.stores import GIB, Store, gpu, node, observed, released, reserved, share

SMALL = gpu(0, core_percent=50, memory_bytes=20 * GIB)


def caps(it: Recorded) -> tuple[int, int, int, int]:
    """Return what the card must be taken to have and what is used: core, then GiB."""
    row = it.device()
    memory = (row["memory_cap"] // GIB, row["memory_used"] // GIB)
    return (row["core_cap"], row["core_used"], *memory)


def test_the_cap_of_a_shrunk_card_falls_with_every_holder_that_leaves(store: Store) -> None:
    """Down to what the card has and no further; then it opens for what is really left."""
    holders = [reserved(pod, share(0, 30, gib=20)) for pod in ("a", "b", "c")]
    with store.open() as ledger:
        it = Recorded(ledger, node(gpus=1), *holders, node(devices=(SMALL,)))
        assert caps(it) == (90, 90, 60, 60)
        it.refuses(reserved("x", share(0, 1, gib=0)), "has -40 of 50 percent core left, 1 asked")
        it.add(released("a"))
        assert caps(it) == (60, 60, 40, 40)
        it.add(released("b"))
        assert caps(it) == (50, 30, 20, 20)
        it.refuses(reserved("x", share(0, 1, gib=1)), f"has 0 of {20 * GIB} bytes memory left")
        it.add(released("c"), reserved("x", share(0, 50, gib=20)))

        assert caps(it) == (50, 50, 20, 20)
        assert it.proved()


def test_a_card_that_grows_again_has_its_own_cap_again(store: Store) -> None:
    """The inventory decides: a larger card needs no cap beyond itself."""
    with store.open() as ledger:
        it = Recorded(ledger, node(gpus=1), reserved("a", share(0, 80)), node(devices=(SMALL,)))
        assert caps(it) == (80, 80, 64, 64)
        it.add(node(gpus=1))
        assert caps(it) == (100, 80, 80, 64)
        it.add(reserved("b", share(0, 20)))

        assert it.proved()


def test_a_card_that_nobody_could_name_is_named_in_one_command(store: Store) -> None:
    """The node is open again but for that card, which no grant gets until the Pod is gone."""
    unknown = observed("old", unknown_types=("gpu",))
    named = observed("old", share(1, 100, exclusive=True), attempt=2, source="agent")
    with store.open() as ledger:
        it = Recorded(ledger, node(gpus=2), unknown)
        it.refuses(reserved("x", share(0, 50)), "on an unknown card")
        it.add(released("old", reason="named by its node"), named, reserved("x", share(0, 50)))
        it.refuses(reserved("y", share(1, 1, gib=0)), "n-1/gpu/1")
        assert it.proved()
        it.add(released("old", attempt=2), reserved("y", share(1, 1, gib=0)))

        assert it.proved()


def test_a_card_that_vanished_under_its_holder_comes_back_smaller(store: Store) -> None:
    """Gone it grants nothing; back and smaller it waits until its holder has left."""
    with store.open() as ledger:
        it = Recorded(ledger, node(gpus=2), reserved("a", share(0, 80)))
        it.add(node(devices=(gpu(1),)))
        assert caps(it) == (80, 80, 64, 64)
        it.refuses(reserved("x", share(0, 1)), "n-1/gpu/0 .* is gone")
        it.add(node(devices=(SMALL, gpu(1))))
        it.refuses(reserved("x", share(0, 1, gib=1)), "has -30 of 50 percent core left, 1 asked")
        it.add(released("a"), reserved("x", share(0, 50, gib=20)))

        assert it.proved()


def test_a_holder_that_leaves_while_its_card_is_gone_leaves_it_empty(store: Store) -> None:
    """What comes back later is free."""
    with store.open() as ledger:
        it = Recorded(ledger, node(gpus=1), reserved("a", share(0, 80)), node(gpus=0))
        it.add(released("a"))
        assert caps(it) == (0, 0, 0, 0)
        it.add(node(gpus=1), reserved("b", share(0, 100)))

        assert it.proved()


def test_what_others_hold_may_exceed_the_card(store: Store) -> None:
    """Adopted holders over 100 % are all recorded; the card opens only for what they leave."""
    with store.open() as ledger:
        it = Recorded(ledger, node(gpus=1), reserved("a", share(0, 40)))
        it.add(*(observed(pod, share(0, 70)) for pod in ("x", "y", "z")))
        row = it.device()
        assert (row["core_observed"], row["observed_holders"], row["core_used"]) == (210, 3, 40)
        assert row["core_cap"] == row["core_reported"] == 100
        it.refuses(reserved("b", share(0, 1)), "has -150 of 100 percent core left, 1 asked")
        it.add(released("x"), released("y"))
        it.refuses(reserved("b", share(0, 1)), "has -10 of 100 percent core left, 1 asked")
        it.add(released("z"), reserved("b", share(0, 60)))

        assert it.proved()


def test_an_over_full_card_that_shrinks_stays_closed_until_it_has_room(store: Store) -> None:
    """Ours and others' on a card that lost half of itself: every fact stands, nothing is lost."""
    with store.open() as ledger:
        it = Recorded(ledger, node(gpus=1), reserved("a", share(0, 60)))
        it.add(observed("x", share(0, 90)), node(devices=(SMALL,)))
        it.refuses(reserved("b", share(0, 0, gib=0)), "has -100 of 50 percent core left, 0 asked")
        it.add(released("a"))
        it.refuses(reserved("b", share(0, 1, gib=0)), "has -40 of 50 percent core left, 1 asked")
        it.add(released("x"), reserved("b", share(0, 50, gib=20)))

        assert it.proved()
        assert rebuild(ledger).equal


def test_cpus_that_allow_fewer_holders_than_they_have_close(store: Store) -> None:
    """The reference count is a cap of its own, and falls as holders leave."""
    pods = [reserved(pod, cpus=(0,)) for pod in ("a", "b", "c")]
    with store.open() as ledger:
        it = Recorded(ledger, node(cpus=2, refs=3), *pods, node(cpus=2, refs=2))
        it.refuses(reserved("x", cpus=(0,)), "cpu n-1/cpu/0 has 3 of 2 holders")
        it.add(released("a"))
        it.refuses(reserved("x", cpus=(0,)), "cpu n-1/cpu/0 has 2 of 2 holders")
        it.add(released("b"), reserved("x", cpus=(0,)))

        assert it.proved()


@pytest.mark.parametrize("known", [(), (node(cpus=4),)], ids=["new", "known"])
def test_an_inventory_that_names_a_cpu_twice_is_refused(
    store: Store, known: tuple[LedgerEvent, ...]
) -> None:
    """It contradicts itself, in words; the ledger goes on with the next one."""
    cpus = node(cpus=4).cpus
    twice = structs.replace(node(cpus=4), cpus=(*cpus, replace(cpus[1], numa=1)))
    with store.open() as ledger:
        it = Recorded(ledger, *known)
        it.refuses(twice, "contradicts itself: cpu n-1/cpu/1 is named twice: node_uid=uid-n-1")
        it.add(node(cpus=4), reserved("a", cpus=(0, 1)))

        assert it.proved()


def test_a_batch_with_such_an_inventory_records_nothing(store: Store) -> None:
    """The events before it go with it."""
    cpus = node(cpus=2).cpus
    with store.open() as ledger:
        it = Recorded(ledger, node(cpus=2))
        with pytest.raises(CapacityError, match="named twice"):
            it.writer.append(
                it.clock.all(
                    reserved("a", cpus=(0,)), structs.replace(node(), cpus=(*cpus, cpus[0]))
                )
            )
        it.add(reserved("b", cpus=(0,)))

        assert it.proved()
