"""The live scheduler is killed at every named point between two effects, and goes on; and again."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from tests.support.forked import Point
from tests.support.kube.at_rest import check_at_rest, given_twice, listed, live, prove, wait
from tests.support.kube.bursts import DIALECTS, GROUPED, burst, remove_pods
from tests.support.kube.control_plane import ControlPlane, free_port
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    Identities,
    Served,
    add_gpu_node,
    asking,
    extender,
    issue,
    remove_node,
)
from tests.support.process import tenure
from tests.support.recount import held_by_ledger

NODES: Final = ("killed-1", "killed-2", "killed-3")
SIDES: Final = ("before", "after")
DIES_SECONDS: Final = 90.0
ROUNDS: Final = {
    "recording": {"record node.described": 1, "record pod.reserved": 2, "record pod.bound": 2},
    "binding": {"create pods/binding": 2, "answer bind": 2},
    "releasing": {"patch namespaces": 1, "record pod.released": 1, "patch nodes": 1},
    "answering": {"answer filter": 2, "answer prioritize": 2},
}
"""Effect -> the how manieth one it is killed at, before it and after it, one process each."""
BEFORE_BINDING: Final = ("before:create pods/binding", 2)
SETTLING: Final = [
    point
    for effect in ("patch pods", "record pod.voided")
    for side in ("before", "after")
    for point in (BEFORE_BINDING, (f"{side}:{effect}", 1))
]
"""Killed with a reservation that nobody bound, and again while that is being settled."""
POINTS: Final[dict[str, list[Point]]] = {
    name: [(f"{side}:{effect}", number) for effect, number in each.items() for side in SIDES]
    for name, each in ROUNDS.items()
} | {"settling": SETTLING}

ANYWHERE: Final = (
    *(effect for each in ROUNDS.values() for effect in each),
    *("patch pods", "record pod.voided", "record request.refused", "create events"),
    *("replace leases", "patch configmaps"),
)
OFTEN: Final = 500
PARTS: Final = 5
"""Each is a test with a seed and a ledger of its own, so that a campaign can go on another day."""
NAMES: Final = 24
KINDS: Final[dict[str, dict[str, Any]]] = {
    **DIALECTS,
    **GROUPED,
    "two": {"amounts": {"nvidia.com/gpu": "2"}},
    "five": {"amounts": {"nvidia.com/gpu": "5"}},
}
REACH_SECONDS: Final = 4.0
"""Who has led for so long and come to no such point is killed where it is."""
REST_EVERY: Final = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A cluster with a kube-scheduler that asks at one port, whoever listens there."""

    plane: ControlPlane
    identities: Identities
    port: int


@pytest.fixture(scope="module")
def world(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three nodes of eight cards, and a stock kube-scheduler."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    for name in NODES:
        add_gpu_node(plane, name)
    identities = issue(tmp_path_factory.mktemp("identities"))
    there = World(plane=plane, identities=identities, port=free_port())
    with plane.scheduler(asking(plane, there, identities, impatient=True)):
        yield there
    for name in NODES:
        remove_node(plane, name)


@pytest.mark.parametrize("what", POINTS)
def test_killed_at_every_point_it_goes_on_as_if_nothing_had_been(
    world: World, namespace: Callable[..., str], what: str, tmp_path: Path
) -> None:
    """Every Pod that is there is bound once, with what the ledger says; what went is released."""
    plane = world.plane
    url = f"sqlite:///{tmp_path / 'live.db'}"
    made = tenure("ledger", "init", "--ledger", url, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    where, there = pods_in(namespace(managed=False)), set[str]()
    for turn, point in enumerate(POINTS[what]):
        there.update(burst(plane, where, 1, prefix=f"{turn}-"))
        with run(world, url, remembered=turn > 0, point=point) as served:
            there -= until_killed(plane, where, served, point[0])
    with run(world, url, remembered=True) as served:
        wait(lambda: len(live(listed(plane, where))) == len(there), served.words)
        check_at_rest(plane, where, url, served.words)
        remove_pods(plane, where, there)
        wait(lambda: not held_by_ledger(url), served.words)
    prove(url, tmp_path)


def test_api_server_and_etcd_are_killed_under_a_service_on_sqlite(
    world: World, namespace: Callable[..., str], tmp_path: Path
) -> None:
    """Both at once, while Pods come: it goes on by itself (on Postgres: test_parts_down.py)."""
    plane, url = world.plane, f"sqlite:///{tmp_path / 'live.db'}"
    made = tenure("ledger", "init", "--ledger", url, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    where, there = pods_in(namespace(managed=False)), set[str]()
    with run(world, url, remembered=False) as served:
        there.update(burst(plane, where, 1, prefix="before-"))
        wait(lambda: len(live(listed(plane, where))) > len(there) // 4, served.words)
        for part in (plane.server, plane.etcd):
            part.kill()
        for part in (plane.etcd, plane.server):
            part.start()
        plane.wait_ready()
        there.update(burst(plane, where, 1, prefix="after-"))
        wait(lambda: len(live(listed(plane, where))) == len(there), served.words)
        check_at_rest(plane, where, url, served.words)
        assert served.process.poll() is None, served.words()
        remove_pods(plane, where, there)
        wait(lambda: not held_by_ledger(url), served.words)
    prove(url, tmp_path)


@pytest.mark.parametrize(
    "part",
    [
        pytest.param((6, 6), id="6"),
        *(
            pytest.param((OFTEN // PARTS, part), id=f"part-{part}", marks=pytest.mark.slow)
            for part in range(1, PARTS + 1)
        ),
    ],
)
def test_killed_again_and_again_it_gives_nothing_twice_and_leaks_nothing(
    world: World, namespace: Callable[..., str], ledger: str, part: tuple[int, int], tmp_path: Path
) -> None:
    """At a point or at any moment, while Pods of every kind come, end and come again by name."""
    kills, seed = part
    churn = Churn(plane=world.plane, where=pods_in(namespace(managed=False)), rng=Random(seed))
    for number in range(kills):
        churn.go_on()
        point = (
            f"{churn.rng.choice(SIDES)}:{churn.rng.choice(ANYWHERE)}",
            churn.rng.choice((1, 1, 2, 5)),
        )
        chosen = point if churn.rng.random() < 0.7 else None
        with run(world, ledger, remembered=number > 0, point=chosen, ready=False) as served:
            churn.until_killed(served, chosen)
        assert not (twice := given_twice(listed(world.plane, churn.where))), twice
        if number % REST_EVERY == REST_EVERY - 1:
            with run(world, ledger, remembered=True) as served:
                check_at_rest(world.plane, churn.where, ledger, served.words)
    with run(world, ledger, remembered=True) as served:
        pods = check_at_rest(world.plane, churn.where, ledger, served.words)
        remove_pods(world.plane, churn.where, [one["metadata"]["name"] for one in pods])
        wait(lambda: not held_by_ledger(ledger), served.words)
    prove(ledger, tmp_path)
    sys.stdout.write(f"kills={kills} seed={seed} {dict(churn.counts.most_common())}\n")


@dataclass(slots=True, kw_only=True)
class Churn:
    """Pods that come and end, a few of few names at a time, and more than there is room for."""

    plane: ControlPlane
    where: str
    rng: Random
    counts: Counter[str] = field(default_factory=Counter)

    def go_on(self) -> None:
        """Let some Pods end, some be deleted, and some come, also under the name of one before."""
        there = listed(self.plane, self.where)
        for one in self.rng.sample(there, min(len(there), self.rng.randrange(5))):
            name = one["metadata"]["name"]
            if one["spec"].get("nodeName") and self.rng.random() < 0.5:
                ended = {"status": {"phase": self.rng.choice(("Succeeded", "Failed"))}}
                self.plane.api().patch(f"{self.where}/{name}/status", ended)
                self.counts["ended"] += 1
            else:
                remove_pods(self.plane, self.where, [name])
                self.counts["deleted"] += 1
        taken = {one["metadata"]["name"] for one in listed(self.plane, self.where)}
        for number in self.rng.sample(range(NAMES), self.rng.randrange(1, 7)):
            if (name := f"p{number}") in taken:
                continue
            asked = KINDS[self.rng.choice(sorted(KINDS))]
            made = self.plane.api().create(self.where, pod(name, schedulerName="tenure", **asked))
            assert made.ok, made.message
            self.counts["created"] += 1

    def point(self) -> Point | None:
        """Draw where it is to be killed; None = at any moment."""
        if self.rng.random() < 0.3:
            return None
        what = f"{self.rng.choice(SIDES)}:{self.rng.choice(ANYWHERE)}"
        return what, self.rng.choice((1, 1, 2, 3))

    def until_killed(self, served: Served, point: Point | None) -> None:
        """Wait until it killed itself; who is to come to no point is killed at some moment."""
        patience = self.rng.uniform(0.1, REACH_SECONDS) if point is None else DIES_SECONDS
        until, went_on = time.monotonic() + patience, False
        while served.process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
            if not went_on and served.leads():
                went_on = True
                self.go_on()
                until = min(until, time.monotonic() + REACH_SECONDS)
        self.counts["at a moment" if served.process.poll() is None else "at a point"] += 1
        self.counts["while it led"] += went_on
        served.kill()
        assert served.process.returncode == -signal.SIGKILL, served.words()


def run(
    world: World,
    url: str,
    *,
    remembered: bool,
    point: Point | None = None,
    ready: bool | None = None,
) -> Any:  # noqa: ANN401 - a context manager
    """Run the product's service, killed at a point where one is named."""
    return extender(
        world.plane,
        url,
        world.identities,
        port=world.port,
        remembered=remembered,
        ready=point is None if ready is None else ready,
        forked=True,
        point=point,
    )


def until_killed(plane: ControlPlane, where: str, served: Served, point: str) -> set[str]:
    """Delete a Pod that is bound, so that something ends too; return its name once it is killed."""
    removed: set[str] = set()
    until = time.monotonic() + DIES_SECONDS
    while served.process.poll() is None:
        assert time.monotonic() < until, f"it came to no such point: {point}\n{served.words()}"
        bound = [one["metadata"]["name"] for one in live(listed(plane, where))]
        if len(bound) > 2 and not removed:
            removed.add(bound[0])
            remove_pods(plane, where, removed)
        time.sleep(0.05)
    assert served.process.returncode == -signal.SIGKILL, served.words()
    return removed
