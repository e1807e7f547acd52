"""Whole GPUs of one node by measured links, inside what the Pod's filters and scope allow."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.domain.annotations.device_hints import TopologyScope
from ledger.domain.request.requests import DeviceDemand
from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards.fit import fits
from scheduler.decide.cards.links import pick_linked
from scheduler.decide.cards.tree import scopes_for
from scheduler.decide.outcome import CardView, Unfit


def in_links(
    demand: DeviceDemand,
    offered: Sequence[CardView],
    gpus: Sequence[CardView],
    links: LinkMatrix,
    *,
    required: TopologyScope,
) -> Sequence[CardView] | Unfit:
    """
    Return the GPUs with the best links; what is offered when that leaves no choice.

    Rule: DIVERGENCES, "links and the topology tree": links decide inside a required scope, in
    whichever one they are best. What is left to others is every idle GPU of the node, whether or
    not this Pod's filters would have taken it.

    Args:
        demand: for whole GPUs.
        offered: the GPUs that the Pod may have, all of `gpus` that passed its filters.
    """
    fitting = [card for card in offered if fits(card, demand)]
    free = [card.record.minor for card in gpus if not (card.tenants or card.closed)]
    within: list[list[int]] = []
    if required.depth > TopologyScope.NODE.depth and demand.count > 1:
        scopes = scopes_for(demand, offered, gpus, required=required)
        if isinstance(scopes, Unfit):
            return scopes
        within = [[card.record.minor for card in inside] for _, inside in scopes]
    elif len(fitting) <= demand.count:
        return offered
    elif len(fitting) < len(free):
        within = [[card.record.minor for card in fitting]]
    minors = pick_linked(free, demand.count, links, within=within)
    return [card for card in fitting if card.record.minor in minors]
