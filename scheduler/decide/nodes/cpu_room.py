"""What one node has left of CPUs, NUMA node by NUMA node, in words for `why`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ledger.domain.annotations.cpu import CpuBindPolicy
from ledger.domain.log.cpu_holders import holds_alone
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import CpuSetDemand, PodRequest
from scheduler.decide.cpusets.choose import demand_on
from scheduler.decide.cpusets.layout import Core, layout_of
from scheduler.decide.cpusets.picker import cpus_of_free_cores, one_of_each_core
from scheduler.decide.cpusets.pinned import CpuHolding, pinned_of
from scheduler.decide.nodes.adopted_cpus import numa_parts_of
from scheduler.decide.numa.state import NumaLoad, NumaNode, numa_nodes_of

_MIB: Final = 1 << 20
_NUMAS_SHOWN: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuRoom:
    """
    One node's CPUs and NUMA nodes as its holders leave them; CPUs are masks.

    Attributes:
        free: what one more Pod may hold.
        unheld: what nobody holds and neither the node nor its system keeps: the shared pools.
        whole: the CPUs of cores that are free altogether.
        one_each: one free CPU of every core.
        numas: with their cpu and memory left, by id.
    """

    facts: NodeFacts
    free: int = 0
    unheld: int = 0
    whole: int = 0
    one_each: int = 0
    numas: tuple[NumaNode, ...] = ()

    def candidates(self, demand: CpuSetDemand) -> int:
        """Return how many CPUs the demand's policy may choose from (contract 6.2)."""
        if not demand.required and not self.facts.cpu_bind_policy:
            return self.free.bit_count()
        policy = self.facts.cpu_bind_policy or demand.bind_policy
        full = policy == CpuBindPolicy.FULL_PCPUS
        return (self.whole if full else self.one_each).bit_count()

    def text_of(self, numa: NumaNode) -> str:
        """Return what a NUMA node has left: `3 whole cores, 7 CPUs, 4096 MiB`."""
        parts = []
        if numa.cpus:
            cores = [core.cpus for core in self._cores() if core.cpus & numa.cpus & self.whole]
            free = (numa.cpus & self.free).bit_count()
            parts = [_counted(len(cores), "whole core"), _counted(free, "CPU")]
            if numa.cpu_milli_free < self.facts.amplified(free * 1000):
                parts.append(f"{numa.cpu_milli_free}m not taken by shares")
            elif self.facts.cpu_amplification > 1:
                parts.append(f"{numa.cpu_milli_free}m cpu amplified")
        elif numa.cpu_milli is not None:
            parts = [f"{numa.cpu_milli_free}m cpu"]
        if numa.memory_bytes is not None:
            parts.append(f"{numa.memory_bytes_free // _MIB} MiB")
        return ", ".join(parts)

    def by_numa(self) -> str:
        """Return what every NUMA node has left, the first ones of very many."""
        texts = [f"NUMA {numa.id} has {self.text_of(numa)}" for numa in self.numas]
        return "; ".join(texts[:_NUMAS_SHOWN] + ["..."] * (len(texts) > _NUMAS_SHOWN))

    def pool_text(self) -> str:
        """Return the size of every NUMA node's shared pool."""
        return ", ".join(
            f"NUMA {numa.id} has {_counted((numa.cpus & self.unheld).bit_count(), 'CPU')}"
            for numa in self.numas
        )

    def _cores(self) -> Sequence[Core]:
        assert self.facts.cpu_topology is not None, "cores of no topology"
        return layout_of(self.facts.cpu_topology).cores


def load_of(facts: NodeFacts, holders: Iterable[PodObserved]) -> NumaLoad:
    """Return what these Pods hold of a node's CPUs and NUMA nodes."""
    held = [*holders]
    holdings = [
        CpuHolding(cpus=pod.cpuset.mask, alone=holds_alone(pod)) for pod in held if pod.cpuset
    ]
    return NumaLoad(
        pinned=pinned_of(facts, holdings),
        parts=tuple(part for pod in held for part in numa_parts_of(pod)),
    )


def room_of(facts: NodeFacts, load: NumaLoad, *, alone: bool = False) -> CpuRoom:
    """Return what its holders leave a Pod of a node; one that shares no CPU has idle ones."""
    pinned, numas = load.pinned, numa_nodes_of(facts, load)
    if facts.cpu_topology is None:
        return CpuRoom(facts=facts, numas=numas)
    layout = layout_of(facts.cpu_topology)
    free = layout.cpus & ~facts.reserved_cpus.mask & ~pinned.closed_to(alone=alone)
    return CpuRoom(
        facts=facts,
        free=free,
        unheld=layout.cpus & ~facts.unpooled_cpus.mask & ~pinned.any,
        whole=cpus_of_free_cores(layout, free),
        one_each=one_of_each_core(layout, free),
        numas=numas,
    )


def policy_text(request: PodRequest, facts: NodeFacts) -> str:
    """Return whose bind policy counts for a Pod's own CPUs, and what the node keeps back."""
    demand = demand_on(request, facts)
    parts = []
    if demand is not None and facts.cpu_bind_policy:
        parts.append(f"the node requires {facts.cpu_bind_policy}")
    elif demand is not None:
        word = "requires" if demand.required else "prefers"
        parts.append(f"the Pod {word} {demand.bind_policy}")
    if facts.reserved_cpus:
        parts.append(f"kept back CPUs {facts.reserved_cpus}")
    return "; ".join(parts)


def _counted(number: int, word: str) -> str:
    """Return `1 core`, `2 cores`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
