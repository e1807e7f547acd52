"""Where connections come in: how they are accepted, by which protocol, and until when."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, cast

from aiohttp import web, web_response
from aiohttp.http import HttpProcessingError

from certs.serving import common_names
from tenure.serving.bodies import READ_BYTES, counted
from tenure.serving.connections import Caller, Connections
from tenure.serving.http2 import MALFORMED, Answer, Http2Connection

HTTP1: Final = "http/1.1"
HTTP2: Final = "h2"
"""What ALPN calls them."""
FINISH_SECONDS: Final = 25.0
"""How long requests in flight may take once we stop listening."""
ACCEPTS_A_TURN: Final = 8
"""How many callers come in before whatever else is due has its turn."""
LOOKS_A_TURN: Final = 512
"""How many are looked at meanwhile: one for whom there is no room costs little."""
LINGER_SECONDS: Final = 1.0
"""
How long what comes of a refused body is read, so that its caller sees the answer. A connection that
is gone keeps its buffers as long.
"""
AGAIN_SECONDS: Final = 1.0
"""How long nobody is let in after the system had no descriptor left."""

_log: Final = logging.getLogger("tenure.listening")
web_response.SERVER_SOFTWARE = "tenure"  # type: ignore[attr-defined]  # its header names versions


class _Requests(logging.LoggerAdapter[logging.Logger]):
    """Says what aiohttp does of a request that failed, of a malformed one without its bytes."""

    def log(self, *words: object, exc_info: object = None, **_: object) -> None:
        caller = {"caller": words[-1]}
        if isinstance(exc_info, HttpProcessingError | ConnectionError):
            _log.warning(MALFORMED, extra={**caller, "error": type(exc_info).__name__})
        elif exc_info:
            error = exc_info if isinstance(exc_info, Exception) else None
            _log.error("a request failed", extra=caller, exc_info=error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2:
    """What HTTP/2 callers are answered; `is_silent` closes them: they find another replica."""

    answer: Answer
    body_bytes_max: int
    is_silent: Callable[[], bool] = lambda: False


@dataclass(slots=True, eq=False)
class _Chosen(asyncio.Protocol):
    """
    A connection whose protocol is known once it is made: by ALPN, HTTP/1.1 without.

    It is closed before anything of it is read where its caller has none of the names.
    """

    caller: Caller
    choose: Callable[[str | None], asyncio.Protocol]
    connections: Connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)  # libuv's is none by its class
        tls = stream.get_extra_info("ssl_object")
        shown = common_names(tls)
        names = self.connections.names
        if names is not None and not (len(shown) == 1 and shown[0] in names):
            facts = {"caller": self.caller.address, "shown": shown, "expected": sorted(names)}
            _log.warning("a caller of another name was refused", extra=facts)
            stream.abort()
            return
        chosen = self.choose(None if tls is None else tls.selected_alpn_protocol())
        self.connections.begin(self.caller, stream, chosen)
        stream.set_protocol(chosen)
        chosen.connection_made(stream)


class _Site(web.BaseSite):
    """
    aiohttp's TCP site, with limits of connections, and HTTP/2 beside it.

    It accepts by itself: the loop would count no handshake, and know nobody's address before it.
    """

    def __init__(
        self,
        runner: web.AppRunner,
        where: tuple[str, int],
        connections: Connections,
        tls: ssl.SSLContext | None,
        http2: Http2 | None,
    ) -> None:
        super().__init__(runner, ssl_context=tls, backlog=connections.limits.open_max)
        self._where = where
        self._connections = connections
        self._http2 = http2
        self._doors: list[socket.socket] = []

    @property
    def name(self) -> str:
        return f"{self._where[0]}:{self._where[1]}"

    async def start(self) -> None:
        await super().start()
        loop = asyncio.get_running_loop()
        bound = await loop.create_server(asyncio.Protocol, *self._where, start_serving=False)
        self._server = bound
        for one in bound.sockets:
            door = socket.fromfd(one.fileno(), one.family, one.type)
            door.setblocking(False)
            door.listen(self._backlog)
            self._doors.append(door)
            loop.add_reader(door, self._accept, door)

    async def stop(self) -> None:
        for door in self._doors:
            asyncio.get_running_loop().remove_reader(door)
            door.close()
        self._doors.clear()
        await super().stop()

    async def finish(self, seconds: float) -> None:
        """Let calls that are under way finish, for so long; whoever has not begun goes at once."""
        for one in [*self._connections.starting, *self._connections.agents_starting]:
            one.cut()
        left = list(self._connections.open)
        answering = (one.protocol for one in left if isinstance(one.protocol, Http2Connection))
        await asyncio.gather(*(one.finish(seconds) for one in answering))

    def cut(self) -> None:
        """Close all connections, whatever their callers have yet to fetch."""
        for one in list(self._connections.open):
            one.cut()

    def _accept(self, door: socket.socket) -> None:
        loop, is_tls = asyncio.get_running_loop(), self._ssl_context is not None
        left = ACCEPTS_A_TURN
        for _ in range(LOOKS_A_TURN):
            try:
                accepted, address = door.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor, or no memory, is left
                _log.error("can't accept", extra={"where": self.name, "error": str(error)})
                loop.remove_reader(door)
                loop.call_later(AGAIN_SECONDS, self._accept_again, door)
                return
            caller = self._connections.take(accepted, address[0], is_tls=is_tls)
            if caller is not None:
                caller.starting = loop.create_task(self._begin(caller))
                caller.starting.add_done_callback(partial(self._started, caller))
                left -= 1
            if not left:
                return

    def _accept_again(self, door: socket.socket) -> None:
        if door in self._doors:
            asyncio.get_running_loop().add_reader(door, self._accept, door)

    async def _begin(self, caller: Caller) -> None:
        limits, tls = self._connections.limits, self._ssl_context
        with suppress(OSError):  # of its TLS
            async with self._connections.beginning(caller) if tls is not None else nullcontext():
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: _Chosen(caller, self._choose, self._connections),
                    caller,
                    ssl=tls,
                    ssl_handshake_timeout=None if tls is None else limits.handshake_seconds,
                    ssl_shutdown_timeout=None if tls is None else limits.goodbye_seconds,
                )

    def _started(self, caller: Caller, done: asyncio.Task[object]) -> None:
        caller.starting = None
        self._connections.started(caller)
        if caller.transport is None:
            caller.close()
        if not done.cancelled() and done.exception() is not None:
            _log.error("a connection failed", exc_info=done.exception())

    def _choose(self, protocol: str | None) -> asyncio.Protocol:
        handlers = self._runner.server
        assert handlers is not None, "the runner was set up"
        if self._http2 is None or protocol != HTTP2:
            return handlers()
        return Http2Connection(
            self._http2.answer,
            self._connections.answering,
            self._http2.is_silent,
            bodies=self._connections.bodies,
            body_bytes_max=self._http2.body_bytes_max,
            idle_seconds=self._connections.limits.idle_seconds,
        )


async def _harden(_: web.BaseRequest, response: web.StreamResponse) -> None:
    response.headers["X-Content-Type-Options"] = "nosniff"


@asynccontextmanager
async def listening(
    app: web.Application,
    where: tuple[str, int],
    connections: Connections,
    *,
    tls: ssl.SSLContext | None = None,
    http2: Http2 | None = None,
    finish_seconds: float,
) -> AsyncIterator[int]:
    """Listen until the block ends, then let requests in flight finish; the value is the port."""
    app.on_response_prepare.append(_harden)
    app.middlewares.insert(0, counted(connections.bodies))
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_Requests(_log),
        handle_signals=False,
        handler_cancellation=http2 is not None,  # a call ends with its caller, as over HTTP/2
        shutdown_timeout=finish_seconds,
        auto_decompress=False,
        keepalive_timeout=connections.limits.idle_seconds,
        read_bufsize=READ_BYTES,
        lingering_time=LINGER_SECONDS,
    )
    await runner.setup()
    site = _Site(runner, where, connections, tls, http2)
    connections.listening.append(connections)
    try:
        await site.start()
        yield runner.addresses[0][1]
    finally:
        connections.listening.remove(connections)
        # Nobody who does not fetch his answer keeps the process.
        late = asyncio.get_running_loop().call_later(finish_seconds, site.cut)
        # The first to run stops listening before it waits for anything.
        await asyncio.gather(runner.cleanup(), site.finish(finish_seconds))
        late.cancel()


@asynccontextmanager
async def announced(
    app: web.Application,
    where: tuple[str, int],
    what: str,
    connections: Connections,
    tls: ssl.SSLContext | None = None,
    *,
    http2: Http2 | None = None,
) -> AsyncIterator[None]:
    """Listen until the block ends, then let requests in flight finish."""
    async with listening(
        app, where, connections, tls=tls, http2=http2, finish_seconds=FINISH_SECONDS
    ) as port:
        _log.info("listening", extra={"what": what, "host": where[0], "port": port})
        yield
