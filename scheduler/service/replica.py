"""
One of several replicas: it stands by with all that deciding needs, and takes the ledger over.

Rule: design section 2: hot standbys follow the feed. A standby knows what a leader knows, so a
takeover folds nothing: it starts an epoch, waits for the feed to reach it, and goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from ledger.domain.errors import LedgerError
from ledger.domain.log.events import EpochStarted
from ledger.domain.log.recorded import RecordedEvent
from scheduler.service.assembly import Assembly
from scheduler.service.leading import Leading

CATCH_UP_SECONDS: Final = 30.0


class Replica:
    """Follows the ledger, and takes it over."""

    def __init__(self, live: Assembly, leading: Leading) -> None:
        self._live = live
        self._leading = leading
        self._moved = asyncio.Event()

    def follow(self, recorded: RecordedEvent) -> None:
        """Take an event, in the order of the feed. Raises FencedError: our epoch is over."""
        event, live = recorded.event, self._live
        if isinstance(event, EpochStarted):
            self._leading.heard(event.epoch)
        live.books.take(recorded.envelope.position, event)
        if not self._leading.epoch:
            live.inventory.follow(event)
            live.proofs.follow(recorded.envelope.position, event)
        self._moved.set()

    def stand_by(self) -> None:
        """Follow what the leader decides by, and record nothing."""
        if not self._leading.epoch:
            self._live.inventory.stand_by()
            if self._live.inventory.synced():
                self._live.books.compare()
            self._live.releasing.stand_by()
            self._live.announcing.stand_by()

    async def take_over(
        self, epoch: int, position: int, record: Callable[[], Awaitable[None]]
    ) -> None:
        """
        Lead from when everything is known here that was recorded before our epoch.

        Args:
            epoch: ours, begun at that position.
            record: says what is decided by from here on.

        Raises:
            FencedError: another writer has taken it over since.
            LedgerError: the feed does not get there in time.
        """
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS):
                while self._live.view.position < position:
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError as error:
            at = self._live.view.position
            raise LedgerError(f"the feed is behind: at={at}, head={position}") from error
        await record()
        self._leading.took(epoch)
