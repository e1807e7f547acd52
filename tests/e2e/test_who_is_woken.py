"""Services, replicas and nodes end at random: no Pod waits for long that has room."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from ledger.store.open import open_ledger
from ledger.store.reading.timetravel import load_state
from tests.e2e.test_burst import is_refused
from tests.e2e.test_replicas import OURS, Labelled
from tests.support.campaign import print_figures
from tests.support.forked import Point, forked
from tests.support.kube.at_rest import listed, live, placed_by_simulation, wait
from tests.support.kube.balancer import balancing
from tests.support.kube.bursts import remove_pods
from tests.support.kube.control_plane import ADMIN, ControlPlane, free_port
from tests.support.kube.inventory import DEVICES, TOPOLOGIES, know
from tests.support.kube.pods import pod, pods_in
from tests.support.kube.schedulers import (
    API_NAME,
    Identities,
    Served,
    add_gpu_node,
    asking,
    extender,
    remove_node,
)
from tests.support.stores import PostgresStore

NODES: Final = ("woken-1", "woken-2", "woken-3")
CARDS: Final = 2
ASKS: Final = ("50", "50", "100", "200")
"""Percent of cards, in Koordinator's words."""
PODS: Final = 9
"""They ask for 9 cards of 6 on average: few wait, so that each is refused before a late wake."""
CALM_SECONDS: Final = 2.0
"""kube-scheduler has asked again about all who waited while nobody answered."""
WAIT_SECONDS: Final = 10.0
PATIENCE_SECONDS: Final = 120.0
"""kube-scheduler asks by itself after 300."""
CAMPAIGN: Final = 50
KILLED_EARLY: Final = "killed before it wakes"
SAMPLE: Final = ("clear", "all killed", "leader ends")
ACTS: Final = (*SAMPLE, "leader killed", KILLED_EARLY)


@dataclass(slots=True, kw_only=True)
class Replica:
    """A replica of the service that ends, and starts again where it was."""

    plane: ControlPlane
    ledger: str
    identities: Identities
    name: str
    port: int = field(default_factory=free_port)
    api: int = field(default_factory=free_port)
    stack: ExitStack = field(default_factory=ExitStack)
    _served: Served | None = None

    @property
    def served(self) -> Served:
        """Return the process that runs."""
        assert self._served is not None, "it was started"
        return self._served

    def start(self, *, remembered: bool = True, point: Point | None = None) -> None:
        """Start it; it takes the lead, or stands by."""
        self._served = self.stack.enter_context(
            extender(
                self.plane,
                self.ledger,
                self.identities,
                port=self.port,
                api=self.api,
                remembered=remembered,
                ready=False,
                replica=self.name,
                pod=self.name,
                forked=True,
                point=point,
            )
        )

    def has_ended(self) -> bool:
        """Tell whether it has ended by itself."""
        return self.served.process.poll() is not None

    def end(self, *, gently: bool = False) -> None:
        """End it, with or without a word."""
        if gently:
            self.served.process.terminate()
            self.served.process.wait(30)
        else:
            self.served.kill()
        self.stack.close()


@dataclass(slots=True, kw_only=True)
class World:
    """
    Two replicas, a kube-scheduler that asks whoever leads, and more Pods than there is room for.

    Attributes:
        longest: seconds from the moment at which somebody led again until the last Pod was bound.
    """

    plane: ControlPlane
    where: str
    ledger: str
    replicas: list[Replica]
    folder: Path
    rng: Random
    number: int = 0
    longest: float = 0.0

    def leader(self) -> Replica:
        """Return who leads, once somebody does."""
        wait(lambda: any(one.served.leads() for one in self.replicas), self.words)
        return next(one for one in self.replicas if one.served.leads())

    def words(self) -> str:
        """Return the ends of what the replicas logged."""
        return "\n".join(one.served.words() for one in self.replicas)

    def ask(self) -> None:
        """Let Pods come until there are as many as at the start."""
        for _ in range(PODS - len(listed(self.plane, self.where))):
            self.number += 1
            amounts = dict.fromkeys(
                ("koordinator.sh/gpu-core", "koordinator.sh/gpu-memory-ratio"),
                self.rng.choice(ASKS),
            )
            asked = pod(f"woken-{self.number}", amounts, schedulerName="tenure")
            assert self.plane.api().create(self.where, asked).ok

    def end_pods(self, count: int) -> None:
        """Let so many of the Pods with a node end."""
        bound = [str(one["metadata"]["name"]) for one in live(listed(self.plane, self.where))]
        remove_pods(self.plane, self.where, self.rng.sample(bound, min(len(bound), count)))

    def play(self, act: str) -> list[str]:
        """Let something end, and Pods beside it; return who waits for too long, in words."""
        self.ask()
        before, after = self.rng.choice([(1, 0), (0, 1), (1, 1)])
        after *= act != "clear"  # kube-scheduler would ask again for that alone
        if before:
            self.end_pods(self.rng.randint(1, 3))
            time.sleep(self.rng.choice([0.0, 0.01, 0.05, 0.2]))
        leader = self.leader()
        if act == "clear":
            self._clear(leader, self.rng.choice(NODES))
        elif act == KILLED_EARLY:
            self._kill_early(leader)
        else:
            ends = self.replicas if act == "all killed" else [leader]
            for one in ends:
                one.end(gently=act == "leader ends")
            for one in ends:
                one.start()
        if after:
            self.end_pods(self.rng.randint(1, 3))
        self.leader()
        since, until = time.time(), time.monotonic() + PATIENCE_SECONDS
        while waiting := placed_by_simulation(
            self.plane, listed(self.plane, self.where), self.folder
        ):
            if time.monotonic() > until:
                return [f"after {act} waits: {name}" for name in waiting]
            time.sleep(0.5)
        bound = live(listed(self.plane, self.where))
        self.longest = max([self.longest, *(bound_at(one) - since for one in bound)])
        return []

    def _kill_early(self, leader: Replica) -> None:
        """Let a Pod end, and with it all replicas, once that is recorded and nobody is woken."""
        for one in self.replicas:
            one.end()
        leader.start(point=("before:patch nodes", 1))
        wait(lambda: leader.has_ended() or leader.served.leads(), self.words)
        time.sleep(CALM_SECONDS)
        self.end_pods(1)
        wait(leader.has_ended, self.words)
        leader.end()
        for one in self.replicas:
            one.start()

    def _clear(self, leader: Replica, name: str) -> None:
        """Let a node go with its Pods and come again, and say that nothing runs there any more."""
        if not any(one["spec"]["nodeName"] == name for one in live(listed(self.plane, self.where))):
            return
        remove_node(self.plane, name)
        wait(lambda: self._is_lost(name), self.words)
        for one in live(listed(self.plane, self.where)):
            if one["spec"]["nodeName"] == name:
                remove_pods(self.plane, self.where, [one["metadata"]["name"]])
        add_gpu_node(self.plane, name, gpus=CARDS)
        self.ask()
        wait(self._all_refused, self.words)
        token = self.folder / "token"
        token.write_text(self.plane.tokens[ADMIN])
        said = forked(
            *("ledger", "clear", name, "--reason", "powered off"),
            *("--server", f"https://127.0.0.1:{leader.api}", "--server-name", API_NAME),
            *("--token-file", token, "--server-ca", leader.identities.server / "ca.crt"),
            cwd=self.folder,
        )
        assert said.returncode == 0, said.stderr

    def _all_refused(self) -> bool:
        """Tell whether kube-scheduler was told of every Pod without a node that none takes it."""
        pods = listed(self.plane, self.where)
        return all(is_refused(one) for one in pods if not one["spec"].get("nodeName"))

    def _is_lost(self, name: str) -> bool:
        with open_ledger(self.ledger, mode="read") as ledger:
            nodes = load_state(ledger).state.nodes.values()
            return any(state.name == name and state.lost_holdings() for state in nodes)


@pytest.fixture
def world(
    plane: ControlPlane,
    namespace: Callable[..., str],
    identities: Identities,
    empty_postgres: PostgresStore,
    tmp_path: Path,
) -> Iterator[World]:
    """Two replicas over one ledger."""
    know(plane, DEVICES, "Device")
    know(plane, TOPOLOGIES, "NodeResourceTopology")
    store, where = empty_postgres.copy(), pods_in(namespace(managed=False))
    with ExitStack() as stack:
        stack.callback(store.server.run, f"DROP DATABASE {store.database} WITH (FORCE)")
        replicas: list[Replica] = []
        for name in ("woken-a", "woken-b"):
            made = plane.api().create(OURS, pod(name, {}, schedulerName="nobody"))
            assert made.ok, made.message
            stack.callback(remove_pods, plane, OURS, [name])
            one = Replica(plane=plane, ledger=store.url, identities=identities, name=name)
            stack.callback(one.stack.close)
            one.start(remembered=bool(replicas))
            replicas.append(one)
        for name in NODES:
            add_gpu_node(plane, name, gpus=CARDS)
            stack.callback(remove_node, plane, name)
        balancer = stack.enter_context(
            balancing(
                [Labelled(port=one.port, probes=0, plane=plane, pod=one.name) for one in replicas]
            )
        )
        config = asking(plane, balancer, identities, impatient=True)
        stack.enter_context(plane.scheduler(config))
        made_world = World(
            plane=plane,
            where=where,
            ledger=store.url,
            replicas=replicas,
            folder=tmp_path,
            rng=Random(37),
        )
        yield made_world
        names = [one["metadata"]["name"] for one in listed(plane, where)]
        remove_pods(plane, where, names)


def bound_at(one: Mapping[str, Any]) -> float:
    """Return when a Pod was bound."""
    (text,) = (
        each["lastTransitionTime"]
        for each in one["status"]["conditions"]
        if each["type"] == "PodScheduled"
    )
    return datetime.fromisoformat(text).timestamp()


def test_no_pod_waits_in_vain_after_an_end(world: World) -> None:
    """Each kind of end once."""
    assert [words for act in SAMPLE for words in world.play(act)] == []


@pytest.mark.slow
def test_no_pod_waits_for_long_that_has_room_after_fifty_ends(world: World) -> None:
    """Whichever comes when. It is our waking that counts, not kube-scheduler's back-off."""
    acts, wrong = Counter[str](), list[str]()
    for _ in range(CAMPAIGN):
        act = world.rng.choice(ACTS)
        acts[act] += 1
        wrong += world.play(act)
    print_figures("ends", {**acts, "longest wait, ms": int(1000 * world.longest)})
    assert wrong == []
    assert world.longest <= WAIT_SECONDS
