"""Whether kubelet would reject a Pod after it was scheduled: the rules of its own CPU Manager."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ledger.domain.annotations.cpu import NumaPolicy
from ledger.domain.kube.pod_spec import INIT, pod_total
from ledger.domain.nodes import KubeletPolicy, NodeFacts
from ledger.domain.request.requests import ContainerCpus, PodRequest
from scheduler.decide.cpusets.choose import NOT_WHOLE_CORES, UNIT_CPUS
from scheduler.decide.cpusets.layout import CpuLayout, around, layout_of
from scheduler.decide.cpusets.pinned import Pinned
from scheduler.decide.numa.merge import masks_of
from scheduler.decide.outcome import Unfit
from scheduler.decide.refusal import reasons

_CPU: Final = "cpu"
_STATES_MAX: Final = 2_000
"""How many ways kubelet may have placed the first containers; beyond it the Pod is refused."""

Free = tuple[int, ...]
"""CPUs by place of the NUMA node."""


class _State(NamedTuple):
    """What is free, and what init containers leave to later containers of the Pod."""

    free: Free
    reusable: Free


def kubelet_admits(
    policy: KubeletPolicy, layout: CpuLayout, containers: Sequence[ContainerCpus], free: int
) -> bool:
    """
    Tell whether kubelet admits the containers whatever CPUs it chooses where it has a choice.

    Rule: CPU proposal, Story 3. Kubelet prefers as few NUMA nodes as the container's CPUs would
    need on an empty machine, reserved CPUs counted, and rejects what has to take more; under
    SingleNUMANode more than one, too. Of such sets it takes the lowest with enough CPUs left.

    Args:
        free: CPUs that kubelet has given to nobody, a mask.
    """
    numas = _Numas(layout, single=policy.numa_policy is NumaPolicy.SINGLE_NUMA_NODE)
    start = _State(
        tuple((numa.cpus & free).bit_count() for numa in layout.numas), (0,) * len(layout.numas)
    )
    if policy.pod_scope:
        return numas.chosen(total_of(containers), start) is not None
    if layout.odd_cores and len(containers) > 1:
        return False  # kubelet counts such cores by their mean, and may take more than was asked
    states = {start}
    for number, container in enumerate(containers, start=1):
        later: set[_State] = set()
        for state in states:
            places = numas.chosen(container.cpus, state)
            if places is None:
                return False
            if number < len(containers):
                after = _after(state, places, container)
                if after is None:
                    return False
                later |= after
        if len(later) > _STATES_MAX:
            return False
        states = later
    return True


def total_of(containers: Sequence[ContainerCpus]) -> int:
    """Return the CPUs that the containers need at once."""
    return pod_total((each.kind, {_CPU: each.cpus}) for each in containers).get(_CPU, 0)


def fewest_numas(layout: CpuLayout, cpus: int) -> int:
    """Return how many NUMA nodes of an empty machine hold so many CPUs; all, if none do."""
    largest = sorted((numa.cpus.bit_count() for numa in layout.numas), reverse=True)
    sums = (sum(largest[:count]) for count in range(1, len(largest) + 1))
    return next((count for count, held in enumerate(sums, start=1) if held >= cpus), len(largest))


class _Numas:
    """The NUMA nodes of a machine as kubelet chooses among them."""

    def __init__(self, layout: CpuLayout, *, single: bool) -> None:
        self._layout = layout
        self._single = single
        self._places: Mapping[int, int] = {
            numa.id: place for place, numa in enumerate(layout.numas)
        }

    def chosen(self, cpus: int, state: _State) -> tuple[int, ...] | None:
        """Return the places of the NUMA nodes that kubelet takes, None where it rejects."""
        size = fewest_numas(self._layout, cpus)
        if self._single and size > 1:
            return None
        reusable = sum(state.reusable)
        for places in self._sets(size):
            inside = sum(state.reusable[place] for place in places)
            if inside == reusable and inside + sum(state.free[p] for p in places) >= cpus:
                return places
        return None

    def _sets(self, size: int) -> Iterator[tuple[int, ...]]:
        """Yield the sets of so many NUMA nodes, the lowest ids first, as kubelet compares them."""
        for mask in masks_of(list(self._places)):
            if mask.bit_count() == size:
                yield tuple(place for numa, place in self._places.items() if mask >> numa & 1)


def _after(state: _State, places: Sequence[int], container: ContainerCpus) -> set[_State] | None:
    """
    Return every state that the container's CPUs may leave; None where they are too many.

    What an init container took can be had again by the next ones; an app container or a sidecar
    keeps what it took.
    """
    parts = {(container.cpus, state)}
    for place in places:
        last = place == places[-1]
        parts = {
            part
            for left, before in parts
            for part in _taken(left, before, place, init=container.kind == INIT, last=last)
        }
        if len(parts) > _STATES_MAX:
            return None
    return {after for _, after in parts}


def _taken(
    left: int, before: _State, place: int, *, init: bool, last: bool
) -> Iterator[tuple[int, _State]]:
    has = before.reusable[place]
    for fresh in range(min(left, before.free[place]) + 1):
        most = min(left - fresh, has)
        for again in range(left - fresh if last else 0, most + 1):
            free = _changed(before.free, place, -fresh)
            reusable = _changed(before.reusable, place, fresh if init else -again)
            yield left - fresh - again, _State(free, reusable)


def _changed(amounts: Free, place: int, by: int) -> Free:
    return (*amounts[:place], amounts[place] + by, *amounts[place + 1 :])


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
