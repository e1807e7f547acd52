"""
Which node a Pod whose request is a claim would best run on; kube-scheduler is asked for it.

Rule: docs/adr/0031. A wish and no promise: the gate decides, and a Pod goes on where it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from ledger.domain.devices import WHOLE_PERCENT, DeviceShare
from ledger.domain.log.events import ClaimReserved
from ledger.domain.log.state import NodeState, open_holding
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import NodeView
from scheduler.decide.claims import cards_of
from scheduler.decide.nodes.labels import allows, first_untolerated
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.settings import SchedulingSettings

COMING: Final = open_holding(
    ClaimReserved(claim_uid="", attempt=0, node_uid="", namespace="", claim_name="", node_name="")
)
"""A claim that is about to hold something, of which the ledger has nothing yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Where a Pod is sent, and what it would have there."""

    node: str
    shares: tuple[DeviceShare, ...]


def node_for(
    request: PodRequest,
    nodes: Iterable[tuple[NodeFacts, NodeState]],
    planned: Mapping[str, Planned],
    settings: SchedulingSettings,
) -> Planned | None:
    """
    Return the node where a Pod's cards leave least over; None where it fits on none.

    First by what is left of the cards that it would get, in percent of core and memory; then by
    how few cards are idle; then by name.

    Args:
        planned: by Pod UID, who is on the way and has nothing in the ledger yet.
    """
    best: tuple[tuple[int, int, str], Planned] | None = None
    for facts, state in nodes:
        fenced = first_untolerated(facts.taints, request.placement.tolerations)
        if facts.unschedulable or fenced or not allows(request.placement, facts):
            continue
        cards = tuple(cards_of(_with(state, planned)))
        found = choose(request, NodeView(facts=facts, cards=cards), settings)
        if isinstance(found, Unfit):
            continue
        by_minor = {card.record.minor: card for card in cards}
        left = sum(_left(by_minor[share.minor], share) for share in found.shares)
        idle = sum(card.tenants == 0 for card in cards)
        key = (left, idle, facts.name)
        if best is None or key < best[0]:
            best = key, Planned(node=facts.name, shares=found.shares)
    return None if best is None else best[1]


def _left(card: CardView, share: DeviceShare) -> int:
    """Return what a card has left beside a share, in percent of core and of memory."""
    memory = (card.memory_free - share.memory_bytes) * WHOLE_PERCENT
    return card.core_free - share.core_percent + memory // max(1, card.record.memory_bytes)


def _with(state: NodeState, planned: Mapping[str, Planned]) -> NodeState:
    there = {
        uid: structs.replace(COMING, pod_uid=uid, shares=one.shares)
        for uid, one in planned.items()
        if one.node == state.name
    }
    return replace(state, claims={**state.claims, **there})
