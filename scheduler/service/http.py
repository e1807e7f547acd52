"""Calls of kube-scheduler and the API server, bytes in and bytes out, with limits and times."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar, cast

from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestHandler

from ledger.domain.errors import InputError, LedgerError
from scheduler.decide.extender import LARGE_BYTES, read_arguments
from scheduler.service.answering import Extender, NotNowError
from scheduler.service.metrics import Metrics
from scheduler.service.preempting import read_victims

_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"

_log: Final = logging.getLogger("tenure.scheduler.http")

Answering = Callable[[RequestHandler | None], AbstractContextManager[None]]
Verb = Callable[[bytes], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """
    What one call may cost.

    Attributes:
        body_bytes_max: more is refused unread.
        seconds_max: less than the caller waits.
        verb_seconds_max: the same of verbs for which it waits longer.
        not_now: errors after which the caller may try again.
    """

    body_bytes_max: int
    seconds_max: float
    verb_seconds_max: Mapping[str, float] = field(default_factory=dict)
    not_now: tuple[type[Exception], ...] = (NotNowError,)


EXTENDER: Final = CallLimits(
    body_bytes_max=64 << 20, seconds_max=9.5, verb_seconds_max={"bind": 29.5}
)
"""
Whole nodes of a large cluster. kube-scheduler gives up after its `httpTimeout`: 10 s, and for bind
30 s, in which a gang's call waits 15 s for the others and is then bound within 8 s.
"""
GATE: Final = CallLimits(
    body_bytes_max=8 << 20, seconds_max=4.5, not_now=(NotNowError, LedgerError)
)
"""Two claims of 1.5 MiB, escaped; the API server gives up after the 5 s of its `timeoutSeconds`."""

DEPTH_MAX: Final = 64
"""Levels of an object in a review; a claim has some twelve."""
ASIDE_BYTES: Final = 64 << 10
"""A larger body is read in a thread, one after another, so that calls are answered in between."""
_ASIDE: Final = ThreadPoolExecutor(1, thread_name_prefix="bodies")

T = TypeVar("T")


async def read_aside(read: Callable[[bytes], T], body: bytes) -> T:
    """Return what a function reads in a body, a large one outside of the loop's thread."""
    if len(body) <= ASIDE_BYTES:
        return read(body)
    bodies = [body]
    del body
    try:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_ASIDE, lambda: read(bodies[0]))
    finally:
        bodies.clear()  # the thread's queue has them until their turn, given up or not


def check_depth(value: object, path: str) -> None:
    """Refuse what is nested too deep, level by level. Raises InputError."""
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX):
        level = [
            child
            for item in level
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise InputError(f"too deep: levels_max={DEPTH_MAX}", field=path)


class Answered(NamedTuple):
    """What is said to one call."""

    status: int
    content_type: str
    body: bytes


class Calls:
    """Answers `POST /VERB`, by either protocol. A call that is not answered gets no 200."""

    def __init__(self, verbs: Mapping[str, Verb], limits: CallLimits, metrics: Metrics) -> None:
        self.verbs = verbs
        self.limits = limits
        self._metrics = metrics
        self._took = {verb: metrics.seconds.labels(verb) for verb in verbs}

    async def answer(self, verb: str, body: Awaitable[bytes]) -> Answered:
        """Answer one call, in time; the body too large is told by aiohttp's own error."""
        started, limits = time.perf_counter(), self.limits
        try:
            seconds = limits.verb_seconds_max.get(verb, limits.seconds_max)
            async with asyncio.timeout(seconds):
                return Answered(200, _JSON, await self.verbs[verb](await body))
        except web.HTTPRequestEntityTooLarge:
            fact = f"too large: bytes_max={limits.body_bytes_max}"
            return self._broken(verb, 413, "too_large", fact)
        except web.HTTPServiceUnavailable as error:  # its bytes made room for others'
            return self._broken(verb, 503, "not_now", error.text or "")
        except InputError as error:
            return self._broken(verb, 400, "unreadable", str(error))
        except limits.not_now as error:
            return self._broken(verb, 503, "not_now", str(error))
        except asyncio.CancelledError as error:
            if error.args:  # the same over HTTP/1.1, and logged there; a caller's end has no words
                self._metrics.broken.labels(verb, "not_now").inc()
            raise
        except TimeoutError:
            return self._broken(verb, 504, "timeout", "no time left to answer")
        finally:
            self._took[verb].observe(time.perf_counter() - started)

    async def answer_path(self, method: str, path: str, body: Awaitable[bytes]) -> Answered:
        """Answer one call by its path, as the application's router would."""
        verb = path.removeprefix("/")
        if path[:1] != "/" or verb not in self.verbs:
            return Answered(404, _TEXT, b"404: Not Found")
        if method != "POST":
            return Answered(405, _TEXT, b"405: Method Not Allowed")
        return await self.answer(verb, body)

    def _broken(self, verb: str, status: int, reason: str, words: str) -> Answered:
        self._metrics.broken.labels(verb, reason).inc()
        _log.warning("not answered", extra={"verb": verb, "reason": reason, "words": words.strip()})
        return Answered(status, _TEXT, f"{words}\n".encode())


def extender_calls(extender: Extender, metrics: Metrics) -> Calls:
    """Return what answers kube-scheduler. Rule: GPU-sharing contract C.2 and C.4."""

    def at_once(
        act: Callable[..., bytes], read: Callable[[bytes], object] = read_arguments
    ) -> Verb:
        async def answer(body: bytes) -> bytes:
            if len(body) <= LARGE_BYTES:
                return act(body)
            return act(body, await read_aside(read, body))

        return answer

    verbs = {
        "filter": at_once(extender.filter),
        "prioritize": at_once(extender.prioritize),
        "preempt": at_once(extender.preempt, read_victims),
        "bind": extender.bind,
    }
    return Calls(verbs, EXTENDER, metrics)


def gate_calls(answer: Verb, metrics: Metrics) -> Calls:
    """Return what answers the API server about claims."""
    return Calls({"claims": answer}, GATE, metrics)


def calls_app(
    calls: Calls, answering: Answering, is_silent: Callable[[], bool] = lambda: False
) -> web.Application:
    """
    Return the application that is called over HTTP/1.1, TLS outside.

    Args:
        answering: keeps a connection for as long as its request is being answered.
        is_silent: callers should look for another replica: their connections are closed.
    """

    @web.middleware
    async def let_go(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if is_silent():
            response.force_close()
        return response

    app = web.Application(middlewares=[let_go])
    for verb in calls.verbs:
        app.router.add_post(f"/{verb}", _handler(verb, calls, answering))
    return app


def _handler(
    verb: str, calls: Calls, answering: Answering
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        with answering(request.protocol):
            content = _content(request, calls.limits.body_bytes_max)
            status, kind, body = await calls.answer(verb, content)
            return web.Response(status=status, body=body, headers={"Content-Type": kind})

    return handle


async def _content(request: web.Request, bytes_max: int) -> bytes:
    """Return a body as the one piece that it grew to: aiohttp's is copied at its end."""
    content = bytearray()
    while more := await request.content.readany():
        content += more
        if len(content) > bytes_max:
            raise web.HTTPRequestEntityTooLarge(max_size=bytes_max, actual_size=len(content))
    return cast("bytes", content)
