"""A call that may never come back: in a thread that the end of the process does not wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

_T = TypeVar("_T")


def in_thread_of_its_own(act: Callable[[], _T]) -> asyncio.Future[_T]:
    """
    Start what may block for ever, such as a call into a driver that hangs, and return its result.

    Threads of the loop's own executor are waited for when the loop closes, and by the interpreter
    once more when it ends.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_T] = loop.create_future()

    def finish(result: Callable[[], None]) -> None:
        if not done.cancelled():
            result()

    def run() -> None:
        try:
            value = act()
        except BaseException as error:  # noqa: BLE001 - whoever waits is told
            told = error
            result = lambda: done.set_exception(told)  # noqa: E731 - said once
        else:
            result = lambda: done.set_result(value)  # noqa: E731 - said once
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(finish, result)

    threading.Thread(target=run, daemon=True).start()
    return done
