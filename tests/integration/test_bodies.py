"""Bodies that arrive over real sockets: how much of them a listener has at once."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop
from aiohttp import web
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived

from scheduler.service.http import EXTENDER, Calls, calls_app
from scheduler.service.metrics import Metrics
from tenure.serving.bodies import BUFFERED_BYTES, SMALL_BYTES, Bodies
from tenure.serving.connections import Connections
from tenure.serving.listening import HTTP1, HTTP2, Http2, listening
from tests.integration.test_malformed_http import contexts
from tests.support.http2 import http2_client

MIB = 1 << 20
HEAD = b"POST /body HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


def plain_app(_: Connections) -> web.Application:
    """Return an application that reads bodies as aiohttp does."""

    async def body(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    app = web.Application(client_max_size=2 * MIB)
    app.router.add_post("/body", body)
    return app


def app_of_calls(connections: Connections) -> web.Application:
    """Return an application as that of the extender and the gate, which reads bodies itself."""

    async def body(content: bytes) -> bytes:
        return b"%d" % len(content)

    return calls_app(Calls({"body": body}, EXTENDER, Metrics()), connections.answering)


App = Callable[[Connections], web.Application]
apps = pytest.mark.parametrize("app", [plain_app, app_of_calls])


def serve(act: Callable[[int, Bodies], Awaitable[None]], app: App) -> None:
    """Listen, with room for 4 MiB of bodies, while the coroutine acts on the port."""

    async def run() -> None:
        bodies = Bodies(4 * MIB)
        connections, where = Connections(bodies=bodies), ("127.0.0.1", 0)
        async with listening(app(connections), where, connections, finish_seconds=1) as port:
            await act(port, bodies)

    uvloop.run(run())


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def sent(port: int, length: int, body: bytes) -> Streams:
    """Begin a request with a body of this length, of which some is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.writelines((HEAD % length, body))
    return reader, writer


async def answer(streams: Streams) -> bytes:
    """Return the head of what is answered."""
    reader, writer = streams
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return head


@apps
def test_bodies_that_do_not_end_make_room_for_those_that_come(
    caplog: pytest.LogCaptureFixture, app: App
) -> None:
    """Those that began first are given up; their callers may send them again, as the log says."""

    async def act(port: int, bodies: Bodies) -> None:
        begun = [await sent(port, 2 * MIB, b" " * (MIB - 1)) for _ in range(40)]
        for streams in begun[:38]:
            head = await answer(streams)
            assert b" 503 " in head
            assert b"\r\nRetry-After: 1\r\n" in head
        given_up = [one for one in caplog.records if one.message == "a body was given up"]
        assert len(given_up) == 38
        assert {vars(one)["caller"] for one in given_up} == {"127.0.0.1"}
        assert bodies.size <= 4 * MIB

        assert b" 200 " in await answer(await sent(port, MIB, b" " * MIB))
        assert b" 200 " in await answer(await sent(port, 9, b" " * 9))
        for _, writer in begun:
            writer.close()

    serve(act, app)


@apps
def test_bodies_whose_callers_hung_up_are_in_memory_no_more(app: App) -> None:
    """Even where nothing looks for cycles: a busy process does so seldom."""
    left: list[int] = []

    async def act(port: int, bodies: Bodies) -> None:
        async with asyncio.timeout(60):
            for _ in range(12):
                _, writer = await sent(port, 2 * MIB, b" " * MIB)
                while bodies.size < MIB:  # noqa: ASYNC110 - it tells of no change
                    await asyncio.sleep(0.01)
                writer.transport.abort()
                while bodies.size:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                left.append(tracemalloc.get_traced_memory()[0])

    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        serve(act, app)
    finally:
        tracemalloc.stop()
        gc.enable()
    assert left[-1] - left[0] < 4 * MIB


def test_small_bodies_have_room_beside_large_ones() -> None:
    """Large ones that are whole are answered; what comes too much is given up itself."""
    bodies = Bodies(2 * MIB)
    given_up: list[str] = []

    def begin(name: str, count: int) -> None:
        bodies.grow(bodies.begin(lambda: given_up.append(name)), count)

    whole = bodies.begin(lambda: given_up.append("whole"))
    bodies.grow(whole, MIB)
    bodies.grow(whole, 0)
    begin("large", MIB // 2)
    room = 4 * MIB - MIB - BUFFERED_BYTES
    for number in range(room // SMALL_BYTES + 1):
        begin(f"small {number}", SMALL_BYTES)

    assert given_up == ["large", "small 0"]
    bodies.end(whole)
    assert bodies.size == room


@pytest.mark.parametrize(("protocol", "times"), [(HTTP1, 1), (HTTP2, 2)])
def test_a_large_body_is_in_memory_once(tmp_path: Path, protocol: str, times: int) -> None:
    """And over HTTP/2 twice, for a moment at its end: the extender's may be of 64 MiB."""
    most: list[int] = []

    async def verb(body: bytes) -> bytes:
        most.append(tracemalloc.get_traced_memory()[1])
        return b"%d" % len(body)

    async def run() -> None:
        server, client = contexts(tmp_path)
        calls = Calls({"filter": verb}, EXTENDER, Metrics())
        connections = Connections(bodies=Bodies(64 * MIB))
        http2 = Http2(answer=calls.answer_path, body_bytes_max=64 * MIB)
        async with listening(
            calls_app(calls, connections.answering),
            ("127.0.0.1", 0),
            connections,
            tls=server,
            http2=http2,
            finish_seconds=1,
        ) as port:
            body = b" " * (16 * MIB)
            tracemalloc.start()
            if protocol == HTTP2:
                async with http2_client(port, client) as caller:
                    assert await caller.ask("/filter", body) == (200, b"%d" % len(body))
            else:
                client.set_alpn_protocols([HTTP1])
                head = HEAD.replace(b"/body", b"/filter") % len(body)
                reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
                writer.write(head)
                for at in range(0, len(body), MIB):
                    writer.write(memoryview(body)[at : at + MIB])
                    await writer.drain()
                assert b" 200 " in await answer((reader, writer))

    try:
        uvloop.run(run())
    finally:
        tracemalloc.stop()
    assert 16 * MIB < most[0] < (16 * times + 8) * MIB


def test_bodies_of_calls_that_were_given_up_are_in_memory_no_more(tmp_path: Path) -> None:
    """Over HTTP/2, whole ones: a call and its task must not refer to each other for longer."""
    left: list[int] = []

    async def answer(_: str, __: str, body: Awaitable[bytes]) -> tuple[int, str, bytes]:
        size = len(await body)
        await asyncio.Event().wait()
        return 200, "text/plain", b"%d" % size

    async def run() -> None:
        server, client = contexts(tmp_path)
        bodies = Bodies(4 * MIB)
        async with (
            listening(
                web.Application(),
                ("127.0.0.1", 0),
                Connections(bodies=bodies),
                tls=server,
                http2=Http2(answer=answer, body_bytes_max=2 * MIB),
                finish_seconds=1,
            ) as port,
            asyncio.timeout(60),
        ):
            for _ in range(12):
                async with http2_client(port, client) as caller:
                    await caller.send(caller.begin("/body"), b" " * MIB)
                    while bodies.size < MIB:  # noqa: ASYNC110 - it tells of no change
                        await asyncio.sleep(0.01)
                while bodies.size:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                left.append(tracemalloc.get_traced_memory()[0])

    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        uvloop.run(run())
    finally:
        tracemalloc.stop()
        gc.enable()
    assert left[-1] - left[0] < 4 * MIB


CALL = [(":method", "POST"), (":path", "/body"), (":scheme", "https"), (":authority", "x")]


def send(caller: H2Connection, number: int, kib: int) -> None:
    """Send so much of a call's body."""
    for _ in range(kib):
        caller.send_data(number, b"x" * 1024)


def test_a_call_that_was_given_up_ends_no_other_of_its_connection(tmp_path: Path) -> None:
    """Its body is there for a moment more, and may be the one that makes room."""

    async def answer(_: str, __: str, body: Awaitable[bytes]) -> tuple[int, str, bytes]:
        return 200, "text/plain", b"%d" % len(await body)

    async def run() -> bytes:
        server, client = contexts(tmp_path)
        http2 = Http2(answer=answer, body_bytes_max=MIB)
        async with listening(
            web.Application(),
            ("127.0.0.1", 0),
            Connections(bodies=Bodies(2 * MIB)),
            tls=server,
            http2=http2,
            finish_seconds=1,
        ) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
            caller = H2Connection(H2Configuration(client_side=True))
            caller.initiate_connection()
            writer.write(caller.data_to_send())
            caller.receive_data(await reader.read(MIB))
            for number, kib in ((1, 600), (3, 400)):
                caller.send_headers(number, CALL)
                send(caller, number, kib)
            writer.write(caller.data_to_send())
            await asyncio.sleep(0.3)
            caller.reset_stream(1)
            send(caller, 3, 100)
            caller.end_stream(3)
            writer.write(caller.data_to_send())
            while True:
                async with asyncio.timeout(10):
                    some = await reader.read(MIB)
                assert some, "the connection ended"
                for event in caller.receive_data(some):
                    if isinstance(event, DataReceived):
                        writer.close()
                        return event.data

    assert uvloop.run(run()) == b"%d" % (500 << 10)
