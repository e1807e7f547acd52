"""A wire between two parts that is cut, or falls silent, where a test wants it to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Final

from sqlalchemy import URL, make_url

_PORT: Final = 5432
_BYTES: Final = 65_536
_LOOK_SECONDS: Final = 0.02
_TURNS: Final = 5
_Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextmanager
def looping() -> Iterator[asyncio.AbstractEventLoop]:
    """Yield a loop that runs in a thread of its own: a client may block the test's."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="relay", daemon=True)
    thread.start()

    async def end() -> None:
        for _ in range(_TURNS):  # who was let in last has no task yet, and closing takes a turn
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)

    try:
        yield loop
    finally:
        asyncio.run_coroutine_threadsafe(end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def listening(serve: _Serve) -> Iterator[tuple[int, asyncio.AbstractEventLoop]]:
    """Serve whoever comes to a free port of the loopback; yield that port, and the loop."""

    async def listen() -> asyncio.Server:
        return await asyncio.start_server(serve, "127.0.0.1", 0)

    async def close() -> None:
        server.close()

    with looping() as loop:
        server = asyncio.run_coroutine_threadsafe(listen(), loop).result()
        try:
            yield server.sockets[0].getsockname()[1], loop
        finally:
            asyncio.run_coroutine_threadsafe(close(), loop).result()


async def reach(where: int | URL) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """
    Connect to a port of the loopback, or to the server of a ledger's URL.

    Whoever gives up meanwhile leaves no connection behind that nobody closes.
    """
    connecting = asyncio.ensure_future(_connect(where))
    try:
        return await asyncio.shield(connecting)
    except asyncio.CancelledError:
        with suppress(OSError):
            _, writer = await connecting
            writer.close()
        raise


async def _connect(where: int | URL) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if isinstance(where, int):
        return await asyncio.open_connection("127.0.0.1", where)
    folder, port = where.query.get("host"), where.port or _PORT
    if isinstance(folder, str) and folder.startswith("/"):
        return await asyncio.open_unix_connection(f"{folder}/.s.PGSQL.{port}")
    return await asyncio.open_connection(where.host or str(folder), port)


def through(url: str, port: int) -> str:
    """Return a ledger's URL for who reaches its server by a port of the loopback."""
    near = make_url(url).set(host="127.0.0.1", port=port).difference_update_query(["host"])
    return near.render_as_string(hide_password=False)


class Relay:
    """
    Carries bytes between clients and one server, until a test stops it. Made by `relay_to`.

    Attributes:
        port: where clients connect, on the loopback.
        where: the server of whoever connects next.
        silent: nothing is carried, either way; what was sent arrives once that is over, also where
            its sender has given up by then, as bytes do that were underway in a network.
        refusing: whoever connects is turned away.
        loop: the relay's own, in another thread than the test's.
    """

    def __init__(self, where: int | URL) -> None:
        self.port = 0
        self.silent = False
        self.refusing = False
        self.loop: asyncio.AbstractEventLoop | None = None
        self.where = where
        self._open: set[asyncio.StreamWriter] = set()

    @contextmanager
    def fallen_silent(self) -> Iterator[None]:
        """Carry nothing until the block ends; connections stay."""
        self.silent = True
        try:
            yield
        finally:
            self.silent = False

    @contextmanager
    def cut(self) -> Iterator[None]:
        """End every connection and turn everybody away until the block ends."""
        assert self.loop is not None
        self.refusing = True
        self.loop.call_soon_threadsafe(self._close_all)
        try:
            yield
        finally:
            self.refusing = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one client's bytes both ways until a side ends."""
        ends = [writer]
        self._open.add(writer)
        try:
            if self.refusing:
                return
            there, back = await reach(self.where)
            ends.append(back)
            self._open.add(back)
            await asyncio.gather(self._carry(reader, back), self._carry(there, writer))
        except OSError:  # a side that is gone has nothing more to carry
            pass
        finally:
            self._open.difference_update(ends)
            for each in ends:
                each.close()

    def _close_all(self) -> None:
        for each in self._open:
            each.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(_BYTES):
                while self.silent:  # noqa: ASYNC110 - another thread ends it
                    await asyncio.sleep(_LOOK_SECONDS)
                writer.write(data)
                await writer.drain()
        writer.close()


@contextmanager
def relay_to(where: int | URL) -> Iterator[Relay]:
    """Yield a relay to a port of the loopback, or to the server of a ledger's URL."""
    relay = Relay(where)
    with listening(relay.serve) as (relay.port, relay.loop):
        yield relay
