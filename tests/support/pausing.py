"""Processes in one event loop that can be stopped and go on, as SIGSTOP and SIGCONT do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, Final

from tests.support.loops import VirtualLoop


class Process:
    """
    Whatever runs in its context, with the tasks and timers that come of it.

    Attributes:
        paused: nothing of it runs; what became due meanwhile runs once it goes on.
    """

    def __init__(self) -> None:
        self.paused = False
        self.context = copy_context()
        self.context.run(_PROCESS.set, self)
        self._parked: list[tuple[asyncio.Handle, Callable[[], object], Context]] = []

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task of this process."""
        return self.context.run(asyncio.ensure_future, work)

    def park(self, handle: asyncio.Handle, call: Callable[[], object], context: Context) -> None:
        """Keep a call that became due."""
        self._parked.append((handle, call, context))

    def resume(self) -> None:
        """Go on, with what became due first first."""
        self.paused = False
        parked, self._parked = self._parked, []
        loop = asyncio.get_running_loop()
        for handle, call, context in parked:
            if not handle.cancelled():
                loop.call_soon(call, context=context)


_PROCESS: Final[ContextVar[Process | None]] = ContextVar("process", default=None)


class PausableLoop(VirtualLoop):
    """A loop in virtual time, in which processes can be paused."""

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: Context | None = None
    ) -> asyncio.Handle:
        """Call it next, unless its process is paused then."""
        context = context or copy_context()
        call, box = _in_process(callback, context)
        handle = super().call_soon(call, *args, context=context)
        box.append(handle)
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[..., object],
        *args: object,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call it then, unless its process is paused."""
        context = context or copy_context()
        call, box = _in_process(callback, context)
        handle = super().call_at(when, call, *args, context=context)
        box.append(handle)
        return handle


def _in_process(
    callback: Callable[..., object], context: Context
) -> tuple[Callable[..., object], list[asyncio.Handle]]:
    process, box = context.get(_PROCESS), list[asyncio.Handle]()
    if process is None:
        return callback, box

    def call(*args: object) -> None:
        if process.paused:
            process.park(box[0], partial(callback, *args), context)
        else:
            callback(*args)

    return call, box


def run_with_processes(main: Coroutine[Any, Any, None]) -> None:
    """Run what talks to no other thread, without ever waiting."""
    with asyncio.Runner(loop_factory=PausableLoop) as runner:
        runner.run(main)
