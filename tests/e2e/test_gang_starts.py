"""A gang starts whole or gives back, whatever kube-scheduler's own plugins say of its members."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.forked import Point
from tests.support.kube.bursts import eventually, remove_pods
from tests.support.kube.control_plane import ControlPlane, Program, free_port
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.parties import GANG, apart, spread
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    Served,
    add_gpu_node,
    asking,
    extender,
    remove_node,
)
from tests.support.process import tenure

CARDS: Final = 4
SOON_SECONDS: Final = 12.0
"""Less than a gang's first call waits."""


@dataclass(slots=True, kw_only=True)
class Scene:
    """A service, a kube-scheduler that asks it, and nodes of four cards."""

    plane: ControlPlane
    where: str
    served: Served
    scheduler: Program
    nodes: list[str] = field(default_factory=list)

    def add_nodes(self, *names: str) -> None:
        """Let nodes come."""
        for name in names:
            add_gpu_node(self.plane, name, gpus=CARDS)
            self.nodes.append(name)

    def create(self, name: str, cards: int, **more: Any) -> None:  # noqa: ANN401 - a Pod's fields
        """Let a Pod come."""
        one = pod(name, {"nvidia.com/gpu": str(cards)}, schedulerName="tenure", **more)
        made = self.plane.api().create(self.where, one)
        assert made.ok, made.message

    def gang(
        self,
        name: str,
        count: int,
        cards: int = 1,
        *,
        wait: str = "600s",
        **spec: Any,  # noqa: ANN401 - a Pod's fields
    ) -> None:
        """Let a gang come of which all start together."""
        about = {"name": name, "min-available": str(count), "waiting-time": wait}
        for number in range(count):
            self.create(
                f"{name}-{number}",
                cards,
                labels={"job": name},
                annotations={f"{GANG}/{key}": value for key, value in about.items()},
                schedulingGates=[{"name": "tenure.sh/gang"}],
                **spec,
            )

    def pods(self, prefix: str) -> list[dict[str, Any]]:
        """Return the Pods whose names begin so."""
        found = self.plane.api().get(self.where).body["items"]
        return [one for one in found if one["metadata"]["name"].startswith(prefix)]

    def hosts(self, prefix: str) -> list[str]:
        """Return the nodes of those that are bound."""
        nodes = (one["spec"].get("nodeName") for one in self.pods(prefix))
        return sorted(node for node in nodes if node)

    def all_bound(self, prefix: str, seconds: float = 60.0) -> list[str]:
        """Return the nodes of Pods once all of them are bound; never only some for long."""
        until = time.monotonic() + seconds
        while len(found := self.hosts(prefix)) < len(self.pods(prefix)):
            assert time.monotonic() < until, (found, self.served.words())
            time.sleep(0.05)
        return found

    def refused(self, prefix: str, words: str) -> bool:
        """Tell whether kube-scheduler was told these words about one of the Pods."""
        conditions = [
            each.get("message") or ""
            for one in self.pods(prefix)
            for each in (one.get("status") or {}).get("conditions") or ()
        ]
        return any(words in each for each in conditions)

    def waits(self) -> int:
        """Return how many bind calls wait."""
        key = 'tenure_scheduler_view{what="gang_binds"}'
        lines = self.served.probe("metrics").splitlines()
        return sum(int(float(one.split()[-1])) for one in lines if one.startswith(key))


@pytest.fixture
def scene(
    plane: ControlPlane, namespace: Callable[..., str], identities: Identities, tmp_path: Path
) -> Iterator[Scene]:
    """A live service and a stock kube-scheduler; the ledger is proved, and decided again."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    url = f"sqlite:///{tmp_path / 'live.db'}"
    made = tenure("ledger", "init", "--ledger", url, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    where = pods_in(namespace(managed=False))
    with (
        extender(plane, url, identities, forked=True) as served,
        plane.scheduler(asking(plane, served, identities)) as program,
    ):
        one = Scene(plane=plane, where=where, served=served, scheduler=program)
        yield one
        end(one)
    for question in ("verify", "ledger replay"):
        answer = tenure(*question.split(), "--ledger", url, cwd=tmp_path)
        assert answer.returncode == 0, answer.stdout + answer.stderr


def end(one: Scene) -> None:
    """Remove Pods and nodes."""
    remove_pods(one.plane, one.where, [each["metadata"]["name"] for each in one.pods("")])
    for name in one.nodes:
        remove_node(one.plane, name)


def test_a_pair_that_must_be_apart_leaves_a_single_host_and_starts_on_two(scene: Scene) -> None:
    """None of it is bound, its cards go to others, and it is woken once it has a plan again."""
    scene.add_nodes("starts-1")
    scene.gang("pair", 2, 2, wait="4s", **apart("pair"))
    eventually(lambda: scene.refused("pair", "the gang is not begun: 1 of 2 members came in time"))
    assert not scene.hosts("pair")
    scene.create("other", CARDS)
    scene.all_bound("other")
    scene.add_nodes("starts-2", "starts-3")
    assert scene.all_bound("pair") == ["starts-2", "starts-3"]


def test_workers_that_are_spread_start_on_as_many_hosts_as_they_need(scene: Scene) -> None:
    """On two hosts at once; with one of two cordoned nobody is bound before it takes Pods again."""
    scene.add_nodes("spread-1", "spread-2")
    scene.gang("first", 4, **spread("first"))
    assert Counter(scene.all_bound("first", SOON_SECONDS)) == {"spread-1": 2, "spread-2": 2}
    remove_pods(scene.plane, scene.where, [f"first-{number}" for number in range(4)])
    cordon = {"spec": {"unschedulable": True}}
    assert scene.plane.api().patch("/api/v1/nodes/spread-2", cordon).ok
    scene.gang("second", 4, wait="4s", **spread("second"))
    eventually(lambda: scene.refused("second", "the gang is not begun"))
    assert not scene.hosts("second")
    cordon["spec"]["unschedulable"] = False
    assert scene.plane.api().patch("/api/v1/nodes/spread-2", cordon).ok
    assert Counter(scene.all_bound("second")) == {"spread-1": 2, "spread-2": 2}


def test_a_member_that_is_deleted_while_it_waits_gives_its_room_back_at_once(scene: Scene) -> None:
    """Long before the deadline; nobody is bound in its place."""
    scene.add_nodes("deleted-1")
    scene.gang("pair", 2, 2, **apart("pair"))
    eventually(scene.waits)
    begun = time.monotonic()
    for one in scene.pods("pair"):
        remove_pods(scene.plane, scene.where, [one["metadata"]["name"]])
        assert not scene.hosts("pair")
    scene.create("other", CARDS)
    scene.all_bound("other", SOON_SECONDS)
    assert time.monotonic() - begun < SOON_SECONDS


def test_of_two_gangs_with_room_for_one_the_other_starts_after_it(scene: Scene) -> None:
    """Neither waits with a part of the room."""
    scene.add_nodes("room-1")
    for name in ("one", "two"):
        scene.gang(name, 2, 2)
    eventually(lambda: len(scene.hosts("")) == 2)
    first, second = sorted(("one", "two"), key=lambda name: -len(scene.hosts(name)))
    assert [len(scene.hosts(name)) for name in (first, second)] == [2, 0]
    remove_pods(scene.plane, scene.where, [f"{first}-0", f"{first}-1"])
    scene.all_bound(second)


def test_a_kube_scheduler_that_is_killed_binds_nobody(scene: Scene) -> None:
    """Its calls are void at once. The next one begins the gang, once there is room."""
    scene.add_nodes("killed-1")
    scene.gang("pair", 2, 2, **apart("pair"))
    eventually(scene.waits)
    scene.scheduler.kill()
    eventually(lambda: not scene.waits())
    scene.add_nodes("killed-2")
    scene.scheduler.start()
    assert scene.all_bound("pair") == ["killed-1", "killed-2"]


@pytest.mark.parametrize("bindings", [2])
def test_a_service_that_is_killed_between_bindings_goes_on_with_the_others(
    plane: ControlPlane,
    namespace: Callable[..., str],
    identities: Identities,
    tmp_path: Path,
    bindings: int,
) -> None:
    """The ledger knows that the gang was begun: whoever comes late is bound at once."""
    url, port = f"sqlite:///{tmp_path / 'live.db'}", free_port()
    assert tenure("ledger", "init", "--ledger", url, cwd=tmp_path).returncode == 0
    where = pods_in(namespace(managed=False))
    point: Point = ("before:create pods/binding", bindings)
    with (
        extender(
            plane, url, identities, port=port, ready=False, forked=True, point=point
        ) as served,
        plane.scheduler(asking(plane, served, identities)) as program,
    ):
        one = Scene(plane=plane, where=where, served=served, scheduler=program)
        one.add_nodes("between-1")
        one.gang("four", 4)
        eventually(lambda: served.process.poll() is not None)
        assert served.process.returncode == -signal.SIGKILL, served.words()
        assert len(one.hosts("four")) < CARDS
        with extender(plane, url, identities, port=port, remembered=True, forked=True) as again:
            one.served = again
            one.all_bound("four")
            end(one)
