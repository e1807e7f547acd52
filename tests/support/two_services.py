"""
Two schedulers of Tenure in one process, in virtual time, and all that can go wrong around them.

Real: view, books, holds, extender, binder and releasing, over a ledger in SQLite. Played: the API
server, its watches, kube-scheduler, kubelet, and faults that a seed draws: lost and late answers,
refusals, crashes between any two effects, leaders that are deposed and go on, Pods and nodes that
are re-created under their names, watch events that come twice, late or in another order.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from msgspec import structs

from certs.ports import ApiError
from ledger.domain.dialects.dra.drivers import LookedAt
from ledger.domain.errors import LedgerError, OverloadedError, UnknownOutcomeError
from ledger.domain.log.drift import HOLDER_ON_LOST_NODE
from ledger.domain.log.events import (
    DriftFound,
    GroupPlanned,
    NodeCleared,
    PodObserved,
    PodReserved,
    RequestRefused,
)
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.state import LOST as LOST_PHASE
from ledger.domain.log.state import LedgerState, NodeState
from ledger.domain.resources import (
    ANNOTATION_DEVICE_ALLOCATED,
    GATE_TENURE_GANG,
    LABEL_TENURE_HOLDING,
)
from ledger.store.open import Ledger, open_ledger
from ledger.store.reading.pod_queries import newest_attempts
from ledger.store.writing import commands
from ledger.store.writing.append import Writer
from ledger.store.writing.commands import Command, Outcome
from scheduler.decide.group.life import GroupLife, apply_life
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings
from scheduler.record.events import DecidedBy
from scheduler.record.refusing import Told
from scheduler.record.so_far import InForce
from scheduler.service.agents import Agents
from scheduler.service.announcing import Announcing
from scheduler.service.answering import Extender
from scheduler.service.assembly import giving_way
from scheduler.service.beginning import begin, told_refusals
from scheduler.service.binding import Binder
from scheduler.service.books import LiveBooks
from scheduler.service.claims import ClaimBook
from scheduler.service.ending import NodeWord
from scheduler.service.evicting import Evicting, Mode
from scheduler.service.gangs import Gangs, Lifting
from scheduler.service.groups import LiveGroups
from scheduler.service.holds import Holds
from scheduler.service.inventory import Inventory
from scheduler.service.permits import Permits
from scheduler.service.preempting import Preempting
from scheduler.service.reconciling import Reconciling
from scheduler.service.refusing import Refusing
from scheduler.service.releasing import Releasing, gone_by
from scheduler.service.slices import NodeModes, SliceBook
from scheduler.service.telling import Telling
from scheduler.service.view import ClusterView
from scheduler.service.wakeups import Wakeups
from tests.support import fake_api, objects
from tests.support.binding import LoopClock, Tasks, Unsigned
from tests.support.fake_api import ANSWERED, ApiClient, ApiServer, Json
from tests.support.node_agents import Machine
from tests.support.reachable import texts_in
from tests.support.replays import differing
from tests.support.stores import ORIGIN
from tests.support.visible import wrongly_visible

NAMESPACE: Final = "/api/v1/namespaces/ml"
WORDS: Final = DecidedBy(policy="binpack", settings_hash="", tenure_version="test")
MEMBER_PERCENT: Final = 50
GANG: Final = "gang/ml/both"
GANG_LEAST: Final = 2
GANG_MEMBERS: Final = ("p2", "p3", "p4")
_OF_GROUP: Final[Json] = {
    "labels": {
        "gputopology.scheduling.koordinator.sh/name": "duo",
        "gputopology.scheduling.koordinator.sh/replica": "2",
    }
}
_OF_GANG: Final[Json] = {
    "annotations": {
        "gang.scheduling.koordinator.sh/name": "both",
        "gang.scheduling.koordinator.sh/min-available": str(GANG_LEAST),
        "gang.scheduling.koordinator.sh/waiting-time": "20s",
    },
    "spec": {"schedulingGates": [{"name": GATE_TENURE_GANG}]},
}
MEMBERS: Final[dict[str, Json]] = {
    **dict.fromkeys(("p0", "p1"), _OF_GROUP),
    **dict.fromkeys(GANG_MEMBERS, _OF_GANG),
}
"""Who of the Pods belongs together, in a world with groups."""
QUOTA: Final = "example.org/quota"
BEHIND_SECONDS: Final = (0.0, 0.0, 0.5, 5.0, 40.0)
"""How long somebody else's gate keeps back a member; 0 = it has none."""
HTTP_SECONDS: Final = 10.0
BIND_SECONDS: Final = 30.0
NODES: Final = ("a", "b")
OLDER: Final = "older"
CARDS: Final = 2
ASKS: Final = (25, 50, 50, 100, 100, 200)
PODS: Final = 9
CHAOS_SECONDS: Final = 60.0
CALM_SECONDS: Final = 400.0
_RESERVED: Final = "reserved"
WEIGHTS: Final = {"crash": 0.2, "api create": 4.0, "answer of append lost": 2.0, "deposed": 3.0}
LATE_SECONDS: Final = (2.04, 2.3, 4.0, 12.0, 40.0)
FATES: Final[tuple[str | int, ...]] = (
    *(fake_api.LOST, fake_api.DROPPED, fake_api.LATE, fake_api.LATE),
    *(429, 500),
)
FEED_SECONDS: Final = (0.05, 0.3, 1.0)
DELAYS: Final = (0.0, 0.0, 0.01, 0.5, 5.0)


REMEMBERED: Final = (
    *("agents.log._changes", "requests._asked", "view._judged", "telling._due", "telling._said"),
    *("groups._left", "refusing._told", "_shapes._by_identity", "requests._reader._known"),
    "refusing._deleted",
)
"""What may name Pods that are gone: each of these has a bound of its own."""
OTHERWISE: Final = "decided otherwise"
_OF_PODS: Final = re.compile(r"\bp\d-\d+\b")
"""What UIDs of Pods look like."""


Word = Callable[[NodeState], NodeWord]


class CrashedError(BaseException):
    """The process ended here; nothing of it runs any more."""


@dataclass(slots=True)
class Faults:
    """
    What goes wrong, and how often; nothing once `calm`.

    Attributes:
        rate: of every effect, how many in a thousand are hit.
        only: what the words of those begin with that are.
    """

    rng: Random
    rate: int
    calm: bool = False
    only: str = ""
    counts: Counter[str] = field(default_factory=Counter)

    def hits(self, what: str) -> bool:
        """Draw whether this is hit; a process ends less often than an answer is lost."""
        times = next((many for word, many in WEIGHTS.items() if what.startswith(word)), 1.0)
        hit = (
            not self.calm
            and what.startswith(self.only)
            and self.rng.random() * 1000 < self.rate * times
        )
        self.counts[what] += hit
        return hit

    def fate(self, verb: str) -> str | int:
        """Draw what becomes of a call of the API."""
        if not self.hits(f"api {verb}"):
            return ANSWERED
        return self.rng.choice(FATES)


class Recorder:
    """A lane without threads: the real writer on the real file, and answers that get lost."""

    def __init__(self, writer: Writer, faults: Faults, crash: Callable[[str], None]) -> None:
        self._writer = writer
        self._faults = faults
        self._crash = crash

    @property
    def epoch(self) -> int:
        """Return the writer's epoch."""
        return self._writer.head.epoch

    @property
    def position(self) -> int:
        """Return the writer's position."""
        return self._writer.head.position

    async def record(self, command: Command) -> Outcome:
        """Record a command, with whatever a database can do to it."""
        self._crash("before append")
        await asyncio.sleep(0.002)
        if self._writer.connection.closed:  # the process ended, and an agent had asked it
            raise CrashedError
        if self._faults.hits("ledger away"):
            raise self._faults.rng.choice([LedgerError("down"), OverloadedError("many")])
        if self._faults.hits("append lost on its way"):
            raise UnknownOutcomeError("lost on its way")
        [outcome] = commands.record(self._writer, [command])
        self._crash("after append")
        if self._faults.hits("answer of append lost"):
            raise UnknownOutcomeError("the answer was lost")
        return outcome


class SureView(ClusterView):
    """Chooses anew what is known to be chosen, too."""

    __module__ = ClusterView.__module__  # what it keeps is looked at as the product's

    def choose(
        self, pod_uid: str, node_name: str, held: Placement | None = None
    ) -> Placement | str:
        """Choose as without a hold, and as with it: that is the same."""
        anew, found = super().choose(pod_uid, node_name), super().choose(pod_uid, node_name, held)
        if isinstance(anew, Placement) and isinstance(found, Placement):
            assert structs.replace(found, rated=anew.rated) == anew, (anew, found)
        else:
            assert anew == found
        return found


class Service:
    """One process: what `tenure serve scheduler` is made of, while it believes to lead."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.alive = True
        self.tasks = Tasks()
        self.ledger: Ledger = open_ledger(world.url, mode="write")
        writer = self.ledger.start_epoch(name, ORIGIN, "0.1.0", wall_us=LoopClock().wall_us())
        self.recorder = Recorder(writer, world.faults, self.crash_maybe)
        begun = begin(self.ledger)
        clock = LoopClock()
        wakeups, drivers = Wakeups(), LookedAt(frozenset())
        modes = NodeModes(drivers, SliceBook(drivers, wakeups))
        self.view: ClusterView = SureView(world.settings, wakeups, modes)
        self.view.begin(begun.position, begun.state, begun.opened)
        self.groups = LiveGroups(self.view, clock, begun)
        self.holds = Holds(self.view.engine, clock.monotonic, self.view.directory.number, wakeups)
        lifted, lifting = giving_way(self.holds, self.groups), Lifting(self.groups)
        self.books = LiveBooks(self.view, clock, WORDS, begun, self.groups, lifted=lifted)
        self.agents = Agents(
            self.view,
            self.books,
            self.recorder,
            clock,
            actor=f"scheduler/{name}",
            why_not=self._why_not,
        )
        word = world.word(self.agents.word)
        self.inventory = Inventory(
            self.view,
            self.recorder,
            clock,
            begun,
            synced=lambda: True,
            reported=self.agents.reported,
        )
        self.api = ApiClient(world.server, asyncio.sleep, fate=self._fate, later=world.later)
        telling = Telling(api=self.api, clock=clock, reporter=f"scheduler/{name}")
        self.binder = world.binder(
            recorder=self.recorder,
            api=self.api,
            clock=clock,
            books=self.books,
            proofs=Unsigned(),
            telling=telling,
            actor=f"scheduler/{name}",
            start=self.tasks.start,
            wakeups=wakeups,
            ready=lifting.ready,
            is_gone=gone_by(self.view, word),
            is_awaited=self.groups.starts.is_awaited,
        )
        self.refusing = Refusing(
            self.view,
            self.books,
            self.binder,
            self.groups,
            told=self._told,
            why_not=self._why_not,
        )
        self.gangs = Gangs(
            self.view,
            self.binder,
            self.groups,
            lifting,
            refusals=self.refusing,
            why_not=self._why_not,
        )
        self.preempting = Preempting(
            self.view, self.holds, telling, clock, groups=self.groups, begun=begun.preemptions
        )
        self.permits = Permits(
            self.groups.starts,
            self.binder,
            clock,
            wakeups,
            start=self.tasks.start,
            why_not=self._why_not,
        )
        self.extender = Extender(
            self.view,
            self.permits,
            why_not=self._why_not,
            groups=self.groups,
            holds=self.holds,
            refusals=self.refusing,
            preempting=self.preempting,
        )
        self.releasing = Releasing(
            self.view,
            self.books,
            self.binder,
            begun,
            why_not=self._why_not,
            attempts=self._attempts,
            word=word,
            seen=self.agents.seen,
            why_deleted=self.gangs.why_evicted,
        )
        self.agents.ending += (self.releasing.is_ending, self.binder.is_under_way)
        self.announcing = Announcing(
            self.view,
            self.api,
            clock,
            why_not=self._why_not,
            planned=self.groups.place_kept,
        )
        self.reconciling = Reconciling(
            claims_end=lambda _: {},
            view=self.view,
            binder=self.binder,
            inventory=self.inventory,
            releasing=self.releasing,
            announcing=self.announcing,
            agents=self.agents,
            claims=ClaimBook((), wakeups),
            begun=begun,
            trusted=None,
            cluster=ORIGIN,
            skew=float,
            why_not=self._why_not,
        )
        self.evicting = Evicting(
            view=self.view,
            preempting=self.preempting,
            namespaces=self.announcing.namespaces,
            binder=self.binder,
            mode=world.preemption,
            why_not=self._why_not,
        )
        self.ready = False

    def _why_not(self) -> str:
        return "" if self.ready else "not ready"

    async def _told(self, pod_uids: Sequence[str] | None) -> Mapping[str, Told]:
        self.crash_maybe("before reading why Pods waited")
        await asyncio.sleep(0.002)
        if self.world.faults.hits("ledger away"):
            raise LedgerError("down")
        with open_ledger(self.world.url, mode="read") as ledger:
            return told_refusals(ledger, pod_uids)

    async def _attempts(self, pod_uids: Sequence[str]) -> Mapping[str, int]:
        self.crash_maybe("before reading what Pods ever held")
        await asyncio.sleep(0.002)
        if self.world.faults.hits("ledger away"):
            raise LedgerError("down")
        with open_ledger(self.world.url, mode="read") as ledger, ledger.connection.begin():
            return newest_attempts(ledger.connection, pod_uids)

    def _fate(self, verb: str) -> str | int:
        self.crash_maybe(f"before {verb}")
        self.api.late_seconds = self.world.faults.rng.choice(LATE_SECONDS)
        return self.world.faults.fate(verb)

    def crash_maybe(self, where: str) -> None:
        """End the process here, if the seed says so."""
        if not self.alive:
            raise CrashedError
        if self.world.faults.hits(f"crash {where}"):
            self.crash()
            raise CrashedError

    def crash(self) -> None:
        """End the process: its tasks stop where they are, its memory is gone."""
        if self.alive:
            self.alive = False
            for task in list(self.tasks.running):
                task.cancel()
            self.ledger.close()

    def ways_to_pods(self) -> dict[str, set[str]]:
        """Return where the process names Pods: ways from its parts, and UIDs."""
        found: dict[str, set[str]] = {}
        for way, text in texts_in(self.parts()):
            uids = _OF_PODS.findall(text)
            if uids and not any(each in way for each in REMEMBERED):
                found.setdefault(way, set()).update(uids)
        return found

    def parts(self) -> dict[str, object]:
        """Return what the process is made of, by name."""
        return {
            name: part
            for name, part in vars(self).items()
            if type(part).__module__.startswith("scheduler.service.")
        }

    async def run(self) -> None:
        """Begin with the lists, then settle, release and follow until the end."""
        self.relist()
        self.tasks.start(self._follow())
        while self.alive:
            try:
                await self.inventory.settle()
                self.ready = True
                await self.gangs.settle()
                self.holds.expire()
                self.preempting.expire()
                self.permits.expire()
                await self.releasing.settle()
                await self.announcing.tell()
                await self.refusing.settle()
                await self.evicting.settle()
                await self.reconciling.settle()
            except ApiError:
                pass
            except LedgerError:
                if self.world.leader is not self:
                    self.crash()
            await asyncio.sleep(1.0)

    async def _follow(self) -> None:
        """Follow the ledger's feed, which tells late and tells of what no answer told."""
        while self.alive:
            await asyncio.sleep(self.world.feed.choice(FEED_SECONDS))
            if self.alive and self.view.position < self.recorder.position:
                for one in self.ledger.read_events(after=self.view.position):
                    self.books.take(one.envelope.position, one.event)

    def relist(self) -> None:
        """Take all that the API server has, and forget all that it has not."""
        there = {value["metadata"]["uid"]: value for value in self.world.server.objects.values()}
        for uid in set(self.view.pods.seen) - there.keys():
            self.told("DELETED", {"kind": "Pod", "metadata": {"uid": uid}})
        for name in NODES:
            known = self.view.nodes.uid(name)
            if known is not None and known not in there:
                self.told("DELETED", {"kind": "Node", "metadata": {"uid": known}})
        for value in there.values():
            self.told("MODIFIED", value)

    def told(self, kind: str, value: Json) -> None:
        """Take a watch event."""
        uid = value["metadata"]["uid"]
        nodes = self.view.nodes
        sinks: dict[str, Sequence[Any]] = {
            "Pod": (
                *(self.view.pods, self.holds, self.preempting, self.groups.members),
                *(self.books, self.refusing),
            ),
            "Node": (nodes.nodes, self.agents.ready),
            "Device": (nodes.devices,),
            "Namespace": (self.announcing.namespaces,),
        }
        for sink in sinks[value["kind"]]:
            if kind == "DELETED":
                sink.drop(uid)
            else:
                sink.put(uid, value)


class World:
    """
    The cluster, its two services and what a seed does to them.

    Args:
        binder: makes what binds; a mutant's is another one.
        word: returns what nodes say of what runs there; a mutant's is something else.
        rate: faults in a thousand effects.
        only: what the words of all faults begin with.
        groups: some Pods are of a topology group and some of a gang, which has gates.
        inventory: cards get sick and well, leave and come back, and labels of Nodes change.
        preemption: who ends for a Pod that waits for fragmentation alone.

    Attributes:
        broken: what must not be, in words.
        stranded: Pods that hold something through a node that was lost.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        rate: int = 50,
        only: str = "",
        binder: Callable[..., Binder] = Binder,
        word: Callable[[Word], Word] = lambda word: word,
        groups: bool = False,
        inventory: bool = False,
        preemption: Mode = "off",
    ) -> None:
        self.groups = groups
        self.inventory = inventory
        self.preemption = preemption
        self.feed = Random(seed + 2)
        self.seed = seed
        self.rng = Random(seed)
        self.faults = Faults(Random(seed + 1), rate, only=only)
        self.url = f"sqlite:///{folder / f'{seed}.db'}"
        self.settings = SchedulingSettings(node_policy="binpack")
        self.server = ApiServer()
        self.binder = binder
        self.word = word
        self.machines = {name: Machine(self, name, cards_of) for name in NODES}
        self.leader: Service | None = None
        self.services: list[Service] = []
        self.tasks = Tasks()
        self.uids: dict[str, list[str]] = {name: [] for name in NODES}
        self.made: Counter[str] = Counter()
        self.broken: list[str] = []
        self.stranded: set[str] = set()
        open_ledger(self.url, mode="create").close()
        self.server.watchers.append(self._changed)
        labels = {"tenure.sh/preempt": "true"}
        namespace = {"kind": "Namespace", "metadata": {"name": "ml", "uid": "ml", "labels": labels}}
        self.server.put(NAMESPACE, namespace)
        for name in NODES:
            self.put_node(name)
        self.put_older()

    # --- the cluster --------------------------------------------------------------------------

    def put_node(self, name: str) -> None:
        """Let a node come, or come again under its name, on a machine of its own."""
        number = len(self.uids[name])
        uid = f"uid-{name}-{number}"
        self.uids[name].append(uid)
        node = objects.node(name, allocatable={"cpu": "64", "memory": "256Gi", "pods": "110"})
        cards = [
            objects.gpu_device(minor, id=f"GPU-{name}-{number}-{minor}") for minor in range(CARDS)
        ]
        device = objects.device(*cards, name=name)
        node["kind"], device["kind"] = "Node", "Device"
        node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        self.machines[name].reboot()
        node["metadata"]["uid"], device["metadata"]["uid"] = uid, f"device-{name}-{number}"
        self.server.put(f"/devices/{name}", device)
        self.server.put(f"/api/v1/nodes/{name}", node)

    def put_pod(self, name: str, percent: int = 0, *, priority: int = 0) -> None:
        """Create a Pod, perhaps another one under a name that was there; 0 = drawn."""
        self.made[name] += 1
        uid = f"{name}-{self.made[name]}"
        percent = percent or self.rng.choice(ASKS)
        member: Json = MEMBERS.get(name, {}) if self.groups else {}
        if member:
            percent = MEMBER_PERCENT
        pod = objects.pod(
            objects.container(limits={"koordinator.sh/gpu": str(percent)}),
            name=name,
            uid=uid,
            annotations={"tenure.sh/admitted": "true", **member.get("annotations", {})},
            labels=member.get("labels"),
            schedulerName="tenure",
            **member.get("spec", {}),
            priority=priority,
        )
        pod["status"] = {"phase": "Pending"}
        draws = Random(f"{self.seed}/{uid}")
        seconds = draws.choice(BEHIND_SECONDS) if member else 0.0
        if seconds:
            gates = pod["spec"].setdefault("schedulingGates", [])
            pod["spec"]["schedulingGates"] = [*gates, {"name": QUOTA}]
            self.later(seconds, partial(self._lift, fake_api.path_of(pod), uid))
        self.server.put(fake_api.path_of(pod), pod)

    def _lift(self, path: str, uid: str) -> None:
        """Lift somebody else's gate of a Pod."""
        pod = self.server.read(path)
        if pod is not None and pod["metadata"]["uid"] == uid:
            gates = [one for one in pod["spec"]["schedulingGates"] if one["name"] != QUOTA]
            spec = {**pod["spec"], "schedulingGates": gates}
            self.server.put(path, {**pod, "spec": spec})

    def put_older(self) -> None:
        """Let a Pod run that somebody else gave half a card before Tenure came."""
        card = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
        share = {"minor": 0, "id": f"GPU-{NODES[0]}-0-0", "resources": card}
        pod = objects.pod(
            objects.container(limits={"koordinator.sh/gpu": "50"}),
            name=OLDER,
            uid=OLDER,
            annotations={ANNOTATION_DEVICE_ALLOCATED: {"gpu": [share]}},
            nodeName=NODES[0],
        )
        pod["status"] = {"phase": "Running"}
        self.server.put(fake_api.path_of(pod), pod)

    def pods(self) -> list[Json]:
        """Return the Pods that there are."""
        return [value for path, value in self.server.objects.items() if "/pods/" in path]

    def _changed(self, kind: str, value: Json) -> None:
        """Tell kubelet, and every service after a time of its own, and sometimes twice."""
        if value["kind"] == "Pod" and value["spec"].get("nodeName"):
            self.machines[value["spec"]["nodeName"]].told(kind, value)
        for service in self.services:
            if not service.alive:
                continue
            times = 2 if self.faults.hits("watch event twice") else 1
            for _ in range(times):
                delay = 0.001
                if self.faults.hits("watch event late"):
                    delay = self.faults.rng.choice(DELAYS)
                self.later(delay, partial(self._tell, service, kind, value))

    def _tell(self, service: Service, kind: str, value: Json) -> None:
        if service.alive:
            service.told(kind, value)

    def later(self, seconds: float, act: Callable[[], object]) -> object:
        """Do something after a time."""
        return asyncio.get_running_loop().call_later(seconds, act)

    # --- the actors ---------------------------------------------------------------------------

    def start(self) -> None:
        """Start a service, which takes the lead; the one before is not told."""
        service = Service(self, f"s{len(self.services)}")
        self.services.append(service)
        self.leader = service
        service.tasks.start(self._guarded(service))

    async def _guarded(self, service: Service) -> None:
        try:
            await service.run()
        except CrashedError:
            return

    async def kube_scheduler(self) -> None:
        """Ask about one Pod after the other, and bind beside that."""
        waits: dict[str, float] = {}
        loop = asyncio.get_running_loop()
        binding: set[str] = set()
        while True:
            await asyncio.sleep(0.05)
            for pod in self.pods():
                uid = pod["metadata"]["uid"]
                unbound = not (
                    pod["spec"].get("nodeName")
                    or pod["spec"].get("schedulingGates")
                    or "deletionTimestamp" in pod["metadata"]
                )
                if not unbound or uid in binding or waits.get(uid, 0) > loop.time():
                    continue
                waits[uid] = loop.time() + 1.0
                node = await self._ask(pod)
                if node:
                    binding.add(uid)
                    self.tasks.start(self._bind(pod, node, binding))
                    if self.faults.hits("bind asked twice"):
                        node = self.faults.rng.choice(NODES)
                        self.tasks.start(self._bind(pod, node, binding))

    def _asked(self) -> Service | None:
        """Return who is asked: the leader, or one that still believes to be."""
        alive = [service for service in self.services if service.alive]
        if len(alive) > 1 and self.faults.hits("deposed leader asked"):
            return alive[0]
        return self.leader if self.leader is not None and self.leader.alive else None

    async def _ask(self, pod: Json) -> str:
        service = self._asked()
        if service is None:
            return ""
        try:
            node = node_for(service.extender, pod)
        except CrashedError:
            return ""
        if node and self.faults.hits("another node than was best"):
            return self.faults.rng.choice(NODES)
        return node

    async def _bind(self, pod: Json, node: str, binding: set[str]) -> None:
        service = self._asked()
        try:
            if service is not None:
                async with asyncio.timeout(BIND_SECONDS):
                    await service.extender.bind(to_bind(pod, node))
        except (TimeoutError, CrashedError):
            pass
        except asyncio.CancelledError:
            if service is not None and service.alive:
                raise
        finally:
            binding.discard(pod["metadata"]["uid"])

    async def chaos(self) -> None:
        """Do to the cluster what its users, nodes and operators do."""
        for name in (f"p{number}" for number in range(PODS)):
            self.put_pod(name)
        acts: Sequence[Callable[[], None]] = (
            self._end_a_pod,
            self._end_a_pod,
            self._recreate_a_pod,
            self._recreate_a_pod,
            self._touch_a_pod,
            self._touch_a_pod,
            self._recreate_a_node,
            self._depose,
            self._crash,
            self._relist,
            *([self._change_a_card, self._label_a_node] * 2 if self.inventory else ()),
        )
        end = asyncio.get_running_loop().time() + CHAOS_SECONDS
        while asyncio.get_running_loop().time() < end and not self.broken:
            await asyncio.sleep(self.rng.choice((0.005, 0.02, 0.1, 1.0, 3.0)))
            self.rng.choice(acts)()
            self.faults.counts["act"] += 1
            self.check()
            if self.leader is None or not self.leader.alive:
                self.later(self.rng.choice((0.1, 2.0)), self._lead)

    def _lead(self) -> None:
        if self.leader is None or not self.leader.alive:
            self.start()

    def _end_a_pod(self) -> None:
        pods = self.pods()
        if not pods:
            return
        pod = self.rng.choice(pods)
        path, how = fake_api.path_of(pod), self.rng.randrange(3)
        if how == 0 and pod["spec"].get("nodeName"):
            reason = self.rng.choice(("", "Evicted", "OutOfcpu"))
            self.server.change(
                path, lambda value: value["status"].update(phase="Failed", reason=reason)
            )
        elif how == 1:
            self.server.change(
                path, lambda value: value["metadata"].update(deletionTimestamp=fake_api.LEFT_AT)
            )
            self.later(2.0, lambda: self._delete(path, pod["metadata"]["uid"]))
        else:
            self.server.delete(path)

    def held_on(self, name: str) -> set[str]:
        """Return what is held on a node, as the leader knows it."""
        state = None if self.leader is None else self.leader.view.recorded(self.uids[name][-1])
        return set() if state is None else {*state.holdings}

    def clear(self, uid: str, name: str) -> None:
        """Let somebody say by an act that nothing runs any more on a machine that was lost."""
        event = NodeCleared(node_uid=uid, node_name=name, evidence="act", reason="looked")
        now = LoopClock().wall_us()
        with open_ledger(self.url, mode="write") as ledger:
            new = NewEvent(
                stream=f"node/{uid}",
                event=event,
                actor="ops",
                idempotency_key=f"clear:{uid}",
                wall_us=now,
            )
            ledger.start_epoch("ops", ORIGIN, "0.1.0", wall_us=now).append([new])

    def _delete(self, path: str, uid: str) -> None:
        value = self.server.read(path)
        if value is not None and value["metadata"]["uid"] == uid:
            self.server.delete(path)

    def _recreate_a_pod(self) -> None:
        name = f"p{self.rng.randrange(PODS)}"
        self.server.delete(f"/api/v1/namespaces/ml/pods/{name}")
        self.put_pod(name)

    def _touch_a_pod(self) -> None:
        pods = self.pods()
        if pods:
            path = fake_api.path_of(self.rng.choice(pods))
            stamp = str(self.server.version)
            self.server.change(path, lambda value: value["metadata"]["annotations"].update(t=stamp))

    def _recreate_a_node(self) -> None:
        if self.rng.randrange(4):
            return
        name = self.rng.choice(NODES)
        for pod in self.pods():
            if pod["spec"].get("nodeName") == name:
                self.server.delete(fake_api.path_of(pod))
        self.server.delete(f"/api/v1/nodes/{name}")
        self.put_node(name)

    def _change_a_card(self) -> None:
        """Let a card be sick or well, or leave its node, or come back."""
        name, minor = self.rng.choice(NODES), self.rng.randrange(CARDS)
        is_sick, is_there = self.rng.choice(((True, True), (False, True), (True, False)))
        self._put_cards(name, {minor: is_sick} if is_there else {}, minor)

    def _put_cards(self, name: str, changed: Mapping[int, bool], gone: int = -1) -> None:
        """Let a node list its cards, these as sick or well, the others well; one may be gone."""
        number = len(self.uids[name]) - 1
        cards = [
            objects.gpu_device(
                minor, id=f"GPU-{name}-{number}-{minor}", health=not changed.get(minor, False)
            )
            for minor in range(CARDS)
            if minor in changed or minor != gone
        ]
        self.server.change(f"/devices/{name}", lambda value: value["spec"].update(devices=cards))

    def _label_a_node(self) -> None:
        path, stamp = f"/api/v1/nodes/{self.rng.choice(NODES)}", str(self.server.version)
        self.server.change(
            path, lambda value: value["metadata"].setdefault("labels", {}).update(t=stamp)
        )

    def _depose(self) -> None:
        alive = [service for service in self.services if service.alive]
        if len(alive) < 2 and not self.rng.randrange(4):
            self.start()

    def _crash(self) -> None:
        alive = [service for service in self.services if service.alive]
        if alive and not self.rng.randrange(4):
            self.rng.choice(alive).crash()

    def _relist(self) -> None:
        for service in self.services:
            if service.alive:
                service.relist()

    # --- what must hold -----------------------------------------------------------------------

    def check(self) -> None:
        """Note every card that bound Pods have more of than there is, by their annotations."""
        taken: Counter[str] = Counter()
        for pod in self.pods():
            if pod["spec"].get("nodeName") and pod["status"]["phase"] not in (
                "Failed",
                "Succeeded",
            ):
                for card, percent in cards_of(pod):
                    taken[card] += percent
        over = {card: percent for card, percent in taken.items() if percent > 100}
        if over:
            self.broken.append(f"given twice: {over}")

    def check_settled(self) -> None:
        """
        Note every difference between the ledger, what bound Pods say, and what there is.

        Whoever holds something through a lost node holds it until the machine is cleared, and that
        is all that is known of it: it is reserved nowhere else, and where its Binding met a Node
        that was re-created under the name, that Node's agent refuses its proof.
        """
        self.check()
        with open_ledger(self.url, mode="read") as ledger:
            state = begin(ledger).state
            for one in ledger.read_events():
                if isinstance(one.event, PodObserved) and one.event.pod_uid != OLDER:
                    self.broken.append(f"nobody else gave it cards: {one.event.pod_uid}")
                if self.inventory or not isinstance(one.event, DriftFound):
                    continue
                if one.event.kind != HOLDER_ON_LOST_NODE:
                    self.broken.append(f"nothing disagrees: {one.event}")
        held: dict[str, list[tuple[str, int]]] = {}
        closed: set[str] = set()
        for node in state.nodes.values():
            for holding in node.holdings.values():
                if holding.phase == LOST_PHASE:
                    self.stranded.add(holding.pod_uid)
                    closed.update(share.device_id for share in holding.shares)
                    continue
                if holding.phase == _RESERVED:
                    self.broken.append(f"nobody settles {holding.key}")
                if holding.pod_uid in held:
                    self.broken.append(f"held twice: {holding.pod_uid}")
                held[holding.pod_uid] = sorted(
                    (share.device_id, share.core_percent) for share in holding.shares
                )
        there = {pod["metadata"]["uid"]: pod for pod in self.pods()}
        for uid in held.keys() - there.keys():
            self.broken.append(f"leaked: {uid}")
        for uid, pod in there.items():
            if uid in self.stranded:
                continue
            bound = bool(pod["spec"].get("nodeName"))
            ended = pod["status"]["phase"] in ("Failed", "Succeeded")
            if (bound and not ended) is not (uid in held):
                self.broken.append(f"bound={bound}, ended={ended}, held={uid in held}: {uid}")
            if uid in held and held[uid] != sorted(cards_of(pod)):
                self.broken.append(f"has other cards than the ledger says: {uid}")
        labels = self.server.objects[NAMESPACE]["metadata"]["labels"]
        if (LABEL_TENURE_HOLDING in labels) is not bool(held or self.stranded):
            self.broken.append(f"the namespace says of its holders: {labels}")
        leader = self.leader
        assert leader is not None
        if len(leader.holds):
            self.broken.append(f"soft holds are left: {len(leader.holds)}")
        self._check_room(held, closed)
        if self.groups:
            self._check_groups(leader)
        self._check_reasons()
        self._check_drift(state, leader)
        for service in self.services:
            if service.alive:
                self._check_forgotten(service)

    def check_replay(self) -> None:
        """Note every decision that comes out otherwise when it is made again from the ledger."""
        with open_ledger(self.url, mode="read") as ledger:
            log = list(ledger.read_events())
        by = InForce(settings=self.settings, settings_hash="")
        self.broken += [
            f"{OTHERWISE}: {again.position} {again.name}: {again.differences}"
            for again in differing(log, whole=False, by=by)
        ]

    def _check_forgotten(self, service: Service) -> None:
        """Nothing in memory names a Pod that is gone, but for what holds through a lost node."""
        known = self.stranded | {pod["metadata"]["uid"] for pod in self.pods()}
        for way, uids in service.ways_to_pods().items():
            if uids - known:
                self.broken.append(f"is remembered for ever: {way}: {sorted(uids - known)}")

    def _check_drift(self, state: LedgerState, leader: Service) -> None:
        """What is open is what is held through lost nodes, and nothing else lasts."""
        lost = {
            f"{HOLDER_ON_LOST_NODE}/{node.uid}/machine"
            for node in state.nodes.values()
            if any(holding.phase == LOST_PHASE for holding in node.holdings.values())
        }
        lasting = leader.reconciling.lasting
        watched = {each for scope in lasting.scopes() for each in lasting.open(scope)}
        with open_ledger(self.url, mode="read") as ledger:
            recorded = {one.drift_id for one in begin(ledger).drifts}
        if not lost == watched == recorded:
            self.broken.append(f"drift: lost={lost}, watched={watched}, recorded={recorded}")

    def _check_reasons(self) -> None:
        """Pods that wait, and no others, have a reason in the ledger, none twice in a row."""
        said: dict[str, frozenset[str]] = {}
        with open_ledger(self.url, mode="read") as ledger:
            for one in ledger.read_events():
                event = one.event
                if isinstance(event, PodReserved):
                    said.pop(event.pod_uid, None)
                elif isinstance(event, RequestRefused):
                    reasons = frozenset(reason.reason for reason in event.reasons)
                    if said.get(event.pod_uid) == reasons:
                        self.broken.append(f"said again: {event.pod_uid} {set(reasons)}")
                    said[event.pod_uid] = reasons
            left = told_refusals(ledger, None).keys() - {
                pod["metadata"]["uid"] for pod in self.pods()
            }
        if left:
            self.broken.append(f"waits by the ledger alone: {sorted(left)}")
        for pod in self.pods():
            uid, waits = pod["metadata"]["uid"], not pod["spec"].get("nodeName")
            waits = waits and pod["status"]["phase"] == "Pending"
            if waits and uid not in said and uid not in self.stranded:
                self.broken.append(f"waits without a reason: {uid}")

    def _check_room(self, held: dict[str, list[tuple[str, int]]], closed: set[str]) -> None:
        """No Pod waits that the free cards take; those held through a lost node are closed."""
        used: Counter[str] = Counter(dict.fromkeys(closed, 100))
        for shares in held.values():
            for card, percent in shares:
                used[card] += percent
        for pod in self.pods():
            waits = pod["status"]["phase"] == "Pending" and not pod["spec"].get("nodeName")
            if not waits or pod["metadata"]["uid"] in self.stranded:
                continue
            if self.groups and pod["metadata"]["name"] in GANG_MEMBERS:
                continue
            limits = pod["spec"]["containers"][0]["resources"]["limits"]
            percent = int(limits["koordinator.sh/gpu"])
            for name in NODES:
                number = len(self.uids[name]) - 1
                free = [100 - used[f"GPU-{name}-{number}-{minor}"] for minor in range(CARDS)]
                if sum(each >= min(percent, 100) for each in free) >= max(1, percent // 100):
                    self.broken.append(f"waits though {name} has room: {pod['metadata']['uid']}")

    def _check_groups(self, leader: Service) -> None:
        """No place is kept for a Pod that is gone, and no gang was begun with too few."""
        pods = self.pods()
        waiting = {one["metadata"]["uid"] for one in pods if not one["spec"].get("nodeName")}
        for name, life in leader.groups.groups.lives.items():
            if life.places.keys() - waiting:
                self.broken.append(f"a plan keeps places for nobody: {name}")
        alone = [one["metadata"]["uid"] for one in pods if one["metadata"]["name"] in GANG_MEMBERS]
        if len(waiting.intersection(alone) - self.stranded) >= GANG_LEAST:
            cards = [
                card
                for node in leader.view.directory.numbers()
                for card in leader.view.engine.view(node).cards
            ]
            if sum(card.core_free // MEMBER_PERCENT for card in cards) >= GANG_LEAST:
                self.broken.append(f"a gang waits though there is room: {alone}")
        with open_ledger(self.url, mode="read") as ledger:
            log = [one.event for one in ledger.read_events()]
        life = GroupLife(name=GANG)
        for position, event in enumerate(log):
            if isinstance(event, GroupPlanned) and event.group == GANG:
                together = 0
                for reserved in log[position + 1 :]:
                    if not (isinstance(reserved, PodReserved) and reserved.group == GANG):
                        break
                    together += 1
                most = max(len(life.held) + together, life.held_at_once)
                if most < GANG_LEAST:
                    self.broken.append(f"a gang was begun with {together} at {position + 1}")
            life = apply_life(life, event, 0)
        self.broken += [f"sees other cards: {each}" for each in wrongly_visible(log)]

    async def run(self) -> None:
        """Let all of it happen, then let all go well, then look."""
        self.start()
        reports = [asyncio.ensure_future(each.report()) for each in self.machines.values()]
        await asyncio.sleep(2.5)  # the agents are there before any Pod is
        asking = asyncio.ensure_future(self.kube_scheduler())
        await self.chaos()
        if self.broken:
            return self.end()
        self.faults.calm = True
        if self.inventory:
            for name in NODES:
                self._put_cards(name, {})
        self._lead()
        for service in self.services:
            if service.alive and service is not self.leader:
                service.crash()
        await asyncio.sleep(30.0)  # what is late has come
        self._relist()
        await asyncio.sleep(CALM_SECONDS)
        for actor in (asking, *reports):
            actor.cancel()
        ended = await asyncio.gather(*reports, return_exceptions=True)
        self.broken += [
            f"an agent failed: {error!r}" for error in ended if isinstance(error, Exception)
        ]
        await self.tasks.all_done()
        self.check_settled()
        self.check_replay()
        for tasks in (self.tasks, *(service.tasks for service in self.services)):
            self.broken += [
                f"failed: {error!r}"
                for error in tasks.failed
                if not isinstance(error, CrashedError)
            ]
        return self.end()

    def end(self) -> None:
        """End whatever runs yet; what waits ends with the loop."""
        for service in self.services:
            service.crash()


def node_for(extender: Extender, pod: Json) -> str:
    """Return the node that kube-scheduler takes by an extender's answers, empty for none."""
    body = json.dumps({"Pod": pod, "NodeNames": list(NODES)}).encode()
    names = json.loads(extender.filter(body)).get("NodeNames") or []
    if len(names) > 1:
        body = json.dumps({"Pod": pod, "NodeNames": names}).encode()
        best = json.loads(extender.prioritize(body))
        names = [max(best, key=lambda each: each["Score"])["Host"]] if best else names
    return str(names[0]) if names else ""


def to_bind(pod: Json, node: str) -> bytes:
    """Return kube-scheduler's call for a Pod that it wants on a node."""
    metadata = pod["metadata"]
    body = {
        "PodNamespace": metadata["namespace"],
        "PodName": metadata["name"],
        "PodUID": metadata["uid"],
        "Node": node,
    }
    return json.dumps(body).encode()


def cards_of(pod: Json) -> list[tuple[str, int]]:
    """Return the cards that a bound Pod says it has, with their percent."""
    text = pod["metadata"]["annotations"].get(ANNOTATION_DEVICE_ALLOCATED)
    if text is None:
        return []
    return [
        (each["id"], int(each["resources"]["koordinator.sh/gpu-core"]))
        for each in json.loads(text)["gpu"]
    ]
