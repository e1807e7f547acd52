"""HAMi: parts of different cards, chosen so that each container's part finds one."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ledger.domain.devices import DeviceRecord
from ledger.domain.dialects.hami.annotations import CORE_MODE
from ledger.domain.dialects.hami.words import MODE
from ledger.domain.dialects.names import Dialect
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.isolation import is_limited
from ledger.domain.request.requests import CardFilter, DeviceDemand, PodRequest, is_whole
from scheduler.decide.cards.fit import UNIT_CARDS, fits, score, why_unfit
from scheduler.decide.cards.plain import choose_plain
from scheduler.decide.cards.shares import shares_of
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.dialects.protocol import DialectChooser
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.refusal import reasons
from scheduler.decide.settings import SchedulingSettings

Candidates = Sequence[Sequence[int]]
"""For each demand the places of the cards that can serve it, the best first."""


NO_SUCH_CARD: Final = reasons.Reason(
    text="CardFilterMismatch",
    remedy="let use-gputype, nouse-gputype, use-gpuuuid and nouse-gpuuuid take more cards",
)
_WISHES: Final = (
    ("models", "use-gputype"),
    ("not_models", "nouse-gputype"),
    ("ids", "use-gpuuuid"),
    ("not_ids", "nouse-gpuuuid"),
)


def choose_hami(
    request: PodRequest,
    demands: Sequence[DeviceDemand],
    cards: Sequence[CardView],
    node: NodeView,
    settings: SchedulingSettings,
    *,
    preferred_card: int | None,
) -> Choice | Unfit:
    """
    Choose cards for every demand, each card for one of them only.

    Rule: docs/contracts/hami.md 1, facts 3, 9 and 12 as "ours", and 2. One demand is chosen for
    like any other share. Of several each in its turn gets its best cards (whole ones the lowest
    minors, parts the fullest, or emptiest, as `devices.scoring` says) with which the later ones
    still find theirs.
    """
    if request.card_scoring:
        devices = replace(settings.devices, scoring=request.card_scoring)
        settings = replace(settings, devices=devices)
    counts = [demand.count for demand in demands]
    reason = NO_SUCH_CARD
    taken = [card for card in cards if _takes(request, card)]
    if not is_limited(request.placement, node.facts.labels):
        limited = [card for card in taken if _limits(card.record)]
        reason, taken = (reason if limited == taken else reasons.NOT_ISOLATED), limited
    if len(taken) < min(len(cards), sum(counts)):
        return Unfit(
            reason=reason.text,
            requested=sum(counts),
            available=len(taken),
            unit=UNIT_CARDS,
            preemptible=False,
        )
    if len(demands) == 1:
        offered = [card for card in taken if _gives(card, demands[0])]
        return choose_plain(
            request, demands, offered, node, settings, preferred_card=preferred_card
        )
    for demand in demands:
        if sum(_can(card, demand) for card in taken) < demand.count:
            return why_unfit([card for card in taken if _gives(card, demand)], demand)
    ranked = [_ranked(taken, demand, settings.devices.scoring) for demand in demands]
    found = _matched(counts, ranked)
    if found < sum(counts):
        return _no_combination(taken, demands, found)
    chosen = [
        (taken[place], demand)
        for demand, places in zip(demands, _picked(counts, ranked), strict=True)
        for place in places
    ]
    return Choice(shares=tuple(shares_of(request, demands[0].device_type, chosen)))


def _limits(card: DeviceRecord) -> bool:
    return card.labels.get(MODE) == CORE_MODE


def _takes(request: PodRequest, card: CardView) -> bool:
    wanted = request.card_filter
    return wanted is None or wanted.takes(card.record.model, card.record.device_id)


def _gives(card: CardView, demand: DeviceDemand) -> bool:
    """Tell whether the card has compute left where none is kept for the share (fact 9)."""
    return bool(demand.core_percent) or card.core_free > 0


def _can(card: CardView, demand: DeviceDemand) -> bool:
    return _gives(card, demand) and fits(card, demand)


def _ranked(cards: Sequence[CardView], demand: DeviceDemand, scoring: str) -> list[int]:
    """Return the places of the cards that fit, the best first; ties to the lowest minor."""
    places = [place for place, card in enumerate(cards) if _can(card, demand)]
    if is_whole(demand):
        return places
    return sorted(places, key=lambda place: -score(cards[place], demand, scoring=scoring))


def _picked(counts: Sequence[int], ranked: Candidates) -> list[list[int]]:
    """Return the cards of each demand, by place; there are enough for all of them."""
    left = list(counts)
    taken: set[int] = set()
    picked: list[list[int]] = []
    for number, places in enumerate(ranked):
        own: list[int] = []
        for place in places:
            if not left[number] or place in taken:
                continue
            left[number] -= 1
            if _matched(left, ranked, {*taken, place}) == sum(left):
                taken.add(place)
                own.append(place)
            else:
                left[number] += 1
        picked.append(sorted(own))
    return picked


def _matched(counts: Sequence[int], ranked: Candidates, taken: Collection[int] = ()) -> int:
    """Return how many of the cards that demands count there are, each of its own."""
    owner: dict[int, int] = {}
    found = 0
    for number, count in enumerate(counts):
        for _ in range(count):
            if not _given_one(number, ranked, taken, owner):
                break
            found += 1
    return found


def _given_one(
    first: int, ranked: Candidates, taken: Collection[int], owner: dict[int, int]
) -> bool:
    """Give one more card to a demand, which may take one over from another that has a second."""
    came: dict[int, tuple[int, int]] = {}
    waiting = deque([first])
    while waiting:
        number = waiting.popleft()
        for place in ranked[number]:
            if place in taken:
                continue
            other = owner.get(place)
            if other is None:
                _pass_on(place, number, first, came, owner)
                return True
            if other != first and other not in came:
                came[other] = (number, place)
                waiting.append(other)
    return False


def _pass_on(
    place: int,
    number: int,
    first: int,
    came: Mapping[int, tuple[int, int]],
    owner: dict[int, int],
) -> None:
    """Give the card to the demand, and the card that it gave up to the one that asked for it."""
    owner[place] = number
    while number != first:
        number, place = came[number]
        owner[place] = number


def _no_combination(
    cards: Sequence[CardView], demands: Sequence[DeviceDemand], available: int
) -> Unfit:
    """Say for how many parts there are cards, and whether there could ever be enough."""
    empty = [card.emptied() for card in cards]
    counts = [demand.count for demand in demands]
    ranked = [[place for place, card in enumerate(empty) if _can(card, item)] for item in demands]
    return Unfit(
        reason=reasons.NO_COMBINATION.text,
        requested=sum(counts),
        available=available,
        unit=UNIT_CARDS,
        preemptible=_matched(counts, ranked) == sum(counts),
    )


def _alternatives(
    request: PodRequest, _nodes: Sequence[NodeFacts]
) -> Iterator[tuple[str, PodRequest]]:
    for field, name in _WISHES:
        if request.card_filter is not None and getattr(request.card_filter, field):
            left: CardFilter = replace(request.card_filter, **{field: ()})
            changed = replace(request, card_filter=None if left == CardFilter() else left)
            yield f"drop nvidia.com/{name}", changed


CHOOSER: Final = DialectChooser(
    dialect=Dialect.HAMI,
    choose=choose_hami,
    by_links=False,
    whole_or_share=True,
    has_topology=True,
    request_fields=("card_filter",),
    search_reasons=(NO_SUCH_CARD,),
    alternatives=_alternatives,
    limits=_limits,
)
