"""Bodies that arrive over real sockets: how much of them a listener has at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import uvloop
from aiohttp import web

from tenure.serving.bodies import SMALL_BYTES, Bodies
from tenure.serving.listening import Connections, listening

MIB = 1 << 20
HEAD = b"POST /body HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


def serve(act: Callable[[int, Bodies], Awaitable[None]]) -> None:
    """Listen, with room for 4 MiB of bodies, while the coroutine acts on the port."""

    async def body(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    async def run() -> None:
        app, bodies = web.Application(client_max_size=2 * MIB), Bodies(4 * MIB)
        app.router.add_post("/body", body)
        connections = Connections(bodies=bodies)
        async with listening(app, ("127.0.0.1", 0), connections, finish_seconds=1) as port:
            await act(port, bodies)

    uvloop.run(run())


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def sent(port: int, length: int, body: bytes) -> Streams:
    """Begin a request with a body of this length, of which some is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.writelines((HEAD % length, body))
    return reader, writer


async def answer(streams: Streams) -> bytes:
    """Return the status line of what is answered."""
    reader, writer = streams
    async with asyncio.timeout(30):
        line = await reader.readline()
    writer.close()
    return line


def test_bodies_that_do_not_end_make_room_for_those_that_come() -> None:
    """Those that began first are given up; their callers may send them again."""

    async def act(port: int, bodies: Bodies) -> None:
        begun = [await sent(port, 2 * MIB, b" " * (MIB - 1)) for _ in range(40)]
        for streams in begun[:36]:
            assert b" 503 " in await answer(streams)
        assert bodies.size <= 4 * MIB

        assert b" 200 " in await answer(await sent(port, MIB, b" " * MIB))
        assert b" 200 " in await answer(await sent(port, 9, b" " * 9))
        for _, writer in begun:
            writer.close()

    serve(act)


def test_small_bodies_have_room_beside_large_ones() -> None:
    """Large ones that are whole are answered; what comes too much is given up itself."""
    bodies = Bodies(MIB)
    given_up: list[str] = []

    def begin(name: str, count: int) -> None:
        bodies.grow(bodies.begin(lambda: given_up.append(name)), count)

    whole = bodies.begin(lambda: given_up.append("whole"))
    bodies.grow(whole, MIB)
    bodies.grow(whole, 0)
    begin("large", MIB // 2)
    for number in range(MIB // SMALL_BYTES + 1):
        begin(f"small {number}", SMALL_BYTES)

    assert given_up == ["large", "small 0"]
    bodies.end(whole)
    assert bodies.size == MIB
