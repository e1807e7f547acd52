"""
The cards of a node once, whichever systems offer them.

Rule: docs/contracts/device-plugins.md 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ledger.domain.request.card_names import NVIDIA_DOMAIN, count_in, may_be_cards
from scheduler.usage.picture import CardGroup, DeviceNow, Many, Sums, Units, regrouped, sums_over
from scheduler.usage.plugins import NVIDIA


def once(
    groups: Sequence[CardGroup], labels: Mapping[str, str]
) -> tuple[list[CardGroup], Sums, list[str]]:
    """
    Return cards with each in one group, their sums, and which of them two systems offer.

    Cards with one id are one. NVIDIA's plugin names none: its cards are those that others name
    where a label counts no more, and may be them where none counts any.
    """
    cards, told = _by_id(groups)
    plugin = [each for each in cards if each.system == NVIDIA]
    named = [each for each in cards if any(card.id.startswith("GPU-") for card in each.devices)]
    others = [each for each in named if each.system != NVIDIA]
    label, count = count_in(labels, NVIDIA_DOMAIN)
    mine = sums_over(plugin).cards.least
    theirs = sum(len(each.devices) for each in others)
    if not (mine and theirs) or 0 < mine + theirs <= count:
        return cards, sums_over(cards), told
    systems = " and ".join(sorted({each.system for each in (*plugin, *others)}))
    words = f"{label} is {count}" if count else "no label counts them"
    told.append(f"{systems} offer cards of one machine, {mine} and {theirs}: {words}")
    if count == theirs:
        units = {name: each for group in plugin for name, each in group.units.items()}
        unplaced = [pod for group in plugin for pod in group.unplaced]
        cards = [
            regrouped(each, each.devices, (*each.unplaced, *unplaced), {**each.units, **units})
            if each in others
            else each
            for each in cards
            if each not in plugin
        ]
        return cards, sums_over(cards), told
    sums, both = sums_over(cards), min(mine, theirs)
    most = max(count, mine, theirs) if count else mine + theirs
    rest = sums.cards.least - mine - theirs
    return (
        cards,
        Sums(
            cards=Many(least=max(mine, theirs) + rest, most=most + rest),
            free=replace(sums.free, least=max(0, sums.free.least - both)),
            gettable=replace(sums.gettable, least=max(0, sums.gettable.least - both)),
        ),
        told,
    )


def _by_id(groups: Sequence[CardGroup]) -> tuple[list[CardGroup], list[str]]:
    """Return groups in which every id is once, at the first that has it, with all its holders."""
    found: dict[str, list[tuple[str, DeviceNow]]] = {}
    for group in groups:
        for card in group.devices:
            found.setdefault(card.id, []).append((group.system, card))
    twice = {key: same for key, same in found.items() if key and len(same) > 1}
    if not twice:
        return list(groups), []
    left, merged = dict(twice), []
    for group in groups:
        devices = []
        for card in group.devices:
            same = [one for _, one in left.pop(card.id, ())]
            if same or card.id not in twice:
                as_one = replace(
                    card,
                    healthy=card.healthy and all(one.healthy for one in same),
                    closed=next((one.closed for one in same if one.closed), card.closed),
                    holders=tuple(who for one in same or [card] for who in one.holders),
                )
                devices.append(as_one)
        merged.append(regrouped(group, devices, group.unplaced, group.units))
    told = [
        f"{' and '.join(system for system, _ in same)} offer one card: {key}"
        for key, same in twice.items()
    ]
    return [group for group in merged if group.devices or group.unplaced], told


def open_ended(
    sums: Sums,
    not_looked_at: Mapping[str, Units],
    labels: Mapping[str, str],
    groups: Sequence[CardGroup],
) -> Sums:
    """Return the sums of a node that offers what may be cards besides those that are listed."""
    listed = any(card.id.startswith("GPU-") for group in groups for card in group.devices)
    seen = [
        each
        for name, each in not_looked_at.items()
        if may_be_cards(name) and not (listed and name.startswith(f"{NVIDIA_DOMAIN}/"))
    ]
    counted = count_in(labels, NVIDIA_DOMAIN)[1]
    if not seen or 0 < counted == sums.cards.exact:
        return sums
    is_held = any(each.held for each in seen)
    free = 0 if is_held else sums.free.least
    return replace(sums, cards=replace(sums.cards, most=None), free=Many(least=free, most=None))
