"""The extender as an aiohttp application: bytes in, bytes out, limits and times."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestHandler

from ledger.domain.errors import InputError
from scheduler.service.answering import Extender, NotNowError
from scheduler.service.metrics import Metrics

BODY_BYTES_MAX: Final = 64 << 20
"""Whole nodes of a large cluster; names alone of 5,000 are 0.3 MB."""
SECONDS_MAX: Final = 9.5
"""kube-scheduler gives up after the 10 s of its `httpTimeout`."""
_JSON: Final = "application/json"

_log: Final = logging.getLogger("tenure.scheduler.http")

Answering = Callable[[RequestHandler | None], AbstractContextManager[None]]


def extender_app(
    extender: Extender,
    metrics: Metrics,
    answering: Answering,
    is_silent: Callable[[], bool] = lambda: False,
) -> web.Application:
    """
    Return the application that kube-scheduler calls, TLS outside.

    Rule: GPU-sharing contract C.2 and C.4. Whatever is no answer is no 200.

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

    async def at_once(act: Callable[[bytes], bytes], body: bytes) -> bytes:
        return act(body)

    verbs: dict[str, Callable[[bytes], Awaitable[bytes]]] = {
        "filter": lambda body: at_once(extender.filter, body),
        "prioritize": lambda body: at_once(extender.prioritize, body),
        "preempt": lambda body: at_once(extender.preempt, body),
        "bind": extender.bind,
    }
    for verb, act in verbs.items():
        app.router.add_post(f"/{verb}", _handler(verb, act, metrics, answering))
    return app


def _handler(
    verb: str, act: Callable[[bytes], Awaitable[bytes]], metrics: Metrics, answering: Answering
) -> Callable[[web.Request], Awaitable[web.Response]]:
    took = metrics.seconds.labels(verb)

    def broken(status: int, reason: str, words: str) -> web.Response:
        metrics.broken.labels(verb, reason).inc()
        _log.warning("not answered", extra={"verb": verb, "reason": reason, "words": words})
        return web.Response(status=status, text=f"{words}\n")

    async def handle(request: web.Request) -> web.Response:
        started = time.perf_counter()
        with answering(request.protocol):
            try:
                async with asyncio.timeout(SECONDS_MAX):
                    body = await act(await request.read())
                    return web.Response(body=body, content_type=_JSON)
            except web.HTTPRequestEntityTooLarge:
                return broken(413, "too_large", f"too large: bytes_max={BODY_BYTES_MAX}")
            except InputError as error:
                return broken(400, "unreadable", str(error))
            except NotNowError as error:
                return broken(503, "not_now", str(error))
            except TimeoutError:
                return broken(504, "timeout", "no time left to answer")
            finally:
                took.observe(time.perf_counter() - started)

    return handle
