"""Why Pods wait is recorded beside the calls, when it changes, in the words of a simulation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from ledger.domain.errors import LedgerError, UnknownOutcomeError
from ledger.domain.log.events import RefusalReason, RequestDescribed, RequestRefused
from scheduler.record.refusing import REFUSALS_PER_POD_MAX, Told
from scheduler.service import refusing
from scheduler.service.answering import Extender
from scheduler.service.binding import Binder
from scheduler.service.refusing import (
    AGAIN_SECONDS,
    ALL_SECONDS,
    FILTERED_SECONDS,
    NAMESPACE_SECONDS,
    TOGETHER,
    Refusing,
    refusal_budgets,
)
from scheduler.service.telling import Telling
from scheduler.service.view import STRANGERS
from tests.support.binding import Tasks, Unsigned, always, at_once
from tests.support.extending import NoHolds, preempting
from tests.support.fake_api import ApiClient, ApiServer
from tests.support.live import Live, MemoryLedger, StillClock
from tests.support.objects import container, node, pod

LESS = "Insufficient gpu devices"
NOT_ADVERTISED = (
    "NodeNotOffered: the node does not advertise koordinator.sh/gpu:"
    " run the agent with --node there"
)


class Scene:
    """Nodes `a` and `b` with a card each, and an extender that keeps why Pods wait."""

    def __init__(self, ledger: MemoryLedger | None = None) -> None:
        self.live = Live(ledger)
        self.why = ""
        self.asked: list[Sequence[str]] = []
        self.history: dict[str, Told] = {}
        self.meanwhile: Callable[[], None] = lambda: None
        begun = self.live.ledger.beginning()
        books = self.live.books(begun)
        api = ApiClient(ApiServer(), self.live.clock.sleep)
        binder = Binder(
            recorder=self.live.ledger,
            api=api,
            clock=self.live.clock,
            books=books,
            proofs=Unsigned(),
            telling=Telling(api=api, clock=self.live.clock, reporter="scheduler/test"),
            actor="scheduler/test",
            start=Tasks().start,
            wakeups=self.live.wakeups,
            ready=at_once,
            is_gone=always,
            is_awaited=lambda _uid: False,
        )
        self.refusing = Refusing(
            self.live.view,
            books,
            binder,
            self.live.groups,
            told=self._told,
            why_not=lambda: self.why,
        )
        self.extender = Extender(
            self.live.view,
            binder,
            why_not=lambda: "",
            groups=self.live.groups,
            holds=NoHolds(),
            refusals=self.refusing,
            preempting=preempting(self.live.view, NoHolds(), self.live.groups, self.live.clock),
        )
        for name in ("a", "b"):
            self.live.add_node(name, 1)
        self.live.settle()

    async def _told(self, pod_uids: Sequence[str] | None) -> Mapping[str, Told]:
        if pod_uids is None:
            return {uid: told for uid, told in self.history.items() if told.waiting}
        self.asked.append(pod_uids)
        self.meanwhile()
        return self.history

    def filter(self, asked: dict[str, Any], *names: str) -> dict[str, Any]:
        """Ask as kube-scheduler does, and return the answer."""
        body = {"Pod": asked, "NodeNames": names or ("a", "b")}
        answer: dict[str, Any] = json.loads(self.extender.filter(json.dumps(body).encode()))
        return answer

    def settle(self) -> None:
        """Explain what is due."""
        asyncio.run(self.refusing.settle())

    def refuse(self, asked: dict[str, Any], *names: str) -> None:
        """Ask, explain, and let the time pass until it is explained again."""
        self.filter(asked, *names)
        self.settle()
        self.live.clock.now += AGAIN_SECONDS

    @property
    def said(self) -> list[RequestRefused]:
        """What the ledger has."""
        return [one for one in self.live.ledger.log if isinstance(one, RequestRefused)]

    def fill(self, name: str) -> None:
        """Let somebody hold the card of a node, which advertises it."""
        amounts = {"cpu": "64", "memory": "256Gi", "pods": "110", "koordinator.sh/gpu": "100"}
        self.live.tell("nodes", node(name, allocatable=amounts), uid=f"uid-{name}")
        self.live.settle()
        self.live.reserve(self.live.placement(_pod(f"on-{name}"), name))


def _pod(name: str, percent: int = 100, **metadata: Any) -> dict[str, Any]:  # noqa: ANN401
    limits = {"koordinator.sh/gpu": percent}
    made = pod(container(limits=limits), name=name, uid=f"pod-{name}")
    made["metadata"] |= metadata
    return made


def test_a_pod_that_no_node_takes_is_recorded_with_its_reasons_counted() -> None:
    """As a simulation counts them, with the nearest node and what would help."""
    scene = Scene()
    scene.fill("a")
    scene.fill("b")
    scene.refuse(_pod("p"))
    [said] = scene.said
    assert said.message == f"0/2 nodes are available: 2 {LESS}."
    assert (said.stage, said.pod_uid, said.shape) == (
        "scheduling",
        "pod-p",
        "1 x whole gpu",
    )
    [reason] = said.reasons
    assert isinstance(reason, RefusalReason)
    assert (reason.nodes, reason.nearest_node) == (2, "a")
    assert reason.remedy
    described = [one for one in scene.live.ledger.log if isinstance(one, RequestDescribed)]
    assert len(described) == 1


def test_the_filter_itself_records_nothing() -> None:
    """It only notes whom it refused: no I/O and no wait."""
    scene = Scene()
    scene.fill("a")
    scene.fill("b")
    before = len(scene.live.ledger.log)
    scene.filter(_pod("p"))
    assert len(scene.live.ledger.log) == before
    assert len(scene.refusing) == 1


def test_the_same_reasons_are_recorded_once_and_others_again() -> None:
    """Whatever the number of nodes: the set of reasons is what counts."""
    scene = Scene()
    scene.fill("a")
    scene.refuse(_pod("p", 200))
    scene.fill("b")
    scene.refuse(_pod("p", 200))
    assert len(scene.said) == 1
    scene.live.add_node("b", 1, unschedulable=True)
    scene.live.settle()
    scene.refuse(_pod("p", 200))
    assert [len(one.reasons) for one in scene.said] == [1, 2]


def test_a_pod_that_had_a_place_meanwhile_is_told_of_again() -> None:
    """Its last word in the ledger would be that it was placed."""
    scene = Scene()
    scene.fill("a")
    scene.fill("b")
    scene.refuse(_pod("p", 50))
    scene.live.add_node("c", 1)
    scene.live.settle()
    event = scene.live.reserve(scene.live.placement(_pod("p", 50), "c"))
    scene.live.release(event)
    scene.live.drop_node("c")
    scene.live.settle()
    scene.refuse(_pod("p", 50))
    assert len(scene.said) == 2


def test_changes_are_bounded_for_each_pod() -> None:
    """A Pod whose reasons change all the time fills no ledger."""
    scene = Scene()
    scene.fill("a")
    scene.fill("b")
    for number in range(2 * REFUSALS_PER_POD_MAX):
        scene.live.add_node("b", 1, unschedulable=bool(number % 2))
        scene.live.settle()
        scene.refuse(_pod("p"))
    assert len(scene.said) == REFUSALS_PER_POD_MAX


def test_refusals_are_bounded_for_each_namespace_and_come_with_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A namespace that creates Pods without end is no burden for the others."""
    monkeypatch.setattr(refusing, "NAMESPACE_BURST", 2.0)
    scene = Scene()
    scene.fill("a")
    scene.fill("b")
    for name in ("p", "q", "r"):
        scene.filter(_pod(name))
    scene.filter(_pod("s", namespace="other"))
    scene.settle()
    assert [one.pod_uid for one in scene.said] == ["pod-p", "pod-q", "pod-s"]
    assert not len(scene.refusing), "it would take the place of others"
    scene.live.clock.now += NAMESPACE_SECONDS
    scene.filter(_pod("r"))
    scene.settle()
    assert [one.pod_uid for one in scene.said][3:] == ["pod-r"]


def test_refusals_of_all_namespaces_together_are_bounded_and_come_with_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever names ever other namespaces gets no more."""
    monkeypatch.setattr(refusing, "ALL_BURST", 2.0)
    clock = StillClock()
    budgets = refusal_budgets(clock.monotonic)

    assert [budgets.take(f"team-{number}") for number in range(4)] == [True, True, False, False]
    budgets.give_back("team-0")
    assert [budgets.take("team-4"), budgets.take("team-5")] == [True, False]
    clock.now += ALL_SECONDS
    assert [budgets.take("team-6"), budgets.take("team-7")] == [True, False]


def test_a_pod_is_explained_seldom_however_often_it_is_asked_about() -> None:
    """kube-scheduler asks about a Pod that waits whenever a Node changes."""
    scene = Scene()
    scene.fill("a")
    scene.fill("b")
    for _ in range(5):
        scene.filter(_pod("p"))
        scene.settle()
    assert scene.refusing.counts == {"recorded": 1}
    scene.live.clock.now += AGAIN_SECONDS
    scene.settle()
    assert scene.refusing.counts == {"recorded": 1, "unchanged": 1}


def test_few_pods_are_explained_at_a_time() -> None:
    """A burst of thousands does not stand before the next filter."""
    scene = Scene()
    scene.fill("a")
    scene.fill("b")
    for number in range(TOGETHER + 5):
        scene.filter(_pod(f"p{number}"))
    scene.settle()
    assert len(scene.said) == TOGETHER
    scene.settle()
    assert len(scene.said) == TOGETHER + 5


def test_nodes_that_kube_scheduler_kept_back_are_told_apart() -> None:
    """By our rules one would take the Pod; a filter of kube-scheduler's own said no."""
    scene = Scene()
    scene.fill("a")
    scene.refuse(_pod("p"), "a")
    [said] = scene.said
    assert said.message == f"0/2 nodes are available: 1 {LESS}, 1 NodeNotOffered."
    assert [reason.nearest_node for reason in said.reasons] == ["a", "b"]
    assert said.reasons[1].remedy.startswith("see kube-scheduler")


def test_closed_nodes_are_counted_with_what_closed_them() -> None:
    """Both those that the engine knows and those that it never could."""
    scene = Scene()
    scene.fill("a")
    stranger = _pod("stranger")
    stranger["spec"]["nodeName"] = "b"
    scene.live.view.pods.put("pod-stranger", stranger)
    scene.live.tell(
        "nodes", {"metadata": {"name": "c"}, "status": {"allocatable": {"cpu": "x"}}}, uid="c"
    )
    scene.live.settle()
    answer = scene.filter(_pod("p"), "a", "b", "c")
    scene.settle()
    assert answer["FailedAndUnresolvableNodes"] == {"b": STRANGERS, "c": "NodeUnreadable"}
    [said] = scene.said
    assert said.message == f"0/3 nodes are available: 1 {LESS}, 1 {STRANGERS}, 1 NodeUnreadable."
    assert sum(reason.nodes for reason in said.reasons) == 3


def test_nothing_is_recorded_of_a_pod_that_some_node_takes_by_now() -> None:
    """What was held came free between the call and the look."""
    scene = Scene()
    scene.fill("a")
    holder = scene.live.reserve(scene.live.placement(_pod("h"), "b"))
    scene.filter(_pod("p"))
    scene.live.release(holder)
    scene.settle()
    assert (scene.said, scene.refusing.counts) == ([], {"placeable": 1})


@pytest.mark.parametrize("by", ["our own look", "kube-scheduler's word"])
def test_who_could_be_placed_for_a_moment_and_still_waits_has_a_reason(by: str) -> None:
    """Another one had the room; kube-scheduler's own filters may ask no extender about it then."""
    scene = Scene()
    scene.fill("a")
    holder = scene.live.reserve(scene.live.placement(_pod("h"), "b"))
    scene.filter(_pod("p"))
    scene.live.release(holder)
    scene.settle()
    assert scene.said == []
    if by == "our own look":
        scene.fill("b")
    else:
        scene.refusing.put("pod-p", unschedulable("p"))
    scene.live.clock.now += AGAIN_SECONDS
    scene.settle()
    [said] = scene.said
    assert said.message.startswith("0/2 nodes are available")
    assert len(scene.refusing) == 0


@pytest.mark.parametrize("is_told", ["before it is asked about", "while the ledger is asked"])
def test_a_pod_that_is_gone_is_not_looked_at_for_ever(is_told: str) -> None:
    """Its end may be told before kube-scheduler asks about it for the last time, or meanwhile."""
    scene = Scene()
    scene.fill("a")
    holder = scene.live.reserve(scene.live.placement(_pod("h"), "b"))
    if is_told == "while the ledger is asked":
        scene.meanwhile = lambda: scene.refusing.drop("pod-p")
    scene.filter(_pod("p"))
    scene.live.release(holder)
    for _ in range(10):
        scene.settle()
        scene.live.clock.now += AGAIN_SECONDS
    assert (scene.said, len(scene.refusing)) == ([], 0)


def test_nothing_is_recorded_of_a_pod_that_is_bound_or_has_ended() -> None:
    """It waits no more."""
    scene = Scene()
    scene.fill("a")
    scene.fill("b")
    bound, ended = _pod("p"), _pod("q")
    for each in (bound, ended):
        scene.filter(each)
    bound["spec"]["nodeName"] = "elsewhere"
    ended["status"] = {"phase": "Failed"}
    for each in (bound, ended):
        scene.live.view.pods.put(each["metadata"]["uid"], each)
    scene.settle()
    assert (scene.said, len(scene.refusing)) == ([], 0)


def test_a_nominated_node_alone_is_no_refusal() -> None:
    """kube-scheduler asks about the others next."""
    scene = Scene()
    scene.fill("a")
    asked = _pod("p")
    asked["status"] = {"nominatedNodeName": "a"}
    scene.filter(asked, "a")
    assert len(scene.refusing) == 0


@pytest.mark.parametrize(
    ("metadata", "percent", "stage", "message"),
    [
        pytest.param({}, 150, "admission", "percentage of 100", id="a Pod that breaks rules"),
        pytest.param(
            {}, -1, "admission", "limits[koordinator.sh/gpu]", id="one that can't be read"
        ),
        pytest.param(
            {
                "annotations": {
                    "gang.scheduling.koordinator.sh/name": "g",
                    "gang.scheduling.koordinator.sh/min-available": "2",
                }
            },
            100,
            "scheduling",
            "2 GangMembersMissing",
            id="a gang",
        ),
    ],
)
def test_a_pod_that_is_refused_whatever_there_is_has_that_in_the_ledger(
    metadata: dict[str, Any], percent: int, stage: str, message: str
) -> None:
    """With its field errors, or the one reason of every node."""
    scene = Scene()
    if "annotations" in metadata:  # of a gang that the watch has shown
        scene.live.groups.members.put("pod-p", _pod("p", percent, **metadata))
    scene.refuse(_pod("p", percent, **metadata))
    scene.refuse(_pod("p", percent, **metadata))
    [said] = scene.said
    assert said.stage == stage
    assert message in said.message


def test_what_the_ledger_said_before_a_restart_is_not_said_again() -> None:
    """The ledger is asked about Pods that nothing is remembered of, once for each."""
    scene = Scene()
    scene.fill("a")
    scene.fill("b")
    scene.history = {"pod-p": Told(number=3, reasons=frozenset({LESS}))}
    for name in ("p", "q"):
        scene.filter(_pod(name))
    scene.settle()
    assert [one.pod_uid for one in scene.said] == ["pod-q"]
    assert scene.asked == [["pod-p", "pod-q"]]


@pytest.mark.parametrize("error", [LedgerError("down"), UnknownOutcomeError("no answer")])
def test_a_refusal_that_could_not_be_recorded_is_recorded_later(error: LedgerError) -> None:
    """In the same words where it may be recorded already."""
    scene = Scene()
    scene.fill("a")
    scene.fill("b")
    scene.live.ledger.away = error
    with pytest.raises(LedgerError, match=str(error)):
        scene.refuse(_pod("p"))
    scene.live.ledger.away = None
    scene.settle()
    assert len(scene.said) == 1


def test_nothing_is_explained_while_nothing_may_be_decided() -> None:
    """What is stale would be recorded as a reason."""
    scene = Scene()
    scene.fill("a")
    scene.fill("b")
    scene.why = "ClusterViewStale: nodes"
    scene.refuse(_pod("p"))
    assert not scene.said
    scene.why = ""
    scene.settle()
    assert len(scene.said) == 1


def test_the_nodes_that_were_asked_about_are_kept_in_bits() -> None:
    """A Pod that waits costs a bit for each node."""
    numbers = np.array([5, 0, 4999], dtype=np.int64)
    packed = refusing._packed(numbers)
    assert packed.nbytes == 625


def unschedulable(name: str, **spec: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a Pod of which kube-scheduler says that no node takes it."""
    asked = _pod(name)
    asked["spec"] |= {"schedulerName": "tenure", **spec}
    words = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    asked["status"] = {"phase": "Pending", "conditions": [words]}
    return asked


def test_a_pod_that_kube_scheduler_refused_by_itself_has_its_reasons_too() -> None:
    """It asks no extender once its own filters leave no node."""
    scene = Scene()
    scene.fill("a")
    scene.live.view.pods.put("pod-p", unschedulable("p"))
    scene.refusing.put("pod-p", unschedulable("p"))
    scene.settle()
    [said] = scene.said
    assert said.message == f"0/2 nodes are available: 1 {LESS}, 1 {NOT_ADVERTISED}."


def test_a_later_verdict_of_kube_scheduler_is_explained_too() -> None:
    """A pool came meanwhile: what was said of the cluster without it is true no more."""
    scene = Scene()
    scene.fill("a")
    scene.live.view.pods.put("pod-p", unschedulable("p"))
    for full in ("", "b"):
        if full:
            scene.fill(full)
        scene.refusing.put("pod-p", unschedulable("p"))
        scene.settle()
        scene.live.clock.now += AGAIN_SECONDS
    assert [one.message for one in scene.said] == [
        f"0/2 nodes are available: 1 {LESS}, 1 {NOT_ADVERTISED}.",
        f"0/2 nodes are available: 2 {LESS}.",
    ]


def test_what_the_filter_said_counts_before_kube_schedulers_verdict_on_it() -> None:
    """The verdict follows every filter, and says nothing of the nodes that were asked about."""
    scene = Scene()
    scene.fill("a")
    scene.fill("b")
    scene.refuse(unschedulable("p"))
    scene.refusing.put("pod-p", unschedulable("p"))
    assert len(scene.refusing) == 0


@pytest.mark.parametrize("spec", [{"schedulerName": "default-scheduler"}, {"nodeName": "a"}])
def test_pods_of_others_and_bound_ones_are_none_of_it(spec: dict[str, Any]) -> None:
    """Whatever their conditions say."""
    scene = Scene()
    scene.refusing.put("pod-p", unschedulable("p", **spec))
    assert len(scene.refusing) == 0


def stages(scene: Scene) -> list[str]:
    """What the ledger has of refusals, by their stage."""
    return [one.stage for one in scene.said]


def test_a_pod_that_is_deleted_while_it_waits_waits_no_more() -> None:
    """Once, and whatever kube-scheduler asks about it afterwards."""
    scene = Scene()
    scene.fill("a")
    scene.fill("b")
    scene.refuse(_pod("p"))
    scene.history = {"pod-p": Told(number=1, waiting=("default", "p"))}

    scene.refusing.drop("pod-p")
    scene.settle()
    scene.history = {}
    scene.refuse(_pod("p"))
    scene.settle()

    assert stages(scene) == ["scheduling", "gone"]
    assert (scene.said[-1].namespace, scene.said[-1].pod_name) == ("default", "p")


def test_deleted_pods_are_forgotten_where_nothing_is_recorded_either() -> None:
    """A standby sees them all, for as long as it stands by."""
    scene = Scene()
    scene.why = "Standby"
    for number in range(100):
        scene.refusing.drop(f"pod-{number}")
        scene.settle()
        scene.live.clock.now += FILTERED_SECONDS

    assert len(scene.refusing._deleted) == 1


def test_a_deleted_pod_whose_refusal_has_no_answer_is_forgotten() -> None:
    """Whether it was recorded the ledger is asked, as for whoever was refused."""
    scene = Scene()
    scene.fill("a")
    scene.fill("b")
    scene.live.ledger.away = UnknownOutcomeError("no answer")
    scene.filter(_pod("p"))
    with pytest.raises(UnknownOutcomeError):
        scene.settle()
    assert scene.refusing._records.unsure
    scene.refusing.drop("pod-p")
    assert not scene.refusing._records.unsure
    scene.live.ledger.away = None
    scene.history = {"pod-p": Told(number=1, waiting=("default", "p"))}
    scene.settle()
    assert stages(scene) == ["gone"]


def test_a_pod_that_had_a_place_or_was_never_refused_is_no_wait_that_ends() -> None:
    """Its last word in the ledger is the reservation, or there is none."""
    scene = Scene()
    scene.fill("a")
    scene.fill("b")
    scene.refuse(_pod("p"))
    scene.history = {"pod-p": Told(number=1)}

    for uid in ("pod-p", "pod-q"):
        scene.refusing.drop(uid)
    scene.settle()

    assert stages(scene) == ["scheduling"]


def test_a_start_ends_the_waits_of_pods_that_are_gone_by_then() -> None:
    """Who is there still waits on, until the watch says that it is gone."""
    scene = Scene()
    scene.live.view.pods.put("pod-here", _pod("here"))
    scene.live.settle()
    scene.history = {
        f"pod-{name}": Told(number=3, waiting=("default", name)) for name in ("here", "gone")
    }

    scene.settle()
    assert [one.pod_name for one in scene.said] == ["gone"]
    del scene.history["pod-gone"]
    scene.refusing.drop("pod-here")
    scene.settle()

    assert [one.pod_name for one in scene.said] == ["gone", "here"]
