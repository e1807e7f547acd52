"""Groups and gangs of a live scheduler: what is planned, told, taken, and what ends it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from ledger.domain.log.events import GroupPlanned
from ledger.domain.log.recorded import NewEvent
from ledger.domain.resources import ANNOTATION_GPU_TOPOLOGY
from scheduler.decide.group.life import MEMBER_CHANGED, MEMBER_GONE, NODE_REFUSES
from scheduler.record.so_far import InForce
from scheduler.service.groups import MEMBERS_COME, MEMBERS_SECONDS
from scheduler.service.holds import HOLD_SECONDS
from scheduler.service.ports import Chosen, NotChosen
from scheduler.service.starts import ELSEWHERE
from scheduler.service.to_come import TO_COME_SECONDS
from tests.support.grouped import GROUP, Scene, cards
from tests.support.live import MemoryLedger, types
from tests.support.objects import Json, container, pod
from tests.support.replays import replayed
from tests.support.runs import recorded


def test_the_proposals_job_is_planned_when_its_first_pod_is_asked_about() -> None:
    """Two Pods of two GPUs get GPUs 0 to 3 (Motivation), whatever is asked for in between."""
    scene = Scene("a", "b")
    scene.job(2)
    scene.create("other", 2)
    [where] = scene.passing("job-0")
    assert scene.passing("other") == ["a", "b"]
    first = scene.reserve("job-0", where)
    assert scene.passing("job-1") == [where]
    second = scene.reserve("job-1", where)
    assert sorted(cards(first) + cards(second)) == [0, 1, 2, 3]
    seen = json.loads(first.annotations[ANNOTATION_GPU_TOPOLOGY])["visibleGPUs"]
    assert seen == ["0", "1", "2", "3"]


def test_a_plan_is_recorded_with_the_first_reservation_and_only_once() -> None:
    """One transaction: what is asked for, the plan, the reservation; then reservations alone."""
    scene = Scene()
    scene.job(3)
    assert scene.passing("job-1") == ["a"]
    assert not scene.said(GroupPlanned)
    first = scene.chosen("job-1", "a")
    assert types([new.event for new in first.events]) == [
        *("request.described", "group.planned", "pod.reserved")
    ]
    scene.record(*first.events)
    second = scene.chosen("job-0", "a")
    assert types([new.event for new in second.events]) == ["pod.reserved"]
    [plan] = scene.said(GroupPlanned)
    assert [member.pod_name for member in plan.members] == ["job-0", "job-1", "job-2"]


def test_a_member_passes_the_node_of_its_place_alone_and_that_is_scored_best() -> None:
    """Every other node says so, and no Pod's end there would help."""
    scene = Scene("a", "b", gpus=2)
    scene.job(2)
    places = {name: scene.passing(name) for name in ("job-0", "job-1")}
    assert sorted(places.values()) == [["a"], ["b"]]
    answer = scene.filter("job-0")
    [other] = {"a", "b"} - set(places["job-0"])
    assert answer["FailedAndUnresolvableNodes"] == {other: ELSEWHERE}
    body = {"Pod": scene.pods["job-0"], "NodeNames": places["job-0"]}
    scores = json.loads(scene.extender.prioritize(json.dumps(body).encode()))
    assert scores == [{"Host": places["job-0"][0], "Score": 1000}]


def test_what_a_plan_keeps_is_nobody_elses_while_only_memory_knows_it() -> None:
    """Neither a Pod's nor another group's, before anything is recorded."""
    scene = Scene()
    scene.job(2)
    scene.passing("job-0")
    scene.job(3, name="next")
    scene.create("large", 5)
    assert scene.passing("large") == []
    assert scene.passing("next-0") == ["a"]
    assert scene.passing("next-1") == ["a"]
    assert scene.passing("next-2") == []


def test_a_plan_gives_way_to_a_pod_that_is_bound_and_is_made_again_on_its_nodes() -> None:
    """Bind decides by the ledger alone; the group that was not recorded yet takes other cards."""
    scene = Scene()
    scene.create("early", 2)
    scene.passing("early")
    scene.job(2)
    assert scene.passing("job-0") == ["a"]
    early = scene.reserve("early", "a")
    first, second = scene.reserve("job-0", "a"), scene.reserve("job-1", "a")
    assert len({*cards(early), *cards(first), *cards(second)}) == 6
    [plan] = scene.said(GroupPlanned)
    assert {minor for each in plan.members for minor in each.minors} == {
        *cards(first),
        *cards(second),
    }


def test_a_plan_that_lost_its_room_is_made_anew_when_a_member_is_asked_about() -> None:
    """Nobody of the group is scheduled yet: the whole of it is planned again (main steps)."""
    scene = Scene("a", "b", gpus=4)
    scene.create("early", 2)
    scene.passing("early", "a")
    scene.job(2)
    [planned] = scene.passing("job-0")
    scene.reserve("early", planned)
    assert not len(scene.groups)
    [now] = scene.passing("job-0")
    assert now != planned
    assert scene.choose("job-1", planned) == NotChosen(message=ELSEWHERE)


def test_a_recorded_plan_does_not_give_way() -> None:
    """The ledger keeps its cards: a Pod that is bound gets others."""
    scene = Scene()
    scene.job(2)
    scene.passing("job-0")
    first = scene.reserve("job-0", "a")
    scene.create("late", 2)
    scene.passing("late")
    late = scene.reserve("late", "a")
    second = scene.reserve("job-1", "a")
    assert not set(cards(late)) & {*cards(first), *cards(second)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda scene: scene.delete("job-1"), MEMBER_GONE),
        (
            lambda scene: scene.tell(
                {
                    **scene.pods["job-1"],
                    "metadata": scene.pods["job-1"]["metadata"]
                    | {"labels": {f"{GROUP}/name": "job", f"{GROUP}/replica": "9"}},
                }
            ),
            MEMBER_CHANGED,
        ),
        (lambda scene: scene.passing("job-1", "b"), NODE_REFUSES),
    ],
    ids=["a member is deleted", "its replica label changes", "its node is not left for it"],
)
def test_a_recorded_plan_is_dropped_with_its_reason_when_it_stops_being_valid(
    change: Callable[[Scene], object], reason: str
) -> None:
    """Once, and what it kept is free; a reservation of it stays."""
    scene = Scene("a", "b")
    scene.job(3)
    [where] = scene.passing("job-0", "a")
    first = scene.reserve("job-0", where)
    change(scene)
    [drop] = scene.tell_drops()
    assert (drop.group, drop.reason, drop.pod_uid) == ("group/ml/job/3", reason, "pod-job-1")
    scene.create("large", 6)
    assert scene.passing("large", "a") == ["a"]
    scene.groups.plans.review_all()
    assert scene.tell_drops() == []
    assert scene.books.standing(first.pod_uid) is not None


def test_once_somebody_is_scheduled_a_member_alone_is_placed_beside_its_group() -> None:
    """Main steps: the others have no optimum left to find, and few nodes is a goal of its own."""
    scene = Scene("a", "b")
    scene.job(3)
    [where] = scene.passing("job-0", "b")
    scene.reserve("job-0", where)
    scene.delete("job-1")
    scene.tell_drops()
    assert scene.passing("job-2") == ["b"]
    scene.reserve("job-2", "b")
    assert len(scene.said(GroupPlanned)) == 1


def test_who_has_a_soft_hold_is_planned_with_its_group() -> None:
    """It was placed alone, and then nobody of the group was scheduled any more."""
    scene = Scene("a", "b")
    scene.job(2)
    scene.passing("job-0", "a")
    first = scene.reserve("job-0", "a")
    assert scene.passing("job-1", "b") == ["b"]
    assert scene.holds.node_of("pod-job-1") == "b"
    scene.delete("job-0")
    scene.end(first)
    labels = scene.pods["job-1"]["metadata"]["labels"]
    scene.create("job-2", 2, labels=labels)
    [where] = scene.passing("job-2")
    assert scene.passing("job-1") == [where]
    assert not len(scene.holds)


def early(scene: Scene) -> None:
    """Let two of eight members be there, for which two seconds were waited."""
    scene.create("beside", 6)
    scene.passing("beside", "a")
    scene.reserve("beside", "a")
    scene.job(2, 1, replica=8)
    assert scene.filter("job-0")["Error"] == MEMBERS_COME
    scene.live.clock.now += MEMBERS_SECONDS


def test_a_group_is_planned_for_the_number_on_its_label() -> None:
    """Two of eight came early: not where two cards are left, but where all eight have room."""
    scene = Scene("a", "b")
    early(scene)
    for name in ("job-0", "job-1"):
        assert scene.passing(name) == ["b"]
        scene.reserve(name, "b")
    scene.create("stranger", 1)
    assert scene.passing("stranger") == ["a"]
    labels = scene.pods["job-0"]["metadata"]["labels"]
    for name in (f"job-{number}" for number in range(2, 8)):
        scene.create(name, 1, labels=labels)
        assert scene.passing(name) == ["b"]
        assert scene.passing(name) == ["b"], "it has its place, and takes no second one"
        scene.reserve(name, "b")


def test_a_group_whose_label_names_more_than_fit_is_planned_for_those_who_are_there() -> None:
    """As it was before: nothing is kept for the others."""
    scene = Scene("a", "b")
    scene.job(2, 4, replica=9)
    scene.live.clock.now += MEMBERS_SECONDS
    [where] = scene.passing("job-0")
    assert scene.passing("job-1") == [where]
    scene.create("stranger", 8)
    assert len(scene.passing("stranger")) == 1


def test_members_to_come_are_waited_for_as_long_as_a_soft_hold() -> None:
    """Then their room is told of and anybody's, and those who come late are placed beside."""
    scene = Scene("a", "b")
    freed: list[str] = []
    scene.live.wakeups.room_freed.subscribe(freed.append)
    early(scene)
    for name in ("job-0", "job-1"):
        assert scene.passing(name) == ["b"]
        scene.reserve(name, "b")
    scene.create("stranger", 4)
    scene.live.clock.now += TO_COME_SECONDS - MEMBERS_SECONDS - 1
    scene.groups.plans.review_all()
    assert scene.passing("stranger") == []
    scene.live.clock.now += 1
    scene.groups.plans.review_all()
    assert freed == ["b"] * 6
    assert scene.passing("stranger") == ["b"]
    scene.create("job-2", 1, labels=scene.pods["job-0"]["metadata"]["labels"])
    assert scene.passing("job-2") == ["b"]


def test_a_group_is_planned_for_members_to_come_only_once() -> None:
    """Its Pods wait longer than that for room: then it is planned for those who are there."""
    scene = Scene("b")
    scene.create("large", 8)
    scene.passing("large")
    large = scene.reserve("large", "b")
    scene.job(2, 1, replica=8)
    scene.live.clock.now += TO_COME_SECONDS
    assert scene.passing("job-0") == []
    scene.end(large)
    assert scene.passing("job-0") == ["b"]
    scene.create("stranger", 6)
    assert scene.passing("stranger") == ["b"]


def test_members_to_come_give_way_to_a_pod_that_is_bound() -> None:
    """Bind decides by the ledger alone; who comes gets what is left beside its group."""
    scene = Scene("a", "b")
    scene.create("stranger", 4)
    assert "b" in scene.passing("stranger")
    early(scene)
    [where] = scene.passing("job-0", "b")
    scene.reserve("job-0", where)
    scene.reserve("stranger", where)
    labels = scene.pods["job-0"]["metadata"]["labels"]
    scene.create("job-2", 1, labels=labels)
    for name in ("job-1", "job-2"):
        assert scene.passing(name) == [where]
        scene.reserve(name, where)
    scene.create("other", 1)
    assert scene.passing("other", where) == [], "one card is left, and a member of it waits"


def test_a_pod_made_anew_under_the_name_of_a_member_is_another_one() -> None:
    """It has neither the place nor the reservation of the one before."""
    scene = Scene()
    scene.job(2)
    scene.passing("job-0")
    scene.delete("job-0")
    assert not len(scene.groups)
    again = pod(
        container(limits={"koordinator.sh/gpu": 200}),
        name="job-0",
        uid="pod-job-0-again",
        labels={f"{GROUP}/name": "job", f"{GROUP}/replica": "2"},
    )
    scene.tell({**again, "status": {"phase": "Pending"}})
    assert scene.passing("job-0") == ["a"]
    assert scene.passing("job-1") == ["a"]


def test_a_group_waits_a_moment_for_pods_that_are_being_created() -> None:
    """Its label says how many; after that it is planned with those who are there."""
    scene = Scene()
    scene.job(2, replica=4)
    assert scene.filter("job-0")["Error"] == MEMBERS_COME
    scene.live.clock.now += MEMBERS_SECONDS
    assert scene.passing("job-0") == ["a"]
    [plan] = [scene.groups.groups.lives["group/ml/job/4"]]
    assert list(plan.places) == ["pod-job-0", "pod-job-1"]


def test_a_plan_that_nobody_asks_about_ends_like_a_soft_hold() -> None:
    """What is only in memory keeps no card from others for good."""
    scene = Scene()
    scene.job(4)
    scene.passing("job-0")
    scene.create("large", 8)
    scene.live.clock.now += HOLD_SECONDS - 1
    scene.groups.plans.review_all()
    assert scene.passing("large") == []
    scene.live.clock.now += 1
    scene.groups.plans.review_all()
    assert scene.passing("large") == ["a"]
    assert scene.tell_drops() == []


def test_the_end_of_a_plan_tells_of_the_nodes_of_its_places() -> None:
    """Whether the ledger has it or only memory had; not of places that were taken."""
    scene = Scene("a", "b")
    freed: list[str] = []
    scene.live.wakeups.room_freed.subscribe(freed.append)
    scene.job(3)
    [where] = scene.passing("job-0")
    assert freed == []
    scene.live.clock.now += HOLD_SECONDS
    scene.groups.plans.review_all()
    assert freed == [where] * 3
    scene.passing("job-0", where)
    scene.reserve("job-0", where)
    scene.reserve("job-1", where)
    freed.clear()
    scene.delete("job-2")
    assert freed == [where]


def test_what_the_ledger_refused_is_as_if_it_had_not_been_planned() -> None:
    """The next filter plans anew, under other keys."""
    scene = Scene()
    scene.job(2)
    scene.passing("job-0")
    chosen = scene.chosen("job-0", "a")
    scene.books.refused(chosen)
    assert not len(scene.groups)
    scene.live.clock.now += 1
    assert scene.passing("job-1") == ["a"]
    scene.reserve("job-1", "a")
    scene.reserve("job-0", "a")
    assert len(scene.said(GroupPlanned)) == 1


def test_a_restart_between_two_members_keeps_the_plan() -> None:
    """The next process takes the places again, on the cards that the ledger names."""
    scene = Scene("a", "b")
    scene.job(3)
    [where] = scene.passing("job-0")
    first = scene.reserve("job-0", where)
    again = Scene("a", "b", ledger=scene.live.ledger)
    for one in scene.pods.values():
        again.tell(one)
    again.create("large", 6)
    assert again.passing("job-1") == [where]
    assert again.passing("large", where) == []
    second, third = again.reserve("job-1", where), again.reserve("job-2", where)
    [plan] = again.said(GroupPlanned)
    planned = {member.pod_uid: list(member.minors) for member in plan.members}
    assert planned == {event.pod_uid: cards(event) for event in (first, second, third)}


def test_after_a_restart_a_member_sees_the_cards_of_those_who_are_bound() -> None:
    """With a place of the plan and without one: by what is held, and beside its group."""
    scene = Scene("a", "b")
    scene.job(3)
    [where] = scene.passing("job-0")
    first = scene.reserve("job-0", where)
    second = scene.reserve("job-1", where)
    seen = {str(minor) for minor in (*cards(first), *cards(second))}
    for gone in ("", "job-2"):
        again = Scene("a", "b", ledger=MemoryLedger(list(scene.live.ledger.log)))
        for name in scene.pods.keys() - {gone}:
            again.tell(scene.pods[name])
        last = "job-2"
        if gone:
            again.groups.plans.review_all()
            again.tell_drops()
            last = "job-3"
            again.create(last, labels=scene.pods["job-0"]["metadata"]["labels"])
        assert again.passing(last) == [where]
        third = again.reserve(last, where)
        told = json.loads(third.annotations[ANNOTATION_GPU_TOPOLOGY])["visibleGPUs"]
        assert set(told) == seen | set(map(str, cards(third)))


def test_a_plan_whose_member_went_while_nobody_ran_is_dropped_at_the_start() -> None:
    """The ledger's plan is compared with the Pods that there are."""
    scene = Scene()
    scene.job(3)
    scene.passing("job-0")
    scene.reserve("job-0", "a")
    again = Scene(ledger=scene.live.ledger)
    for name in ("job-0", "job-2"):
        again.tell(scene.pods[name])
    again.groups.plans.review_all()
    [drop] = again.tell_drops()
    assert (drop.reason, drop.pod_uid) == (MEMBER_GONE, "pod-job-1")


def test_a_gang_below_its_minimum_passes_nowhere() -> None:
    """Neither with too few members nor with too little room, and nothing is kept."""
    scene = Scene()
    scene.gang(2, 3)
    answer = scene.filter("gang-0")
    assert answer["FailedAndUnresolvableNodes"] == {"a": "GangMembersMissing"}
    scene.gang(5, 5)
    assert scene.filter("gang-0")["FailedAndUnresolvableNodes"] == {"a": "GangUnfit"}
    assert not len(scene.groups)


def test_a_member_that_others_started_counts_while_it_runs() -> None:
    """Before a restart and after it: one more completes the gang, beside the first."""
    scene = Scene("a", "b")
    scene.observe("older", 0)
    scene.gang(1, 2)
    again = Scene("a", "b", ledger=scene.live.ledger)
    for one in scene.pods.values():
        again.tell(one)
    for each in (scene, again):
        assert each.passing("gang-0") == ["a"]
        assert isinstance(each.choose("gang-0", "a"), Chosen)


@pytest.mark.parametrize("left", [[], [{"phase": "Failed"}]], ids=["it is gone", "it has failed"])
def test_a_member_of_others_that_ended_while_nobody_ran_does_not_count(
    left: list[Json],
) -> None:
    """Its release is not recorded yet: the gang is not begun one member short."""
    before = Scene("a", "b")
    before.observe("older", 0)
    scene = Scene("a", "b", ledger=before.live.ledger)
    for status in left:
        scene.tell({**before.pods["older"], "status": status})
    scene.gang(1, 2)
    assert scene.filter("gang-0")["FailedAndUnresolvableNodes"] == dict.fromkeys(
        ("a", "b"), "GangMembersMissing"
    )
    assert scene.choose("gang-0", "a") == NotChosen(message="GangMembersMissing")
    scene.gang(2, 2)
    assert scene.passing("gang-1") == ["a"]


def test_a_member_of_others_that_was_released_is_forgotten() -> None:
    """With the last of a group that is over nothing of it is kept."""
    scene = Scene()
    older = scene.observe("older", 0)
    scene.delete("older")
    scene.end(older)
    assert not scene.groups.groups.lives
    scene.gang(1, 2)
    assert scene.filter("gang-0")["FailedAndUnresolvableNodes"] == {"a": "GangMembersMissing"}


def test_all_reservations_of_a_gang_are_one_transaction_at_the_first_bind() -> None:
    """Each with the version of its Pod; nobody else's command comes between."""
    scene = Scene("a", "b", gpus=4)
    scene.gang(4, 4)
    [where] = scene.passing("gang-2")
    chosen = scene.chosen("gang-2", where)
    assert types([new.event for new in chosen.events]) == [
        *("request.described", "group.planned", *["pod.reserved"] * 4)
    ]
    assert chosen.reservation.pod_name == "gang-2"
    versions = {event.pod_name: event.resource_version for event in chosen.others}
    assert versions == {
        name: scene.pods[name]["metadata"]["resourceVersion"]
        for name in ("gang-0", "gang-1", "gang-3")
    }
    for event in chosen.others:
        assert scene.passing(event.pod_name) == [event.node_name], "before it is recorded"
    scene.record(*chosen.events)
    for event in chosen.others:
        assert scene.passing(event.pod_name) == [event.node_name]


def test_a_ledger_that_refuses_a_gang_leaves_nothing_of_it() -> None:
    """All or none: the room of every member is free again."""
    scene = Scene()
    scene.gang(4, 4)
    scene.passing("gang-0")
    scene.books.refused(scene.chosen("gang-0", "a"))
    scene.create("large", 8)
    assert scene.passing("large") == ["a"]


def test_a_live_plan_is_decided_again_as_it_was() -> None:
    """What the ledger says suffices to say why each member got its cards."""
    scene = Scene("a", "b")
    scene.create("early", 3)
    scene.passing("early")
    scene.reserve("early", "a")
    scene.job(3)
    [where] = scene.passing("job-0")
    for name in ("job-0", "job-1", "job-2"):
        scene.reserve(name, where)
    scene.gang(3, 3, gpus=1)
    scene.passing("gang-0")
    [place] = scene.passing("gang-1")
    scene.record(*scene.chosen("gang-1", place).events)
    log = [
        recorded(NewEvent(stream="s", event=event, actor="a", idempotency_key=str(n), wall_us=0), n)
        for n, event in enumerate(scene.live.ledger.log, start=1)
    ]
    by = InForce(settings=scene.live.settings, settings_hash="")
    again = replayed(log, whole=False, by=by)
    assert [each.name for each in again] == [
        f"ml/{name}" for name in ("early", "job-0", "job-1", "job-2", "gang-0", "gang-2", "gang-1")
    ]
    assert [each.differences for each in again if each.differences] == []
