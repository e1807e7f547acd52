"""What a running Pod's own words say of its CPUs, as deciding counts it, and what contradicts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from ledger.domain import resources
from ledger.domain.annotations.cpu import (
    CpuExclusivePolicy,
    NumaNodeResources,
    ResourceStatus,
    decode_resource_spec,
    decode_resource_status,
)
from ledger.domain.cpuset import EMPTY, CpuSet
from ledger.domain.log.events import PodObserved, PodReserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.cpus import OWN_CPUS
from scheduler.decide.outcome import NumaPart

_NO_STATUS: Final = ResourceStatus()
_OWN_CPUS: Final = frozenset(map(str, OWN_CPUS))


def numa_parts_of(pod: PodObserved | PodReserved) -> tuple[NumaPart, ...]:
    """
    Return what the Pod takes of each NUMA node, by its `resource-status`.

    Rule: Koordinator contract 2.2 and 7: raw quantities, present when a NUMA policy chose them.
    """
    entries = _status_of(pod).numa_node_resources
    return tuple(_part(entry, pinned=bool(pod.cpuset)) for entry in entries)


def exclusive_policy_of(pod: PodObserved, default: str) -> str:
    """
    Return what the Pod does not share with its like, by its `resource-spec`.

    Rule: Koordinator contract 6.4: later Pods of the same policy avoid it. Only Pods that ask for
    CPUs of their own have a policy (6.1); one that names none has the settings'.
    """
    if not pod.cpuset or pod.snapshot.qos not in _OWN_CPUS:
        return CpuExclusivePolicy.NONE
    text = pod.snapshot.annotations.get(resources.ANNOTATION_RESOURCE_SPEC)
    if text is not None:
        named = decode_resource_spec(text).preferred_exclusive_policy
        if named is not CpuExclusivePolicy.NONE:
            return named
    return default


def misplaced(node: NodeFacts, pod: PodObserved) -> list[str]:
    """Return, in words, what the Pod holds that the node lacks or keeps for itself."""
    path = f"{pod.namespace}/{pod.pod_name}"
    return [
        *_misplaced_cpus(node, path, pod.cpuset),
        *_misplaced_parts(node, path, numa_parts_of(pod)),
        *_misplaced_pools(node, path, pod),
    ]


def over_taken(node: NodeFacts, parts: Iterable[NumaPart]) -> dict[int, str]:
    """Return the NUMA nodes whose memory Pods took more of than there is, and that in words."""
    taken: dict[int, int] = {}
    for part in parts:
        taken[part.node] = taken.get(part.node, 0) + part.memory_bytes
    return {
        zone.id: f"{node.name}: NUMA node {zone.id} gives more memory than it has:"
        f" bytes={zone.memory_bytes}, taken={taken[zone.id]}"
        for zone in node.numa_zones
        if zone.memory_bytes is not None and taken.get(zone.id, 0) > zone.memory_bytes
    }


def _status_of(pod: PodObserved | PodReserved) -> ResourceStatus:
    text = pod.annotations.get(resources.ANNOTATION_RESOURCE_STATUS)
    return _NO_STATUS if text is None else decode_resource_status(text)


def _part(entry: NumaNodeResources, *, pinned: bool) -> NumaPart:
    amounts = dict(entry.resources)
    cpu, memory = amounts.get(resources.CPU), amounts.get(resources.MEMORY)
    return NumaPart(
        node=entry.node,
        cpu_milli=0 if cpu is None else cpu.milli(),
        memory_bytes=0 if memory is None else memory.ceil(),
        pinned=pinned,
    )


def _misplaced_cpus(node: NodeFacts, path: str, cpus: CpuSet) -> Iterator[str]:
    if node.cpu_topology is None or not cpus:
        return
    known = node.cpu_topology.cpuset
    strange, kept = cpus - known, cpus & known & node.reserved_cpus
    if strange != EMPTY:
        yield f"{node.name}: CPUs {strange} held by {path}, not in the CPU topology"
    if kept != EMPTY:
        yield f"{node.name}: CPUs {kept} held by {path}, kept back by the node"


def _misplaced_parts(node: NodeFacts, path: str, parts: Collection[NumaPart]) -> Iterator[str]:
    if not parts:
        return
    known = {zone.id for zone in node.numa_zones}
    if node.cpu_topology is not None:
        known |= {cpu.numa for cpu in node.cpu_topology.cpus}
    for part in parts:
        if known and part.node not in known:
            yield f"{node.name}: NUMA node {part.node} held by {path}, not in the topology"


def _misplaced_pools(node: NodeFacts, path: str, pod: PodObserved) -> Iterator[str]:
    pools = _status_of(pod).cpu_shared_pools
    if node.cpu_topology is None or not pools:
        return
    known = {(cpu.socket, cpu.numa) for cpu in node.cpu_topology.cpus}
    for pool in pools:
        if (pool.socket, pool.node) not in known:
            place = f"socket {pool.socket} NUMA node {pool.node}"
            yield f"{node.name}: shared pool of {place} used by {path}, not in the topology"
