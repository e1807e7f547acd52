"""CPUs of one node for one Pod: policies first, then the picker, and why not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ledger.domain.annotations.cpu import CpuBindPolicy, CpuExclusivePolicy
from ledger.domain.annotations.node_cpu import NumaAllocateStrategy
from ledger.domain.cpuset import CpuSet
from ledger.domain.nodes import NodeFacts
from ledger.domain.requests import CpuSetDemand
from scheduler.decide import reasons
from scheduler.decide.cpusets.layout import CpuLayout, layout_of
from scheduler.decide.cpusets.picker import PickRequest, one_of_each_core, pick
from scheduler.decide.cpusets.pinned import NOTHING_PINNED, Pinned
from scheduler.decide.outcome import Unfit

NOT_WHOLE_CORES: Final = "node(s) requested cpus not multiple cpus per core"
BIND_POLICY_CONFLICT: Final = (
    "node(s) cpu bind policy conflicts with pod's required cpu bind policy"
)

UNIT_CPUS: Final = "cpus"


def choose_cpus(
    demand: CpuSetDemand,
    node: NodeFacts,
    pinned: Pinned = NOTHING_PINNED,
    *,
    strategy: str = NumaAllocateStrategy.LEAST_ALLOCATED,
) -> CpuSet | Unfit:
    """
    Choose exactly `demand.cpus` CPUs of a node, as the release does.

    Rule: Koordinator contract 6.2, 6.3, 6.4 and 6.6.

    A node's own bind policy must hold: a Pod's preferred policy gives way, another required one
    is refused. The exclusive policy is soft.

    Args:
        strategy: the settings'; the node's own label counts before it.
    """
    topology = node.cpu_topology
    if topology is None or not topology:
        return Unfit(reason=reasons.NO_CPU_TOPOLOGY.text, preemptible=False)
    policy = node.cpu_bind_policy
    if policy and demand.required and demand.bind_policy != policy:
        return Unfit(reason=BIND_POLICY_CONFLICT, preemptible=False)
    if policy:
        demand = replace(demand, bind_policy=policy, required=True)
    layout = layout_of(topology)
    full = demand.bind_policy == CpuBindPolicy.FULL_PCPUS
    if full and demand.required and demand.cpus % layout.threads_per_core:
        return Unfit(
            reason=NOT_WHOLE_CORES, requested=demand.cpus, unit=UNIT_CPUS, preemptible=False
        )
    may_be_had = layout.cpus & ~node.reserved_cpus.mask
    available = may_be_had & ~pinned.full
    most = (node.numa_strategy or strategy) == NumaAllocateStrategy.MOST_ALLOCATED
    request = PickRequest(
        count=demand.cpus,
        full_cores=full,
        most_allocated=most,
        avoid_cores=demand.exclusive_policy == CpuExclusivePolicy.PCPU_LEVEL,
        avoid_numas=demand.exclusive_policy == CpuExclusivePolicy.NUMA_NODE_LEVEL,
    )
    chosen = _pick(layout, request, available, pinned, required=demand.required)
    if chosen is not None:
        return CpuSet(mask=chosen)
    return Unfit(
        reason=reasons.INSUFFICIENT_CPUS.text,
        requested=demand.cpus,
        available=available.bit_count(),
        unit=UNIT_CPUS,
        preemptible=demand.cpus <= may_be_had.bit_count(),
    )


def _pick(
    layout: CpuLayout, request: PickRequest, available: int, pinned: Pinned, *, required: bool
) -> int | None:
    """Run the picker over what the policy, if it is required, leaves to choose from."""
    if not required:
        return pick(layout, request, available, pinned.held)
    if not request.full_cores:
        return pick(layout, request, one_of_each_core(layout, available), pinned.held)
    whole = [core.cpus for core in layout.cores if not core.cpus & ~available]
    if layout.odd_cores:
        return _whole_cores_of_any_size(layout, request.count, whole)
    return pick(layout, request, sum(whole), pinned.held)


def _whole_cores_of_any_size(layout: CpuLayout, count: int, free: list[int]) -> int | None:
    """
    Return whole cores of exactly `count` CPUs on a machine whose cores are not alike.

    The release counts such a machine's cores by their mean and hands out halves. Here: one NUMA
    node if one has them, else one socket, else the machine; the lowest cores that add up.
    """
    places = [numa.cpus for numa in layout.numas] + [*layout.sockets, layout.cpus]
    for place in places:
        chosen = _adding_up([core for core in free if core & place], count)
        if chosen is not None:
            return chosen
    return None


def _adding_up(cores: Iterable[int], count: int) -> int | None:
    """Return the first cores, in their order, that have `count` CPUs together."""
    sums = {0: 0}  # CPUs so far -> the cores; the first way to a sum is kept
    for core in cores:
        size = core.bit_count()
        for had, chosen in sorted(sums.items()):
            if had + size <= count and had + size not in sums:
                sums[had + size] = chosen | core
    return sums.get(count)
