"""The work of a service beside answering: tasks for as long as the process, and acts repeated."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

from prometheus_client import Counter

from certs.material import CertificateError
from certs.ports import ApiError, ConflictError
from ledger.domain.errors import TenureError

_log: Final = logging.getLogger("tenure.background")


class Tasks(list[Coroutine[Any, Any, None]]):
    """Tasks that run for as long as the process; one that ends is an error."""

    def __init__(self) -> None:
        super().__init__()
        main = asyncio.current_task()
        assert main is not None, "made within a task"
        self._main = main
        self.passing: set[asyncio.Future[None]] = set()
        self.running: list[asyncio.Future[None]] = []

    def start(self) -> None:
        """Start what was collected since the last time."""
        while self:
            task = asyncio.create_task(self.pop(0))
            task.add_done_callback(lambda done: None if done.cancelled() else self._main.cancel())
            self.running.append(task)

    def run(self, work: Awaitable[None]) -> None:
        """Start what ends by itself; what it raises ends the process."""
        task = asyncio.ensure_future(work)
        self.passing.add(task)

        def ended(done: asyncio.Future[None]) -> None:
            self.passing.discard(done)
            if not done.cancelled() and done.exception() is not None:
                self.running.append(done)
                self._main.cancel()

        task.add_done_callback(ended)


@asynccontextmanager
async def tasks_of_process() -> AsyncIterator[Tasks]:
    """Yield what runs until the block ends; what a task raised is raised then."""
    tasks = Tasks()
    try:
        yield tasks
    finally:
        running = [*tasks.running, *tasks.passing]
        for task in running:
            task.cancel()
        ended = await asyncio.gather(*running, return_exceptions=True)
        for result in ended:
            if isinstance(result, Exception):
                raise result


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


def as_coroutine(act: Callable[[], object]) -> Callable[[], Awaitable[None]]:
    """Return a plain act as one that is awaited."""

    async def acting() -> None:
        act()

    return acting
