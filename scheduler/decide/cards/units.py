"""Devices that count in units (NICs, FPGAs and the like), with hints and beside other devices."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from msgspec import structs

from ledger.domain.annotations.device_hints import AllocateStrategy, DeviceHint, LabelSelector
from ledger.domain.request.requests import DeviceDemand, PodRequest
from scheduler.decide.cards.fit import (
    UNIT_CARDS,
    fits,
    root_of,
    score,
    selected,
    undisturbed,
    why_unfit,
)
from scheduler.decide.cards.shares import shares_of
from scheduler.decide.cards.view import Choice
from scheduler.decide.outcome import CardView, Unfit
from scheduler.decide.refusal import reasons
from scheduler.decide.settings import DeviceSettings

_BUS_ID: Final = re.compile(
    r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-9a-f]{1,3})"
)
_NOWHERE: AbstractSet[str] = frozenset()


def free_function(card: CardView, selector: LabelSelector) -> str | None:
    """
    Return the bus id of the VF that the next Pod would get of this device, None without one.

    Rule: Koordinator contract 8.6, "VF choice", and quirk Q15 as "ours": bus ids are compared as
    numbers. A VF without a bus id can't be told from another one and is never handed out.
    """
    free = [
        vf.bus_id
        for vf in card.record.vfs
        if vf.bus_id and vf.bus_id not in card.vfs_in_use and selector.matches(vf.labels)
    ]
    return min(free, key=bus_order, default=None)


def bus_order(bus_id: str) -> tuple[bool, tuple[int, ...], str]:
    """Return a sort key: domain, bus, device, function; what is no bus id comes last, as text."""
    parts = _BUS_ID.fullmatch(bus_id.lower())
    if parts is None:
        return True, (), bus_id
    return False, tuple(int(part or "0", 16) for part in parts.groups()), bus_id


def choose_units(
    request: PodRequest,
    demand: DeviceDemand,
    cards: Sequence[CardView],
    settings: DeviceSettings,
    *,
    roots: AbstractSet[str] = _NOWHERE,
    same_roots: bool = False,
) -> Choice | Unfit:
    """
    Choose devices of one type, by hint and near devices that the Pod already has.

    Rule: Koordinator contract 8.2, 8.3 and 8.6.

    Args:
        cards: every device of the type on the node.
        roots: PCIe roots of the primary devices; one device per root is wanted, those under them
            first. `same_roots` makes that many devices the least.
    """
    hint = DeviceHint() if demand.hint is None else demand.hint
    if hint.vf_selector is not None and not any(card.record.vfs for card in cards):
        text = reasons.no_functions(demand.device_type).text
        return Unfit(reason=text, preemptible=False)
    offered = selected(cards, hint)
    everywhere = hint.allocate_strategy is AllocateStrategy.APPLY_FOR_ALL
    least = len(offered) if everywhere else demand.count
    own = max(least, 1)
    least = max(own, len(roots)) if same_roots else own
    able = able_cards(demand, cards)
    if len(able) < least:
        return _why_unfit(replace(demand, count=own), offered, able, least)
    ranked = sorted(able, key=lambda card: -score(card, demand, scoring=settings.scoring))
    picked = _by_roots(ranked, roots)[: max(least, len(roots))]
    picked.sort(key=lambda card: card.record.minor)
    named = request if len(picked) == demand.count else replace(request, containers=())
    shares = shares_of(named, demand.device_type, [(card, demand) for card in picked])
    if hint.vf_selector is not None:
        functions = [free_function(card, hint.vf_selector) for card in picked]
        shares = [
            structs.replace(share, vf_bus_ids=(bus_id,))
            for share, bus_id in zip(shares, functions, strict=True)
            if bus_id is not None
        ]
        assert len(shares) == len(picked), request.uid
    return Choice(shares=tuple(shares))


def able_cards(demand: DeviceDemand, cards: Sequence[CardView]) -> list[CardView]:
    """Return which of all devices of its type can serve the demand, by its hint and by amount."""
    hint = DeviceHint() if demand.hint is None else demand.hint
    left = undisturbed(selected(cards, hint), cards, hint)
    return [card for card in left if fits(card, demand) and _has_function(card, hint.vf_selector)]


def _has_function(card: CardView, selector: LabelSelector | None) -> bool:
    return selector is None or free_function(card, selector) is not None


def _by_roots(ranked: Sequence[CardView], roots: AbstractSet[str]) -> list[CardView]:
    """Return the best device of each root, then each root's second, ..., then all others."""
    seen: Counter[str] = Counter()
    keyed: list[tuple[bool, int, int, CardView]] = []
    for place, card in enumerate(ranked):
        root = root_of(card)
        near = root in roots
        keyed.append((not near, seen[root] if near else 0, place, card))
        seen[root] += near
    return [card for *_, card in sorted(keyed, key=lambda item: item[:3])]


def _why_unfit(
    demand: DeviceDemand, offered: Sequence[CardView], able: Sequence[CardView], least: int
) -> Unfit:
    """Say it as for any device; what is short by use alone could be helped by preemption."""
    plain = why_unfit(offered, demand)
    if not plain.preemptible:
        return plain
    return replace(plain, requested=least, available=len(able), unit=UNIT_CARDS)
