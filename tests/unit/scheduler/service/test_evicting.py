"""Room by the end of Pods, for one that waits for what sums do not show."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from ledger.domain.log.events import PodReserved
from ledger.domain.resources import SCHEDULER_NAME
from scheduler.service.answering import Extender
from scheduler.service.evicting import LOOK_SECONDS, WOULD, Evicting, Mode
from scheduler.service.holds import Holds
from scheduler.service.kept import Namespaces
from scheduler.service.preempting import STUCK_SECONDS
from scheduler.service.telling import Telling
from tests.support.extending import NoBinds, NoRefusals, preempting
from tests.support.fake_api import ApiClient, ApiServer
from tests.support.live import Live
from tests.support.objects import container, pod


class Scene:
    """Two cards with a low Pod of 60 % each, and a Pod of 70 %: 80 are left in all."""

    def __init__(self, mode: Mode = "dry-run") -> None:
        self.live = Live()
        for name in ("a", "b"):
            self.live.add_node(name, 2)
        self.live.settle()
        view, self.server = self.live.view, ApiServer()
        holds = Holds(
            view.engine, self.live.clock.monotonic, view.directory.number, self.live.wakeups
        )
        self.preempting = preempting(view, holds, self.live.groups, self.live.clock)
        self.extender = Extender(
            view,
            NoBinds(),
            why_not=str,
            groups=self.live.groups,
            holds=holds,
            refusals=NoRefusals(),
            preempting=self.preempting,
        )
        self.namespaces = Namespaces()
        self.label("ml")
        api = ApiClient(self.server, self.live.clock.sleep)
        self.telling = Telling(api=api, clock=self.live.clock, reporter="test")
        self.evicting = Evicting(
            view,
            self.preempting,
            self.namespaces,
            self.telling,
            self.live.clock,
            mode=mode,
            why_not=str,
        )
        self.reserved: dict[str, PodReserved] = {}
        for number, percent in enumerate((60, 60)):
            self.run(f"a{number}", percent, "a")
            self.run(f"b{number}", 100, "b", priority=5)
        self.high = self.asks("high", 70, priority=9)
        view.pods.put("pod-high", self.high)

    def label(self, name: str, word: str = "true") -> None:
        """Let a namespace have the label."""
        metadata = {"name": name, "labels": {"tenure.sh/preempt": word}}
        self.namespaces.put(f"uid-{name}", {"metadata": metadata})

    def asks(self, name: str, percent: int, *, priority: int) -> dict[str, Any]:
        """Return a Pod of ours that asks for so much of a card."""
        made = pod(
            container(limits={"koordinator.sh/gpu": percent}),
            name=name,
            uid=f"pod-{name}",
            schedulerName=SCHEDULER_NAME,
        )
        made["spec"]["priority"] = priority
        return made

    def run(self, name: str, percent: int, node: str, priority: int = 1) -> None:
        """Let a Pod run on a node."""
        body = self.asks(name, percent, priority=priority)
        self.reserved[name] = self.live.reserve(self.live.placement(body, node))
        body["spec"]["nodeName"] = node
        self.live.view.pods.put(f"pod-{name}", body)

    def filter(self, *names: str) -> list[str]:
        """Ask for the high one where kube-scheduler has room, and let its time pass."""
        body = {"Pod": self.high, "NodeNames": list(names or ("a",))}
        found: list[str] = json.loads(self.extender.filter(json.dumps(body).encode()))["NodeNames"]
        self.live.clock.now += STUCK_SECONDS
        return found

    def room(self) -> tuple[str, set[str]] | None:
        """Return who would end for the high one, and where."""
        self.live.clock.now += LOOK_SECONDS
        for request in self.preempting.stuck():
            room = self.preempting.room_for(request, self.evicting._is_able)
            if room is not None:
                return room.node_name, {uid.removeprefix("pod-") for uid in room.victims}
        return None


def test_a_pod_that_waits_for_fragmentation_alone_would_have_one_other_end() -> None:
    """The latest of two that are alike, where kube-scheduler offered the node."""
    scene = Scene()

    assert scene.filter() == []

    assert scene.room() == ("a", {"a1"})


def test_nobody_ends_before_kube_scheduler_had_its_turn() -> None:
    """Its own preemption follows the filter at once."""
    scene = Scene()
    scene.filter()
    scene.live.clock.now -= 0.5

    assert scene.preempting.stuck() == []


def test_nobody_ends_where_kube_scheduler_has_no_room() -> None:
    """It did not offer the node; or what there is in all is too little, and it knows or will."""
    scene = Scene()
    scene.filter("b")
    assert scene.room() is None, "who is on b has whole cards of a lower priority"

    body = {"Pod": scene.high, "NodeNames": []}
    scene.extender.filter(json.dumps(body).encode())
    scene.live.clock.now += STUCK_SECONDS
    assert scene.room() is None


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda it: it.high["spec"].update(preemptionPolicy="Never"), id="policy"),
        pytest.param(lambda it: it.high["spec"].update(priority=1), id="as high as they"),
        pytest.param(
            lambda it: it.high.update(status={"nominatedNodeName": "b"}), id="nominated by others"
        ),
        pytest.param(
            lambda it: it.high["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
            id="being deleted",
        ),
    ],
)
def test_nobody_ends_for_a_pod_that_may_not_have_others_end(
    spoil: Callable[[Scene], object],
) -> None:
    """By its own words, or since its room is on its way."""
    scene = Scene()
    spoil(scene)
    scene.live.view.pods.put("pod-high", scene.high)

    scene.filter()

    assert scene.room() is None


def test_pods_of_namespaces_without_the_label_neither_end_nor_have_others_end() -> None:
    """Whoever labels a namespace agrees to both."""
    scene = Scene()
    scene.filter()
    scene.label("ml", "yes")
    assert scene.room() is None
    scene.label("ml")
    assert scene.room() is not None
    scene.namespaces.drop("uid-ml")
    assert scene.room() is None


def test_a_budget_spares_who_would_end() -> None:
    """The other one goes; where it protects both, nobody does."""
    scene = Scene()
    budget = {
        "metadata": {"namespace": "ml"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}},
        "status": {"disruptionsAllowed": 0},
    }
    body = scene.asks("a1", 60, priority=1)
    body["metadata"]["labels"] = {"app": "x"}
    body["spec"]["nodeName"] = "a"
    scene.live.view.pods.put("pod-a1", body)
    scene.live.view.disruptions.put("budget", budget)
    scene.filter()
    assert scene.room() == ("a", {"a0"})

    body = scene.asks("a0", 60, priority=1)
    body["metadata"]["labels"] = {"app": "x"}
    body["spec"]["nodeName"] = "a"
    scene.live.view.pods.put("pod-a0", body)
    assert scene.room() is None


def test_nobody_ends_while_kube_schedulers_own_victims_are_due() -> None:
    """It was told on another node whom to end."""
    scene = Scene()
    scene.filter()
    entries = {"b": {"Pods": [{"UID": "pod-b0"}], "NumPDBViolations": 0}}
    body = {"Pod": scene.high, "NodeNameToMetaVictims": entries}
    answer = json.loads(scene.extender.preempt(json.dumps(body).encode()))

    assert answer["NodeNameToMetaVictims"].keys() == {"b"}
    assert scene.room() is None


def test_a_dry_run_tells_whom_it_would_end_and_ends_nobody() -> None:
    """In an Event of the Pod, once in a while."""
    scene = Scene()
    scene.filter()

    scene.evicting.settle()
    scene.evicting.settle()
    asyncio.run(scene.telling.send())

    events = [body for path, body in scene.server.objects.items() if "/events/" in path]
    assert [(one["reason"], one["note"]) for one in events] == [
        (WOULD, "would end 1 Pod on node a: ml/a1")
    ]
    assert scene.evicting.counts == {"room": 1}
    assert not [call for call in scene.server.written if call[1].endswith("eviction")]


def test_nothing_is_looked_for_where_that_is_off() -> None:
    """As by default."""
    scene = Scene("off")
    scene.filter()

    scene.evicting.settle()

    assert not scene.evicting.counts
