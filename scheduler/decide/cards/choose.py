"""The devices of one node for one Pod, whatever dialect it spoke."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.domain.devices import GPU, DeviceShare
from ledger.domain.requests import DeviceDemand, PodRequest
from ledger.domain.resources import Dialect
from scheduler.decide import reasons
from scheduler.decide.cards.gpushare import choose_gpushare
from scheduler.decide.cards.mgpu import choose_mgpu
from scheduler.decide.cards.plain import choose_plain
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.settings import SchedulingSettings


def choose(
    request: PodRequest,
    node: NodeView,
    settings: SchedulingSettings,
    *,
    preferred_card: int | None = None,
    only_minors: frozenset[int] | None = None,
) -> Choice | Unfit:
    """
    Choose the devices that the node would give the Pod: all of them or none.

    Rule: design section 3; Koordinator contract 8.2; GPU-sharing contract A.4, A.5, B.3, B.4.

    Args:
        preferred_card: minor of the GPU that a node policy would like, for a Pod that asks for
            one GPU or a part of one by share; taken when it fits.
        only_minors: the GPUs that the Pod may have (its group's plan); None = all.

    Returns:
        The shares, or why not: the first type that fails, GPUs before other types by name.
    """
    shares: list[DeviceShare] = []
    search_cut = False
    by_type: dict[str, list[DeviceDemand]] = {}
    for demand in request.devices:
        by_type.setdefault(demand.device_type, []).append(demand)
    for device_type, demands in by_type.items():
        cards = [card for card in node.cards if card.record.device_type == device_type]
        if device_type != GPU:
            choice = choose_plain(request, demands, cards, node, settings.devices)
        else:
            if only_minors is not None:
                cards = [card for card in cards if card.record.minor in only_minors]
            choice = _choose_gpus(
                request, demands, cards, node, settings, preferred_card=preferred_card
            )
        if isinstance(choice, Unfit):
            return choice
        shares.extend(choice.shares)
        search_cut |= choice.search_cut
    shares.sort(key=lambda share: share.key)
    return Choice(shares=tuple(shares), search_cut=search_cut)


def _choose_gpus(
    request: PodRequest,
    demands: Sequence[DeviceDemand],
    cards: Sequence[CardView],
    node: NodeView,
    settings: SchedulingSettings,
    *,
    preferred_card: int | None,
) -> Choice | Unfit:
    served = node.facts.dialects
    if served is not None and request.dialect is not None and request.dialect not in served:
        return Unfit(reason=reasons.DIALECT_NOT_SERVED.text, preemptible=False)
    match request.dialect:
        case Dialect.MGPU:
            return choose_mgpu(request, demands, cards, node.facts, settings.mgpu)
        case Dialect.GPUSHARE:
            (demand,) = demands  # the whole Pod's memory
            return choose_gpushare(request, demand, cards)
        case Dialect.KOORDINATOR | Dialect.NVIDIA | None:
            return choose_plain(
                request, demands, cards, node, settings.devices, preferred_card=preferred_card
            )
