"""Every message of the extender's contract (C.3), as bytes, and every error (C.4)."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from certs.ports import Object
from ledger.domain.errors import InputError
from ledger.domain.request.requests import PodRequest
from scheduler.decide.bounded import check_values
from scheduler.decide.extender import LARGE_BYTES, WHOLE_NESTED_MAX, WHOLE_VALUES_MAX
from scheduler.decide.outcome import Placement
from scheduler.service.answering import Extender, NotNowError
from scheduler.service.holds import Holds
from scheduler.service.http import Answered, extender_calls
from scheduler.service.metrics import Metrics
from scheduler.service.ports import BindCall
from scheduler.service.preempting import VICTIMS_MAX, read_victims
from tenure.serving.bodies import TOO_MANY
from tests.support.extending import NoRefusals, preempting
from tests.support.live import Live
from tests.support.objects import Json, container, pod

_asked: Final = itertools.count()
STALE = "ClusterViewStale: nodes"


@dataclass(slots=True)
class Told:
    """Takes binds and soft holds, and remembers them."""

    error: str = ""
    calls: list[BindCall] = field(default_factory=list)
    held: list[str] = field(default_factory=list)

    async def bind(self, call: BindCall) -> str:
        """Answer as told."""
        self.calls.append(call)
        return self.error

    def asked_again(self, pod_uid: str) -> None:
        """Note it."""
        self.held.append(f"-{pod_uid}")

    def expected(self, placement: Placement, pod: Object, decided_at: int = -1) -> None:
        """Note it, with the Pod that it is for."""
        assert pod["metadata"]["uid"] == placement.request.uid
        assert decided_at >= 0, "a filter without a group says when it was decided"
        self.held.append(f"{placement.request.uid}@{placement.node_name}")

    def node_of(self, pod_uid: str) -> str:  # noqa: ARG002
        """Return none."""
        return ""

    def promise(self, request: PodRequest, node_name: str, seconds: float = 0) -> bool:  # noqa: ARG002
        """Note it, with the Pod that it is for."""
        self.held.append(f"{request.uid}@{node_name}, promised")
        return True


class Scene:
    """Two nodes, one with a card that is half held, and an extender over them."""

    def __init__(self) -> None:
        self.live = Live()
        for name in ("a", "b"):
            self.live.add_node(name, 1)
        self.live.settle()
        self.live.reserve(self.live.placement(_pod("h", percent=50), "a"))
        self.told = Told()
        self.why = ""
        self.extender = Extender(
            self.live.view,
            self.told,
            why_not=lambda: self.why,
            groups=self.live.groups,
            holds=self.told,
            refusals=NoRefusals(),
            preempting=preempting(self.live.view, self.told, self.live.groups, self.live.clock),
        )

    def filter(self, **message: Json) -> Json:
        """Ask, and return the answer."""
        return json.loads(self.extender.filter(json.dumps(message).encode()))

    def prioritize(self, **message: Json) -> Json:
        """Ask, and return the answer."""
        return json.loads(self.extender.prioritize(json.dumps(message).encode()))

    def preempt(self, **message: Json) -> Json:
        """Ask, and return the answer."""
        return json.loads(self.extender.preempt(json.dumps(message).encode()))

    def bind(self, **message: Json) -> Json:
        """Ask, and return the answer."""
        return json.loads(asyncio.run(self.extender.bind(json.dumps(message).encode())))


def _pod(name: str, percent: int = 100, **more: Json) -> dict[str, Any]:
    limits = {"koordinator.sh/gpu": percent}
    return pod(container(limits=limits), name=name, uid=f"pod-{name}", **more)


def test_a_filter_by_names_tells_who_passes_and_why_the_others_do_not() -> None:
    """The bytes have exactly the keys of ExtenderFilterResult."""
    answer = Scene().filter(Pod=_pod("p"), Nodes=None, NodeNames=["a", "b", "z"])
    assert answer == {
        "NodeNames": ["b"],
        "FailedNodes": {"a": "Insufficient gpu devices"},
        "FailedAndUnresolvableNodes": {"z": "NodeNotInInventory"},
        "Error": "",
    }


def test_a_filter_by_whole_nodes_gives_these_back() -> None:
    """Without nodeCacheCapable kube-scheduler reads `Nodes`."""
    items = [{"metadata": {"name": name, "labels": {"x": name}}} for name in ("a", "b")]
    answer = Scene().filter(Pod=_pod("p"), Nodes={"items": items}, NodeNames=None)
    assert answer["Nodes"] == {"items": [items[1]]}
    assert answer["FailedNodes"] == {"a": "Insufficient gpu devices"}


def test_keys_come_in_any_letter_case_and_go_in_theirs() -> None:
    """Go reads keys in any case; others write them as they like."""
    scene = Scene()
    answer = scene.filter(pod=_pod("p"), nodenames=["b"])
    assert set(answer) >= {"NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    scene.bind(podname="p", podnamespace="ml", poduid="pod-p", node="b")
    assert scene.told.calls == [
        BindCall(namespace="ml", pod_name="p", pod_uid="pod-p", node_name="b")
    ]


def test_a_prioritize_scores_by_rank_what_the_filter_before_found() -> None:
    """HostPriorityList is a bare array; the best has 1000 and no two are alike."""
    scene = Scene()
    names = scene.filter(Pod=_pod("p", 25), NodeNames=["a", "b"])["NodeNames"]
    scores = scene.prioritize(Pod=_pod("p", 25), NodeNames=names)
    assert scores == [{"Host": "a", "Score": 1000}, {"Host": "b", "Score": 999}]


def test_a_prioritize_without_its_filter_is_answered_all_the_same() -> None:
    """Another replica may have filtered; a plugin between may have taken nodes out."""
    scene = Scene()
    assert scene.prioritize(Pod=_pod("p", 25), NodeNames=["b"]) == [{"Host": "b", "Score": 1000}]
    scene.filter(Pod=_pod("p", 25), NodeNames=["a", "b"])
    assert scene.prioritize(Pod=_pod("p", 25), NodeNames=["b"]) == [{"Host": "b", "Score": 1000}]


def test_what_is_expected_to_win_is_held_after_prioritize_or_after_a_filter_with_one_node() -> None:
    """With one node left kube-scheduler does not ask for priorities."""
    scene = Scene()
    scene.filter(Pod=_pod("p"), NodeNames=["a", "b"])
    assert scene.told.held == ["-pod-p", "pod-p@b"]
    scene.filter(Pod=_pod("q", 25), NodeNames=["a", "b"])
    assert scene.told.held[2:] == ["-pod-q"]
    scene.prioritize(Pod=_pod("q", 25), NodeNames=["a", "b"])
    assert scene.told.held[3:] == ["pod-q@a"]


def test_a_pod_with_a_nominated_node_is_judged_on_that_node_alone() -> None:
    """kube-scheduler asks about it first, and skips prioritize if it passes."""
    scene = Scene()
    nominated = {**_pod("p"), "status": {"nominatedNodeName": "b"}}
    assert scene.filter(Pod=nominated, NodeNames=["b"])["NodeNames"] == ["b"]
    assert scene.told.held == ["-pod-p", "pod-p@b"]


@pytest.mark.parametrize(
    ("asks", "words"),
    [
        (_pod("p", annotations={"scheduling.koordinator.sh/device-joint-allocate": "{"}), "JSON"),
        (_pod("p", 150), "must be"),
    ],
    ids=["unreadable", "breaks a rule"],
)
def test_a_pod_that_can_not_be_honoured_fails_on_every_node_for_good(
    asks: dict[str, Any], words: str
) -> None:
    """No preemption helps, and it is only itself unschedulable."""
    answer = Scene().filter(Pod=asks, NodeNames=["a", "z"])
    assert answer["NodeNames"] == []
    assert set(answer["FailedAndUnresolvableNodes"]) == {"a", "z"}
    text = answer["FailedAndUnresolvableNodes"]["a"]
    assert words in text, text


def test_nothing_is_answered_while_the_view_is_behind() -> None:
    """Filter and bind say so in their answers, the others have no place for it."""
    scene = Scene()
    scene.why = STALE
    assert scene.filter(Pod=_pod("p"), NodeNames=["a"]) == {"Error": STALE}
    assert scene.bind(PodName="p", PodNamespace="ml", PodUID="u", Node="a") == {"Error": STALE}
    with pytest.raises(NotNowError, match="ClusterViewStale"):
        scene.prioritize(Pod=_pod("p"), NodeNames=["a"])
    with pytest.raises(NotNowError, match="ClusterViewStale"):
        scene.preempt(Pod=_pod("p"), NodeNameToMetaVictims={})
    assert not scene.told.calls


@pytest.mark.parametrize(
    "word",
    [
        {"PodName": "../../nodes/n-1"},
        {"PodName": "UPPER%zz"},
        {"PodNamespace": "ml/pods"},
        {"PodUID": "u" * 64},
        {"Node": ".."},
    ],
    ids=str,
)
def test_a_bind_of_a_name_that_no_object_has_is_not_begun(word: dict[str, str]) -> None:
    """It is no call of kube-scheduler's."""
    scene = Scene()
    words = {"PodName": "p", "PodNamespace": "ml", "PodUID": "u", "Node": "a"} | word

    with pytest.raises(InputError, match=next(iter(word))):
        scene.bind(**words)


def test_a_bind_is_answered_with_what_came_of_it() -> None:
    """An empty error is success."""
    scene = Scene()
    message = {"PodName": "p", "PodNamespace": "ml", "PodUID": "u", "Node": "a"}
    assert scene.bind(**message) == {"Error": ""}
    scene.told.error = "the Pod is gone"
    assert scene.bind(**message) == {"Error": "the Pod is gone"}
    with pytest.raises(InputError, match="PodUID"):
        scene.bind(PodName="p", PodNamespace="ml", Node="a")


@pytest.mark.parametrize("body", [b"", b"[", b"[]", b"{}", b'{"Pod":1,"NodeNames":[]}'])
def test_a_call_that_can_not_be_read_is_refused(body: bytes) -> None:
    """It is answered by its status, for a body that is no 200's is not read."""
    extender = Scene().extender
    for ask in (extender.filter, extender.prioritize, extender.preempt):
        with pytest.raises(InputError):
            ask(body)
    with pytest.raises(InputError):
        asyncio.run(extender.bind(body))


def lists(count: int) -> bytes:
    """Return so many empty lists in one."""
    return b"[" + b"[]," * count + b"[]]"


TOO_MUCH = {
    "lists": b'{"Pod":%s,"NodeNames":["a"]}' % lists(WHOLE_NESTED_MAX),
    "lists beside": b'{"Pod":{},"NodeNames":["a"],"x":%s}' % lists(WHOLE_NESTED_MAX),
    "numbers": b'{"Pod":{},"NodeNames":["a"],"x":[%s1]}' % (b"1," * WHOLE_VALUES_MAX),
    "members": b'{"Pod":{},"NodeNames":["a"]%s}' % (b',"x":0' * WHOLE_VALUES_MAX),
}


@pytest.mark.parametrize("body", TOO_MUCH.values(), ids=TOO_MUCH)
@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
def test_a_question_has_bounds_wherever_it_is_large(verb: str, body: bytes) -> None:
    """It is refused before it is decoded in one go, while which nobody else is answered."""
    calls = extender_calls(Scene().extender, Metrics())

    async def ask() -> Answered:
        async def came() -> bytes:
            return body

        return await calls.answer(verb, came())

    status, _, words = asyncio.run(ask())
    assert status == 400
    assert words.startswith(b"body: too many values")


@pytest.mark.parametrize(("why", "count"), [((TOO_MANY,), 1), ((), None)])
def test_a_question_that_was_given_up_is_counted(why: tuple[str, ...], count: int | None) -> None:
    """Its call is cancelled where its bytes make room for others', and where its caller hung up."""
    metrics = Metrics()
    calls = extender_calls(Scene().extender, metrics)

    async def ask() -> None:
        asking = asyncio.ensure_future(calls.answer("filter", asyncio.Future()))
        await asyncio.sleep(0)
        asking.cancel(*why)
        await asyncio.wait({asking})

    asyncio.run(ask())
    words = {"verb": "filter", "reason": "not_now"}
    assert metrics.registry.get_sample_value("tenure_extender_broken_calls_total", words) == count


def test_whole_victims_of_the_largest_cluster_are_read() -> None:
    """On 500 nodes 11 Pods each, of as many values as a usual Pod has."""
    victim = {"metadata": {"uid": "u"}, "spec": {"tolerations": [{}] * 50}}
    nodes = {str(number): {"Pods": [victim] * 11} for number in range(500)}
    assert read_victims(json.dumps({"NodeNameToVictims": nodes}).encode())


def test_victims_have_a_bound() -> None:
    """However small each is."""
    many = {"c": {"Pods": [{"UID": ""}] * VICTIMS_MAX}}
    with pytest.raises(InputError, match="NodeNameToMetaVictims: too many"):
        Scene().preempt(Pod=_pod("p"), NodeNameToMetaVictims=many)


def test_a_large_question_is_read_outside_of_the_loops_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whole nodes of a large cluster, whose names alone are decoded; the answer has them whole."""
    threads: list[str] = []

    def checked(*words: Any) -> None:  # noqa: ANN401 - those of `check_values`
        threads.append(threading.current_thread().name)
        check_values(*words)

    monkeypatch.setattr("scheduler.decide.extender.check_values", checked)
    calls = extender_calls(Scene().extender, Metrics())
    node = {"metadata": {"name": "b", "annotations": {"x": "é" * LARGE_BYTES}}}
    body = json.dumps({"Pod": _pod("p"), "Nodes": {"items": [node]}}).encode()

    async def ask() -> list[Json]:
        async def came() -> bytes:
            return body

        return [
            json.loads((await calls.answer(verb, came())).body) for verb in ("filter", "prioritize")
        ]

    filtered, scored = asyncio.run(ask())
    assert filtered["Nodes"] == {"items": [node]}
    assert scored == [{"Host": "b", "Score": 1000}]
    assert len(threads) == 2 * 3  # the whole, its Pod, its names
    assert all(one.startswith("bodies") for one in threads)


@pytest.mark.parametrize("priority", ["x", "9" * 5_000, [1]], ids=["x", "5,000 digits", "list"])
def test_a_priority_that_is_no_number_is_refused(priority: Json) -> None:
    """Also of a Pod that was read before, at that version."""
    scene, asks = Scene(), _pod("p")
    asks["metadata"]["resourceVersion"] = "7"
    assert scene.preempt(Pod=asks, NodeNameToMetaVictims={}) == {"NodeNameToMetaVictims": {}}
    asks["spec"]["priority"] = priority

    with pytest.raises(InputError, match="priority"):
        scene.preempt(Pod=asks, NodeNameToMetaVictims={})


@pytest.mark.parametrize("name", [None, 7, True, [], {}])
def test_a_node_whose_name_is_no_text_is_refused(name: Json) -> None:
    """Also beside nodes that are not known: an answer that names it is no JSON."""
    scene = Scene()
    broken = (_pod("p"), pod(container(limits={"koordinator.sh/gpu": "x"}), uid="pod-q"))
    for asks in broken:
        for names in ([name], ["a", "z", name], [name, "a"]):
            for ask in (scene.filter, scene.prioritize):
                with pytest.raises(InputError):
                    ask(Pod=asks, NodeNames=names)


class TestPreempt:
    """Rule: GPU-sharing contract C.5, "Ours"."""

    def _scene(self) -> Scene:
        scene = Scene()
        live = scene.live
        live.add_node("c", 2)
        live.settle()
        for name, priority, percent in (("low", 1, 60), ("mid", 5, 60), ("high", 9, 30)):
            body = _pod(name, percent)
            live.reserve(live.placement(body, "c"))
            body["spec"] |= {"nodeName": "c", "priority": priority}
            live.view.pods.put(f"pod-{name}", body)
        return scene

    def _ask(self, scene: Scene, *victims: str, priority: int = 7, gpus: int = 1) -> Json:
        asks = pod(
            container(limits={"koordinator.sh/gpu": 100 * gpus}),
            name="p",
            uid=f"pod-p-{next(_asked)}",
            priority=priority,
        )
        entry = {"Pods": [{"UID": f"pod-{name}"} for name in victims], "NumPDBViolations": 2}
        answer = scene.preempt(Pod=asks, NodeNameToMetaVictims={"c": entry})
        return answer["NodeNameToMetaVictims"]

    def test_an_entry_whose_victims_suffice_is_kept(self) -> None:
        """Their cards are enough."""
        free = [
            name
            for name in ("low", "mid")
            if self._ask(self._scene(), name)
            == {"c": {"Pods": [{"UID": f"pod-{name}"}], "NumPDBViolations": 2}}
        ]
        assert free

    def test_further_victims_are_of_lower_priority_and_no_more_than_needed(self) -> None:
        """The highest stays, whatever it holds."""
        scene = self._scene()
        answer = self._ask(scene)
        assert [len(entry["Pods"]) for entry in answer.values()] == [1]
        assert "pod-high" not in json.dumps(answer)

    def test_a_node_where_nothing_helps_is_dropped(self) -> None:
        """A Pod of the lowest priority ends nobody."""
        scene = self._scene()
        assert self._ask(scene, priority=0) == {}
        assert self._ask(scene, gpus=3) == {}

    def test_whole_pods_are_victims_by_their_uids(self) -> None:
        """Without nodeCacheCapable they come whole; the answer is by UID always."""
        scene = self._scene()
        whole = {"Pods": [_pod("low"), _pod("mid")], "NumPDBViolations": 0}
        answer = scene.preempt(
            Pod=_pod("p", priority=7), NodeNameToVictims={"c": whole, "z": whole}
        )
        assert answer == {
            "NodeNameToMetaVictims": {
                "c": {
                    "Pods": [{"UID": "pod-low"}, {"UID": "pod-mid"}],
                    "NumPDBViolations": 0,
                }
            }
        }

    def test_a_pod_that_had_a_place_in_memory_has_none_while_others_would_have_to_go(self) -> None:
        """One node was left for it, and another extender refused that one."""
        scene = self._scene()
        view = scene.live.view
        holds = Holds(
            view.engine, scene.live.clock.monotonic, view.directory.number, scene.live.wakeups
        )
        extender = Extender(
            view,
            scene.told,
            why_not=str,
            groups=scene.live.groups,
            holds=holds,
            refusals=NoRefusals(),
            preempting=preempting(view, holds, scene.live.groups, scene.live.clock),
        )
        asks = _pod("p", priority=7)
        extender.filter(json.dumps({"Pod": asks, "NodeNames": ["b"]}).encode())
        assert holds.node_of("pod-p") == "b"
        entry = {"Pods": [{"UID": "pod-low"}, {"UID": "pod-mid"}]}
        body = json.dumps({"Pod": asks, "NodeNameToMetaVictims": {"c": entry}}).encode()
        assert list(json.loads(extender.preempt(body))["NodeNameToMetaVictims"]) == ["c"]
        assert len(holds) == 0

    def test_asking_changes_nothing(self) -> None:
        """What was lifted for the question is held again."""
        scene = self._scene()
        before = scene.filter(Pod=_pod("q"), NodeNames=["a", "b", "c"])
        self._ask(scene)
        assert scene.filter(Pod=_pod("q"), NodeNames=["a", "b", "c"]) == before

    def _budget(self, scene: Scene, allowed: int, *selected: str, **status: Json) -> None:
        """Let a budget say how many of the Pods with these values of `app` may go."""
        app = {"key": "app", "operator": "In", "values": list(selected)}
        scene.live.view.disruptions.put(
            f"pdb-{'-'.join(selected)}",
            {
                "metadata": {"name": "pdb", "namespace": "ml"},
                "spec": {"selector": {"matchExpressions": [app]}},
                "status": {"disruptionsAllowed": allowed, **status},
            },
        )

    def _labelled(self) -> Scene:
        """Return a node of three cards, each held by a Pod with `app` as it is called."""
        scene = Scene()
        live = scene.live
        live.add_node("c", 3)
        live.settle()
        for name, priority in (("low", 1), ("mid", 5), ("top", 6)):
            body = _pod(name, 100)
            live.reserve(live.placement(body, "c"))
            body["spec"] |= {"nodeName": "c", "priority": priority}
            body["metadata"]["labels"] = {"app": name}
            live.view.pods.put(f"pod-{name}", body)
        return scene

    def _victims(self, answer: Json) -> tuple[list[str], int]:
        [entry] = answer.values()
        pods = [victim["UID"].removeprefix("pod-") for victim in entry["Pods"]]
        return pods, entry["NumPDBViolations"] - 2  # what came with the question

    def test_who_breaks_no_budget_goes_before_who_has_a_lower_priority(self) -> None:
        """As kube-scheduler gives back first whose end would break one."""
        scene = self._labelled()
        assert self._victims(self._ask(scene)) == (["low"], 0)
        self._budget(scene, 0, "low")
        assert self._victims(self._ask(scene)) == (["mid"], 0)
        self._budget(scene, 0, "mid", "top")
        assert self._victims(self._ask(scene)) == (["low"], 1)
        self._budget(scene, 1, "mid", "top")
        assert self._victims(self._ask(scene)) == (["mid"], 0)

    def test_budgets_are_spent_by_the_victims_that_came_and_by_each_further_one(self) -> None:
        """What goes beyond is added to what kube-scheduler counted; the highest comes first."""
        scene = self._labelled()
        self._budget(scene, 1, "low", "mid", "top")
        assert self._victims(self._ask(scene, "low", gpus=2)) == (["mid", "low"], 1)
        assert self._victims(self._ask(scene, gpus=2)) == (["mid", "low"], 1)
        assert self._victims(self._ask(scene, gpus=3)) == (["top", "mid", "low"], 2)
        assert self._victims(self._ask(scene, "top", "mid", "low", gpus=3))[1] == 0

    def test_whose_going_was_counted_already_spends_nothing(self) -> None:
        """The API server has told so in `disruptedPods`."""
        scene = self._labelled()
        self._budget(scene, 0, "low", disruptedPods={"low": "2026-01-01T00:00:00Z"})
        assert self._victims(self._ask(scene)) == (["low"], 0)

    @pytest.mark.parametrize(
        "selector",
        [None, {}, {"matchExpressions": [{"key": "app", "operator": "Near"}]}],
        ids=["none", "an empty one", "one that can't be read"],
    )
    def test_a_budget_without_a_selector_selects_nobody(self, selector: Json) -> None:
        """So kube-scheduler reads them; another namespace's selects nobody here either."""
        scene = self._labelled()
        body = {"metadata": {"namespace": "ml"}, "spec": {"selector": selector}, "status": {}}
        scene.live.view.disruptions.put("pdb-1", body)
        elsewhere = {**body, "metadata": {"namespace": "x"}}
        elsewhere["spec"] = {"selector": {"matchLabels": {"app": "low"}}}
        scene.live.view.disruptions.put("pdb-2", elsewhere)
        assert self._victims(self._ask(scene)) == (["low"], 0)

    def test_a_budget_that_changes_or_goes_counts_as_it_is(self) -> None:
        """It is followed as a sink."""
        scene = self._labelled()
        self._budget(scene, 0, "low")
        self._budget(scene, 1, "low")
        assert self._victims(self._ask(scene)) == (["low"], 0)
        self._budget(scene, 0, "low")
        scene.live.view.disruptions.drop("pdb-low")
        scene.live.view.disruptions.drop("pdb-low")
        assert self._victims(self._ask(scene)) == (["low"], 0)
