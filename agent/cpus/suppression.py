"""What the load of the node leaves best effort Pods of its CPUs, measured every few seconds."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from agent.cpus.tree import GoneError, Kubepods
from agent.decide.cgroup_plan import kube_qos_of
from agent.decide.container_cpus import KubeQos
from agent.decide.pools import joined, left_for_best_effort, suppressed_cpus
from agent.decide.wanted_cpus import NodePlanned, wanted_of
from ledger.domain.cpuset import CpuSet

SAMPLE_SECONDS: Final = 5.0
_BUSY: Final = (1, 2, 3, 6, 7, 8)
"""Fields of `/proc/stat`: user, nice, system, irq, softirq, steal; not idle, nor iowait."""
_log: Final = logging.getLogger("tenure.cpus")


class _Used(NamedTuple):
    """CPU time since the machine began, in microseconds; `at`: when, in seconds."""

    at: float
    machine: int
    pods: int
    best_effort: int


class Suppression:
    """Best effort Pods get fewer CPUs as others use more than the threshold leaves."""

    def __init__(
        self, tree: Kubepods, stat: Path, threshold_percent: int, clock: Callable[[], float]
    ) -> None:
        self._tree, self._stat, self._clock = tree, stat, clock
        self._percent = threshold_percent
        self._before: _Used | None = None
        self._left: int | None = None
        self._cpus: CpuSet | None = None

    def node(self, node: NodePlanned) -> NodePlanned:
        """
        Return the node with the CPUs that best effort Pods have now: all of their pool at first.

        Where the load can't be read they keep what they have.
        """
        left = self._measured(node)
        if self._left is None:
            return node
        pools, topology = wanted_of(node).pools, node.cpus.topology
        had = joined(pools.best_effort) if self._cpus is None else self._cpus
        if left is None:  # the load is the same: only who has CPUs may be another
            left = min(self._left, len(had) * 1000)
        self._cpus = suppressed_cpus(left, pools, topology, had)
        return replace(node, best_effort=self._cpus)

    def _measured(self, node: NodePlanned) -> int | None:
        """Return what is left by the load since the last time, None if that is not yet due."""
        now, before = self._clock(), self._before
        if before is not None and now - before.at < SAMPLE_SECONDS:
            return None
        try:
            used = self._used(now)
        except (GoneError, OSError, ValueError, IndexError) as error:
            _log.warning("the load of the node can't be read", extra={"error": str(error)})
            return None
        self._before = used
        if before is None:
            return None
        machine, pods, best_effort = (
            max(new - old, 0) // round((now - before.at) * 1000)
            for new, old in zip(used[1:], before[1:], strict=True)
        )
        cpus = node.cpus
        self._left = left_for_best_effort(
            len(cpus.topology.cpus) * 1000,
            pods=max(pods - best_effort, 0),
            system=max(machine - pods, 0),
            reserved=len(cpus.kubelet_reserved | cpus.reserved) * 1000,
            threshold_percent=self._percent,
        )
        return self._left

    def _used(self, now: float) -> _Used:
        ticks = self._stat.read_text().partition("\n")[0].split()
        busy = sum(int(ticks[at]) for at in _BUSY) * 1_000_000 // os.sysconf("SC_CLK_TCK")
        of_class = (
            one.path
            for one in self._tree.look().cgroups
            if not one.pod_uid and kube_qos_of(one.path) is KubeQos.BEST_EFFORT
        )
        best_effort = sum(map(self._tree.used_us, of_class))
        return _Used(now, busy, self._tree.used_us(""), best_effort)
