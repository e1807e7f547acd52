"""
Which of the cards that are alike, and which CPUs, a claim gets: by the same choice as a Pod's.

Rule: docs/adr/0027; what may be exchanged for what is settled in `scheduler/gate/exchange`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from ledger.domain.annotations.cpu import CpuBindPolicy, CpuExclusivePolicy
from ledger.domain.annotations.tenure import cards_in
from ledger.domain.cpuset import CpuSet
from ledger.domain.devices import GPU, WHOLE_PERCENT, DeviceRecord, DeviceShare
from ledger.domain.kube.derived_links import derive_links
from ledger.domain.log.state import GRANTED, Holding, NodeState
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import CpuSetDemand, DeviceDemand, PodRequest
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import NodeView
from scheduler.decide.cpusets.choose import choose_cpus
from scheduler.decide.cpusets.pinned import CpuHolding, pinned_of
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.settings import SchedulingSettings
from scheduler.gate.exchange import Alike, Device, Unit

TRIES_MAX: Final = 16
"""How many choices are offered that the ledger refuses for another account than a card's."""


def place_claim(
    node: NodeState,
    units: Sequence[Unit],
    kept: Collection[int],
    *,
    facts: NodeFacts | None,
    settings: SchedulingSettings,
) -> Iterator[Mapping[Device, str]]:
    """
    Yield which devices a claim is to have instead of those that were written, the best first.

    Fuller cards first, for whole ones the fastest links, where the node tells of them its PCIe
    roots and NUMA nodes; ties go to the lowest minors. A device stays what it is if it is chosen.

    Args:
        node: with what the claim itself has left out.
        kept: minors that are the claim's already.
        facts: what is measured of the node; None = nothing.
    """
    if not units:
        return
    view = NodeView(facts=_facts(node, facts, units), cards=tuple(cards_of(node)))
    barred = set(kept)
    for _ in range(TRIES_MAX):
        chosen = _chosen(units, view, barred, settings)
        if chosen is None:
            return
        yield {device: one.name for device, one in chosen.items()}
        barred.update(one.minor for one in chosen.values())


def _facts(node: NodeState, facts: NodeFacts | None, units: Sequence[Unit]) -> NodeFacts:
    found = NodeFacts(uid=node.uid, name=node.name) if facts is None else facts
    if len(units) > 1 and found.links is None and found.derived_links is None:
        found = replace(found, derived_links=derive_links(node.devices))
    return found


def cards_of(node: NodeState) -> Iterator[CardView]:
    """Yield what is left of a node's cards by the ledger, by minor."""
    everyone = list(node.everyone())
    shown = {each for one in node.holdings.values() for each in cards_in(one.shown)}
    closed = node.lost or any(GPU in each.unknown_types for each in everyone)
    on: dict[str, list[tuple[Holding, DeviceShare]]] = {}
    for holding in everyone:
        for share in holding.shares:
            if share.device_type == GPU:
                on.setdefault(share.device_id, []).append((holding, share))
    for record in sorted(node.devices, key=lambda each: each.key):
        if record.device_type == GPU:
            there = on.get(record.device_id, ())
            yield _card(record, there, closed=closed or record.device_id in shown)


def _card(
    record: DeviceRecord, there: Sequence[tuple[Holding, DeviceShare]], *, closed: bool
) -> CardView:
    return CardView(
        record=record,
        core_free=record.core_percent - sum(share.core_percent for _, share in there),
        memory_free=record.memory_bytes - sum(share.memory_bytes for _, share in there),
        tenants=len(there),
        exclusive=any(share.exclusive for _, share in there),
        instances=sum(share.instances for _, share in there),
        closed=closed
        or not record.healthy
        or any(share.exclusive for holding, share in there if holding.kind != GRANTED),
    )


def _chosen(
    units: Sequence[Unit], view: NodeView, barred: AbstractSet[int], settings: SchedulingSettings
) -> dict[Device, Alike] | None:
    """Return a device for each unit, None where there are too few; units alike go together."""
    groups: dict[tuple[tuple[Alike, ...], DeviceDemand], list[Unit]] = {}
    records = {card.record.minor: card.record for card in view.cards}
    for unit in units:
        record = records.get(unit.share.minor)
        if record is None:
            return None
        groups.setdefault((unit.among, _demand(unit.share, record)), []).append(unit)
    found: dict[Device, Alike] = {}
    for (among, demand), alike in groups.items():
        by_minor: dict[int, Alike] = {}
        for one in among:
            by_minor.setdefault(one.minor, one)
        taken = barred | {one.minor for one in found.values()}
        request = PodRequest(
            uid="",
            namespace="",
            name="",
            cpu_milli=0,
            memory_bytes=0,
            devices=(replace(demand, count=len(alike)),),
        )
        choice = choose(request, view, settings, only_minors=frozenset(by_minor.keys() - taken))
        if isinstance(choice, Unfit):
            return None
        found.update(_dealt(alike, [by_minor[share.minor] for share in choice.shares]))
    return found


def _demand(share: DeviceShare, record: DeviceRecord) -> DeviceDemand:
    whole = (WHOLE_PERCENT, record.memory_bytes)
    if share.exclusive or (share.core_percent, share.memory_bytes) == whole:
        return DeviceDemand(
            device_type=GPU,
            count=1,
            core_percent=WHOLE_PERCENT,
            memory_ratio_percent=WHOLE_PERCENT,
            exclusive=True,
        )
    return DeviceDemand(
        device_type=GPU,
        count=1,
        core_percent=share.core_percent,
        memory_bytes=share.memory_bytes,
    )


def _dealt(units: Sequence[Unit], chosen: Sequence[Alike]) -> Iterator[tuple[Device, Alike]]:
    """Yield a device for each unit: its own where that is chosen, else the others in order."""
    left = {one.name: one for one in chosen}
    moving = []
    for unit in units:
        own = left.pop(unit.device[2], None)
        if own is None:
            moving.append(unit)
        else:
            yield unit.device, own
    yield from zip((unit.device for unit in moving), left.values(), strict=True)


def choose_claim_cpus(
    count: int, closed: CpuSet, facts: NodeFacts, settings: SchedulingSettings
) -> CpuSet | str:
    """
    Return so many CPUs that are not closed, or in words why the node has none.

    Rule: docs/adr/0032. A claim names no bind policy: the node's own holds, else the settings' is
    preferred, whole cores where that is none.
    """
    preferred = settings.vocabulary.default_bind_policy
    spreads = preferred == CpuBindPolicy.SPREAD_BY_PCPUS
    demand = CpuSetDemand(
        cpus=count,
        bind_policy=preferred if spreads else CpuBindPolicy.FULL_PCPUS,
        required=False,
        exclusive_policy=CpuExclusivePolicy.NONE,
        alone=True,
    )
    pinned = pinned_of(facts, [CpuHolding(cpus=closed.mask, alone=True)])
    found = choose_cpus(demand, facts, pinned, settings.cpu)
    if not isinstance(found, Unfit):
        return found
    left = f", {found.available} left" if found.available >= 0 else ""
    return f"{found.reason}: {count} asked{left}"
