"""The connections of a listener: how many there may be, and which one makes room."""

from __future__ import annotations

import asyncio
import resource
import select
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar, Final, cast

from aiohttp.web_protocol import RequestHandler

from ledger.domain.resources import AGENT_PROTOCOL
from tenure.serving.bodies import Bodies
from tenure.serving.http2 import Http2Connection

AGENTS_MAX: Final = 32_768
DESCRIPTORS_LEFT: Final = 256
"""Of the process's, no listener's: for the database, the API server, files and the log."""

OTHERS_LEFT: Final = 4_096
"""Of the process's, not of agents: 1,024 connections of three listeners, and the rest above."""

BEGINNING_MAX: Final = 24
"""Agents in a handshake at once: when all come again, others begin beside so few of them."""

WAITING_MAX: Final = 8_192
"""With those that wait for it: as many as there are nodes. One costs some kilobytes."""

Connection = asyncio.BaseProtocol
"""What answers one caller."""


def agents_share(descriptors: int) -> int:
    """Return how many connections agents may have of so many descriptors."""
    if descriptors == resource.RLIM_INFINITY:
        return AGENTS_MAX
    return min(AGENTS_MAX, max(descriptors // 2, descriptors - OTHERS_LEFT))


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
        handshake_seconds: how long the first words of TLS may take, and the handshake after them.
        agents_max: connections of agents, which wait for changes all the time, beside `open_max`:
            four for each of 8,000 nodes (two of its CPU process), and at most what the system lets
            us open less `OTHERS_LEFT`, or half of it where that is more.
        token_max: connections of one bearer token. One more takes the place of the oldest of them
            without a request that is being answered; where there is none it is refused.
        goodbye_seconds: how long it may take to fetch what is left for it, and to end TLS.
    """

    open_max: int = 1024
    idle_seconds: float = 100.0
    handshake_seconds: float = 5.0
    agents_max: int = field(
        default_factory=lambda: agents_share(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    )
    token_max: int = 4
    goodbye_seconds: float = 30.0


class Caller(socket.socket):
    """One connection, from its accept until its descriptor is closed."""

    def __init__(
        self, accepted: socket.socket, address: str, ended: Callable[[Caller], None]
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

    def cut(self) -> None:
        """Close it at once, whatever it has yet to send or to fetch."""
        self._ended(self)
        if self.transport is not None:
            self.transport.abort()
        elif self.starting is not None:
            self.starting.cancel()

    def close(self) -> None:
        """Close its descriptor."""
        super().close()
        self._ended(self)

    def detach(self) -> int:
        """Return its descriptor, whoever closes it."""
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
        self.open: dict[Caller, None] = {}
        self.starting: dict[Caller, None] = {}
        self.agents_starting: dict[Caller, None] = {}  # by their own word, before a token
        self._agents_of: Counter[str] = Counter()  # their addresses
        self._agents_begin = asyncio.Semaphore(BEGINNING_MAX)
        self._busy: Counter[Connection] = Counter()
        self._callers: dict[Connection, Caller] = {}  # while their descriptors are open
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
        agents = sum(len(one.agents) + len(one.agents_starting) for one in self.listening)
        room = max(0, soft - min(DESCRIPTORS_LEFT, soft // 2) - agents)
        if soft == resource.RLIM_INFINITY or wanted <= room:
            return own
        return max(1, own * room // wanted)

    def take(self, accepted: socket.socket, address: str, *, is_tls: bool) -> Caller | None:
        """
        Count one more; None where there is no room for it, and it is closed.

        Handshakes are half of all at most: of the address that has the most the oldest makes room.
        """
        most = self.open_max
        if is_tls and len(self.starting) >= max(1, most // 2):
            has = Counter(one.address for one in self.starting)
            max(self.starting, key=lambda one: has[one.address]).cut()
        for one in self.listening:  # agents that came since leave less to each
            one.shrink(one.open_max)
        if not self.shrink(most - 1):
            accepted.close()
            return None
        caller = Caller(accepted, address, self._ended)
        self.open[caller] = self.starting[caller] = None
        return caller

    @asynccontextmanager
    async def beginning(self, one: Caller) -> AsyncIterator[None]:
        """
        Wait for a caller's first words, and until it may begin its handshake.

        When all agents come again, one that waits costs less than one that is closed or cut.

        Raises:
            OSError: it hung up, said nothing, or too many agents wait, of its address or in all.
        """
        async with asyncio.timeout(self.limits.handshake_seconds):
            await _readable(one)
        if not _is_agent(one):
            yield
            return
        self.starting.pop(one, None)
        room = min(WAITING_MAX, self.limits.agents_max - len(self.agents))
        has = self._agents_of[one.address]
        if has >= self.limits.token_max or len(self.agents_starting) >= room:
            raise ConnectionAbortedError
        self.agents_starting[one] = None
        self._agents_of[one.address] += 1
        async with self._agents_begin:
            if _has_hung_up(one):
                raise ConnectionAbortedError
            yield

    def started(self, one: Caller) -> None:
        """Count a caller's handshake no more."""
        self.starting.pop(one, None)
        if one in self.agents_starting:
            del self.agents_starting[one]
            self._agents_of[one.address] -= 1
            if not self._agents_of[one.address]:
                del self._agents_of[one.address]

    def shrink(self, most: int) -> bool:
        """Cut connections off until there are so many at most, agents' apart, where that can be."""
        while len(self.open) - len(self.agents) - len(self.agents_starting) > most:
            going = self._next_to_go()
            if going is None:
                return False
            going.cut()
        return True

    def begin(self, one: Caller, transport: asyncio.Transport, protocol: Connection) -> None:
        """Let a protocol answer a caller from now on."""
        one.transport, one.protocol = transport, protocol
        one.is_known = bool(transport.get_extra_info("peercert"))
        if one in self.open:
            self._callers[protocol] = one

    def _ended(self, one: Caller) -> None:
        self.open.pop(one, None)
        self.started(one)
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

    def _next_to_go(self) -> Caller | None:
        """
        Return who makes room, of those that wait for no answer.

        One whose certificate was checked goes last. The address that has the most goes first, half
        handshakes before the rest. One of HTTP/2 has all calls of its caller, so HTTP/1.1 goes
        first. Ties go to the oldest.
        """
        idle = [
            one
            for one in self.open
            if one.protocol not in self._busy
            and one.protocol not in self.agents
            and one not in self.agents_starting
        ]
        has = Counter(one.address for one in idle)

        def order(one: Caller) -> tuple[bool, int, bool, bool]:
            is_http2 = isinstance(one.protocol, Http2Connection)
            return one.is_known, -has[one.address], one.transport is not None, is_http2

        return min(idle, key=order, default=None)


async def _readable(one: socket.socket) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(one, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(one)


def _has_hung_up(one: socket.socket) -> bool:
    look = select.poll()
    look.register(one, select.POLLRDHUP)
    return bool(look.poll(0))


def _is_agent(accepted: socket.socket) -> bool:
    """Tell whether a caller says so in its first words."""
    with suppress(OSError):
        hello = accepted.recv(1 << 12, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        return AGENT_PROTOCOL.encode() in hello
    return False
