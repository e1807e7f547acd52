"""What one node gives one Pod: the last, exact word after the arrays have chosen the node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from msgspec import structs

from ledger.domain.annotations.cpu import CpuSharedPool, NumaPolicy
from ledger.domain.cpuset import EMPTY, CpuSet
from ledger.domain.devices import GPU, WHOLE_PERCENT, DeviceRecord, DeviceShare, ratio_to_bytes
from ledger.domain.request.requests import DeviceDemand, PodRequest, is_member
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.fit import LEAST_ALLOCATED
from scheduler.decide.cards.gpus import is_shaped
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.cpusets.choose import choose_cpus, demand_on
from scheduler.decide.filter.kubelet import kubelet_rejects
from scheduler.decide.nodes.arrays import IntArray
from scheduler.decide.nodes.devices import DeviceArrays
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.nodes.pins import CpuPins
from scheduler.decide.numa.align import (
    Alignment,
    ChooseDevices,
    NodeNow,
    align,
    burst_pools,
    effective_policy,
)
from scheduler.decide.numa.state import NumaLoad
from scheduler.decide.outcome import NOT_RATED, CardView, Placement, Rated, Unfit
from scheduler.decide.refusal import reasons
from scheduler.decide.score.policies import NodePolicy
from scheduler.decide.settings import SchedulingSettings
from scheduler.decide.shapes import Shape

_NO_DEVICES: Final = Choice()
_NO_CHOICE_OF_CARDS: Final = "scarcity"
"""The default policy: nobody chose its cards, as who sets `fgd` or `bestfit` does."""


class Allocator:
    """
    Chooses devices and CPUs on a node.

    A share of one GPU whose card the node policy names, and whole GPUs of a node that reports no
    links, places or partitions, are taken without building a view of the node; the answer is the
    one that `cards.choose` would give.
    """

    def __init__(
        self, arrays: NodeArrays, pins: CpuPins, policy: NodePolicy, settings: SchedulingSettings
    ) -> None:
        self._arrays = arrays
        self._pins = pins
        self._policy = policy
        self._settings = settings
        self._shaped = [is_shaped(node) for node in arrays.nodes]
        spreads = settings.devices.scoring == LEAST_ALLOCATED
        self._by_scoring = spreads and settings.node_policy == _NO_CHOICE_OF_CARDS

    def put(self, row: int) -> None:
        """Take a node as it is now."""
        self._shaped[row : row + 1] = [is_shaped(self._arrays.nodes[row])]

    def allocate(
        self,
        request: PodRequest,
        shape: Shape,
        row: int,
        node: int,
        *,
        only_minors: frozenset[int] | None = None,
        rated: Rated = NOT_RATED,
    ) -> Placement | Unfit:
        """Return the placement on the node at `row`, called `node` outside, or why not."""
        facts = self._arrays.nodes[row]
        if self._settings.cpu.leaves_unbound(facts):
            by_kubelet = facts.kubelet is not None and facts.kubelet.whole_cores
            if (request.cpuset if by_kubelet else demand_on(request, facts)) is not None:
                return Unfit(reason=reasons.CPUS_NOT_BOUND.text, preemptible=False)
        rejected = kubelet_rejects(request, facts, self._pins.pinned(row))
        if rejected is not None:
            return rejected
        policy = effective_policy(request, facts, self._settings.cpu)
        gpus = self._arrays.gpus
        is_known = not (gpus.by_number.item(row) or gpus.counted.item(row))
        if has_gpus(request) and (request.by_plugin or not is_known):
            return self._by_count(request, shape, row, node, rated, aligned=bool(policy))
        if policy:
            choose_devices = partial(self._choose, request, shape, row, only_minors)
            return self._aligned(policy, request, row, node, choose_devices, rated=rated)
        choice = _NO_DEVICES
        if request.devices:
            plain = None
            if only_minors is None and not request.containers:
                plain = self._plain_shares(request.devices[0], shape, row)
            if plain is not None:
                choice = Choice(shares=plain)
            else:
                answer = self._choose(request, shape, row, only_minors, self.view(row))
                if isinstance(answer, Unfit):
                    return answer
                choice = answer
        cpuset = self._cpus(request, row)
        if isinstance(cpuset, Unfit):
            return cpuset
        given = Alignment(choice=choice, cpuset=cpuset)
        return self._placed(request, row, node, given, rated)

    def _by_count(
        self, request: PodRequest, shape: Shape, row: int, node: int, rated: Rated, *, aligned: bool
    ) -> Placement | Unfit:
        """
        Return the placement on a node where it is known how many cards are free, not which.

        Rule: docs/DIVERGENCES.md, Placing by count: never for a member of a group, which is
        planned on cards, nor where cards have to be near to each other, CPUs or NICs, nor beside
        CPUs of its own.
        """
        count = shape.plain_count
        facts = self._arrays.nodes[row]
        shaped = aligned or facts.honors_partitions or demand_on(request, facts) is not None
        if shaped or is_member(request) or request.joint is not None or not shape.is_counted:
            by_number = request.by_plugin or self._arrays.gpus.by_number.item(row)
            return Unfit(reason=(reasons.BY_NUMBER if by_number else reasons.UNKNOWN_CARD).text)
        free = self._arrays.gpus.whole.item(row)
        if free < count:
            reason = reasons.insufficient_devices(GPU).text
            return Unfit(reason=reason, requested=count, available=free, unit="cards")
        given = Alignment(choice=_NO_DEVICES, cpuset=EMPTY)
        answer = self._placed(request, row, node, given, rated)
        if isinstance(answer, Unfit):
            return answer
        return structs.replace(answer, counted=count)

    def _aligned(
        self,
        policy: NumaPolicy | Unfit,
        request: PodRequest,
        row: int,
        node: int,
        choose_devices: ChooseDevices,
        *,
        rated: Rated,
    ) -> Placement | Unfit:
        if isinstance(policy, Unfit):
            return policy
        load = NumaLoad(pinned=self._pins.pinned(row), parts=self._pins.parts(row))
        node_now = NodeNow(view=self.view(row), load=load, choose_devices=choose_devices)
        given = align(policy, request, node_now, self._settings.cpu)
        if isinstance(given, Unfit):
            return given
        return self._placed(request, row, node, given, rated)

    def _placed(
        self, request: PodRequest, row: int, node: int, given: Alignment, rated: Rated
    ) -> Placement | Unfit:
        """Return the placement for what the node gives, if it can pay for the CPUs and pools."""
        costly = self._cost(request, given.cpuset, row)
        if costly is not None:
            return costly
        within = [part.node for part in given.parts] or None
        pools = () if given.cpuset else self._pools(request, row, within=within)
        if isinstance(pools, Unfit):
            return pools
        facts, shares = self._arrays.nodes[row], given.choice.shares
        return Placement(
            request=request,
            node=node,
            node_uid=facts.uid,
            node_name=facts.name,
            shares=shares,
            devices=tuple([self._record(row, share) for share in shares]),
            cpuset=given.cpuset,
            search_cut=given.choice.search_cut,
            numa_parts=given.parts,
            shared_pools=pools or given.shared_pools,
            rated=rated,
        )

    def view(self, row: int) -> NodeView:
        """Return what is left of the node at `row`, card by card."""
        cards = [
            card
            for device_type in sorted(self._arrays.devices)
            for card in _cards(self._arrays.devices[device_type], row)
        ]
        return NodeView(
            facts=self._arrays.nodes[row],
            cards=tuple(cards),
            cpu_refs=self._pins.refs(row),
            cpus_alone=self._pins.pinned(row).alone,
            numa_parts=self._pins.parts(row),
        )

    def _plain_shares(
        self, demand: DeviceDemand, shape: Shape, row: int
    ) -> tuple[DeviceShare, ...] | None:
        """Return the shares of a plain request, None where that takes a closer look."""
        if shape.plain_percent == WHOLE_PERCENT:
            if self._shaped[row]:
                return None
            if self._arrays.nodes[row].links is not None:
                return None
            left = self._arrays.gpus.left[row].tolist()
            columns = [column for column, share in enumerate(left) if share == WHOLE_PERCENT]
            return tuple(
                [self._share(demand, row, column) for column in columns[: shape.plain_count]]
            )
        if shape.plain_percent <= 0 or shape.plain_count > 1:
            return None
        best = self._card(shape, row)
        return None if best is None else (self._share(demand, row, best),)

    def _card(self, shape: Shape, row: int) -> int | None:
        """
        Return the column of the card that the node policy names.

        Rule: cli.md, Policies: `devices.scoring` picks cards. The default policy has a choice of
        its own; whoever asks for LeastAllocated asks for another one.
        """
        return None if self._by_scoring else self._policy.card(shape, row)

    def _share(self, demand: DeviceDemand, row: int, column: int) -> DeviceShare:
        record = self._arrays.gpus.records[row][column]
        ratio = demand.memory_ratio_percent
        return DeviceShare(
            device_type=record.device_type,
            minor=record.minor,
            device_id=record.device_id,
            core_percent=demand.core_percent,
            memory_bytes=ratio_to_bytes(ratio, record.memory_bytes),
            memory_ratio_percent=ratio,
            exclusive=demand.exclusive,
        )

    def _choose(
        self,
        request: PodRequest,
        shape: Shape,
        row: int,
        only_minors: frozenset[int] | None,
        view: NodeView,
    ) -> Choice | Unfit:
        best = None if request.card_scoring else self._card(shape, row)
        preferred = None if best is None else self._arrays.gpus.records[row][best].minor
        return choose(
            request,
            view,
            self._settings,
            preferred_card=preferred,
            only_minors=only_minors,
        )

    def _cpus(self, request: PodRequest, row: int) -> CpuSet | Unfit:
        demand = demand_on(request, self._arrays.nodes[row])
        if demand is None:
            return EMPTY
        return choose_cpus(
            demand, self._arrays.nodes[row], self._pins.pinned(row), self._settings.cpu
        )

    def _cost(self, request: PodRequest, cpuset: CpuSet, row: int) -> Unfit | None:
        """
        Refuse CPUs that cost more of an amplified node than it has left.

        Rule: Koordinator contract 6.6.
        """
        if not cpuset:
            return None
        facts, free = self._arrays.nodes[row], self._arrays.cpu_free.item(row)
        cost = facts.cpu_cost_milli(request.cpu_milli, len(cpuset))
        if cost <= free or facts.cpu_milli is None:
            return None
        return Unfit(
            reason=reasons.INSUFFICIENT_AMPLIFIED_CPU.text,
            requested=cost,
            available=free,
            unit="milli",
            preemptible=cost <= facts.cpu_milli,
        )

    def _pools(
        self, request: PodRequest, row: int, *, within: Sequence[int] | None
    ) -> tuple[CpuSharedPool, ...] | Unfit:
        if not request.burst_milli:
            return ()
        facts = self._arrays.nodes[row]
        return burst_pools(
            request.burst_milli,
            facts,
            self._pins.pinned(row),
            strategy=facts.numa_strategy or self._settings.cpu.numa_allocate_strategy,
            within=within,
        )

    def _record(self, row: int, share: DeviceShare) -> DeviceRecord:
        devices = self._arrays.devices[share.device_type]
        column = devices.column(row, share.minor)
        assert column is not None, share
        return devices.records[row][column]


def has_gpus(request: PodRequest) -> bool:
    """Tell whether a Pod asks for GPUs."""
    return any(demand.device_type == GPU for demand in request.devices)


def _cards(devices: DeviceArrays, row: int) -> list[CardView]:
    return [
        CardView(
            record=record,
            core_free=devices.core_free.item(row, column),
            memory_free=devices.memory_free.item(row, column),
            tenants=devices.tenants.item(row, column),
            exclusive=devices.exclusive.item(row, column) > 0,
            instances=devices.instances.item(row, column),
            closed=not devices.open.item(row, column),
            vfs_in_use=devices.functions_in_use(row, column),
            amounts_free=_amounts(devices.amounts_free, row, column),
            amounts_cap=_amounts(devices.amounts_cap, row, column),
        )
        for column, record in enumerate(devices.records[row])
    ]


def _amounts(arrays: Mapping[str, IntArray], row: int, column: int) -> tuple[tuple[str, int], ...]:
    if not arrays:
        return ()
    return tuple([(name, values.item(row, column)) for name, values in arrays.items()])
