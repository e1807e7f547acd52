"""Where connections come in: how many, how long they may idle, and what each one costs."""

from __future__ import annotations

import asyncio
import logging
import resource
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final, Protocol, cast

from aiohttp import web, web_response
from aiohttp.http import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from certs.serving import common_names
from tenure.serving.bodies import READ_BYTES, Bodies, counted
from tenure.serving.http2 import MALFORMED, Answer, Http2Connection

HTTP1: Final = "http/1.1"
HTTP2: Final = "h2"
"""What ALPN calls them."""
AGENTS_MAX: Final = 16_384
FORGET_EVERY: Final = 64
"""After so many new connections it is looked which agents' have ended: so many are too many."""
FINISH_SECONDS: Final = 25.0
"""How long requests in flight may take once we stop listening."""

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


class Connection(Protocol):
    """One caller's connection."""

    def force_close(self) -> None:
        """Close it at once."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """
    What connections may cost.

    Attributes:
        open_max: connections at once. One more takes the place of the one that has been open for
            the longest without a request that is being answered; where there is none it is closed.
        idle_seconds: how long one may be open without a whole head of a request, and between two.
            Longer than the 90 s for which the API server keeps one: it must be the one that closes,
            for a request that meets our closing is an error that it does not try again.
        handshake_seconds: how long a caller may take to begin with TLS.
        agents_max: connections of agents, which wait for changes all the time, beside `open_max`:
            two for each of 8,000 nodes, and at most half of what the system lets us open.
        token_max: connections of one bearer token. One more takes the place of the oldest of them
            without a request that is being answered; where there is none it is refused.
    """

    open_max: int = 1024
    idle_seconds: float = 100.0
    handshake_seconds: float = 5.0
    agents_max: int = field(
        default_factory=lambda: min(AGENTS_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    )
    token_max: int = 4


class Connections:
    """
    Which connections have a request that is being answered, and the bodies of all of them.

    Attributes:
        names: common names, one of which a caller's certificate has to have; None = any may call.
    """

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        names: Collection[str] | None = None,
        bodies: Bodies | None = None,
    ) -> None:
        self.limits = limits or ConnectionLimits()
        self.names = names
        self.bodies = bodies or Bodies()
        self._busy: Counter[Connection] = Counter()
        self._agents: set[RequestHandler] = set()
        self._of_caller: dict[Hashable, list[RequestHandler]] = {}
        self._came = 0  # connections since those that have ended were forgotten

    @contextmanager
    def answering(self, connection: Connection | None) -> Iterator[None]:
        """Keep a connection until the block ends."""
        if connection is None:
            yield
            return
        self._busy[connection] += 1
        try:
            yield
        finally:
            self._busy[connection] -= 1
            if not self._busy[connection]:
                del self._busy[connection]

    def take_in(self, one: RequestHandler, caller: Hashable, *, is_agent: bool) -> bool:
        """
        Count a connection as one of this token's, and an agent's in the agents' own budget.

        Returns:
            Whether it may stay.
        """
        theirs = self._of_caller.setdefault(caller, [])
        if one not in theirs:
            theirs[:] = filter(_is_open, theirs)
            if len(theirs) >= self.limits.token_max:
                idle = next((each for each in theirs if each not in self._busy), None)
                if idle is None:
                    return False
                theirs.remove(idle)
                idle.force_close()
            theirs.append(one)
        if is_agent and one not in self._agents:
            if len(self._agents) >= self.limits.agents_max:
                self._forget_ended()
            if len(self._agents) >= self.limits.agents_max:
                return False
            self._agents.add(one)
        return True

    def _forget_ended(self) -> None:
        self._came = 0
        self._agents = {*filter(_is_open, self._agents)}
        there = {who: [*filter(_is_open, ones)] for who, ones in self._of_caller.items()}
        self._of_caller = {who: ones for who, ones in there.items() if ones}

    def has_room(self, there: Iterable[Connection]) -> bool:
        """Tell whether one more may come, given those that are open, oldest first."""
        self._came += 1
        if self._came >= FORGET_EVERY:
            self._forget_ended()
        open_now = list(there)
        if len(open_now) - len(self._agents) < self.limits.open_max:
            return True
        for one in open_now:
            if one not in self._busy and one not in self._agents:
                one.force_close()
                return True
        return False


def _is_open(one: RequestHandler) -> bool:
    return one.transport is not None


class _Refused(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.WriteTransport", transport).abort()  # libuv's is none by its class


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2:
    """What HTTP/2 callers are answered; `is_silent` closes them: they find another replica."""

    answer: Answer
    body_bytes_max: int
    is_silent: Callable[[], bool] = lambda: False


class _Chosen(asyncio.Protocol):
    """
    A connection whose protocol is known once it is made: by ALPN, HTTP/1.1 without.

    It is closed before anything of it is read where its caller has none of the names.
    """

    def __init__(
        self,
        http1: Callable[[], asyncio.Protocol],
        http2: Callable[[], Http2Connection],
        names: Collection[str] | None,
    ) -> None:
        self._http1 = http1
        self._http2 = http2
        self._names = names

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)  # libuv's is none by its class
        tls = stream.get_extra_info("ssl_object")
        shown = common_names(tls)
        if self._names is not None and not (len(shown) == 1 and shown[0] in self._names):
            facts = {"shown": shown, "expected": sorted(self._names)}
            _log.warning("a caller of another name was refused", extra=facts)
            stream.abort()
            return
        is_http2 = tls is not None and tls.selected_alpn_protocol() == HTTP2
        chosen = self._http2() if is_http2 else self._http1()
        stream.set_protocol(chosen)
        chosen.connection_made(stream)


class _Site(web.BaseSite):
    """aiohttp's TCP site, with limits of connections, and HTTP/2 beside it."""

    def __init__(
        self,
        runner: web.AppRunner,
        where: tuple[str, int],
        connections: Connections,
        tls: ssl.SSLContext | None,
        http2: Http2 | None,
    ) -> None:
        limits = connections.limits
        super().__init__(runner, ssl_context=tls, backlog=limits.open_max)
        self._where = where
        self._connections = connections
        self._http2 = http2
        self._open: dict[Http2Connection, None] = {}

    @property
    def name(self) -> str:
        return f"{self._where[0]}:{self._where[1]}"

    async def start(self) -> None:
        await super().start()
        tls, limits = self._ssl_context, self._connections.limits
        self._server = await asyncio.get_running_loop().create_server(
            self._accept,
            *self._where,
            ssl=tls,
            backlog=self._backlog,
            ssl_handshake_timeout=None if tls is None else limits.handshake_seconds,
        )

    async def finish(self, seconds: float) -> None:
        """Let calls over HTTP/2 that are under way finish, for so long."""
        await asyncio.gather(*(one.finish(seconds) for one in list(self._open)))

    def _accept(self) -> asyncio.Protocol:
        handlers = self._runner.server
        assert handlers is not None, "the runner was set up"
        # One of HTTP/2 has all calls of its caller: those of HTTP/1.1 go first.
        if not self._connections.has_room([*handlers.connections, *self._open]):
            return _Refused()
        if self._http2 is None and self._connections.names is None:
            return handlers()
        return _Chosen(handlers, self._begin, self._connections.names)

    def _begin(self) -> Http2Connection:
        assert self._http2 is not None, "it is answered"
        made = Http2Connection(
            self._http2.answer,
            self._connections.answering,
            self._http2.is_silent,
            bodies=self._connections.bodies,
            body_bytes_max=self._http2.body_bytes_max,
            idle_seconds=self._connections.limits.idle_seconds,
            ended=lambda one: self._open.pop(one, None),
        )
        self._open[made] = None
        return made


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
    app.middlewares.insert(0, counted(connections.bodies))
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_Requests(_log),
        handle_signals=False,
        shutdown_timeout=finish_seconds,
        auto_decompress=False,
        keepalive_timeout=connections.limits.idle_seconds,
        read_bufsize=READ_BYTES,
    )
    await runner.setup()
    site = _Site(runner, where, connections, tls, http2)
    try:
        await site.start()
        yield runner.addresses[0][1]
    finally:
        # The first to run stops listening before it waits for anything.
        await asyncio.gather(runner.cleanup(), site.finish(finish_seconds))


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
