"""
What groups and gangs need done: ends of plans recorded, gates lifted, members woken or evicted.

Rule: design section 5, Gangs. An extender has no Permit stage: members of a gang carry a scheduling
gate, which is lifted for all at once when enough of them are there and a plan has room for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from certs.ports import ApiError, ConflictError, Object
from ledger.domain.errors import LedgerError
from ledger.domain.log.events import PlanDropped
from ledger.domain.resources import GATE_TENURE_GANG
from scheduler.decide.group.life import DEADLINE
from scheduler.record import events
from scheduler.service.binding import Binder, fence, pod_path
from scheduler.service.groups import LiveGroups
from scheduler.service.members import Waiting
from scheduler.service.ports import WhyNot
from scheduler.service.recording import record
from scheduler.service.refusing import Refusing
from scheduler.service.view import ClusterView

PLAN_SECONDS: Final = 1.0
"""Between two attempts to plan the gangs that wait."""
GANGS_MAX: Final = 50
PLANNING_SECONDS: Final = 0.1
"""So many gangs, or for so long, are planned in one turn; meanwhile no filter is answered."""
READY_SECONDS: Final = 2.0
NOTE_SECONDS: Final = 30.0
"""A gang that waits for the same is explained again so often: nodes may have other reasons."""
NOT_FOUND, TOO_MANY_REQUESTS = 404, 429

_log: Final = logging.getLogger("tenure.scheduler.gangs")


class Lifting:
    """The gangs whose gates are being lifted now, and the plans that are being recorded."""

    def __init__(self, groups: LiveGroups) -> None:
        self._groups = groups
        self._done: dict[str, asyncio.Event] = {}

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Let `ready` wait for the members of a gang until the block ends."""
        done = self._done[name] = asyncio.Event()
        try:
            yield
        finally:
            del self._done[name]
            done.set()

    async def ready(self, pod_uid: str) -> None:
        """Come back once nobody of the Pod's gang is being let go, and its plan is recorded."""
        name = self._groups.members.name_of(pod_uid)
        done = self._done.get(name)
        if done is not None:
            await done.wait()
        await self._groups.plans.recorded(name)


@dataclass(slots=True, eq=False)
class Gangs:
    """Does what `LiveGroups` says is due."""

    view: ClusterView
    binder: Binder
    groups: LiveGroups
    lifting: Lifting
    refusals: Refusing
    why_not: WhyNot
    _plan_at: float = 0.0
    _next: list[str] = field(default_factory=list)  # gangs whose turn it is
    _noted: dict[str, tuple[object, float]] = field(
        default_factory=dict
    )  # gang -> why it waits, noted when
    _evicted: set[str] = field(default_factory=set)  # Pods that the API server was asked to end

    async def settle(self) -> None:
        """
        Record ends of plans, and let gangs go.

        Raises LedgerError (unless fenced), ApiError: call it again.
        """
        if self.why_not():
            return
        now = self.binder.clock.monotonic()
        if now >= self._plan_at:
            self._plan_at = now + PLAN_SECONDS
            self.groups.plans.review_all()
            await self._tell()
            refused = await self._evict()
            await self._try_again()
            await self._let_go()
            if refused is not None:
                raise refused
        await self._tell()

    async def _tell(self) -> None:
        due = self.groups.plans.begin_drops()
        for number, new in enumerate(due):
            assert isinstance(new.event, PlanDropped), new
            ours = events.by(self.binder.actor, new)
            try:
                error = await record(self.binder.recorder, (ours,), self.binder.books.recorded)
            except LedgerError:
                self.groups.plans.drops_failed(due[number:])
                raise
            if error is not None:
                words = {"group": new.event.group, "reason": str(error)}
                _log.error("the end of a plan can't be recorded", extra=words)
                self.groups.plans.drop_refused(new.event)

    def why_evicted(self, pod_uid: str) -> str:
        """Return why a Pod was evicted, empty for one that was not."""
        return DEADLINE if pod_uid in self._evicted else ""

    async def _evict(self) -> ApiError | None:
        """
        Evict bound members of gangs that missed their deadline, if they are to go.

        A budget that does not allow it now is asked again. Another refusal is about one Pod: the
        others are evicted, and the first such answer is returned.
        """
        refused: ApiError | None = None
        partial = self.groups.plans.partials()
        self._evicted.intersection_update(partial)
        for uid in partial:
            seen = self.view.pods.seen.get(uid)
            if uid in self._evicted or seen is None or seen.ended:
                continue
            body = eviction(seen.namespace, seen.name, uid)
            words = {"pod_uid": uid, "node_name": seen.node, "reason": DEADLINE}
            try:
                path = pod_path(seen.namespace, seen.name, "eviction")
                await self.binder.api.create(path, body)
            except ConflictError:  # it is another Pod now; the watch tells
                continue
            except ApiError as error:
                if error.status not in {NOT_FOUND, TOO_MANY_REQUESTS}:
                    refused = refused or error
                _log.warning("not evicted", extra={**words, "error": str(error)})
                continue
            self._evicted.add(uid)
            _log.info("evicted", extra=words)
        return refused

    async def _let_go(self) -> None:
        """Lift the gates of the gangs that are planned, one after the other."""
        gated = self.groups.members.gated()
        turn = [name for name in self._next if name in gated] or list(gated)
        failed: ApiError | None = None
        spent, monotonic = 0.0, self.binder.clock.monotonic
        for name in turn[:GANGS_MAX]:
            if spent >= PLANNING_SECONDS or self.why_not():
                break
            began = monotonic()
            members = self.groups.planned_now(name)
            turn.remove(name)
            spent += monotonic() - began
            try:
                if members:
                    await self._lift(name, members)
                else:
                    self._note(name)
            except ApiError as error:  # perhaps of this gang's Pods alone
                failed = error
        self._next = turn
        self._noted = {name: noted for name, noted in self._noted.items() if name in gated}
        if failed is not None:
            raise failed

    def _note(self, name: str) -> None:
        """Let it be recorded why the members of a gang wait that nobody asks about."""
        waiting = self.groups.members.without_node(name)
        gates = (GATE_TENURE_GANG,)  # the others are told the gates of others
        gated = {uid: one.request for uid, one in waiting.items() if one.gates == gates}
        now, why = self.binder.clock.monotonic(), (self.groups.why_nowhere(name), tuple(gated))
        before, at = self._noted.get(name, (None, 0.0))
        if before != why or now >= at + NOTE_SECONDS:
            self._noted[name] = why, now
            for request in gated.values():
                self.refusals.noted(request)

    async def _try_again(self) -> None:
        """
        Wake the members of gangs whose start failed, which are planned anew with the first filter.

        Where none could be woken that is tried again, unless one was asked about meanwhile.
        """
        starts = self.groups.starts
        for name in starts.due()[:GANGS_MAX]:
            starts.try_again(name)
            members = self.groups.members.waiting(name).items()
            calls = [self._wake(uid, one) for uid, one in members if not one.is_gated]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            for error in outcomes:
                if isinstance(error, ApiError | ConflictError):
                    _log.warning("not woken", extra={"group": name, "error": str(error)})
                elif error is not None:
                    raise error
            if outcomes and None not in outcomes and not self.groups.groups.places(name):
                starts.back_off(name)

    async def _wake(self, uid: str, one: Waiting) -> None:
        """Change a Pod, so that kube-scheduler tries it again."""
        path = pod_path(one.request.namespace, one.request.name)
        binder = self.binder
        mark = f"{binder.recorder.epoch}/{binder.clock.wall_us()}"
        await binder.api.patch(path, fence(uid, mark, self.view.pods.pending(uid)))

    async def _lift(self, name: str, members: dict[str, Waiting]) -> None:
        try:
            with self.lifting.of(name):
                async with asyncio.timeout(READY_SECONDS):
                    calls = (self._ungate(uid, one) for uid, one in members.items())
                    outcomes = await asyncio.gather(*calls, return_exceptions=True)
        except TimeoutError:
            return
        failed = [one for one in outcomes if isinstance(one, BaseException)]
        for error in failed:
            if not isinstance(error, ConflictError):
                raise error

    async def _ungate(self, uid: str, one: Waiting) -> None:
        """Lift a gate; a Pod that changed meanwhile is looked at again."""
        path = pod_path(one.request.namespace, one.request.name)
        pod = await self.binder.api.patch(path, without_gate(uid, one.gates))
        self.groups.members.ungated(uid, pod)


def eviction(namespace: str, name: str, pod_uid: str) -> Object:
    """Return what asks for the end of this Pod and of no later one of its name."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": namespace},
        "deleteOptions": {"preconditions": {"uid": pod_uid}},
    }


def without_gate(pod_uid: str, gates: tuple[str, ...]) -> list[Object]:
    """Return the patch that takes our gate from a Pod that has these."""
    path = "/spec/schedulingGates"
    left = [{"name": gate} for gate in gates if gate != GATE_TENURE_GANG]
    change: Object = (
        {"op": "replace", "path": path, "value": left} if left else {"op": "remove", "path": path}
    )
    return [
        {"op": "test", "path": "/metadata/uid", "value": pod_uid},
        {"op": "test", "path": path, "value": [{"name": gate} for gate in gates]},
        change,
    ]
