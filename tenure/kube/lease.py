"""
Who leads: one Lease, with a deadline on every attempt.

It is for liveness only. Whoever must be the one in fact, such as the ledger's writer, is fenced by
what it writes to.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final

from certs.ports import ApiError, ConflictError, Object, Objects, api_path
from ledger.domain.log.clock import SKEW_MAX_US

ABLE_SECONDS: Final = 0.05
"""How soon it is seen that we could lead: a start waits for it."""
SKEW_MAX: Final = timedelta(microseconds=SKEW_MAX_US)
"""Rule: design section 8, "leadership is refused when the skew to the API server exceeds 5 s";
5 s off does not lead, for its answer says whole seconds."""

_TIME: Final = "%Y-%m-%dT%H:%M:%S.%fZ"
_log: Final = logging.getLogger("tenure.lease")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """
    A Lease and its times.

    Attributes:
        duration: others may take it this long after they last saw it renewed.
        renew_deadline: a leader that could not renew for this long stops; below `duration`.
        retry: between two attempts.
    """

    namespace: str
    name: str
    identity: str
    duration: timedelta = timedelta(seconds=15)
    renew_deadline: timedelta = timedelta(seconds=10)
    retry: timedelta = timedelta(seconds=2)

    def __post_init__(self) -> None:
        assert self.retry < self.renew_deadline < self.duration


class _Seen(Enum):
    """What an attempt showed."""

    OURS = "ours"
    THEIRS = "theirs"
    UNKNOWN = "unknown"


class Leadership:
    """
    Takes the Lease when it is free, and runs `lead` for as long as it is held.

    Other people's clocks are not trusted: a Lease has lapsed when it was seen unchanged for its
    whole duration by our own monotonic clock. Nor is our own, where it differs from the API
    server's: what a leader writes down is read by the next one.

    Attributes:
        until: when the Lease ends to be ours unless it is renewed, by the monotonic clock: sooner
            than anybody else may take it. In the past where it is not ours.
    """

    def __init__(
        self,
        objects: Objects,
        settings: LeaseSettings,
        clock: Callable[[], datetime],
        monotonic: Callable[[], float],
        skew: Callable[[], timedelta] = timedelta,
        *,
        able: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        Make one.

        Args:
            skew: tells how far our clock is ahead of the API server's.
            able: tells whether we could lead; who can't, lets others take the Lease.
        """
        self._objects = objects
        self._settings = settings
        self._clock = clock
        self._monotonic = monotonic
        self._skew = skew
        self._able = able
        self.until = -math.inf
        leases = "coordination.k8s.io/v1", "namespaces", settings.namespace, "leases"
        self._path, self._lease = api_path(*leases), api_path(*leases, settings.name)
        self._seen: tuple[Any, float] | None = None
        self._warned = False
        self._reason = ""

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Compete for the Lease until cancelled; `lead` is cancelled when it is lost."""
        try:
            while True:
                if not self._able():  # which is seen here, and asks nobody
                    await asyncio.sleep(ABLE_SECONDS)
                    continue
                if await self._attempt() is _Seen.OURS:
                    await self._while_held(lead)
                    if not self._able() or abs(self._skew()) >= SKEW_MAX:
                        await self._release()
                await asyncio.sleep(self._settings.retry.total_seconds())
        finally:
            self.until = -math.inf
            await asyncio.shield(self._release())

    async def _while_held(self, lead: Callable[[], Awaitable[None]]) -> None:
        acting = asyncio.ensure_future(lead())
        try:
            while not acting.done():
                await asyncio.wait({acting}, timeout=self._settings.retry.total_seconds())
                if not self._able():
                    return
                if await self._attempt() is _Seen.THEIRS or self._monotonic() > self.until:
                    return
        finally:
            self.until = -math.inf
            acting.cancel()
            with suppress(asyncio.CancelledError):
                await acting

    async def _attempt(self) -> _Seen:
        began = self._monotonic()
        try:
            async with asyncio.timeout(self._settings.retry.total_seconds() * 2):
                seen = await self._take()
        except (TimeoutError, ApiError, ConflictError) as error:
            self._say(str(error) or "no answer in time")
            return _Seen.UNKNOWN
        self._reason = ""
        if seen is _Seen.OURS:  # the server may have taken it as early as we began
            self.until = began + self._settings.renew_deadline.total_seconds()
        return seen

    def _say(self, reason: str) -> None:
        """Log why the Lease can't be asked for, once for each reason in a row."""
        if reason != self._reason:
            self._reason = reason
            _log.warning("the Lease can't be had", extra={"lease": self._path, "reason": reason})

    async def _take(self) -> _Seen:
        path = self._lease
        lease = await self._objects.read(path)
        if abs(self._skew()) >= SKEW_MAX:
            if not self._warned:
                self._warned = True
                seconds = round(self._skew().total_seconds())
                _log.error("our clock is wrong: not leading", extra={"ahead_seconds": seconds})
            return _Seen.THEIRS
        if lease is None:
            await self._objects.create(self._path, self._body({}, 0))
            return _Seen.OURS
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self._settings.identity) and not self._lapsed(lease):
            return _Seen.THEIRS
        changes = spec.get("leaseTransitions") or 0
        mine = holder == self._settings.identity
        body = self._body(lease["metadata"], changes if mine else changes + 1)
        if mine:
            body["spec"]["acquireTime"] = spec.get("acquireTime")
        await self._objects.replace(path, body)
        return _Seen.OURS

    def _lapsed(self, lease: Object) -> bool:
        version = lease["metadata"]["resourceVersion"]
        now = self._monotonic()
        if self._seen is None or self._seen[0] != version:
            self._seen = (version, now)
        spec = lease["spec"]
        theirs = spec.get("leaseDurationSeconds") or self._settings.duration.total_seconds()
        return now - self._seen[1] > theirs

    def _body(self, metadata: Mapping[str, Any], changes: int) -> dict[str, Any]:
        now = self._clock().astimezone(UTC).strftime(_TIME)
        settings = self._settings
        named = {"namespace": settings.namespace, "name": settings.name}
        if metadata:
            named["resourceVersion"] = metadata["resourceVersion"]
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": named,
            "spec": {
                "holderIdentity": settings.identity,
                "leaseDurationSeconds": int(settings.duration.total_seconds()),
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": changes,
            },
        }

    async def _release(self) -> None:
        path = self._lease
        with suppress(ApiError, ConflictError, TimeoutError):
            async with asyncio.timeout(self._settings.retry.total_seconds()):
                await self._let_go(path)

    async def _let_go(self, path: str) -> None:
        lease = await self._objects.read(path)
        spec = (lease or {}).get("spec") or {}
        if lease is None or spec.get("holderIdentity") != self._settings.identity:
            return
        body = self._body(lease["metadata"], spec.get("leaseTransitions") or 0)
        body["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1}
        await self._objects.replace(path, body)
