"""Answers of the API server that are worth keeping for seconds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from scheduler.service.budgets import put_newest

AT_ONCE: Final = 32
"""Questions that the API server is asked at once, of those that are open."""

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class TooManyError(Exception):
    """So many questions wait for the API server that one more is not asked."""


@dataclass(slots=True, eq=False)
class Remembered(Generic[_K, _V]):
    """
    Asks for what it does not know; who asks for the same at once waits for one answer.

    Attributes:
        seconds: how long an answer counts.
        kept_max: answers; the oldest goes first.
        asked_max: questions that are open at once, those included that wait for their turn.
        share_max: those of them that one who asks may have open.
    """

    monotonic: Callable[[], float]
    seconds: float
    kept_max: int = 4096
    asked_max: int = 1024
    share_max: int = 8
    _shares: Counter[Hashable] = field(default_factory=Counter)
    _kept: dict[_K, tuple[float, _V]] = field(default_factory=dict)
    _asked: dict[_K, asyncio.Future[_V]] = field(default_factory=dict)
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))

    def __len__(self) -> int:
        return len(self._kept)

    async def get(self, key: _K, ask: Callable[[], Awaitable[_V]], asker: Hashable) -> _V:
        """
        Return the answer, of so many seconds ago at most; what `ask` raises is kept for nobody.

        Args:
            asker: whose question it is, where nobody has asked it yet.

        Raises:
            TooManyError: it is not known, and too many are open, or too many of this asker's.
        """
        known = self._kept.get(key)
        if known is not None and self.monotonic() < known[0]:
            return known[1]
        asking = self._asked.get(key)
        if asking is None:
            if len(self._asked) >= self.asked_max:
                raise TooManyError(f"too many questions are open: asked_max={self.asked_max}")
            if self._shares[asker] >= self.share_max:
                raise TooManyError(f"too many of your questions are open: most={self.share_max}")
            asking = asyncio.ensure_future(self._learn(key, ask))
            self._asked[key] = asking
            self._shares[asker] += 1
            asking.add_done_callback(lambda done: self._learnt(key, asker, done))
        return await asyncio.shield(asking)  # others may wait for it too

    def keep(self, key: _K, value: _V, since: float) -> None:
        """Keep an answer that was asked for then."""
        put_newest(self._kept, key, (since + self.seconds, value), self.kept_max)

    async def _learn(self, key: _K, ask: Callable[[], Awaitable[_V]]) -> _V:
        async with self._turns:
            since = self.monotonic()
            found = await ask()
        self.keep(key, found, since)
        return found

    def _learnt(self, key: _K, asker: Hashable, done: asyncio.Future[_V]) -> None:
        del self._asked[key]
        self._shares[asker] -= 1
        if not self._shares[asker]:
            del self._shares[asker]
        if not done.cancelled():
            done.exception()  # whoever waits has it; perhaps nobody does any more
