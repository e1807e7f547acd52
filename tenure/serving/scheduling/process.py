"""One process of the live scheduler: what every room of it works with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from ledger.domain.errors import CorruptLedgerError, FencedError
from ledger.domain.log.clock import Reading
from ledger.store.service import Service
from scheduler.service.assembly import Assembly
from scheduler.service.beginning import Beginning
from scheduler.service.freshness import Freshness
from scheduler.service.leading import Leading
from scheduler.service.metrics import Metrics
from scheduler.service.proofs import Signing
from scheduler.service.replica import Replica
from scheduler.service.view import ClusterView
from tenure.kube.lease import Leadership
from tenure.kube.objects import KubeObjects
from tenure.serving.background import Tasks, every
from tenure.serving.scheduling.ledger import ProbedLane
from tenure.serving.scheduling.options import SchedulerOptions

FATAL: Final = (FencedError, CorruptLedgerError)
"""After these nothing of ours will be recorded any more: the process ends."""


class ProcessClock:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        """Return seconds that never run backwards."""
        return time.monotonic()

    def wall_us(self) -> int:
        """Return the wall clock in microseconds since 1970."""
        return time.time_ns() // 1000

    def reading(self) -> Reading:
        """Return both at one moment."""
        return Reading(wall_us=self.wall_us(), monotonic_us=time.monotonic_ns() // 1000)

    async def sleep(self, seconds: float) -> None:
        """Come back after that many seconds."""
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """
    What runs from the ledger's opening to the end.

    Attributes:
        stack: closes what was opened, in the reverse order.
        leading: whether this replica answers; `replica` follows the ledger and takes it over.
        holder: whose doing the events are.
        signing: signs what a view's nodes hold.
    """

    options: SchedulerOptions
    stack: AsyncExitStack
    stopping: asyncio.Event
    clock: ProcessClock
    metrics: Metrics
    objects: KubeObjects
    origin: str
    service: Service
    recorder: ProbedLane
    freshness: Freshness
    leadership: Leadership
    leading: Leading
    replica: Replica
    holder: str
    begun: Beginning
    live: Assembly
    signing: Callable[[ClusterView], Signing]
    tasks: Tasks

    def repeat(
        self,
        seconds: float,
        what: str,
        act: Callable[[], Awaitable[None]],
        *,
        fatal: tuple[type[Exception], ...] = (),
    ) -> None:
        """Act again and again, from when the tasks are started; see `every`."""
        failures = self.metrics.background_failures
        self.tasks.append(every(seconds, what, act, failures, fatal=fatal))
