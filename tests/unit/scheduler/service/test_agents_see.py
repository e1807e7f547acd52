"""What nodes' agents see Pods have that others gave them, recorded as docs/contracts/agents.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ledger.domain.annotations.checkpoints import DeviceCheckpoint
from ledger.domain.errors import LedgerError
from ledger.domain.log.drift import NODE_GAVE_OTHER
from ledger.domain.log.events import PodBound, PodObserved
from ledger.domain.log.state import NodeState
from ledger.store.writing.commands import Command, Outcome
from scheduler.cluster.objects import ALONE, SEEN_BY_AGENT
from scheduler.service.agents import (
    DIFFERENT,
    HELD,
    LATER,
    NAMED,
    NOTED,
    NOTHING,
    OWN,
    PLACES_MAX,
    RECORD_SECONDS,
    SILENT_SECONDS,
    Agents,
    SeenPod,
)
from scheduler.service.api.agents import DEVICES_MAX, read_confirmation
from scheduler.service.ending import MIRROR_SECONDS, NodeWord
from tests.support import objects
from tests.support.live import MemoryLedger, types
from tests.unit.scheduler.service.test_releasing import Scene as Releasing
from tests.unit.scheduler.service.test_releasing import asking

NVIDIA = "nvidia.com/gpu"


class Scene(Releasing):
    """A node `a` with two cards, its agent, and the loop that records what that sees."""

    def __init__(self) -> None:
        super().__init__()
        self.agents = Agents(
            self.live.view,
            self.releasing._books,
            self.live.ledger,
            self.live.clock,
            actor="scheduler/test",
        )
        self.agents.ending.append(self.releasing.is_ending)
        self.agents.heard("a", "uid-a")

    def word(self, state: NodeState) -> NodeWord:
        """Return what the agent of a node says."""
        return self.agents.word(state)

    def seen(self, node_uid: str) -> Mapping[str, SeenPod]:
        """Return what the agent of a node sees."""
        return self.agents.seen(node_uid)

    def plain(self, name: str, **metadata: Any) -> dict[str, Any]:  # noqa: ANN401
        """Let a Pod run that asked a plain device plugin for a card, which says not which."""
        pod = asking(name)
        pod["spec"]["containers"] = [objects.container(limits={NVIDIA: 1})]
        pod["spec"]["nodeName"] = "a"
        pod["metadata"] |= metadata
        self.put(pod)
        return pod

    def see(self, name: str, *ids: str, resource: str = NVIDIA) -> str:
        """Say what a Pod has; return what came of it."""
        result, _ = self.agents.observed("uid-a", seen(name, *ids, resource=resource))
        self.settle()
        return result

    @property
    def held(self) -> dict[str, list[str]]:
        """Who holds which cards by the ledger."""
        state = self.live.view.recorded("uid-a")
        assert state is not None
        return {
            one.pod_uid: [each.device_id for each in one.shares] for one in state.holdings.values()
        }

    @property
    def observed(self) -> list[PodObserved]:
        """What was recorded as observed."""
        return [one for one in self.live.ledger.log if isinstance(one, PodObserved)]


def seen(name: str, *ids: str, resource: str = NVIDIA) -> SeenPod:
    """Return what an agent sees a Pod have."""
    entry = DeviceCheckpoint(
        pod_uid=f"pod-{name}", container_name="main", resource_name=resource, device_ids=ids
    )
    return SeenPod(pod_uid=f"pod-{name}", namespace="ml", pod_name=name, entries=(entry,))


def test_a_pod_from_before_tenure_holds_the_card_that_its_agent_sees() -> None:
    """Nobody had said which it was, and the node was closed; then one card is, until it is gone."""
    scene = Scene()
    pod = scene.plain("old")
    scene.settle()
    assert scene.live.passing(asking("p"), "a") == []
    assert scene.see("old", "GPU-a-1") == NOTED
    assert scene.held == {"pod-old": ["GPU-a-1"]}
    assert scene.released == [("pod-old", NAMED)]
    last = scene.observed[-1]
    assert (last.attempt, last.source, last.unknown_types) == (2, SEEN_BY_AGENT, ())
    assert last.shares[0].exclusive
    assert scene.see("old", "GPU-a-1") == HELD
    assert len(scene.observed) == 2
    assert scene.live.passing(asking("p"), "a") == ["a"]
    assert scene.live.passing(asking("p", 200), "a") == []
    scene.delete(pod)
    scene.settle()
    assert scene.held == {"pod-old": ["GPU-a-1"]}
    scene.agents.gone("uid-a", ["pod-old"])
    scene.settle()
    assert (scene.held, scene.released[-1]) == ({}, ("pod-old", "deleted"))


def test_an_agent_that_was_there_first_names_the_card_at_once() -> None:
    """Whether the Pod asked for a card or took one, as by its environment."""
    scene = Scene()
    assert scene.see("old", "GPU-a-1") == NOTED
    taker = asking("taker")
    taker["spec"]["containers"] = [objects.container()]
    taker["spec"]["nodeName"] = "a"
    scene.put(taker)
    assert scene.see("taker", "GPU-a-0") == NOTED
    assert scene.held == {"pod-old": ["GPU-a-1"], "pod-taker": ["GPU-a-0"]}
    assert [one.attempt for one in scene.observed] == [1, 1]
    assert scene.live.passing(asking("p"), "a") == []


def test_who_has_no_object_in_the_api_holds_until_the_agent_says_gone() -> None:
    """A static Pod whose mirror nobody made, or a process of the host's."""
    scene = Scene()
    scene.see("lost", "GPU-a-0")
    [event] = scene.observed
    assert (event.namespace, event.pod_name) == (ALONE, "lost")
    for _ in range(3):
        scene.releasing.look_at("a")
        scene.settle()
    assert scene.held == {"pod-lost": ["GPU-a-0"]}
    scene.agents.gone("uid-a", ["pod-lost"])
    scene.settle()
    assert scene.held == {}
    scene.releasing.look_at("a")
    scene.settle()
    assert types(scene.live.ledger.log).count("pod.observed") == 1


def test_what_is_no_name_of_a_pod_is_never_recorded() -> None:
    """The API would know none of it; a process of no Pod may have none at all."""
    scene = Scene()
    entries = seen("x", "GPU-a-0").entries
    for name, result in (("../../nodes", LATER), ("UPPER%zz", LATER), ("", NOTED)):
        pod = SeenPod(pod_uid="x", namespace="", pod_name=name, entries=entries)
        assert scene.agents.observed("uid-a", pod)[0] == result
    scene.settle()
    assert scene.releasing.faults == {}


@pytest.mark.parametrize("places", [3, 10**6, None])
def test_a_node_names_no_more_pods_of_its_own_than_it_has_places(places: int | None) -> None:
    """The API has none of them: no team is billed, and what is over is drift of the node."""
    scene = Scene()
    facts = scene.live.view.facts("a")
    assert facts is not None
    scene.live.view.put_node(replace(facts, pods_max=places))
    most = min(places or PLACES_MAX, PLACES_MAX)
    answers = [scene.agents.observed("uid-a", seen(f"x{n}", "GPU-a-0")) for n in range(most)]
    assert {result for result, _ in answers} == {NOTED}
    assert not scene.agents.is_full("uid-a")
    result, why = scene.agents.observed("uid-a", seen("more", "GPU-a-0"))
    assert (result, why.partition(":")[0]) == (LATER, "more Pods that the API does not have")
    assert scene.agents.is_full("uid-a")
    assert scene.agents.observed("uid-a", seen("x0", "GPU-a-0"))[0] == NOTED
    scene.plain("true")
    assert scene.agents.observed("uid-a", seen("true", "GPU-a-1"))[0] == NOTED
    if places != 3:
        return
    scene.settle()
    assert {one.namespace for one in scene.observed} == {ALONE, "ml"}
    assert scene.live.view.namespaces() == {ALONE, "ml"}
    assert len(scene.held) == most + 1
    scene.live.clock.now += SILENT_SECONDS
    assert not scene.agents.is_full("uid-a")


@pytest.mark.parametrize("ends", [True, False], ids=["and ends", "with another card"])
def test_a_node_that_names_a_pod_again_and_again_is_recorded_so_often_and_no_more(
    *, ends: bool
) -> None:
    """Each time is two events; then one more a minute, and what the API has is recorded still."""
    scene = Scene()
    for number in range(PLACES_MAX + 8):
        if ends:
            scene.see("x", "GPU-a-0")
            scene.agents.gone("uid-a", ["pod-x"])
            scene.settle()
        else:
            scene.see("x", f"GPU-a-{number % 2}")

    assert len(scene.observed) == PLACES_MAX
    assert scene.agents.is_full("uid-a")
    assert scene.see("y", "GPU-a-0") == LATER
    scene.plain("true")
    assert scene.see("true", "GPU-a-1") == NOTED
    assert scene.held["pod-true"] == ["GPU-a-1"]
    scene.live.clock.now += RECORD_SECONDS
    assert scene.see("y", "GPU-a-0") == NOTED
    assert scene.see("z", "GPU-a-0") == LATER


def test_a_pod_that_the_api_shows_later_is_held_under_its_namespace_from_then_on() -> None:
    """The watch was behind, or kubelet made the mirror of a static Pod late; nothing opens."""
    scene = Scene()
    for name, more in (
        ("old", {}),
        ("mirror", {"annotations": {"kubernetes.io/config.mirror": "pod-static"}}),
    ):
        uid = "static" if more else name
        scene.see(uid, "GPU-a-1")
        assert scene.observed[-1].namespace == ALONE
        pod = scene.plain(name, **more)
        for _ in range(3):
            scene.releasing.look_at("a")
            scene.settle()
        assert (scene.observed[-1].namespace, scene.observed[-1].pod_name) == ("ml", name)
        assert scene.held == {f"pod-{uid}": ["GPU-a-1"]}
        scene.delete(pod)
        scene.agents.gone("uid-a", [f"pod-{uid}"])
        scene.live.clock.now += MIRROR_SECONDS
        scene.releasing.look_at("a")
        scene.settle()
        scene.live.clock.now += MIRROR_SECONDS
        scene.releasing.look_at("a")
        scene.settle()
        assert scene.held == {}
    assert len(scene.observed) == 4


@pytest.mark.parametrize("was", ["granted", "observed"])
def test_who_is_seen_again_once_it_was_released_holds_until_it_is_gone_again(was: str) -> None:
    """Somebody ended it by an act, or said too early that it is gone: nothing of the API tells."""
    scene = Scene()
    if was == "granted":
        pod = scene.bind("p")
        scene.delete(pod)
    else:
        scene.see("p", "GPU-a-0")
    scene.releasing._books.drop("pod-p")
    for attempt in (2, 3):
        scene.agents.gone("uid-a", ["pod-p"])
        scene.settle()
        assert scene.held == {}
        scene.see("p", "GPU-a-0")
        assert scene.held == {"pod-p": ["GPU-a-0"]}
        assert scene.observed[-1].attempt == attempt
    scene.agents.gone("uid-a", ["pod-p"])
    scene.settle()
    assert scene.held == {}
    assert [uid for uid, _ in scene.released] == ["pod-p"] * 3


def test_what_more_an_agent_sees_is_held_beside_what_the_pod_says() -> None:
    """Its annotation names one card, its node another: both are closed."""
    scene = Scene()
    given = '{"gpu":[{"minor":1,"resources":{"koordinator.sh/gpu-core":"100"}}]}'
    scene.plain("old", annotations={"scheduling.koordinator.sh/device-allocated": given})
    scene.settle()
    assert scene.held == {"pod-old": ["GPU-a-1"]}
    scene.see("old", "GPU-a-0")
    assert scene.held == {"pod-old": ["GPU-a-0", "GPU-a-1"]}
    assert scene.live.passing(asking("p"), "a") == []
    assert scene.see("old", "GPU-a-0") == HELD
    assert len(scene.observed) == 2


def test_what_the_ledger_gave_is_no_observation_and_anything_else_is_named() -> None:
    """The card that it was given, and another one."""
    scene = Scene()
    scene.bind("p")
    assert scene.see("p", "GPU-a-0") == OWN
    result, why = scene.agents.observed("uid-a", seen("p", "GPU-a-0", "GPU-a-1"))
    assert (result, why) == (DIFFERENT, "it has a device that is not reserved for it: GPU-a-1")
    state = scene.live.view.recorded("uid-a")
    assert state is not None
    [holding] = state.holdings.values()
    said = scene.agents.otherwise("uid-a", holding)
    assert {kind: one.words for kind, one in said.items()} == {NODE_GAVE_OTHER: why}
    assert scene.observed == []


@pytest.mark.parametrize(("ids", "result"), [(("GPU-z",), LATER), (("GPU-a-0::3",), NOTED)])
def test_a_device_that_the_node_does_not_list_is_said_again_later(
    ids: tuple[str, ...], result: str
) -> None:
    """The inventory may come behind; a replica is of its card."""
    scene = Scene()
    assert scene.see("old", *ids) == result
    assert len(scene.observed) == (result == NOTED)


def test_a_resource_that_is_no_device_of_ours_is_never_recorded_over_and_over() -> None:
    """The agent names a card by a name that means none here."""
    scene = Scene()
    scene.plain("old")
    scene.settle()
    for _ in range(3):
        assert scene.see("old", "GPU-a-0", resource="vendor.test/other") == NOTED
    assert len(scene.observed) == 1


def test_a_binding_that_is_on_its_way_is_not_taken_for_somebody_elses() -> None:
    """Its containers may start before the ledger is told that it is bound."""
    scene = Scene()
    event = scene.live.reserve(scene.live.placement(asking("p"), "a"))
    assert scene.see("p", "GPU-a-0") == OWN
    scene.live.record(PodBound(pod_uid=event.pod_uid, attempt=1, node_uid="uid-a"))
    assert scene.see("p", "GPU-a-0") == OWN
    assert scene.observed == []


@pytest.mark.parametrize("count", [0, DEVICES_MAX + 1])
def test_a_pod_with_no_device_or_too_many_is_refused_with_its_place(count: int) -> None:
    """A 400 of the listener's."""
    import json

    from ledger.domain.errors import InputError

    devices = [{"container": "c", "resource": NVIDIA, "ids": [f"g{n}" for n in range(count)]}]
    pod = {"pod_uid": "u", "namespace": "ml", "pod_name": "p", "devices": devices}
    with pytest.raises(InputError, match=r"body\.observed\[0\]\.devices"):
        read_confirmation(json.dumps({"observed": [pod]}).encode())


def test_who_comes_back_while_another_end_is_recorded_is_not_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And of one whose end is under way the node is not told that it still holds its part."""
    scene = Scene()
    pods = [scene.bind("p"), scene.bind("q")]
    scene.agents.gone("uid-a", ["pod-p", "pod-q"])
    for pod in pods:
        scene.delete(pod)
    answers: list[dict[str, str]] = []
    record = MemoryLedger.record

    async def comes_back(ledger: MemoryLedger, command: Command) -> Outcome:
        if not answers:
            answers.append(scene.agents.here("uid-a", ["pod-p", "pod-q"]))
        return await record(ledger, command)

    monkeypatch.setattr(MemoryLedger, "record", comes_back)
    scene.settle()
    assert answers == [{"pod-p": NOTHING, "pod-q": NOTED}]
    assert [uid for uid, _ in scene.released] == ["pod-p"]


def test_an_end_of_which_nothing_is_known_is_recorded_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where the Pod comes back: the node hears that it holds nothing, so nothing starts."""
    scene = Scene()
    pod = scene.bind("p")
    scene.agents.gone("uid-a", ["pod-p"])
    scene.delete(pod)
    monkeypatch.setattr(scene.live.ledger, "away", LedgerError("away"))
    with pytest.raises(LedgerError, match="away"):
        scene.settle()
    monkeypatch.undo()
    assert scene.agents.here("uid-a", ["pod-p"]) == {"pod-p": NOTHING}
    scene.settle()
    assert [uid for uid, _ in scene.released] == ["pod-p"]
    assert not scene.releasing.is_ending("pod-p")
