"""The CPUs that Pods have to themselves, and their parts of NUMA nodes, node by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ledger.domain.nodes import NodeFacts
from scheduler.decide.arrays import IntArray
from scheduler.decide.cpusets.pinned import NOTHING_PINNED, CpuHolding, Pinned, pinned_of
from scheduler.decide.outcome import NumaPart


class CpuPins:
    """
    Which CPUs Pods hold on each node.

    Rule: Koordinator contract 6.3.

    Attributes:
        free_counts: CPUs per node that one more Pod may hold; 0 without a CPU topology.
    """

    def __init__(self, nodes: Sequence[NodeFacts]) -> None:
        self._nodes = nodes
        self._holdings: dict[int, Counter[CpuHolding]] = {}
        self._pinned: dict[int, Pinned] = {}
        self._parts: dict[int, Counter[NumaPart]] = {}
        self.free_counts: IntArray = np.array(
            [_free(node, NOTHING_PINNED) for node in nodes], dtype=np.int64
        )

    def pinned(self, node: int) -> Pinned:
        """Return what Pods hold on a node, for the picker."""
        return self._pinned.get(node, NOTHING_PINNED)

    def refs(self, node: int) -> Mapping[int, int]:
        """Return logical CPU -> number of holders; CPUs without holders are missing."""
        return self.pinned(node).refs

    def count(self, node: int, holding: CpuHolding, holders: int) -> None:
        """Count a holding (1), or forget it (-1)."""
        holdings = self._holdings.setdefault(node, Counter())
        holdings[holding] += holders
        assert holdings[holding] >= 0, f"CPUs given back that nobody held: cpus={holding.cpus:#x}"
        if not holdings[holding]:
            del holdings[holding]
        self._pinned[node] = pinned_of(self._nodes[node], holdings.elements())
        self.free_counts[node] = _free(self._nodes[node], self._pinned[node])

    def parts(self, node: int) -> tuple[NumaPart, ...]:
        """Return what Pods take of the node's NUMA nodes, one entry per Pod and NUMA node."""
        parts = self._parts.get(node)
        return () if parts is None else tuple(parts.elements())

    def count_parts(self, node: int, parts: Iterable[NumaPart], holders: int) -> None:
        """Count what a Pod takes of NUMA nodes (1), or forget it (-1)."""
        counts = self._parts.setdefault(node, Counter())
        for part in parts:
            counts[part] += holders
            assert counts[part] >= 0, f"given back and never taken: {part}"

    def over_held(self, node: int) -> list[int]:
        """Return the CPUs that more Pods hold than may."""
        most = self._nodes[node].cpu_ref_count_max
        return sorted(cpu for cpu, count in self.refs(node).items() if count > most)


def _free(node: NodeFacts, pinned: Pinned) -> int:
    if node.cpu_topology is None:
        return 0
    return (node.cpu_topology.cpuset.mask & ~node.reserved_cpus.mask & ~pinned.full).bit_count()
