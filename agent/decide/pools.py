"""The CPU pools of a node: shared, best effort, what of it the load leaves, and Pods' own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ledger.domain.annotations.cpu import CpuSharedPool
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import EMPTY, CpuSet, cpuset_of, union
from ledger.domain.log.cpu_holders import given_by_kubelet
from ledger.domain.log.events import PodObserved, PodReserved
from ledger.domain.topology import CpuTopology

CPUS_MIN: Final = 2
GROWTH_PERCENT: Final = 10
"""Of the node, at most, in one step."""
_CLASSES: Final = {str(qos): qos for qos in QosClass}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCpus:
    """
    The CPUs of a node and who keeps some of them back.

    Attributes:
        kubelet_reserved: kubelet's `reservedCPUs`.
        reserved: the node reservation's CPUs and the system's exclusive ones.
        kubelet_static: kubelet's CPU manager hands out CPUs itself.
    """

    topology: CpuTopology
    kubelet_reserved: CpuSet = EMPTY
    reserved: CpuSet = EMPTY
    kubelet_static: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodCpus:
    """CPUs that one Pod has to itself; `by_kubelet`: from its CPU manager, if Guaranteed."""

    cpus: CpuSet
    qos: QosClass = QosClass.LSR
    by_kubelet: bool = False


def claimed_cpus(cpus: CpuSet) -> PodCpus:
    """Return the CPUs of a claim: nobody runs beside it on them."""
    return PodCpus(cpus=cpus, qos=QosClass.LSE)


def own_cpus(event: PodReserved | PodObserved) -> PodCpus:
    """
    Return the CPUs of one holder; kubelet gave them where no `resource-status` names any.

    Rule: CPU proposal, QoS principles 2, 3 and 6.
    """
    qos = _CLASSES.get(event.snapshot.qos, QosClass.NONE)
    return PodCpus(cpus=event.cpuset, qos=qos, by_kubelet=given_by_kubelet(event))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """
    Which CPUs of a node are for whom.

    Attributes:
        shared: by NUMA node, for LS and Burstable Pods and whatever has no CPUs of its own; a
            NUMA node without any left has an empty pool.
        best_effort: by NUMA node, for BE Pods; they may ride on the CPUs of LSR Pods.
        best_effort_first: what of that BE Pods use first.
        exclusive: CPUs that Pods have to themselves.
    """

    shared: tuple[CpuSharedPool, ...]
    best_effort: tuple[CpuSharedPool, ...]
    best_effort_first: CpuSet
    exclusive: CpuSet


def pools_of(node: NodeCpus, pods: Iterable[PodCpus]) -> Pools:
    """
    Work out the pools anew: the same Pods give the same pools, whatever happened before.

    Rule: Koordinator contract 9.4, "OURS": kubelet's reserved CPUs belong to the shared pool and
    BE uses them first; CPU proposal, "Basic CPU orchestration principles".

    Shared is what is neither kept back nor anybody's own. BE may have everything that is not kept
    back, not an LSE Pod's, and not given out by kubelet.
    """
    exclusive = unshareable = EMPTY
    for pod in pods:
        exclusive |= pod.cpus
        if pod.by_kubelet or pod.qos is QosClass.LSE:
            unshareable |= pod.cpus
    every = node.topology.cpuset - node.reserved
    best_effort = every - unshareable
    return Pools(
        shared=_by_numa(node.topology, every - exclusive),
        best_effort=_by_numa(node.topology, best_effort),
        best_effort_first=node.kubelet_reserved & best_effort,
        exclusive=exclusive & node.topology.cpuset,
    )


def joined(pools: Iterable[CpuSharedPool]) -> CpuSet:
    """Return the CPUs of several pools."""
    return union(pool.cpus for pool in pools)


def _by_numa(topology: CpuTopology, cpus: CpuSet) -> tuple[CpuSharedPool, ...]:
    places = sorted({(cpu.socket, cpu.numa) for cpu in topology.cpus})
    return tuple(
        CpuSharedPool(
            socket=socket,
            node=numa,
            cpus=cpus & topology.cpus_in_numa(numa) & topology.cpus_in_socket(socket),
        )
        for socket, numa in places
    )


def left_for_best_effort(
    capacity: int, *, pods: int, system: int, reserved: int, threshold_percent: int
) -> int:
    """
    Return what best effort Pods may use; below 0 = others use too much. In thousandths of a CPU.

    Rule: Koordinator contract 9.5.

    Args:
        pods: used by Pods that are not best effort.
        system: used by all else; `reserved`: kept for that.
    """
    return capacity * threshold_percent // 100 - pods - max(system, reserved)


def suppressed_cpus(left: int, pools: Pools, topology: CpuTopology, now: CpuSet) -> CpuSet:
    """
    Return the CPUs of best effort Pods: never an LSE Pod's, nor any that kubelet gave.

    Rule: Koordinator contract 9.5; issue: LSR Pods' CPUs only while the load is low. Parts of
    shared and of LSR Pods' CPUs are as their numbers are. Where nothing is left, LSR Pods' are left
    alone as long as there are others. First come kubelet's reserved CPUs, then those that best
    effort has, then whole cores of all NUMA nodes in turn.
    """
    pool = joined(pools.best_effort)
    lsr, shared = pool & pools.exclusive, pool - pools.exclusive
    growth = -(-len(topology.cpus) * GROWTH_PERCENT // 100)
    count = max(min(-(-left // 1000), len(now & pool) + growth), CPUS_MIN)
    count = min(count, len(pool))
    of_lsr = count * len(lsr) // (len(pool) or 1)
    if left <= 0 and shared:
        of_lsr, count = 0, min(count, len(shared))
    turn = _turns(topology)

    first = pools.best_effort_first
    in_turn = sorted(pool, key=lambda cpu: (cpu not in first, cpu not in now, turn[cpu]))
    of_each = ((lsr, of_lsr), (shared, count - of_lsr))
    return cpuset_of(
        cpu for cpus, number in of_each for cpu in [cpu for cpu in in_turn if cpu in cpus][:number]
    )


def _turns(topology: CpuTopology) -> dict[int, tuple[int, int, int]]:
    """Return in which order CPUs are taken: cores of the NUMA nodes in turn, a core's together."""
    turns: dict[int, tuple[int, int, int]] = {}
    for numa in topology.numa_nodes:
        here = topology.cpus_in_numa(numa)
        cores = [core for core in topology.cores if topology.cpus_in_core(core) <= here]
        for at, core in enumerate(cores):
            turns |= {cpu: (at, numa, cpu) for cpu in topology.cpus_in_core(core)}
    return turns
