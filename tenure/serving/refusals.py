"""Refusals on their way to the ledger: a bounded queue, for whoever records them."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, replace
from typing import Any, Final

from webhook.server.metrics import Metrics
from webhook.server.ports import RefusalRecord

WAITING_MAX: Final = 10_000
TEXT_MAX: Final = 1_024
"""Characters of a text that are kept: whoever calls chooses how long a name is."""


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
        self._waiting.append(_bounded(record))

    def take(self, most: int) -> list[RefusalRecord]:
        """Return the oldest refusals that wait, and let go of them."""
        return [self._waiting.popleft() for _ in range(min(most, len(self._waiting)))]


def _bounded(record: RefusalRecord) -> RefusalRecord:
    """Return the record with no text longer than is kept; most have none."""
    long: dict[str, Any] = {
        field.name: value[:TEXT_MAX]
        for field in fields(record)
        if isinstance(value := getattr(record, field.name), str) and len(value) > TEXT_MAX
    }
    return replace(record, **long) if long else record
