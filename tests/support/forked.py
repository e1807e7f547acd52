"""
`tenure` in a process that is forked from one that has imported all of it: it starts at once.

What runs is the product's own code from its own entry on; reading that code from the disk is all
that is left out, which is nine tenths of the work of a start.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from tests.support.process import SECONDS_MAX, environment

Point = tuple[str, int]
"""Where it kills itself, and at the how manieth time; see `tests.support.killed_scheduler`."""

_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "__main__",
        "tenure.cli",
        "tenure.serving.agent",
        "tenure.serving.scheduler",
        "tenure.serving.webhook",
        "tenure.simulate.command",
        "tests.support.killed_scheduler",
        __name__,
    ]
)


class Forked:
    """
    A running process, as `subprocess.Popen` shows one.

    Args:
        words: what it writes to stderr is added to this file.
        cwd: where it runs, with nothing of Tenure's in its environment but `more`; None = where and
            as the tests do.
        first: a program that is run before the command.
        stdin, stdout: files; None = those of the tests.
        execs: whether a command that goes on as another module, in the same process, reads all of
            that from the disk, as it does for users; if not, it goes on with what was imported.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        words: Path,
        point: Point | None = None,
        *,
        cwd: Path | None = None,
        more: Mapping[str, str] | None = None,
        first: str = "",
        stdin: Path | None = None,
        stdout: Path | None = None,
        execs: bool = True,
    ) -> None:
        there = None if cwd is None else (cwd, environment(**(more or {})))
        streams = {0: stdin, 1: stdout, 2: words}
        work = (tuple(arguments), streams, there, point, first)
        self._process = _FORKS.Process(target=_run, args=work, kwargs={"execs": execs})
        self._process.start()

    @property
    def pid(self) -> int:
        """Return its id."""
        assert self._process.pid is not None, "it was started"
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Return how it ended, None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return how it ended, None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send it a signal."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Tell it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it without a word."""
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended; raises TimeoutExpired as Popen does."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("tenure", timeout or 0)
        return self.returncode


def forked(
    *arguments: str | Path,
    cwd: Path,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `tenure` to its end, as `tests.support.process.tenure` does."""
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name, each) for each in ("stdin", "stdout", "stderr")]
        files[0].write_text(stdin, "utf-8")
        process = Forked(
            list(map(str, arguments)),
            files[2],
            cwd=cwd,
            more=env,
            stdin=files[0],
            stdout=files[1],
        )
        try:
            code = process.wait(SECONDS_MAX)
        finally:
            process.kill()
        out, err = (each.read_text("utf-8") for each in files[1:])
    return subprocess.CompletedProcess(("tenure", *map(str, arguments)), code, out, err)


def _run(
    arguments: Sequence[str],
    streams: Mapping[int, Path | None],
    there: tuple[Path, Mapping[str, str]] | None,
    point: Point | None,
    first: str,
    *,
    execs: bool,
) -> None:
    """Be `tenure` with these arguments."""
    for number, path in streams.items():
        if path is not None:
            with path.open("ab" if number else "rb") as file:
                os.dup2(file.fileno(), number)
    if streams[0] is not None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if there is not None:
        os.chdir(there[0])
        os.environ.clear()
        os.environ.update(there[1])
    if point is not None:
        from tests.support import killed_scheduler

        killed_scheduler.watch(killed_scheduler.Point(*point))
    exec(first, {})
    if not execs:
        vars(os)["execv"] = _go_on
    sys.argv = ["tenure", *arguments]
    from tenure.cli import main

    main()


def _go_on(program: str, words: Sequence[str]) -> NoReturn:
    """Be the module that `python -P -m` is told to be, as `os.execv` does, and end with it."""
    (*options, module), rest = words[1:4], words[4:]
    assert (program, options) == (sys.executable, ["-P", "-m"]), words
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    sys.argv = [module, *rest]
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
