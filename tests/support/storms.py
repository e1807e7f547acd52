"""
Attacks at the real ports of a service, as fast as they are taken; a process of its own.

`python -m tests.support.storms` reads a `Target` as JSON, attacks for its seconds, and prints as
JSON what came, and how often. Callers show certificates where nobody else gets past TLS.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import ssl
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, Final, NoReturn

from hpack import Encoder
from hyperframe import frame as frames

from tests.support.http2 import http2_client
from tests.support.process import ROOT

MIB: Final = 1 << 20
LISTS: Final = b"[" + b"[]," * (8 * MIB // 3 - 2) + b"0]"
"""8 MiB at most, the largest review."""
MOST_LISTS: Final = 21_000_000
"""63 MB, the largest question."""
LISTS_CALLERS: Final = 4
BODIES: Final = 150
IDLE: Final = 1_100
HALVES: Final = 3_000
FLOODS: Final = 2
QUESTIONS: Final = 2
REVIEWERS: Final = 4
_ADDRESSES: Final = [f"127.0.0.{number}" for number in range(2, 10)]
FIRST: Final = frozenset({"opened", "granted"})
"""What is counted before an end came of it."""
_STEP_SECONDS: Final = 30.0
_AGAIN_SECONDS: Final = 0.2
_HELLO: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32)
"""The beginning of a TLS handshake that goes no further."""
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frames.SettingsFrame(0).serialize()
_CALL: Final = [
    (":method", "POST"),
    (":path", "/filter"),
    (":scheme", "https"),
    (":authority", "x"),
]
_FLOOD: Final = {
    "PING": frames.PingFrame(0, opaque_data=b"12345678").serialize(),
    "SETTINGS": frames.SettingsFrame(0).serialize(),
    "empty DATA": frames.DataFrame(1).serialize(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """
    Whom to attack, by what, for how long.

    Attributes:
        extender, gate: ports.
        doors: ports of all listeners; `tls` are those that speak TLS.
        authority: of the servers' certificates.
        scheduler, api_server: files of the certificate and key that they show.
        reviews: a file of bodies, one a line.
    """

    attack: str
    seconds: float
    extender: list[int]
    gate: list[int]
    doors: list[int]
    tls: list[int]
    authority: str
    scheduler: list[str]
    api_server: list[str]
    reviews: str


class _Attack:
    """One attack while it lasts; `came` counts what came of it."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.came: Counter[str] = Counter()

    def _tls(self, shown: list[str], protocol: str = "http/1.1") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.target.authority)
        context.load_cert_chain(*shown)
        context.set_alpn_protocols([protocol])
        return context

    async def again(self, act: Callable[[], Awaitable[None]]) -> None:
        """Do it without a pause; what is refused is counted, and done again."""
        while True:
            try:
                async with asyncio.timeout(_STEP_SECONDS):
                    await act()
            except TimeoutError:
                self.came["no answer"] += 1
            except (OSError, asyncio.IncompleteReadError):
                self.came["cut"] += 1
            await asyncio.sleep(0)

    # --- the gate -----------------------------------------------------------------------------

    def lists(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Send 8 MB of lists on four connections."""
        tls = self._tls(self.target.api_server)
        for _, port in zip(range(LISTS_CALLERS), itertools.cycle(self.target.gate), strict=False):

            async def act(port: int = port) -> None:
                reader, writer = await _opened(port, tls)
                try:
                    writer.write(_head(len(LISTS)))
                    writer.write(LISTS)
                    await self._answered(reader)
                finally:
                    writer.transport.abort()

            yield act

    def bodies(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Open 150 large bodies, and finish none."""
        tls = self._tls(self.target.api_server)
        for _, port in zip(range(BODIES), itertools.cycle(self.target.gate), strict=False):

            async def act(port: int = port) -> None:
                reader, writer = await _opened(port, tls)
                try:
                    writer.write(_head(8 * MIB))
                    writer.write(LISTS[: 8 * MIB // 2])
                    await self._answered(reader)
                finally:
                    writer.transport.abort()

            yield act

    def reviews(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Send forged reviews, one after another on each connection."""
        tls = self._tls(self.target.api_server)
        bodies = Path(self.target.reviews).read_bytes().splitlines()
        for first, port in zip(range(REVIEWERS), itertools.cycle(self.target.gate), strict=False):

            async def act(port: int = port, first: int = first) -> None:
                reader, writer = await _opened(port, tls)
                try:
                    for body in itertools.islice(itertools.cycle(bodies), first, None):
                        async with asyncio.timeout(_STEP_SECONDS):
                            writer.write(_head(len(body)))
                            writer.write(body)
                            answer = await self._answered(reader)
                            for word in (b'"allowed": true', b'"allowed":true'):
                                self.came["granted"] += word in answer
                finally:
                    writer.transport.abort()

            yield act

    async def _answered(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        self.came[head.split(b" ", 2)[1].decode()] += 1
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        return await reader.readexactly(int(length or b"0"))

    # --- connections --------------------------------------------------------------------------

    def idle(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Open more connections than a process has descriptors, at each listener."""
        return self._many(self.target.doors, IDLE, b"")

    def halves(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Begin thousands of TLS handshakes at each listener that speaks it."""
        return self._many(self.target.tls, HALVES, _HELLO)

    def _many(
        self, ports: list[int], most: int, first: bytes
    ) -> Iterator[Callable[[], Awaitable[None]]]:
        addresses = itertools.cycle(_ADDRESSES)
        for port in ports:
            open_now: set[_Mute] = set()

            async def act(port: int = port, open_now: set[_Mute] = open_now) -> None:
                if len(open_now) >= most:
                    await asyncio.sleep(0.01)
                    return
                await asyncio.get_running_loop().create_connection(
                    lambda: _Mute(open_now, self.came, first),
                    "127.0.0.1",
                    port,
                    local_addr=(next(addresses), 0),
                )
                self.came["opened"] += 1

            yield act

    # --- HTTP/2 -------------------------------------------------------------------------------

    def frames(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Send nothing but frames that bring nothing, on two connections for each kind."""
        tls = self._tls(self.target.scheduler, "h2")
        head = frames.HeadersFrame(1, Encoder().encode(_CALL), flags=["END_HEADERS"]).serialize()
        callers = itertools.product(_FLOOD.values(), range(FLOODS))
        for (one, _), port in zip(callers, itertools.cycle(self.target.extender), strict=False):

            async def act(port: int = port, one: bytes = one) -> None:
                loop, ended = asyncio.get_running_loop(), set[_Mute]()
                sent = _Mute(ended, self.came, _PREFACE + head)
                transport, _ = await loop.create_connection(
                    lambda: sent, "127.0.0.1", port, ssl=tls
                )
                while not transport.is_closing():
                    if transport.get_write_buffer_size() < MIB:
                        transport.write(one * 1_000)
                    await asyncio.sleep(0)

            yield act

    def questions(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Ask the extender with 63 MB of lists."""
        tls = self._tls(self.target.scheduler, "h2")
        body = b'{"Pod":{},"NodeNames":[],"x":[' + b"[]," * MOST_LISTS + b"0]}"
        for _, port in zip(range(QUESTIONS), itertools.cycle(self.target.extender), strict=False):

            async def act(port: int = port) -> None:
                async with http2_client(port, tls) as client:
                    asking = asyncio.create_task(client.ask("/filter", body))
                    closed = asyncio.create_task(client.closed.wait())
                    await asyncio.wait((asking, closed), return_when=asyncio.FIRST_COMPLETED)
                    closed.cancel()
                    if not asking.done():
                        asking.cancel()
                        raise ConnectionResetError
                    self.came[str(asking.result()[0])] += 1

            yield act

    async def run(self) -> NoReturn:
        """Attack until the time is over and something came; say what, end with all that is open."""
        began = time.monotonic()
        acts = getattr(self, self.target.attack)()
        tasks = [asyncio.create_task(self.again(act)) for act in acts]
        seconds = self.target.seconds
        while seconds > 0:
            done, _ = await asyncio.wait(
                tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            for one in done:
                one.result()
            over = self.came.keys() - FIRST or time.monotonic() - began > _STEP_SECONDS
            seconds = 0.0 if over else _AGAIN_SECONDS
        came = {**self.came, "seconds": round(time.monotonic() - began, 1)}
        sys.stdout.write(json.dumps(came) + "\n")
        sys.stdout.flush()
        os._exit(0)


class _Mute(asyncio.Protocol):
    """Sends its first bytes, and nothing more; an end of it is counted."""

    def __init__(self, open_now: set[_Mute], came: Counter[str], first: bytes) -> None:
        self._open = open_now
        self._came = came
        self._first = first

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._open.add(self)
        transport.write(self._first)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - whyever
        self._open.discard(self)
        self._came["cut"] += 1


async def _opened(
    port: int, tls: ssl.SSLContext
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, ssl=tls)


def _head(length: int) -> bytes:
    return (
        b"POST /claims HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n" % length
    )


@contextmanager
def attacking(target: Target) -> Iterator[Popen[str]]:
    """Attack from a process of its own until the block ends."""
    process = Popen(
        [sys.executable, "-m", "tests.support.storms"], stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(target)) + "\n")
    process.stdin.flush()
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


def what_came(process: Popen[str], seconds: float) -> dict[str, Any]:
    """Return what came of an attack, once it is over."""
    said, _ = process.communicate(timeout=seconds)
    assert process.returncode == 0, f"the attack failed: {process.returncode}"
    found: dict[str, Any] = json.loads(said)
    return found


def _main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(_Attack(Target(**json.loads(sys.stdin.readline()))).run())


if __name__ == "__main__":
    _main()
