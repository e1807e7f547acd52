"""What was wrong with cards and counts until somebody says that it is over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from agent.discover.machine import MIG_NOT_SERVED, Card, Discovery, Fault
from ledger.domain.bounds import Name

IGNORED: Final = frozenset(f"Xid{number}" for number in (13, 31, 43, 45, 68, 109))
"""A fault of the program that ran, not of the card (Koordinator contract 9.1)."""
ENVIRONMENT_UNPROVED: Final = "EnvironmentUnproved"
"""Nobody has shown yet that this node's runtime shows containers the cards of their annotations."""
PASSING: Final = frozenset({MIG_NOT_SERVED, ENVIRONMENT_UNPROVED})
"""States that a card is in, and gets out of by itself."""
CARD_FAULTS_MAX: Final = 16
"""Kept of one card: a broken one has a new Xid every minute, and the first tell why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFault:
    """A card's driver said this of it; an empty UUID is a card that could not be named."""

    uuid: Name
    reason: Name
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """
    What every card was found with since it was last declared whole.

    Rule: Koordinator contract 12, Q14, and design section 8: an Xid or an ECC error closes a card
    and evicts nobody; only an explicit event opens it again. Neither a restart nor a look that
    finds nothing does.

    Attributes:
        kept: by UUID and reason, at most `CARD_FAULTS_MAX` of a card.
    """

    kept: tuple[CardFault, ...] = ()

    def of(self, uuid: str) -> tuple[Fault, ...]:
        """Return what is wrong with a card."""
        return tuple(
            Fault(reason=one.reason, message=one.message) for one in self.kept if one.uuid == uuid
        )


def after_events(faults: Faults, events: Iterable[CardFault]) -> Faults:
    """Return the faults after what the driver said. The first word of a reason stays."""
    kept = {(one.uuid, one.reason): one for one in faults.kept}
    for event in events:
        key = (event.uuid, event.reason)
        known = sum(uuid == event.uuid for uuid, _ in kept)
        is_new = event.uuid and event.reason not in IGNORED and key not in kept
        if is_new and known < CARD_FAULTS_MAX:
            kept[key] = event
    return Faults(kept=tuple(kept[key] for key in sorted(kept)))


def after_look(faults: Faults, found: Discovery) -> Faults:
    """Return the faults after a look: what a card shows of its memory stays, too."""
    return after_events(
        faults,
        [
            CardFault(uuid=card.uuid, reason=fault.reason, message=fault.message)
            for card in found.cards
            for fault in card.faults
            if fault.reason not in PASSING
        ],
    )


def recovered(faults: Faults, uuid: str) -> Faults:
    """Return the faults once somebody has said that a card is whole again."""
    return Faults(kept=tuple(one for one in faults.kept if one.uuid != uuid))


def marked(found: Discovery, faults: Faults, on_all: Iterable[Fault] = ()) -> Discovery:
    """Return the devices with all that counts against them; `on_all` counts against each card."""
    everywhere = tuple(on_all)

    def with_faults(card: Card) -> Card:
        now = {one.reason: one for one in (*card.faults, *faults.of(card.uuid), *everywhere)}
        return replace(card, faults=tuple(now[reason] for reason in sorted(now)))

    return replace(found, cards=tuple(map(with_faults, found.cards)))
