"""Cards out of Volcano's annotations (docs/contracts/volcano-vgpu.md)."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest

from ledger.domain.adopted.pods import adopt
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from scheduler.usage.claims import register_groups
from scheduler.usage.picture import CardGroup, Many, exactly
from tests.support.objects import container, node, pod

NUMBER = "volcano.sh/vgpu-number"
REGISTER = "volcano.sh/node-vgpu-register"
GIVEN = "volcano.sh/vgpu-ids-new"
TWO = "GPU-a,10,20000,NVIDIA-NVIDIA A10,true,hami-core:GPU-b,10,20000,NVIDIA-NVIDIA A10,true,mig:"


def registered(text: str) -> tuple[NodeFacts, list[str]]:
    """Return a node that offers vGPUs and registers these cards, and what is wrong with it."""
    body = node("n", allocatable={NUMBER: "20"}, annotations={REGISTER: text})
    return decode_node(body)


def test_volcanos_scheduler_gives_cards_where_its_plugin_lives() -> None:
    """As HAMi's: it counts none of our Pods; a register may outlive its plugin."""
    annotations = {REGISTER: TWO}
    gone = node("n", allocatable={NUMBER: "0"}, annotations=annotations)
    assert registered(TWO)[0].other_scheduler == "volcano"
    assert not decode_node(gone)[0].other_scheduler
    assert not decode_node(node("n", allocatable={NUMBER: "20"}))[0].other_scheduler


def observed(name: str, text: str | None = None, on: str = TWO) -> tuple[PodObserved, str]:
    """Return a Pod that asks for one vGPU, with what the scheduler gave it, and its faults."""
    annotations = {} if text is None else {GIVEN: text}
    body = pod(container(limits={NUMBER: 1}), name=name, uid=name, annotations=annotations)
    held = adopt(body, registered(on)[0])
    return PodObserved(
        pod_uid=name,
        attempt=1,
        namespace="ml",
        pod_name=name,
        node_uid="n",
        node_name="n",
        source="",
        snapshot=held.snapshot,
        parts=held.parts,
    ), " ".join(held.faults)


def group(*pods: tuple[PodObserved, str], on: str = TWO) -> CardGroup:
    """Return the one group of node `n`, which is open."""
    there = [event for event, _ in pods]
    (found,) = register_groups(registered(on)[0].systems, there, {}, is_open=True)
    return found


def test_containers_of_one_pod_hold_together() -> None:
    """Two containers on one card are one holder with both amounts."""
    text = "GPU-a,NVIDIA,1000,10:;GPU-a,NVIDIA,2000,20:"
    found = group(observed("p", text))

    (holder,) = found.devices[0].holders
    assert (holder.path, holder.memory_mib, holder.core_percent) == ("ml/p", 3000, 30)
    assert (found.model, found.memory_mib, found.mode) == ("NVIDIA A10", 20000, "slices")
    assert (found.cards, found.free, found.gettable) == (exactly(2), exactly(1), exactly(1))
    assert found.units[NUMBER].held == 1
    assert found.unplaced == ()


def test_a_slice_of_a_card_is_on_it() -> None:
    """Of MIG the id goes on with a place."""
    found = group(observed("p", "GPU-b[1-0],NVIDIA,5000,0:"))

    assert [holder.level_percent for holder in found.devices[1].holders] == [25]


def test_who_has_no_annotation_is_on_a_card_that_nobody_knows() -> None:
    """He may share one, so that one or two are free."""
    found = group(observed("p", "GPU-a,NVIDIA,1000,10:"), observed("q"))

    assert [each.path for each in found.unplaced] == ["ml/q"]
    assert found.free == Many(least=0, most=1)


def test_a_card_that_is_not_registered_is_one_that_nobody_knows() -> None:
    """What was given is held, wherever it is."""
    found = group(observed("p", "GPU-z,NVIDIA,1000,10:"))

    assert [each.path for each in found.unplaced] == ["ml/p"]


@pytest.mark.parametrize(
    "text", ["x", "GPU-a,10:", "GPU-a,10,many,A10,true:", "GPU-a,10,-1,A10,true:", "{}"]
)
def test_a_register_of_another_form_lists_no_cards(text: str) -> None:
    """And is named."""
    facts, (warning,) = registered(text)

    assert facts.systems.cards == ()
    assert "can't be read: not as the plugin writes it" in warning


@pytest.mark.parametrize("text", ["x,", "GPU-a,NVIDIA,much,1:", "{"])
def test_what_was_given_in_another_form_is_named(text: str) -> None:
    """What that Pod holds is not known."""
    event, faults = observed("p", text)

    assert event.parts == ()
    assert "can't be read: not as the scheduler writes it" in faults


def test_an_ill_card_is_neither_free_nor_to_be_had() -> None:
    """v1.9 writes no mode."""
    found = group(on="GPU-a,10,11264,GTX,false:")

    assert (found.cards, found.free, found.gettable) == (exactly(1), exactly(0), exactly(0))
    assert (found.devices[0].healthy, found.mode) == (False, "shares")


def test_what_counts_cards_names_a_register_whatever_the_order_of_its_names() -> None:
    """Of Hygon's names two are of one length; amounts of memory are no cards."""
    names = {"hygon.com/dcunum": "16", "hygon.com/dcumem": "262144", "hygon.com/dcucores": "400"}
    body = node("n", allocatable=names, annotations={"hami.io/node-dcu-register": "garbage"})
    asks = container(limits={"hygon.com/dcunum": 1, "hygon.com/dcumem": 2000})
    facts, _ = decode_node(body)
    held = adopt(pod(asks, name="p", uid="p"), facts)
    event = PodObserved(
        pod_uid="p",
        attempt=1,
        namespace="ml",
        pod_name="p",
        node_uid="n",
        node_name="n",
        source="",
        snapshot=held.snapshot,
    )

    for key in permutations(names):
        offers = tuple((name, int(names[name])) for name in key)
        systems = replace(facts.systems, offers=offers, capacity=offers)
        (found,) = register_groups(systems, [event], {}, is_open=True)
        assert [*found.units] == ["hygon.com/dcunum", "hygon.com/dcumem", "hygon.com/dcucores"]
        assert [(each.amount, each.unit) for each in found.unplaced] == [(1, "hygon.com/dcunum")]
        assert found.cards == Many(least=1, most=16)


@pytest.mark.parametrize(
    "key", ["hami.io/node-nvidia-register", "hami.io/node-register-Ascend910B"]
)
def test_a_register_of_which_nothing_is_known_has_any_number_of_cards(key: str) -> None:
    """It can't be read, no label counts, and the node offers nothing: no exact 0."""
    facts, _ = decode_node(node("n", annotations={key: "garbage"}))
    (found,) = register_groups(facts.systems, [], {}, is_open=True)

    assert (found.cards, found.free) == (Many(least=0, most=None), Many(least=0, most=None))
    assert found.gettable == exactly(0)
