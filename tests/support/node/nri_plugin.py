"""
Our plugin of NRI in a process of its own, told by its arguments what to bind.

    python -m tests.support.node.nri_plugin SOCKET NAME=CPUS...

A container of a name is bound to CPUs, whichever Pod it is of. `NAME=stuck` does not come back from
the question. Each line of its output is a state of the plugin, or a call that it answered.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from agent.cpus.nri import Nri, Snapshot
from agent.cpus.nri_messages import Bound, Call
from ledger.domain.cpuset import parse_cpuset
from tests.support.process import ROOT, environment

STUCK: Final = "stuck"
SECONDS: Final = 60.0


class _ByName(dict[tuple[str, str], Bound]):
    def __init__(self, told: Mapping[str, str]) -> None:
        super().__init__()
        self._told = told

    def get(self, key: tuple[str, str], default: Any = None) -> Any:  # noqa: ANN401 - a dict's
        """Return what a container of the name is bound to."""
        cpus = self._told.get(key[1])
        if cpus == STUCK:
            print(json.dumps({"stuck": True}), flush=True)  # noqa: T201 - its words
            time.sleep(SECONDS)
        return default if cpus is None else Bound(cpus=parse_cpuset(cpus))


async def _serve(path: Path, told: Mapping[str, str]) -> None:
    def act(call: Call | None) -> None:
        said: dict[str, object] = {"standing": nri.state.reason, "reason": nri.state.words}
        if call is not None:
            said = {"happening": call.happening.name, "container": call.container}
        print(json.dumps(said), flush=True)  # noqa: T201 - its words

    nri = Nri(path, act)
    nri.publish(Snapshot(bound=_ByName(told)))
    await nri.run()


@dataclass(slots=True, kw_only=True)
class OurPlugin:
    """The process."""

    log: Path
    process: subprocess.Popen[bytes]

    def words(self) -> list[dict[str, Any]]:
        """Return its lines by now."""
        whole = self.log.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def states(self) -> list[str]:
        """Return how it stood with the runtime, in order."""
        return [one["standing"] for one in self.words() if "standing" in one]

    def until(self, standing: str, *, times: int = 1) -> None:
        """Wait until it has stood so, for so many times."""
        until = time.monotonic() + SECONDS
        while self.states().count(standing) < times:
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, self.log.read_text()
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.process.pid, number)


@contextmanager
def our_plugin(folder: Path, path: Path, **told: str) -> Iterator[OurPlugin]:
    """Run it until the block ends."""
    log = folder / f"nri-{len(list(folder.iterdir()))}.log"
    arguments = [f"{name}={cpus}" for name, cpus in told.items()]
    command = [sys.executable, "-m", "tests.support.node.nri_plugin", str(path), *arguments]
    with log.open("wb") as words:
        process = subprocess.Popen(
            command, stdout=words, stderr=subprocess.STDOUT, cwd=ROOT, env=environment()
        )
    try:
        yield OurPlugin(log=log, process=process)
    finally:
        process.kill()
        process.wait(SECONDS)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1]), dict(one.split("=", 1) for one in sys.argv[2:])))
