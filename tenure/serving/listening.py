"""Where connections come in: how many, how long they may idle, and what each one costs."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final, cast

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
FINISH_SECONDS: Final = 25.0
"""How long requests in flight may take once we stop listening."""
DESCRIPTORS_LEFT: Final = 256
"""Of the process's, no listener's: for the database, the API server, files and the log."""
ACCEPTS_A_TURN: Final = 32
"""How many callers come in before whatever else is due has its turn."""
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


Connection = asyncio.BaseProtocol
"""What answers one caller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """
    What connections may cost.

    Attributes:
        open_max: connections at once, from their accept on, where the process's descriptors allow.
            One more takes the place of one without a request that is being answered; where there is
            none it is closed.
        idle_seconds: how long one may be open without a whole head of a request, and between two.
            Longer than the 90 s for which the API server keeps one: it must be the one that closes,
            for a request that meets our closing is an error that it does not try again.
        handshake_seconds: how long a caller may take to begin with TLS.
        agents_max: connections of agents, which wait for changes all the time, beside `open_max`:
            two for each of 8,000 nodes, and at most half of what the system lets us open.
        token_max: connections of one bearer token. One more takes the place of the oldest of them
            without a request that is being answered; where there is none it is refused.
        goodbye_seconds: how long it may take to fetch what is left for it, and to end TLS.
    """

    open_max: int = 1024
    idle_seconds: float = 100.0
    handshake_seconds: float = 5.0
    agents_max: int = field(
        default_factory=lambda: min(AGENTS_MAX, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)
    )
    token_max: int = 4
    goodbye_seconds: float = 30.0


class _Caller(socket.socket):
    """One connection, from its accept until its descriptor is closed."""

    def __init__(
        self, accepted: socket.socket, address: str, ended: Callable[[_Caller], None]
    ) -> None:
        family, kind, number = accepted.family, accepted.type, accepted.proto
        super().__init__(family, kind, number, fileno=accepted.detach())
        self.setblocking(False)
        self.address = address
        self.starting: asyncio.Task[object] | None = None
        self.transport: asyncio.Transport | None = None
        self.protocol: Connection | None = None
        self.is_known = False
        self.users: set[Hashable] = set()  # whose tokens it has shown
        self._ended = ended

    def begin(self, transport: asyncio.Transport, protocol: Connection) -> None:
        """Answer it from now on."""
        self.transport, self.protocol = transport, protocol
        self.is_known = bool(transport.get_extra_info("peercert"))

    def cut(self) -> None:
        """Close it at once, whatever it has yet to send or to fetch."""
        self._ended(self)
        if self.transport is not None:
            self.transport.abort()
        elif self.starting is not None:
            self.starting.cancel()

    def close(self) -> None:
        super().close()
        self._ended(self)

    def detach(self) -> int:
        self._ended(self)
        return super().detach()


class Connections:
    """
    The connections of one listener, which have a request that is being answered, and their bodies.

    Attributes:
        names: common names, one of which a caller's certificate has to have; None = any may call.
    """

    listening: ClassVar[list[Connections]] = []
    """All of the process, which share its descriptors."""

    def __init__(
        self,
        limits: ConnectionLimits | None = None,
        names: Collection[str] | None = None,
        bodies: Bodies | None = None,
    ) -> None:
        self.limits = limits or ConnectionLimits()
        self.names = names
        self.bodies = bodies or Bodies()
        self.open: dict[_Caller, None] = {}
        self.starting: dict[_Caller, None] = {}
        self._busy: Counter[Connection] = Counter()
        self._callers: dict[Connection, _Caller] = {}  # while their descriptors are open
        self.agents: set[Connection | None] = set()
        self._of_user: dict[Hashable, dict[RequestHandler, None]] = {}

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

    def take_in(self, one: RequestHandler, user: Hashable, *, is_agent: bool) -> bool:
        """
        Count a connection as one of this token's, and an agent's in the agents' own budget.

        Returns:
            Whether it may stay.
        """
        caller = self._callers.get(one)
        if caller is None:
            return True  # it has hung up
        theirs = self._of_user.setdefault(user, {})
        if one not in theirs:
            if len(theirs) >= self.limits.token_max:
                idle = next((each for each in theirs if each not in self._busy), None)
                if idle is None:
                    return False
                del theirs[idle]
                idle.force_close()
            theirs[one] = None
            caller.users.add(user)
        if is_agent and one not in self.agents:
            if len(self.agents) >= self.limits.agents_max:
                return False
            self.agents.add(one)
        return True

    @property
    def open_max(self) -> int:
        """How many may be open: what was asked for, or its share of the descriptors."""
        own, (soft, _) = self.limits.open_max, resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = sum(one.limits.open_max for one in self.listening)
        agents = sum(len(one.agents) for one in self.listening)
        room = max(0, soft - min(DESCRIPTORS_LEFT, soft // 2) - agents)
        if soft == resource.RLIM_INFINITY or wanted <= room:
            return own
        return max(1, own * room // wanted)

    def take(self, accepted: socket.socket, address: str, *, is_tls: bool) -> _Caller | None:
        """
        Count one more; None where there is no room for it, and it is closed.

        Of an address's handshakes, which are half of all at most, the oldest makes room.
        """
        most = self.open_max
        starting = [one for one in self.starting if is_tls and one.address == address]
        if len(starting) >= max(1, most // 2):
            starting[0].cut()
        for one in self.listening:  # agents that came since leave less to each
            one.shrink(one.open_max)
        if not self.shrink(most - 1):
            accepted.close()
            return None
        caller = _Caller(accepted, address, self._ended)
        self.open[caller] = self.starting[caller] = None
        return caller

    def shrink(self, most: int) -> bool:
        """Cut connections off until there are so many at most, agents' apart, where that can be."""
        while len(self.open) - len(self.agents) > most:
            going = self._next_to_go()
            if going is None:
                return False
            going.cut()
        return True

    def begin(self, one: _Caller, transport: asyncio.Transport, protocol: Connection) -> None:
        """Let a protocol answer a caller from now on."""
        one.begin(transport, protocol)
        if one in self.open:
            self._callers[protocol] = one

    def _ended(self, one: _Caller) -> None:
        self.open.pop(one, None)
        self.starting.pop(one, None)
        self.agents.discard(one.protocol)
        if one.protocol is None:
            return
        self._callers.pop(one.protocol, None)
        for user in one.users:
            theirs = self._of_user.get(user, {})
            theirs.pop(cast("RequestHandler", one.protocol), None)
            if not theirs:
                self._of_user.pop(user, None)
        one.users.clear()

    def _next_to_go(self) -> _Caller | None:
        """
        Return who makes room, of those that wait for no answer.

        One whose certificate was checked goes last. The address that has the most goes first, half
        handshakes before the rest. One of HTTP/2 has all calls of its caller, so HTTP/1.1 goes
        first. Ties go to the oldest.
        """
        idle = [
            one
            for one in self.open
            if one.protocol not in self._busy and one.protocol not in self.agents
        ]
        has = Counter(one.address for one in idle)

        def order(one: _Caller) -> tuple[bool, int, bool, bool]:
            is_http2 = isinstance(one.protocol, Http2Connection)
            return one.is_known, -has[one.address], one.transport is not None, is_http2

        return min(idle, key=order, default=None)


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
        caller: _Caller,
        choose: Callable[[str | None], asyncio.Protocol],
        connections: Connections,
    ) -> None:
        self._caller = caller
        self._choose = choose
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        stream = cast("asyncio.Transport", transport)  # libuv's is none by its class
        tls = stream.get_extra_info("ssl_object")
        shown = common_names(tls)
        names = self._connections.names
        if names is not None and not (len(shown) == 1 and shown[0] in names):
            facts = {"caller": self._caller.address, "shown": shown, "expected": sorted(names)}
            _log.warning("a caller of another name was refused", extra=facts)
            stream.abort()
            return
        chosen = self._choose(None if tls is None else tls.selected_alpn_protocol())
        self._connections.begin(self._caller, stream, chosen)
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
        for one in list(self._connections.starting):
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
        for _ in range(ACCEPTS_A_TURN):
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

    def _accept_again(self, door: socket.socket) -> None:
        if door in self._doors:
            asyncio.get_running_loop().add_reader(door, self._accept, door)

    async def _begin(self, caller: _Caller) -> None:
        limits, tls = self._connections.limits, self._ssl_context
        with suppress(OSError):  # of its TLS
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Chosen(caller, self._choose, self._connections),
                caller,
                ssl=tls,
                ssl_handshake_timeout=None if tls is None else limits.handshake_seconds,
                ssl_shutdown_timeout=None if tls is None else limits.goodbye_seconds,
            )

    def _started(self, caller: _Caller, done: asyncio.Task[object]) -> None:
        caller.starting = None
        self._connections.starting.pop(caller, None)
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
        shutdown_timeout=finish_seconds,
        auto_decompress=False,
        keepalive_timeout=connections.limits.idle_seconds,
        read_bufsize=READ_BYTES,
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
