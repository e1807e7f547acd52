"""Devices by share: whole ones and parts, of GPUs and of every other type."""

from __future__ import annotations

from collections.abc import Sequence

from ledger.domain.devices import GPU
from ledger.domain.request.requests import DeviceDemand, PodRequest, is_whole
from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards.fit import fits, score, why_unfit
from scheduler.decide.cards.links import pick_linked
from scheduler.decide.cards.shares import shares_of
from scheduler.decide.cards.tree import has_tree
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.settings import SchedulingSettings


def choose_plain(
    request: PodRequest,
    demands: Sequence[DeviceDemand],
    cards: Sequence[CardView],
    node: NodeView,
    settings: SchedulingSettings,
    *,
    preferred_card: int | None = None,
) -> Choice | Unfit:
    """
    Choose devices of one type for every demand, each device for one demand only.

    Rule: Koordinator contract 8.2 and 8.4; GPU-topology proposal, "Pick GPUs of Node".

    Whole devices are the lowest fitting minors, or where the node reports its links the GPUs
    whose slowest link is fastest, one GPU the one that leaves the best links. Where it reports the
    place of every GPU instead, the links that these suggest decide before the lowest minors. Parts
    go to the devices of the highest score. Ties go to the lowest minor. `preferred_card` counts
    for a single demand for one device, where measured links do not decide.
    """
    chosen: list[tuple[CardView, DeviceDemand]] = []
    taken: set[int] = set()
    alone = len(demands) == 1 and demands[0].count == 1
    for demand in demands:
        whole = is_whole(demand)  # a part that wants to be alone is still a part
        linked = whole and demand.device_type == GPU
        measured = node.facts.links if linked else None
        left = [card for card in cards if card.record.minor not in taken]
        fitting = [card for card in left if fits(card, demand)]
        if len(fitting) < demand.count:
            return why_unfit(left, demand)
        asked = preferred_card if alone and measured is None else None
        wanted = [card for card in fitting if card.record.minor == asked]
        if wanted:
            picked = wanted
        elif whole:
            links = measured or (_suggested(node) if linked else None)
            picked = _whole(fitting, demand.count, links, ties_by_minor=not measured)
        else:
            picked = _fullest(fitting, demand, settings.devices.scoring)
        taken.update(card.record.minor for card in picked)
        chosen.extend((card, demand) for card in picked)
    return Choice(shares=tuple(shares_of(request, demands[0].device_type, chosen)))


def _whole(
    fitting: list[CardView], count: int, links: LinkMatrix | None, *, ties_by_minor: bool
) -> list[CardView]:
    if links is None or count == len(fitting):
        return fitting[:count]
    free = (card.record.minor for card in fitting)
    minors = pick_linked(free, count, links, ties_by_minor=ties_by_minor)
    return [card for card in fitting if card.record.minor in minors]


def _suggested(node: NodeView) -> LinkMatrix | None:
    """Return the links that places suggest, where a topology tree is (Koordinator contract 8.4)."""
    gpus = [card for card in node.cards if card.record.device_type == GPU]
    return node.facts.derived_links if has_tree(gpus) else None


def _fullest(fitting: list[CardView], demand: DeviceDemand, scoring: str) -> list[CardView]:
    if len(fitting) == demand.count:
        return fitting
    # a stable sort: devices of equal score stay in the order of their minors
    ranked = sorted(fitting, key=lambda card: -score(card, demand, scoring=scoring))
    return sorted(ranked[: demand.count], key=lambda card: card.record.minor)
