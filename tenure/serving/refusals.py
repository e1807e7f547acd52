"""Refusals on their way to the ledger: a bounded queue, for whoever records them."""

from __future__ import annotations

from collections import deque
from typing import Final

from webhook.server.metrics import Metrics
from webhook.server.ports import RefusalRecord

WAITING_MAX: Final = 10_000


class RefusalQueue:
    """Keeps the newest refusals until somebody takes them; an answer never waits for it."""

    def __init__(self, metrics: Metrics, waiting_max: int = WAITING_MAX) -> None:
        self._waiting: deque[RefusalRecord] = deque()
        self._waiting_max = waiting_max
        self._metrics = metrics

    def put(self, record: RefusalRecord) -> None:
        """Take a refusal; the oldest one makes room, and is counted."""
        if len(self._waiting) >= self._waiting_max:
            self._waiting.popleft()
            self._metrics.refusals_dropped.inc()
        self._waiting.append(record)

    def take(self, most: int) -> list[RefusalRecord]:
        """Return the oldest refusals that wait, and let go of them."""
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]
