from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from certs.ports import ApiError
from ledger.domain.errors import LedgerError, UnknownOutcomeError
from ledger.domain.log.events import (
    NodeCleared,
    NodeInventoried,
    NodeLost,
    PodBound,
    PodObserved,
    PodReleased,
)
from ledger.domain.log.state import NodeState
from ledger.domain.request.requests import PodRequest
from ledger.store.writing.commands import Command, Outcome, Recorded
from scheduler.decide.filter.filtering import Filtered
from scheduler.decide.nodes.arrays import IntArray
from scheduler.decide.outcome import Placement
from scheduler.service.agents import SeenPod
from scheduler.service.announcing import NODES_OF_KIND, Announcing
from scheduler.service.binding import Binder
from scheduler.service.ending import NodeWord
from scheduler.service.releasing import TOGETHER, Releasing, gone_by
from scheduler.service.telling import Telling
from scheduler.service.view import STRANGERS
from tests.support import fake_api, objects
from tests.support.binding import Tasks, Unsigned, at_once
from tests.support.fake_api import ApiClient, ApiServer
from tests.support.live import Live, MemoryLedger, types
from tests.support.reachable import texts_in

NODE = "/api/v1/nodes/a"
NAMESPACE = "/api/v1/namespaces/ml"
RELEASED_AT = "tenure.sh/released-at"
HOLDING = "tenure.sh/holding"


class Scene:
    """A node `a` with two cards, and the loop over its ledger and API server."""

    def __init__(self, ledger: MemoryLedger | None = None) -> None:
        self.live = Live(ledger)
        self.server = ApiServer()
        self.fates: deque[str | int] = deque()
        self.why_not = ""
        self.planned: dict[str, Placement] = {}
        self.tasks = Tasks()
        self.why_evicted: Callable[[str], str] = lambda _: ""
        begun = self.live.ledger.beginning()
        books = self.live.books(begun)
        self.api = ApiClient(
            self.server,
            self.live.clock.sleep,
            fate=lambda _: self.fates.popleft() if self.fates else fake_api.ANSWERED,
        )
        binder = Binder(
            recorder=self.live.ledger,
            api=self.api,
            clock=self.live.clock,
            books=books,
            proofs=Unsigned(),
            telling=Telling(api=self.api, clock=self.live.clock, reporter="scheduler/test"),
            actor="scheduler/test",
            start=self.tasks.start,
            wakeups=self.live.wakeups,
            ready=at_once,
            is_gone=gone_by(self.live.view, self.word),
            is_awaited=lambda _uid: False,
        )
        self.releasing = Releasing(
            self.live.view,
            books,
            binder,
            begun,
            why_not=lambda: self.why_not,
            attempts=self.live.ledger.attempts,
            word=self.word,
            seen=self.seen,
            why_deleted=lambda uid: self.why_evicted(uid),  # noqa: PLW0108 - another later
        )
        self.announcing = Announcing(
            self.live.view,
            self.api,
            self.live.clock,
            why_not=lambda: self.why_not,
            planned=lambda request: self.planned.get(request.uid),
        )
        self.add_node("a", 2)
        self.live.settle()

    def add_node(self, name: str, gpus: int) -> None:
        """Let API server and watch have a node."""
        self.live.add_node(name, gpus)
        node = objects.node(name) | {"metadata": {"name": name, "uid": f"uid-{name}"}}
        self.server.put(f"/api/v1/nodes/{name}", node)

    def word(self, state: NodeState) -> NodeWord:
        """Return what a node says: nothing yet."""
        return NodeWord(has_agent=state.by_agent)

    def seen(self, _node_uid: str) -> Mapping[str, SeenPod]:
        """Return what an agent sees: nothing."""
        return {}

    def run(self, name: str, percent: int = 100, **metadata: Any) -> dict[str, Any]:  # noqa: ANN401
        """Let a Pod be bound to the node, by whomever."""
        pod = asking(name, percent, **metadata)
        pod["spec"]["nodeName"] = "a"
        self.put(pod)
        return pod

    def put(self, pod: dict[str, Any]) -> None:
        """Let the API server have a Pod, and the watch tell of it."""
        stored = self.server.put(fake_api.path_of(pod), pod)
        self.live.view.pods.put(pod["metadata"]["uid"], stored)

    def end(self, pod: dict[str, Any]) -> None:
        """Let a Pod come to its end."""
        self.put({**pod, "status": {"phase": "Succeeded"}})

    def delete(self, pod: dict[str, Any]) -> None:
        """Let a Pod's object go, and the watch tell of it."""
        self.server.delete(fake_api.path_of(pod))
        self.live.view.pods.drop(pod["metadata"]["uid"])

    def bind(self, name: str) -> dict[str, Any]:
        """Reserve for a Pod, and let it be bound."""
        event = self.live.reserve(self.live.placement(asking(name), "a"))
        self.live.record(PodBound(pod_uid=event.pod_uid, attempt=1, node_uid="uid-a"))
        return self.run(name)

    def settle(self) -> None:
        """Do what is due for the ledger, and let what that began end."""

        async def settling() -> None:
            await self.releasing.settle()
            await self.tasks.all_done()

        asyncio.run(settling())

    def tell(self) -> None:
        """Do what is due for the cluster."""
        asyncio.run(self.announcing.tell())

    @property
    def released(self) -> list[tuple[str, str]]:
        """Who was released, and why."""
        log = self.live.ledger.log
        return [(one.pod_uid, one.reason) for one in log if isinstance(one, PodReleased)]

    @property
    def woken(self) -> str | None:
        """What the Node says of the last release."""
        metadata = self.server.objects[NODE]["metadata"]
        said: str | None = metadata.get("annotations", {}).get(RELEASED_AT)
        return said


def asking(name: str, percent: int = 100, **metadata: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a Pod that asks for a part of a card."""
    amounts = {"koordinator.sh/gpu": percent}
    pod = objects.pod(objects.container(limits=amounts), name=name, uid=f"pod-{name}")
    pod["metadata"] |= metadata
    return pod


def waiting(name: str, percent: int = 100, *, scheduler: str = "tenure") -> dict[str, Any]:
    """Return such a Pod that its scheduler has to place."""
    pod = asking(name, percent)
    pod["spec"]["schedulerName"] = scheduler
    return pod


def test_a_pod_that_has_ended_is_released_once_and_its_room_is_there() -> None:
    """Whatever else changes later: its own end is recorded, and nobody else's."""
    scene = Scene()
    pods = [scene.bind("p"), scene.bind("q")]
    scene.settle()
    assert (scene.released, scene.live.passing(asking("r"), "a")) == ([], [])
    scene.end(pods[0])
    scene.settle()
    assert scene.released == [("pod-p", "completed")]
    assert scene.live.passing(asking("r"), "a") == ["a"]
    scene.delete(pods[0])
    scene.settle()
    assert scene.released == [("pod-p", "completed")]


def test_a_node_that_changed_is_looked_at_before_those_whose_turn_it_is() -> None:
    """In a large cluster a Pod that waits need not wait for the round."""
    scene = Scene()
    for number in range(2 * TOGETHER):
        scene.live.add_node(f"n{number}", 1)
    scene.live.settle()
    for _ in range(3):
        scene.settle()
    scene.live.clock.now += 31
    scene.settle()
    scene.end(scene.bind("p"))
    scene.settle()
    assert scene.released == [("pod-p", "completed")]


def test_nothing_is_released_while_the_view_is_behind() -> None:
    """What a list that is not complete does not have may run."""
    scene = Scene()
    scene.delete(scene.bind("p"))
    scene.why_not = "ClusterViewStale: pods"
    scene.settle()
    assert scene.released == []
    scene.why_not = ""
    scene.settle()
    assert scene.released == [("pod-p", "deleted")]


def test_a_pod_that_no_watch_told_of_is_gone_only_if_the_api_says_so() -> None:
    """kube-scheduler may hear of a Pod, and have it bound, before we do."""
    scene = Scene()
    pod = scene.bind("p")
    scene.live.view.pods = type(scene.live.view.pods)(
        frozenset(), scene.live.wakeups
    )  # our watch is late
    scene.settle()
    assert scene.released == []
    assert ("read", fake_api.path_of(pod)) in scene.api.calls
    scene.server.delete(fake_api.path_of(pod))
    scene.settle()
    assert scene.released == [("pod-p", "deleted")]


def test_a_pod_re_created_under_its_name_holds_nothing_of_the_first_one() -> None:
    """Keyed by UID, and the first is gone whatever its name stands for now."""
    scene = Scene()
    scene.bind("p")
    again = Scene(scene.live.ledger)  # it came while nobody was there to see it
    again.put(asking("p", uid="pod-p-later"))
    again.settle()
    assert again.released == [("pod-p", "deleted")]


@pytest.mark.parametrize("error", [LedgerError("down"), UnknownOutcomeError("no answer")])
def test_a_release_that_could_not_be_recorded_is_recorded_later(error: LedgerError) -> None:
    """In the same words, or the ledger would refuse a release that it may have already."""
    scene = Scene()
    pod = scene.bind("p")
    scene.end(pod)
    scene.live.ledger.away = error
    with pytest.raises(LedgerError, match=str(error)):
        scene.settle()
    scene.live.ledger.away = None
    scene.delete(pod)
    scene.settle()
    assert scene.released == [("pod-p", "completed")]


def test_what_fails_on_one_node_as_nobody_foresaw_holds_up_no_other() -> None:
    """The others that had no answer are looked at again at once, not in their turn."""
    scene = Scene()
    scene.live.add_node("b", 2)
    scene.live.settle()
    scene.settle()
    scene.delete(scene.bind("p"))
    event = scene.live.reserve(scene.live.placement(asking("q"), "b"))
    scene.live.record(PodBound(pod_uid=event.pod_uid, attempt=1, node_uid="uid-b"))
    pod = asking("q")
    pod["spec"]["nodeName"] = "b"
    scene.end(pod)

    def broken(_: str) -> str:
        raise AssertionError("unforeseen")

    scene.why_evicted = broken
    scene.live.ledger.away = LedgerError("down")
    with pytest.raises(AssertionError, match="unforeseen"):
        scene.settle()
    scene.live.ledger.away = None
    with suppress(AssertionError):
        scene.settle()
    assert scene.released == [("pod-q", "completed")]


def test_a_pod_that_was_evicted_by_us_is_released_with_that_reason() -> None:
    """The ledger says why it ended; of any other that is gone it says that it was deleted."""
    scene = Scene()
    scene.why_evicted = lambda uid: {"pod-p": "GangDeadlinePassed"}.get(uid, "")
    for name in ("p", "q"):
        scene.delete(scene.bind(name))
    scene.settle()
    assert sorted(scene.released) == [("pod-p", "GangDeadlinePassed"), ("pod-q", "deleted")]


def test_a_release_of_which_the_feed_tells_first_is_not_remembered() -> None:
    """Our own command got no answer, and nobody asks for it again."""
    scene = Scene()
    pod = scene.bind("p")
    scene.end(pod)
    scene.live.ledger.away = UnknownOutcomeError("no answer")
    with pytest.raises(LedgerError, match="no answer"):
        scene.settle()
    kept = {"releasing": scene.releasing}
    assert "release:pod-p:1" in {text for _, text in texts_in(kept)}
    [holding] = scene.live.view.holdings("uid-a").values()
    ended = PodReleased(
        pod_uid="pod-p", attempt=holding.attempt, node_uid="uid-a", reason="completed"
    )
    scene.live.record(ended)
    assert "release:pod-p:1" not in {text for _, text in texts_in(kept)}


def test_a_refused_release_is_named_and_tried_again_once_in_a_while() -> None:
    """It is no reason to stop releasing others, nor to ask without a pause."""
    scene = Scene()
    scene.end(scene.bind("p"))
    scene.live.ledger.refuses["uid-a"] = "another writer knows better"
    scene.settle()
    assert scene.releasing.faults == {"pod-p": "another writer knows better"}
    scene.live.ledger.refuses.clear()
    scene.settle()
    assert scene.released == []
    scene.live.clock.now += 31
    scene.settle()
    assert (len(scene.released), scene.releasing.faults) == (1, {})


GIVEN = {
    "scheduling.koordinator.sh/device-allocated": (
        '{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"100",'
        '"koordinator.sh/gpu-memory-ratio":"100"}}]}'
    )
}


def test_a_pod_bound_before_tenure_came_is_adopted_and_its_card_is_not_given_out() -> None:
    """The node is closed until then, and open for what is left afterwards."""
    scene = Scene()
    pod = scene.run("s", annotations=GIVEN)
    assert scene.live.view.directory.closed("a") == STRANGERS
    scene.settle()
    [event] = [one for one in scene.live.ledger.log if isinstance(one, PodObserved)]
    assert (event.pod_uid, [share.minor for share in event.shares]) == ("pod-s", [1])
    assert event.request
    assert scene.live.passing(asking("p"), "a") == ["a"]
    assert scene.live.passing(asking("p", 200), "a") == []
    scene.settle()
    assert types(scene.live.ledger.log).count("pod.observed") == 1
    scene.end(pod)
    scene.settle()
    assert scene.released == [("pod-s", "completed")]
    assert scene.live.passing(asking("p", 200), "a") == ["a"]


@pytest.mark.parametrize(
    "resource", ["gpu.intel.com/i915", "nvidia.com/mig-1g.5gb", "volcano.sh/vgpu-number"]
)
def test_a_pod_with_cards_of_others_is_adopted_and_released(resource: str) -> None:
    """What its node offers of them would look free; no card of ours is closed by it."""
    scene = Scene()
    pod = asking("s")
    pod["spec"]["containers"] = [objects.container(limits={resource: 1})]
    pod["spec"]["nodeName"] = "a"
    scene.put(pod)
    scene.settle()

    [event] = [one for one in scene.live.ledger.log if isinstance(one, PodObserved)]
    assert (event.pod_uid, event.shares, event.unknown_types) == ("pod-s", (), ())
    assert event.snapshot.original == {f"main.{resource}": "1"}
    assert scene.live.passing(asking("p", 200), "a") == ["a"]
    scene.end(pod)
    scene.settle()
    assert scene.released == [("pod-s", "completed")]


def test_a_static_pod_whose_mirror_somebody_deleted_keeps_its_card() -> None:
    """Under the mirror's old UID until the new one is adopted, and some time beyond."""
    scene = Scene()
    words = GIVEN | {"kubernetes.io/config.mirror": "0123456789abcdef"}
    pod = scene.run("s", annotations=words)
    scene.settle()
    scene.delete(pod)
    scene.settle()
    assert scene.released == []
    assert scene.releasing.waiting == {"a": {"pod-s/1": scene.live.clock.now}}
    assert scene.live.passing(asking("p", 200), "a") == []
    again = scene.run("s", uid="pod-s-later", annotations=words)
    scene.settle()
    scene.live.clock.now += 121
    scene.settle()
    assert scene.released == [("pod-s", "deleted")]
    assert scene.live.passing(asking("p", 200), "a") == []
    scene.end(again)
    scene.settle()
    assert scene.live.passing(asking("p", 200), "a") == ["a"]


def test_a_pod_that_hami_gave_cards_holds_them_before_it_is_bound() -> None:
    """On the node that HAMi has named last: a card that it has promised is nobody else's."""
    scene = Scene()
    scene.live.add_node("b", 2)
    scene.live.settle()
    pod = objects.pod(
        objects.container(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000}),
        name="h",
        uid="pod-h",
        annotations={
            "hami.io/vgpu-node": "a",
            "hami.io/vgpu-devices-allocated": "GPU-a-1,NVIDIA,8000,0:;",
        },
        schedulerName="hami-scheduler",
    )
    scene.put(pod)
    assert scene.live.view.directory.closed("a") == STRANGERS
    scene.settle()
    assert scene.live.passing(asking("p", 200), "a", "b") == ["b"]
    pod["metadata"]["annotations"] = {
        "hami.io/vgpu-node": "b",
        "hami.io/vgpu-devices-allocated": "GPU-b-0,NVIDIA,8000,0:;",
    }
    scene.put(pod)
    scene.settle()
    scene.live.clock.now += 31
    scene.settle()
    assert scene.released == [("pod-h", "moved")]
    assert scene.live.passing(asking("p", 200), "a", "b") == ["a"]


def test_a_pod_of_which_nobody_says_what_it_holds_closes_its_node_for_the_type() -> None:
    """A card that can't be named is any of them."""
    scene = Scene()
    scene.run("s")
    scene.settle()
    [event] = [one for one in scene.live.ledger.log if isinstance(one, PodObserved)]
    assert (event.shares, event.unknown_types) == ((), ("gpu",))
    assert scene.live.passing(asking("p"), "a") == []


def test_a_pod_that_cannot_be_read_keeps_its_node_closed() -> None:
    """With the reason at hand."""
    scene = Scene()
    scene.run("s", annotations={"scheduling.koordinator.sh/device-allocated": "{"})
    scene.settle()
    assert "device-allocated" in scene.releasing.faults["pod-s"]
    assert scene.live.view.directory.closed("a") == STRANGERS


def test_who_goes_while_another_one_is_read_is_not_adopted() -> None:
    """The watch tells of it between two Pods of one node, and the others are adopted."""
    scene = Scene()
    pods = {name: scene.run(name, 50) for name in ("p", "q", "r")}

    def meanwhile(_: str) -> str:
        if "pod-q" in scene.live.view.pods.seen:
            scene.delete(pods["q"])
        return fake_api.ANSWERED

    scene.api.fate = meanwhile
    scene.settle()
    observed = [one.pod_uid for one in scene.live.ledger.log if isinstance(one, PodObserved)]
    assert observed == ["pod-p", "pod-r"]


def test_who_has_ended_before_it_was_read_is_not_adopted() -> None:
    """What the API says when it is asked counts, not what a watch told before."""
    scene = Scene()
    pod = scene.run("s")
    ended = {**pod, "status": {"phase": "Failed"}}
    scene.server.put(fake_api.path_of(pod), ended)
    scene.settle()
    assert not any(isinstance(one, PodObserved) for one in scene.live.ledger.log)


def test_a_reservation_that_nobody_knows_to_be_bound_is_settled_at_the_start() -> None:
    """Its Pod is gone, so that it is void."""
    scene = Scene()
    scene.live.reserve(scene.live.placement(asking("p"), "a"))
    again = Scene(scene.live.ledger)
    again.settle()
    assert types(again.live.ledger.log)[-1] == "pod.voided"


def test_waiting_pods_are_woken_once_a_second_for_each_node() -> None:
    """A Node without annotations gets some; what was released meanwhile is told a second later."""
    scene = Scene()
    pods = [scene.bind("p"), scene.bind("q")]
    scene.settle()
    scene.tell()
    assert scene.woken is None
    scene.end(pods[0])
    scene.settle()
    scene.tell()
    first = scene.woken
    assert first is not None
    node = scene.server.objects[NODE]
    scene.live.view.nodes.nodes.put("uid-a", node)
    scene.end(pods[1])
    scene.settle()
    scene.tell()
    assert scene.woken == first
    scene.live.clock.now += 1
    scene.tell()
    assert scene.woken is not None
    assert scene.woken > first


def test_a_node_that_could_not_be_told_is_told_again() -> None:
    """A Pod must not wait for somebody else's end."""
    scene = Scene()
    scene.end(scene.bind("p"))
    scene.settle()
    scene.fates.append(503)
    with pytest.raises(ApiError):
        scene.tell()
    assert scene.woken is None
    scene.live.clock.now += 1
    scene.tell()
    assert scene.woken is not None


def test_what_we_write_on_a_node_is_no_change_of_it() -> None:
    """Or every release would have its node read again."""
    scene = Scene()
    scene.live.view.nodes.take_changed()
    node = scene.live.view.nodes.nodes.body("a")
    assert node is not None
    node["metadata"]["annotations"] = {"other": "x"}
    scene.live.view.nodes.nodes.put("uid-a", node)
    assert scene.live.view.nodes.take_changed() == ["a"]
    node["metadata"]["annotations"] = {"other": "x", RELEASED_AT: "2026-01-05T14:05:09.000000Z"}
    scene.live.view.nodes.nodes.put("uid-a", node)
    assert scene.live.view.nodes.take_changed() == []


def test_a_changed_node_that_counts_wakes_pods_that_wait() -> None:
    """kube-scheduler may ask between the change and its record; nothing later calls it again."""
    scene, woken = Scene(), list[str]()
    scene.live.wakeups.room_freed.subscribe(woken.append)
    scene.live.add_node("a", 3)
    scene.live.settle()
    assert woken == []  # no Pod waits
    scene.put(asking("p"))
    scene.live.view.nodes.note_one("a")
    scene.live.settle()
    assert woken == []  # nothing is new
    scene.live.add_node("a", 4)
    scene.live.settle()
    assert woken == ["a"]


def test_pods_are_woken_where_a_lost_machine_was_cleared() -> None:
    """On every Node that its machine has: the cards are given through that one."""
    scene, woken = Scene(), list[str]()
    scene.bind("p")
    for name in ("b", "c"):
        scene.add_node(name, 1)
    scene.live.settle()
    for name, machine in (("a", "disk"), ("b", "disk"), ("c", "another")):
        told = NodeInventoried(
            node_uid=f"uid-{name}", node_name=name, system_uuid="board", machine_id=machine
        )
        scene.live.record(told)
    scene.live.record(NodeLost(node_uid="uid-a", node_name="a", reason="deleted"))
    scene.live.wakeups.room_freed.subscribe(woken.append)
    cleared = NodeCleared(node_uid="uid-a", node_name="a", evidence="act", reason="looked")
    scene.live.record(cleared)
    assert sorted(woken) == ["a", "b"]


def test_a_new_leader_wakes_who_waits_already_where_a_node_has_room() -> None:
    """The room came free before anybody here knew of it; the look is made once."""
    scene = Scene()
    scene.add_node("full", 0)
    scene.live.settle()
    scene.put(waiting("p"))
    scene.why_not = "not known yet"
    scene.tell()
    assert scene.woken is None
    scene.why_not = ""
    scene.tell()
    first = scene.woken
    assert first is not None
    full = scene.server.objects["/api/v1/nodes/full"]["metadata"]
    assert RELEASED_AT not in full.get("annotations", {})
    scene.live.clock.now += 60
    scene.put(waiting("q"))
    scene.tell()
    assert scene.woken == first


@pytest.mark.parametrize(
    "pod",
    [waiting("p", 300), waiting("p", scheduler="default-scheduler")],
    ids=["no node has room", "another scheduler's"],
)
def test_a_new_leader_wakes_nobody_whom_no_node_takes(pod: dict[str, Any]) -> None:
    """Nor anybody that is not asked about here."""
    scene = Scene()
    scene.put(pod)
    scene.tell()
    assert scene.woken is None


def test_a_new_leader_wakes_a_member_on_the_node_that_its_plan_keeps() -> None:
    """Its place is taken, so that a look for room would find none."""
    scene = Scene()
    pod = waiting("p", 200)
    placement = scene.live.placement(pod, "a")
    scene.planned["pod-p"] = placement
    assert scene.live.view.engine.place(placement, -1) is not None
    scene.put(pod)
    scene.tell()
    assert scene.woken is not None


def test_a_new_leader_looks_once_for_each_kind_of_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """For so many kinds and nodes of each as the bounds say."""
    scene, looks = Scene(), list[str]()
    for number in range(NODES_OF_KIND + 3):
        scene.add_node(f"n{number}", 1)
    scene.live.settle()
    for number in range(3):
        scene.put(waiting(f"p{number}"))
    engine = scene.live.view.engine
    judge = engine.filter

    def look(request: PodRequest, nodes: Sequence[int] | IntArray) -> Filtered:
        looks.append(request.uid)
        return judge(request, nodes)

    monkeypatch.setattr(engine, "filter", look)
    scene.tell()
    assert looks == ["pod-p0"]
    woken = [
        path
        for path, stored in scene.server.objects.items()
        if RELEASED_AT in (stored["metadata"].get("annotations") or {})
    ]
    assert len(woken) == NODES_OF_KIND
    other = Scene()
    monkeypatch.setattr("scheduler.service.announcing.KINDS_MAX", 1)
    monkeypatch.setattr(other.live.view.engine, "filter", look)
    looks.clear()
    other.put(waiting("p", 100))
    other.put(waiting("q", 50))
    other.tell()
    assert looks == ["pod-p"]


def test_a_namespace_is_labelled_while_a_pod_of_it_holds_something() -> None:
    """And only then; one that is gone is nobody's."""
    scene = Scene()
    namespace = {"metadata": {"name": "ml", "uid": "ns-ml", "labels": {"a": "b"}}}

    def labels() -> dict[str, str]:
        stored = scene.server.objects[NAMESPACE]
        scene.announcing.namespaces.put("ns-ml", stored)
        found: dict[str, str] = stored["metadata"]["labels"]
        return found

    scene.server.put(NAMESPACE, namespace)
    assert HOLDING not in labels()
    pod = scene.bind("p")
    scene.tell()
    assert labels()[HOLDING] == "true"
    scene.end(pod)
    scene.settle()
    scene.live.clock.now += 1
    scene.tell()
    assert HOLDING not in labels()
    scene.announcing.namespaces.drop("ns-ml")
    assert scene.announcing.namespaces.labelled == {}


def silent(scene: Scene) -> list[str]:
    """Let the node have an agent that says nothing of the Pods that end, until told otherwise."""
    gone: list[str] = []

    def word(_: NodeState) -> NodeWord:
        return NodeWord(has_agent=True, agent_ready=True, gone=frozenset(gone))

    scene.releasing._word = word  # as it is handed in
    return gone


def test_a_release_waits_for_the_nodes_word_and_its_age_is_seen() -> None:
    """Hold early, release late."""
    scene = Scene()
    gone = silent(scene)
    scene.end(scene.bind("p"))
    scene.settle()
    scene.live.clock.now += 7
    scene.releasing.look_at("a")
    scene.settle()
    assert (scene.released, scene.releasing.oldest_seconds()) == ([], 7)
    gone.append("pod-p")
    scene.releasing.look_at("a")
    scene.settle()
    assert (scene.released, scene.releasing.oldest_seconds()) == ([("pod-p", "completed")], 0)


def test_somebody_may_release_by_name_what_waits_for_a_silent_node() -> None:
    """In the actor's name, with the reason; what runs is nobody's to give."""
    scene = Scene()
    silent(scene)
    ended, _ = scene.bind("p"), scene.bind("q")
    scene.end(ended)
    scene.settle()

    def force(name: str, uid: str = "", *, dry_run: bool = False) -> list[str]:
        reason, actor = "node is burnt", "user/anna"
        act = scene.releasing.force("ml", name, uid, reason=reason, actor=actor, dry_run=dry_run)
        return asyncio.run(act)

    assert force("q") == force("q", dry_run=True) == []
    assert force("p", dry_run=True) == ["pod-p"]
    assert scene.released == []
    assert force("p", "pod-other") == []
    assert force("p", "pod-p") == ["pod-p"]
    assert scene.released == [("pod-p", "forced: node is burnt")]
    assert scene.live.ledger.actors[-1] == "user/anna"
    scene.settle()
    assert force("p") == []
    assert scene.released == [("pod-p", "forced: node is burnt")]


def forced(scene: Scene, name: str, times: int = 1) -> list[list[str]]:
    """Let somebody release a Pod so often at once."""

    async def forcing() -> list[list[str]]:
        orders = [
            scene.releasing.force("ml", name, "", reason="burnt", actor="user/anna")
            for _ in range(times)
        ]
        return await asyncio.gather(*orders)

    return asyncio.run(forcing())


def test_nobody_releases_by_name_a_pod_that_runs_by_the_api() -> None:
    """Also where no watch has told of it, or its node has its mirror made anew in a moment."""
    scene = Scene()
    silent(scene)
    pod = scene.bind("p")
    scene.live.view.pods.drop("pod-p")  # a list that is behind
    scene.settle()
    assert list(scene.releasing.waiting) == ["a"]
    assert forced(scene, "p") == [[]]
    scene.delete(pod)
    assert forced(scene, "p") == [["pod-p"]]

    scene = Scene()
    words = GIVEN | {"kubernetes.io/config.mirror": "0123456789abcdef"}
    pod = scene.run("s", annotations=words)
    scene.settle()
    scene.delete(pod)
    scene.settle()
    assert forced(scene, "s") == [[]]
    silent(scene)
    scene.live.clock.now += 121
    assert forced(scene, "s") == [["pod-s"]]


class Repeating(MemoryLedger):
    """A ledger that answers what it has recorded as it did, as the real one does."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = asyncio.Lock()

    async def record(self, command: Command) -> Outcome:
        """Record a command once."""
        async with self.turn:
            if command.events[-1].idempotency_key in self.keys:
                return Recorded(first=len(self.log), last=len(self.log))
            return await MemoryLedger.record(self, command)


def test_two_who_order_one_release_at_once_are_both_answered() -> None:
    """It is recorded once."""
    scene = Scene(Repeating())
    silent(scene)
    scene.end(scene.bind("p"))
    scene.settle()
    assert forced(scene, "p", times=2) == [["pod-p"], ["pod-p"]]
    assert scene.released == [("pod-p", "forced: burnt")]


def test_a_reservation_of_a_pod_that_is_gone_is_voided_on_the_nodes_word_alone() -> None:
    """It may have been bound: containers end after their Pod's object."""
    before = Scene()
    before.live.reserve(before.live.placement(asking("p"), "a"))
    scene = Scene(before.live.ledger)  # it came and went while nobody was there to see it
    gone = silent(scene)
    scene.settle()
    assert types(scene.live.ledger.log).count("pod.voided") == 0
    assert list(scene.releasing.waiting) == ["a"]
    gone.append("pod-p")
    scene.releasing.look_at("a")
    scene.settle()
    assert types(scene.live.ledger.log).count("pod.voided") == 1
