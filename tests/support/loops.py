"""Event loops whose clock a test moves: nothing waits for time, or depends on how much passes."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

_LOOK_SECONDS: Final = 0.005
"""Between two looks at what another thread or process does."""

Found = TypeVar("Found")


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock goes on by itself, and further at once where a test skips time."""

    def __init__(self, selector: selectors.BaseSelector | None = None) -> None:
        super().__init__(selector)
        self.skipped = 0.0

    def time(self) -> float:
        """Return what time it is for everything that waits here."""
        return super().time() + self.skipped

    def skip(self, seconds: float) -> None:
        """Let whatever waits for no longer than this have waited long enough."""
        self.skipped += seconds


class VirtualLoop(SkippingLoop):
    """A loop that never waits: where nothing is left to do, the next deadline is now."""

    def __init__(self) -> None:
        super().__init__(_NeverWaiting(self.skip))

    def time(self) -> float:
        """Return the sum of what was skipped."""
        return self.skipped


class _NeverWaiting(selectors.EpollSelector):
    def __init__(self, skip: Callable[[float], None]) -> None:
        super().__init__()
        self._skip = skip

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "all wait for something, and no deadline will come"
        self._skip(max(0.0, timeout))
        return super().select(0)


def run_with_skips(main: Callable[[SkippingLoop], Coroutine[Any, Any, None]]) -> None:
    """Run what may skip time on its loop."""
    loop = SkippingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main(loop))


def run_in_virtual_time(main: Coroutine[Any, Any, Found]) -> Found:
    """Run what talks to no other thread or process, without ever waiting; return what it does."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds that another thread or process does; the caller bounds it."""
    while not holds():  # noqa: ASYNC110 - nothing here could set an event
        await asyncio.sleep(_LOOK_SECONDS)
