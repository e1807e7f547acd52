"""
Devices that others hand out, as a node and the Pods on it tell: by number, claim or annotation.

Values of events. What a node has is the node's, what of it a Pod was given is the Pod's. Nothing is
granted by any of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ledger.domain.annotations.wire import Named
from ledger.domain.bounds import Count, Index, Units
from ledger.domain.devices import DeviceRecord

DRA: Final = "dra"
VOLCANO: Final = "volcano"
UNHEALTHY: Final = "unhealthy"
CORDONED: Final = "cordoned"
"""Why a card is closed, as whoever lists it has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemCard:
    """
    A card that others hand out, by claims or by annotations.

    Attributes:
        system: `dra`, `volcano` or a dialect.
        key: what a Pod's part calls it; one system has it once on a node.
        driver: whose it is: a driver of dynamic resource allocation, or a dialect's vendor.
        minor: -1 where it has none.
        mode: `whole`, `slices` or `shares`.
        share_count: how often it is handed out at most; 0 where nothing says so.
        closed: why it takes nobody; empty where it does.
    """

    system: str
    key: str
    driver: str = ""
    id: str = ""
    minor: Index = -1
    model: str = ""
    memory_mib: Count | None = None
    mode: str = "whole"
    share_count: Count = 0
    closed: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPart:
    """
    What was given of one card, or of a device that is no card.

    Attributes:
        card: the key of the card.
        claim: `namespace/name` of the claim by which it was given; those that it is for have it
            together.
        core_percent, memory_mib: None where nobody said.
        whole: all of the card.
        is_card: it is one, or a part of one.
    """

    system: str
    card: str
    driver: str = ""
    claim: str = ""
    core_percent: Units | None = None
    memory_mib: Count | None = None
    whole: bool = False
    is_card: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimant:
    """A Pod that a claim is reserved for."""

    name: Named
    uid: Named


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptClaim:
    """
    An allocated claim that is not told by Pods which run there.

    Attributes:
        pods: those that it is for; none where they are gone.
        state: why none of them tells of it; empty = no Pod uses it.
    """

    claim: str
    parts: tuple[SystemPart, ...]
    pods: tuple[Claimant, ...] = ()
    state: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSystems:
    """
    What a node's objects say of devices beside those that are inventoried.

    Attributes:
        offers: what its Node object offers, in whole units by the name that stands there.
        capacity: what it has, ill devices too, of what it has not as many of as it offers.
        cards: in the order of what tells of them.
        others: driver -> how many devices it has that are no cards.
        claims: allocated ones whose Pods don't run there.
        closed: ids of inventoried cards that take nobody though they are healthy, and why.
        unread: systems whose register can't be read, with the resource or vendor that it is of.
        scaled: ids of inventoried cards, with the core percent and bytes that others give of them,
            by which what they gave is judged.
    """

    offers: tuple[tuple[str, Count], ...] = ()
    capacity: tuple[tuple[str, Count], ...] = ()
    cards: tuple[SystemCard, ...] = ()
    others: tuple[tuple[str, Count], ...] = ()
    claims: tuple[KeptClaim, ...] = ()
    scaled: tuple[tuple[str, Count, Count], ...] = ()
    closed: tuple[tuple[str, str], ...] = ()
    unread: tuple[tuple[str, str], ...] = ()

    def excess(self, card: DeviceRecord) -> tuple[int, int]:
        """Return how much core percent and memory others give of a card beyond what it has."""
        for scaled, core, memory in self.scaled:
            if scaled == card.device_id:
                return max(0, core - card.core_percent), max(0, memory - card.memory_bytes)
        return 0, 0

    def there(self) -> Mapping[str, int]:
        """Return how many there are of each resource, ill ones too."""
        return {**dict(self.offers), **dict(self.capacity)}


NO_SYSTEMS: Final = DeviceSystems()
