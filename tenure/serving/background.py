"""The work of a service beside answering: tasks for as long as the process, and acts repeated."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar

from prometheus_client import Counter

from certs.material import CertificateError
from certs.ports import ApiError, ConflictError
from ledger.domain.errors import TenureError

_T = TypeVar("_T")

_log: Final = logging.getLogger("tenure.background")


def told_to_stop() -> asyncio.Event:
    """Return what SIGTERM and SIGINT set."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


class Tasks(list[Coroutine[Any, Any, None]]):
    """
    Tasks that run for as long as the process; one that ends, however it does, ends the process.

    What must not go on beside a fault, above all holding a Lease, is cancelled in that moment:
    listeners take their time to close.
    """

    def __init__(self) -> None:
        super().__init__()
        main = asyncio.current_task()
        assert main is not None, "made within a task"
        self._main = main
        self._passing: set[asyncio.Future[None]] = set()
        self._running: list[asyncio.Future[None]] = []
        self._fault: BaseException | None = None
        self._is_over = False

    def start(self) -> None:
        """Start what was collected since the last time."""
        while self:
            work = self.pop(0)
            task = asyncio.create_task(work)
            task.add_done_callback(partial(self._ended, _name_of(work)))
            self._running.append(task)

    def run(self, work: Awaitable[None]) -> None:
        """Start what ends by itself; what it raises ends the process."""
        task = asyncio.ensure_future(work)
        self._passing.add(task)

        def passed(done: asyncio.Future[None]) -> None:
            self._passing.discard(done)
            if done.cancelled() or done.exception() is not None:
                self._ended(_name_of(work), done)

        task.add_done_callback(passed)

    def _ended(self, name: str, done: asyncio.Future[None]) -> None:
        if self._is_over:
            return
        error = None if done.cancelled() else done.exception()
        self._fault = error or AssertionError(f"a task ended that must not: {name}")
        _log.critical(
            "a task ended, and the process with it",
            extra={"what": name, "reason": repr(error)},
            exc_info=error,
        )
        self._is_over = True
        for task in self._running:
            task.cancel()
        self._main.cancel()

    async def close(self) -> None:
        """Cancel what runs, and raise what ended the process before."""
        self._is_over = True
        running = [*self._running, *self._passing]
        for task in running:
            task.cancel()
        ended = await asyncio.gather(*running, return_exceptions=True)
        for result in (self._fault, *ended):
            if isinstance(result, Exception):
                raise result


def _name_of(work: Awaitable[None]) -> str:
    return str(getattr(work, "__qualname__", work))


@asynccontextmanager
async def tasks_of_process() -> AsyncIterator[Tasks]:
    """Yield what runs until the block ends; what a task raised is raised then."""
    tasks = Tasks()
    try:
        yield tasks
    finally:
        await tasks.close()


async def every(
    seconds: float,
    what: str,
    act: Callable[[], Awaitable[None]],
    failures: Counter,
    *,
    fatal: tuple[type[Exception], ...] = (),
) -> None:
    """
    Act again and again, whatever goes wrong: it is counted, said once, and tried again.

    Nothing of this may take the answers down with it, so a mistake of ours is caught here too; what
    is `fatal` ends the process.
    """
    reason = ""
    while True:
        try:
            await act()
            reason = ""
        except fatal:
            raise
        except (ApiError, ConflictError, CertificateError, TenureError) as error:
            failures.labels(what).inc()
            if str(error) != reason:
                reason = str(error)
                _log.error("failed", extra={"what": what, "reason": reason})
        except Exception as error:  # noqa: BLE001 - the edge of this task
            failures.labels(what).inc()
            if repr(error) != reason:
                reason = repr(error)
                _log.exception("failed, and it is our mistake", extra={"what": what})
        await asyncio.sleep(seconds)


async def first(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, _T]) -> _T | None:
    """Return what is worked out, None when the event is set before."""
    task, stop = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for one in (task, stop):
            one.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)


def as_coroutine(act: Callable[[], object]) -> Callable[[], Awaitable[None]]:
    """Return a plain act as one that is awaited."""

    async def acting() -> None:
        act()

    return acting
