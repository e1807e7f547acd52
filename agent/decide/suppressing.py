"""How much of a node best effort Pods get as others use more of it: off unless somebody asks."""

from __future__ import annotations

from typing import Final

from agent.decide.pools import Pools, joined
from ledger.domain.cpuset import CpuSet, cpuset_of
from ledger.domain.topology import CpuTopology

CPUS_MIN: Final = 2
GROWTH_PERCENT: Final = 10
"""Of the node, at most, in one step."""


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
