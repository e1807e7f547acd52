"""A caller over HTTP/2, by the library's client side: as many calls at once as there are tasks."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes

_FRAME: Final = 16_384
_HEAD: Final = 9
_GOAWAY: Final = 7


@dataclass(slots=True)
class Http2Client:
    """
    One connection.

    Attributes:
        left: the other side said that it takes no more calls.
        refused: codes with which calls were reset.
    """

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    h2: H2Connection = field(
        default_factory=lambda: H2Connection(H2Configuration(header_encoding="ascii"))
    )
    left: bool = False
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    refused: dict[int, ErrorCodes] = field(default_factory=dict)
    _heads: dict[int, dict[str, str]] = field(default_factory=dict)
    _bodies: dict[int, bytearray] = field(default_factory=lambda: defaultdict(bytearray))
    _ends: dict[int, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))
    _room: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, path: str, *, method: str = "POST", ends: bool = False) -> int:
        """Send the head of a call; return its number."""
        number = self.h2.get_next_available_stream_id()
        head = {":method": method, ":path": path, ":authority": "x", ":scheme": "https"}
        self.h2.send_headers(number, list(head.items()), end_stream=ends)
        self.flush()
        return number

    async def send(self, number: int, body: bytes, *, ends: bool = True) -> None:
        """Send a part of a body, as fast as the other side takes it."""
        rest = memoryview(body)
        while rest and number not in self.refused and not self._ends[number].is_set():
            room = min(self.h2.local_flow_control_window(number), _FRAME)
            if room <= 0:
                self._room.clear()
                self.flush()
                await self._room.wait()
                continue
            self.h2.send_data(number, bytes(rest[:room]))
            rest = rest[room:]
        if ends and not rest:
            self.h2.end_stream(number)
        self.flush()
        await self.writer.drain()

    async def came(self, number: int, size: int) -> None:
        """Wait until so much of an answer is here."""
        while len(self._bodies[number]) < size:
            self._room.clear()
            await self._room.wait()

    async def answer(self, number: int) -> tuple[int, bytes]:
        """Wait for an answer; status 0 = none came."""
        await self._ends[number].wait()
        return int(self._heads.get(number, {}).get(":status", "0")), bytes(self._bodies[number])

    async def ask(self, path: str, body: bytes, *, method: str = "POST") -> tuple[int, bytes]:
        """Ask, and wait for the answer."""
        number = self.begin(path, method=method)
        await self.send(number, body)
        return await self.answer(number)

    def flush(self) -> None:
        """Send what the library has to say."""
        self.writer.write(self.h2.data_to_send())

    async def listen(self) -> None:
        """Take what the other side says until it closes."""
        came = b""
        while data := await self._read():
            came += data
            while len(came) >= _HEAD and len(came) >= (size := _HEAD + int.from_bytes(came[:3])):
                frame, came = came[:size], came[size:]
                if frame[3] == _GOAWAY:  # the library would take no answer any more
                    self.left = True
                    continue
                for event in self.h2.receive_data(frame):
                    self._take(event)
            self.flush()
        self.closed.set()
        for one in list(self._ends.values()):
            one.set()

    async def _read(self) -> bytes:
        try:
            return await self.reader.read(1 << 16)
        except OSError:
            return b""

    def _take(self, event: events.Event) -> None:
        self._room.set()
        match event:
            case events.ResponseReceived():
                self._heads[event.stream_id] = {
                    name.decode() if isinstance(name, bytes) else name: value.decode()
                    if isinstance(value, bytes)
                    else value
                    for name, value in event.headers
                }
            case events.DataReceived():
                self._bodies[event.stream_id] += event.data
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case events.StreamEnded():
                self._ends[event.stream_id].set()
            case events.StreamReset():
                self.refused[event.stream_id] = ErrorCodes(event.error_code)
                self._ends[event.stream_id].set()
            case _:
                pass


@contextlib.asynccontextmanager
async def http2_client(port: int, tls: ssl.SSLContext) -> AsyncIterator[Http2Client]:
    """Connect, and close at the end of the block."""
    tls.set_alpn_protocols(["h2"])
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
    client = Http2Client(reader, writer)
    client.h2.initiate_connection()
    client.flush()
    listening = asyncio.create_task(client.listen())
    try:
        yield client
    finally:
        listening.cancel()
        writer.close()
        with contextlib.suppress(asyncio.CancelledError, OSError):
            await listening
