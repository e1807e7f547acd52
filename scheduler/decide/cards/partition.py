"""GPU partitions: the groups of GPUs that a node's table says can be handed out together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from ledger.domain.annotations.device_hints import PartitionPolicy, PartitionSpec, TopologyScope
from ledger.domain.annotations.partitions import HOPPER_PARTITIONS, GpuPartition
from ledger.domain.devices import GPU
from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.cards.fit import UNIT_CARDS, fits
from scheduler.decide.cards.tree import shares_scope
from scheduler.decide.cards.view import NodeView
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.refusal import reasons
from scheduler.decide.settings import DeviceSettings

HIGHEST: Final = "highest"
"""Score groups in the intended order; anything else is the release's (quirk Q2)."""

_WEIGHTS: Final = {8: 10000, 4: 100, 2: 1}

Table = Mapping[int, tuple[GpuPartition, ...]]


def partitions_for(
    request: PodRequest,
    demands: Sequence[DeviceDemand],
    offered: Sequence[CardView],
    node: NodeView,
    settings: DeviceSettings,
) -> list[list[CardView]] | Unfit | None:
    """
    Return the partitions that could be had, best first, None where the table has no say.

    Rule: Koordinator contract 8.5, quirk Q2 as "ours". The table binds where Node or Device say
    `Honor` or the Pod has a partition spec. A built-in table gives way to measured links.

    Args:
        demands: the Pod's demands for whole GPUs.
        offered: the GPUs that passed the Pod's filters.
    """
    facts, spec, demand = node.facts, request.partition, demands[0]
    count = sum(each.count for each in demands)
    strict = facts.honors_partitions or spec is not None
    table = facts.partitions
    if not strict and (facts.links is not None and table == HOPPER_PARTITIONS):
        return None
    if table is None:
        missing = reasons.NO_PARTITION_TABLE.text
        return Unfit(reason=missing, preemptible=False) if strict else None
    if not table.get(count):
        unknown = reasons.PARTITION_COUNT.text
        return Unfit(reason=unknown, preemptible=False) if strict else None
    usable = {
        card.record.minor: card for card in offered if not card.tenants and fits(card, demand)
    }
    scope = TopologyScope.UNSET if demand.hint is None else demand.hint.required_topology_scope
    gpus = [card for card in node.cards if card.record.device_type == GPU]
    able = [
        partition
        for partition in table[count]
        if usable.keys() >= set(partition.minors)
        and _has_bandwidth(partition, spec)
        and shares_scope(partition.minors, gpus, scope)
    ]
    free = _free_minors(node)
    able.sort(key=lambda partition: -_left_behind(table, count, partition, free))
    feasible = _by_score(table[count], able, spec, settings.partition_score_order)
    if feasible:
        return [[usable[minor] for minor in partition.minors] for partition in feasible]
    if not strict:
        return None
    fast = any(_has_bandwidth(partition, spec) for partition in table[count])
    return Unfit(
        reason=reasons.NO_FREE_PARTITION.text,
        requested=count,
        available=len(usable),
        unit=UNIT_CARDS,
        preemptible=fast,
    )


def _by_score(
    partitions: Sequence[GpuPartition],
    able: Sequence[GpuPartition],
    spec: PartitionSpec | None,
    score_order: str,
) -> list[GpuPartition]:
    """Return the able partitions, score group by group; of the first one only if `Restricted`."""
    scores = {partition.allocation_score for partition in partitions}
    ranked = sorted(scores, reverse=score_order == HIGHEST)
    if spec and spec.allocate_policy is PartitionPolicy.RESTRICTED:
        ranked = ranked[:1]
    return [
        partition for score in ranked for partition in able if partition.allocation_score == score
    ]


def _has_bandwidth(partition: GpuPartition, spec: PartitionSpec | None) -> bool:
    wanted = None if spec is None else spec.ring_bus_bandwidth
    if wanted is None:
        return True
    given = partition.ring_bus_bandwidth
    return given is not None and given.nanos >= wanted.nanos


def _left_behind(table: Table, count: int, taken: GpuPartition, free: AbstractSet[int]) -> int:
    """Return the weight of the partitions that stay free, of the sizes asked for and larger."""
    left = frozenset(free) - set(taken.minors)
    return sum(
        weight * partition.allocation_score
        for size, weight in _WEIGHTS.items()
        if size >= count
        for partition in table.get(size, ())
        if left.issuperset(partition.minors)
    )


def _free_minors(node: NodeView) -> frozenset[int]:
    return frozenset(
        card.record.minor
        for card in node.cards
        if card.record.device_type == GPU and not card.closed and not card.tenants
    )
