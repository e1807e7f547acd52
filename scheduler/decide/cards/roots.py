"""PCIe roots: which devices are under one, and which roots nobody uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ledger.domain.annotations.device_hints import DeviceExclusivePolicy, DeviceHint
from scheduler.decide.outcome import CardView


def root_of(card: CardView) -> str:
    """Return the PCIe root of a device, empty where the inventory does not tell."""
    place = card.record.place
    return "" if place is None else place.pcie_id


def roots_of(cards: Iterable[CardView]) -> frozenset[str]:
    """Return the roots of these devices; the empty text is among them where one is unknown."""
    return frozenset(map(root_of, cards))


def selected(cards: Sequence[CardView], hint: DeviceHint | None) -> list[CardView]:
    """Return the devices whose labels the hint's selector takes (Koordinator contract 2.1)."""
    if hint is None or hint.selector is None:
        return list(cards)
    return [card for card in cards if hint.selector.matches(card.record.labels)]


def undisturbed(
    offered: Sequence[CardView], of_type: Sequence[CardView], hint: DeviceHint | None
) -> list[CardView]:
    """
    Return the devices that are left where whole PCIe roots are asked for.

    Rule: Koordinator contract, quirk Q5 as "ours": a root with any used device of the type is
    out. A device without a known root stands for itself.
    """
    if hint is None or hint.exclusive_policy is not DeviceExclusivePolicy.PCIE_LEVEL:
        return list(offered)
    used = roots_of(card for card in of_type if card.tenants) - {""}
    return [card for card in offered if not card.tenants and root_of(card) not in used]
