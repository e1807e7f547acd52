from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from ledger.domain.cpuset import parse_cpuset
from ledger.domain.devices import DeviceShare
from ledger.domain.dialects.names import Dialect
from ledger.domain.request.requests import ContainerNeed, CpuSetDemand
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import Choice
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings
from tests.support.clusters import (
    GIB,
    engine,
    gpu_bytes,
    gpu_node,
    held,
    nic,
    placed,
    pod,
    refused,
    running,
    selector,
    share,
)
from tests.support.topologies import EIGHT_GPU_NVLINK, MACHINE_X

POLICIES = ("binpack", "spread", "bestfit", "fgd", "scarcity", "random")


def test_ties_go_to_the_first_node() -> None:
    """In the order the nodes were given in."""
    cluster = engine(gpu_node("a"), gpu_node("b"))

    assert placed(cluster, pod("p", share(50))).node_name == "a"


def test_ties_go_by_rank() -> None:
    """The node is still called by its place in the given order."""
    cluster = engine(gpu_node("a"), gpu_node("b"), gpu_node("c"), rank=[2, 0, 1])
    answer = placed(cluster, pod("p", share(50)))

    assert (answer.node, answer.node_name, answer.node_uid) == (1, "b", "uid-b")
    assert cluster.view(1).cards[0].core_free == 50
    assert cluster.view(0).cards[0].core_free == 100


def test_deciding_changes_nothing() -> None:
    """The same question has the same answer until something is reserved."""
    cluster = engine(gpu_node("a"), gpu_node("b"))
    request = pod("p", share(50))

    assert cluster.decide(request) == cluster.decide(request)
    assert cluster.core_percent_allocated == 0


def test_a_placement_names_device_and_both_memory_numbers() -> None:
    """A ratio becomes bytes once, rounded down (Koordinator contract 4.5)."""
    cluster = engine(gpu_node("n", 1, card_bytes=24 * GIB))
    answer = placed(cluster, pod("p", share(35)))

    assert answer.shares == (
        DeviceShare(
            device_type="gpu",
            minor=0,
            device_id="GPU-n-0",
            core_percent=35,
            memory_bytes=9_019_431_321,
            memory_ratio_percent=35,
        ),
    )
    assert [record.device_id for record in answer.devices] == ["GPU-n-0"]


def test_several_devices_of_several_types() -> None:
    """Shares come by type, then minor, each with its record."""
    cluster = engine(gpu_node("n", 4, nics=2))
    answer = placed(cluster, pod("p", share(100, 2), nic(50)))

    assert [part.key for part in answer.shares] == [("gpu", 0), ("gpu", 1), ("rdma", 0)]
    assert [record.key for record in answer.devices] == [part.key for part in answer.shares]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_card_never_gets_a_second_holder_beyond_itself(policy: str) -> None:
    """Sixteen halves fill eight cards; the next one finds nothing."""
    cluster = engine(gpu_node("a", 4), gpu_node("b", 4), policy=policy)
    for number in range(16):
        placed(cluster, pod(f"p{number}", share(50), cpu_milli=0))

    refused(cluster, pod("late", share(1), cpu_milli=0))
    assert cluster.core_percent_allocated == cluster.core_percent_capacity == 800


def test_release_gives_back_exactly_what_was_taken() -> None:
    """Afterwards the cluster is as it was."""
    node = gpu_node("n", 2, nics=1, cpu_topology=MACHINE_X, pods_max=1)
    cluster, fresh = engine(node), engine(node)
    pinned = CpuSetDemand(cpus=2, bind_policy="FullPCPUs", required=False, exclusive_policy="None")
    placed(cluster, pod("p", share(100, 2), nic(100), cpuset=pinned))
    refused(cluster, pod("q"))
    cluster.release("p")

    assert cluster.view(0) == fresh.view(0)
    assert cluster.decide(pod("q", share(30))) == fresh.decide(pod("q", share(30)))


def test_memory_is_honoured_though_policies_ignore_it() -> None:
    """The best node by fgd or bestfit that lacks memory is passed over."""
    nodes = (gpu_node("full", 1, memory_bytes=GIB, cpu_milli=2000), gpu_node("roomy", 2))
    for policy in ("fgd", "bestfit"):
        cluster = engine(*nodes, policy=policy, typical=[pod("t", share(50))])

        assert placed(cluster, pod("p", share(50), memory_bytes=2 * GIB)).node_name == "roomy"


def test_pod_places_are_honoured() -> None:
    """A node takes as many Pods as it says, whatever else is free."""
    cluster = engine(gpu_node("n", 4, pods_max=2))
    placed(cluster, pod("a"))
    placed(cluster, pod("b"))

    assert refused(cluster, pod("c")).message == "0/1 nodes are available: 1 Too many pods."


def test_the_next_best_node_is_tried_when_devices_do_not_combine() -> None:
    """Two containers of 80 and 40 % fit no card together: arrays pass it, the search does not."""
    nodes = (gpu_node("one", 1), gpu_node("two", 2))
    demands = tuple(
        replace(gpu_bytes(GIB, core=core), containers=(str(place),))
        for place, core in enumerate((60, 30))
    )
    needs = tuple(
        ContainerNeed(name=f"c{place}", index=str(place), kind="app", device_counts=(("gpu", 1),))
        for place in range(2)
    )
    request = replace(pod("p", *demands, dialect=Dialect.MGPU), containers=needs)
    cluster = engine(*nodes)
    placed(cluster, pod("a", share(20), placement=selector(), cpu_milli=0))
    answer = cluster.decide(request)
    assert isinstance(answer, Placement)

    assert answer.node_name == "two"


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_whole_linked_cards_are_the_best_connected(count: int) -> None:
    """Where the node reports its links, the card choice looks at them."""
    node = replace(gpu_node("n", 8), links=EIGHT_GPU_NVLINK)
    answer = placed(engine(node), pod("p", share(100, count)))
    view = engine(node).view(0)
    choice = choose(answer.request, view, SchedulingSettings())

    assert isinstance(choice, Choice)
    assert answer.shares == choice.shares


def test_cpus_are_pinned_and_given_back() -> None:
    """A CPU set comes with the placement; a second Pod gets other CPUs."""
    cluster = engine(gpu_node("n", cpu_topology=MACHINE_X, cpu_milli=None))
    pinned = CpuSetDemand(cpus=4, bind_policy="FullPCPUs", required=True, exclusive_policy="None")
    first = placed(cluster, pod("a", cpuset=pinned))
    second = placed(cluster, pod("b", cpuset=pinned))

    assert len(first.cpuset) == len(second.cpuset) == 4
    assert first.cpuset.isdisjoint(second.cpuset)
    cluster.release("a")
    assert placed(cluster, pod("c", cpuset=pinned)).cpuset == first.cpuset


def test_adopted_pods_take_what_they_hold() -> None:
    """A running Pod's share is not given out again, and counts as allocated."""
    cluster = engine(gpu_node("n", 1))

    assert cluster.adopt(0, running("old", held(0, 60))) == []
    assert cluster.core_percent_allocated == 60
    refused(cluster, pod("p", share(50)))
    placed(cluster, pod("q", share(40)))


def test_overlapping_holders_are_told_and_close_the_card() -> None:
    """Outside the constraint: nothing crashes, the card opens when enough of them are gone."""
    cluster = engine(gpu_node("n", 2))
    assert cluster.adopt(0, running("a", held(0, 80))) == []
    conflicts = cluster.adopt(0, running("b", held(0, 80)))

    assert conflicts == ["n/gpu 0: over-held by default/a, default/b"]
    assert [card.closed for card in cluster.view(0).cards] == [True, False]
    cluster.release("a")
    assert [card.closed for card in cluster.view(0).cards] == [False, False]


def test_an_exclusive_holder_with_company_is_a_conflict() -> None:
    """A card held alone has one holder."""
    cluster = engine(gpu_node("n", 1))
    cluster.adopt(0, running("a", structs.replace(held(0, 40), exclusive=True)))

    assert cluster.adopt(0, running("b", held(0, 10))) == [
        "n/gpu 0: over-held by default/a, default/b"
    ]


def test_a_card_that_the_inventory_lacks_is_unknown() -> None:
    """The holder has a card that nobody can name: the node gives out no more of that type."""
    cluster = engine(gpu_node("n", 1, nics=1))

    assert cluster.adopt(0, running("a", held(7, 50))) == [
        "n/gpu 7: held by default/a, not in the inventory"
    ]
    refused(cluster, pod("p", share(10)))
    placed(cluster, pod("q", nic(10)))


def test_cpus_held_twice_are_a_conflict() -> None:
    """Two running Pods may have been given the same CPU."""
    cluster = engine(gpu_node("n", cpu_topology=MACHINE_X))
    cluster.adopt(0, running("a", cpuset=parse_cpuset("0-3")))

    assert cluster.adopt(0, running("b", cpuset=parse_cpuset("2-5"))) == [
        "n: CPUs 2,3 held by default/b and others"
    ]


def test_a_pod_that_asks_for_nothing_fits_an_over_full_node() -> None:
    """As in kube-scheduler: a resource that is not asked for is not looked at."""
    for policy in POLICIES:
        cluster = engine(gpu_node("n", cpu_milli=1000, memory_bytes=GIB), policy=policy)
        cluster.adopt(0, running("big", cpu_milli=5000, memory_bytes=9 * GIB))

        placed(cluster, pod("p", cpu_milli=0, memory_bytes=0))


def test_closed_cards_get_no_new_holders() -> None:
    """Health closes a card for grants; its holders stay."""
    node = gpu_node("n", 2)
    cluster = engine(node)
    placed(cluster, pod("a", share(50)))
    cluster.put_node(node.with_health("gpu", 0, healthy=False))
    answer = placed(cluster, pod("b", share(50)))

    assert [part.minor for part in answer.shares] == [1]
    cluster.put_node(node)
    assert [part.minor for part in placed(cluster, pod("c", share(50))).shares] == [0]


def test_candidates_come_best_first() -> None:
    """By node policy, nodes that can't take the Pod left out."""
    nodes = (gpu_node("large", 4), gpu_node("none", 0), gpu_node("small", 1), gpu_node("two", 2))

    assert engine(*nodes).candidates(pod("p", share(50))) == [2, 3, 0]


def test_trials_on_a_node_are_undone() -> None:
    """A trial reserves what fits on that node, on those GPUs, and leaves nothing behind."""
    cluster, fresh = engine(gpu_node("a", 4)), engine(gpu_node("a", 4))
    trial = cluster.try_place(pod("p", share(100)), 0, frozenset({2, 3}))
    assert trial is not None

    assert [part.minor for part in trial.shares] == [2]
    assert cluster.try_place(pod("q", share(100, 2)), 0, frozenset({2, 3})) is None
    assert cluster.try_place(pod("q", memory_bytes=999 * GIB), 0) is None
    cluster.undo(trial)
    assert cluster.view(0) == fresh.view(0)


def test_pods_are_not_released_twice() -> None:
    """That would be our own mistake."""
    cluster = engine(gpu_node("n"))
    placed(cluster, pod("p"))
    cluster.release("p")

    with pytest.raises(AssertionError, match="released twice"):
        cluster.release("p")
