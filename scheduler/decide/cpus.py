"""Exclusive logical CPUs of one node, taken first-fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, zip_longest
from typing import Final

from ledger.domain.annotations.cpu import CpuBindPolicy
from ledger.domain.cpuset import EMPTY, CpuSet, cpuset_of
from ledger.domain.requests import CpuSetDemand
from ledger.domain.topology import CpuTopology
from scheduler.decide import reasons
from scheduler.decide.outcome import Unfit

NOT_WHOLE_CORES: Final = "node(s) requested cpus not multiple cpus per core"
BIND_POLICY_CONFLICT: Final = (
    "node(s) cpu bind policy conflicts with pod's required cpu bind policy"
)

UNIT_CPUS: Final = "cpus"


def choose_cpus(
    demand: CpuSetDemand,
    topology: CpuTopology | None,
    cpu_refs: Mapping[int, int],
    reserved: CpuSet,
    max_ref_count: int,
    *,
    node_policy: str = "",
) -> CpuSet | Unfit:
    """
    Choose exactly `demand.cpus` available CPUs, close together.

    Rule: Koordinator contract 6.2 and 6.3; the places of 6.4 without its scores and filters.

    One NUMA node if one serves the policy, else one socket, else the machine, each lowest id
    first; in a place the lowest cores first. FullPCPUs takes wholly free cores, SpreadByPCPUs
    one CPU of each core. A preferred policy is given up where no place serves it, the exclusive
    policy is a wish that this picker does not read.

    Args:
        cpu_refs: logical CPU -> Pods that hold it; one with `max_ref_count` is not available.
        reserved: never handed out.
        node_policy: the node's own (`NodeFacts.cpu_bind_policy`), which then must hold; a Pod's
            preferred policy gives way, another required one is refused.
    """
    if topology is None or not len(topology):
        return Unfit(reason=reasons.NO_CPU_TOPOLOGY.text, preemptible=False)
    if node_policy and demand.required and demand.bind_policy != node_policy:
        return Unfit(reason=BIND_POLICY_CONFLICT, preemptible=False)
    if node_policy:
        demand = replace(demand, bind_policy=node_policy, required=True)
    full = demand.bind_policy == CpuBindPolicy.FULL_PCPUS
    if full and demand.required and demand.cpus % topology.threads_per_core:
        return Unfit(
            reason=NOT_WHOLE_CORES, requested=demand.cpus, unit=UNIT_CPUS, preemptible=False
        )
    held = cpuset_of(cpu for cpu, refs in cpu_refs.items() if refs >= max_ref_count)
    available = topology.cpuset - reserved - held
    for place, strict in _places(topology, demand, full=full):
        cores = _free_cores(topology, available & place)
        if full:
            chosen = _take_full(topology, cores, demand, strict=strict)
        else:
            chosen = _take_spread(cores, demand.cpus, strict=strict)
        if len(chosen) == demand.cpus:
            return chosen
    return Unfit(
        reason=reasons.INSUFFICIENT_CPUS.text,
        requested=demand.cpus,
        available=len(available),
        unit=UNIT_CPUS,
        preemptible=demand.cpus <= len(topology.cpuset - reserved),
    )


def _places(
    topology: CpuTopology, demand: CpuSetDemand, *, full: bool
) -> Iterator[tuple[CpuSet, bool]]:
    """
    Yield where to look, and whether the policy must hold there, in the order of trying.

    Rule: Koordinator contract 6.4: FullPCPUs looks for whole cores everywhere before it takes
    odd CPUs; SpreadByPCPUs rather doubles up on cores than leaves a NUMA node.
    """
    levels = (
        [topology.cpus_in_numa(numa) for numa in topology.numa_nodes],
        [topology.cpus_in_socket(socket) for socket in topology.sockets],
        [topology.cpuset],
    )
    if demand.required:
        order = [(level, True) for level in levels]
    elif full:
        order = [*((level, True) for level in levels), (levels[-1], False)]
    else:
        order = [(level, strict) for level in levels for strict in (True, False)]
    return ((place, strict) for level, strict in order for place in level)


def _free_cores(topology: CpuTopology, free: CpuSet) -> list[CpuSet]:
    """Return the free CPUs of each core that has any, by NUMA node, then core."""
    cores = [cpus for core in topology.cores if (cpus := topology.cpus_in_core(core) & free)]
    return sorted(cores, key=lambda cpus: topology.cpu(next(iter(cpus))).numa)


def _take_full(
    topology: CpuTopology, cores: Sequence[CpuSet], demand: CpuSetDemand, *, strict: bool
) -> CpuSet:
    """Take wholly free cores, a part of the last unless required; not strict: then odd CPUs."""
    whole = [cpus for cpus in cores if _is_whole(topology, cpus)]
    if demand.required:
        chosen = EMPTY
        for cpus in whole:  # cores may differ in size: one that is too large is passed over
            if len(chosen) + len(cpus) <= demand.cpus:
                chosen |= cpus
        return chosen
    odd = () if strict else [cpus for cpus in cores if not _is_whole(topology, cpus)]
    return cpuset_of(list(chain.from_iterable((*whole, *odd)))[: demand.cpus])


def _take_spread(cores: Sequence[CpuSet], count: int, *, strict: bool) -> CpuSet:
    """Take the first free CPU of every core; not strict: then the second of each, and so on."""
    rounds = list(zip_longest(*cores))
    if strict:
        rounds = rounds[:1]
    taken = [cpu for cpus in rounds for cpu in cpus if cpu is not None]
    return cpuset_of(taken[:count])


def _is_whole(topology: CpuTopology, cpus: CpuSet) -> bool:
    core = topology.cpu(next(iter(cpus))).core_id
    return cpus == topology.cpus_in_core(core)
