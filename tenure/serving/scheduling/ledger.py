"""The ledger of the process: what it begins with, and the lane that it writes through."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from ledger.domain.errors import InputError, LedgerError, OverloadedError
from ledger.store.open import open_ledger
from ledger.store.service import Service
from ledger.store.threaded import in_thread
from ledger.store.writing.commands import Command, Outcome
from ledger.store.writing.lane import Lane, Turn, open_lane
from scheduler.record.refusing import Told
from scheduler.service.beginning import Beginning, begin, told_refusals
from scheduler.service.freshness import Freshness
from scheduler.service.refusing import History
from tenure.exits import with_next

PROBE_SECONDS: Final = 1.0


@dataclass(slots=True, eq=False)
class ProbedLane:
    """The lane, None before the takeover, and whether its ledger answers; `now` is monotonic."""

    service: Service
    freshness: Freshness
    now: Callable[[], float]
    lane: Lane | None = None
    _away_since: float = 0.0
    _opened: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def open(self, turn: Turn) -> None:
        """
        Take the ledger over: every earlier writer is fenced from here on.

        Raises:
            InputError: the ledger has another origin.
            LedgerError: it can't be taken over now.
        """
        self.lane = await self._opened.enter_async_context(open_lane(self.service, turn))

    async def watch(self) -> None:
        """Wait until nothing is recorded any more, and raise why; see `Lane.watch`."""
        assert self.lane is not None, "the ledger is ours"
        await self.lane.watch()

    async def close(self) -> None:
        """Record what waits, and let go."""
        await self._opened.aclose()

    @property
    def epoch(self) -> int:
        """The epoch that is written in; 0 before the first."""
        return 0 if self.lane is None else self.lane.epoch

    @property
    def position(self) -> int:
        """The last position that is known to be durable; 0 before we write."""
        return 0 if self.lane is None else self.lane.position

    async def record(self, command: Command) -> Outcome:
        """Record a command; see `Lane.record`."""
        if self.lane is None:
            raise LedgerError("the ledger is not taken over yet")
        try:
            outcome = await self.lane.record(command)
        except OverloadedError:
            raise
        except LedgerError:
            self.lost()
            raise
        self.freshness.away = False
        return outcome

    def lost(self) -> None:
        """Take note that the ledger did not answer."""
        if not self.freshness.away:
            self.freshness.away, self._away_since = True, self.now()

    def is_away(self, seconds: float) -> bool:
        """Tell whether the ledger has been away for so long."""
        return self.freshness.away and self.now() - self._away_since >= seconds

    async def probe(self) -> None:
        """Look whether a ledger that was away is back."""
        if not self.freshness.away:
            return
        await self.service.probe(PROBE_SECONDS)
        self.freshness.away = False


def beginning_of(url: str, origin: str) -> Beginning:
    """Return what the ledger tells at its head. Raises InputError: another cluster's."""
    with open_ledger(url, mode="read") as ledger:
        theirs = ledger.head().origin
        if theirs not in ("", origin):
            fact = f"the ledger belongs to another cluster: origin={theirs}, expected={origin}"
            step = "give --ledger the one of this cluster, or make one: `tenure ledger init`"
            raise with_next(InputError(fact, place=ledger.url), step)
        return begin(ledger)


def refusals_told(url: str) -> History:
    """Return what asks the ledger why Pods waited."""

    def read(pod_uids: Sequence[str] | None) -> Mapping[str, Told]:
        with open_ledger(url, mode="read") as ledger:
            return told_refusals(ledger, pod_uids)

    async def told(pod_uids: Sequence[str] | None) -> Mapping[str, Told]:
        return await in_thread(read, pod_uids)

    return told
