"""
Which node a Pod whose request is a claim would best run on; kube-scheduler is asked for it.

Rule: docs/adr/0031. A wish and no promise: the gate decides, and a Pod goes on where it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ledger.domain.cpuset import EMPTY
from ledger.domain.devices import WHOLE_PERCENT, DeviceShare
from ledger.domain.log.events import CLAIM
from ledger.domain.log.state import GRANTED, Holding, NodeState
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import NodeView
from scheduler.decide.claims import cards_of
from scheduler.decide.nodes.labels import allows, first_untolerated
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.settings import SchedulingSettings


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
    coming = {uid: one.shares for uid, one in planned.items() if one.node == state.name}
    if not coming:
        return state
    return replace(
        state, claims={**state.claims, **{uid: _held(uid, coming[uid]) for uid in coming}}
    )


def _held(uid: str, shares: Sequence[DeviceShare]) -> Holding:
    return Holding(
        pod_uid=uid,
        attempt=0,
        namespace="",
        pod_name="",
        kind=GRANTED,
        phase="reserved",
        opened_position=0,
        shares=tuple(shares),
        cpuset=EMPTY,
        holder=CLAIM,
    )
