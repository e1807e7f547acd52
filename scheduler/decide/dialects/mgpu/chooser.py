"""mGPU, as its Pods are placed: a card per container, several for some, searched and scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from ledger.domain.annotations.tenure import encode_search_cut
from ledger.domain.devices import GPU, WHOLE_PERCENT, ContainerShare, DeviceShare, bytes_to_ratio
from ledger.domain.dialects.mgpu.annotations import (
    CardRef,
    MgpuAllocation,
    MgpuPolicy,
    encode_mgpu_allocation,
)
from ledger.domain.dialects.names import Dialect
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import DeviceDemand, PodRequest, is_whole
from scheduler.decide.cards.fit import UNIT_CARDS, asked_bytes, fits, why_unfit
from scheduler.decide.cards.partition import partitions_for
from scheduler.decide.cards.shares import held_by
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.dialects.mgpu import search
from scheduler.decide.dialects.protocol import CardLimit, DialectChooser, Own
from scheduler.decide.outcome import CardView, Placement, Unfit
from scheduler.decide.refusal import reasons
from scheduler.decide.refusal.reasons import Reason
from scheduler.decide.settings import MGPUSettings, SchedulingSettings

DISABLED: Final = Reason(text="MGPUDisabled", remedy="set mgpu.enabled")
NODE_INVALID: Final = Reason(
    text="MGPUNodeInvalid", remedy="correct the node's mGPU schedule label"
)
POLICY_MISMATCH: Final = Reason(
    text="MGPUPolicyMismatch", remedy="give Pod and node the same mGPU compute policy"
)
SEARCH_CUT: Final = Reason(
    text="MGPUSearchCut",
    remedy="end Pods on the node, or split the Pod: the search for a combination was cut short",
)
UNIT_CONTAINERS: Final = "containers"
REQUEST_FIELDS: Final = ("mgpu_policy", "mgpu_multi")

LIMIT: Final = CardLimit(
    most=lambda settings: settings.mgpu.max_containers_per_card,
    what="mGPU containers",
    setting="mgpu.maxContainersPerCard",
)


def choose_mgpu(
    request: PodRequest,
    demands: Sequence[DeviceDemand],
    cards: Sequence[CardView],
    node: NodeView,
    settings: SchedulingSettings,
    *,
    preferred_card: int | None = None,  # noqa: ARG001 - the search scores cards itself
) -> Choice | Unfit:
    """
    Choose cards for every container that asks, `demands` holding one entry for each.

    Rule: GPU-sharing contract A.4 and A.5; Volcano mGPU proposal, "Filter" and "Allocate".

    A search cut short by its bound is marked in the choice; one that found nothing till then
    refuses the node, by a name of its own.
    """
    mgpu = settings.mgpu
    refusal = refuse_node(request, demands, node.facts, settings)
    if refusal is not None:
        return refusal
    for demand in demands:
        lack = _lack(cards, demand, mgpu.max_containers_per_card)
        if lack is not None:
            return lack
    usable = [card for card in cards if not card.closed and not card.exclusive]
    result = search.best_assignment(demands, usable, mgpu)
    if result.assignment is None:
        return _no_combination(demands, cards, mgpu, result)
    shares = _shares(request, demands, usable, result.assignment)
    return Choice(shares=shares, search_cut=result.cut)


def _lack(cards: Sequence[CardView], demand: DeviceDemand, instances_max: int) -> Unfit | None:
    """Return why one container alone finds too few cards, None if it finds enough."""
    able = [card for card in cards if fits(card, demand)]
    if len(able) < demand.count:
        return why_unfit(cards, demand)
    below_limit = sum(card.instances < instances_max for card in able)
    if below_limit >= demand.count:
        return None
    return Unfit(
        reason=reasons.container_limit(demand.device_type, LIMIT.setting).text,
        requested=demand.count,
        available=below_limit,
        unit=UNIT_CARDS,
    )


def _no_combination(
    demands: Sequence[DeviceDemand],
    cards: Sequence[CardView],
    settings: MGPUSettings,
    result: search.SearchResult,
) -> Unfit:
    """Say that the containers do not fit together; that no Pod's end helps if it can't."""
    empty = [card.emptied() for card in cards if not card.closed]
    at_best = search.best_assignment(demands, empty, replace(settings, search_levels=0))
    never = at_best.assignment is None and not at_best.cut
    reason = SEARCH_CUT if result.cut else reasons.NO_COMBINATION
    return Unfit(
        reason=reason.text,
        requested=len(demands),
        available=result.placed,
        unit=UNIT_CONTAINERS,
        preemptible=not never,
    )


def refuse_node(
    request: PodRequest,
    demands: Sequence[DeviceDemand],
    facts: NodeFacts,
    settings: SchedulingSettings,
) -> Unfit | None:
    """Return why the node can never serve this mGPU Pod, whatever it holds."""
    own = {name: getattr(request, name) for name in REQUEST_FIELDS}
    whole_cards = all(demand.exclusive for demand in demands)
    reason = misfit(own, facts, settings, whole_cards=whole_cards)
    return None if reason is None else Unfit(reason=reason.text, preemptible=False)


def misfit(
    own: Own, facts: NodeFacts, settings: SchedulingSettings, *, whole_cards: bool
) -> Reason | None:
    """
    Return why a node will not do for Pods of a compute policy.

    Rule: GPU-sharing contract A.1, A.4 steps 2 and 3.
    """
    if not settings.mgpu.enabled:
        return DISABLED
    if facts.mgpu_invalid:
        return NODE_INVALID
    wanted = own["mgpu_policy"] or MgpuPolicy.FIXED_SHARE
    served = facts.mgpu_policy or MgpuPolicy.FIXED_SHARE
    if own["mgpu_multi"]:
        matches = wanted == served == MgpuPolicy.NATIVE_BURST_SHARE
    else:
        matches = wanted == served or whole_cards
    return None if matches else POLICY_MISMATCH


def _shares(
    request: PodRequest,
    demands: Sequence[DeviceDemand],
    cards: Sequence[CardView],
    assignment: search.Assignment,
) -> tuple[DeviceShare, ...]:
    names = {need.index: need.name for need in request.containers}
    tenants: dict[int, list[ContainerShare]] = {}
    whole: set[int] = set()
    for demand, group in zip(demands, assignment, strict=True):
        place = demand.containers[0] if demand.containers else ""
        for index in group:
            share = ContainerShare(
                container=names.get(place, place),
                index=place,
                core_percent=demand.core_percent,
                memory_bytes=asked_bytes(demand, cards[index].record.memory_bytes),
            )
            tenants.setdefault(index, []).append(share)
            if demand.exclusive:
                whole.add(index)
    return tuple(
        _share(cards[index], tenants[index], exclusive=index in whole) for index in sorted(tenants)
    )


def _share(card: CardView, tenants: Sequence[ContainerShare], *, exclusive: bool) -> DeviceShare:
    record = card.record
    memory_bytes = sum(tenant.memory_bytes for tenant in tenants)
    ratio = WHOLE_PERCENT if exclusive else bytes_to_ratio(memory_bytes, record.memory_bytes)
    return DeviceShare(
        device_type=record.device_type,
        minor=record.minor,
        device_id=record.device_id,
        core_percent=sum(tenant.core_percent for tenant in tenants),
        memory_bytes=memory_bytes,
        memory_ratio_percent=ratio,
        exclusive=exclusive,
        instances=len(tenants),
        containers=tuple(tenants),
    )


def choose_beside_partition(
    request: PodRequest,
    demands: Sequence[DeviceDemand],
    offered: Sequence[CardView],
    node: NodeView,
    settings: SchedulingSettings,
) -> Choice | Unfit:
    """
    Choose the best partition beside which the parts find a place too.

    Rule: DIVERGENCES, "`Honor` and mGPU's whole cards"; Koordinator contract 8.5.

    Whole cards are used up, so parts are on other cards: two searches are as exact as one.

    Args:
        demands: at least one for whole cards and one for parts.
        offered: the cards that passed the Pod's filters.
    """
    refusal = refuse_node(request, demands, node.facts, settings)
    if refusal is not None:
        return refusal
    wholes = [demand for demand in demands if is_whole(demand)]
    parts = [demand for demand in demands if not is_whole(demand)]
    partitions = partitions_for(request, wholes, offered, node, settings.devices)
    if isinstance(partitions, Unfit):
        return partitions
    assert partitions, "a table that binds gives partitions or a reason"
    if len(demands) > settings.mgpu.search_levels:  # then the first fit is taken
        settings = replace(settings, mgpu=replace(settings.mgpu, search_levels=0))
    refusals: list[Unfit] = []
    for cards in partitions:
        minors = {card.record.minor for card in cards}
        others = [card for card in offered if card.record.minor not in minors]
        beside = choose_mgpu(request, parts, others, node, settings)
        whole = choose_mgpu(request, wholes, cards, node, settings)
        if isinstance(beside, Choice) and isinstance(whole, Choice):
            shares = sorted((*whole.shares, *beside.shares), key=lambda share: share.key)
            return Choice(shares=tuple(shares), search_cut=whole.search_cut or beside.search_cut)
        refusals += [answer for answer in (beside, whole) if isinstance(answer, Unfit)]
    return refusals[0]


ID_MODE: Final = "id"


def alternatives(
    request: PodRequest, nodes: Sequence[NodeFacts]
) -> Iterator[tuple[str, PodRequest]]:
    """Yield every other compute policy that a node has."""
    mine = request.mgpu_policy
    for policy in sorted({node.mgpu_policy for node in nodes} - {mine, ""}):
        text = f"use the mGPU compute policy {policy}" + (f" instead of {mine}" if mine else "")
        yield text, replace(request, mgpu_policy=policy)


def _answer(
    placement: Placement,
    gpus: tuple[DeviceShare, ...],
    _node: NodeFacts,
    _now_ns: int,
    settings: SchedulingSettings,
) -> dict[str, str]:
    by_id = settings.mgpu.schedule_mode == ID_MODE
    cut = _search_cut(placement, settings.mgpu) if placement.search_cut else {}
    return _cards(placement, gpus, by_id=by_id) | cut


def _cards(placement: Placement, gpus: tuple[DeviceShare, ...], *, by_id: bool) -> dict[str, str]:
    """Name each container's cards by index, or by UUID where the mode says so and all have one."""
    by_id = by_id and all(share.device_id for share in gpus)
    cards: list[tuple[str, tuple[CardRef, ...]]] = []
    for need in placement.request.containers:
        held = held_by(need, gpus)
        refs = tuple(share.device_id if by_id else share.minor for share in held)
        cards.append((need.name, refs))
    return encode_mgpu_allocation(MgpuAllocation(assumed=True, cards=tuple(cards)))


def _search_cut(placement: Placement, settings: MGPUSettings) -> dict[str, str]:
    asking = sum(demand.device_type == GPU for demand in placement.request.devices)
    return encode_search_cut(
        containers=asking, levels=settings.search_levels, steps=search.STEPS_MAX
    )


def _policies(request: PodRequest, node: NodeFacts) -> str:
    asked = request.mgpu_policy or MgpuPolicy.FIXED_SHARE
    served = node.mgpu_policy or MgpuPolicy.FIXED_SHARE
    return f"asks for {asked}, the node has {served}"


CHOOSER: Final = DialectChooser(
    dialect=Dialect.MGPU,
    choose=choose_mgpu,
    by_links=False,
    packs=True,
    limit=LIMIT,
    choose_beside=choose_beside_partition,
    request_fields=REQUEST_FIELDS,
    node_fields=("mgpu_policy", "mgpu_invalid"),
    misfit=misfit,
    answer=_answer,
    node_reasons=(DISABLED, NODE_INVALID, POLICY_MISMATCH),
    search_reasons=(SEARCH_CUT,),
    abouts={POLICY_MISMATCH.text: _policies},
    alternatives=alternatives,
)
