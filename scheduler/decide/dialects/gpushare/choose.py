"""GPU share: the whole Pod on one card, by memory."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.cards.fit import fits, why_unfit
from scheduler.decide.cards.shares import whole_pod_share
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.settings import SchedulingSettings


def choose_gpushare(
    request: PodRequest,
    demands: Sequence[DeviceDemand],
    cards: Sequence[CardView],
    _node: NodeView,
    _settings: SchedulingSettings,
    *,
    preferred_card: int | None,  # noqa: ARG001 - the fullest card is taken
) -> Choice | Unfit:
    """
    Choose the card with the least memory left that still fits; the lowest index among equals.

    Rule: GPU-sharing contract B.3 and B.4; GPU share proposal, "Schedule".
    """
    (demand,) = demands  # the whole Pod's memory
    fitting = [card for card in cards if fits(card, demand)]
    if not fitting:
        return why_unfit(cards, demand)
    card = min(fitting, key=lambda card: (card.memory_free, card.record.minor))
    return Choice(shares=(whole_pod_share(request, card, demand),))
