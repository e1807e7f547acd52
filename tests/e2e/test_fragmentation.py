"""Two cards with a low Pod of 60 % each, and a Pod of 70 %: kube-scheduler sees 80 % left."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ledger.domain.log.events import LedgerEvent, PreemptionDecided
from ledger.store.open import open_ledger
from scheduler.service.evicting import LOOK_SECONDS
from tests.support.kube.binaries import NEXT
from tests.support.kube.bursts import eventually, remove_pods
from tests.support.kube.control_plane import ControlPlane
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.preempting import HIGH, LOW, know_kinds, make_classes, share
from tests.support.kube.schedulers import (
    Identities,
    Served,
    add_gpu_node,
    ask,
    asking,
    extender,
    remove_node,
)
from tests.support.process import tenure

NODE = "in-pieces"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A node of two cards, and where Pods are made."""

    plane: ControlPlane
    namespace: str
    url: str
    folder: Path
    served: Served

    @property
    def where(self) -> str:
        """The path of the Pods."""
        return pods_in(self.namespace)

    def ask(self, name: str, percent: int, priority: str) -> None:
        """Create a Pod for the node that ends at once when it is told to."""
        body = pod(
            name,
            **share(percent),
            schedulerName="tenure",
            priorityClassName=priority,
            terminationGracePeriodSeconds=0,
            nodeSelector={"kubernetes.io/hostname": NODE},
        )
        made = self.plane.api().create(self.where, body)
        assert made.ok, made.message

    def pods(self) -> dict[str, dict[str, Any]]:
        """Return the Pods that there are, by name."""
        found: list[dict[str, Any]] = self.plane.api().get(self.where).body["items"]
        return {one["metadata"]["name"]: one for one in found}

    def bound(self) -> set[str]:
        """Return the names of those with a node."""
        return {name for name, one in self.pods().items() if one["spec"].get("nodeName")}

    def why(self) -> dict[str, Any]:
        """Return why the high one waits; empty as long as the ledger does not know it."""
        words = ("why", f"{self.namespace}/high", "--ledger", self.url, "-o", "json")
        answer = tenure(*words, cwd=self.folder)
        found: dict[str, Any] = json.loads(answer.stdout) if answer.returncode == 0 else {}
        return found

    def decided(self) -> list[PreemptionDecided]:
        """Return what the ledger has of preemptions."""
        with open_ledger(self.url, mode="read") as ledger:
            events: list[LedgerEvent] = [one.event for one in ledger.read_events(after=0)]
        return [event for event in events if isinstance(event, PreemptionDecided)]


@pytest.fixture
def play(
    plane: ControlPlane,
    namespace: Callable[..., str],
    identities: Identities,
    tmp_path: Path,
) -> Callable[[str], Any]:
    """Return what lets two low Pods run, and a high one come, beside a service of a setting."""
    know_kinds(plane)
    make_classes(plane)

    @contextmanager
    def playing(preemption: str) -> Iterator[Scene]:
        url = f"sqlite:///{tmp_path / 'live.db'}"
        made = tenure("ledger", "init", "--ledger", url, cwd=tmp_path)
        assert made.returncode == 0, made.stderr
        name = namespace(managed=False, **{"tenure.sh/preempt": "true"})
        try:
            add_gpu_node(plane, NODE, gpus=2)
            with (
                extender(plane, url, identities, forked=True, preemption=preemption) as served,
                plane.scheduler(asking(plane, served, identities)),
            ):
                scene = Scene(plane=plane, namespace=name, url=url, folder=tmp_path, served=served)
                for number in range(2):
                    scene.ask(f"low-{number}", 60, LOW)
                    eventually(lambda: len(scene.bound()) > number)  # noqa: B023 - called at once
                scene.ask("high", 70, HIGH)
                yield scene
        finally:
            left = plane.api().get(pods_in(name)).body["items"]
            remove_pods(plane, pods_in(name), [one["metadata"]["name"] for one in left])
            remove_node(plane, NODE)

    return playing


def test_a_pod_that_waits_for_fragmentation_alone_waits_and_why_says_so(
    play: Callable[[str], Any],
) -> None:
    """Nobody ends where the setting is off, as by default."""
    with play("off") as scene:
        eventually(lambda: bool(scene.why()))
        time.sleep(LOOK_SECONDS)
        assert scene.bound() == {"low-0", "low-1"}
        found = scene.why()["fragmentation"]
        assert found["nodes"] == [NODE]
        assert found["ending"]["pods"] == [f"{scene.namespace}/low-1"]
        assert scene.decided() == []


@pytest.mark.parametrize("shape", ["NodeNameToVictims", "NodeNameToMetaVictims"])
def test_a_kube_scheduler_that_asks_for_sums_is_given_the_least_set(
    play: Callable[[str], Any], identities: Identities, shape: str
) -> None:
    """As kube-scheduler 1.38.0-beta.0 asks, which names a node without victims to be filled."""
    with play("on") as scene:
        body = {"Pod": scene.pods()["high"], shape: {NODE: {"Pods": [], "NumPDBViolations": 0}}}
        answer = ask(scene.served, identities, "preempt", body)
        uids = {name: one["metadata"]["uid"] for name, one in scene.pods().items()}
        least = {"Pods": [{"UID": uids["low-1"]}], "NumPDBViolations": 0}
        assert answer == {"NodeNameToMetaVictims": {NODE: least}}
        time.sleep(2 * LOOK_SECONDS)
        assert scene.bound() == {"low-0", "low-1"}, "kube-scheduler ends them, and we end nobody"
        remove_pods(scene.plane, scene.where, ["low-1"])
        eventually(lambda: scene.bound() == {"low-0", "high"})
        assert scene.decided() == []


def test_one_low_pod_ends_for_a_pod_that_waits_for_fragmentation_alone(
    play: Callable[[str], Any],
) -> None:
    """The later one; the ledger has who, and that it is over."""
    with play("on") as scene:
        eventually(lambda: scene.bound() == {"low-0", "high"})
        eventually(lambda: len(scene.decided()) == 2)
        begun, over = scene.decided()
        assert (begun.node_name, len(begun.victims), begun.over) == (NODE, 1, "")
        assert over.over == "the Pod waits no more"


@pytest.mark.slow
@pytest.mark.parametrize("plane", [NEXT], indirect=True)
def test_one_low_pod_ends_with_the_newest_release_that_builds(play: Callable[[str], Any]) -> None:
    """The pre-release of 1.38 needs modules that are not published: it can't be built."""
    test_one_low_pod_ends_for_a_pod_that_waits_for_fragmentation_alone(play)
