"""What Pods hold of one node's CPUs, as the picker reads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from ledger.domain.annotations.cpu import CpuExclusivePolicy
from ledger.domain.nodes import NodeFacts
from scheduler.decide.cpusets.layout import around, bits, layout_of
from scheduler.decide.cpusets.picker import NOTHING_HELD, CpusHeld


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinned:
    """
    The CPUs of one node that have holders.

    Rule: Koordinator contract 6.3.

    Attributes:
        refs: logical CPU -> holders; CPUs without one are missing.
        full: CPUs that no further Pod may hold.
        alone: CPUs whose holder shares them with nobody.
        holders: what each Pod holds, a mask.
        held: the same for the picker.
    """

    refs: Mapping[int, int] = field(default_factory=dict)
    full: int = 0
    alone: int = 0
    holders: tuple[int, ...] = ()
    held: CpusHeld = NOTHING_HELD

    @property
    def any(self) -> int:
        """CPUs that some Pod holds."""
        mask = 0
        for cpus in self.holders:
            mask |= cpus
        return mask

    def closed_to(self, *, alone: bool) -> int:
        """Return the CPUs that a Pod may not hold; one that shares none may hold idle ones."""
        return self.any if alone else self.full


NOTHING_PINNED: Final = Pinned()


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuHolding:
    """
    One Pod's CPUs (a mask) and its exclusive policy.

    Rule: CPU proposal, QoS principle 2: `alone` (LSE), they have no other holder, whatever the
    reference count.
    """

    cpus: int
    exclusive_policy: str = CpuExclusivePolicy.NONE
    alone: bool = False


def pinned_of(node: NodeFacts, holdings: Iterable[CpuHolding]) -> Pinned:
    """
    Return what these Pods hold of the node's CPUs.

    CPUs that the node does not list count in `refs` alone: kubelet may pin what no topology says.
    """
    refs: dict[int, int] = {}
    by_policy = {CpuExclusivePolicy.PCPU_LEVEL: 0, CpuExclusivePolicy.NUMA_NODE_LEVEL: 0}
    holders, alone = [], 0
    for holding in holdings:
        holders.append(holding.cpus)
        alone |= holding.cpus if holding.alone else 0
        for cpu in bits(holding.cpus):
            refs[cpu] = refs.get(cpu, 0) + 1
        if holding.exclusive_policy in by_policy:
            by_policy[CpuExclusivePolicy(holding.exclusive_policy)] |= holding.cpus
    most = node.cpu_ref_count_max
    full = alone | sum(1 << cpu for cpu, count in refs.items() if count >= most)
    if node.cpu_topology is None:
        return Pinned(refs=refs, full=full, alone=alone, holders=tuple(holders))
    layout = layout_of(node.cpu_topology)
    cores = by_policy[CpuExclusivePolicy.PCPU_LEVEL] & layout.cpus
    numas = by_policy[CpuExclusivePolicy.NUMA_NODE_LEVEL] & layout.cpus
    held = CpusHeld(
        refs=refs if most > 1 else {},
        exclusive_cores=around(layout.core_cpus, cores),
        exclusive_numas=around(layout.numa_cpus, numas),
    )
    return Pinned(refs=refs, full=full, alone=alone, holders=tuple(holders), held=held)
