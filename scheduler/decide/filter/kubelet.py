"""Whether kubelet would reject a Pod after it was scheduled: the rules of its own CPU Manager."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import ContainerCpus, PodRequest
from scheduler.decide.cpusets.choose import NOT_WHOLE_CORES, UNIT_CPUS
from scheduler.decide.cpusets.layout import CpuLayout, around, layout_of
from scheduler.decide.cpusets.pinned import Pinned
from scheduler.decide.filter.kubelet_hints import kubelet_admits, total_of
from scheduler.decide.outcome import Unfit
from scheduler.decide.refusal import reasons


def kubelet_rejects(request: PodRequest, facts: NodeFacts, pinned: Pinned) -> Unfit | None:
    """
    Say why kubelet would not run the Pod on this node, None if it would.

    Rule: CPU proposal, "CPU bind policy" (SMT alignment) and Story 3 (its Topology Manager).
    Kubelet looks at each container of a Guaranteed Pod that asks for whole CPUs, and at no other.

    What kubelet has left is what no Pod holds: the agent writes CPUs that we gave into kubelet's
    own state (CPU proposal, "Create/Update NodeResourceTopology").
    """
    kubelet, topology = facts.kubelet, facts.cpu_topology
    if kubelet is None or not topology or not request.kubelet_cpus:
        return None
    layout = layout_of(topology)
    free = layout.cpus & ~kubelet.kept.mask & ~pinned.any
    if kubelet.whole_cores:
        beside_reserved = around(layout.core_cpus, kubelet.reserved.mask & layout.cpus)
        uneven = _uneven(request.kubelet_cpus, layout, free & ~beside_reserved)
        if uneven is not None:
            return uneven
    if not kubelet.numa_policy or kubelet_admits(kubelet, layout, request.kubelet_cpus, free):
        return None
    empty = layout.cpus & ~kubelet.reserved.mask
    return Unfit(
        reason=reasons.KUBELET_UNALIGNED.text,
        requested=total_of(request.kubelet_cpus),
        unit=UNIT_CPUS,
        preemptible=kubelet_admits(kubelet, layout, request.kubelet_cpus, empty),
    )


def _uneven(containers: Sequence[ContainerCpus], layout: CpuLayout, free: int) -> Unfit | None:
    """
    Say which container has no whole cores.

    Kubelet counts CPUs that are not beside reserved ones, and forgets that an init container's
    are free again.
    """
    left = free.bit_count()
    for container in containers:
        if container.cpus % layout.threads_per_core:
            return Unfit(
                reason=NOT_WHOLE_CORES, requested=container.cpus, unit=UNIT_CPUS, preemptible=False
            )
        if container.cpus > left:
            return Unfit(
                reason=reasons.INSUFFICIENT_CPUS.text,
                requested=container.cpus,
                available=left,
                unit=UNIT_CPUS,
            )
        left -= container.cpus
    return None
