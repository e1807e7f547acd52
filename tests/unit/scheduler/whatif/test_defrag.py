from __future__ import annotations

from dataclasses import replace

import pytest

from ledger.domain.annotations.cpu import NumaPolicy, NumaTopologySpec
from ledger.domain.cpuset import CpuSet, parse_cpuset
from ledger.domain.devices import DeviceShare
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import CpuSetDemand, GangRef, PodRequest
from scheduler.cluster.model import Holder
from scheduler.decide.outcome import Unplaced
from scheduler.decide.settings import SchedulingSettings
from scheduler.whatif.defrag import DefragPlan, NoPlan, plan_moves
from scheduler.whatif.what_if import WhatIf
from tests.support.clusters import (
    GIB,
    SMALL_MACHINE,
    gpu_node,
    held,
    pod,
    running,
    selector,
    share,
)


def holder(
    node: int,
    request: PodRequest,
    *shares: DeviceShare,
    cpuset: str = "",
    fixed: str = "",
    group: str = "",
) -> Holder:
    """Return a Pod that holds these shares and CPUs for its own request."""
    pod_held = running(
        request.uid,
        *shares,
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        cpuset=parse_cpuset(cpuset) if cpuset else CpuSet(),
    )
    return Holder(node=node, held=pod_held, request=request, fixed=fixed, group=group)


def half(uid: str) -> PodRequest:
    """Return a request for half a card."""
    return pod(uid, share(50), cpu_milli=0, memory_bytes=0)


def pinned(uid: str, cpus: int) -> PodRequest:
    """Return a request for CPUs of its own."""
    demand = CpuSetDemand(
        cpus=cpus, bind_policy="FullPCPUs", required=False, exclusive_policy="None"
    )
    return pod(uid, cpu_milli=cpus * 1000, memory_bytes=0, cpuset=demand)


def what_if_of(nodes: tuple[NodeFacts, ...], *holders: Holder) -> WhatIf:
    """Return the cluster with its holders."""
    return WhatIf(nodes, holders, SchedulingSettings())


def planned(request: PodRequest, what_if: WhatIf) -> DefragPlan:
    """Return the plan that there is."""
    answer = plan_moves(request, what_if)
    assert isinstance(answer, DefragPlan), answer
    return answer


WANTED = pod("wanted", share(100, 2), cpu_milli=0, memory_bytes=0)


def test_a_pod_that_fits_needs_no_move() -> None:
    """The plan is empty."""
    plan = planned(WANTED, what_if_of((gpu_node("a"),)))

    assert (plan.moves, plan.place.node_name) == ((), "a")


def test_one_small_pod_makes_way_for_two_whole_cards() -> None:
    """The half card goes where the other half is used, and its place there is free first."""
    nodes = (gpu_node("a"), gpu_node("b"))
    what_if = what_if_of(
        nodes,
        holder(0, half("x"), held(0, 50)),
        holder(1, half("y"), held(0, 50)),
        holder(1, half("z"), held(1, 40)),
    )

    plan = planned(WANTED, what_if)

    (move,) = plan.moves
    assert (move.holder.uid, move.to.node_name, move.to.shares[0].minor) == ("x", "b", 0)
    assert (move.room_first, plan.place.node_name) == (True, "a")


def test_who_goes_to_a_place_that_another_one_leaves_goes_after_it() -> None:
    """`x`, the larger one, is placed first, on the card of `y`; it moves once `y` is gone."""
    tied = replace(pod("x", share(95), cpu_milli=0, memory_bytes=0), placement=selector(zone="a"))
    nodes = (
        gpu_node("a", models=("T4", "A10"), cpu_milli=1000, labels={"zone": "a"}),
        gpu_node("b", 1, models=("A10",), cpu_milli=1000),
    )
    what_if = what_if_of(
        nodes,
        holder(0, tied, held(0, 95)),
        holder(0, pod("y", share(90), cpu_milli=1000, memory_bytes=0), held(1, 90)),
    )

    plan = planned(
        pod("wanted", share(100, models=("T4",)), cpu_milli=1000, memory_bytes=0), what_if
    )

    assert [(move.step, move.holder.uid, move.to.node_name) for move in plan.moves] == [
        (1, "y", "b"),
        (2, "x", "a"),
    ]


@pytest.mark.parametrize("fixed", ["held by others", "kept by --keep"])
def test_a_fixed_pod_is_never_moved(fixed: str) -> None:
    """With the only Pod in the way fixed there is no plan, which is proved and says so."""
    nodes = (gpu_node("a"), gpu_node("b", 1))
    what_if = what_if_of(nodes, holder(0, half("x"), held(0, 50), fixed=fixed))

    answer = plan_moves(WANTED, what_if)

    assert isinstance(answer, NoPlan)
    assert answer.proved
    assert "1 Pod may not be moved" in answer.why


def test_a_pod_whose_request_is_not_known_is_never_moved() -> None:
    """It could not be decided again."""
    stranger = replace(holder(0, half("x"), held(0, 50)), request=None)

    answer = plan_moves(WANTED, what_if_of((gpu_node("a"), gpu_node("b", 1)), stranger))

    assert isinstance(answer, NoPlan)


def test_members_of_a_gang_move_together_or_not_at_all() -> None:
    """One member is in the way; the other one moves with it, in one step."""
    gang = GangRef(name="g", min_available=2, waiting_seconds=60)
    members = [replace(half(uid), gang=gang) for uid in ("g1", "g2")]
    nodes = (gpu_node("a"), gpu_node("b", 1), gpu_node("c", 1))
    what_if = what_if_of(
        nodes,
        holder(0, members[0], held(0, 50), group="gang/default/g"),
        holder(1, members[1], held(0, 50), group="gang/default/g"),
    )

    plan = planned(WANTED, what_if)

    assert {(move.step, move.holder.uid) for move in plan.moves} == {(1, "g1"), (1, "g2")}
    assert all(move.to.node_name != "a" for move in plan.moves)


def test_a_gang_with_a_fixed_member_stays() -> None:
    """All of it stays, so that there is no plan."""
    what_if = what_if_of(
        (gpu_node("a"), gpu_node("b", 1), gpu_node("c", 1)),
        holder(0, half("g1"), held(0, 50), group="g"),
        holder(1, half("g2"), held(0, 50), group="g", fixed="held by others"),
    )

    assert isinstance(plan_moves(WANTED, what_if), NoPlan)


def test_cpus_of_one_numa_node_are_gathered_by_moving_a_pod_on_its_own_node() -> None:
    """
    CPU proposal, story 6: enough CPUs are free, in pieces; one Pod is pinned again beside another.

    CPUs 0-3 are NUMA node 0 and 4-7 NUMA node 1; a and b hold two CPUs of each. Which Pod wants
    its CPUs of one NUMA node says its own policy.
    """
    node = gpu_node("n", 0, cpu_milli=8000, cpu_topology=SMALL_MACHINE)
    numa = NumaTopologySpec(policy=NumaPolicy.SINGLE_NUMA_NODE)
    wanted = replace(pinned("wanted", 4), numa=numa)
    what_if = what_if_of(
        (node,),
        holder(0, pinned("a", 2), cpuset="0-1"),
        holder(0, pinned("b", 2), cpuset="4-5"),
    )

    plan = planned(wanted, what_if)

    (move,) = plan.moves
    assert not move.to.cpuset & plan.place.cpuset
    assert str(plan.place.cpuset) in {"0-3", "4-7"}


def test_what_no_move_can_free_is_said_with_numbers() -> None:
    """More is asked than all nodes have left together."""
    what_if = what_if_of(
        (gpu_node("a"), gpu_node("b", 1)),
        holder(0, pod("x", share(80), memory_bytes=GIB), held(0, 80)),
        holder(0, pod("y", share(80), memory_bytes=GIB), held(1, 80)),
    )

    answer = plan_moves(WANTED, what_if)

    assert isinstance(answer, NoPlan)
    assert answer.proved
    assert "asks 200 % core of gpu, all nodes have 140 left" in answer.why


def test_a_bound_that_ended_the_search_is_named() -> None:
    """With one decision no plan is found, and none is called impossible."""
    what_if = what_if_of(
        (gpu_node("a"), gpu_node("b")),
        holder(0, half("x"), held(0, 50)),
        holder(1, half("y"), held(0, 50)),
    )

    answer = plan_moves(WANTED, what_if, decisions_max=1)

    assert isinstance(answer, NoPlan)
    assert answer.cut
    assert not answer.proved


def test_a_survey_of_the_nodes_leaves_decisions_to_the_search_for_moves() -> None:
    """Ten nodes of half cards, where one move suffices: it is found wherever the survey ends."""
    nodes = tuple(gpu_node(f"n{node}", 8) for node in range(10))
    what_if = what_if_of(
        nodes,
        *(
            holder(node, half(f"x{node}-{minor}"), held(minor, 50))
            for node in range(10)
            for minor in range(8)
        ),
    )
    wanted = pod("wanted", share(100), cpu_milli=0, memory_bytes=0)
    before = left_of(what_if)
    found = []

    for decisions in (*range(1, 10), *range(10, 200, 10)):
        answer = plan_moves(wanted, what_if, decisions_max=decisions)

        found.append(isinstance(answer, DefragPlan))
        if isinstance(answer, DefragPlan):
            assert len(answer.moves) == 1
        else:
            assert (answer.proved, len(answer.cut) > 0) == (False, True)
            assert answer.why == "the search ended before every node was tried"
        assert left_of(what_if) == before
        assert isinstance(what_if.decide(wanted), Unplaced)
    assert found == sorted(found)
    assert found[0] is False
    assert all(found[9:]), "ten decisions are enough to clear one node"


def left_of(what_if: WhatIf) -> list[tuple[int, int]]:
    """Return what every card has left."""
    return [
        (card.core_free, card.memory_free)
        for node in range(len(what_if.nodes))
        for card in what_if.view(node).cards
    ]
