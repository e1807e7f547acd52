"""One preemption at a time for a Pod, of the least that makes room."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Any

import pytest

from ledger.domain.log.events import PodReserved
from scheduler.service.answering import Extender
from scheduler.service.holds import Holds
from scheduler.service.preempting import BEGUN_SECONDS, DUE_SECONDS
from tests.support.extending import NoBinds, NoRefusals, preempting
from tests.support.live import Live
from tests.support.objects import container, pod


class Scene:
    """Nodes of two cards, full of Pods of a low priority, and one of a high one that comes."""

    def __init__(self, *percents: int, nodes: Sequence[str] = ("a", "b"), cards: int = 2) -> None:
        self.live = Live()
        for name in nodes:
            self.live.add_node(name, cards)
        self.live.settle()
        view = self.live.view
        self.holds = Holds(
            view.engine, self.live.clock.monotonic, view.directory.number, self.live.wakeups
        )
        self.preempting = preempting(view, self.holds, self.live.groups, self.live.clock)
        self.extender = Extender(
            view,
            NoBinds(),
            why_not=str,
            groups=self.live.groups,
            holds=self.holds,
            refusals=NoRefusals(),
            preempting=self.preempting,
        )
        self.woken: list[str] = []
        self.live.wakeups.room_freed.subscribe(self.woken.append)
        self.reserved: dict[str, PodReserved] = {}
        self.bodies: dict[str, dict[str, Any]] = {}
        self.nodes = nodes
        for name in nodes:
            for number, percent in enumerate(percents):
                self.run(f"{name}{number}", percent, name)
        self.high = asks("high", 100, priority=9)
        view.pods.put("pod-high", self.high)

    def run(self, name: str, percent: int, node: str, priority: int = 1) -> None:
        """Let a Pod run on a node."""
        body = asks(name, percent, priority=priority)
        self.reserved[name] = self.live.reserve(self.live.placement(body, node))
        body["spec"]["nodeName"] = node
        self.bodies[name] = body
        self.live.view.pods.put(f"pod-{name}", body)

    def filter(self) -> list[str]:
        """Return the nodes that take the high one."""
        body = {"Pod": self.high, "NodeNames": list(self.nodes)}
        names: list[str] = json.loads(self.extender.filter(json.dumps(body).encode()))["NodeNames"]
        return names

    def preempt(self, wanted: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
        """Return who has to go for the high one by node, where kube-scheduler wants these to."""
        entries = {
            node: {"Pods": [{"UID": f"pod-{name}"} for name in names], "NumPDBViolations": 0}
            for node, names in wanted.items()
        }
        body = {"Pod": self.high, "NodeNameToMetaVictims": entries}
        answer = json.loads(self.extender.preempt(json.dumps(body).encode()))
        return {
            node: {one["UID"].removeprefix("pod-") for one in entry["Pods"]}
            for node, entry in answer["NodeNameToMetaVictims"].items()
        }

    def told_to_end(self, name: str) -> None:
        """Let the watch show that a Pod is being deleted."""
        body = self.bodies[name]
        body["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self.live.view.pods.put(f"pod-{name}", body)

    def gone(self, name: str) -> None:
        """Let the watch show that a Pod is gone."""
        self.live.view.pods.drop(f"pod-{name}")

    def release(self, name: str) -> None:
        """Let the ledger have a Pod's end."""
        self.live.release(self.reserved[name])


def asks(name: str, percent: int, *, priority: int) -> dict[str, Any]:
    """Return a Pod that asks for so much of a card."""
    limits = {"koordinator.sh/gpu": percent}
    made = pod(container(limits=limits), name=name, uid=f"pod-{name}")
    made["spec"]["priority"] = priority
    return made


def test_nobody_else_ends_while_the_first_victims_are_not_given_back() -> None:
    """kube-scheduler asks again as soon as they are gone; the ledger has it later."""
    scene = Scene(100, 100)
    assert scene.filter() == []
    assert scene.preempt({"a": ["a0"], "b": ["b0"]}) == {"a": {"a0"}, "b": {"b0"}}
    assert scene.preempt({"b": ["b0"]}) == {}, "no watch has told of it yet"
    scene.gone("a0")
    scene.live.clock.now += BEGUN_SECONDS + 1
    assert scene.filter() == []
    assert scene.preempt({"b": ["b0"]}) == {}
    assert scene.preempting.counts["waits for ends"] == 2
    scene.release("a0")
    assert scene.holds.node_of("pod-high") == "a", "nobody else has what came free"
    assert scene.filter() == ["a"]


def test_who_ended_nobody_is_answered_anew_in_time() -> None:
    """kube-scheduler was ended between the answer and the deletion."""
    scene = Scene(100, 100)
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}
    assert scene.preempt({"a": ["a0"]}) == {}
    scene.preempting.expire()
    assert scene.woken == []
    scene.live.clock.now += BEGUN_SECONDS
    scene.preempting.expire()
    scene.preempting.expire()
    assert scene.woken == ["a"]
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}


@pytest.mark.parametrize("seen", [Scene.told_to_end, Scene.gone])
def test_a_service_that_starts_meanwhile_waits_by_the_nomination(seen: Any) -> None:  # noqa: ANN401
    """For a bounded time, at the end of which the Pod is woken."""
    scene = Scene(100, 100)
    scene.high["status"] = {"nominatedNodeName": "a"}
    assert scene.preempt({"b": ["b0"]}) == {"b": {"b0"}}, "nobody is about to end there"
    scene.preempting.drop("pod-high")
    seen(scene, "a0")
    assert scene.preempt({"b": ["b0"]}) == {}
    scene.live.clock.now += DUE_SECONDS
    scene.preempting.expire()
    assert scene.woken == ["a"]
    assert scene.preempt({"b": ["b0"]}) == {"b": {"b0"}}


def test_a_nomination_that_was_taken_back_changes_nothing() -> None:
    """kube-scheduler clears it where a filter fails, as while the service starts again."""
    scene = Scene(100, 100)
    scene.gone("a0")
    assert scene.filter() == []
    assert scene.preempt({"b": ["b0"]}) == {}
    scene.live.clock.now += DUE_SECONDS
    assert scene.preempt({"b": ["b0"]}) == {"b": {"b0"}}


def test_who_is_about_to_end_is_waited_for_where_that_helps() -> None:
    """A node on which a half comes free has no room for a whole card."""
    scene = Scene(50, 50, 100)
    scene.high["status"] = {"nominatedNodeName": "a"}
    scene.told_to_end("a0")
    assert scene.preempt({"b": ["b2"]}) == {"b": {"b2"}}


def test_nobody_ends_where_room_came_free_since_the_filter() -> None:
    """Once for each filter: kube-scheduler may have reasons of its own."""
    scene = Scene(100, 100)
    assert scene.filter() == []
    scene.gone("b1")
    scene.release("b1")
    assert scene.preempt({"a": ["a0"]}) == {}
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}


def test_a_preemption_that_others_took_the_room_of_is_over() -> None:
    """Its victims hold nothing any more, and the Pod has no place."""
    scene = Scene(100, 100)
    assert scene.preempt({"a": ["a0"]}) == {"a": {"a0"}}
    scene.gone("a0")
    scene.release("a0")
    scene.holds.end("pod-high", "")
    scene.run("other", 100, "a", priority=9)
    assert scene.filter() == []
    assert scene.preempt({"b": ["b0"]}) == {"b": {"b0"}}


def test_victims_on_different_cards_give_way_to_as_many_on_one() -> None:
    """kube-scheduler counts sums, and names halves of two cards for a whole one."""
    scene = Scene(50, 50, 50, 50, nodes=("a",))
    cards = {name: scene.reserved[name].shares[0].minor for name in scene.reserved}
    for wanted in combinations(sorted(cards), 2):
        scene.preempting.drop("pod-high")
        [victims] = scene.preempt({"a": wanted}).values()
        assert len(victims) == 2
        assert len({cards[name] for name in victims}) == 1


def test_what_kube_scheduler_wants_back_is_given_back() -> None:
    """Of a Pod that holds more CPUs than the others nobody else is a match."""
    scene = Scene(50, 50, 50, nodes=("a",))
    body = asks("large", 50, priority=1)
    body["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "8"}
    scene.reserved["large"] = scene.live.reserve(scene.live.placement(body, "a"))
    body["spec"]["nodeName"] = "a"
    scene.live.view.pods.put("pod-large", body)
    beside = next(
        name
        for name, event in scene.reserved.items()
        if name != "large" and event.shares[0].minor == scene.reserved["large"].shares[0].minor
    )
    [other] = {"a0", "a1", "a2"} - {beside, "a0" if beside != "a0" else "a1"}
    assert scene.preempt({"a": ["large", other]}) == {"a": {"large", beside}}


@pytest.mark.parametrize("seed", range(40))
def test_no_smaller_set_of_pods_alike_makes_room(seed: int) -> None:
    """By trying all of them, whatever kube-scheduler wants."""
    rng = Random(seed)
    percent, cards = rng.choice([25, 50, 100]), rng.choice([1, 2, 3])
    scene = Scene(*([percent] * (cards * 100 // percent)), nodes=("a",), cards=cards)
    low = list(scene.reserved)
    on = {name: scene.reserved[name].shares[0].minor for name in low}
    need = rng.choice([percent, 100, 100 * cards])
    scene.high["spec"]["containers"][0]["resources"]["limits"]["koordinator.sh/gpu"] = need
    wanted = rng.sample(low, max(1, need // percent))
    answer = scene.preempt({"a": wanted})

    def fits(gone: Sequence[str]) -> bool:
        free = [percent * sum(on[name] == card for name in gone) for card in range(cards)]
        return sum(each >= min(need, 100) for each in free) >= max(1, need // 100)

    least = next(size for size in range(1, len(low) + 1) if any(map(fits, combinations(low, size))))
    assert fits(sorted(answer["a"]))
    assert len(answer["a"]) == least
