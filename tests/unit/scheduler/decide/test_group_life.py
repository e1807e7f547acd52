"""Which events come next for a group: from its plan, its members, what is known, and the time."""

from __future__ import annotations

import pytest
from msgspec import structs

from ledger.domain.log.events import (
    GroupPlanned,
    LedgerEvent,
    NodeLost,
    PlanDropped,
    PlannedMember,
    PodAssigned,
    PodBound,
    PodObserved,
    PodReleased,
    PodReserved,
    PodVoided,
)
from ledger.domain.request.requests import GangRef
from scheduler.decide.group.life import (
    DEADLINE,
    ClusterFacts,
    GroupLife,
    MemberAction,
    apply_life,
    deadline_us,
    is_complete,
    next_step,
    review,
    take_again,
    why_invalid,
)
from tests.support.cards import card, node_of, pod, whole
from tests.support.group_lives import lives_of
from tests.support.trial_cluster import ListCluster

NAME = "group/ml/job/3"
GANG = GangRef(name="g", min_available=2, waiting_seconds=60)
SECOND = 1_000_000
NODES = {"n1": frozenset({0, 1, 2, 3}), "n2": frozenset({0, 1})}


def planned(*members: tuple[str, str, tuple[int, ...]], group: str = NAME) -> GroupPlanned:
    """Return a plan of (Pod, node, GPUs)."""
    return GroupPlanned(
        group=group,
        members=tuple(
            PlannedMember(
                pod_uid=uid, namespace="ml", pod_name=uid, node_uid=node, minors=gpus, whole=gpus
            )
            for uid, node, gpus in members
        ),
    )


def reserved(uid: str, node: str = "n1", *, group: str = NAME, attempt: int = 1) -> PodReserved:
    """Return a reservation of a member."""
    return PodReserved(
        pod_uid=uid,
        attempt=attempt,
        namespace="ml",
        pod_name=uid,
        node_uid=node,
        node_name=node,
        cpu_milli=0,
        memory_bytes=0,
        group=group,
    )


def life_of(*events: LedgerEvent | tuple[int, LedgerEvent]) -> GroupLife:
    """Return the life after these events; a pair says at which second."""
    life = GroupLife(name=NAME)
    for event in events:
        at, happened = event if isinstance(event, tuple) else (0, event)
        life = apply_life(life, happened, at * SECOND)
    return life


PLAN = planned(("a", "n1", (0,)), ("b", "n1", (1,)), ("c", "n2", (0, 1)))


def test_what_a_lost_nodes_pods_hold_is_no_help_to_their_group() -> None:
    """They count as gone, read from a ledger too; a loss elsewhere changes nothing."""
    events = (PLAN, reserved("a"), reserved("c", "n2"))
    lost = NodeLost(node_uid="n1", node_name="n1", reason="deleted")
    elsewhere = NodeLost(node_uid="n9", node_name="n9", reason="deleted")

    assert set(life_of(*events, lost).held) == {"c"}
    assert life_of(*events, elsewhere) == life_of(*events)
    assert lives_of([(event, 0) for event in (*events, lost)])[NAME] == life_of(*events, lost)
    both = life_of(
        *events, lost, structs.replace(lost, node_uid="n2"), PlanDropped(group=NAME, reason="")
    )
    assert next_step(both, "b", has_group=True) is MemberAction.PLAN_GROUP


def facts(*refused: str, **changes: object) -> ClusterFacts:
    """Return facts in which the plan is valid, but for what is refused and changed."""
    groups: dict[str, str] = dict.fromkeys("abc", NAME)
    usable = dict(NODES)
    for name, change in changes.items():
        if isinstance(change, frozenset):
            usable[name] = change
        elif isinstance(change, str):
            groups[name] = change
        else:
            groups.pop(name, None)
            usable.pop(name, None)
    return ClusterFacts(groups=groups, usable=usable, refused=frozenset(refused))


def test_a_member_takes_the_place_of_the_plan() -> None:
    """Main steps: GPUs pre-allocated are directly obtained from the plan."""
    assert next_step(life_of(PLAN), "b", has_group=True) is MemberAction.TAKE_PLACE
    assert next_step(life_of(PLAN, reserved("a")), "b", has_group=True) is MemberAction.TAKE_PLACE


def test_a_group_of_which_nobody_is_scheduled_is_planned_whole() -> None:
    """Without a plan, after a dropped one, and after all who were scheduled have gone."""
    gone = PodReleased(pod_uid="a", attempt=1, node_uid="n1", reason="completed")
    dropped = PlanDropped(group=NAME, reason="x")

    for life in (life_of(), life_of(PLAN, dropped), life_of(PLAN, reserved("a"), dropped, gone)):
        assert next_step(life, "b", has_group=True) is MemberAction.PLAN_GROUP


def test_a_member_of_a_scheduled_group_without_a_plan_is_placed_alone() -> None:
    """It is impossible to find an optimal combination for the entire group any more."""
    life = life_of(PLAN, reserved("a"), PlanDropped(group=NAME, reason="x"))

    assert next_step(life, "b", has_group=True) is MemberAction.PLACE_ALONE


def test_a_member_that_the_standing_plan_does_not_name_is_placed_alone() -> None:
    """Others' places are not taken from them because one more Pod came."""
    assert next_step(life_of(PLAN), "late", has_group=True) is MemberAction.PLACE_ALONE


def test_a_gang_without_topology_labels_plans_who_waits_together() -> None:
    """It has no links to lose; its minimum starts together."""
    life = life_of(PLAN, reserved("a"), PlanDropped(group=NAME, reason="x"))

    assert next_step(life, "b", has_group=False) is MemberAction.PLAN_GROUP


@pytest.mark.parametrize(
    ("known", "reason", "uid"),
    [
        pytest.param(facts(), "", "", id="nothing changed"),
        pytest.param(facts(b=None), "PlannedMemberGone", "b", id="a member was deleted"),
        pytest.param(
            facts(b="group/ml/job/4"), "PlannedMemberChanged", "b", id="its replica label changed"
        ),
        pytest.param(facts(n2=None), "PlannedNodeGone", "c", id="a node is gone"),
        pytest.param(
            facts(n1=frozenset({0, 2, 3})), "PlannedDeviceUnusable", "b", id="a GPU is unhealthy"
        ),
        pytest.param(facts(n1=frozenset({0, 1})), "", "", id="a GPU of nobody is unhealthy"),
        pytest.param(
            facts("c"),
            "PlannedNodeRefuses",
            "c",
            id="the node is not among those that fit the Pod",
        ),
        pytest.param(facts("a"), "", "", id="the node of a member that is there refuses it"),
    ],
)
def test_a_plan_is_dropped_when_it_stops_being_valid(
    known: ClusterFacts, reason: str, uid: str
) -> None:
    """As a whole, with the reason and the member that it is about; what is held stays."""
    life = life_of(PLAN, reserved("a"))

    assert why_invalid(life, known) == (reason, uid)
    expected = (PlanDropped(group=NAME, reason=reason, pod_uid=uid),) if reason else ()
    assert review(life, None, known, 10**15) == expected


def test_what_happens_to_members_that_hold_their_devices_is_no_matter_of_the_plan() -> None:
    """Their Pod, label, node and GPU may change: the places of the others are as good as before."""
    life = life_of(PLAN, reserved("c", "n2"))

    assert why_invalid(life, facts(c=None, n2=None)) == ("", "")


def test_the_deadline_of_a_gang_is_counted_from_its_plan() -> None:
    """Koordinator contract 10: `waiting-time`; a second plan does not prolong it."""
    life = life_of(
        (5, PLAN), (5, reserved("a")), (9, PlanDropped(group=NAME, reason="x")), (20, PLAN)
    )

    assert deadline_us(life, GANG) == 65 * SECOND
    assert deadline_us(life, None) is None
    assert deadline_us(life_of(), GANG) is None


def test_a_wait_begins_anew_when_nobody_holds_anything() -> None:
    """After the first deadline the gang gets another full waiting time."""
    void = PodVoided(pod_uid="a", attempt=1, node_uid="n1", reason="GangDeadlinePassed")
    life = life_of(PLAN, reserved("a"), (60, void), (90, PLAN), (90, reserved("a", attempt=2)))

    assert deadline_us(life, GANG) == 150 * SECOND


def test_at_the_deadline_members_that_are_not_bound_are_voided() -> None:
    """In the order of their reservations; bound ones stay, and the plan is dropped."""
    bound = PodBound(pod_uid="a", attempt=1, node_uid="n1")
    gang = GangRef(name="g", min_available=3, waiting_seconds=60)
    life = life_of(PLAN, reserved("a"), reserved("b", attempt=4), bound)

    assert review(life, gang, facts(), 60 * SECOND - 1) == ()
    assert review(life, gang, facts(), 60 * SECOND) == (
        PodVoided(pod_uid="b", attempt=4, node_uid="n1", reason="GangDeadlinePassed"),
        PlanDropped(group=NAME, reason="GangDeadlinePassed"),
    )


def test_the_deadline_comes_before_other_ends_of_a_plan() -> None:
    """A plan that is invalid and late ends once, as late: the members give back what they hold."""
    life = life_of(PLAN, reserved("a"))

    (voided, dropped) = review(life, GANG, facts(n2=None), 60 * SECOND)

    assert isinstance(voided, PodVoided)
    assert dropped == PlanDropped(group=NAME, reason="GangDeadlinePassed")


def test_a_gang_that_was_complete_once_stays_so() -> None:
    """Match policy `once-satisfied`: members that end later do not void the others."""
    gone = PodReleased(pod_uid="a", attempt=1, node_uid="n1", reason="completed")
    life = life_of(PLAN, reserved("a"), reserved("b"), gone)

    assert is_complete(life, GANG)
    assert deadline_us(life, GANG) is None
    both_gone = PodReleased(pod_uid="b", attempt=1, node_uid="n1", reason="completed")
    late = apply_life(apply_life(life, both_gone, 5), PLAN, 9)
    assert is_complete(late, GANG)
    assert deadline_us(late, GANG) is None
    assert not is_complete(life_of(PLAN, reserved("a")), GANG)
    assert is_complete(life_of(PLAN, reserved("a")), GANG, running=1)
    assert is_complete(life_of(), None)


def test_members_whom_others_gave_their_devices_count_until_they_end() -> None:
    """As those that were decided: what was complete stays so, and a lost node's are gone."""
    seen = PodObserved(
        pod_uid="o",
        attempt=1,
        namespace="ml",
        pod_name="o",
        node_uid="n2",
        node_name="n2",
        source="checkpoint",
        group=NAME,
    )
    ended = PodReleased(pod_uid="o", attempt=1, node_uid="n2", reason="deleted")
    lost = NodeLost(node_uid="n2", node_name="n2", reason="deleted")
    assert life_of(seen, ended) == GroupLife(name=NAME, held_at_once=1)
    assert life_of(seen, lost) == GroupLife(name=NAME, held_at_once=1)
    assert not is_complete(life_of(seen), GANG)
    assert not is_complete(life_of(seen, ended, reserved("a")), GANG)
    assert is_complete(life_of(seen, reserved("a")), GANG)
    assert is_complete(life_of(seen, reserved("a"), ended), GANG)
    after = life_of(seen, reserved("a"), PlanDropped(group=NAME, reason=DEADLINE))
    assert (after.held_at_once, after.gave_up) == (1, True)
    assert lives_of([(event, 0) for event in (seen, ended)]) == {NAME: life_of(seen, ended)}
    assert not life_of(seen).is_over
    assert life_of(seen, ended).is_over


def test_after_a_deadline_the_life_says_so() -> None:
    """Whoever plans the gang again knows that members to come did not come in time."""
    assert not life_of(PLAN, PlanDropped(group=NAME, reason="PlannedNodeGone")).gave_up
    assert life_of(PLAN, PlanDropped(group=NAME, reason="GangDeadlinePassed")).gave_up


def test_events_of_others_change_nothing() -> None:
    """Other groups, other Pods, and events that say nothing about holding."""
    life = life_of(PLAN, reserved("a"))
    others = (
        planned(("x", "n1", (3,)), group="gang/ml/other"),
        PlanDropped(group="gang/ml/other", reason="x"),
        reserved("x", group=""),
        PodReleased(pod_uid="x", attempt=1, node_uid="n1", reason="completed"),
        PodAssigned(pod_uid="a", attempt=1, node_uid="n1"),
    )

    for event in others:
        assert apply_life(life, event, 9) == life


def test_lives_are_told_apart_by_name() -> None:
    """One pass over a ledger gives every group's life, releases by the Pod's own group."""
    other = planned(("x", "n1", (3,)), group="gang/ml/other")
    events: list[LedgerEvent] = [PLAN, other, reserved("a")]
    events.append(reserved("x", group="gang/ml/other"))
    events.append(PodReleased(pod_uid="x", attempt=1, node_uid="n1", reason="completed"))

    lives = lives_of([(event, SECOND) for event in events])

    assert list(lives) == [NAME, "gang/ml/other"]
    assert (list(lives[NAME].places), list(lives[NAME].held)) == (["b", "c"], ["a"])
    assert (lives["gang/ml/other"].held, lives["gang/ml/other"].held_at_once) == ({}, 1)


def test_places_are_taken_again_after_a_restart() -> None:
    """On the planned nodes and GPUs, whatever the cluster would choose by itself."""
    cluster = ListCluster([node_of(*(card(i) for i in range(4)))])
    members = {"a": pod(whole(1), uid="a", name="a"), "b": pod(whole(2), uid="b", name="b")}
    life = life_of(planned(("a", "n1", (3,)), ("b", "n1", (0, 2))))

    taken = take_again(life, members, {"n1": 0}, cluster)

    assert taken is not None
    assert {uid: [s.minor for s in place.shares] for uid, place in taken.items()} == {
        "a": [3],
        "b": [0, 2],
    }
    assert [view.tenants for view in cluster.nodes[0].cards] == [1, 0, 1, 1]


@pytest.mark.parametrize("nodes", [{"n1": 0}, {"n1": 0, "n2": 1}], ids=["node gone", "GPU in use"])
def test_a_plan_that_cannot_stand_is_not_taken_in_part(nodes: dict[str, int]) -> None:
    """The caller drops it; the cluster is as it was."""
    full = node_of(*(card(i, core_used=100) for i in range(2)))
    cluster = ListCluster([node_of(*(card(i) for i in range(4))), full])
    before = list(cluster.nodes)
    members = {uid: pod(whole(1 + (uid == "c")), uid=uid, name=uid) for uid in "abc"}

    assert take_again(life_of(PLAN), members, nodes, cluster) is None
    assert cluster.nodes == before
