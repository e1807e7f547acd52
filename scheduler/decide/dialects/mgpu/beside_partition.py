"""mGPU Pods with whole cards and parts, on a node that hands out whole cards by its table only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.cards.fit import is_whole
from scheduler.decide.cards.partition import partitions_for
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.dialects.mgpu.choose import choose_mgpu, refuse_node
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.settings import SchedulingSettings


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
    refusal = refuse_node(request, demands, node.facts, settings.mgpu)
    if refusal is not None:
        return refusal
    wholes = [demand for demand in demands if is_whole(demand)]
    parts = [demand for demand in demands if not is_whole(demand)]
    partitions = partitions_for(
        wholes[0],
        sum(demand.count for demand in wholes),
        offered,
        node,
        spec=request.partition,
        score_order=settings.devices.partition_score_order,
    )
    if isinstance(partitions, Unfit):
        return partitions
    assert partitions, "a table that binds gives partitions or a reason"
    first_fit = len(demands) > settings.mgpu.search_levels
    search = replace(settings.mgpu, search_levels=0) if first_fit else settings.mgpu
    refusals: list[Unfit] = []
    for cards in partitions:
        minors = {card.record.minor for card in cards}
        others = [card for card in offered if card.record.minor not in minors]
        beside = choose_mgpu(request, parts, others, node.facts, search)
        whole = choose_mgpu(request, wholes, cards, node.facts, search)
        if isinstance(beside, Choice) and isinstance(whole, Choice):
            shares = sorted((*whole.shares, *beside.shares), key=lambda share: share.key)
            return Choice(shares=tuple(shares), search_cut=whole.search_cut or beside.search_cut)
        refusals += [answer for answer in (beside, whole) if isinstance(answer, Unfit)]
    return refusals[0]
