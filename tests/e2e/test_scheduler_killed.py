"""The live scheduler is killed at every named point between two effects, and goes on."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from ledger.domain.log.events import PodBound, PodReserved
from ledger.store.open import open_ledger
from tests.support.kube.bursts import burst, eventually, remove_pods, settled
from tests.support.kube.control_plane import ControlPlane, free_port
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pods_in
from tests.support.kube.schedulers import (
    CARD_GIB,
    GIB,
    Identities,
    Served,
    add_gpu_node,
    asking,
    extender,
    issue,
    remove_node,
)
from tests.support.process import tenure
from tests.support.recount import differences, held_by_ledger, held_by_pods, most

NODES: Final = ("killed-1", "killed-2", "killed-3")
SIDES: Final = ("before", "after")
DIES_SECONDS: Final = 90.0
KILLED: Final = "tests.support.killed_scheduler"
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
POINTS: Final = {
    name: [(f"{side}:{effect}", number) for effect, number in each.items() for side in SIDES]
    for name, each in ROUNDS.items()
} | {"settling": SETTLING}


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
    with plane.scheduler(asking(plane, there, identities)):
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
        bound = settled(plane, where, len(there))
        missing = there - {one["metadata"]["name"] for one in bound}
        assert not missing, f"{sorted(missing)}\n{served.words()}"
        eventually(lambda: not differences(bound, url))
        check_events(url, bound)
        verified = tenure("verify", "--ledger", url, cwd=tmp_path)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        remove_pods(plane, where, there)
        eventually(lambda: not held_by_ledger(url))


def run(world: World, url: str, *, remembered: bool, point: tuple[str, int] | None = None) -> Any:  # noqa: ANN401 - a context manager
    """Run the product's service, killed at a point where one is named."""
    program = ("tenure",) if point is None else (KILLED, point[0], str(point[1]))
    return extender(
        world.plane,
        url,
        world.identities,
        port=world.port,
        remembered=remembered,
        ready=point is None,
        program=program,
    )


def until_killed(plane: ControlPlane, where: str, served: Served, point: str) -> set[str]:
    """Delete a Pod that is bound, so that something ends too; return its name once it is killed."""
    removed: set[str] = set()
    until = time.monotonic() + DIES_SECONDS
    while served.process.poll() is None:
        assert time.monotonic() < until, f"it came to no such point: {point}\n{served.words()}"
        bound = [
            one["metadata"]["name"]
            for one in plane.api().get(where).body["items"]
            if one["spec"].get("nodeName")
        ]
        if len(bound) > 2 and not removed:
            removed.add(bound[0])
            remove_pods(plane, where, removed)
        time.sleep(0.05)
    assert served.process.returncode == -signal.SIGKILL, served.words()
    return removed


def check_events(url: str, bound: list[dict[str, Any]]) -> None:
    """Compare the ledger's events with the Pods: each is bound once, where it was reserved for."""
    with open_ledger(url, mode="read") as ledger:
        recorded = [one.event for one in ledger.read_events()]
    held = {event.pod_uid: event for event in recorded if isinstance(event, PodReserved)}
    times = Counter(event.pod_uid for event in recorded if isinstance(event, PodBound))
    assert max(times.values()) == 1, "nothing is bound twice"
    for one in bound:
        event = held[one["metadata"]["uid"]]
        assert times[event.pod_uid] == 1, one["metadata"]["name"]
        assert event.node_name == one["spec"]["nodeName"]
        assert event.annotations.items() <= one["metadata"]["annotations"].items()
    assert most(held_by_pods(bound), "memory") <= CARD_GIB * GIB
