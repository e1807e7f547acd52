"""
Which CPUs containers' processes really ran on, by the kernel's own trace of `sched_switch`.

Runs in the guest and shares no code with what is tested. The kernel counts each switch to a process
that calls itself COMM, by process and CPU, from one claim to the next: no switch is lost, and none
has to be written down.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypedDict

from tests.support.guest.poller import Claim

COMM: Final = "guest-work"
"""The name of a container's process, once it is in its cgroup."""
_TRACE: Final = Path("/sys/kernel/tracing")
_EVENT: Final = "events/sched/sched_switch"
_COUNTS: Final = f'hist:keys=next_pid,common_cpu:size=4096{{}} if next_comm=="{COMM}"'
_LINES_MAX: Final = 400
"""So many are read each time; to clear them takes the kernel longer."""
_LINE: Final = re.compile(
    r"\{ next_pid: +(?P<pid>\d+), common_cpu: +(?P<cpu>\d+) \} hitcount: +(?P<count>\d+)"
)
_DROPPED: Final = re.compile(r"Dropped: (\d+)")


class Ran(TypedDict):
    """A container whose process ran on a CPU of another's, so many times."""

    who: str
    whose: str
    cpu: int
    times: int
    at_birth: bool


class Switches:
    """Counts until the end; `ran` are those to CPUs of others, `total` all of them."""

    def __init__(self, trace: Path = _TRACE) -> None:
        self._event = trace / _EVENT
        if not self._event.exists():
            subprocess.run(["mount", "-t", "tracefs", "none", str(trace)], check=True)
        self._write(_COUNTS.format(""))
        self.total = 0
        self.ran: list[Ran] = []
        self._claims: Mapping[str, Claim] = {}
        self._counted: dict[tuple[int, int], int] = {}
        self._folders: dict[int, str] = {}
        self._newborn: set[str] = set()

    def born(self, process: int, folder: str) -> None:
        """Take note of a process and the cgroup that it is in for all its life."""
        self._folders[process] = folder
        self._newborn.add(folder)

    def claim(self, claims: Mapping[str, Claim]) -> None:
        """Judge what ran by the claims until now, and let others count from now on."""
        self._judge((self._event / "hist").read_text())
        if len(self._counted) > _LINES_MAX:
            self._write(_COUNTS.format(":clear"))
            self._counted = {}
        self._claims = claims
        self._newborn.clear()

    def end(self) -> None:
        """Count no longer."""
        self.claim({})
        self._write("!" + _COUNTS.format(""))

    def _judge(self, histogram: str) -> None:
        dropped = _DROPPED.search(histogram)
        assert dropped is not None, histogram
        assert dropped[1] == "0", f"the kernel lost switches: {dropped[0]}"
        counts: Counter[tuple[str, int]] = Counter()
        before, self._counted = self._counted, {}
        for found in _LINE.finditer(histogram):
            pid, cpu, count = (int(found[name]) for name in ("pid", "cpu", "count"))
            self._counted[pid, cpu] = count
            counts[self._folders[pid], cpu] += count - before.get((pid, cpu), 0)
        counts = +counts
        self.total += counts.total()
        for (who, cpu), times in counts.items():
            for whose, claim in self._claims.items():
                if cpu in claim["cpus"] and who != whose and who not in claim["guests"]:
                    at_birth = who in self._newborn
                    self.ran.append(
                        Ran(who=who, whose=whose, cpu=cpu, times=times, at_birth=at_birth)
                    )

    def _write(self, text: str) -> None:
        with (self._event / "trigger").open("a") as file:
            file.write(text)
