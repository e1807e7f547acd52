from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from ledger.domain.devices import DeviceShare
from ledger.domain.dialects.names import Dialect
from ledger.domain.kube.node_objects import decode_node
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts, Taint
from ledger.domain.request.requests import CpuSetDemand
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.settings import POLICIES, SchedulingSettings
from tests.support.clusters import (
    GIB,
    SMALL_MACHINE,
    engine,
    gpu_node,
    held,
    placed,
    pod,
    refused,
    running,
    selector,
    share,
)
from tests.support.objects import node

PINNED = CpuSetDemand(cpus=4, bind_policy="FullPCPUs", required=True, exclusive_policy="None")


def unique(node: NodeFacts) -> NodeFacts:
    """Return the node with ids that are compared between machines."""
    devices = [replace(device, unique_id=True) for device in node.devices]
    return replace(node, devices=tuple(devices))


def of_machine(node: NodeFacts, machine: str) -> NodeFacts:
    """Return the node as one that tells which machine it is."""
    return replace(node, system_uuid=machine, machine_id=machine)


def holder(node: NodeFacts, uid: str, *shares: DeviceShare) -> PodObserved:
    """Return a Pod that is seen on the node."""
    return structs.replace(running(uid, *shares, cpu_milli=0), node_uid=node.uid)


def left(cluster: Engine, number: int) -> list[int]:
    """Return the core percent that is free on each open GPU of a node."""
    return [0 if card.closed else card.core_free for card in cluster.view(number).cards]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_node_that_comes_is_decided_on_at_once(policy: str) -> None:
    """By every policy, also from nothing and for a request that was refused before."""
    cluster = engine(policy=policy)
    request = pod("p", share(50))
    assert refused(cluster, request).message.startswith("0/0")

    assert cluster.put_node(gpu_node("a")) == 0
    assert placed(cluster, request).node_name == "a"


@pytest.mark.parametrize("by_count", [False, True])
def test_a_node_whose_cards_are_given_in_parts_and_whole_again(*, by_count: bool) -> None:
    """Replicas are set and taken back while somebody holds some: no sum is left behind."""

    def plugged(units: int, **labels: str) -> NodeFacts:
        told = {f"nvidia.com/gpu.{key}": value for key, value in labels.items()}
        quantities = {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": units}
        body = node("n", allocatable=quantities, labels=told)
        return decode_node(body)[0]

    whole, parts = plugged(2), plugged(20, replicas="10", count="2")
    more = plugged(3, count="2")
    holds = structs.replace(running("r"), node_uid=whole.uid, unknown_types=("gpu",))
    holds = structs.replace(holds, counted={"gpu": 1})
    cluster = Engine((whole,), SchedulingSettings(), by_count=by_count)
    cluster.take(0, holds)
    for facts in (parts, more, parts, whole, more, whole):
        cluster.put_node(facts)
        anew = Engine((facts,), SchedulingSettings(), by_count=by_count)
        anew.take(0, holds)
        sums = [
            (each.core_percent_capacity, each.core_percent_allocated) for each in (cluster, anew)
        ]
        assert sums[0] == sums[1]
        for count in (1, 2, 19, 20):
            request = replace(pod("p", share(100, count)), dialect=Dialect.NVIDIA)
            answers = [each.decide(request) for each in (cluster, anew)]
            assert [type(one) for one in answers] == [type(answers[1])] * 2
            if facts is parts and by_count:
                assert isinstance(answers[0], Placement if count < 20 else Unplaced)
                assert isinstance(answers[0], Unplaced) or answers[0].counted == count
    cluster.release("r")
    assert cluster.core_percent_allocated == 0


def test_who_grants_names_no_card_that_the_plugin_picks_and_counts_its_parts() -> None:
    """Of two nodes of one model, without a word of whose whole cards are."""
    count = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.count": "2"}
    shared = {**count, "nvidia.com/gpu.replicas": "2"}
    facts = [
        decode_node(node(name, allocatable={"cpu": "8", "nvidia.com/gpu": units}, labels=labels))[0]
        for name, units, labels in (("whole", 2, count), ("parts", 4, shared))
    ]
    request = replace(pod("p", share(100), cpu_milli=0), memory_bytes=0, dialect=Dialect.NVIDIA)
    for ordered in (facts, facts[::-1]):
        answer = Engine(ordered, SchedulingSettings()).decide(request)
        assert isinstance(answer, Placement), answer
        assert (answer.node_name, answer.counted) == ("parts", 1)


def test_a_node_that_went_is_never_chosen_counted_or_a_reason() -> None:
    """Nor does the next one at its place know who was there."""
    cluster = engine(gpu_node("a", 2), gpu_node("b", 1))
    placed(cluster, pod("p", share(100), cpu_milli=0))
    placed(cluster, pod("q", share(100), cpu_milli=0))
    assert cluster.drop_node("uid-a") != ()
    answer = refused(cluster, pod("r", share(100)))

    assert answer.message == "0/1 nodes are available: 1 Insufficient gpu devices."
    assert answer.nodes is not None
    assert len(answer.nodes.codes) == 1
    assert cluster.core_percent_capacity == 100
    assert cluster.put_node(gpu_node("c", 2)) == 0
    assert left(cluster, 0) == [100, 100]
    assert placed(cluster, pod("r", share(100))).node_name == "c"


def test_a_pod_of_a_node_that_went_gives_back_what_it_held() -> None:
    """The answer names who; a release of the same Pod would be the second one."""
    cluster = engine(gpu_node("a"), gpu_node("b"))
    there = placed(cluster, pod("p", share(60)))

    assert cluster.drop_node(there.node_uid) == ("p",)
    assert cluster.core_percent_allocated == 0
    with pytest.raises(AssertionError, match="released twice"):
        cluster.release("p")


def test_ties_go_to_the_lowest_rank_and_a_node_that_comes_takes_the_lowest_free_one() -> None:
    """Where nodes are alike, the one that came into the gap is first."""
    nodes = [gpu_node(name) for name in "abc"]
    cluster = engine(*nodes, policy="fgd")
    cluster.drop_node("uid-a")
    assert cluster.decide(pod("p", share(50))).node_name == "b"  # type: ignore[union-attr]

    cluster.put_node(gpu_node("d"))
    assert cluster.decide(pod("p", share(50))).node_name == "d"  # type: ignore[union-attr]


def test_a_rank_that_is_given_is_kept() -> None:
    """A free one, or the next; numbers are the lowest that are free all the same."""
    cluster = engine(gpu_node("a"), gpu_node("b"), policy="fgd", rank=[1, 0])
    cluster.drop_node("uid-b")

    assert cluster.put_node(gpu_node("c"), rank=2) == 1
    assert cluster.decide(pod("p", share(50))).node_name == "a"  # type: ignore[union-attr]
    assert cluster.put_node(gpu_node("d"), rank=0) == 2
    assert cluster.decide(pod("p", share(50))).node_name == "d"  # type: ignore[union-attr]


def test_another_uid_under_the_same_name_is_another_node() -> None:
    """Without a machine that both tell, nothing is held of the new one."""
    before = gpu_node("a", 1)
    cluster = engine(before)
    placed(cluster, pod("p", share(100)))
    after = replace(before, uid="uid-again")

    assert cluster.drop_node(before.uid) == ("p",)
    cluster.put_node(after)
    assert placed(cluster, pod("q", share(100))).node_uid == "uid-again"


def test_a_machine_that_registers_again_keeps_what_is_held_of_it() -> None:
    """By the ids of its cards, whatever minors the new Node gives them; also without the old."""
    before = of_machine(gpu_node("a", 2), "m")
    turned = [replace(card, minor=1 - card.minor) for card in reversed(before.devices)]
    after = replace(before, uid="uid-again", created="2026-01-01", devices=tuple(turned))
    cluster = engine(before)
    assert placed(cluster, pod("p", share(100))).shares[0].device_id == "GPU-a-0"

    assert cluster.put_node(after) == 1
    assert left(cluster, 1) == [100, 0]
    assert cluster.drop_node(before.uid) == ()
    assert left(cluster, 1) == [100, 0]
    cluster.release("p")
    assert left(cluster, 1) == [100, 100]


def test_a_node_is_relabelled_tainted_and_cordoned_under_remembered_answers() -> None:
    """The same request, asked each time."""
    node = gpu_node("a")
    cluster = engine(node)
    request = pod("p", share(50), placement=selector(zone="x"))
    assert "affinity" in refused(cluster, request).message

    cluster.put_node(replace(node, labels={"zone": "x"}))
    placed(cluster, request)
    taint = Taint(key="repair", value="", effect="NoSchedule")
    cluster.put_node(replace(node, labels={"zone": "x"}, taints=(taint,)))
    again = pod("q", share(50), placement=selector(zone="x"))
    assert "untolerated taint {repair: }" in refused(cluster, again).message
    cluster.put_node(replace(node, labels={"zone": "x"}, unschedulable=True))
    assert "unschedulable" in refused(cluster, again).message
    cluster.put_node(replace(node, labels={"zone": "x"}))
    placed(cluster, again)


def test_a_node_is_resized_under_its_pods() -> None:
    """What is free is what the new size leaves; below what is held nothing more fits."""
    node = gpu_node("a", 0, cpu_milli=8000)
    cluster = engine(node)
    placed(cluster, pod("p", cpu_milli=6000))

    cluster.put_node(replace(node, cpu_milli=4000))
    assert "Insufficient cpu" in refused(cluster, pod("q", cpu_milli=1)).message
    cluster.put_node(replace(node, cpu_milli=7000))
    placed(cluster, pod("q", cpu_milli=1000))


def test_a_card_fails_and_heals_under_its_holder() -> None:
    """Closed to grants; the holder stays, and counts when it is open again."""
    node = gpu_node("a", 1)
    cluster = engine(node)
    placed(cluster, pod("p", share(60)))
    cluster.put_node(node.with_health("gpu", 0, healthy=False))
    assert left(cluster, 0) == [0]

    cluster.put_node(node)
    assert left(cluster, 0) == [40]


def test_a_card_that_shrank_below_its_holders_closes() -> None:
    """As an engine says that adopts them; with enough memory again it is open."""
    node = gpu_node("a", 1)
    cluster = engine(node)
    placed(cluster, pod("p", share(60)))
    (card,) = node.devices

    cluster.put_node(replace(node, devices=(replace(card, memory_bytes=8 * GIB),)))
    assert left(cluster, 0) == [0]
    cluster.put_node(node)
    assert left(cluster, 0) == [40]


def test_a_card_that_went_from_under_its_holder_closes_the_others() -> None:
    """Nobody knows any more which card it holds, until it has ended or the card is back."""
    node = gpu_node("a", 2)
    cluster = engine(node)
    cluster.adopt(0, holder(node, "p", held(1, 50)))

    cluster.put_node(replace(node, devices=node.devices[:1]))
    assert left(cluster, 0) == [0]
    assert "unknown card" in refused(cluster, pod("q", share(50))).message
    cluster.put_node(node)
    assert left(cluster, 0) == [100, 50]
    cluster.put_node(replace(node, devices=node.devices[:1]))
    cluster.release("p")
    assert left(cluster, 0) == [100]


def test_a_card_that_is_renamed_opens_and_closes_its_clone() -> None:
    """While two machines list one id, the card is closed on both; a holder keeps it so."""
    one, two = unique(gpu_node("a", 1)), unique(gpu_node("b", 1))
    cluster = engine(one, two)
    clone = replace(two.devices[0], device_id="GPU-a-0")

    cluster.put_node(replace(two, devices=(clone,)))
    assert left(cluster, 0) == left(cluster, 1) == [0]
    cluster.put_node(two)
    assert left(cluster, 0) == left(cluster, 1) == [100]
    cluster.adopt(1, holder(two, "p", structs.replace(held(0, 50), device_id="GPU-a-0")))
    assert left(cluster, 0) == [0]
    assert cluster.drop_node(two.uid) == ("p",)
    assert left(cluster, 0) == [100]


def test_another_cpu_topology_counts_the_cpus_that_are_held() -> None:
    """Pods with CPUs of their own keep them; without a topology nobody gets any."""
    node = gpu_node("a", 0, cpu_topology=SMALL_MACHINE)
    cluster = engine(node)
    placed(cluster, pod("p", cpu_milli=4000, cpuset=PINNED))
    cluster.put_node(replace(node, cpu_topology=None))
    assert "CPU Topology" in refused(cluster, pod("q", cpu_milli=4000, cpuset=PINNED)).message

    cluster.put_node(node)
    second = placed(cluster, pod("q", cpu_milli=4000, cpuset=PINNED))
    assert str(second.cpuset) == "4-7"
    assert "not enough cpus" in refused(cluster, pod("r", cpu_milli=4000, cpuset=PINNED)).message


def test_cards_of_a_type_and_number_that_no_node_had_are_granted() -> None:
    """Arrays get columns, and go without them again."""
    cluster = engine(gpu_node("a", 1))
    refused(cluster, pod("p", share(100, 4)))

    cluster.put_node(gpu_node("b", 8, nics=2))
    assert placed(cluster, pod("p", share(100, 4))).node_name == "b"
    cluster.drop_node("uid-b")
    assert "Insufficient gpu" in refused(cluster, pod("q", share(100, 4))).message


def test_a_lost_node_keeps_its_pods_and_grants_nothing_until_it_is_back() -> None:
    """Its return needs no word of what is held."""
    node = gpu_node("a", 1)
    cluster = engine(node)
    placed(cluster, pod("p", share(60)))
    cluster.put_node(replace(node, lost=True))
    assert "NodeLost" in refused(cluster, pod("q", share(10))).message

    cluster.put_node(node)
    assert left(cluster, 0) == [40]
