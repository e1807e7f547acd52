"""Members of groups and gangs that wait: why is recorded, and their places are kept."""

from __future__ import annotations

from typing import Any

import pytest

from ledger.domain.log.events import PlanDropped
from ledger.domain.resources import SCHEDULER_NAME
from scheduler.decide.group.groups import GANG_UNFIT, MEMBERS_MISSING
from scheduler.service import refusing
from scheduler.service.members import GATED_SECONDS
from scheduler.service.starts import ELSEWHERE, GANG_BACKOFF, MEMBERS_GATED
from scheduler.service.to_come import TO_COME_SECONDS
from tests.support.grouped import Scene

GATED = [{"name": "tenure.sh/gang"}]
QUOTA = "example.org/quota"
KUEUE = "kueue.x-k8s.io/admission"


def gate(scene: Scene, name: str) -> list[str]:
    """Return the gates of a Pod."""
    return [one["name"] for one in scene.pods[name]["spec"].get("schedulingGates") or ()]


def add_behind(
    scene: Scene, other: str, gpus: int, like: str = "gang-0", name: str = "behind"
) -> str:
    """Add a member that somebody else's gate keeps back as well; return its name."""
    metadata = scene.pods[like]["metadata"]
    about = {key: metadata[key] for key in ("labels", "annotations") if key in metadata}
    gates = [*(GATED if "annotations" in about else []), {"name": other}]
    scene.create(name, gpus, schedulingGates=gates, **about)
    return name


def begin(scene: Scene, *names: str) -> None:
    """Let kube-scheduler ask about members with places on the node, and bind them."""
    for name in names:
        assert scene.passing(name) == ["a"]
        assert not scene.bind(name, "a")


def lift(scene: Scene, name: str, other: str) -> None:
    """Let somebody lift his gate."""
    spec: dict[str, Any] = scene.pods[name]["spec"]
    left = [one for one in spec["schedulingGates"] if one["name"] != other]
    scene.tell({**scene.pods[name], "spec": {**spec, "schedulingGates": left}})


def refuse(scene: Scene, name: str) -> None:
    """Let kube-scheduler's own filters leave a Pod no node."""
    verdict = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    known = scene.pods[name]
    spec = {**known["spec"], "schedulerName": SCHEDULER_NAME}
    scene.tell({**known, "spec": spec, "status": {"phase": "Pending", "conditions": [verdict]}})


def test_a_gang_without_room_has_its_reasons_node_by_node_once() -> None:
    """Behind its gate nobody asks about it; each member has them in the ledger."""
    scene = Scene("a", "b", gpus=4)
    scene.add_node("small", 2)
    scene.live.settle()
    scene.gang(3, 3, gpus=3, schedulingGates=GATED)
    for _ in range(20):
        scene.settle()
        found = scene.explain()
    assert [one.pod_name for one in found] == ["gang-0", "gang-1", "gang-2"]
    message = (
        "0/3 nodes are available: 2 GangUnfit, 1 Insufficient gpu devices."
        " Of the 3 pods that start together 2 fit."
    )
    assert {one.message for one in found} == {message}
    first = found[0].reasons[0]
    assert (first.reason, first.nodes, first.detail) == (GANG_UNFIT, 2, "asks 3 pods, 2 fit")


def test_a_gang_of_which_no_node_takes_a_member_is_unfit_as_well() -> None:
    """The nodes' own reasons stand alone in the count, and the gang beside them."""
    scene = Scene("a", gpus=2)
    scene.gang(2, 2, gpus=4, schedulingGates=GATED)
    scene.settle()
    first = scene.explain()[0]
    assert [(one.reason, one.nodes) for one in first.reasons] == [
        ("Insufficient gpu devices", 1),
        (GANG_UNFIT, 0),
    ]
    assert first.message == (
        "0/1 nodes are available: 1 Insufficient gpu devices."
        " Of the 2 pods that start together 0 fit."
    )


def test_a_gang_that_lacks_members_says_so_until_they_come() -> None:
    """Another reason is recorded again, for those who had the first."""
    scene = Scene("a", gpus=4)
    scene.gang(2, 3, schedulingGates=GATED)
    scene.settle()
    [first, _] = scene.explain()
    assert [(one.reason, one.detail) for one in first.reasons] == [
        (MEMBERS_MISSING, "asks 3 pods, 2 available")
    ]
    scene.gang(3, 3, schedulingGates=GATED)
    scene.settle()
    found = scene.explain()[2:]
    assert [one.pod_name for one in found] == ["gang-0", "gang-1", "gang-2"]
    assert {one.reasons[0].reason for one in found} == {GANG_UNFIT}
    scene.add_node("b", 4)
    scene.live.settle()
    scene.settle()
    assert [gate(scene, name) for name in sorted(scene.pods)] == [[], [], []]


def test_a_gang_that_kube_scheduler_asks_about_has_the_same_reasons() -> None:
    """Without gates it is its filter that is refused; what it did not offer is told apart."""
    scene = Scene("a", "b", "c", gpus=4)
    scene.gang(3, 3, gpus=3)
    assert scene.passing("gang-1", "a", "b") == []
    [found] = scene.explain()
    assert {one.reason: one.nodes for one in found.reasons} == {GANG_UNFIT: 2, "NodeNotOffered": 1}


def test_a_member_whose_planned_node_kube_scheduler_did_not_offer_is_told_which() -> None:
    """Its own filters left none, so that it does not ask; the plan keeps the place."""
    scene = Scene("a", "b", gpus=4)
    scene.job(2)
    [where] = scene.passing("job-0")
    refuse(scene, "job-1")
    [found] = scene.explain()
    assert found.pod_name == "job-1"
    [reason] = found.reasons
    assert (reason.reason, reason.nodes, reason.nearest_node) == ("NodeNotOffered", 2, where)
    assert reason.detail == f"planned on {where}, kube-scheduler did not offer it"
    assert scene.passing("job-1") == [where], "the place is as it was"


def test_a_member_that_waits_for_its_recorded_place_is_told_of_the_other_nodes() -> None:
    """The plan is in a command whose answer has not come, so that it can't be made anew."""
    scene = Scene("a", "b", gpus=4)
    scene.job(2)
    [where] = scene.passing("job-0")
    [other] = {"a", "b"} - {where}
    scene.chosen("job-0", where)
    assert scene.passing("job-1", other) == []
    [found] = scene.explain()
    assert {one.reason: one.nodes for one in found.reasons} == {"NodeNotOffered": 1, ELSEWHERE: 1}


def test_a_member_behind_somebody_elses_gate_has_a_place_in_the_plan() -> None:
    """No outsider gets it, nobody of the gang is let go before, and the gate is named."""
    scene = Scene("a", gpus=8)
    scene.gang(2, 3, schedulingGates=GATED)
    behind = add_behind(scene, QUOTA, 2)
    scene.create("outsider", 4)
    for _ in range(9):
        scene.settle()
        assert scene.passing("outsider") == []
    assert [gate(scene, name) for name in ("gang-0", "gang-1")] == [["tenure.sh/gang"]] * 2
    found = [one for one in scene.explain() if one.pod_name == "gang-0"]
    [reason] = found[0].reasons
    assert (reason.reason, reason.detail) == (MEMBERS_GATED, "asks 3 pods, 2 available")
    assert reason.remedy == f"lift the scheduling gate {QUOTA} of ml/behind"
    lift(scene, behind, QUOTA)
    scene.settle()
    for name in ("gang-0", "gang-1", behind):
        assert scene.passing(name) == ["a"]
        assert not scene.bind(name, "a")


def test_nobody_of_a_gang_is_bound_before_the_gate_of_a_needed_member_is_gone() -> None:
    """Also where the others have no gate of ours."""
    scene = Scene("a", gpus=8)
    scene.gang(2, 3)
    behind = add_behind(scene, QUOTA, 2)
    assert scene.passing("gang-0") == ["a"]
    assert scene.bind("gang-0", "a") == MEMBERS_MISSING
    lift(scene, behind, QUOTA)
    scene.settle()
    assert not scene.bind("gang-0", "a")


def test_a_gang_keeps_no_place_behind_a_gate_for_longer_than_it_may_wait() -> None:
    """Its cards are everybody's again, and once the gate is gone it is planned anew."""
    scene = Scene("a", gpus=8)
    scene.gang(2, 3, schedulingGates=GATED)
    behind = add_behind(scene, QUOTA, 2)
    scene.create("outsider", 4)
    for _ in range(13):
        scene.settle()
    assert scene.passing("outsider") == ["a"]
    scene.delete("outsider")
    lift(scene, behind, QUOTA)
    scene.settle()
    assert [gate(scene, name) for name in ("gang-0", "gang-1", behind)] == [[], [], []]


@pytest.mark.parametrize("other", [QUOTA, KUEUE])
def test_a_gang_that_needs_nobody_behind_a_gate_begins_and_keeps_a_place(other: str) -> None:
    """`min-available` is reached without it."""
    scene = Scene("a", gpus=8)
    scene.gang(2, 2, schedulingGates=GATED)
    behind = add_behind(scene, other, 2)
    scene.create("outsider", 4)
    scene.settle()
    for name in ("gang-0", "gang-1"):
        assert scene.passing(name) == ["a"]
        assert not scene.bind(name, "a")
    scene.settle(5)
    assert scene.passing("outsider") == []
    lift(scene, behind, other)
    scene.settle()
    assert scene.passing(behind) == ["a"]
    assert not scene.bind(behind, "a")


def test_a_member_that_kueue_has_not_admitted_does_not_count_for_the_minimum() -> None:
    """Nothing is planned for those who would wait for it: its quota is Kueue's to give."""
    scene = Scene("a", gpus=8)
    scene.gang(2, 3, schedulingGates=GATED)
    add_behind(scene, KUEUE, 2)
    scene.create("outsider", 4)
    scene.settle()
    assert scene.passing("outsider") == ["a"]
    found = [one for one in scene.explain() if one.pod_name == "gang-0"]
    assert [one.reason for one in found[0].reasons] == [MEMBERS_MISSING]


def test_a_gang_with_room_for_its_minimum_alone_does_not_wait_for_a_gate() -> None:
    """Who may be scheduled is planned before who is kept back."""
    scene = Scene("a", gpus=4)
    scene.gang(1, 2, schedulingGates=GATED)
    add_behind(scene, QUOTA, 2)
    scene.gang(2, 2, schedulingGates=GATED)
    scene.settle()
    assert [gate(scene, name) for name in ("gang-0", "gang-1")] == [[], []]


def test_a_member_of_a_begun_gang_is_told_that_its_reserved_node_is_not_offered() -> None:
    """Its cards are reserved with the others', and spreading keeps it off that node."""
    scene = Scene("a", "b", gpus=4)
    scene.gang(3, 2, gpus=1)
    [where] = scene.passing("gang-0")
    assert not scene.bind("gang-0", where)
    refuse(scene, "gang-2")
    [found] = scene.explain()
    assert found.pod_name == "gang-2"
    [reason] = found.reasons
    assert (reason.reason, reason.nodes, reason.nearest_node) == ("NodeNotOffered", 2, where)
    assert reason.detail == f"planned on {where}, kube-scheduler did not offer it"


@pytest.mark.parametrize("kind", ["group", "gang"])
def test_a_member_that_only_somebody_elses_gate_keeps_back_is_told_which(kind: str) -> None:
    """Nobody asks about it, and the others begin without it."""
    scene = Scene("a", gpus=8)
    if kind == "group":
        scene.job(2, replica=3)
    else:
        scene.gang(2, 2, schedulingGates=GATED)
    behind = add_behind(scene, QUOTA, 2, like=next(iter(scene.pods)))
    spec = {**scene.pods[behind]["spec"], "schedulerName": SCHEDULER_NAME}
    scene.tell({**scene.pods[behind], "spec": spec})
    for _ in range(9):
        scene.settle()
        scene.explain()
    [found] = [one for one in scene.explain() if one.pod_name == behind]
    assert found.message.endswith(f"blocked until the gate is lifted: {QUOTA}")
    lift(scene, behind, QUOTA)
    scene.settle()
    assert scene.passing(behind) == ["a"]


def test_a_member_behind_two_gates_is_told_that_of_others_alone() -> None:
    """Its gang waits, too; whoever leads next records nothing more."""
    scene = Scene("a", gpus=8)
    scene.gang(2, 3, schedulingGates=GATED)
    behind = add_behind(scene, QUOTA, 2)
    spec = {**scene.pods[behind]["spec"], "schedulerName": SCHEDULER_NAME}
    scene.tell({**scene.pods[behind], "spec": spec})
    for _ in range(9):
        scene.settle(10)
        scene.explain()
    found = [one for one in scene.explain() if one.pod_name == behind]
    assert [one.message.rpartition(": ")[2] for one in found] == [QUOTA]


@pytest.mark.parametrize("other", [QUOTA, KUEUE])
def test_a_group_keeps_a_place_for_a_member_behind_somebody_elses_gate(other: str) -> None:
    """Longer than for members to come: it is there."""
    scene = Scene("a", gpus=8)
    scene.job(2, replica=3)
    behind = add_behind(scene, other, 2, like="job-0")
    scene.create("outsider", 4)
    for name in ("job-0", "job-1"):
        assert scene.passing(name) == ["a"]
        assert not scene.bind(name, "a")
    scene.settle(2 * TO_COME_SECONDS)
    assert scene.passing("outsider") == []
    lift(scene, behind, other)
    begin(scene, behind)


@pytest.mark.parametrize("other", ["", QUOTA, KUEUE])
def test_a_later_member_of_a_gang_that_has_begun_is_let_go(other: str) -> None:
    """Also while a member behind somebody else's gate has its place."""
    scene = Scene("a", gpus=8)
    scene.gang(2, 2, schedulingGates=GATED)
    if other:
        add_behind(scene, other, 2)
    scene.settle()
    begin(scene, "gang-0", "gang-1")
    annotations = scene.pods["gang-0"]["metadata"]["annotations"]
    scene.create("gang-2", 2, schedulingGates=GATED, annotations=annotations)
    scene.settle()
    assert gate(scene, "gang-2") == []
    begin(scene, "gang-2")


@pytest.mark.parametrize("other", [QUOTA, KUEUE])
def test_a_gang_that_has_begun_keeps_a_place_behind_a_gate_for_its_waiting_time(
    other: str,
) -> None:
    """The ledger has the end of the plan, and once the gate is gone the member is planned."""
    scene = Scene("a", gpus=8)
    scene.gang(2, 2, schedulingGates=GATED)
    behind = add_behind(scene, other, 2)
    scene.create("outsider", 4)
    scene.settle()
    begin(scene, "gang-0", "gang-1")
    scene.settle(10)
    assert scene.passing("outsider") == ["a"]
    [drop] = scene.said(PlanDropped)
    assert (drop.reason, drop.pod_uid) == (MEMBERS_GATED, "pod-behind")
    scene.delete("outsider")
    lift(scene, behind, other)
    scene.settle()
    begin(scene, behind)


@pytest.mark.parametrize("other", [QUOTA, KUEUE])
def test_a_group_keeps_a_place_behind_a_gate_for_a_gangs_default_time(other: str) -> None:
    """No gate that is never lifted keeps cards for ever."""
    scene = Scene("a", gpus=8)
    scene.job(2, replica=3)
    behind = add_behind(scene, other, 2, like="job-0")
    scene.create("outsider", 4)
    begin(scene, "job-0", "job-1")
    scene.settle(GATED_SECONDS - 60)
    assert scene.passing("outsider") == []
    scene.settle(60)
    assert scene.passing("outsider") == ["a"]
    scene.delete("outsider")
    lift(scene, behind, other)
    begin(scene, behind)


def test_a_member_that_comes_behind_a_gate_gives_a_gang_no_more_time() -> None:
    """Whoever creates and deletes such members would keep the cards for ever."""
    scene = Scene("a", gpus=8)
    scene.gang(2, 3, schedulingGates=GATED)
    add_behind(scene, QUOTA, 2, name="behind-0")
    scene.create("outsider", 4)
    for number in range(1, 13):
        scene.settle()
        add_behind(scene, QUOTA, 2, name=f"behind-{number}")
        scene.delete(f"behind-{number - 1}")
    scene.settle()
    assert scene.passing("outsider") == ["a"]


def test_only_a_gate_that_a_gang_waits_for_is_to_be_lifted() -> None:
    """Kueue lifts its own, and a gang that backs off waits for none."""
    scene = Scene("a", gpus=8)
    scene.gang(2, 3, schedulingGates=GATED)
    add_behind(scene, KUEUE, 2)
    scene.settle()
    found = scene.explain()
    add_behind(scene, QUOTA, 2, name="quota")
    scene.settle()
    found = scene.explain()[len(found) :]
    remedy = f"lift the scheduling gate {QUOTA} of ml/quota"
    assert {one.reasons[0].remedy for one in found if one.pod_name != "behind"} == {remedy}
    scene.groups.starts.back_off("gang/ml/gang")
    assert scene.passing("gang-0") == []
    [*_, last] = scene.explain()
    assert (last.reasons[0].reason, last.reasons[0].remedy) == (GANG_BACKOFF, "")


def test_a_planned_node_that_is_closed_is_not_taken_for_one_that_was_not_offered() -> None:
    """kube-scheduler asked about it, and not about the other one."""
    scene = Scene("a", "b", gpus=4)
    scene.job(2)
    [where] = scene.passing("job-0")
    scene.chosen("job-0", where)
    scene.create("stranger", 1, nodeName=where)
    scene.live.view._open_or_close(where)
    assert scene.passing("job-1", where) == []
    [found] = scene.explain()
    reasons = {one.reason: one.detail for one in found.reasons}
    assert reasons == {"NodeHasUnknownHolders": "", "NodeNotOffered": ""}


def test_a_gang_without_budget_takes_no_place_of_other_namespaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who has no budget is explained when it is noted again, and that is seldom."""
    monkeypatch.setattr(refusing, "DUE_MAX", 10)
    monkeypatch.setattr(refusing, "NAMESPACE_BURST", 2.0)
    scene = Scene("a", gpus=2)
    scene.gang(12, 12, schedulingGates=GATED)
    scene.settle()
    assert len(scene.explain()) == 2
    scene.create("other", 8, namespace="else")
    scene.settle()
    assert scene.passing("other") == []
    assert scene.explain()[-1].namespace == "else"
    for _ in range(6):
        scene.settle()
        found = scene.explain()
    assert len([one for one in found if one.namespace == "ml"]) > 2


def test_the_end_of_a_plan_that_the_ledger_refused_is_recorded_later() -> None:
    """A member is bound then; the pause grows, and the key is another one."""
    scene = Scene("a", "b", gpus=8)
    scene.job(3)
    [where] = scene.passing("job-0")
    assert not scene.bind("job-0", where)
    scene.delete("job-1")
    scene.live.ledger.refuses[""] = "the clock is behind"
    scene.settle()
    [first] = scene.groups.plans.ends_due()
    assert not scene.groups.plans.begin_drops()
    scene.settle()
    assert scene.groups.plans.ends_due() == (first,)
    scene.live.ledger.refuses.clear()
    scene.settle()
    assert not scene.said(PlanDropped), "the pause grew"
    scene.settle()
    assert scene.said(PlanDropped)
    [where] = scene.passing("job-2")
    assert not scene.bind("job-2", where)
