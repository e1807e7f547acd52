from __future__ import annotations

from typing import Any

import pytest

from ledger.domain.devices import DeviceShare
from ledger.domain.errors import LedgerError
from ledger.domain.log.events import (
    ClaimReserved,
    DeviceHealthChanged,
    NodeDescribed,
    NodeInventoried,
    PodReserved,
)
from ledger.domain.request.requests import PodRequest
from scheduler.service.requests import UNKNOWN_POD
from scheduler.service.view import STRANGERS, UNREADABLE, UNRECORDED
from tests.support.dra import DRIVER, card, resource_slice
from tests.support.live import Live, MemoryLedger, types
from tests.support.objects import container, device, gpu_device, node, nrt, pod
from tests.support.stores import claim, claim_ended, share


def _pod(name: str, gpus: int = 1) -> dict[str, Any]:
    return pod(container(limits={"koordinator.sh/gpu": 100 * gpus}), name=name, uid=f"pod-{name}")


def test_a_node_is_recorded_before_anything_is_decided_by_it() -> None:
    """Until it is durable the node is not in the inventory; then the ledger has said all of it."""
    live = Live()
    live.add_node("a")
    assert live.passing(_pod("p")) == []
    assert live.view.directory.number("a") is None
    live.settle()
    assert types(live.ledger.log) == ["node.inventoried", "node.described"]
    assert live.passing(_pod("p"), "a") == ["a"]


def test_only_what_changed_is_recorded() -> None:
    """A heartbeat, and a start of another process, say nothing new of a node."""
    live = Live()
    live.add_node("a")
    live.settle()
    live.add_node("a")
    live.settle()
    again = Live(live.ledger)
    again.add_node("a")
    again.settle()
    assert len(live.ledger.log) == 2
    again.add_node("a", 1)
    again.settle()
    assert types(live.ledger.log)[2:] == ["node.inventoried"]


def test_nothing_is_recorded_before_every_list_was_read() -> None:
    """A Node whose Device was not listed yet looks as if it had no cards."""
    live = Live()
    live.synced = False
    live.add_node("a")
    live.settle()
    assert not live.ledger.log
    assert not live.inventory.settled


def test_what_events_say_is_held_and_given_back() -> None:
    """The card is taken from the reservation's event on, and free from its release on."""
    live = Live()
    live.add_node("a", 1)
    live.settle()
    event = live.reserve(live.placement(_pod("p"), "a"))
    assert live.passing(_pod("q"), "a") == []
    live.release(event)
    assert live.passing(_pod("q"), "a") == ["a"]


def test_an_event_counts_once_whoever_tells_of_it_first() -> None:
    """Own commands are taken at once, and the feed tells of them again, in order."""
    live = Live()
    live.add_node("a", 1)
    live.settle()
    first = live.reserve(live.placement(_pod("p"), "a"))
    live.release(first)
    for position, event in enumerate(live.ledger.log, start=1):
        live.view.take(position, event)
    assert live.view.position == len(live.ledger.log)
    assert live.passing(_pod("q"), "a") == ["a"]


def test_a_process_that_starts_knows_what_the_one_before_knew() -> None:
    """Holdings come from the ledger alone: no annotation is read."""
    live = Live()
    for name in "ab":
        live.add_node(name, 1)
    live.settle()
    live.reserve(live.placement(_pod("p"), "a"))
    again = Live(live.ledger)
    for name in "ab":
        again.add_node(name, 1)
    again.settle()
    assert again.passing(_pod("q"), "a", "b") == ["b"]
    assert set(again.view.holdings("uid-a")) == {"pod-p/1"}


def test_a_node_that_can_not_be_read_takes_nothing_and_stops_nobody() -> None:
    """Its reason is its own; what it holds stays held, and it is back once it can be read."""
    live = Live()
    for name in "ab":
        live.add_node(name, 1)
    live.settle()
    live.add_node("a", 1, annotations={"node.koordinator.sh/reservation": "{"})
    live.add_node("c", 1)
    live.settle()
    assert live.view.directory.closed("a") == UNREADABLE
    assert "reservation" in live.inventory.faults["a"]
    assert live.passing(_pod("p"), "b", "c") == ["b", "c"]
    assert live.view.choose("pod-p", "a") == UNREADABLE
    live.add_node("a", 1)
    live.settle()
    assert live.passing(_pod("p"), "a") == ["a"]
    assert not live.inventory.faults


def test_a_node_that_the_ledger_refuses_takes_nothing_until_it_is_recorded() -> None:
    """Nothing is decided by facts that are not in the log."""
    ledger = MemoryLedger(refuses={"uid-a": "it contradicts another node"})
    live = Live(ledger)
    for name in "ab":
        live.add_node(name, 1)
    live.settle()
    assert live.view.directory.closed("a") == UNRECORDED
    assert live.passing(_pod("p"), "b") == ["b"]
    ledger.refuses.clear()
    live.settle()
    assert live.passing(_pod("p"), "a") == ["a"]


def test_what_could_not_be_recorded_is_recorded_once_the_ledger_is_back() -> None:
    """The ledger's absence loses no change."""
    live = Live()
    live.add_node("a", 1)
    live.ledger.away = LedgerError("the database is away")
    with pytest.raises(LedgerError):
        live.settle()
    live.ledger.away = None
    live.settle()
    assert live.passing(_pod("p"), "a") == ["a"]


def test_a_loss_that_meets_a_ledger_that_is_away_loses_no_other_change() -> None:
    """At a takeover the first thing to record may be that a Node went; the others wait for it."""
    live = Live()
    live.add_node("a")
    live.settle()
    after = Live(live.ledger)
    after.add_node("b")
    after.ledger.away = LedgerError("the database is away")
    with pytest.raises(LedgerError, match="away"):
        after.settle()
    after.ledger.away = None
    after.settle()

    assert (after.view.facts("a"), after.view.uid("b")) == (None, "uid-b")


def test_a_node_that_was_deleted_takes_nothing_and_its_account_stays() -> None:
    """Its loss is recorded; the same machine under another Node still has what is held."""
    live = Live()
    live.add_node("a", 1)
    live.settle()
    live.reserve(live.placement(_pod("p"), "a"))
    live.drop_node("a")
    live.settle()
    assert types(live.ledger.log)[-1] == "node.lost"
    assert live.view.directory.number("a") is None
    assert set(live.view.holdings("uid-a")) == {"pod-p/1"}


def test_a_node_that_was_made_anew_under_its_name_is_another_one() -> None:
    """The old one's loss is recorded first; what was held there is not held by the new one."""
    live = Live()
    live.add_node("a", 1)
    live.settle()
    live.drop_node("a")
    live.add_node("a", 1, uid="second")
    live.settle()
    assert types(live.ledger.log)[2:] == ["node.lost", "node.inventoried", "node.described"]
    assert live.view.uid("a") == "second"
    assert live.passing(_pod("p"), "a") == ["a"]


def test_a_loss_that_can_not_be_recorded_is_recorded_later() -> None:
    """Until then the node takes nothing, and nobody takes its name."""
    live = Live()
    live.add_node("a", 1)
    live.settle()
    live.drop_node("a")
    live.ledger.refuses["uid-a"] = "not now"
    live.settle()
    assert live.view.directory.number("a") is None
    live.add_node("a", 1, uid="second")
    live.settle()
    assert live.view.directory.closed("a") == UNRECORDED
    live.ledger.refuses.clear()
    live.settle()
    assert types(live.ledger.log)[2:] == ["node.lost", "node.inventoried", "node.described"]
    assert live.passing(_pod("p"), "a") == ["a"]


def test_a_node_that_is_out_of_service_takes_nothing_until_it_is_back() -> None:
    """By its taint; the ledger is told of both."""
    live = Live()
    live.add_node("a", 1)
    live.settle()
    taint = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
    live.add_node("a", 1, taints=[taint])
    live.settle()
    assert types(live.ledger.log)[-1] == "node.lost"
    assert live.passing(_pod("p"), "a") == []
    live.add_node("a", 1)
    live.settle()
    assert types(live.ledger.log)[-2] == "node.inventoried"
    assert live.passing(_pod("p"), "a") == ["a"]


def test_a_node_that_went_while_nobody_looked_is_lost_at_the_start() -> None:
    """The ledger and the API are compared once, when all lists were read."""
    live = Live()
    live.add_node("a", 1)
    live.settle()
    live.reserve(live.placement(_pod("p"), "a"))
    again = Live(live.ledger)
    again.settle()
    assert types(live.ledger.log)[-1] == "node.lost"
    assert set(again.view.holdings("uid-a")) == {"pod-p/1"}
    assert again.view.directory.number("a") is None


def test_what_a_node_that_the_api_lacks_holds_is_counted_with_the_first_lists() -> None:
    """A card with its id on another Node takes nobody; before the lists nothing is decided."""
    live = Live()
    live.add_node("a", 1)
    live.settle()
    live.reserve(live.placement(_pod("p"), "a"))
    again = Live(live.ledger)
    again.inventory.follow(live.ledger.log[-1])
    assert again.view.numbers == {}
    again.add_node("b", 1)
    again.tell("devices", device(gpu_device(0, id="GPU-a-0"), name="b"), uid="device-b")
    again.inventory.stand_by()
    assert again.view.holders() == {"pod-p"}
    again.settle()
    assert again.passing(_pod("q"), "b") == []
    assert set(again.view.holdings("uid-a")) == {"pod-p/1"}


def test_a_card_that_an_event_closed_stays_closed_whatever_the_device_object_says() -> None:
    """Cordons are in the ledger alone; the next inventory speaks of the card anew."""
    live = Live()
    live.add_node("a", 1)
    live.settle()
    closed = DeviceHealthChanged(
        node_uid="uid-a",
        device_type="gpu",
        minor=0,
        device_id="GPU-a-0",
        healthy=False,
        reason="cordon",
    )
    live.record(closed)
    assert live.passing(_pod("p"), "a") == []
    live.add_node("a", 1)
    live.settle()
    assert live.passing(_pod("p"), "a") == []


def test_a_choice_is_decided_on_the_named_node_and_changes_nothing() -> None:
    """The same call gives the same answer; what does not fit says why."""
    live = Live()
    live.add_node("a", 1)
    live.settle()
    first = live.placement(_pod("p"), "a")
    assert live.placement(_pod("p"), "a") == first
    live.reserve(first)
    live.view.requests.read(_pod("q"))
    assert live.view.choose("pod-q", "a") == "Insufficient gpu devices"
    assert live.view.choose("pod-q", "z") == "NodeNotInInventory"
    assert live.view.choose("pod-z", "a") == UNKNOWN_POD


def test_a_pod_that_was_never_filtered_here_is_known_by_its_watch() -> None:
    """A process that took over between filter and bind has it from the API."""
    live = Live()
    live.add_node("a", 1)
    live.settle()
    live.view.pods.put("pod-p", _pod("p"))
    chosen = live.view.choose("pod-p", "a")
    assert not isinstance(chosen, str)
    live.view.pods.drop("pod-p")


def test_without_some_holders_a_node_is_judged_as_if_they_had_gone() -> None:
    """For the end of the block all is as it was."""
    live = Live()
    live.add_node("a", 1)
    live.settle()
    live.reserve(live.placement(_pod("p"), "a"))
    with live.view.without("a", ["pod-p"]):
        assert live.passing(_pod("q"), "a") == ["a"]
    assert live.passing(_pod("q"), "a") == []


def test_the_inventory_says_what_the_device_object_says() -> None:
    """The event holds the cards by their ids."""
    live = Live()
    live.add_node("a", 2)
    live.settle()
    event = live.ledger.log[0]
    assert isinstance(event, NodeInventoried)
    assert [card.device_id for card in event.devices] == ["GPU-a-0", "GPU-a-1"]
    assert not any(isinstance(one, PodReserved) for one in live.ledger.log)


def test_a_node_with_a_holder_that_the_ledger_does_not_know_takes_nothing() -> None:
    """Its cards would be given twice: until the ledger is told of it, or it is gone."""
    live = Live()
    live.add_node("a", 2)
    live.settle()
    stranger = _pod("s")
    stranger["spec"]["nodeName"] = "a"
    live.view.pods.put("pod-s", stranger)
    assert live.view.directory.closed("a") == STRANGERS
    live.settle()
    assert live.view.choose("pod-p", "a") == UNKNOWN_POD
    live.view.pods.put("pod-s", {**stranger, "status": {"phase": "Succeeded"}})
    assert live.passing(_pod("p"), "a") == ["a"]
    live.view.pods.put("pod-s", stranger)
    best = live.view.engine.filter(_request(live, stranger), [0]).best
    assert best is not None
    live.reserve(best)
    assert live.passing(_pod("p"), "a") == ["a"], "it is held, and counted"
    live.view.pods.drop("pod-s")
    assert live.passing(_pod("p"), "a") == ["a"]


def test_a_pod_without_devices_is_no_stranger_and_one_with_cpus_of_its_own_is() -> None:
    """Daemons run everywhere; an LSR Pod's CPUs would be given twice."""
    live = Live()
    live.add_node("a", 2)
    live.settle()
    daemon = pod(container(limits={"cpu": "1"}), name="d", uid="pod-d", nodeName="a")
    live.view.pods.put("pod-d", daemon)
    assert live.passing(_pod("p"), "a") == ["a"]
    labels = {"koordinator.sh/qosClass": "LSR"}
    pinned = pod(container(limits={"cpu": "1"}), name="d", uid="pod-d", labels=labels, nodeName="a")
    live.view.pods.put("pod-d", pinned)
    assert live.view.directory.closed("a") == STRANGERS


def test_a_pod_that_another_scheduler_gave_cpus_is_a_stranger_whatever_its_class() -> None:
    """Koordinator gives any Pod CPUs of its own where the node has a bind policy."""
    live = Live()
    live.add_node("a", 2)
    live.settle()
    status = {"scheduling.koordinator.sh/resource-status": {"cpuset": "0-1"}}
    body = pod(container(limits={"cpu": "2"}), name="g", uid="pod-g", annotations=status)
    live.view.pods.put("pod-g", body)
    assert live.passing(_pod("p"), "a") == ["a"], "what nobody has bound has nothing"
    live.view.pods.put("pod-g", {**body, "spec": {**body["spec"], "nodeName": "a"}})
    assert live.view.directory.closed("a") == STRANGERS


@pytest.mark.parametrize(
    ("asks", "is_given"),
    [
        pytest.param({"cpu": "2"}, False, id="a plain Pod"),
        pytest.param({"cpu": "2", "koordinator.sh/gpu": 100}, True, id="a Pod that we gave a card"),
    ],
)
def test_what_kubelet_pinned_for_a_pod_without_cpus_in_the_ledger_is_nobody_elses(
    asks: dict[str, Any], *, is_given: bool
) -> None:
    """Kubelet's static policy pins CPUs of any Guaranteed Pod, and tells of it later."""
    live = Live()
    topology = {"detail": [{"id": n, "core": n // 2, "socket": 0, "node": 0} for n in range(8)]}
    live.add_node("a", 1)
    live.tell("topologies", nrt("a", cpu_topology=topology), uid="topology-a")
    live.settle()
    running = pod(container(limits={**asks, "memory": "1Gi"}), name="g", uid="pod-g", nodeName="a")
    if is_given:
        pending = {**running, "spec": {**running["spec"], "nodeName": ""}}
        live.reserve(live.placement(pending, "a"))
    live.view.pods.put("pod-g", running)
    entry = {"namespace": "ml", "name": "g", "uid": "pod-g", "cpuset": "0-1"}
    pinned = nrt("a", cpu_topology=topology, pod_cpu_allocs=[{**entry, "managedByKubelet": True}])
    live.tell("topologies", pinned, uid="topology-a")
    live.settle()
    labels = {"koordinator.sh/qosClass": "LSR", "koordinator.sh/priority-class": "koord-prod"}

    def wants(cpus: int) -> dict[str, Any]:
        amounts = {"cpu": str(cpus), "memory": "1Gi"}
        return pod(container(limits=amounts), name="o", uid=f"pod-{cpus}", labels=labels)

    assert live.passing(wants(8), "a") == []
    assert str(live.placement(wants(6), "a").cpuset) == "2-7"


def _request(live: Live, body: dict[str, Any]) -> PodRequest:
    asked = live.view.requests.read(body)
    assert isinstance(asked, PodRequest)
    return asked


def test_what_a_node_offers_of_cards_is_recorded_and_of_what_nobody_follows_is_not() -> None:
    """A map of the ledger has other vendors' cards; of NICs all would look free."""
    live = Live()
    offered = {"gpu.intel.com/i915": 3, "rdma/hca": 4, "kubernetes.io/batch-cpu": 7}
    register = {"volcano.sh/node-vgpu-register": "GPU-a,10,20000,NVIDIA-A10,true,hami-core:"}
    body = node("a", allocatable={"cpu": "64", **offered}, annotations=register)
    body["status"]["capacity"] = {"gpu.intel.com/i915": 4}
    live.tell("nodes", body, uid="uid-a")
    live.settle()
    live.tell("nodes", body, uid="uid-a")
    live.settle()

    [described] = [one for one in live.ledger.log if isinstance(one, NodeDescribed)]
    systems = described.facts.systems
    assert systems.offers == (("gpu.intel.com/i915", 3),)
    assert systems.capacity == (("gpu.intel.com/i915", 4),)
    assert [card.id for card in systems.cards] == ["GPU-a"]


def _claim(name: str, *shares: DeviceShare) -> ClaimReserved:
    return claim(name, *shares, node="a")


def test_what_a_claim_holds_is_not_given_to_a_pod_and_is_no_pods() -> None:
    """It counts on the card, seen or granted; no end of a Pod is looked for, and none frees it."""
    live = Live()
    live.add_node("a", 1)
    live.settle()
    whole = share(0, 100, device_id="GPU-a-0", gib=24, exclusive=True)
    held = _claim("c", whole)
    live.record(held)
    assert live.passing(_pod("q"), "a") == []
    assert live.view.holdings("uid-a") == {}
    again = Live(live.ledger)
    again.add_node("a", 1)
    again.settle()
    assert again.passing(_pod("q"), "a") == []
    again.record(claim_ended("c", node="a"))
    assert again.passing(_pod("q"), "a") == ["a"]


def test_a_card_that_claims_alone_are_given_is_none_to_place_on_and_closes_none() -> None:
    """A claim on a card that no Device object lists leaves the node's own cards as they are."""
    live = Live()
    live.add_node("a", 1)
    live.settle()
    live.record(_claim("c", share(7, 100, device_id="GPU-only-sliced", gib=80, exclusive=True)))
    assert live.passing(_pod("q"), "a") == ["a"]


def test_a_node_whose_cards_claims_give_takes_no_pod_and_keeps_what_it_holds() -> None:
    """As soon as its mode is another one, whatever else is told of it, and until it is back."""
    live = Live(drivers=[DRIVER])
    live.add_node("a", 2)
    live.settle()
    live.reserve(live.placement(_pod("p"), "a"))
    live.view.modes.slices.put("s", resource_slice([card("gpu-0", "GPU-0")], node="a"))
    live.view.modes_changed(["nobody"])

    assert live.passing(_pod("q"), "a") == []
    assert live.view.directory.closed("a") == "NodeGivesByClaims"
    assert set(live.view.holdings("uid-a")) == {"pod-p/1"}
    live.view.modes.slices.drop("s")
    assert live.passing(_pod("q"), "a") == ["a"]
