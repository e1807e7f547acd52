"""The process as one of several replicas: it follows the feed, and leads while it has the Lease."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Final
from urllib.parse import quote

from certs.ports import ApiError, ConflictError, Object, api_path
from ledger.domain.annotations.wire import TRUE
from ledger.domain.errors import LedgerError
from ledger.domain.log.clock import SteadyClock
from ledger.domain.resources import LABEL_TENURE_LEADER
from ledger.store.reading.feed import follow
from ledger.store.writing.lane import Turn
from scheduler.service.freshness import Freshness
from tenure.kube.lease import Leadership, LeaseSettings
from tenure.kube.objects import KubeObjects
from tenure.kube.reflector import Reflector
from tenure.serving.background import as_coroutine
from tenure.serving.memory import give_back
from tenure.serving.scheduling.ledger import PROBE_SECONDS, ProbedLane
from tenure.serving.scheduling.options import SchedulerOptions
from tenure.serving.scheduling.process import FATAL, Process
from tenure.serving.scheduling.snapshots import Snapshots
from tenure.serving.scheduling.standing import Standing
from tenure.version import tenure_version

STAND_BY_SECONDS: Final = 0.1
GATHER_SECONDS: Final = 0.1
"""Who leads knows what it recorded, and reads it again by the page, not by the commit."""
AWAY_SECONDS_MAX: Final = 10.0
"""Whoever can't reach the ledger for so long lets another replica try."""

_log: Final = logging.getLogger("tenure.scheduler")


def leadership_of(
    options: SchedulerOptions, objects: KubeObjects, freshness: Freshness, recorder: ProbedLane
) -> Leadership:
    """Return who competes for the Lease, once what there is is known here."""
    settings = LeaseSettings(
        namespace=options.namespace, name=options.lease, identity=options.replica
    )

    def able() -> bool:
        patience = AWAY_SECONDS_MAX if recorder.epoch else 0.0
        return freshness.synced() and not freshness.why_stale() and not recorder.is_away(patience)

    return Leadership(objects, settings, _now, time.monotonic, objects.skew, able=able)


def why_not_ready(process: Process) -> str:
    """
    Return why no calls should come here, or nobody should count on this replica; empty otherwise.

    Who stands by is ready once it could take over, so that a rollout goes on; calls go to whoever
    has the leader's label.
    """
    if process.stopping.is_set():
        return "stopping"
    leading = process.leading
    return leading.why_not() if leading.epoch else process.freshness.why_not_known()


def be_a_replica(process: Process, standing: Standing, pods: Reflector) -> None:
    """Follow the ledger, stand by, and lead from when the Lease is ours."""
    process.tasks.append(_follow(process))
    stand_by = as_coroutine(process.replica.stand_by)
    process.repeat(STAND_BY_SECONDS, "standing by", stand_by, fatal=FATAL)
    process.repeat(PROBE_SECONDS, "ledger", process.recorder.probe)
    process.tasks.append(process.leadership.run(partial(_lead, process, standing, pods)))


async def _follow(process: Process) -> None:
    def gather_seconds() -> float:
        return GATHER_SECONDS if process.leading.epoch else 0.0

    feed = follow(process.service, after=process.begun.position, gather_seconds=gather_seconds)
    async with aclosing(feed) as recorded:
        async for one in recorded:
            process.replica.follow(one)


async def _lead(process: Process, standing: Standing, pods: Reflector) -> None:
    """Take the ledger over, unless it is ours still, and lead until the Lease is lost."""
    if not process.leading.epoch:
        _log.info("the Lease is ours", extra={"replica": process.options.replica})
        try:
            await standing.take_over(process, partial(_turn, process), pods)
        except FATAL:
            raise
        except LedgerError as error:
            process.recorder.lost()
            _log.error("the ledger can't be taken over", extra={"reason": str(error)})
            return
        finally:
            process.freshness.quarantine = ""  # whoever has the Lease looks anew
        process.tasks.append(process.recorder.watch())
        process.tasks.start()
        give_back()
        recorder, settle = process.recorder, process.live.templates.settle
        await process.replica.take_over(recorder.epoch, recorder.position, settle)
        record_what_changes(process)
        standing.keep_head(process)
        Snapshots(process.options.ledger, process.begun.snapshot_position).keep(process)
        process.tasks.start()
        process.live.inventory.wake()  # what the last leader left is recorded at once
        where = {"epoch": process.recorder.epoch, "position": process.recorder.position}
        _log.info("leading", extra=where)
    await asyncio.Event().wait()


def _turn(process: Process) -> Turn:
    return Turn(
        holder=process.holder,
        origin=process.origin,
        version=tenure_version(),
        wall_us=process.clock.wall_us(),
        clock=SteadyClock(process.clock.reading),
    )


def _now() -> datetime:
    return datetime.now(UTC)


SETTLE_SECONDS: Final = 0.05
"""How long changes of nodes gather before they are recorded."""
EXPLAIN_SECONDS: Final = 0.25
"""Between looks at the Pods that were refused: a few at a time, beside the calls."""
DRIFT_SECONDS: Final = 0.1
"""Between two slices of the comparison with the API."""
_LOOK_SECONDS: Final = 2.0


def record_what_changes(process: Process) -> None:
    """Record nodes, ends and drift, and tell the cluster of room."""
    releasing = process.live.releasing
    process.repeat(SETTLE_SECONDS, "inventory", _settling(process), fatal=FATAL)
    process.repeat(SETTLE_SECONDS, "templates", process.live.templates.settle, fatal=FATAL)
    process.repeat(SETTLE_SECONDS, "releases", releasing.settle, fatal=FATAL)
    process.repeat(SETTLE_SECONDS, "groups", process.live.gangs.settle, fatal=FATAL)
    process.repeat(SETTLE_SECONDS, "wakes", process.live.announcing.tell)
    process.repeat(EXPLAIN_SECONDS, "refusals", process.live.refusing.settle, fatal=FATAL)
    process.repeat(_LOOK_SECONDS, "room by ends", process.live.evicting.settle, fatal=FATAL)
    process.repeat(PROBE_SECONDS, "events", process.live.telling.send)
    process.repeat(DRIFT_SECONDS, "drift", process.live.reconciling.settle, fatal=FATAL)


def _settling(process: Process) -> Callable[[], Awaitable[None]]:
    inventory, freshness = process.live.inventory, process.freshness

    async def settle() -> None:
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await inventory.woken.wait()
        except TimeoutError:
            pass
        inventory.woken.clear()
        await inventory.settle()
        freshness.settled = inventory.settled

    return settle


LABEL_SECONDS: Final = 1.0
GOODBYE_SECONDS: Final = 3.0
_LABELS: Final = "/metadata/labels"
_LABEL: Final = f"{_LABELS}/{LABEL_TENURE_LEADER.replace('/', '~1')}"


class LeaderLabel:
    """The label of one Pod of several, of which it alone should have it."""

    def __init__(self, objects: KubeObjects, namespace: str, pod: str) -> None:
        self._objects = objects
        self._pods = "v1", "namespaces", namespace, "pods"
        self._pod = pod

    async def take(self) -> None:
        """Label our Pod and no other one. Raises ApiError, ConflictError: do it again."""
        selector = quote(f"{LABEL_TENURE_LEADER}={TRUE}", safe="")
        found = await self._objects.read(f"{api_path(*self._pods)}?labelSelector={selector}")
        names = [str(one["metadata"]["name"]) for one in (found or {}).get("items") or ()]
        for name in names:
            if name != self._pod:
                await self._patch(name, {"op": "remove", "path": _LABEL})
        if self._pod not in names:
            await self._add()

    async def _add(self) -> None:
        pod = await self._objects.read(self._path_of(self._pod))
        if pod is None:
            raise ApiError(f"there is no such Pod to label: path={self._path_of(self._pod)}")
        if pod["metadata"].get("labels") is None:
            none: Object = {"op": "test", "path": _LABELS, "value": None}
            all_of_it: Object = {LABEL_TENURE_LEADER: TRUE}
            await self._patch(self._pod, none, {"op": "add", "path": _LABELS, "value": all_of_it})
        else:
            await self._patch(self._pod, {"op": "add", "path": _LABEL, "value": TRUE})

    def _path_of(self, name: str) -> str:
        return api_path(*self._pods, name)

    async def leave(self) -> None:
        """Take the label off our Pod, if it has it."""
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                test = {"op": "test", "path": _LABEL, "value": TRUE}
                await self._patch(self._pod, test, {"op": "remove", "path": _LABEL})
        except ConflictError:
            return  # it had none
        except (ApiError, TimeoutError) as error:
            _log.warning("the label stays", extra={"reason": str(error) or "no answer"})

    async def _patch(self, name: str, *operations: Object) -> None:
        await self._objects.patch(self._path_of(name), list(operations))


async def label_the_leader(process: Process) -> None:
    """
    Label our Pod from when the ledger is ours until that ends; outside of a cluster there is none.

    Whoever took the ledger over last has the label, also where its Lease ran out since: it says
    why it gives nothing, while nobody else leads. So does who may not take it over.
    """
    options, leading = process.options, process.leading
    if not options.pod:
        return
    label = LeaderLabel(process.objects, options.namespace, options.pod)

    leaving = False

    async def keep() -> None:
        ours = leading.epoch or process.freshness.quarantine
        if ours and not (leading.is_deposed or leaving):
            await label.take()

    @asynccontextmanager
    async def until_the_end() -> AsyncIterator[None]:
        nonlocal leaving
        try:
            yield
        finally:
            leaving = True
            await label.leave()

    process.repeat(LABEL_SECONDS, "leader label", keep)
    await process.stack.enter_async_context(until_the_end())
