"""Where connections come in: how many, how long they may idle, and what each one costs."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp import web

FINISH_SECONDS: Final = 25.0
"""How long requests in flight may take once we stop listening."""

_log: Final = logging.getLogger("tenure.listening")


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
    """

    open_max: int = 1024
    idle_seconds: float = 100.0
    handshake_seconds: float = 5.0


class Connections:
    """Which connections have a request that is being answered."""

    def __init__(self, limits: ConnectionLimits | None = None) -> None:
        self.limits = limits or ConnectionLimits()
        self._busy: set[Connection] = set()

    @contextmanager
    def answering(self, connection: Connection | None) -> Iterator[None]:
        """Keep a connection until the block ends."""
        if connection is None or connection in self._busy:
            yield
            return
        self._busy.add(connection)
        try:
            yield
        finally:
            self._busy.discard(connection)

    def has_room(self, there: Iterable[Connection]) -> bool:
        """Tell whether one more may come, given those that are open, oldest first."""
        open_now = list(there)
        if len(open_now) < self.limits.open_max:
            return True
        for one in open_now:
            if one not in self._busy:
                one.force_close()
                return True
        return False


class _Refused(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport), "a stream's transport"
        transport.abort()


class _Site(web.BaseSite):
    """aiohttp's TCP site, with limits of connections."""

    def __init__(
        self,
        runner: web.AppRunner,
        where: tuple[str, int],
        connections: Connections,
        tls: ssl.SSLContext | None,
    ) -> None:
        limits = connections.limits
        super().__init__(runner, ssl_context=tls, backlog=limits.open_max)
        self._where = where
        self._connections = connections

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

    def _accept(self) -> asyncio.Protocol:
        handlers = self._runner.server
        assert handlers is not None, "the runner was set up"
        return handlers() if self._connections.has_room(handlers.connections) else _Refused()


@asynccontextmanager
async def listening(
    app: web.Application,
    where: tuple[str, int],
    connections: Connections,
    *,
    tls: ssl.SSLContext | None = None,
    finish_seconds: float,
) -> AsyncIterator[int]:
    """Listen until the block ends, then let requests in flight finish; the value is the port."""
    runner = web.AppRunner(
        app,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=finish_seconds,
        auto_decompress=False,
        keepalive_timeout=connections.limits.idle_seconds,
    )
    await runner.setup()
    try:
        await _Site(runner, where, connections, tls).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def announced(
    app: web.Application,
    where: tuple[str, int],
    what: str,
    connections: Connections,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Listen until the block ends, then let requests in flight finish."""
    async with listening(app, where, connections, tls=tls, finish_seconds=FINISH_SECONDS) as port:
        _log.info("listening", extra={"what": what, "host": where[0], "port": port})
        yield
