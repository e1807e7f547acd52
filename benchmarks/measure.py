"""Clocks and figures: the machine, what a call takes, and one JSON object per line."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sqlite3
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


def say(**figures: object) -> None:
    """Print figures as one line of JSON."""
    print(json.dumps(figures), flush=True)


def say_machine(**figures: object) -> None:
    """Print what the figures were taken on; the load says how far rates are to be trusted."""
    say(
        machine=_processor(),
        cores=len(os.sched_getaffinity(0)),
        load=round(os.getloadavg()[0], 1),
        python=platform.python_version(),
        sqlite=sqlite3.sqlite_version,
        **figures,
    )


def pinned(core: int) -> list[str]:
    """Return what runs a command on one core, nothing where the machine can't."""
    taskset = shutil.which("taskset")
    return [] if taskset is None else [taskset, "-c", str(core)]


def processor_seconds(pid: int) -> float:
    """Return what a process has used of the processor, in the kernel's ticks."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - a stream of lines
            named = [line for line in lines if line.startswith("model name")]
    except OSError:
        named = []
    return named[0].split(":", 1)[1].strip() if named else platform.machine()


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Medians over the rounds. Beside other work, the processor's time is what may be compared."""

    seconds: float
    cpu_seconds: float


def spent_by(act: Callable[[], object], rounds: int = 1) -> Spent:
    """Return what `act` takes."""
    seconds: list[float] = []
    cpu_seconds: list[float] = []
    for _ in range(rounds):
        started, cpu_started = time.perf_counter(), time.process_time()
        act()
        seconds.append(time.perf_counter() - started)
        cpu_seconds.append(time.process_time() - cpu_started)
    return Spent(seconds=statistics.median(seconds), cpu_seconds=statistics.median(cpu_seconds))
