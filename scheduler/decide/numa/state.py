"""What one node's NUMA nodes have left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ledger.domain.nodes import NodeFacts
from scheduler.decide.cpusets.layout import layout_of
from scheduler.decide.cpusets.pinned import NOTHING_PINNED, Pinned
from scheduler.decide.numa.merge import NumaUse
from scheduler.decide.outcome import NumaPart

NUMA_NODES_MAX = 8
"""Kubelet's own bound: with more, only single NUMA nodes and all of them are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """
    One NUMA node; None = nobody reports the resource there.

    Attributes:
        cpus: its CPUs, a mask.
        cpu_milli, cpu_milli_free: amplified where the node's cpu is.
        sockets: the sockets they sit on, their ids; empty without a CPU topology.
    """

    id: int
    cpus: int = 0
    sockets: tuple[int, ...] = ()
    cpu_milli: int | None = None
    cpu_milli_free: int = 0
    memory_bytes: int | None = None
    memory_bytes_free: int = 0
    use: NumaUse = NumaUse.IDLE


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaLoad:
    """What Pods hold of a node's NUMA nodes: CPU sets by CPU, the rest by part."""

    pinned: Pinned = NOTHING_PINNED
    parts: tuple[NumaPart, ...] = field(default=())


def numa_nodes_of(facts: NodeFacts, load: NumaLoad) -> tuple[NumaNode, ...]:
    """
    Return the node's NUMA nodes with what they have left, by id.

    Rule: Koordinator contract 6.3: every reserved CPU lowers its NUMA node's quantity by one; 7:
    a NUMA node is single when only one-node CPU sets sit on it, shared when a wider one does; 6.6:
    cpu is amplified, CPUs that somebody has to himself cost the same, shares what they ask.

    Out of the zones of the NodeResourceTopology, else out of the CPU topology.
    """
    cpus: dict[int, int] = {}
    sockets: dict[int, tuple[int, ...]] = {}
    if facts.cpu_topology is not None:
        topology = facts.cpu_topology
        for numa in layout_of(topology).numas:
            cpus[numa.id] = numa.cpus
            sockets[numa.id] = tuple(topology.sockets[place] for place in numa.sockets)
    zones = {zone.id: zone for zone in facts.numa_zones}
    uses = _uses(cpus, load.pinned.holders)
    nodes = []
    for numa_id in sorted({*cpus, *zones}):
        own, zone = cpus.get(numa_id, 0), zones.get(numa_id)
        milli = None if zone is None else zone.cpu_milli
        if milli is None and own:
            milli = own.bit_count() * 1000
        memory = None if zone is None else zone.memory_bytes
        taken = (own & (facts.reserved_cpus.mask | load.pinned.any)).bit_count() * 1000
        parts = [part for part in load.parts if part.node == numa_id]
        shared = sum(part.cpu_milli for part in parts if not part.pinned)
        used = sum(part.memory_bytes for part in parts)
        nodes.append(
            NumaNode(
                id=numa_id,
                cpus=own,
                sockets=sockets.get(numa_id, ()),
                cpu_milli=None if milli is None else facts.amplified(milli),
                cpu_milli_free=max(0, facts.amplified((milli or 0) - taken) - shared),
                memory_bytes=memory,
                memory_bytes_free=0 if memory is None else max(0, memory - used),
                use=uses.get(numa_id, NumaUse.IDLE),
            )
        )
    return tuple(nodes)


def _uses(numas: dict[int, int], holders: Iterable[int]) -> dict[int, NumaUse]:
    uses: dict[int, NumaUse] = {}
    for holder in holders:
        touched = [numa for numa, cpus in numas.items() if cpus & holder]
        wide = len(touched) > 1
        for numa in touched:
            if wide or uses.get(numa) is not NumaUse.SHARED:
                uses[numa] = NumaUse.SHARED if wide else NumaUse.SINGLE
    return uses
