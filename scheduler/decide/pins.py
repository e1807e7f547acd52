"""The CPUs that Pods have to themselves, node by node."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ledger.domain.cpuset import CpuSet, cpuset_of
from ledger.domain.nodes import NodeFacts
from scheduler.decide.arrays import IntArray


class CpuPins:
    """
    How many Pods hold each logical CPU.

    Rule: Koordinator contract 6.3.

    Attributes:
        free_counts: CPUs per node that one more Pod may hold; 0 without a CPU topology.
    """

    def __init__(self, nodes: Sequence[NodeFacts]) -> None:
        self._nodes = nodes
        self._refs: dict[int, dict[int, int]] = {}
        self.free_counts: IntArray = np.array(
            [
                0
                if node.cpu_topology is None
                else len(node.cpu_topology.cpuset - node.reserved_cpus)
                for node in nodes
            ],
            dtype=np.int64,
        )

    def refs(self, node: int) -> dict[int, int]:
        """Return logical CPU -> number of holders; CPUs without holders are missing."""
        return self._refs.get(node, {})

    def add(self, node: int, cpuset: CpuSet, holders: int) -> None:
        """Count a holder (1) of these CPUs, or forget it (-1)."""
        refs = self._refs.setdefault(node, {})
        for cpu in cpuset:
            count = refs.get(cpu, 0) + holders
            if count:
                refs[cpu] = count
            else:
                refs.pop(cpu, None)
        facts = self._nodes[node]
        if facts.cpu_topology is not None:
            full = cpuset_of(cpu for cpu, count in refs.items() if count >= facts.cpu_ref_count_max)
            free = facts.cpu_topology.cpuset - facts.reserved_cpus - full
            self.free_counts[node] = len(free)

    def over_held(self, node: int) -> list[int]:
        """Return the CPUs that more Pods hold than may."""
        most = self._nodes[node].cpu_ref_count_max
        return sorted(cpu for cpu, count in self.refs(node).items() if count > most)
