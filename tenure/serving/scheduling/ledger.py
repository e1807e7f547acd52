"""The ledger of the process: the lane that it writes through, and the feed that it follows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Final

from ledger.domain.errors import FencedError, LedgerError, OverloadedError
from ledger.domain.log.events import EpochStarted
from ledger.store.mending.recover import incarnations
from ledger.store.open import open_ledger
from ledger.store.reading.feed import follow
from ledger.store.service import Service
from ledger.store.writing.commands import Command, Outcome
from ledger.store.writing.lane import Lane
from scheduler.cluster.settings import settings_json
from scheduler.decide.settings import SchedulingSettings
from scheduler.record import events
from scheduler.record.events import DecidedBy
from scheduler.record.refusing import Told
from scheduler.service.beginning import Beginning, begin, told_refusals
from scheduler.service.books import LiveBooks
from scheduler.service.freshness import Freshness
from scheduler.service.refusing import History
from tenure.serving.scheduling.options import ProcessClock

PROBE_SECONDS: Final = 1.0


class ProbedLane:
    """A lane, and whether the ledger behind it answers."""

    def __init__(self, lane: Lane, service: Service, freshness: Freshness) -> None:
        self._lane = lane
        self._service = service
        self._freshness = freshness

    @property
    def epoch(self) -> int:
        """The epoch that is written in."""
        return self._lane.epoch

    @property
    def position(self) -> int:
        """The last position that is known to be durable."""
        return self._lane.position

    async def record(self, command: Command) -> Outcome:
        """Record a command; see `Lane.record`."""
        try:
            outcome = await self._lane.record(command)
        except OverloadedError:
            raise
        except LedgerError:
            self._freshness.away = True
            raise
        self._freshness.away = False
        return outcome

    async def probe(self) -> None:
        """Look whether a ledger that was away is back."""
        if not self._freshness.away:
            return
        await self._service.probe(PROBE_SECONDS)
        self._freshness.away = False


def beginning_of(url: str) -> tuple[Beginning, str]:
    """Return what the ledger tells at its head, and the incarnation that is open."""
    with open_ledger(url, mode="read") as ledger:
        lives, _ = incarnations(ledger)
        return begin(ledger), lives[-1].name


def refusals_told(url: str) -> History:
    """Return what asks the ledger why Pods waited."""

    def read(pod_uids: Sequence[str]) -> Mapping[str, Told]:
        with open_ledger(url, mode="read") as ledger:
            return told_refusals(ledger, pod_uids)

    async def told(pod_uids: Sequence[str]) -> Mapping[str, Told]:
        return await asyncio.to_thread(read, pod_uids)

    return told


async def say_settings(
    recorder: ProbedLane,
    settings: SchedulingSettings,
    words: DecidedBy,
    begun: Beginning,
    clock: ProcessClock,
) -> None:
    """Record what is decided by, where it is other than before."""
    text = settings_json(settings, seed=0)
    if begun.settings == text:
        return
    new = events.settings_changed(words, text, clock.wall_us())
    key = f"{new.idempotency_key}:{recorder.epoch}"
    await recorder.record(Command(events=(events.by("scheduler", new, key=key),)))


async def follow_ledger(service: Service, books: LiveBooks, after: int, epoch: int) -> None:
    """Take note of every event; end where another writer's epoch starts."""
    async with aclosing(follow(service, after=after)) as recorded:
        async for one in recorded:
            if isinstance(one.event, EpochStarted) and one.envelope.epoch != epoch:
                raise FencedError(f"another writer took over: epoch={one.envelope.epoch}")
            books.take(one.envelope.position, one.event)
