"""
Replicas that compete for a Lease, in virtual time: what `two_services` has, and leadership besides.

Real besides: who leads (`leading`), following and taking over (`replica`), the Lease over the
played API server. Played besides: processes that stop and go on, partitions from the API server or
from the ledger, clocks that are off, a Lease that somebody deletes, rollouts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

from certs.ports import ApiError
from ledger.domain.errors import FencedError, LedgerError, OverloadedError
from ledger.store.open import open_ledger
from ledger.store.writing.append import Writer
from ledger.store.writing.commands import Command, Outcome
from scheduler.service.assembly import assemble
from scheduler.service.beginning import begin
from scheduler.service.freshness import Freshness
from scheduler.service.leading import Leading
from scheduler.service.replica import Replica
from scheduler.service.world import Ports
from tenure.kube.lease import SKEW_MAX, Leadership, LeaseSettings
from tenure.sources.yaml_text import yaml_documents
from tests.support.binding import LoopClock, Tasks, Unsigned
from tests.support.fake_api import DROPPED, ApiClient, Json
from tests.support.pausing import Process
from tests.support.stores import ORIGIN
from tests.support.two_services import (
    HTTP_SECONDS,
    NODES,
    WORDS,
    CrashedError,
    Recorder,
    Service,
    World,
    node_for,
    to_bind,
)

_T = TypeVar("_T")
LEASE: Final = LeaseSettings(namespace="n", name="l", identity="-")
LEASE_PATH: Final = "/apis/coordination.k8s.io/v1/namespaces/n/leases/l"
AWAY_SECONDS_MAX: Final = 10.0
CHAOS_SECONDS: Final = 150.0
CALM_SECONDS: Final = 400.0
LENGTHS: Final = (1.0, 5.0, 12.0, 20.0, 40.0)
"""Of pauses and partitions: within the Lease's times, and beyond them."""


class _Collection:
    """A collection that is heard of unless its process is cut off."""

    def __init__(self, service: Standby) -> None:
        self._service = service
        self.synced = False

    def staleness(self) -> float:
        """Return the seconds since it was heard of."""
        at = self._service.cut_api_at
        return 0.0 if at is None else asyncio.get_running_loop().time() - at


class LateRecorder(Recorder):
    """A recorder that has no writer before its process takes the ledger over."""

    def __init__(self, service: Standby) -> None:
        self._service = service
        self._faults, self._crash = service.world.faults, service.crash_maybe
        self.writer: Writer | None = None

    @property
    def epoch(self) -> int:
        """Return the writer's epoch, 0 before there is one."""
        return 0 if self.writer is None else self.writer.head.epoch

    @property
    def position(self) -> int:
        """Return the writer's position."""
        return 0 if self.writer is None else self.writer.head.position

    async def record(self, command: Command) -> Outcome:
        """Record a command, unless the ledger can't be reached."""
        assert self.writer is not None, "a standby records nothing"
        self._writer = self.writer
        if self._service.cut_ledger:
            await asyncio.sleep(2.0)
            self._service.lose_ledger()
            raise LedgerError("cut off")
        try:
            return await super().record(command)
        except OverloadedError:
            raise
        except LedgerError:
            self._service.lose_ledger()
            raise
        finally:
            self._service.world.written(self.writer)


class Standby(Service):
    """One replica: it stands by, and leads while it has the Lease and the newest epoch."""

    def __init__(self, world: Replicated, name: str) -> None:  # a process of another make
        self.world: Replicated = world
        self.name = name
        self.alive = True
        self.process = Process()
        self.tasks = Tasks()
        self.cut_api_at: float | None = None
        self.cut_ledger = False
        self.skew = timedelta()
        self._away_at = 0.0
        self.competing: asyncio.Future[None] | None = None
        self.ledger = open_ledger(world.url, mode="write")
        self.recorder: LateRecorder = LateRecorder(self)
        begun, clock = begin(self.ledger), LoopClock()
        self.freshness = Freshness()
        self.collection = _Collection(self)
        self.freshness.followed = {"all": self.collection}
        self.api = ApiClient(world.server, asyncio.sleep, fate=self._fate, later=world.later)
        self.leadership = Leadership(
            self.api,
            LeaseSettings(namespace=LEASE.namespace, name=LEASE.name, identity=name),
            lambda: datetime(2026, 3, 2, tzinfo=UTC),
            clock.monotonic,
            lambda: self.skew,
            able=self._able,
        )
        self.leading = world.leads(
            now=clock.monotonic,
            lease_until=lambda: self.leadership.until,
            skewed=lambda: abs(self.skew) >= SKEW_MAX,
            fresh=self.freshness.why_not,
        )
        ports = Ports(
            origin=ORIGIN,
            recorder=self.recorder,
            api=self.api,
            clock=clock,
            freshness=self.freshness,
            leading=self.leading,
            words=WORDS,
            proofs=lambda _: Unsigned(),
            told=self._told,
            documents_in=yaml_documents,
            start=self.tasks.start,
            actor=f"scheduler/{name}",
        )
        live = self.live = assemble(world.settings, begun, ports)
        self.view, self.inventory, self.groups = live.view, live.inventory, live.groups
        self.books, self.holds, self.binder = live.books, live.holds, live.binder
        self.gangs, self.refusing, self.releasing = live.gangs, live.refusing, live.releasing
        self.announcing = live.announcing
        self.extender, self.agents, self.reconciling = live.extender, live.agents, live.reconciling
        self.replica = Replica(live, self.leading)

    def answers(self) -> bool:
        """Tell whether it would give something out now."""
        return self.alive and not self.process.paused and not self.leading.why_not()

    def lose_ledger(self) -> None:
        """Take note that the ledger did not answer."""
        if not self.freshness.away:
            self.freshness.away, self._away_at = True, asyncio.get_running_loop().time()

    def parts(self) -> dict[str, object]:
        """Return what the process is made of, by name."""
        return {field.name: getattr(self.live, field.name) for field in fields(self.live)}

    def _able(self) -> bool:
        away = asyncio.get_running_loop().time() - self._away_at
        lost = self.freshness.away and away >= (AWAY_SECONDS_MAX if self.recorder.epoch else 0.0)
        return self.freshness.synced() and not self.freshness.why_stale() and not lost

    def _fate(self, verb: str) -> str | int:
        fate = super()._fate(verb)
        return fate if self.cut_api_at is None else DROPPED

    async def run(self) -> None:
        """Follow API and ledger, compete, and record while the ledger is ours."""
        self.relist()
        self.collection.synced = True
        self.tasks.start(self._guarded(self._follow()))
        self.competing = asyncio.ensure_future(self._guarded(self.leadership.run(self._lead)))
        self.tasks.start(self.competing)
        await self._guarded(self._work())

    async def _guarded(self, work: Awaitable[None]) -> None:
        """Do it until the process ends; who finds a newer epoch ends, or hears not of its own."""
        try:
            await work
        except CrashedError:
            return
        except FencedError:
            self.world.faults.counts["deposed"] += 1
            self.crash()
        except LedgerError:
            self.world.faults.counts["feed behind"] += 1
            self.crash()

    async def _work(self) -> None:
        while self.alive:
            try:
                self.replica.stand_by()
                if self.leading.epoch:
                    await self.inventory.settle()
                    self.freshness.settled = self.inventory.settled
                    await self.gangs.settle()
                    self.holds.expire()
                    self.live.permits.expire()
                    await self.releasing.settle()
                    await self.announcing.tell()
                    await self.refusing.settle()
                    await self.reconciling.settle()
            except FencedError:
                raise
            except (ApiError, LedgerError):
                pass
            if not self.cut_ledger:
                self.freshness.away = False
            await asyncio.sleep(1.0)

    async def _follow(self) -> None:
        while self.alive:
            if not self.cut_ledger and self.view.position < self.world.position:
                for one in list(self.ledger.read_events(after=self.view.position)):
                    self.replica.follow(one)
            await asyncio.sleep(0.25)

    async def _lead(self) -> None:
        if not self.leading.epoch:
            self.crash_maybe("before takeover")
            await asyncio.sleep(0.002)
            if self.cut_ledger or self.world.faults.hits("takeover failed"):
                self.lose_ledger()
                return
            wall_us = LoopClock().wall_us()
            writer = self.ledger.start_epoch(self.name, ORIGIN, "0.1.0", wall_us=wall_us)
            self.world.written(writer)
            self.crash_maybe("after takeover")
            self.recorder.writer = writer
            self.live.proofs.close()
            await self.replica.take_over(self.recorder.epoch, self.recorder.position, _nothing)
            self.world.labelled = self
        await asyncio.Event().wait()

    def relist(self) -> None:
        """Take all that the API server has, and forget all that it has not."""
        there = self.world.followed_objects()
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
        sink = self.live.sinks()[f"{value['kind'].lower()}s"]
        if kind == "DELETED":
            sink.drop(value["metadata"]["uid"])
        else:
            sink.put(value["metadata"]["uid"], value)


async def _nothing() -> None:
    return


class Replicated(World):
    """
    The cluster and its replicas, two of them most of the time.

    Attributes:
        labelled: who took the ledger over last, which the Service selects.
        leads: makes what says who answers; a mutant's is another one.
        position: of the newest event in the ledger; who knows that one need not read.
    """

    def __init__(
        self,
        seed: int,
        folder: Path,
        *,
        rate: int = 20,
        leads: Callable[..., Leading] = Leading,
        groups: bool = False,
    ) -> None:
        self.labelled: Standby | None = None
        self.leads = leads
        self.by_epoch: dict[int, str] = {}
        self.takeovers = self.position = 0
        self._meddled_at = -1e9
        self.replicas: list[Standby] = []
        super().__init__(seed, folder, rate=rate, groups=groups)

    def followed_objects(self) -> dict[str, Json]:
        """Return what replicas follow, by UID."""
        return {
            value["metadata"]["uid"]: value
            for value in self.server.objects.values()
            if "uid" in value["metadata"]
        }

    def written(self, writer: Writer) -> None:
        """Take note of what a writer may have added."""
        self.position = max(self.position, writer.head.position)

    def start(self) -> None:
        """Start a replica."""
        one = Standby(self, f"s{len(self.replicas)}")
        self.replicas.append(one)
        self.services.append(one)
        one.process.context.run(one.tasks.start, one.run())

    def alive(self) -> list[Standby]:
        """Return the replicas that there are."""
        return [one for one in self.replicas if one.alive]

    def _changed(self, kind: str, value: Json) -> None:
        if "uid" in value["metadata"]:
            super()._changed(kind, value)

    def _tell(self, service: Service, kind: str, value: Json) -> None:
        assert isinstance(service, Standby)
        if service.cut_api_at is None and service.alive:
            loop = asyncio.get_running_loop()
            loop.call_soon(service.told, kind, value, context=service.process.context.copy())

    # --- who asks -----------------------------------------------------------------------------

    def _asked(self) -> Standby | None:
        if self.faults.hits("deposed leader asked"):
            return self.faults.rng.choice(self.alive() or [None])
        one = self.labelled
        return one if one is not None and one.alive else None

    async def _call(self, one: Standby, work: Coroutine[Any, Any, _T]) -> _T | None:
        """Return what a replica answers in time, None where it does not."""
        task = one.process.start(work)
        done, _ = await asyncio.wait({task}, timeout=HTTP_SECONDS)
        if not done:
            task.cancel()
            return None
        if task.cancelled() or isinstance(task.exception(), CrashedError):
            return None
        answer: _T = task.result()
        return answer

    async def _ask(self, pod: Json) -> str:
        one = self._asked()
        return "" if one is None else await self._call(one, self._node_of(one, pod)) or ""

    async def _node_of(self, one: Standby, pod: Json) -> str:
        if not one.alive:
            raise CrashedError
        node = node_for(one.extender, pod)
        if node and self.by_epoch.setdefault(one.leading.epoch, one.name) != one.name:
            self.broken.append(f"two answer in an epoch: {one.leading.epoch}")
        return node

    async def _bind(self, pod: Json, node: str, binding: set[str]) -> None:
        one = self._asked()
        try:
            if one is not None:
                await self._call(one, one.extender.bind(to_bind(pod, node)))
        finally:
            binding.discard(pod["metadata"]["uid"])

    # --- what happens -------------------------------------------------------------------------

    async def chaos(self) -> None:
        """Do to the cluster and to its replicas what can happen to them."""
        for number in range(9):
            self.put_pod(f"p{number}")
        acts: Sequence[Callable[[], None]] = (
            *(self._end_a_pod, self._recreate_a_pod, self._touch_a_pod) * 6,
            *(self._recreate_a_node, self._crash, self._relist) * 2,
            *(self._pause, self._cut_from_api, self._cut_from_ledger) * 3,
            *(self._skew, self._delete_the_lease, self._roll_out),
        )
        loop = asyncio.get_running_loop()
        end = loop.time() + CHAOS_SECONDS
        while loop.time() < end and not self.broken:
            await asyncio.sleep(self.rng.choice((0.02, 0.1, 1.0, 3.0)))
            self.rng.choice(acts)()
            self.faults.counts["act"] += 1
            self.check()
            if len(self.alive()) < 2:
                self.start()

    def _pick(self) -> Standby | None:
        """Return a replica to do something to: whoever leads, half of the time."""
        one = self.labelled
        if one is not None and one.alive and self.rng.random() < 0.5:
            return one
        return self.rng.choice(self.alive()) if self.alive() else None

    def _for_a_while(
        self, what: str, begin_it: Callable[[], None], end_it: Callable[[], None]
    ) -> None:
        self.faults.counts[what] += 1
        begin_it()
        self.later(self.rng.choice(LENGTHS), end_it)

    def _pause(self) -> None:
        one = self._pick()
        if one is not None and not one.process.paused and not self.rng.randrange(3):
            self._for_a_while(
                "pause", lambda: setattr(one.process, "paused", True), one.process.resume
            )

    def _cut_from_api(self) -> None:
        one = self._pick()
        if one is None or one.cut_api_at is not None or self.rng.randrange(3):
            return
        now = asyncio.get_running_loop().time()
        self._for_a_while(
            "cut from api", lambda: setattr(one, "cut_api_at", now), lambda: self.heal(one)
        )

    def heal(self, one: Standby) -> None:
        """Let a replica reach the API server again; it lists anew."""
        if one.cut_api_at is not None:
            one.cut_api_at = None
            if one.alive:
                loop = asyncio.get_running_loop()
                loop.call_soon(self._relisted, one, context=one.process.context.copy())

    def _relisted(self, one: Standby) -> None:
        if one.alive:
            one.relist()

    def _cut_from_ledger(self) -> None:
        one = self._pick()
        if one is not None and not one.cut_ledger and not self.rng.randrange(3):
            self._for_a_while(
                "cut from ledger",
                lambda: setattr(one, "cut_ledger", True),
                lambda: setattr(one, "cut_ledger", False),
            )

    def _skew(self) -> None:
        one = self._pick()
        if one is not None:
            off = self.rng.choice((timedelta(seconds=7), timedelta(seconds=-60)))
            self._for_a_while(
                "clock off",
                lambda: setattr(one, "skew", off),
                lambda: setattr(one, "skew", timedelta()),
            )

    def _delete_the_lease(self) -> None:
        if not self.rng.randrange(3):
            self.faults.counts["lease deleted"] += 1
            self._meddled_at = asyncio.get_running_loop().time()
            self.server.delete(LEASE_PATH)

    def _roll_out(self) -> None:
        one = self._pick()
        if one is not None and not one.process.paused and len(self.alive()) > 1:
            self.faults.counts["told to stop"] += 1
            self.tasks.start(self._stopped(one))

    async def _stopped(self, one: Standby) -> None:
        """Let a replica leave as one that is told to: it gives the Lease back, and ends."""
        if one.competing is not None:
            one.competing.cancel()
            await asyncio.wait({one.competing}, timeout=HTTP_SECONDS)
        one.crash()

    def _crash(self) -> None:
        one = self._pick()
        if one is not None and not self.rng.randrange(4):
            self.faults.counts["crash anywhere"] += 1
            one.crash()

    def _relist(self) -> None:
        for one in self.alive():
            if one.cut_api_at is None and not one.process.paused:
                one.relist()

    # --- what must hold -----------------------------------------------------------------------

    def check(self) -> None:
        """Note besides if two would answer: never, but after somebody meddled with the Lease."""
        super().check()
        answering = [one.name for one in self.replicas if one.answers()]
        meddled = asyncio.get_running_loop().time() - self._meddled_at < 15.0
        if len(answering) > 1 and not meddled:
            self.broken.append(f"two answer: {answering}")

    async def _watch(self) -> None:
        """Look at every moment, between the acts as well."""
        while True:
            await asyncio.sleep(0.25)
            self.check()

    def _check_alike(self) -> None:
        """Whoever stands by knows what the leader knows."""
        leader = self.leader
        assert isinstance(leader, Standby)
        for one in self.alive():
            for what, theirs, ours in (
                ("position", one.view.position, leader.view.position),
                ("holders", one.view.holders(), leader.view.holders()),
                ("nodes", *({n: s.view.uid(n) for n in NODES} for s in (one, leader))),
                ("attempts", *(self._attempts(each) for each in (one, leader))),
            ):
                if theirs != ours:
                    self.broken.append(f"{one.name} knows other {what}: {theirs}, {ours}")

    def _attempts(self, one: Standby) -> dict[str, object]:
        return {
            pod["metadata"]["uid"]: one.books.standing(pod["metadata"]["uid"])
            for pod in self.pods()
        }

    async def run(self) -> None:
        """Let all of it happen, then let all go well, then look."""
        self.start()
        self.start()
        asking = asyncio.ensure_future(self.kube_scheduler())
        watching = asyncio.ensure_future(self._watch())
        await self.chaos()
        if self.broken:
            return self.end()
        self.faults.calm = True
        await asyncio.sleep(max(LENGTHS))  # every pause and partition is over
        while len(self.alive()) < 2:
            self.start()
        self._relist()
        await asyncio.sleep(CALM_SECONDS)
        asking.cancel()
        watching.cancel()
        await self.tasks.all_done()
        answering = [one for one in self.replicas if one.answers()]
        self.takeovers = max((one.leading.epoch for one in self.replicas), default=0)
        if len(answering) != 1:
            self.broken.append(f"one should lead: {[one.name for one in answering]}")
            return self.end()
        self.leader = answering[0]
        self.check_settled()
        self._check_alike()
        for tasks in (self.tasks, *(one.tasks for one in self.replicas)):
            self.broken += [
                f"failed: {error!r}"
                for error in tasks.failed
                if not isinstance(error, CrashedError)
            ]
        return self.end()

    def end(self) -> None:
        """End whatever runs yet, what is paused as well."""
        super().end()
        for one in self.replicas:
            one.process.resume()
