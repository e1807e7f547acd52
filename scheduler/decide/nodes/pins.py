"""The CPUs that Pods have to themselves, and their parts of NUMA nodes, node by node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Final

import numpy as np

from ledger.domain.annotations.cpu import CpuBindPolicy
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import CpuSetDemand
from scheduler.decide.cpusets.layout import CpuLayout, layout_of
from scheduler.decide.cpusets.picker import cpus_of_free_cores, one_of_each_core
from scheduler.decide.cpusets.pinned import NOTHING_PINNED, CpuHolding, Pinned, pinned_of
from scheduler.decide.nodes.arrays import BoolArray, IntArray, with_rows
from scheduler.decide.outcome import NumaPart

_POLICIES: Final = ("", str(CpuBindPolicy.FULL_PCPUS), str(CpuBindPolicy.SPREAD_BY_PCPUS))
_FULL: Final = 1
_SPREAD: Final = 2


class _Counts:
    """Per node, of the CPUs that one more Pod may hold: all, those of free cores, one a core."""

    def __init__(self, nodes: int) -> None:
        self.free: IntArray = np.zeros(nodes, dtype=np.int64)
        self.whole: IntArray = np.zeros(nodes, dtype=np.int64)
        self.cores: IntArray = np.zeros(nodes, dtype=np.int64)

    def grow(self, nodes: int) -> None:
        self.free = with_rows(self.free, nodes)
        self.whole = with_rows(self.whole, nodes)
        self.cores = with_rows(self.cores, nodes)

    def set(self, node: int, layout: CpuLayout | None, free: int) -> None:
        self.free[node] = free.bit_count()
        self.whole[node] = 0 if layout is None else cpus_of_free_cores(layout, free).bit_count()
        self.cores[node] = 0 if layout is None else one_of_each_core(layout, free).bit_count()


class CpuPins:
    """
    Which CPUs Pods hold on each node.

    Rule: Koordinator contract 6.3; CPU proposal, QoS principle 2 (LSE Pods share no CPU).

    Args:
        nodes: read again when a node is put anew.
    """

    def __init__(self, nodes: Sequence[NodeFacts]) -> None:
        self._nodes = nodes
        self._layouts = [_layout(node) for node in nodes]
        self._threads: IntArray = np.array(
            [_threads_per_core(layout) for layout in self._layouts], dtype=np.int64
        )
        self._policies: IntArray = np.array(
            [_POLICIES.index(node.cpu_bind_policy) for node in nodes], dtype=np.int64
        )
        self._binds = bool(self._policies.any())
        self._holdings: dict[int, Counter[CpuHolding]] = {}
        self._pinned: dict[int, Pinned] = {}
        self._parts: dict[int, Counter[NumaPart]] = {}
        self._shared = _Counts(len(nodes))
        shares = any(node.cpu_ref_count_max > 1 for node in nodes)
        self._alone = _Counts(len(nodes)) if shares else self._shared
        for node, layout in enumerate(self._layouts):
            if layout is not None:
                self._recount(node)

    def put(
        self, node: int, holdings: Iterable[CpuHolding] = (), parts: Iterable[NumaPart] = ()
    ) -> None:
        """Take a node as it is now, with these Pods' CPUs and parts and no others."""
        facts = self._nodes[node]
        if node == len(self._layouts):
            self._layouts.append(None)
            self._threads = with_rows(self._threads, node + 1)
            self._policies = with_rows(self._policies, node + 1)
            self._shared.grow(node + 1)
            self._alone.grow(node + 1)
        self._layouts[node] = layout = _layout(facts)
        self._threads[node] = _threads_per_core(layout)
        self._policies[node] = policy = _POLICIES.index(facts.cpu_bind_policy)
        self._binds |= bool(policy)
        if facts.cpu_ref_count_max > 1 and self._alone is self._shared:
            self._alone = deepcopy(self._shared)
        self._holdings[node], self._parts[node] = Counter(holdings), Counter(parts)
        self._pinned[node] = NOTHING_PINNED
        if self._holdings[node]:
            self._pinned[node] = pinned_of(facts, self._holdings[node].elements())
        self._recount(node)

    def lacks(self, demand: CpuSetDemand, nodes: IntArray) -> BoolArray:
        """
        Tell which of `nodes` have too few CPUs for the demand.

        Rule: Koordinator contract 6.2: a required policy, the node's own too, counts wholly free
        cores, or one CPU of each core. Where two policies exclude each other, or the number is no
        multiple of a core, the closer look says so.
        """
        by_node = self._alone if demand.alone else self._shared
        counts = by_node.free.take(nodes)
        own = _POLICIES.index(demand.bind_policy) if demand.required else 0
        if not own and not self._binds:
            lacking: BoolArray = counts < demand.cpus
            return lacking
        policies = self._policies.take(nodes)
        effective = np.where(policies, policies, own)
        counts = np.where(effective == _FULL, by_node.whole.take(nodes), counts)
        counts = np.where(effective == _SPREAD, by_node.cores.take(nodes), counts)
        conflict = (policies != own) & (policies > 0) & (own > 0)
        uneven = (effective == _FULL) & (demand.cpus % self._threads.take(nodes) > 0)
        short: BoolArray = (counts < demand.cpus) & ~conflict & ~uneven
        return short

    def free_counts(self, *, alone: bool) -> IntArray:
        """Return the CPUs per node that one more Pod may hold; 0 without a CPU topology."""
        return (self._alone if alone else self._shared).free

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
        self._recount(node)

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
            if not counts[part]:
                del counts[part]

    def over_held(self, node: int) -> list[int]:
        """Return the CPUs that more Pods hold than may; one of an LSE Pod has no other holder."""
        most, pinned = self._nodes[node].cpu_ref_count_max, self.pinned(node)
        return sorted(
            cpu
            for cpu, count in pinned.refs.items()
            if count > (1 if pinned.alone >> cpu & 1 else most)
        )

    def _recount(self, node: int) -> None:
        layout, pinned = self._layouts[node], self.pinned(node)
        had = layout.cpus & ~self._nodes[node].reserved_cpus.mask if layout is not None else 0
        self._shared.set(node, layout, had & ~pinned.closed_to(alone=False))
        if self._alone is not self._shared:
            self._alone.set(node, layout, had & ~pinned.closed_to(alone=True))


def _layout(node: NodeFacts) -> CpuLayout | None:
    return None if node.cpu_topology is None else layout_of(node.cpu_topology)


def _threads_per_core(layout: CpuLayout | None) -> int:
    return 1 if layout is None else max(1, layout.threads_per_core)
