"""A wire to Postgres that breaks where a test wants it to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from sqlalchemy import URL, make_url

from tests.support.relay import listening, reach, through

_BYTES: Final = 65_536
_READY: Final = b"Z\x00\x00\x00\x05"
"""How the last message of an answer begins; the byte behind it is I outside of a transaction."""


class Cut(Enum):
    """What becomes of the next COMMIT, of the next INSERT, or of everything."""

    NOTHING = "nothing"
    BEFORE_COMMIT = "the commit does not arrive, and the connection is gone"
    AFTER_COMMIT = "the commit is durable, and the connection is gone before its answer"
    SILENCE_AFTER_COMMIT = "the commit is durable, and its answer never comes"
    SILENCE = "whatever is asked, no answer comes"
    SILENCE_ONCE_CONNECTED = "who connects is let in, and gets no answer then"


@dataclass(slots=True, kw_only=True)
class Wire:
    """
    Between clients and their server.

    Attributes:
        url: the ledger's URL for a client of the wire.
        cut: what to do next; a cut at a commit is made once, silence lasts.
        key: the idempotency key of the command whose commit is meant; empty for any COMMIT. One
            call that commits by itself is a commit too.
        then_refuse: turn away whoever connects after that cut.
        refusing: turn away whoever connects now.
        cuts: how many cuts at a commit were made.
        refused: how many were turned away.
        silenced: how many connections had an answer withheld; they never get one again.
    """

    server: URL
    url: str = ""
    cut: Cut = Cut.NOTHING
    key: str = ""
    then_refuse: bool = False
    refusing: bool = False
    cuts: int = 0
    refused: int = 0
    silenced: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one client's bytes both ways until one side ends or the wire is cut."""
        to_server: asyncio.StreamWriter | None = None
        try:
            if self.refusing:
                self.refused += 1
                return
            from_server, to_server = await reach(self.server)
            await _Pair(wire=self, client=writer, server=to_server).carry(reader, from_server)
        except OSError:  # a side that is gone has nothing more to carry
            pass
        finally:
            ends = [each for each in (writer, to_server) if each is not None]
            for each in ends:  # both before any is waited for, which may be given up
                each.close()
            for each in ends:
                with suppress(OSError):
                    await each.wait_closed()


@dataclass(slots=True, kw_only=True)
class _Pair:
    """One connection through the wire."""

    wire: Wire
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    deaf: bool = False
    idle: bool = True
    sent: bool = False
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    async def carry(self, asked: asyncio.StreamReader, said: asyncio.StreamReader) -> None:
        """Return when either direction has ended."""
        tasks = [asyncio.create_task(self._ask(asked)), asyncio.create_task(self._answer(said))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, asked: asyncio.StreamReader) -> None:
        while data := await asked.read(_BYTES):
            cut = self.wire.cut if self._commits(data) else Cut.NOTHING
            if cut is Cut.BEFORE_COMMIT:
                self._made()
                return
            self.deaf = self.deaf or cut in (Cut.AFTER_COMMIT, Cut.SILENCE_AFTER_COMMIT)
            self.server.write(data)
            await self.server.drain()
            if cut in (Cut.AFTER_COMMIT, Cut.SILENCE_AFTER_COMMIT):
                await self.answered.wait()
                self._made()
            if cut is Cut.AFTER_COMMIT:
                return

    def _commits(self, data: bytes) -> bool:
        """Tell whether these bytes make the command durable."""
        here = not self.wire.key or self.wire.key.encode() in data
        self.sent = self.sent or here
        return (bool(self.wire.key) and here and self.idle) or (
            self.sent and b"COMMIT" in data.upper()
        )

    async def _answer(self, said: asyncio.StreamReader) -> None:
        while data := await said.read(_BYTES):
            if data[-6:-1] == _READY:
                self.idle = data[-1:] == b"I"
            if self.wire.cut is Cut.SILENCE and not self.deaf:
                self.deaf = True
                self.wire.silenced += 1
            if self.deaf:
                self.answered.set()
                continue
            self.client.write(data)
            await self.client.drain()
            if self.wire.cut is Cut.SILENCE_ONCE_CONNECTED and data[-6:-1] == _READY:
                self.deaf = True
                self.wire.silenced += 1
        if self.wire.cut is Cut.SILENCE_ONCE_CONNECTED and self.deaf:
            await asyncio.Event().wait()  # nor does the client hear that the server gave it up

    def _made(self) -> None:
        self.wire.cut = Cut.NOTHING
        self.wire.cuts += 1
        self.wire.refusing = self.wire.then_refuse


@contextmanager
def wire_to(url: str) -> Iterator[Wire]:
    """Yield a wire to the server of a ledger's URL, which listens on this machine alone."""
    wire = Wire(server=make_url(url))
    with listening(wire.serve) as (port, _):
        wire.url = through(url, port)
        yield wire
