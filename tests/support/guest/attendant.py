"""
Runs in the guest: starts the commands that lie in the box, bounds them, and writes what came.

Standard library alone, so that it starts soon. `N.ask` is a command, `N.out` and `N.err` are what
it writes, `N.end` is its code; `N.stop` ends it before its time.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

LATE: Final = 124
"""The code of a command that had to be ended."""
NO_COMMAND: Final = 127
"""The code of one that could not be started."""
_PAUSE: Final = 0.3


class Command(NamedTuple):
    """A command at work."""

    process: subprocess.Popen[bytes]
    until: float


def serve(box: Path) -> None:
    """Serve the box until the guest ends."""
    at_work: dict[str, Command] = {}
    while True:
        names = {entry.name for entry in os.scandir(box)}
        for name in sorted(names):
            if name.endswith(".ask"):
                try:
                    at_work[name[:-4]] = _start(box, box / name)
                except OSError as error:
                    (box / f"{name[:-4]}.err").write_text(str(error))
                    _write(box / f"{name[:-4]}.end", str(NO_COMMAND))
        for key, command in list(at_work.items()):
            code = command.process.poll()
            if code is None and (f"{key}.stop" in names or time.monotonic() > command.until):
                os.killpg(command.process.pid, signal.SIGKILL)
                command.process.wait()
                code = LATE
            if code is not None:
                del at_work[key]
                _write(box / f"{key}.end", str(code))
        time.sleep(_PAUSE)


def _start(box: Path, ask: Path) -> Command:
    asked = json.loads(ask.read_text())
    ask.unlink()
    with (
        (box / f"{ask.stem}.in").open("rb") as given,
        (box / f"{ask.stem}.out").open("wb") as out,
        (box / f"{ask.stem}.err").open("wb") as err,
    ):
        process = subprocess.Popen(
            asked["command"],
            stdin=given,
            stdout=out,
            stderr=err,
            cwd=asked["cwd"],
            env={**os.environ, **asked["environment"]},
            start_new_session=True,
        )
    return Command(process, time.monotonic() + asked["seconds"])


def _write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.rename(path)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
