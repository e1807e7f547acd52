"""GPU share: the whole Pod on one card, by memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ledger.domain.devices import GPU, DeviceShare
from ledger.domain.dialects.gpushare.annotations import GpuShareAnswer, encode_gpushare_answer
from ledger.domain.dialects.gpushare.demands import UNIT_BYTES
from ledger.domain.dialects.names import Dialect
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.cards.fit import fits, why_unfit
from scheduler.decide.cards.shares import whole_pod_share
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.dialects.protocol import DialectChooser
from scheduler.decide.outcome import CardView, Placement, Unfit
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


def _answer(
    placement: Placement,
    gpus: tuple[DeviceShare, ...],
    node: NodeFacts,
    now_ns: int,
    settings: SchedulingSettings,
) -> dict[str, str]:
    answer = GpuShareAnswer(
        card=gpus[0].minor,
        pod_units=placement.request.gpushare_units,
        card_units=_units_per_card(node, UNIT_BYTES[settings.vocabulary.gpushare_unit]),
        assume_time_ns=now_ns,
    )
    return encode_gpushare_answer(answer)


def _units_per_card(node: NodeFacts, unit_bytes: int) -> int:
    """
    Return the units of one card as the node daemon sees them: the mean, rounded down.

    Rule: GPU-sharing contract B.1 (`..._DEV`) and B.5 (16276 MiB are 15 units of GiB).
    """
    units = [card.memory_bytes // unit_bytes for card in node.devices if card.device_type == GPU]
    return sum(units) // max(1, len(units))


CHOOSER: Final = DialectChooser(dialect=Dialect.GPUSHARE, choose=choose_gpushare, answer=_answer)
