"""CPUs, memory and devices of one Pod out of the same NUMA nodes of one node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, NamedTuple

from msgspec import Struct

from ledger.domain.annotations.cpu import CpuSharedPool, NumaExclusive, NumaPolicy
from ledger.domain.annotations.node_cpu import NumaAllocateStrategy, numa_policy_of
from ledger.domain.annotations.qos import QosClass
from ledger.domain.cpuset import EMPTY, CpuSet
from ledger.domain.devices import GPU
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.cpusets.choose import CpuSearch, demand_on, search_cpus
from scheduler.decide.cpusets.layout import layout_of
from scheduler.decide.cpusets.pinned import Pinned
from scheduler.decide.filter.kubelet import fewest_numas, total_of
from scheduler.decide.numa.merge import (
    DEVICE_CHOICE_SCORE,
    Exclusivity,
    NumaHint,
    hints_of,
    masks_of,
    merge,
)
from scheduler.decide.numa.state import NUMA_NODES_MAX, NumaLoad, NumaNode, numa_nodes_of
from scheduler.decide.outcome import CardView, NumaPart, Unfit
from scheduler.decide.refusal import reasons
from scheduler.decide.settings import CpuSettings

CPU: Final = "cpu"
MEMORY: Final = "memory"
_STRICT: Final = frozenset({NumaPolicy.RESTRICTED, NumaPolicy.SINGLE_NUMA_NODE})
_POOLED: Final = frozenset({QosClass.LS, QosClass.NONE})
"""The QoS classes whose Pods run in the shared pools (contract 2.2)."""

ChooseDevices = Callable[[NodeView], Choice | Unfit]
Parts = tuple[NumaPart, ...]
_NO_DEVICES: Final = Choice()
FULL_SCORE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNow:
    """
    A node at one moment.

    Attributes:
        choose_devices: the card choice, over whatever cards a view holds.
    """

    view: NodeView
    load: NumaLoad
    choose_devices: ChooseDevices


class Alignment(Struct, frozen=True, kw_only=True):
    """
    What a node gives a Pod.

    Attributes:
        parts: by NUMA node; empty when nothing was aligned.
    """

    choice: Choice = _NO_DEVICES
    cpuset: CpuSet = EMPTY
    parts: Parts = ()
    shared_pools: tuple[CpuSharedPool, ...] = ()


def effective_policy(
    request: PodRequest, facts: NodeFacts, settings: CpuSettings
) -> NumaPolicy | Unfit:
    """
    Return the policy that counts for a Pod on a node.

    Rule: Koordinator contract 7: the node's; the Pod's own where the node has none; two that
    differ exclude each other. CPU proposal: the settings' where nobody has one.
    """
    own = NumaPolicy.NONE if request.numa is None else request.numa.policy
    if own and facts.numa_policy and own is not facts.numa_policy:
        return Unfit(reason=reasons.NUMA_POLICY_CONFLICT.text, preemptible=False)
    return facts.numa_policy or own or numa_policy_of(settings.default_numa_topology_policy)


def align(
    policy: NumaPolicy, request: PodRequest, node: NodeNow, settings: CpuSettings
) -> Alignment | Unfit:
    """
    Choose NUMA nodes that serve every resource of the Pod, and the Pod's resources there.

    Rule: Koordinator contract 7.

    BestEffort never refuses what an unaligned choice would give.
    """
    aligner = _Aligner(policy, request, node, settings)
    unaligned = aligner.unaligned()
    if isinstance(unaligned, Unfit):
        return unaligned
    if not aligner.numas:
        if policy is NumaPolicy.BEST_EFFORT:
            return unaligned
        return Unfit(reason=reasons.NO_NUMA_NODES.text, preemptible=False)
    required = request.numa is not None and request.numa.exclusive is NumaExclusive.REQUIRED
    uses = {numa.id: numa.use for numa in aligner.numas}
    merged = merge(
        policy,
        aligner.hints(unaligned.choice, _preferred(policy, request, node, settings)),
        [numa.id for numa in aligner.numas],
        Exclusivity(required=required, uses=uses),
    )
    if merged.reasons:
        return Unfit(reason=", ".join(merged.reasons), preemptible=True)
    if merged.nodes is None:
        return unaligned
    aligned = aligner.on(merged.nodes)
    if isinstance(aligned, Unfit) and policy is NumaPolicy.BEST_EFFORT:
        return unaligned
    return aligned


def _preferred(
    policy: NumaPolicy, request: PodRequest, node: NodeNow, settings: CpuSettings
) -> Callable[[str], int | None]:
    """
    Return how many NUMA nodes a resource is preferred on: 0 = any number, None = the fewest.

    Rule: CPU proposal, "NUMA topology alignment policy": a node's Restricted is Kubernetes', which
    prefers as few as the resource needs of an empty machine. A Pod's own is Koordinator's, contract
    7, which prefers every set.
    """
    if policy is not NumaPolicy.RESTRICTED:
        return lambda _name: None
    if request.numa is not None and not node.view.facts.numa_policy:
        return lambda _name: 0
    cards = tuple(card.emptied() for card in node.view.cards)
    empty = replace(node, view=replace(node.view, cards=cards), load=NumaLoad())
    hints = _Aligner(policy, request, empty, settings).hints(_NO_DEVICES, lambda _name: None)
    return {name: found[0].nodes.bit_count() for name, found in hints.items() if found}.get


class _Aligner:
    """One Pod on one node: what every set of NUMA nodes could give it."""

    def __init__(
        self, policy: NumaPolicy, request: PodRequest, node: NodeNow, settings: CpuSettings
    ) -> None:
        self._policy = policy
        self._request = request
        self._view = node.view
        self._load = node.load
        self._settings = settings
        self._strategy = node.view.facts.numa_strategy or settings.numa_allocate_strategy
        self._choose_devices = node.choose_devices
        self.numas = numa_nodes_of(node.view.facts, node.load)

    @cached_property
    def _search(self) -> CpuSearch | Unfit | None:
        demand = demand_on(self._request, self._view.facts)
        if demand is None:
            return None
        return search_cpus(demand, self._view.facts, self._load.pinned, self._settings)

    def unaligned(self) -> Alignment | Unfit:
        """Return what the Pod would get without a NUMA policy."""
        choice = self._choose_devices(self._view) if self._request.devices else _NO_DEVICES
        if isinstance(choice, Unfit):
            return choice
        search = self._search
        if search is None:
            return Alignment(choice=choice)
        if isinstance(search, Unfit):
            return search
        chosen = search.anywhere()
        if chosen is None:
            return search.refusal()
        return Alignment(choice=choice, cpuset=CpuSet(mask=chosen))

    def hints(
        self, unaligned: Choice, preferred: Callable[[str], int | None]
    ) -> dict[str, tuple[NumaHint, ...]]:
        """Return the hints of every resource that the Pod asks for and the node reports."""
        ids = [numa.id for numa in self.numas]
        masks = list(masks_of(ids)) if len(ids) <= NUMA_NODES_MAX else _ends(ids)
        found: dict[str, tuple[NumaHint, ...]] = {}
        served = [mask for mask in masks if self._parts(self._in(mask)) is not None]
        for name, asked, has in self._amounts():
            if asked and any(has(numa) is not None for numa in self.numas):
                fitting = [mask for mask in served if all(has(numa) for numa in self._in(mask))]
                fewest = self._fewest() if name == CPU else None
                found[name] = hints_of(fitting, self._score, fewest or preferred(name))
        return found | self._device_hints(masks, unaligned, preferred)

    def _fewest(self) -> int | None:
        """Return how many NUMA nodes kubelet wants the CPUs on, None where it has no say."""
        facts, pinned = self._view.facts, self._request.kubelet_cpus
        kubelet, topology = facts.kubelet, facts.cpu_topology
        if kubelet is None or not kubelet.numa_policy or not topology or not pinned:
            return None
        if not kubelet.pod_scope and len(pinned) > 1:
            return None
        return fewest_numas(layout_of(topology), total_of(pinned))

    def on(self, nodes: int) -> Alignment | Unfit:
        """Return what the Pod gets out of just these NUMA nodes."""
        numas = self._in(nodes)
        choice = _NO_DEVICES
        if self._request.devices:
            answer = self._choose_devices(self._restricted(nodes))
            if isinstance(answer, Unfit):
                return answer
            choice = answer
        parts = self._parts(numas)
        if parts is None:
            return Unfit(reason=reasons.INSUFFICIENT_NUMA_CPU.text, preemptible=True)
        cpuset = self._picked(parts)
        if cpuset is None:
            return Unfit(reason=reasons.INSUFFICIENT_NUMA_CPU.text, preemptible=True)
        return Alignment(choice=choice, cpuset=cpuset, parts=parts, shared_pools=self._pools(parts))

    def _in(self, mask: int) -> list[NumaNode]:
        return [numa for numa in self.numas if mask >> numa.id & 1]

    def _amounts(self) -> Iterator[tuple[str, int, Callable[[NumaNode], int | None]]]:
        """Yield name, what the Pod asks, and what a NUMA node has left (None: does not say)."""
        own = self._search.request.count if isinstance(self._search, CpuSearch) else 0
        yield (
            CPU,
            self._view.facts.cpu_cost_milli(self._request.cpu_milli, own),  # own CPUs amplified
            lambda numa: None if numa.cpu_milli is None else numa.cpu_milli_free,
        )
        yield (
            MEMORY,
            self._request.memory_bytes,
            lambda numa: None if numa.memory_bytes is None else numa.memory_bytes_free,
        )

    def _parts(self, numas: Sequence[NumaNode]) -> Parts | None:
        """Return what each of these NUMA nodes would give of CPUs and memory."""
        cpu = self._split_cpu(numas)
        reporting = {
            numa.id: numa.memory_bytes_free for numa in numas if numa.memory_bytes is not None
        }
        memory = split(self._request.memory_bytes, reporting) if reporting else {}
        if cpu is None or memory is None:
            return None
        parts = tuple(
            NumaPart(
                node=numa.id,
                cpu_milli=cpu.get(numa.id, 0),
                memory_bytes=memory.get(numa.id, 0),
                pinned=self._search is not None,
            )
            for numa in numas
        )
        return None if self._picked(parts) is None else parts

    def _split_cpu(self, numas: Sequence[NumaNode]) -> Mapping[int, int] | None:
        """Return thousandths of CPUs by NUMA node, whole CPUs for a CPU set."""
        reporting = {numa.id: numa.cpu_milli_free for numa in numas if numa.cpu_milli is not None}
        search = self._search
        if search is None:
            return split(self._request.cpu_milli, reporting) if reporting else {}
        if isinstance(search, Unfit):
            return None
        each = 1000 * self._view.facts.cpu_amplification
        cpus = {
            numa.id: min(
                (search.candidates & numa.cpus).bit_count(), reporting.get(numa.id, 0) // each
            )
            for numa in numas
        }
        parts = split(search.request.count, cpus, search.unit)
        return None if parts is None else {node: count * 1000 for node, count in parts.items()}

    def _picked(self, parts: Parts) -> CpuSet | None:
        search = self._search
        if not isinstance(search, CpuSearch):
            return EMPTY
        own = {numa.id: numa.cpus for numa in self.numas}
        chosen = 0
        for part in parts:
            cpus = search.pick(own[part.node], part.cpu_milli // 1000)
            if cpus is None:
                return None
            chosen |= cpus
        return CpuSet(mask=chosen)

    def _score(self, mask: int) -> int:
        usages = []
        for name, asked, has in self._amounts():
            numas = [numa for numa in self._in(mask) if has(numa) is not None]
            if asked and numas:
                caps = (numa.cpu_milli if name == CPU else numa.memory_bytes for numa in numas)
                capacity = sum(cap or 0 for cap in caps)
                free = sum(has(numa) or 0 for numa in numas)
                usages.append(Usage(capacity=capacity, used=capacity - free, asked=asked))
        most = self._strategy == NumaAllocateStrategy.MOST_ALLOCATED
        return score(usages, most_allocated=most)

    def _device_hints(
        self, masks: Sequence[int], unaligned: Choice, preferred: Callable[[str], int | None]
    ) -> dict[str, tuple[NumaHint, ...]]:
        """
        Return the hints of every device type whose places are known.

        Rule: Koordinator contract 7: 500 for the GPUs that would be chosen without alignment.
        """
        types = {demand.device_type for demand in self._request.devices}
        located = {
            card.record.device_type for card in self._view.cards if _numa_of(card) >= 0
        } & types
        if not located:
            return {}
        wished = _gpus(unaligned)
        scores: dict[int, int] = {}
        for mask in masks:
            choice = self._choose_devices(self._restricted(mask))
            if isinstance(choice, Choice):
                scores[mask] = DEVICE_CHOICE_SCORE if _gpus(choice) == wished else 0
        return {
            device_type: hints_of(
                [mask for mask in scores if self._everywhere(device_type, mask)],
                scores.__getitem__,
                preferred(device_type),
            )
            for device_type in sorted(located)
        }

    def _everywhere(self, device_type: str, mask: int) -> bool:
        having = {
            _numa_of(card)
            for card in self._view.cards
            if card.record.device_type == device_type
            and not card.closed
            and (card.core_free > 0 or card.memory_free > 0)
        }
        return all(numa.id in having for numa in self._in(mask))

    def _restricted(self, mask: int) -> NodeView:
        """Return the node with the devices of these NUMA nodes, and those nobody can place."""
        cards = tuple(
            card for card in self._view.cards if _numa_of(card) < 0 or mask >> _numa_of(card) & 1
        )
        return replace(self._view, cards=cards)

    def _pools(self, parts: Parts) -> tuple[CpuSharedPool, ...]:
        qos = self._request.snapshot.qos
        if self._search is not None or self._policy not in _STRICT or qos not in _POOLED:
            return ()
        sockets = {numa.id: numa.sockets for numa in self.numas}
        return tuple(
            CpuSharedPool(socket=socket, node=part.node)
            for part in parts
            if part.cpu_milli
            for socket in sockets[part.node]
        )


def _ends(ids: Sequence[int]) -> list[int]:
    return [*(1 << node for node in ids), sum(1 << node for node in ids)]


def _numa_of(card: CardView) -> int:
    place = card.record.topology
    return -1 if place is None else place.numa_node


def _gpus(choice: Choice) -> frozenset[int]:
    return frozenset(share.minor for share in choice.shares if share.device_type == GPU)


def split(amount: int, available: Mapping[int, int], unit: int = 1) -> dict[int, int] | None:
    """
    Return NUMA node -> its part of `amount`, None when the nodes have not enough together.

    Rule: Koordinator contract 7, splitting a request over a mask; equal nodes by id (Q10).

    The node with the least comes first; each gets what it has, at most an even part of what is
    left, in whole units.

    >>> split(6, {0: 12, 1: 12}, unit=2)
    {0: 2, 1: 4}
    >>> split(5000, {0: 1500, 1: 9000})
    {0: 1500, 1: 3500}

    Args:
        amount: CPUs, thousandths of a CPU or bytes.
        available: NUMA node -> what it has left of them.
        unit: what a part is a multiple of: CPUs per core for whole cores.
    """
    parts: dict[int, int] = {}
    left = amount
    order = sorted(available, key=lambda node: (available[node], node))
    for place, node in enumerate(order):
        share = min(available[node], left // (len(order) - place))
        parts[node] = share - share % unit
        left -= parts[node]
    return None if left else parts


class Usage(NamedTuple):
    """One resource on a set of NUMA nodes: capacity, what is used, what the request adds."""

    capacity: int
    used: int
    asked: int


def score(usages: Sequence[Usage], *, most_allocated: bool) -> int:
    """
    Return the mean score of the resources, all weighted alike.

    Rule: Koordinator contract 7: Least (cap - req) * 100 / cap, Most req * 100 / cap, in whole
    numbers; the request counts as used and is cut at the capacity; above it Least gives 0.
    """
    if not usages:
        return 0
    return sum(_score(usage, most_allocated=most_allocated) for usage in usages) // len(usages)


def _score(usage: Usage, *, most_allocated: bool) -> int:
    if usage.capacity <= 0:
        return 0
    requested = min(usage.used + usage.asked, usage.capacity)
    part = requested if most_allocated else usage.capacity - requested
    return part * FULL_SCORE // usage.capacity


def burst_pools(
    limit_milli: int,
    facts: NodeFacts,
    pinned: Pinned,
    *,
    strategy: str,
    within: Sequence[int] | None = None,
) -> tuple[CpuSharedPool, ...] | Unfit:
    """
    Return the shared pools that hold a Pod's cpu limit, of the fewest NUMA nodes.

    Rule: CPU proposal, `ConstrainedBurst`: nodes are filtered by the Pod's limit; contract 9.4:
    what nobody has to himself and neither the node nor its system keeps. Equally many NUMA nodes
    go by the allocate strategy, then by id; of very many, the largest pools are looked at, and all.

    Args:
        within: the NUMA nodes that a NUMA policy chose; None = all.
    """
    if facts.cpu_topology is None or not facts.cpu_topology:
        return Unfit(reason=reasons.NO_CPU_TOPOLOGY.text, preemptible=False)
    topology = facts.cpu_topology
    free = layout_of(topology).cpus & ~facts.unpooled_cpus.mask & ~pinned.any
    sizes = {
        numa.id: facts.amplified(1000 * (numa.cpus & free).bit_count())
        for numa in layout_of(topology).numas
        if within is None or numa.id in within
    }
    sign = 1 if strategy == NumaAllocateStrategy.MOST_ALLOCATED else -1
    largest = sorted(sizes, key=lambda numa: (-sizes[numa], numa))[:NUMA_NODES_MAX]
    everywhere = sum(1 << numa for numa in sizes)
    fitting = [
        (mask.bit_count(), sign * held, mask)
        for mask in {*masks_of(largest), everywhere}
        if (held := sum(size for numa, size in sizes.items() if mask >> numa & 1)) >= limit_milli
    ]
    if not fitting:
        return Unfit(
            reason=reasons.INSUFFICIENT_POOL.text,
            requested=limit_milli,
            available=sum(sizes.values()),
            unit="milli",
        )
    chosen = min(fitting)[2]
    places = sorted({(cpu.socket, cpu.numa) for cpu in topology.cpus})
    return tuple(
        CpuSharedPool(socket=socket, node=numa) for socket, numa in places if chosen >> numa & 1
    )
