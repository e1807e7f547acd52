"""
Has kube-scheduler try again those Pods that found no device while one was counted twice.

Rule: docs/adr/0027. Of a claim that was stored with another device than it chose, a scheduler
counts both for a moment. A Pod that it refuses by then waits for a change that it listens to. That
a claim is bound is none; a change of a DeviceClass is one. We have one of our own for this, which
selects nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from certs.ports import ApiError, ConflictError, Object, Objects
from ledger.domain.resources import ANNOTATION_TENURE_EXCHANGED, WAKING_CLASS
from scheduler.service.budgets import Delays
from scheduler.service.ports import Clock, WhyNot
from scheduler.service.slices import CLASSES
from scheduler.service.wakeups import Wakeups

WAVES: Final = (1.0, 5.0)
"""Seconds after an exchange by which a scheduler has bound its Pod, or surely has."""

_log: Final = logging.getLogger("tenure.scheduler.waking")


class Waking:
    """Wakes Pods after exchanges; `waiting` returns how many Pods have no node."""

    def __init__(
        self,
        api: Objects,
        clock: Clock,
        wakeups: Wakeups,
        *,
        waiting: Callable[[], int],
        why_not: WhyNot,
    ) -> None:
        self._api = api
        self._clock = clock
        self._waiting = waiting
        self._why_not = why_not
        self._last = self._woken = 0.0
        self._wave = len(WAVES)
        self._delays = Delays[str](clock.monotonic)
        wakeups.device_exchanged.subscribe(self.exchanged)

    def exchanged(self) -> None:
        """Take note that a claim is stored with another device than was written."""
        self._last = self._clock.monotonic()
        self._wave = 0

    async def settle(self) -> None:
        """Let Pods be tried again, a while after an exchange, and while there are ever more."""
        now = self._clock.monotonic()
        if self._wave >= len(WAVES) or self._why_not() or not self._delays.is_due(WAKING_CLASS):
            return
        is_over = now >= self._last + WAVES[self._wave]
        if not is_over and now < self._woken + WAVES[-1]:
            return
        self._woken = now
        if self._waiting() and not await self._wake():
            self._delays.failed(WAKING_CLASS)
            return
        self._delays.over(WAKING_CLASS)
        if is_over:
            self._wave += 1

    async def _wake(self) -> bool:
        said = {ANNOTATION_TENURE_EXCHANGED: str(self._clock.wall_us())}
        change: Object = {"op": "add", "path": "/metadata/annotations", "value": said}
        try:
            try:
                await self._api.patch(f"{CLASSES}/{WAKING_CLASS}", [change])
            except ConflictError:
                await self._make()
        except (ApiError, ConflictError) as error:
            _log.warning("nobody woken", extra={"reason": str(error)})
            return False
        return True

    async def _make(self) -> None:
        nothing = {"cel": {"expression": "false"}}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": WAKING_CLASS},
            "spec": {"selectors": [nothing]},
        }
        await self._api.create(CLASSES, body)
