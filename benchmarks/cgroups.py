"""
What `tenure serve cpus` costs a node whose containers come and go: its share of a core.

110 Pods on this machine's cgroup v1, one of them with a CPU of its own. Containers end and start
again, a thousand cgroups made or removed a minute; service, kubelet and API server are played. Then
the same node at rest. Root, as `make node`.

    .venv/bin/python -m benchmarks.cgroups [--seconds 60] [--limits]

With `--limits` the exit status is 1 when changes cost more than 4 % of a core, or rest 2 %.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.measure import processor_seconds
from ledger.domain.cpuset import cpuset_of, format_cpuset
from ledger.domain.topology import Cpu, cpu_topology_of
from tests.support.cgroup_trees import id_of
from tests.support.cpu_trees import write_cpus
from tests.support.cpus_world import Cluster, CpusWorld, cpus_world, pod
from tests.support.process import COMMAND, environment
from tests.support.real_cgroups import LAYOUT, RealTree, real_tree
from tests.support.sys_trees import SysTree

PODS: Final = 110
A_MINUTE: Final = 1_000
LIMIT_PERCENT: Final = 4.0
REST_PERCENT: Final = 2.0
WAITS_SECONDS: Final = 20.0
"""The service keeps a question open for so long, as the real one does."""


def main() -> int:
    """Measure, print a line for each of both, and return the exit status."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=60.0)
    arguments.add_argument("--limits", action="store_true")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name, real_tree() as tree:
        folder = Path(name)
        cpus = [Cpu(id=n, core=n, socket=0, numa=0) for n in range(os.cpu_count() or 2)]
        write_cpus(SysTree(root=folder), cpu_topology_of(cpus), memory_kib=4096, pages={})
        with cpus_world(folder, tree.cpuset, tree.cpu) as world:
            world.options["host"] = folder
            node = _Node(tree, world)
            with (folder / "log").open("wb") as log:
                more = {"probes": f"127.0.0.1:{world.probes}"}
                command = [*COMMAND, "serve", "cpus", *world.words(**more)]
                process = subprocess.Popen(command, cwd=folder, env=environment(), stderr=log)
            try:
                world.until(node.is_bound, "not all is bound")
                time.sleep(5)
                busy = _percent(process.pid, options.seconds, node.changes())
                world.until(node.is_bound, "not all is bound")
                time.sleep(5)
                rest = _percent(process.pid, options.seconds, iter(()))
            finally:
                process.kill()
                process.wait(20)
    print(f"Pods={PODS} changes_a_minute={A_MINUTE} of_a_core={busy:.2f}% (limit {LIMIT_PERCENT})")
    print(f"Pods={PODS} at rest of_a_core={rest:.2f}% (limit {REST_PERCENT})")
    return int(options.limits and (busy > LIMIT_PERCENT or rest > REST_PERCENT))


class _Node:
    """Its Pods, the first of which has CPU 1; the containers of the others come and go."""

    def __init__(self, tree: RealTree, world: CpusWorld) -> None:
        self._tree, self._shared = tree, cpuset_of({*range(os.cpu_count() or 2)} - {1})
        paths = [tree.pod(1, containers=[1])]
        paths += [tree.pod(n, "burstable", [n]) for n in range(2, PODS + 1)]
        self._paths = paths
        self._ids = list(range(1, PODS + 1))
        world.runs(
            pod(1, qos="LSR", cpus="1"),
            *(pod(n, milli=100, limit=False) for n in range(2, PODS + 1)),
        )
        world.allow(bind=True)
        Cluster.waits = WAITS_SECONDS

    def is_bound(self) -> bool:
        """Tell whether every container has the CPUs that it is to have."""
        texts = (self._tree.says(self._own(at)) for at in range(PODS))
        return [*texts] == ["1", *[format_cpuset(self._shared)] * (PODS - 1)]

    def changes(self) -> Iterator[None]:
        """Remove a container's cgroup, then make that of the next one of its Pod, without end."""
        at, number = 0, PODS
        while True:
            at, number = at % (PODS - 1) + 1, number + 1
            self._tree.remove(self._own(at))
            yield
            self._ids[at] = number
            self._tree.make(self._own(at))
            status = Cluster.listed[at]["status"]
            new = {**status["containerStatuses"][0], "containerID": f"containerd://{id_of(number)}"}
            pod_now = {**Cluster.listed[at], "status": {**status, "containerStatuses": [new]}}
            Cluster.listed = [*Cluster.listed[:at], pod_now, *Cluster.listed[at + 1 :]]
            yield

    def _own(self, at: int) -> str:
        return f"{self._paths[at]}/{LAYOUT.container(id_of(self._ids[at]))}"


def _percent(pid: int, seconds: float, changes: Iterator[None]) -> float:
    """Return how much of a core a process used, in percent, while changes came evenly."""
    began, before, done = time.monotonic(), processor_seconds(pid), 0
    while (passed := time.monotonic() - began) < seconds:
        due = int(passed * A_MINUTE / 60)
        while done < due:
            next(changes, None)
            done += 1
        time.sleep(0.01)
    for _ in range(done % 2):
        next(changes, None)  # what has ended starts again
    return 100 * (processor_seconds(pid) - before) / passed


if __name__ == "__main__":
    sys.exit(main())
