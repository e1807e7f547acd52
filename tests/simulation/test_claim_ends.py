"""
A node's life with claims, and everything that can go wrong before one of them may end.

Pods are deleted by force while they run, watches and messages are late or lost, users and
finalizers are taken off, the agent falls silent, and the gate is killed between any two steps.
Whatever runs on a card holds it by the ledger; and once all is over, nothing is held.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pytest

from agent.claim_checkpoint import PreparedClaim
from agent.decide.claim_ends import ClaimsHere, EndingClaim, ended
from ledger.domain.errors import LedgerError
from ledger.domain.log.events import ClaimObserved, ClaimReserved, RequestRefused
from ledger.domain.systems import Claimant
from ledger.store.writing.commands import Command, Outcome, Refused
from scheduler.gate.decide import Standing
from scheduler.gate.leaving import Life, NodeOfClaim, Stays, stays
from scheduler.service import claim_ends
from scheduler.service.claim_ends import ClaimEnds
from scheduler.service.gate import OPEN_SECONDS
from scheduler.service.wakeups import Wakeups
from tests.support.gated import CARDS, claim, result
from tests.support.live import MemoryLedger
from tests.unit.scheduler.service.test_gate import World, patched

NODE: Final = "node-1"
STEPS: Final = 120
SILENT_SECONDS: Final = 120.0


@dataclass(slots=True)
class Pod:
    """A Pod as the API has it."""

    claim: str
    is_bound: bool = False
    is_ended: bool = False
    is_terminated: bool = False

    def life(self) -> Life:
        """Return what that says of its life."""
        if not self.is_bound:
            return Life.UNBOUND
        if not self.is_ended:
            return Life.RUNS
        return Life.OVER if self.is_terminated else Life.GONE


@dataclass(slots=True)
class Kubelet:
    """
    The node: Pods that kubelet heard of, and what runs.

    Attributes:
        prepared: by name of the claim, the cards it has, and the Pods that run with it.
    """

    heard: set[str] = field(default_factory=set)
    prepared: dict[str, tuple[tuple[str, ...], set[str]]] = field(default_factory=dict)

    def runs(self) -> set[str]:
        """Return the Pods that run."""
        return {pod for _, pods in self.prepared.values() for pod in pods}


class Ledger(MemoryLedger):
    """One that knows a refusal again that another process told it."""

    async def record(self, command: Command) -> Outcome:
        """Record a command, unless it is such a one."""
        if any(one.idempotency_key in self.keys for one in command.events):
            assert all(isinstance(one.event, RequestRefused) for one in command.events), command
            return Refused(error=LedgerError("told before"))
        return await super().record(command)


class Leaves:
    """Says what may go by what the service knows of Pods and of the agent."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        ledger = sim.world.ledger
        self.asks = ClaimEnds(sim.world.clock.monotonic, lambda: ledger.epoch << 32, Wakeups())

    def runs(self, pod_uid: str) -> bool:
        """Tell whether a Pod runs, by the watch."""
        return self._sim.seen.get(pod_uid, Life.GONE) is Life.RUNS

    def kept(
        self, name: str, standing: Standing | None, consumers: Sequence[Claimant]
    ) -> Stays | None:
        """Return why what a claim has stays."""
        node = NodeOfClaim()
        if standing is not None:
            opening, now = standing.opening, self._sim.world.clock.now
            node = NodeOfClaim(
                name="n1",
                has_witness=self.asks.reads(NODE) is not False,
                agent_ready=now - self._sim.heard_at < SILENT_SECONDS,
                kubelet_ready=True,
                confirmed=self.asks.confirmed(opening.claim_uid, opening.attempt),
            )
        return stays(name, {one: self._sim.life(one.uid) for one in consumers}, node)

    def ask(self, standing: Standing, consumers: Sequence[Claimant]) -> None:
        """Ask the node."""
        opening = standing.opening
        self.asks.ask(
            NODE,
            claim_ends.EndingClaim(
                claim_uid=opening.claim_uid,
                attempt=opening.attempt,
                namespace=opening.namespace,
                name=opening.claim_name,
                pods=tuple(
                    one.uid for one in consumers if self._sim.life(one.uid) is not Life.UNBOUND
                ),
            ),
        )


class Simulation:
    """One seed's life of a node."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World()
        self.world.ledger = Ledger()
        self.pods: dict[str, Pod] = {}
        self.seen: dict[str, Life] = {}  # by the watch
        self.pod_news: deque[tuple[str, Life]] = deque()
        self.claim_news: deque[tuple[str, dict[str, Any] | None]] = deque()
        self.kubelet, self.kubelet_news = Kubelet(), deque[tuple[str, bool]]()
        self.messages: list[tuple[EndingClaim, ...]] = []
        self.told: tuple[EndingClaim, ...] = ()
        self.heard_at = 0.0
        self.count = 0
        self.announced: dict[str, str] = {}  # UID of a claim -> the version that watches were told
        self.restart()

    # --- the service ----------------------------------------------------------------------------

    def restart(self) -> None:
        """Let a new process begin with what the ledger has."""
        world = self.world
        opened = []
        state = world.accounts.node("n1")
        assert state is not None
        for event in world.ledger.log:
            if isinstance(event, ClaimReserved | ClaimObserved):
                held = state.claims.get(f"{event.claim_uid}/{event.attempt}")
                if held is not None:
                    opened.append((event, held))
        self.leaving = world.leaving = Leaves(self)  # type: ignore[assignment]
        world.ledger.epoch += 1
        world.start(opened)
        self.told, self.heard_at = (), world.clock.now
        self.seen = {uid: pod.life() for uid, pod in self.pods.items()}
        self.pod_news.clear()
        self.claim_news.clear()
        self.announced = {
            one["metadata"]["uid"]: one["metadata"]["resourceVersion"]
            for one in self.claims().values()
        }
        for path, item in world.server.objects.items():
            if "/resourceclaims/" in path:
                world.book.put(item["metadata"]["uid"], item)

    def settle(self) -> None:
        """Record what the watch showed."""
        self.world.gate.look_again()
        asyncio.run(self.world.gate.settle())
        self._follow()

    def _follow(self) -> None:
        """Let what agents are asked follow the ledger, as the live service does."""
        for event in self.world.accounts.events[self.count :]:
            self.leaving.asks.take(event)
        self.count = len(self.world.accounts.events)

    def life(self, uid: str) -> Life:
        """Return what the service knows of a Pod."""
        return self.seen.get(uid, Life.GONE)

    def watch(self) -> None:
        """Let the service hear of some news, in order."""
        for _ in range(self.rng.randint(0, len(self.pod_news))):
            uid, life = self.pod_news.popleft()
            self.seen[uid] = life
            if life is Life.RUNS:
                self.leaving.asks.ran(uid)
        for _ in range(self.rng.randint(0, len(self.claim_news))):
            uid, item = self.claim_news.popleft()
            if item is None:
                self.world.book.drop(uid)
            else:
                self.world.book.put(uid, item)

    # --- the API --------------------------------------------------------------------------------

    def claims(self) -> dict[str, dict[str, Any]]:
        """Return the claims that are stored, by name."""
        found = self.world.server.objects.items()
        return {
            each["metadata"]["name"]: each for path, each in found if "/resourceclaims/" in path
        }

    def store(self, item: dict[str, Any]) -> None:
        """Store a claim; watches hear of it some time."""
        self.world.store(item)

    def announce(self) -> None:
        """Let watches hear some time of the claims that changed, whoever wrote them."""
        for item in self.claims().values():
            uid, version = item["metadata"]["uid"], item["metadata"]["resourceVersion"]
            if self.announced.get(uid) != version:
                self.announced[uid] = version
                self.claim_news.append((uid, item))

    def write(self, name: str, new: dict[str, Any]) -> bool:
        """Write a claim's status; it is asked, and the write may be lost."""
        old = self.claims()[name]
        response = self.world.asked(old, new)
        self._follow()
        if response["allowed"] and self.rng.random() < 0.9:
            patched(new, response)
            self.store(new)
            return True
        return False

    def pod_is(self, uid: str) -> None:
        """Let watches hear of a Pod some time."""
        pod = self.pods.get(uid)
        self.pod_news.append((uid, Life.GONE if pod is None else pod.life()))
        self.kubelet_news.append((uid, pod is not None and pod.is_bound and not pod.is_ended))

    # --- what happens ---------------------------------------------------------------------------

    def create(self) -> None:
        """Make a Pod, with a claim of its own or one that is there."""
        number = len(self.pods) + self.rng.randint(0, 10**9)
        names = list(self.claims())
        name = self.rng.choice(names) if names and self.rng.random() < 0.3 else f"c{number}"
        if name not in names:
            self.store(claim(name, 0))
        uid = f"uid-p{number}"
        self.pods[uid] = Pod(claim=name)
        self.pod_is(uid)

    def schedule(self) -> None:
        """Let a Pod be scheduled: its claim is allocated for it, or it joins the others."""
        waiting = [uid for uid, pod in self.pods.items() if not pod.is_bound and not pod.is_ended]
        if not waiting:
            return
        uid = self.rng.choice(waiting)
        name = self.pods[uid].claim
        item = self.claims().get(name)
        if item is None:
            return
        users = [one["name"] for one in item["status"].get("reservedFor", ())]
        version = int(item["metadata"]["resourceVersion"])
        if "allocation" in item["status"]:
            results = item["status"]["allocation"]["devices"]["results"]
            self.store(claim(name, version, *results, pods=[*users, uid.removeprefix("uid-")]))
        else:
            card = result(self.rng.randrange(CARDS))
            if not self.write(name, claim(name, version, card, pods=[uid.removeprefix("uid-")])):
                return
        self.pods[uid].is_bound = True
        self.pod_is(uid)

    def start(self) -> None:
        """Let kubelet hear of news, and start a Pod whose claim is reserved for it."""
        while self.kubelet_news:  # what came together is heard together
            uid, is_there = self.kubelet_news.popleft()
            (self.kubelet.heard.add if is_there else self.kubelet.heard.discard)(uid)
            if self.rng.random() < 0.3:
                break
        for uid in sorted(self.kubelet.heard - self.kubelet.runs()):
            pod = self.pods.get(uid)
            item = None if pod is None else self.claims().get(pod.claim)
            if pod is None or item is None or "allocation" not in item["status"]:
                continue
            if uid in {one["uid"] for one in item["status"].get("reservedFor", ())}:
                results = item["status"]["allocation"]["devices"]["results"]
                cards = tuple(one["device"] for one in results)
                self.kubelet.prepared.setdefault(pod.claim, (cards, set()))[1].add(uid)

    def stop(self) -> None:
        """Let kubelet end what runs though it is not to, or a Pod end by itself."""
        for name, (_, pods) in list(self.kubelet.prepared.items()):
            for uid in list(pods):
                by_itself = self.rng.random() < 0.2
                if uid in self.kubelet.heard and not by_itself:
                    continue
                pods.discard(uid)
                self.kubelet.heard.discard(uid)
                if uid in self.pods:
                    self.pods[uid].is_ended = self.pods[uid].is_terminated = True
                    self.pod_is(uid)
            if not pods:
                del self.kubelet.prepared[name]

    def delete_pod(self) -> None:
        """Delete a Pod by force: the API forgets it at once."""
        if self.pods:
            uid = self.rng.choice(sorted(self.pods))
            del self.pods[uid]
            self.pod_is(uid)

    def let_go(self) -> None:
        """Let the claim controller do what it has to."""
        for name, item in self.claims().items():
            users = [one["uid"] for one in item["status"].get("reservedFor", ())]
            there = [one for one in users if one in self.pods and not self.pods[one].is_ended]
            version = int(item["metadata"]["resourceVersion"])
            if "allocation" in item["status"] and users and not there:
                self.write(name, claim(name, version))
            elif len(there) < len(users):
                results = item["status"].get("allocation", {}).get("devices", {}).get("results", ())
                left = [one.removeprefix("uid-") for one in there]
                self.store(claim(name, version, *results, pods=left))

    def meddle(self) -> None:
        """
        Let an administrator empty a list of users, deallocate, or delete a claim at once.

        The watch is quicker than people: docs/adr/0030 says what it is without that.
        """
        self.announce()
        while self.pod_news or self.claim_news:
            self.watch()
        allocated = [name for name, item in self.claims().items() if "allocation" in item["status"]]
        if not allocated:
            return
        name = self.rng.choice(allocated)
        item = self.claims()[name]
        version = int(item["metadata"]["resourceVersion"])
        what = self.rng.random()
        if what < 0.4:
            results = item["status"]["allocation"]["devices"]["results"]
            self.store(claim(name, version, *results))
        elif what < 0.7:
            self.write(name, claim(name, version))
        elif not any(pod.claim == name and not pod.is_ended for pod in self.pods.values()):
            self.strip(name)

    def strip(self, name: str) -> None:
        """Let a claim be gone without a word of the gate."""
        uid = self.claims()[name]["metadata"]["uid"]
        path = next(path for path in self.world.server.objects if path.endswith(f"/{name}"))
        del self.world.server.objects[path]
        self.world._list()
        self.claim_news.append((uid, None))

    def agent(self) -> None:
        """Let the agent ask, look, and send; a message may be late, or come twice."""
        asked = self.told
        here = ClaimsHere(
            prepared=tuple(
                PreparedClaim(
                    claim_uid=f"claim-{name}", namespace="ml", name=name, pods=frozenset(pods)
                )
                for name, (_, pods) in self.kubelet.prepared.items()
            )
        )
        there = frozenset(self.kubelet.heard | self.kubelet.runs())
        self.messages.append(ended(asked, here, there))
        for message in list(self.messages):
            if self.rng.random() < 0.7:
                if self.rng.random() < 0.9:
                    self.messages.remove(message)
                said = msgspec.json.encode(list(map(_plain, message)))
                self.leaving.asks.said(
                    NODE, msgspec.json.decode(said, type=list[claim_ends.EndingClaim])
                )
        self.heard_at = self.world.clock.now
        self.leaving.asks.heard(NODE, reads=True)
        _, ends = self.leaving.asks.told(NODE)
        self.told = tuple(
            EndingClaim(
                claim_uid=one.claim_uid,
                attempt=one.attempt,
                namespace=one.namespace,
                name=one.name,
                pods=one.pods,
                question=one.question,
            )
            for one in ends
        )

    def pass_time(self) -> None:
        """Let some time pass; the agent may have been silent for long."""
        self.world.clock.now += self.rng.choice((0.1, 1.0, 70.0, 130.0))

    # --- what holds -----------------------------------------------------------------------------

    def held(self) -> set[tuple[str, str]]:
        """Return which claims hold which cards, by the ledger."""
        state = self.world.accounts.node("n1")
        assert state is not None
        return {
            (one.pod_uid, f"gpu-{share.minor}")
            for one in state.claims.values()
            for share in one.shares
        }

    def check(self) -> None:
        """Whatever runs on a card holds it, and nobody else does."""
        self.announce()
        held, on = self.held(), dict[str, str]()
        for name, (cards, _) in self.kubelet.prepared.items():
            for card in cards:
                assert (f"claim-{name}", card) in held, f"{name} runs on {card}, which is free"
                assert on.setdefault(card, name) == name, f"{card} runs for two claims"
        taken = [card for _, card in held]
        assert len(taken) == len(set(taken)), "one card for two whole holders"

    def run(self) -> None:
        """Let things happen, then let all of it end."""
        acts = (
            *(self.create, self.create, self.schedule, self.schedule, self.start, self.start),
            *(self.stop, self.delete_pod, self.let_go, self.meddle, self.agent, self.agent),
            *(self.watch, self.watch, self.settle, self.settle, self.restart, self.pass_time),
        )
        for _ in range(STEPS):
            self.rng.choice(acts)()
            self.check()
        for uid in list(self.pods):
            del self.pods[uid]
            self.pod_is(uid)
        for _ in range(40):
            for act in (self.watch, self.start, self.stop, self.let_go, self.agent, self.settle):
                act()
                self.check()
            idle = [
                name
                for name, item in self.claims().items()
                if "allocation" in item["status"] and not item["status"].get("reservedFor")
            ]
            for name in idle:  # nobody's controller takes those: they are deleted
                version = int(self.claims()[name]["metadata"]["resourceVersion"])
                self.write(name, claim(name, version))
            if not self.held() and not self.claim_news:
                break
            self.world.clock.now += OPEN_SECONDS / 4
        assert not self.held(), "what is over is held for ever"


def _plain(one: EndingClaim) -> dict[str, Any]:
    said = {"claim_uid": one.claim_uid, "attempt": one.attempt, "question": one.question}
    return {**said, "pods": one.pods}


@pytest.mark.parametrize("seed", [*range(12), 1_472, 1_917])
def test_whoever_runs_holds_and_what_is_over_is_free(seed: int) -> None:
    """Whatever happens, and wherever the gate is killed."""
    Simulation(seed).run()


class Luck(random.Random):
    """Chance that gives what it is told: below 0.7 every message arrives, above none."""

    value = 0.5

    def random(self) -> float:
        """Return what it was told."""
        return self.value


def test_an_answer_to_a_question_of_before_frees_nothing() -> None:
    """
    It was given before the Pod came to the node, and arrives when the same is asked again.

    Somebody deallocates the claim by hand before the watch has told of the Pod: its node is asked
    and has nothing of it yet. Then the Pod runs, and is deleted by force while it does.
    """
    sim = Simulation(0)
    sim.rng = luck = Luck(0)
    sim.create()
    sim.schedule()
    [(name, item)] = sim.claims().items()
    sim.world.book.put(item["metadata"]["uid"], item)
    sim.settle()

    assert not sim.write(name, claim(name, int(item["metadata"]["resourceVersion"])))
    sim.settle()
    luck.value = 0.8
    sim.agent()
    assert sim.told, "it is asked"
    sim.agent()
    assert sim.messages[-1], "and answers, on the way for long"
    sim.start()
    assert sim.kubelet.runs()
    for uid, life in list(sim.pod_news):
        sim.seen[uid] = life
        sim.leaving.asks.ran(uid)
    sim.pod_news.clear()
    sim.settle()
    assert not sim.leaving.asks.waiting()

    sim.delete_pod()
    sim.seen.clear()
    sim.let_go()
    sim.settle()
    assert sim.leaving.asks.waiting(), "the same is asked again"
    luck.value = 0.5
    sim.agent()
    assert not sim.messages, "all have arrived"
    sim.let_go()
    [(name, item)] = sim.claims().items()
    sim.world.book.put(item["metadata"]["uid"], item)
    sim.settle()
    sim.check()


@pytest.mark.slow
@pytest.mark.parametrize("first", range(12, 2_012, 100))
def test_whoever_runs_holds_in_many_lives(first: int) -> None:
    """The same with many seeds."""
    for seed in range(first, first + 100):
        Simulation(seed).run()
