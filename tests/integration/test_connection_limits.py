"""What callers cost who only connect, and what frames of HTTP/2 cost that ask for nothing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from hpack import Encoder
from hyperframe import frame as frames

from ledger.domain.resources import AGENT_PROTOCOL
from tenure.serving import connections as connections_module
from tenure.serving import http2 as http2_connections
from tenure.serving import listening as module
from tenure.serving.connections import DESCRIPTORS_LEFT, ConnectionLimits, Connections
from tenure.serving.http2 import _Stream
from tenure.serving.listening import HTTP1, Http2
from tests.integration.test_malformed_http import contexts, serve
from tests.support.http2 import Http2Client, http2_client
from tests.support.loops import until

pytestmark = pytest.mark.integration

SECONDS_MAX = 60.0
"""More than anything here takes, on however busy a machine."""
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
SERVICE, STRANGER, ANOTHER = "127.0.0.1", "127.0.0.2", "127.0.0.3"

Connect = Callable[[], contextlib.AbstractAsyncContextManager[Http2Client]]
Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(port: int, address: str = SERVICE, tls: ssl.SSLContext | None = None) -> Pair:
    """Connect from an address of the loopback."""
    return await asyncio.open_connection("127.0.0.1", port, ssl=tls, local_addr=(address, 0))


async def ended(one: Pair) -> None:
    """Wait until the other side closes."""
    async with asyncio.timeout(SECONDS_MAX):
        with contextlib.suppress(ConnectionError):
            while await one[0].read(1 << 16):
                pass


async def asked(one: Pair) -> bytes:
    """Ask on a connection that stays open, and return the answer's head."""
    one[1].write(GET)
    async with asyncio.timeout(SECONDS_MAX):
        head = await one[0].readuntil(b"\r\n\r\n")
        await one[0].readexactly(3)
    return head


def close(all_of: list[Pair]) -> None:
    """Close our side of each."""
    for _, writer in all_of:
        writer.transport.abort()


def test_half_a_handshake_counts(tmp_path: Path) -> None:
    """They are half of all at most, of all addresses, the oldest goes, and others are answered."""
    server, client = contexts(tmp_path)
    client.set_alpn_protocols([HTTP1])

    async def act(port: int) -> None:
        addresses = itertools.cycle((STRANGER, ANOTHER))
        halves = [await connect(port, next(addresses)) for _ in range(20)]
        for one in halves[:-4]:
            await ended(one)
        caller = await connect(port, tls=client)
        assert (await asked(caller)).startswith(b"HTTP/1.1 200 OK")
        assert not any(reader.at_eof() for reader, _ in halves[-3:])
        close([*halves, caller])

    serve(act, server, limits=ConnectionLimits(open_max=8, handshake_seconds=2 * SECONDS_MAX))


def hello_of(protocols: list[str], authority: ssl.SSLContext) -> bytes:
    """Return how a TLS handshake begins that offers these protocols."""
    authority.set_alpn_protocols(protocols)
    sent = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        authority.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="127.0.0.1").do_handshake()
    return sent.read()


def test_agents_that_all_come_again_leave_others_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Few of them begin at once, and more wait; of one address there are four of both.

    When one ends the next begins; who hung up meanwhile is passed over.
    """
    monkeypatch.setattr(connections_module, "BEGINNING_MAX", 6)
    monkeypatch.setattr(connections_module, "WAITING_MAX", 12)
    server, client = contexts(tmp_path)
    hello = hello_of([AGENT_PROTOCOL, HTTP1], contexts(tmp_path)[1])
    client.set_alpn_protocols([HTTP1])

    async def begun(port: int, address: str) -> Pair:
        """Connect and say the first words at once: they are there at its accept."""
        one = socket.socket()
        one.bind((address, 0))
        one.connect(("127.0.0.1", port))
        one.sendall(hello)
        return await asyncio.open_connection(sock=one)

    async def act(port: int) -> None:
        strange = [await begun(port, STRANGER) for _ in range(5)]
        agents = [await begun(port, f"127.0.1.{number}") for number in range(1, 9)]
        await ended(strange[-1])
        agents.append(await begun(port, ANOTHER))
        await ended(agents[-1])
        caller = await connect(port, tls=client)
        assert (await asked(caller)).startswith(b"HTTP/1.1 200 OK")
        close([agents[2], agents[0]])
        async with asyncio.timeout(SECONDS_MAX):
            await agents[3][0].readexactly(1)
        stay = (*strange[:-1], agents[1], *agents[3:-1])
        assert not any(reader.at_eof() for reader, _ in stay)
        close([*strange, *agents, caller])

    serve(act, server, limits=ConnectionLimits(handshake_seconds=2 * SECONDS_MAX))


@pytest.mark.parametrize("has_tls", [False, True], ids=["plain", "TLS"])
def test_whoever_has_the_most_connections_makes_room(tmp_path: Path, *, has_tls: bool) -> None:
    """A stranger's are closed for one another, and the oldest of somebody else stays."""
    server, client = contexts(tmp_path)
    client.set_alpn_protocols([HTTP1])
    tls = client if has_tls else None

    async def act(port: int) -> None:
        caller = await connect(port, tls=tls)
        assert (await asked(caller)).startswith(b"HTTP/1.1 200 OK")
        idle = [await connect(port, STRANGER, tls) for _ in range(12)]
        ends = [asyncio.create_task(ended(one)) for one in idle]
        await until(lambda: sum(one.done() for one in ends) == 9)
        for one in ends:
            one.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        assert (await asked(caller)).startswith(b"HTTP/1.1 200 OK")
        close([*idle, caller])

    serve(act, server if has_tls else None, limits=ConnectionLimits(open_max=4))


def test_a_close_does_not_wait_for_its_caller(tmp_path: Path) -> None:
    """One that makes room is gone at once, though it never ends its TLS."""
    server, client = contexts(tmp_path)

    async def act(port: int) -> None:
        came, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
        tls = client.wrap_bio(came, sent, server_hostname="127.0.0.1")
        first = await connect(port, STRANGER)
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                break
            first[1].write(sent.read())
            came.write(await first[0].read(1 << 16))
        first[1].write(sent.read())
        second = await connect(port, tls=client)
        async with asyncio.timeout(10):  # libuv's wait for it would be 30 s
            await ended(first)
        close([first, second])

    serve(act, server, limits=ConnectionLimits(open_max=1))


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """So many descriptors as a process has by default."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1_024, before[1]))
    yield 1_024
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_listeners_share_what_descriptors_there_are(few_descriptors: int) -> None:
    """The probes have their share, and the database and the API server the rest."""
    alone: list[int] = []
    shares: list[int] = []

    async def act(_: int) -> None:
        alone.append(Connections.listening[0].open_max)
        more = [Connections(), Connections(), Connections(ConnectionLimits(open_max=6_000))]
        Connections.listening.extend(more)
        shares.extend(one.open_max for one in Connections.listening)
        for one in more:
            Connections.listening.remove(one)

    serve(act, limits=ConnectionLimits(open_max=700))
    assert alone == [700]
    assert min(shares) >= 50
    assert sum(shares) <= few_descriptors - DESCRIPTORS_LEFT


def test_whoever_finds_no_descriptor_is_let_in_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The service goes on, and says so."""
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.01)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def act(port: int) -> None:
        loop = asyncio.get_running_loop()
        before_it = await connect(port)
        assert (await asked(before_it)).startswith(b"HTTP/1.1 200 OK")
        raw = socket.socket()
        raw.settimeout(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raw.fileno() + 1, before[1]))
        try:
            await loop.sock_connect(raw, ("127.0.0.1", port))
            await until(lambda: any("can't accept" in one.message for one in caplog.records))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        await loop.sock_sendall(raw, GET)
        assert (await loop.sock_recv(raw, 15)) == b"HTTP/1.1 200 OK"
        raw.close()
        close([before_it])

    serve(act)


EMPTY = {
    "PING": frames.PingFrame(0, opaque_data=b"12345678"),
    "SETTINGS": frames.SettingsFrame(0),
    "empty DATA": frames.DataFrame(1),
    "PRIORITY": frames.PriorityFrame(1, stream_weight=3),
    "WINDOW_UPDATE": frames.WindowUpdateFrame(0, window_increment=1),
    "a frame of no type": frames.ExtensionFrame(0x77, 0),
}


async def answer(_method: str, path: str, body: Awaitable[bytes]) -> tuple[int, str, bytes]:
    """Answer with so many bytes as the path says."""
    await body
    return 200, "text/plain", b"x" * int(path[1:])


def speaking(folder: Path, act: Callable[[Connect], Awaitable[None]]) -> None:
    """Serve over HTTP/2; the coroutine is given what opens a connection."""
    server, client = contexts(folder)

    async def serving(port: int) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            await act(lambda: http2_client(port, client))

    serve(serving, server, Http2(answer=answer, body_bytes_max=1_000))


@pytest.mark.parametrize("one", EMPTY.values(), ids=EMPTY)
def test_frames_that_bring_nothing_end_the_connection(tmp_path: Path, one: frames.Frame) -> None:
    """After a thousand; others are answered before and after."""

    async def act(connect: Connect) -> None:
        async with connect() as client, connect() as other:
            client.begin("/1")
            client.flush()
            for _ in range(20):
                with contextlib.suppress(ConnectionError):
                    client.writer.write(one.serialize() * 100)
                    await client.writer.drain()
                assert await other.ask("/1", b"") == (200, b"x")
            await client.closed.wait()
            assert client.left

    speaking(tmp_path, act)


def test_a_body_goes_with_its_answer(tmp_path: Path) -> None:
    """At once, without a look for cycles: each may be of 64 MB."""

    async def act(connect: Connect) -> None:
        async with connect() as client:
            gc.collect()
            gc.disable()
            try:
                for _ in range(5):
                    assert (await client.ask("/1", b"x" * 900)) == (200, b"x")
                left = [one for one in gc.get_objects() if isinstance(one, _Stream)]
            finally:
                gc.enable()
            assert len(left) <= 1

    speaking(tmp_path, act)


def test_a_caller_may_make_room_for_what_it_fetches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame for each KiB is no flood, however long it lasts; nor are 10 for a call."""
    monkeypatch.setattr(http2_connections, "EMPTY_MAX", 20)

    async def act(connect: Connect) -> None:
        async with connect() as client:
            for _ in range(20):
                assert (await client.ask("/100000", b""))[0] == 200
                update = frames.WindowUpdateFrame(0, window_increment=1_024)
                client.writer.write(update.serialize() * 90)
                client.writer.write(EMPTY["PING"].serialize() * 5)
            assert not client.left

    speaking(tmp_path, act)


def test_others_have_their_turn_between_the_frames_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many calls come at once; all of them are answered."""
    monkeypatch.setattr(http2_connections, "TURN_SECONDS", 1e-9)

    async def act(connect: Connect) -> None:
        async with connect() as client, connect() as other:
            numbers = [client.begin("/1", ends=True) for _ in range(200)]
            assert await other.ask("/1", b"") == (200, b"x")
            assert [await client.answer(number) for number in numbers] == [(200, b"x")] * 200

    speaking(tmp_path, act)


def test_a_block_of_headers_has_a_bound(tmp_path: Path) -> None:
    """It is not decoded: a MiB of Huffman's code takes a second."""
    block = Encoder().encode([(b"x", b"a" * 100_000)], huffman=True)
    head = frames.HeadersFrame(1, block[:16_000])
    rest = [
        frames.ContinuationFrame(1, block[at : at + 16_000])
        for at in range(16_000, len(block), 16_000)
    ]

    async def act(connect: Connect) -> None:
        async with connect() as client:
            client.writer.write(b"".join(one.serialize() for one in (head, *rest)))
            await client.closed.wait()
            assert client.left

    speaking(tmp_path, act)
