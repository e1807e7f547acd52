"""
`tenure` in a process that is forked from one that has imported all of it: it starts at once.

What runs is the product's own code from its own entry on; reading that code from the disk is all
that is left out, which is nine tenths of the work of a start.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

Point = tuple[str, int]
"""Where it kills itself, and at the how manieth time; see `tests.support.killed_scheduler`."""

_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "__main__",
        "tenure.cli",
        "tenure.serving.scheduler",
        "tests.support.killed_scheduler",
        __name__,
    ]
)


class Forked:
    """A running process, as `subprocess.Popen` shows one."""

    def __init__(self, arguments: Sequence[str], log: Path, point: Point | None) -> None:
        self._process = _FORKS.Process(target=_run, args=(tuple(arguments), str(log), point))
        self._process.start()

    @property
    def returncode(self) -> int | None:
        """Return how it ended, None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return how it ended, None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        if self._process.pid is not None and self.poll() is None:
            os.kill(self._process.pid, number)

    def terminate(self) -> None:
        """Tell it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it without a word."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        """Return how it ended; raises TimeoutExpired as Popen does."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("tenure", timeout)
        return self.returncode


def _run(arguments: Sequence[str], log: str, point: Point | None) -> None:
    """Be `tenure` with these arguments."""
    with Path(log).open("ab") as words:
        os.dup2(words.fileno(), 2)
    if point is not None:
        from tests.support import killed_scheduler

        killed_scheduler.watch(killed_scheduler.Point(*point))
    sys.argv = ["tenure", *arguments]
    from tenure.cli import main

    main()
