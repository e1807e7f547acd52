"""CPUs of one node for one Pod: policies first, then the picker or even parts, and why not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

from ledger.domain.annotations.cpu import CpuBindPolicy, CpuExclusivePolicy
from ledger.domain.annotations.node_cpu import NumaAllocateStrategy
from ledger.domain.cpuset import CpuSet
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import CpuSetDemand, PodRequest
from ledger.domain.resources import LABEL_ARCH
from scheduler.decide.cpusets.layout import CpuLayout, around, layout_of
from scheduler.decide.cpusets.picker import PickRequest, cpus_of_free_cores, one_of_each_core, pick
from scheduler.decide.cpusets.pinned import NOTHING_PINNED, Pinned
from scheduler.decide.outcome import Unfit
from scheduler.decide.refusal import reasons
from scheduler.decide.settings import CpuSettings

NUMA_NODES_MAX: Final = 8
"""Beyond it, sets of NUMA nodes are not enumerated, and nothing is distributed."""

Pick = Callable[[int, int], int | None]
"""Picks so many CPUs of a NUMA node; None when it has not that many."""

NOT_WHOLE_CORES: Final = "node(s) requested cpus not multiple cpus per core"
BIND_POLICY_CONFLICT: Final = (
    "node(s) cpu bind policy conflicts with pod's required cpu bind policy"
)

UNIT_CPUS: Final = "cpus"
_DEFAULTS: Final = CpuSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSearch:
    """
    One Pod's search for CPUs on one node: what it asks for there, and what it may choose from.

    Attributes:
        unit: what a part of the request on one NUMA node is a multiple of.
        evenly: parts on several NUMA nodes are to be even.
        wide: one CPU of each core is taken, of any NUMA nodes, before two of a core.
        downgrades: NUMANodeLevel becomes PCPULevel where no clean NUMA node holds the request.
        candidates: CPUs that are available and that a required policy lets be chosen.
        idle: those of them that nobody holds, where some are held; they are taken first.
    """

    layout: CpuLayout
    request: PickRequest
    required: bool
    pinned: Pinned
    may_be_had: int
    available: int
    candidates: int
    unit: int
    idle: int = 0
    evenly: bool = False
    wide: bool = False
    downgrades: bool = False

    def anywhere(self) -> int | None:
        """Pick all that is asked for, from the whole machine; None when it has too few."""
        if self.evenly:
            cpus = self.idle if self.idle.bit_count() >= self.request.count else self.candidates
            free = {numa.id: (cpus & numa.cpus).bit_count() for numa in self.layout.numas}
            own = {numa.id: numa.cpus for numa in self.layout.numas}
            unit = self.layout.threads_per_core if self.request.full_cores else 1
            chosen = distribute(
                self.request.count, free, unit, lambda node, part: self.pick(own[node], part)
            )
            if chosen is not None:
                return chosen
        return self.pick(self.layout.cpus, self.request.count)

    def pick(self, cpus: int, count: int) -> int | None:
        """Pick so many out of these CPUs; None when they are too few."""
        chosen = cpus & self.candidates
        if self.wide:
            each = _candidates(self.layout, chosen, self.idle & chosen or chosen, full=False)
            chosen = each if each.bit_count() >= count else chosen
        request = replace(self.request, count=count)
        if self.downgrades and request.avoid_numas and not self._has_clean_numa(chosen, count):
            request = replace(request, avoid_numas=False, avoid_cores=True)
        if self.required and request.full_cores and self.layout.odd_cores:
            return self._cores_of_any_size(request, chosen)
        return pick(self.layout, request, chosen, self.pinned.held, preferred=self.idle)

    def _cores_of_any_size(self, request: PickRequest, cpus: int) -> int | None:
        """Return whole cores, idle ones as far as they add up."""
        whole = [core.cpus for core in self.layout.cores if not core.cpus & ~cpus]
        idle = [core for core in whole if not core & ~self.idle]
        avoided = self._avoided(request)
        for free in (idle, [*idle, *(core for core in whole if core & ~self.idle)]):
            chosen = _whole_cores_of_any_size(self.layout, request, free, avoided)
            if chosen is not None:
                return chosen
        return None

    def _avoided(self, request: PickRequest) -> int:
        if request.avoid_cores:
            return self.pinned.held.exclusive_cores
        return self.pinned.held.exclusive_numas if request.avoid_numas else 0

    def _has_clean_numa(self, cpus: int, count: int) -> bool:
        clean = cpus & ~self.pinned.held.exclusive_numas
        return any((clean & numa.cpus).bit_count() >= count for numa in self.layout.numas)

    def refusal(self) -> Unfit:
        """Say that the node has too few CPUs."""
        return Unfit(
            reason=reasons.INSUFFICIENT_CPUS.text,
            requested=self.request.count,
            available=self.available.bit_count(),
            unit=UNIT_CPUS,
            preemptible=self.request.count <= self.may_be_had.bit_count(),
        )


def choose_cpus(
    demand: CpuSetDemand,
    node: NodeFacts,
    pinned: Pinned = NOTHING_PINNED,
    settings: CpuSettings = _DEFAULTS,
) -> CpuSet | Unfit:
    """
    Choose exactly `demand.cpus` CPUs of a node, as the release does.

    Rule: Koordinator contract 6.2, 6.3, 6.4 and 6.6. The exclusive policy is soft.
    """
    search = search_cpus(demand, node, pinned, settings)
    if isinstance(search, Unfit):
        return search
    chosen = search.anywhere()
    return search.refusal() if chosen is None else CpuSet(mask=chosen)


def search_cpus(
    demand: CpuSetDemand, node: NodeFacts, pinned: Pinned, settings: CpuSettings
) -> CpuSearch | Unfit:
    """
    Return what a Pod may choose from on a node, or which policy is against it.

    Rule: Koordinator contract 6.2 and 6.3. A node's own bind policy must hold: a Pod's preferred
    policy gives way, another required one is refused. CPU proposal, QoS principles 2 and 3: LSE
    Pods share no CPU; others share one only where no idle one is left.
    """
    topology = node.cpu_topology
    if topology is None or not topology:
        return Unfit(reason=reasons.NO_CPU_TOPOLOGY.text, preemptible=False)
    effective = _under_node_policy(demand, node, settings)
    if isinstance(effective, Unfit):
        return effective
    demand = effective
    layout = layout_of(topology)
    full = demand.bind_policy == CpuBindPolicy.FULL_PCPUS
    whole_cores = full and demand.required
    if whole_cores and demand.cpus % layout.threads_per_core:
        return Unfit(
            reason=NOT_WHOLE_CORES, requested=demand.cpus, unit=UNIT_CPUS, preemptible=False
        )
    may_be_had = layout.cpus & ~node.reserved_cpus.mask
    available = may_be_had & ~pinned.closed_to(alone=demand.alone)
    idle = available & ~pinned.any
    candidates = available
    if demand.required:
        candidates = _candidates(layout, available, idle, full=full)
        idle = cpus_of_free_cores(layout, idle) if full else idle & candidates
    strategy = node.numa_strategy or settings.numa_allocate_strategy
    return CpuSearch(
        layout=layout,
        request=PickRequest(
            count=demand.cpus,
            full_cores=full,
            most_allocated=strategy == NumaAllocateStrategy.MOST_ALLOCATED,
            avoid_cores=demand.exclusive_policy == CpuExclusivePolicy.PCPU_LEVEL,
            avoid_numas=demand.exclusive_policy == CpuExclusivePolicy.NUMA_NODE_LEVEL,
        ),
        required=demand.required,
        pinned=pinned,
        may_be_had=may_be_had,
        available=available,
        candidates=candidates,
        idle=idle if idle != candidates else 0,
        unit=layout.threads_per_core if whole_cores else 1,
        evenly=strategy == NumaAllocateStrategy.DISTRIBUTE_EVENLY,
        wide=not (full or demand.required) and settings.spread_over_numa_nodes,
        downgrades=settings.numa_level_downgrades,
    )


def demand_on(request: PodRequest, node: NodeFacts) -> CpuSetDemand | None:
    """
    Return the CPUs that a Pod has to itself on this node; None = it shares.

    Rule: CPU proposal, "CPU bind policy" (a node's is equivalent to kubelet's option, which is
    about Guaranteed Pods with whole CPUs) and basic principle 2.1: others stay in the shared pool.
    """
    if request.cpuset is not None or not node.cpu_bind_policy or not request.bound_cpus:
        return request.cpuset
    return CpuSetDemand(
        cpus=request.bound_cpus,
        bind_policy=node.cpu_bind_policy,
        required=True,
        exclusive_policy=CpuExclusivePolicy.NONE,
    )


def bind_policy_on(request: PodRequest, node: NodeFacts, settings: CpuSettings) -> str:
    """Return the bind policy that counts for a Pod with CPUs of its own on this node."""
    demand = demand_on(request, node)
    effective = None if demand is None else _under_node_policy(demand, node, settings)
    return effective.bind_policy if isinstance(effective, CpuSetDemand) else ""


def _under_node_policy(
    demand: CpuSetDemand, node: NodeFacts, settings: CpuSettings
) -> CpuSetDemand | Unfit:
    """
    Return the demand as the node's policy lets it be.

    Rule: Koordinator contract 6.2; CPU proposal, "Resource spec", for ARM and for nodes that hand
    out whole cores only.
    """
    policy, spreads = node.cpu_bind_policy, demand.bind_policy == CpuBindPolicy.SPREAD_BY_PCPUS
    if policy and demand.bind_policy != policy:
        avoids = spreads and settings.spread_avoids_whole_cores
        if demand.required or avoids:
            return Unfit(reason=BIND_POLICY_CONFLICT, preemptible=False)
    if policy:
        demand = replace(demand, bind_policy=policy, required=True)
    if settings.arm_full_pcpus_only and node.labels.get(LABEL_ARCH) in {"arm64", "arm"}:
        if demand.required and spreads:
            return Unfit(reason=BIND_POLICY_CONFLICT, preemptible=False)
        cores = demand.exclusive_policy == CpuExclusivePolicy.PCPU_LEVEL
        return replace(
            demand,
            bind_policy=CpuBindPolicy.FULL_PCPUS,
            exclusive_policy=CpuExclusivePolicy.NONE if cores else demand.exclusive_policy,
        )
    return demand


def _candidates(layout: CpuLayout, available: int, idle: int, *, full: bool) -> int:
    """Return the CPUs that a required policy lets be chosen: whole cores, or one of each."""
    if full:
        return cpus_of_free_cores(layout, available)
    if idle == available:
        return one_of_each_core(layout, available)
    held = available & ~around(layout.core_cpus, idle)
    return one_of_each_core(layout, idle) | one_of_each_core(layout, held)


def _whole_cores_of_any_size(
    layout: CpuLayout, request: PickRequest, free: list[int], avoided: int
) -> int | None:
    """
    Return whole cores of exactly so many CPUs on a machine whose cores are not alike.

    The release counts such a machine's cores by their mean and hands out halves. Here: one NUMA
    node if one has them, else one socket, else the machine; the lowest cores that add up. Each of
    these is tried without the CPUs to be avoided first, and in the order of the strategy.
    """
    sign = 1 if request.most_allocated else -1
    for places in ([numa.cpus for numa in layout.numas], layout.sockets, (layout.cpus,)):
        for allowed in (~avoided, -1):
            found = [[core for core in free if core & place & allowed] for place in places]
            for cores in sorted(found, key=lambda cores: sign * sum(map(int.bit_count, cores))):
                chosen = _adding_up(cores, request.count)
                if chosen is not None:
                    return chosen
    return None


def _adding_up(cores: Iterable[int], count: int) -> int | None:
    sums = {0: 0}  # CPUs so far -> the cores; the first way to a sum is kept
    for core in cores:
        size = core.bit_count()
        for had, chosen in sorted(sums.items()):
            if had + size <= count and had + size not in sums:
                sums[had + size] = chosen | core
    return sums.get(count)


def distribute(count: int, free: Mapping[int, int], unit: int, pick: Pick) -> int | None:
    """
    Return CPUs (a mask) in even parts from the fewest NUMA nodes, None when none of them fit.

    Rule: Koordinator contract, quirk Q8; CPU proposal, `DistributeEvenly` and kubelet's
    `distribute-cpus-across-numa`, whose balance it keeps: of equally many NUMA nodes those are
    taken that leave the machine's NUMA nodes the most alike, the lowest ids among equals.

    >>> parts_of(8, {0: 6, 1: 6, 2: 3}, 2)
    {0: 4, 1: 4}

    Args:
        free: NUMA node -> CPUs that may be chosen there.
        unit: what parts are multiples of: CPUs of a core for FullPCPUs.
    """
    parts = parts_of(count, free, unit)
    if parts is None:
        return None
    chosen = 0
    for node, part in parts.items():
        cpus = pick(node, part)
        if cpus is None:
            return None
        chosen |= cpus
    return chosen


def parts_of(count: int, free: Mapping[int, int], unit: int) -> dict[int, int] | None:
    """Return NUMA node -> CPUs to take there, by node; None when no set of nodes has them."""
    if len(free) > NUMA_NODES_MAX:
        return None
    for size in range(1, len(free) + 1):
        found = [
            parts
            for nodes in combinations(sorted(free), size)
            for parts in _even_parts(count, free, nodes, unit)
        ]
        if found:
            return min(found, key=lambda parts: _unevenness(free, parts))
    return None


def _even_parts(
    count: int, free: Mapping[int, int], nodes: Sequence[int], unit: int
) -> Iterator[dict[int, int]]:
    """Yield the ways to part `count` over just these nodes; they differ in who takes the rest."""
    each = count // len(nodes) // unit * unit
    rest = count - each * len(nodes)
    units, odd = divmod(rest, unit)
    for more in combinations(nodes, units + bool(odd)):
        for last in reversed(more) if odd else nodes[:1]:
            parts = {node: each + unit * (node in more) for node in nodes}
            if odd:  # less than a unit is left, and one node takes it
                parts[last] -= unit - odd
            if all(parts[node] <= free[node] for node in nodes):
                yield {node: part for node, part in parts.items() if part}


def _unevenness(free: Mapping[int, int], parts: Mapping[int, int]) -> int:
    """Return how unlike the NUMA nodes are afterwards; their sum is the same for all parts."""
    return sum((left - parts.get(node, 0)) ** 2 for node, left in free.items())
