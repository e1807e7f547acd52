"""
How long an LSE container's busy loop waits for its CPU beside best effort load, bound and not.

Runs in the guest, as root. The kernel says it: `run_delay`, the second number of a process's
`schedstat`. Best effort's loops stand still while cgroups are written, which would take minutes.

    python -m tests.support.guest.delays FORM RELEASE FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypedDict

from tests.support.guest.cpu_steps import Binder, World
from tests.support.guest.kubelet_tree import KubeletTree, write

SECONDS: Final = 5.0
TURNS: Final = 3
BEST_EFFORT: Final = 12
"""More busy loops than CPUs."""
_WEIGHTS: Final = {
    "v1": ("cpu.shares", {"equal": ("1024", "1024"), "kubelet's": ("1024", "2")}),
    "v2": ("cpu.weight", {"equal": ("39", "39"), "kubelet's": ("39", "1")}),
}
"""Of the LSE Pod, which asks for a whole CPU, and of all best effort; by who gives them."""


class Waited(TypedDict):
    """Milliseconds that it waited in SECONDS, turn by turn."""

    unbound: list[float]
    bound: list[float]


def run(world: World) -> dict[str, Waited]:
    """Return what it was by turns, by the weights that cgroups had."""
    came = {}
    try:
        binder = Binder(world)
        (lse,) = world.add("LSE", frozenset({2}), containers=1)
        loops = world.add("BE", frozenset(), containers=BEST_EFFORT)
        (pod, *_) = world.pods
        top = world.tree.tops[-1]
        file, weights = _WEIGHTS[world.form]
        for whose, (own, best_effort) in weights.items():
            came[whose] = waited = Waited(unbound=[], bound=[])
            write(top / world.tree.pod_path(pod) / file, own)
            write(top / world.tree.kubepods / "besteffort" / file, best_effort)
            for _ in range(TURNS):
                waited["unbound"].append(_measure(lse))
                with _still(loops):
                    binder.settle(whole=False)
                waited["bound"].append(_measure(lse))
                with _still(loops):
                    binder.give_back()
    finally:
        world.switches.end()
        world.tree.end()
    return came


@contextmanager
def _still(processes: list[int]) -> Iterator[None]:
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    yield
    for process in processes:
        os.kill(process, signal.SIGCONT)


def _measure(process: int) -> float:
    began = _run_delay(process)
    time.sleep(SECONDS)
    return (_run_delay(process) - began) / 1e6


def _run_delay(process: int) -> int:
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[1])


if __name__ == "__main__":
    form, release, folder = sys.argv[1:]
    major, minor = map(int, release.split("."))
    Path(folder).mkdir()
    busy = partial(KubeletTree, idle=0.0)
    made = World(form, (major, minor), 0, Path(folder, "claims"), busy)
    json.dump(run(made), sys.stdout)
