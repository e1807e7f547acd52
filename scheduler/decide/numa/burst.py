"""Shared pools for Pods that burst inside few NUMA nodes: `ConstrainedBurst`."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.domain.annotations.cpu import CpuSharedPool
from ledger.domain.annotations.node_cpu import NumaAllocateStrategy
from ledger.domain.nodes import NodeFacts
from scheduler.decide.cpusets.layout import layout_of
from scheduler.decide.cpusets.pinned import Pinned
from scheduler.decide.numa.merge import masks_of
from scheduler.decide.numa.state import NUMA_NODES_MAX
from scheduler.decide.outcome import Unfit
from scheduler.decide.refusal import reasons


def burst_pools(
    limit_milli: int,
    facts: NodeFacts,
    pinned: Pinned,
    *,
    strategy: str,
    within: Sequence[int] | None = None,
) -> tuple[CpuSharedPool, ...] | Unfit:
    """
    Return the shared pools that hold a Pod's cpu limit, of the fewest NUMA nodes.

    Rule: CPU proposal, `ConstrainedBurst`: nodes are filtered by the Pod's limit; contract 9.4:
    what nobody has to himself and neither the node nor its system keeps. Equally many NUMA nodes
    go by the allocate strategy, then by id; of very many, the largest pools are looked at, and all.

    Args:
        within: the NUMA nodes that a NUMA policy chose; None = all.
    """
    if facts.cpu_topology is None or not facts.cpu_topology:
        return Unfit(reason=reasons.NO_CPU_TOPOLOGY.text, preemptible=False)
    topology = facts.cpu_topology
    free = layout_of(topology).cpus & ~facts.unpooled_cpus.mask & ~pinned.any
    sizes = {
        numa.id: facts.amplified(1000 * (numa.cpus & free).bit_count())
        for numa in layout_of(topology).numas
        if within is None or numa.id in within
    }
    sign = 1 if strategy == NumaAllocateStrategy.MOST_ALLOCATED else -1
    largest = sorted(sizes, key=lambda numa: (-sizes[numa], numa))[:NUMA_NODES_MAX]
    everywhere = sum(1 << numa for numa in sizes)
    fitting = [
        (mask.bit_count(), sign * held, mask)
        for mask in {*masks_of(largest), everywhere}
        if (held := sum(size for numa, size in sizes.items() if mask >> numa & 1)) >= limit_milli
    ]
    if not fitting:
        return Unfit(
            reason=reasons.INSUFFICIENT_POOL.text,
            requested=limit_milli,
            available=sum(sizes.values()),
            unit="milli",
        )
    chosen = min(fitting)[2]
    places = sorted({(cpu.socket, cpu.numa) for cpu in topology.cpus})
    return tuple(
        CpuSharedPool(socket=socket, node=numa) for socket, numa in places if chosen >> numa & 1
    )
