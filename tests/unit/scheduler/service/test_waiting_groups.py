"""Why members of groups and gangs wait is recorded, whether or not kube-scheduler asks."""

from __future__ import annotations

from ledger.domain.resources import SCHEDULER_NAME
from scheduler.decide.group.groups import GANG_UNFIT, MEMBERS_MISSING
from scheduler.service.starts import ELSEWHERE
from tests.support.grouped import Scene

GATED = [{"name": "tenure.sh/gang"}]


def gate(scene: Scene, name: str) -> list[str]:
    """Return the gates of a Pod."""
    return [one["name"] for one in scene.pods[name]["spec"].get("schedulingGates") or ()]


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
