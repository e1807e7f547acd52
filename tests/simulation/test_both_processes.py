"""
A node's agent and its CPU process beside the real service: Pods, crashes, lost and late messages.

What a Pod holds ends only once nothing of it is left of either part, and then it does.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field, replace
from typing import Final

import pytest
from msgspec import structs

from agent.decide.cgroups import CgroupNow, CgroupTree, CgroupVersion, ContainerPlanned, PodPlanned
from agent.decide.confirming import Confirming, Look, Said, answered, said, unanswered
from agent.decide.confirming_cpus import COMING_SECONDS, CpusHere, said_of_cpus
from agent.decide.container_cpus import KubeQos
from agent.decide.node_holdings import HeldByPod, NodeHoldings, all_holdings
from agent.decide.pools import PodCpus
from agent.service.wire import confirmation
from ledger.domain.annotations.cpu import ResourceStatus
from ledger.domain.annotations.proof import containers_of
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import EMPTY, CpuSet, parse_cpuset
from ledger.domain.log.events import PodAssigned, PodBound
from ledger.domain.log.state import NodeState
from scheduler.service.agents import NOTHING, Role
from scheduler.service.api.agents import read_confirmation
from scheduler.service.ending import NodeWord, PodLife, ends
from tests.support.agent_scene import Scene
from tests.support.examples import seeds
from tests.support.objects import container, pod
from tests.support.proofs import ORIGIN

NODE: Final = "uid-a"
OWN: Final = parse_cpuset("0-3")
POOL: Final = parse_cpuset("4-7")
HAS: Final = {"card": {Role.DEVICES}, "cpus": {Role.CPUS}, "both": {Role.DEVICES, Role.CPUS}}
SEEDS: Final = 60
STEPS: Final = 1_500


@dataclass(slots=True)
class Process:
    """One of the node's two; `known`: what it was told, `disk`: what outlives it."""

    role: Role
    state: Confirming = field(default_factory=Confirming)
    known: NodeHoldings = field(default_factory=lambda: all_holdings(ORIGIN, 0, ()))
    sequence: int = 0
    late: list[tuple[int, Said]] = field(default_factory=list)

    def restart(self) -> None:
        """Begin anew, with whom it called gone, by its file."""
        self.state = Confirming(gone=self.state.gone)


class World:
    """
    A node with one card and four CPUs, which one Pod has at a time.

    Attributes:
        api: UID of a Pod -> whether it has ended by the API; a missing one is deleted.
        news: what kubelet has yet to hear, in order: a Pod that is to run, or is not any more.
        kubelet: Pods that kubelet knows; `runs`: those with a container; `lingers`: those of which
            a process is left on the card; `bound`: those whose container has CPUs of its own.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.scene = Scene()
        self.agents = self.scene.agents
        self.processes = {role: Process(role) for role in Role}
        self.api: dict[str, bool] = {}
        self.news: list[tuple[str, bool]] = []
        self.kubelet: set[str] = set()
        self.runs: set[str] = set()
        self.lingers: set[str] = set()
        self.bound: set[str] = set()
        self.was_bound: set[str] = set()
        self.waits: set[str] = set()
        self.kinds: dict[str, str] = {}
        self.now = 0.0
        self.agents.heard("a", NODE)
        self.agents.heard("a", NODE, Role.CPUS)

    @property
    def node(self) -> NodeState:
        """The node by the ledger."""
        state = self.scene.live.view.recorded(NODE)
        assert state is not None
        return state

    def word(self) -> NodeWord:
        """Return what the node says."""
        return self.agents.word(self.node)

    # --- the cluster ----------------------------------------------------------------------------

    def create(self) -> None:
        """Let the next Pod get what is free, and be bound."""
        if self.node.holdings:
            return
        uid = f"p{len(self.kinds)}"
        kind = self.kinds[uid] = self.rng.choice(sorted(HAS))
        asked = pod(container(limits={"koordinator.sh/gpu": 50}), name=uid, uid=uid)
        placement = self.scene.live.placement(asked, "a")
        if Role.CPUS in HAS[kind]:
            placement = structs.replace(placement, cpuset=OWN)
        if Role.DEVICES not in HAS[kind]:
            placement = structs.replace(placement, shares=())
        self.scene.live.reserve(placement)
        self.scene.live.record(PodBound(pod_uid=uid, attempt=1, node_uid=NODE))
        self.api[uid] = False
        self.news.append((uid, True))

    def delete(self) -> None:
        """Let somebody delete a Pod by force."""
        if self.api:
            uid = self.rng.choice(sorted(self.api))
            del self.api[uid]
            self.news.append((uid, False))

    def end(self) -> None:
        """Let a Pod end by the API."""
        if self.api:
            uid = self.rng.choice(sorted(self.api))
            self.api[uid] = True
            self.news.append((uid, False))

    def learn(self) -> None:
        """Let kubelet hear of one change of the API, late or not."""
        if self.news:
            uid, is_to_run = self.news.pop(0)
            (self.kubelet.add if is_to_run else self.kubelet.discard)(uid)

    def start(self) -> None:
        """Let kubelet start a container; one with a card asks the agent first."""
        for uid in sorted(self.kubelet - self.runs):
            agent = self.processes[Role.DEVICES]
            if Role.DEVICES in HAS[self.kinds[uid]]:
                is_held = any(uid == one.pod_uid for one in agent.known.pods())
                if not (is_held and agent.state.may_start(uid)):
                    self.waits.add(uid)
                    continue
                assert self.holds(uid), "a container starts on a card that may be another's"
            self.waits.discard(uid)
            self.runs.add(uid)
            return

    def stop(self) -> None:
        """Let containers end that kubelet does not want any more; a process may be left."""
        for uid in sorted(self.runs - self.kubelet):
            self.runs.discard(uid)
            self.bound.discard(uid)
            if Role.DEVICES in HAS[self.kinds[uid]] and self.rng.random() < 0.5:
                self.lingers.add(uid)

    def restart_container(self) -> None:
        """Let a container be made anew: its cgroup has the CPUs of the pool."""
        if self.bound:
            self.bound.discard(self.rng.choice(sorted(self.bound)))

    def vanish(self) -> None:
        """Let the processes that were left end."""
        self.lingers.clear()

    def bind(self) -> None:
        """Let the CPU process give a container CPUs of its own, by what it knows."""
        process = self.processes[Role.CPUS]
        for one in process.known.pods():
            has_cpus = any(each.cpus for each in one.containers)
            if has_cpus and one.pod_uid in self.runs and self.may_bind(process, one.pod_uid):
                assert self.holds(one.pod_uid), "CPUs are bound that may be another's"
                self.bound.add(one.pod_uid)
                self.was_bound.add(one.pod_uid)

    def holds(self, uid: str) -> bool:
        """Tell whether a Pod holds something by the ledger."""
        return any(one.pod_uid == uid for one in self.node.holdings.values())

    def may_bind(self, process: Process, uid: str) -> bool:
        """Tell whether a Pod may have its CPUs."""
        return process.state.may_start(uid)

    # --- what is said ---------------------------------------------------------------------------

    def ask(self) -> None:
        """Let one of both be told what is held, and its number."""
        process = self.processes[self.rng.choice([*Role])]
        self.told(process)

    def told(self, process: Process) -> None:
        """Tell one of both."""
        held = [
            HeldByPod(
                pod_uid=one.pod_uid,
                namespace=one.namespace,
                pod_name=one.pod_name,
                containers=containers_of(one),
                attempt=one.attempt,
                kind=one.kind,
                phase=one.phase,
                position=one.opened_position,
            )
            for one in self.node.holdings.values()
        ]
        process.known = all_holdings(ORIGIN, self.scene.live.view.position, held)
        process.sequence = self.agents.taken(NODE, process.role)

    def message(self, process: Process) -> tuple[Confirming, Said]:
        """Return what one of both says now."""
        is_whole = self.rng.random() > 0.2
        places = {uid: {"main": "0"} for uid in self.kubelet | self.runs}
        if process.role is Role.DEVICES:
            have = {uid for uid in self.runs if Role.DEVICES in HAS[self.kinds[uid]]}
            look = Look(
                places=places,
                live=frozenset(self.runs | self.lingers),
                complete=is_whole,
                started={(uid, "main"): frozenset({"GPU-a-0"}) for uid in have},
            )
            wants = frozenset(self.waits & self.kubelet)
            return said(process.state, process.known, look, now=self.now, wants=wants)
        cgroups = tuple(_cgroup(uid, OWN if uid in self.bound else POOL) for uid in self.runs)
        here = CpusHere(
            tree=CgroupTree(version=CgroupVersion.V2, cgroups=cgroups),
            planned=tuple(map(_planned, sorted(self.kubelet | self.runs))),
            places=places,
            online=OWN | POOL,
            complete=is_whole,
        )
        owners = {one.pod_uid: PodCpus(cpus=OWN) for one in process.known.pods()}
        return said_of_cpus(process.state, process.known, here, owners, now=self.now)

    def speak(self) -> None:
        """Let one of both look and say; the message, or its answer, may be lost."""
        process = self.processes[self.rng.choice([*Role])]
        if self.rng.random() < 0.1:
            process.restart()
        process.state, message = self.message(process)
        number = process.sequence + 1
        fate = self.rng.choice(("answered", "answered", "lost", "unheard", "late"))
        if fate == "late":
            process.late.append((number, message))
        if fate in {"unheard", "late"}:
            process.state = unanswered(process.state, message)
            return
        ended = self.hear(process, number, message)
        if self.rng.random() < 0.3:  # a proxy may say it twice
            self.hear(process, number, message)
        if fate == "lost" or ended is None:
            process.state = unanswered(process.state, message)
            return
        process.sequence = self.agents.taken(NODE, process.role)
        held = {uid for uid, _ in process.known.held}
        process.state = answered(process.state, message, held, self.believed(ended))

    def believed(self, ended: set[str]) -> set[str]:
        """Return of whom a process believes that they hold nothing, by the answer to `here`."""
        return ended

    def hear(self, process: Process, number: int, message: Said) -> set[str] | None:
        """
        Do what the listener does (`AgentRoutes.confirm`), by the words themselves.

        Return who is here and holds nothing by the service; None = the message was late.
        """
        body = read_confirmation(confirmation(message, number))
        if self.agents.take(NODE, body.sequence, process.role) is None:
            return None
        here = self.agents.here(NODE, body.here, process.role)
        self.agents.gone(NODE, body.gone, process.role)
        if body.crossing is not None:
            self.agents.crosses(NODE, body.crossing)
        for one in body.assigned:
            asyncio.run(self.agents.assigned(NODE, one, process.role))
        return {uid for uid, answer in here.items() if answer == NOTHING}

    def hear_late(self) -> None:
        """Let a message come that was sent long ago."""
        process = self.processes[self.rng.choice([*Role])]
        if process.late:
            self.hear(process, *process.late.pop(self.rng.randrange(len(process.late))))

    def release(self) -> None:
        """Let the service end what has ended."""
        pods = {
            uid: PodLife(uid=uid, namespace="ml", name=uid, node="a", ended="Completed" * is_over)
            for uid, is_over in self.api.items()
        }
        found = ends(
            pods,
            [self.node],
            {NODE: self.word()},
            is_under_way=lambda _: False,
            last_seen={},
            holds_devices=lambda _: False,
            gone_seconds=lambda _: 0.0,
        )
        for event in found.releases:
            uid = event.pod_uid
            parts = HAS[self.kinds[uid]]
            if Role.DEVICES in parts:
                assert uid not in self.runs | self.lingers, "the card is free while it is used"
            assert uid not in self.bound, "the CPUs are free while a container has them"
            self.scene.live.record(event)

    def check(self) -> None:
        """Compare what is assigned with what was there."""
        for event in self.scene.live.ledger.log:
            if isinstance(event, PodAssigned) and Role.CPUS in HAS[self.kinds[event.pod_uid]]:
                assert event.pod_uid in self.was_bound, "assigned, and its CPUs never were"

    def step(self) -> None:
        """Let something happen."""
        self.now += self.rng.choice((0.5, 5.0, 30.0))
        steps = (
            *(self.create, self.learn, self.start, self.stop, self.bind, self.ask, self.ask),
            *(self.speak, self.speak, self.speak, self.release, self.hear_late, self.vanish),
            self.rng.choice((self.delete, self.end, self.restart_container)),
        )
        self.rng.choice(steps)()

    def settle(self) -> None:
        """Let everything work for a while."""
        self.news += [(uid, False) for uid in self.api]
        self.api.clear()
        for _ in range(4):
            self.now += COMING_SECONDS
            while self.news:
                self.learn()
            self.stop()
            self.vanish()
            for process in self.processes.values():
                self.told(process)
                self.rng.random = lambda: 1.0  # type: ignore[method-assign]
                process.state, message = self.message(process)
                assert self.hear(process, process.sequence + 1, message) is not None
                process.state = answered(process.state, message, set())
            self.release()
        assert not self.node.holdings
        self.check()


def _cgroup(uid: str, cpus: CpuSet) -> CgroupNow:
    return CgroupNow(
        path=f"pod{uid}/{uid}-main",
        pod_uid=uid,
        container=f"{uid}-main",
        cpus=cpus,
        effective=cpus,
        mems=EMPTY,
    )


def _planned(uid: str) -> PodPlanned:
    return PodPlanned(
        uid=uid,
        qos=QosClass.LSR,
        kube_qos=KubeQos.GUARANTEED,
        status=ResourceStatus(),
        containers=(ContainerPlanned(name="main", id=f"{uid}-main"),),
    )


def run(world: World) -> World:
    """Let a world go its way to its end."""
    for _ in range(STEPS):
        world.step()
    world.settle()
    return world


@pytest.mark.parametrize("seed", seeds(12, SEEDS))
def test_nothing_is_free_while_it_is_used_and_nothing_is_lost(seed: int) -> None:
    """Of a Pod with a card, with CPUs, or with both."""
    world = run(World(random.Random(seed)))
    assert len(world.kinds) > 5


def goes_wrong(kind: type[World]) -> bool:
    """Tell whether something goes wrong in one of the worlds."""
    for seed in range(SEEDS):
        try:
            run(kind(random.Random(seed)))
        except AssertionError:
            return True
    return False


def test_one_word_for_both_would_free_what_is_used() -> None:
    """So the simulation can fail: whoever speaks first ends all that a Pod holds."""

    class OneVoice(World):
        """The service takes the word of either for the other's."""

        def word(self) -> NodeWord:
            """Return both words as one."""
            word = super().word()
            assert word.cpus is not None
            return replace(word, gone=word.gone | word.cpus.gone, cpus=None)

    assert goes_wrong(OneVoice)


def test_cpus_for_a_pod_that_was_called_gone_would_be_given_twice() -> None:
    """So the simulation can fail: the process binds what it has just called gone."""

    class Careless(World):
        """The CPU process binds whoever holds CPUs by what it was told."""

        def may_bind(self, process: Process, uid: str) -> bool:
            """Let it."""
            del process, uid
            return True

    assert goes_wrong(Careless)


def test_cpus_by_older_holdings_than_the_answer_would_be_given_twice() -> None:
    """So the simulation can fail: who is taken back has its CPUs, whatever it holds by then."""

    class Deaf(World):
        """Each process overhears that a Pod holds nothing any more."""

        def believed(self, ended: set[str]) -> set[str]:
            """Return nobody."""
            del ended
            return set()

    assert goes_wrong(Deaf)
