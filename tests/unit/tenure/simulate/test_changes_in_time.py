"""Nodes, GPUs and Pods that change in a run: plans end, and what is held stays accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from ledger.domain.log.events import (
    DeviceHealthChanged,
    GroupPlanned,
    LedgerEvent,
    NodeCleared,
    NodeDescribed,
    NodeInventoried,
    NodeLost,
    PlanDropped,
    PodReleased,
    PodReserved,
    PodVoided,
)
from ledger.domain.log.state import NodeState, node_uid_of
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import GangRef, GroupRef, PlacementRules, PodRequest
from scheduler.cluster.model import Clearing, NodeChange
from scheduler.decide.group.life import (
    DEADLINE,
    DEVICE_UNUSABLE,
    MEMBER_CHANGED,
    MEMBER_GONE,
    NODE_GONE,
    NODE_REFUSES,
)
from scheduler.record.core import Placed
from tenure.simulate.model import Arrival, Change, PodChange
from tenure.simulate.simulator import NEVER_CAME
from tests.support.folding import apply
from tests.support.runs import (
    SECOND_US,
    START_US,
    Played,
    arrival,
    gpu_node,
    gpu_pod,
    health,
    play,
    run_of,
)
from tests.support.violations import violations

NODES = [replace(gpu_node(name, 2), labels={"zone": "x"}) for name in "ab"]
IN_X = PlacementRules(node_selector=(("zone", "x"),))


def member(name: str, replica: int = 2, cards: int = 1) -> PodRequest:
    """Return a Pod of a topology group, for nodes of zone x."""
    group = GroupRef(name="job", replica=replica)
    return replace(gpu_pod(name, cards), group=group, placement=IN_X)


def at(seconds: int) -> int:
    """Return a moment of the run."""
    return START_US + seconds * SECOND_US


def node(seconds: int, number: int, **facts: Any) -> NodeChange:  # noqa: ANN401 - any field of the Node
    """Return a change of a Node."""
    changed: NodeFacts = replace(NODES[number], **facts)
    return NodeChange(at_us=at(seconds), node=number, facts=changed, reason="deleted")


def pod(seconds: int, index: int, changed: PodRequest | None) -> PodChange:
    """Return a change of the Pod that arrives as number `index`."""
    return PodChange(at_us=at(seconds), arrival=index, pod=changed, reason="deleted")


def over(arrivals: Sequence[Arrival], *changes: Change) -> Played:
    """Let time pass on nodes a and b of two GPUs."""
    return play(run_of(NODES, arrivals, changes=changes, timed=True))


def told(played: Played, *kinds: type[LedgerEvent]) -> list[tuple[int, str]]:
    """Return when what happened, of these kinds of events: second and words."""
    result = []
    for event in played.ledger.events:
        if isinstance(event.event, kinds):
            body = event.event
            words = getattr(body, "reason", "") or getattr(body, "pod_name", "")
            result.append(((event.wall_us - START_US) // SECOND_US, words))
    return result


ENDS = {
    "its node is lost": (node(10, 0, lost=True), NODE_GONE, "b"),
    "its node is relabelled": (node(10, 0, labels={"zone": "y"}), NODE_REFUSES, "b"),
    "its node is cordoned": (node(10, 0, unschedulable=True), NODE_REFUSES, "b"),
    "its GPU is dead": (health(10, 0, 1, healthy=False), DEVICE_UNUSABLE, "b"),
    "it is deleted": (pod(10, 1, None), MEMBER_GONE, None),
    "it is of another group": (pod(10, 1, member("w1", replica=3)), MEMBER_CHANGED, "a"),
}


@pytest.mark.parametrize(("change", "reason", "where"), ENDS.values(), ids=ENDS)
def test_a_plan_ends_when_a_member_can_not_take_its_place_any_more(
    change: Change, reason: str, where: str | None
) -> None:
    """GPU-topology proposal, main steps: then a node is looked for when the member comes."""
    played = over([arrival(member("w0")), arrival(member("w1"), 30)], change)

    assert told(played, PlanDropped) == [(10, reason)]
    assert [played.node_of(name) for name in ("w0", "w1")] == ["a", where]
    assert over_held(played) == []


def test_a_group_of_which_all_is_lost_is_planned_again() -> None:
    """Nobody of it is scheduled any more: an optimal place for the whole rest is looked for."""
    played = over([arrival(member("w0")), arrival(member("w1"), 30)], node(10, 0, lost=True))

    assert [second for second, _ in told(played, GroupPlanned)] == [0, 30]
    assert played.node_of("w1") == "b"


def test_what_a_lost_nodes_pods_hold_is_free_when_it_is_cleared() -> None:
    """They do not end by themselves, for nobody sees it; until then the GPUs are nobody's."""
    arrivals = [
        arrival(gpu_pod("a0", 2), 0, 20),
        arrival(gpu_pod("b0", 2), 0),
        arrival(gpu_pod("next", 2), 40),
    ]
    back = node(30, 0)
    played = over(
        arrivals,
        node(10, 0, lost=True),
        back,
        Clearing(at_us=at(50), node=0, reason="switched off"),
    )

    assert told(played, NodeLost, NodeCleared, PodReleased) == [
        (10, "deleted"),
        (50, "switched off"),
    ]
    assert told(played, NodeInventoried)[2:] == [(30, "")]
    assert told(played, PodReserved) == [(0, "a0"), (0, "b0"), (50, "next")]


def test_a_gang_at_its_deadline_gives_back_nothing_that_is_lost() -> None:
    """What a lost node's Pods hold is opened by its clearing alone."""
    gang = GangRef(name="g", min_available=2, waiting_seconds=60)
    arrivals = [arrival(gpu_pod("g0", 2, gang=gang)), arrival(gpu_pod("g1", 2, gang=gang), 70)]
    played = over(arrivals, node(7, 0, lost=True))

    assert told(played, PodVoided) == []
    assert told(played, PlanDropped) == [(60, DEADLINE)]
    assert played.node_of("g1") is None, "one of two"


def test_a_dead_gpu_stays_dead_when_its_node_is_relabelled() -> None:
    """The new inventory says so too."""
    played = over(
        [arrival(gpu_pod("p", 2), 30)],
        health(5, 0, 1, healthy=False),
        node(10, 0, labels={"zone": "y"}),
        node(20, 1, labels={"zone": "y"}, lost=True),
    )

    last = [event.event for event in played.ledger.of_type(NodeInventoried)][-1]
    assert isinstance(last, NodeInventoried)
    assert [device.healthy for device in last.devices] == [True, False]
    assert played.node_of("p") is None
    assert len(played.ledger.of_type(DeviceHealthChanged)) == 1


def test_a_change_that_matters_to_nobody_changes_no_decision() -> None:
    """The engine is made anew with all that is held, kept and dead."""
    gang = GangRef(name="g", min_available=2, waiting_seconds=60)
    arrivals = [
        arrival(member("w0")),
        arrival(gpu_pod("p0", 1, 50), 1, 30),
        arrival(gpu_pod("g0", 1, gang=gang), 2),
        arrival(gpu_pod("p1", 1, 50), 15, 30),
        arrival(member("w1"), 20),
        arrival(gpu_pod("g1", 1, gang=gang), 25),
        arrival(gpu_pod("p2", 1), 26),
        arrival(gpu_pod("p3", 2), 27),
    ]
    same = over(arrivals)
    labels = {"zone": "x", "irrelevant": "yes"}
    changed = over(
        arrivals, *(node(second, second % 2, labels=labels) for second in range(3, 40, 4))
    )

    def given(played: Played) -> list[tuple[str, tuple[int, ...]] | None]:
        return [
            (
                outcome.placement.node_name,
                tuple(share.minor for share in outcome.placement.shares),
            )
            if isinstance(outcome, Placed)
            else None
            for outcome in played.outcomes
        ]

    assert given(changed) == given(same)
    assert told(changed, PodReserved, PodReleased) == told(same, PodReserved, PodReleased)


def test_a_pod_that_waits_is_gone_or_asks_anew_under_its_labels() -> None:
    """It is tried with its new group at once; what is gone is never placed."""
    arrivals = [
        arrival(gpu_pod("full", 2), 0, 50),
        arrival(gpu_pod("full2", 2), 0, 50),
        arrival(gpu_pod("gone", 2), 5),
        arrival(member("moved", 3, cards=2), 6),
        arrival(gpu_pod("ends"), 60, 100),
        arrival(gpu_pod("never"), 90),
    ]
    played = over(
        arrivals,
        pod(10, 2, None),
        pod(20, 3, member("moved", 4, cards=2)),
        pod(30, 5, None),
        pod(70, 4, None),
    )

    reserved = told(played, PodReserved)
    assert [name for _, name in reserved] == ["full", "full2", "moved", "ends"]
    plans = [new.event for new in played.ledger.of_type(GroupPlanned)]
    (plan,) = (each for each in plans if isinstance(each, GroupPlanned) and each.members)
    assert plan.group == "group/ml/job/4"
    assert told(played, PodReleased)[-1] == (70, "deleted")
    never = played.outcomes[5]
    assert getattr(never, "message", "") == NEVER_CAME


def over_held(played: Played) -> list[str]:
    """Return every promise beyond capacity, at any position."""
    found: list[str] = []
    states: dict[str, NodeState | None] = {}
    for position, event in enumerate(played.ledger.events, start=1):
        uid = node_uid_of(event.event)
        if uid is not None:
            states[uid] = state = apply(states.get(uid), position, event.event)
            found += [] if state is None else map(str, violations(state))
    return found


def test_a_node_that_is_described_otherwise_is_described_again() -> None:
    """Labels are in the inventory; what a cordon changes is said, and decided on from then."""
    arrivals = [arrival(gpu_pod("p0"), 0), arrival(gpu_pod("p1"), 30), arrival(gpu_pod("p2"), 50)]
    played = over(
        arrivals,
        node(10, 0, labels={"zone": "y"}),
        node(20, 0, labels={"zone": "y"}, unschedulable=True),
        node(40, 0, labels={"zone": "y"}),
    )

    described = [new for new in played.ledger.of_type(NodeDescribed) if new.wall_us > START_US]
    assert [(new.wall_us - START_US) // SECOND_US for new in described] == [20, 40]
    assert [played.node_of(f"p{i}") for i in range(3)] == ["a", "b", "a"]
