"""How the cards of some nodes stand, in the words that the map and a simulation end with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ledger.domain.amounts import format_bytes, format_cards
from ledger.domain.devices import WHOLE_PERCENT, DeviceShare
from scheduler.usage import picture
from tenure.picture import many_text

if TYPE_CHECKING:
    from ledger.store.reading.report_rows import HolderRow


def cards_text(parts: Iterable[DeviceShare | HolderRow]) -> str:
    """
    Return devices by type.

    `gpu:0,1` are two whole cards, `gpu:0(30%)` is a part of the core, `gpu:0(8 GiB)` of the memory
    alone; in one cell `gpu:0(10%),2(20%) rdma:0`.
    """
    by_type: dict[str, list[str]] = {}
    for part in parts:
        if part.device_type is not None:
            by_type.setdefault(part.device_type, []).append(f"{part.minor}{_share(part)}")
    return " ".join(f"{kind}:{','.join(minors)}" for kind, minors in by_type.items())


def _share(part: DeviceShare | HolderRow) -> str:
    if part.core_percent:
        return f"({part.core_percent}%)" if part.core_percent < WHOLE_PERCENT else ""
    if part.memory_ratio_percent >= WHOLE_PERCENT or not part.memory_bytes:
        return ""
    return f"({format_bytes(part.memory_bytes)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardTotals:
    """
    How the cards of some nodes stand.

    Attributes:
        parts: what became of them; a Pod on a card that nobody can name holds it whole.
        free: that a Pod which tolerates nothing could get.
        apart: free ones of closed nodes, which it could not.
        split: free ones that are given in replicas or slices alone, so that nobody gets one whole.
        closed: that take no grants.
        unknown: held, and nobody knows which they are.
    """

    nodes: int
    cards: picture.Many
    parts: picture.Parts
    free: picture.Many
    apart: int
    split: picture.Many
    closed: int
    unknown: int

    @property
    def percent(self) -> int:
        """Return what is allocated of them in percent, rounded down."""
        return self.parts.allocated * WHOLE_PERCENT // (self.parts.capacity or 1)

    def __str__(self) -> str:
        cards = f"{many_text(self.cards)} {self._noun}"
        return f"{nodes_text(self.nodes)}, {cards}: {self.percent} % held, {self.left}"

    @property
    def allocated(self) -> str:
        """Say how many cards are allocated, and what is left."""
        parts = self.parts
        percent = parts.allocated * WHOLE_PERCENT / (parts.capacity or 1)
        return (
            f"{format_cards(parts.allocated)} of {many_text(self.cards)} {self._noun} allocated"
            f" ({percent:.2f}%), {self.left}"
        )

    @property
    def left(self) -> str:
        """Say what is not held, why, and what nobody can name."""
        parts = [f"{many_text(self.free)} free"]
        if self.apart:
            parts.append(f"{self.apart:,} more free on closed nodes")
        if self.split != picture.NONE:
            parts.append(f"{many_text(self.split)} more free in replicas or slices")
        if self.closed:
            parts.append(f"{self.closed:,} closed")
        if self.unknown:
            parts.append(f"{self.unknown:,} on unknown cards")
        return ", ".join(parts)

    @property
    def _noun(self) -> str:
        return "card" if self.cards.exact == 1 else "cards"


def totals_of(nodes: Iterable[picture.NodeNow]) -> CardTotals:
    """Return how the GPUs of the nodes stand together."""
    nodes = list(nodes)
    sums = sum((picture.sums_of(node) for node in nodes), picture.Sums())
    cards = [
        card
        for node in nodes
        for group in picture.gpu_groups(node)
        for card in picture.cards_of(group)
    ]
    shut = (picture.sums_of(node) for node in nodes if not node.is_open)
    return CardTotals(
        nodes=len(nodes),
        cards=sums.cards,
        parts=sum((picture.parts_of(node) for node in nodes), picture.Parts()),
        free=sums.gettable,
        apart=sum(each.free.least for each in shut),
        split=sum(
            (
                group.free
                for node in nodes
                for group in picture.gpu_groups(node)
                if node.is_open and group.mode in {"replicas", "slices"}
            ),
            picture.NONE,
        ),
        closed=sum(not card.is_good for card in cards),
        unknown=sum(picture.unplaced_cards(node) for node in nodes),
    )


def nodes_text(count: int) -> str:
    """Return a number of nodes with its noun."""
    return f"{count:,} node{'' if count == 1 else 's'}"
