"""The extender's calls, bytes in and bytes out, with limits and times; and as an application."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestHandler

from ledger.domain.errors import InputError, LedgerError
from scheduler.service.answering import Extender, NotNowError
from scheduler.service.metrics import Metrics

BODY_BYTES_MAX: Final = 64 << 20
"""Whole nodes of a large cluster; names alone of 5,000 are 0.3 MB."""
SECONDS_MAX: Final = 9.5
"""kube-scheduler gives up after the 10 s of its `httpTimeout`."""
GATE: Final = "claims"
"""The path at which the API server asks about claims."""
GATE_BODY_BYTES_MAX: Final = 8 << 20
"""Two claims of 1.5 MiB at most, escaped."""
GATE_SECONDS_MAX: Final = 4.5
"""The API server gives up after the 5 s of its `timeoutSeconds`."""
_JSON: Final = "application/json"
_TEXT: Final = "text/plain; charset=utf-8"

_log: Final = logging.getLogger("tenure.scheduler.http")

Answering = Callable[[RequestHandler | None], AbstractContextManager[None]]


class Answered(NamedTuple):
    """What is said to one call."""

    status: int
    content_type: str
    body: bytes


class Calls:
    """
    Answers kube-scheduler's calls, whichever protocol they come by.

    Rule: GPU-sharing contract C.2 and C.4. Whatever is no answer is no 200.

    Attributes:
        verbs: what answers each of them.
    """

    def __init__(self, extender: Extender, metrics: Metrics) -> None:
        async def at_once(act: Callable[[bytes], bytes], body: bytes) -> bytes:
            return act(body)

        self.verbs: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
            "filter": lambda body: at_once(extender.filter, body),
            "prioritize": lambda body: at_once(extender.prioritize, body),
            "preempt": lambda body: at_once(extender.preempt, body),
            "bind": extender.bind,
        }
        self._metrics = metrics
        self._took = {verb: metrics.seconds.labels(verb) for verb in self.verbs}

    async def answer(self, verb: str, body: Awaitable[bytes]) -> Answered:
        """Answer one call, in time; the body too large is told by aiohttp's own error."""
        started = time.perf_counter()
        try:
            async with asyncio.timeout(SECONDS_MAX):
                return Answered(200, _JSON, await self.verbs[verb](await body))
        except web.HTTPRequestEntityTooLarge:
            return self._broken(verb, 413, "too_large", f"too large: bytes_max={BODY_BYTES_MAX}")
        except InputError as error:
            return self._broken(verb, 400, "unreadable", str(error))
        except NotNowError as error:
            return self._broken(verb, 503, "not_now", str(error))
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
        said = Answered(status, _TEXT, f"{words}\n".encode())
        return _broken(self._metrics, verb, said, reason)


class GateCalls:
    """Answers the API server about claims; whatever is no answer is no 200, so that it fails."""

    def __init__(self, answer: Callable[[bytes], Awaitable[bytes]], metrics: Metrics) -> None:
        self._answer = answer
        self._metrics = metrics
        self._took = metrics.seconds.labels(GATE)

    async def answer(self, body: Awaitable[bytes]) -> Answered:
        """Answer one call, before the API server gives up."""
        started = time.perf_counter()
        try:
            async with asyncio.timeout(GATE_SECONDS_MAX):
                return Answered(200, _JSON, await self._answer(await body))
        except web.HTTPRequestEntityTooLarge:
            fact = f"too large: bytes_max={GATE_BODY_BYTES_MAX}"
            return self._broken(413, "too_large", fact)
        except InputError as error:
            return self._broken(400, "unreadable", str(error))
        except (NotNowError, LedgerError) as error:
            return self._broken(503, "not_now", str(error))
        except TimeoutError:
            return self._broken(504, "timeout", "no time left to answer")
        finally:
            self._took.observe(time.perf_counter() - started)

    def _broken(self, status: int, reason: str, words: str) -> Answered:
        return _broken(self._metrics, GATE, Answered(status, _TEXT, f"{words}\n".encode()), reason)


def gate_app(
    calls: GateCalls, answering: Answering, is_silent: Callable[[], bool] = lambda: False
) -> web.Application:
    """Return the application that the API server calls about claims, TLS outside."""
    app = web.Application(client_max_size=GATE_BODY_BYTES_MAX)

    async def handle(request: web.Request) -> web.Response:
        with answering(request.protocol):
            said = await calls.answer(request.read())
            response = web.Response(
                status=said.status, body=said.body, headers={"Content-Type": said.content_type}
            )
            if is_silent():
                response.force_close()
            return response

    app.router.add_post(f"/{GATE}", handle)
    return app


def _broken(metrics: Metrics, verb: str, said: Answered, reason: str) -> Answered:
    metrics.broken.labels(verb, reason).inc()
    words = said.body.decode().strip()
    _log.warning("not answered", extra={"verb": verb, "reason": reason, "words": words})
    return said


def extender_app(
    calls: Calls, answering: Answering, is_silent: Callable[[], bool] = lambda: False
) -> web.Application:
    """
    Return the application that kube-scheduler calls over HTTP/1.1, TLS outside.

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

    app = web.Application(client_max_size=BODY_BYTES_MAX, middlewares=[let_go])
    for verb in calls.verbs:
        app.router.add_post(f"/{verb}", _handler(verb, calls, answering))
    return app


def _handler(
    verb: str, calls: Calls, answering: Answering
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        with answering(request.protocol):
            status, kind, body = await calls.answer(verb, request.read())
            return web.Response(status=status, body=body, headers={"Content-Type": kind})

    return handle
