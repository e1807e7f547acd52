"""A container runtime as a plugin of NRI sees it: registers it, calls it, and loses patience."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from agent.cpus import ttrpc
from agent.cpus.nri_messages import PACKAGE, message

PLUGIN_SERVICE: Final = f"{PACKAGE}.Plugin"


def call(
    uid: str,
    name: str = "",
    *,
    identity: str = "",
    cpus: str = "",
    mems: str = "",
    asks: str = "",
) -> bytes:
    """Return the payload of a call about a Pod, or about a container; an update `asks` for CPUs."""
    made = message("Call")()
    made.pod.uid = uid
    if name:
        made.container.name, made.container.id = name, identity or f"{name}-id"
        cpu = made.container.linux.resources.cpu
        cpu.cpus, cpu.mems = cpus, mems
        if asks:
            made.linux_resources.cpu.cpus = asks
    return bytes(made.SerializeToString())


def changed(event: int, payload: bytes) -> bytes:
    """Return a call as older releases of NRI make it, by the number of its event."""
    made = message("StateChangeEvent")()
    read = message("Call").FromString(payload)
    made.event = event
    made.pod.CopyFrom(read.pod)
    made.container.CopyFrom(read.container)
    return bytes(made.SerializeToString())


@dataclass(slots=True, kw_only=True)
class Connected:
    """One connection of a plugin."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    incoming: ttrpc.Incoming = field(default_factory=ttrpc.Incoming)
    messages: list[ttrpc.Message] = field(default_factory=list)
    stream: int = -1
    name: str = ""

    async def next(self) -> ttrpc.Message:
        """Return the next message of the plugin."""
        while not self.messages:
            received = await self.reader.read(65_536)
            if not received:
                raise ConnectionResetError
            self.messages += self.incoming.feed(received)
        return self.messages.pop(0)

    async def call(self, method: str, payload: bytes = b"", seconds: float = 30.0) -> bytes | None:
        """Return the plugin's answer; None = it came too late, and the plugin was closed."""
        self.stream += 2
        asked = message_of(method, payload)
        self.writer.write(ttrpc.sent(ttrpc.PLUGIN, self.stream, ttrpc.REQUEST, asked))
        try:
            async with asyncio.timeout(seconds):
                answer = await self.next()
        except TimeoutError:
            self.close()
            return None
        assert (answer.connection, answer.stream) == (ttrpc.PLUGIN, self.stream)
        assert ttrpc.refused_in(answer) == "", "an error fails the container"
        return bytes(_Response.FromString(answer.data).payload)

    def close(self) -> None:
        """End the connection as a runtime that ends."""
        self.writer.close()


_Response: Final[Any] = ttrpc.message("Response")
_Request: Final[Any] = ttrpc.message("Request")


def message_of(method: str, payload: bytes) -> bytes:
    """Return a call of the plugin as ttrpc has it."""
    made = _Request(service=PLUGIN_SERVICE, method=method, payload=payload)
    return bytes(made.SerializeToString())


class FakeRuntime:
    """Listens for plugins; one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.connected: asyncio.Queue[Connected] = asyncio.Queue()
        self.refuses = False
        self._writers: list[asyncio.StreamWriter] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listen until the block ends."""
        self.path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._accept, self.path)
        try:
            yield
        finally:
            server.close()
            for writer in self._writers:
                writer.close()
                with suppress(ConnectionError):
                    await writer.wait_closed()

    async def plugin(self) -> Connected:
        """Return the next plugin that is registered, configured and synchronized."""
        async with asyncio.timeout(60):
            return await self.connected.get()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made = Connected(reader=reader, writer=writer)
        self._writers.append(writer)
        with suppress(ConnectionResetError):
            asked = await made.next()
            assert asked.connection == ttrpc.RUNTIME
            read = _Request.FromString(asked.data)
            assert (read.service, read.method) == (f"{PACKAGE}.Runtime", "RegisterPlugin")
            named = message("RegisterPluginRequest").FromString(read.payload)
            made.name = f"{named.plugin_idx}-{named.plugin_name}"
            answer = _Response()
            if self.refuses:
                answer.status.code, answer.status.message = 2, "no plugins here"
            said = answer.SerializeToString()
            writer.write(ttrpc.sent(ttrpc.RUNTIME, asked.stream, ttrpc.RESPONSE, said))
            if self.refuses:
                return
            configured = message("ConfigureResponse").FromString(await made.call("Configure"))
            assert configured.events, "one that names nothing is called on everything"
            for more in (True, False):
                part = message("Synchronize")(more=more).SerializeToString()
                answered = message("SynchronizeResponse").FromString(
                    await made.call("Synchronize", part)
                )
                assert answered.more == more, "it would be closed"
            await self.connected.put(made)
