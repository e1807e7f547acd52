"""The webhook's refusals on their way to the scheduler's API, beside admission."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import aiohttp

from certs.ports import ApiError
from ledger.domain.errors import InputError
from scheduler.service.api.words import REFUSALS, REFUSALS_BYTES_MAX, REFUSALS_MAX
from webhook.server.metrics import Metrics
from webhook.server.ports import RefusalRecord

SECONDS_MAX: Final = 5.0
ENFORCED: Final = "enforce"
_ANSWER_BYTES_MAX: Final = 64 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalTarget:
    """
    Where refusals go.

    Attributes:
        url: of the scheduler's API, `https://HOST:PORT`.
        authority: file with whom its certificate must be of.
        token: file with a token of our own ServiceAccount, read again for every message.
    """

    url: str
    authority: Path
    token: Path


class RefusalSender:
    """Sends what waits in a queue; what could not be sent is sent again, in the same words."""

    def __init__(
        self, queue: RefusalQueue, target: RefusalTarget, session: aiohttp.ClientSession
    ) -> None:
        self._queue = queue
        self._target = target
        self._session = session
        self._unsent: list[dict[str, Any]] = []

    async def send(self) -> None:
        """Send what waits, one by one. Raises ApiError: it is sent again; InputError: no token."""
        while True:
            if not self._unsent:
                self._unsent = grouped(self._queue.take(REFUSALS_MAX))
            if not self._unsent:
                return
            number = len(self._unsent)
            while len(body := _message(self._unsent[:number])) > REFUSALS_BYTES_MAX and number:
                number //= 2
            if number:
                await self._post(body)
            del self._unsent[: number or 1]  # one that is too large alone is never taken

    async def _post(self, body: bytes) -> None:
        try:
            token = self._target.token.read_text().strip()
        except OSError as error:
            raise InputError(f"can't read it: {error}", place=str(self._target.token)) from error
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            async with self._session.post(REFUSALS, data=body, headers=headers) as answer:
                words = await answer.content.read(_ANSWER_BYTES_MAX)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            fact = str(error) or type(error).__name__
            raise ApiError(f"the scheduler's API can't be reached: {fact}") from error
        if answer.status == 400:
            return  # words that it can't read are no better the next time
        if answer.status != 200:
            text = words[:200].decode(errors="replace")
            raise ApiError(f"the scheduler's API took no refusals: {text}", status=answer.status)


def _message(refusals: Sequence[dict[str, Any]]) -> bytes:
    return json.dumps({"refusals": refusals}).encode()


@asynccontextmanager
async def sending(queue: RefusalQueue, target: RefusalTarget) -> AsyncIterator[RefusalSender]:
    """Yield the sender of a queue's refusals. Raises InputError: the authority can't be read."""
    try:
        context = await asyncio.to_thread(ssl.create_default_context, cafile=target.authority)
    except (OSError, ssl.SSLError) as error:
        raise InputError(f"no authority: {error}", place=str(target.authority)) from error
    timeout = aiohttp.ClientTimeout(total=SECONDS_MAX)
    connector = aiohttp.TCPConnector(ssl=context, limit=1)
    async with aiohttp.ClientSession(target.url, timeout=timeout, connector=connector) as session:
        yield RefusalSender(queue, target, session)


def grouped(records: Sequence[RefusalRecord]) -> list[dict[str, Any]]:
    """Return refusals as the API takes them, violations of one object together; no warnings."""
    found: dict[str, dict[str, Any]] = {}
    for one in records:
        if one.mode != ENFORCED:
            continue
        told = found.setdefault(
            one.uid,
            {
                "uid": one.uid,
                "kind": one.kind,
                "namespace": one.namespace,
                "name": one.name,
                "user": one.user,
                "violations": [],
            },
        )
        words = {"rule": one.rule, "field": one.field, "message": one.message}
        told["violations"].append(words)
    return list(found.values())


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
