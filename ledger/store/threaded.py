"""What blocks, for asyncio: a call in a thread of its own, and SQLite's synchronous connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Thread
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection

_P = ParamSpec("_P")
_T = TypeVar("_T")


async def in_thread(act: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """
    Return what a function gives that may take as long as a database is silent.

    A caller that stops waiting does not stop it. Unlike with `asyncio.to_thread`, the process may
    end meanwhile.
    """
    given: Future[_T] = Future()

    def run() -> None:
        if given.set_running_or_notify_cancel():
            try:
                given.set_result(act(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                given.set_exception(error)

    Thread(target=run, name="ledger", daemon=True).start()
    return await asyncio.wrap_future(given)


class ThreadedConnection:
    """
    A connection of which everything is done in the one thread that made it. Made by `connect`.

    One hop there and back per function, however often it asks the database. A caller that stops
    waiting stops nothing: calls end in their order.
    """

    def __init__(self, thread: ThreadPoolExecutor, connection: Connection) -> None:
        self._thread = thread
        self._connection = connection

    async def run_sync(
        self, fn: Callable[Concatenate[Connection, _P], _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Return what a function of the store gives for the connection."""
        done = self._thread.submit(fn, self._connection, *args, **kwargs)
        return await asyncio.wrap_future(done)

    async def invalidate(self) -> None:
        """Count on nothing: `close` needs no answer of the file."""

    async def close(self) -> None:
        """Let go once what is under way has ended, whether or not somebody waits for that."""
        closed = self._thread.submit(self._connection.close)
        self._thread.shutdown(wait=False)
        await asyncio.shield(asyncio.wrap_future(closed))


Connected = AsyncConnection | ThreadedConnection
"""A connection that a loop may wait for: SQLAlchemy's own for Postgres, or one in a thread."""


async def connect(engine: Engine) -> ThreadedConnection:
    """Return a connection of the engine, opened in its thread."""
    thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
    opened = thread.submit(engine.connect)
    try:
        return ThreadedConnection(thread, await asyncio.wrap_future(opened))
    except BaseException:  # cancelled, above all: nobody else knows this connection
        thread.submit(_let_go, opened)
        thread.shutdown(wait=False)
        raise


def _let_go(opened: Future[Connection]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()
