"""Gates that are lifted together, reservations that wait for their binds, and deadlines."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Final

import pytest

from certs.ports import ApiError
from ledger.domain.log.events import (
    GroupPlanned,
    PlanDropped,
    PodBound,
    PodReserved,
    PodVoided,
)
from scheduler.decide.group.groups import MEMBERS_MISSING
from scheduler.decide.group.life import DEADLINE
from scheduler.service.binding import UNDER_WAY
from scheduler.service.gangs import PLANNING_SECONDS
from scheduler.service.groups import EVICTIONS_SECONDS, SETTLING_SECONDS
from scheduler.service.holds import HOLD_SECONDS
from scheduler.service.members import Waiting
from tests.support.fake_api import ANSWERED
from tests.support.grouped import GANG, Scene
from tests.support.objects import container, node, pod

GATED = [{"name": "tenure.sh/gang"}]
_asked: Final = itertools.count()


def victims(
    scene: Scene, gpus: int, given: dict[str, list[str]], *, priority: int = 7
) -> dict[str, set[str]]:
    """Return who would have to go on each node for a new Pod, where kube-scheduler wants these."""
    asks = pod(
        container(limits={"koordinator.sh/gpu": gpus * 100}),
        name="large",
        uid=f"pod-large-{next(_asked)}",
        priority=priority,
    )
    entries = {
        node: {"Pods": [{"UID": f"pod-{name}"} for name in names], "NumPDBViolations": 0}
        for node, names in given.items()
    }
    body = {"Pod": asks, "NodeNameToMetaVictims": entries}
    answer = json.loads(scene.extender.preempt(json.dumps(body).encode()))
    return {
        node: {one["UID"].removeprefix("pod-") for one in entry["Pods"]}
        for node, entry in answer["NodeNameToMetaVictims"].items()
    }


def running_gang(scene: Scene, count: int, gpus: int) -> dict[str, str]:
    """Let a gang run; return who is on which node."""
    scene.gang(count, count, gpus=gpus)
    where: dict[str, str] = {}
    for name in (f"gang-{number}" for number in range(count)):
        [where[name]] = scene.passing(name)
        assert not scene.bind(name, where[name])
    return where


def gates(scene: Scene) -> dict[str, object]:
    """Return the gates of every Pod."""
    return {name: one["spec"].get("schedulingGates") for name, one in scene.pods.items()}


def test_gates_are_lifted_together_once_enough_are_there_and_fit() -> None:
    """Not with too few members, not without room; other gates stay."""
    scene = Scene()
    scene.gang(2, 3, schedulingGates=GATED)
    scene.settle()
    assert set(map(str, gates(scene).values())) == {str(GATED)}
    scene.create("large", 3)
    held = scene.reserve("large", "a")
    scene.gang(3, 3, schedulingGates=GATED)
    scene.settle()
    assert set(map(str, gates(scene).values())) == {"None", str(GATED)}
    scene.end(held)
    scene.settle()
    assert set(map(str, gates(scene).values())) == {"None"}
    for name in ("gang-0", "gang-1", "gang-2"):
        assert scene.passing(name) == ["a"]


def test_a_member_that_somebody_else_keeps_back_is_not_waited_for() -> None:
    """Its gate of ours stays as well: it can't be scheduled."""
    scene = Scene()
    scene.gang(2, 2, schedulingGates=GATED)
    both = [*GATED, {"name": "example.org/quota"}]
    scene.gang(1, 1, name="alone", schedulingGates=both)
    scene.settle()
    assert gates(scene) == {"gang-0": None, "gang-1": None, "alone-0": both}


def test_a_gang_on_nodes_of_different_kinds_is_planned_with_each_of_its_members() -> None:
    """kube-scheduler offers each only the nodes that its selector allows: others may be theirs."""
    scene = Scene("a", "b", "c", gpus=4)
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "koordinator.sh/gpu": "400"}
    for name, pool in (("a", "one"), ("b", "two"), ("c", "two")):
        told = node(name, labels={"pool": pool}, allocatable=amounts)
        scene.live.tell("nodes", told, uid=f"uid-{name}")
    scene.live.settle()
    scene.gang(1, 2, gpus=4, name="gang", nodeSelector={"pool": "one"})
    about = scene.pods["gang-0"]["metadata"]["annotations"]
    scene.create("gang-1", 4, annotations=about, nodeSelector={"pool": "two"})
    assert scene.passing("gang-1", "c") == ["c"], "of its own kind only what was offered"
    assert scene.passing("gang-0", "a") == ["a"]
    scene.groups.plans.give_back("gang/ml/gang")
    assert scene.passing("gang-0", "a") == ["a"]


def test_every_member_is_bound_by_the_reservation_made_with_the_first() -> None:
    """One attempt each, one transaction, and its own Binding."""
    scene = Scene("a", "b", gpus=4)
    scene.gang(4, 4, schedulingGates=GATED)
    scene.settle()
    for name in ("gang-1", "gang-0", "gang-3", "gang-2"):
        [where] = scene.passing(name)
        assert not scene.bind(name, where)
    reserved = scene.said(PodReserved)
    assert [event.attempt for event in reserved] == [1, 1, 1, 1]
    assert len(scene.said(GroupPlanned)) == 1
    assert {event.pod_uid for event in scene.said(PodBound)} == {e.pod_uid for e in reserved}
    assert not scene.said(PodVoided)
    nodes = {event.pod_name: event.node_name for event in reserved}
    assert nodes == {name: one["spec"]["nodeName"] for name, one in scene.pods.items()}


def test_of_a_gang_all_are_victims_or_nobody() -> None:
    """Where kube-scheduler wants one the others go too, or that node is left out."""
    scene = Scene("a", "b", gpus=4)
    assert set(running_gang(scene, 2, 2).values()) == {"a"}
    assert victims(scene, 2, {"a": ["gang-1"]}) == {"a": {"gang-0", "gang-1"}}
    scene = Scene("a", "b", gpus=2)
    where = running_gang(scene, 2, 2)
    assert set(where.values()) == {"a", "b"}
    assert victims(scene, 2, {where["gang-0"]: ["gang-0"]}) == {}
    assert victims(scene, 2, {"a": [], "b": []}) == {}
    scene = Scene("a", gpus=4)
    running_gang(scene, 2, 2)
    high = scene.pods["gang-0"]
    scene.tell({**high, "spec": {**high["spec"], "priority": 9}})
    assert victims(scene, 2, {"a": ["gang-1"]}) == {}
    assert victims(scene, 2, {"a": []}) == {}


def test_whoever_goes_besides_is_a_whole_gang_or_is_of_none() -> None:
    """By their priority and what they hold; a member that still waits is nobody's victim."""
    scene = Scene("a", gpus=4)
    running_gang(scene, 2, 1)
    about = scene.pods["gang-0"]["metadata"]["annotations"]
    scene.create("gang-9", 1, annotations=about, schedulingGates=[{"name": "example.org/quota"}])
    for name, priority in (("low", 1), ("mid", 5)):
        scene.create(name, 1, priority=priority)
        assert not scene.bind(name, "a")
    assert victims(scene, 1, {"a": []}) == {"a": {"gang-0", "gang-1"}}
    assert victims(scene, 2, {"a": ["low"]}) == {"a": {"gang-0", "gang-1"}}
    assert victims(scene, 3, {"a": ["low"]}) == {"a": {"low", "gang-0", "gang-1"}}
    assert victims(scene, 4, {"a": []}) == {"a": {"gang-0", "gang-1", "low", "mid"}}
    assert victims(scene, 4, {"a": []}, priority=5) == {}


def test_members_that_are_bound_in_the_same_moment_are_reserved_once() -> None:
    """Also where the first command is refused, and another one reserves them otherwise."""
    scene = Scene("a", "b", gpus=4)
    scene.gang(4, 4)
    where = {name: scene.passing(name)[0] for name in scene.pods}

    async def both() -> list[bytes]:
        bodies = [
            {"PodNamespace": "ml", "PodName": name, "PodUID": f"pod-{name}", "Node": node}
            for name, node in where.items()
        ]
        binds = (scene.extender.bind(json.dumps(body).encode()) for body in bodies)
        answers = await asyncio.gather(*binds)
        await scene.tasks.all_done()
        return list(answers)

    assert asyncio.run(both()) == [b'{"Error": ""}'] * 4
    assert [event.attempt for event in scene.said(PodReserved)] == [1] * 4
    assert len(scene.said(GroupPlanned)) == 1
    for event in scene.said(PodReserved):
        annotations = scene.pods[event.pod_name]["metadata"]["annotations"]
        assert event.annotations.items() <= annotations.items()


def test_a_member_whose_version_moved_is_reserved_for_again() -> None:
    """The Binding is refused on the version alone: void, reserve again, bind."""
    scene = Scene()
    scene.gang(2, 2)
    scene.passing("gang-0")
    assert not scene.bind("gang-0", "a")
    scene.tell({**scene.pods["gang-1"], "status": {"phase": "Pending", "reason": "touched"}})
    assert not scene.bind("gang-1", "a")
    attempts = [e.attempt for e in scene.said(PodReserved) if e.pod_name == "gang-1"]
    assert attempts == [1, 2]
    assert scene.pods["gang-1"]["spec"]["nodeName"] == "a"


def test_members_that_are_not_bound_at_the_deadline_are_voided_behind_the_fence() -> None:
    """The bound one stays, the plan's end is recorded once, and the rest may complete the gang."""
    scene = Scene()
    scene.gang(3, 3)
    scene.passing("gang-0")
    assert not scene.bind("gang-0", "a")
    before = scene.pods["gang-1"]["metadata"]["resourceVersion"]
    scene.settle(9.0)
    assert not scene.said(PodVoided)
    for _ in range(3):
        scene.settle()
    voided = scene.said(PodVoided)
    assert [(one.pod_uid, one.reason) for one in voided] == [
        ("pod-gang-1", DEADLINE),
        ("pod-gang-2", DEADLINE),
    ]
    assert before != scene.pods["gang-1"]["metadata"]["resourceVersion"], "the fence"
    assert [one.reason for one in scene.said(PlanDropped)] == [DEADLINE]
    for name in ("gang-2", "gang-1"):
        assert scene.passing(name) == ["a"]
        assert not scene.bind(name, "a")
    scene.settle(20.0)
    assert len(scene.said(PodBound)) == 3
    assert len(scene.said(PodVoided)) == 2


@pytest.mark.parametrize("restarted", [False, True], ids=["at the deadline", "by who comes next"])
def test_bound_members_of_a_gang_that_missed_its_deadline_are_evicted_where_that_is_wanted(
    restarted: bool,  # noqa: FBT001 - a column of the table
) -> None:
    """Once each, by their UIDs, when the others are voided; then the gang begins whole, or not."""
    scene = Scene(all_or_nothing=not restarted)
    scene.gang(3, 3)
    scene.passing("gang-0")
    assert not scene.bind("gang-0", "a")
    scene.settle(10)
    if restarted:
        assert "gang-0" in scene.pods, "the setting is off"
        again = Scene(ledger=scene.live.ledger, all_or_nothing=True)
        for one in scene.pods.values():
            again.tell(one)
        scene = again
    [held] = [event for event in scene.said(PodReserved) if event.pod_name == "gang-0"]
    scene.settle()
    assert list(scene.pods) == ["gang-1", "gang-2"]
    scene.settle()
    assert [call for call in scene.server.written if call[1].endswith("eviction")] == [
        ("create", "/api/v1/namespaces/ml/pods/gang-0/eviction")
    ]
    assert scene.gangs.why_evicted("pod-gang-0") == DEADLINE
    assert not scene.passing("gang-1"), "nobody joins who goes"
    scene.end(held)
    scene.settle()
    assert not scene.gangs.why_evicted("pod-gang-0")
    scene.create("gang-3", 2, annotations=scene.pods["gang-1"]["metadata"]["annotations"])
    for name in ("gang-1", "gang-2", "gang-3"):
        assert scene.passing(name) == ["a"]
        assert not scene.bind(name, "a")
    scene.settle(20)
    assert list(scene.pods) == ["gang-1", "gang-2", "gang-3"]


@pytest.mark.parametrize("reason", [DEADLINE, "deleted"], ids=["by us", "a takeover between"])
@pytest.mark.parametrize("pause", [0, EVICTIONS_SECONDS])
def test_members_of_a_gang_are_evicted_once_in_ten_minutes(pause: int, reason: str) -> None:
    """Where it fails again sooner, they stay, and others may join them."""
    scene = Scene(all_or_nothing=True)
    scene.gang(5, 3)
    for name in ("gang-0", "gang-1"):
        scene.settle(pause)
        assert scene.passing(name) == ["a"]
        assert not scene.bind(name, "a")
        held = next(one for one in scene.said(PodReserved) if one.pod_name == name)
        scene.settle(10)
        scene.settle()
        scene.settle()
        if name not in scene.pods:
            scene.end(held, reason)
    assert "gang-0" not in scene.pods
    assert ("gang-1" in scene.pods) == (not pause)
    assert scene.passing("gang-2") == ["a"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_gang_that_is_created_anew_after_an_eviction_is_not_evicted_soon(
    *, is_restarted: bool
) -> None:
    """All its Pods are replaced, as by a JobSet, whoever leads by then."""
    scene = Scene(all_or_nothing=True)
    for first in (0, 3):
        about = {"name": "gang", "min-available": "3", "waiting-time": "10s"}
        annotations = {f"{GANG}/{key}": value for key, value in about.items()}
        names = [f"gang-{first + number}" for number in range(3)]
        for name in names:
            scene.create(name, 2, annotations=annotations)
        scene.passing(names[0])
        assert not scene.bind(names[0], "a")
        for seconds in (10, 1, 1):
            scene.settle(seconds)
        if first:
            break
        assert names[0] not in scene.pods
        scene.end(next(o for o in scene.said(PodReserved) if o.pod_name == names[0]), DEADLINE)
        for name in names[1:]:
            scene.delete(name)
        scene.settle()
        if is_restarted:
            now = scene.live.clock.now
            scene = Scene(ledger=scene.live.ledger, all_or_nothing=True)
            scene.live.clock.now = now
    assert "gang-3" in scene.pods
    assert scene.passing("gang-4") == ["a"]
    for name in list(scene.pods):
        scene.delete(name)
    scene.end(next(one for one in scene.said(PodReserved) if one.pod_name == "gang-3"))
    scene.settle(EVICTIONS_SECONDS)
    assert not scene.groups.groups.lives, "nothing of it is left"


@pytest.mark.parametrize("reason", ["completed", "deleted"])
def test_members_that_end_after_their_gang_has_begun_were_not_evicted(reason: str) -> None:
    """The next gang of that name gives its cards back where it begins in part."""
    scene = Scene(all_or_nothing=True)
    about = {"name": "gang", "min-available": "2", "waiting-time": "10s"}
    annotations = {f"{GANG}/{key}": value for key, value in about.items()}

    def begin(*names: str, bound: int) -> None:
        for name in names:
            scene.create(name, 2, annotations=annotations)
        for name in names[:bound]:
            assert scene.passing(name) == ["a"]
            assert not scene.bind(name, "a")
        for seconds in (10, 1, 1):
            scene.settle(seconds)

    def end(why: str, *names: str) -> None:
        for name in names:
            scene.end(next(o for o in scene.said(PodReserved) if o.pod_name == name), why)
        scene.settle()

    begin("old-0", "old-1", bound=1)
    assert "old-0" not in scene.pods
    end(DEADLINE, "old-0")
    scene.settle(EVICTIONS_SECONDS)
    begin("old-2", bound=0)
    for name in ("old-1", "old-2"):
        assert scene.passing(name) == ["a"]
        assert not scene.bind(name, "a")
    scene.settle(EVICTIONS_SECONDS)
    for name in ("old-1", "old-2"):
        scene.delete(name)
    end(reason, "old-1", "old-2")
    begin("new-0", "new-1", bound=1)
    assert "new-0" not in scene.pods


def test_a_member_that_has_run_for_long_is_not_evicted() -> None:
    """The setting is new, or a budget allowed it too late."""
    old = Scene()
    old.gang(3, 3)
    old.passing("gang-0")
    assert not old.bind("gang-0", "a")
    old.settle(10)
    old.settle()
    scene = Scene(ledger=old.live.ledger, all_or_nothing=True)
    scene.live.clock.now = old.live.clock.now + SETTLING_SECONDS
    for one in old.pods.values():
        scene.tell(one)
    scene.settle()
    assert "gang-0" in scene.pods
    assert scene.passing("gang-1") == ["a"]


def test_a_new_worker_of_a_gang_that_has_begun_misses_no_deadline() -> None:
    """An hour after the start it is reserved for, and it alone is given up where it is late."""
    scene = Scene(all_or_nothing=True)
    scene.gang(3, 3)
    for name in ("gang-0", "gang-1", "gang-2"):
        scene.passing(name)
        assert not scene.bind(name, "a")
    scene.settle(3600)
    about = scene.pods["gang-2"]["metadata"]["annotations"]
    for held in scene.said(PodReserved)[:2]:
        scene.delete(held.pod_name)
        scene.end(held)
    for name in ("gang-3", "gang-4"):
        scene.create(name, 2, annotations=about)
    assert scene.passing("gang-3") == ["a"]
    assert not scene.bind("gang-3", "a")
    scene.settle()
    assert not scene.said(PodVoided)
    for _ in range(3):
        scene.settle(5)
    assert [one.pod_uid for one in scene.said(PodVoided)] == ["pod-gang-4"]
    assert not scene.said(PlanDropped)
    assert len(scene.pods) == 3


def test_an_eviction_that_a_budget_forbids_is_asked_again() -> None:
    """The API server says 429; whoever is gone meanwhile is not asked for."""
    scene = Scene(all_or_nothing=True)
    scene.gang(3, 3)
    scene.passing("gang-0")
    assert not scene.bind("gang-0", "a")
    scene.fates.extend([ANSWERED] * 4)  # of the others' fences
    scene.fates.append(429)
    scene.settle(10)
    scene.settle()
    assert "gang-0" in scene.pods
    scene.settle()
    assert "gang-0" not in scene.pods


def test_a_pod_that_can_not_be_evicted_keeps_no_other_gang_waiting() -> None:
    """Two budgets over one Pod answer 500, each time."""
    scene = Scene(all_or_nothing=True)
    scene.gang(3, 3)
    scene.passing("gang-0")
    assert not scene.bind("gang-0", "a")
    scene.fates.extend([ANSWERED] * 4)  # of the others' fences
    scene.fates.append(500)
    scene.settle(10)
    scene.gang(1, 1, name="other", schedulingGates=GATED)
    with pytest.raises(ApiError):
        scene.settle()
    assert "gang-0" in scene.pods
    assert not scene.pods["other-0"]["spec"].get("schedulingGates")


def test_a_gang_whose_members_are_bound_in_time_is_left_alone() -> None:
    """Also by those who end before the others."""
    scene = Scene()
    scene.gang(2, 2)
    for name in ("gang-0", "gang-1"):
        scene.passing(name)
        assert not scene.bind(name, "a")
    scene.end(next(one for one in scene.said(PodReserved) if one.pod_name == "gang-0"))
    scene.settle(60.0)
    assert not scene.said(PodVoided)
    assert not scene.said(PlanDropped)


def test_a_member_that_is_deleted_before_its_bind_holds_nothing() -> None:
    """Re-created under its name it is another Pod, and is placed beside its gang."""
    scene = Scene()
    scene.gang(2, 2)
    scene.passing("gang-0")
    assert not scene.bind("gang-0", "a")
    scene.delete("gang-1")
    scene.settle()
    [voided] = scene.said(PodVoided)
    assert voided.pod_uid == "pod-gang-1"
    assert scene.books.standing("pod-gang-1") is None


def test_a_restart_between_lifting_and_binding_goes_on_with_the_others() -> None:
    """The next process plans again; nothing was recorded, so nothing is left."""
    scene = Scene()
    scene.gang(2, 2, schedulingGates=GATED)
    scene.settle()
    again = Scene(ledger=scene.live.ledger)
    for one in scene.pods.values():
        again.tell(one)
    assert again.passing("gang-0") == ["a"]
    assert not again.bind("gang-0", "a")
    assert again.passing("gang-1") == ["a"]
    assert not again.bind("gang-1", "a")
    assert len(again.said(GroupPlanned)) == 1


def test_a_ledger_that_is_away_leaves_the_gang_as_it_was() -> None:
    """Asked again it is reserved whole."""
    scene = Scene()
    scene.gang(2, 2)
    scene.passing("gang-0")
    scene.live.ledger.refuses["uid-a"] = "no"
    assert scene.bind("gang-0", "a") not in ("", UNDER_WAY)
    del scene.live.ledger.refuses["uid-a"]
    assert not scene.said(PodReserved)
    scene.live.clock.now += 1
    assert scene.passing("gang-1") == ["a"]
    assert not scene.bind("gang-1", "a")
    assert len(scene.said(PodReserved)) == 2
    assert not [one for one in scene.said(PlanDropped) if one.reason == DEADLINE]


def test_a_gang_is_not_begun_while_a_members_card_is_closed() -> None:
    """Nobody has looked at the plan since; the first member alone would be a part of a gang."""
    scene = Scene("a", "b", gpus=4)
    scene.gang(2, 2, gpus=4)
    [first], [second] = scene.passing("gang-0"), scene.passing("gang-1")
    scene.add_node(second, 4, closed=1)
    scene.live.settle()
    assert scene.bind("gang-0", first) == MEMBERS_MISSING
    assert not scene.said(PodReserved)
    scene.add_node(second, 4)
    scene.live.settle()
    assert not scene.bind("gang-0", first)
    assert len(scene.said(PodReserved)) == 2


def test_a_member_that_never_fits_keeps_no_cards_for_those_that_nobody_asks_about() -> None:
    """Their plan ends as any other, and is not made again for a gate that stays."""
    scene = Scene("a", "b", gpus=4)
    scene.gang(2, 2, gpus=4)
    annotations = scene.pods["gang-0"]["metadata"]["annotations"]
    scene.create("gang-2", 400, annotations=annotations, schedulingGates=GATED)
    scene.create("other")
    scene.settle()
    assert scene.passing("other")
    scene.passing("gang-0")
    assert not scene.passing("other")
    for _ in range(round(HOLD_SECONDS)):
        scene.settle()
    assert scene.passing("other")
    assert gates(scene)["gang-2"] == GATED


def test_a_gang_whose_gate_can_not_be_lifted_keeps_no_other_back() -> None:
    """The API may refuse one Pod's change for ever."""
    scene = Scene()
    scene.gang(1, 1, name="first", schedulingGates=GATED)
    scene.gang(1, 1, name="second", schedulingGates=GATED)
    scene.fates.append(403)
    with pytest.raises(ApiError):
        scene.settle()
    assert gates(scene) == {"first-0": GATED, "second-0": None}


def test_gangs_that_take_long_to_plan_are_planned_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Filters are answered in between, and whoever is first by name has no more turns."""
    scene, planned = Scene(), list[str]()
    for name in ("a", "b", "c"):
        scene.gang(1, 2, name=name, schedulingGates=GATED)
    plan = scene.groups.planned_now

    def slowly(name: str) -> dict[str, Waiting]:
        planned.append(name.rpartition("/")[2])
        scene.live.clock.now += 2 * PLANNING_SECONDS
        return plan(name)

    monkeypatch.setattr(scene.groups, "planned_now", slowly)
    for turns in range(1, 8):
        scene.settle()
        assert planned == list("abcabca"[:turns])
