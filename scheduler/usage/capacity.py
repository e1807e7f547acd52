"""
What became of the GPUs over time: allocated, stranded, idle, closed, unknown.

Rule: docs/audit.md, "What became of a card". The amounts are the ledger's (`audit_capacity`), which
`usage`, the report and the views by day have in common.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ledger.store.reading.gpu_hours import CapacityChange
from scheduler.usage.model import CapacityPoint, History

PARTS: Final = ("allocated", "stranded", "idle", "closed", "unknown")


def capacity_at(
    changes: Iterable[CapacityChange], moments: Sequence[int]
) -> tuple[CapacityPoint, ...]:
    """Return the parts of the GPUs at each moment; both ascend."""
    points, ahead = [], iter(changes)
    change = next(ahead, None)
    parts = [0] * len(PARTS)
    for moment in moments:
        while change is not None and change.at_us <= moment:
            parts = [part + more for part, more in zip(parts, change[1:], strict=True)]
            change = next(ahead, None)
        points.append(CapacityPoint(moment, *parts))
    return tuple(points)


def capacity_between(
    changes: Iterable[CapacityChange], since_us: int, until_us: int
) -> dict[str, int]:
    """Return the parts of the GPUs over [since, until), in percent times microseconds."""
    sums, parts, at_us = [0] * len(PARTS), [0] * len(PARTS), since_us
    for change in changes:
        if since_us < change.at_us < until_us:
            lasted, at_us = change.at_us - at_us, change.at_us
            sums = [each + part * lasted for each, part in zip(sums, parts, strict=True)]
        if change.at_us < until_us:
            parts = [part + more for part, more in zip(parts, change[1:], strict=True)]
    lasted = max(0, until_us - at_us)
    return {name: each + part * lasted for name, each, part in zip(PARTS, sums, parts, strict=True)}


def in_percent(parts: dict[str, int]) -> dict[str, float] | None:
    """Return parts in percent of the capacity, to a tenth; None without any capacity."""
    whole = sum(parts.values())
    return {name: round(part * 100 / whole, 1) for name, part in parts.items()} if whole else None


def cards_over(history: History) -> frozenset[int]:
    """Return the cards whose holders ever had more core percent together than the card has."""
    edges: dict[int, list[tuple[int, int]]] = {}
    for hold in history.holds:
        core = history.shares[hold.share].core_percent
        card = edges.setdefault(hold.card, [])
        card.append((hold.opened, core))
        if hold.closed is not None:
            card.append((hold.closed, -core))
    return frozenset(card for card, steps in edges.items() if _is_over(history, card, steps))


def _is_over(history: History, card: int, steps: list[tuple[int, int]]) -> bool:
    """Walk one card's edges; what ends at a moment has ended before what begins at it."""
    core, capacity = 0, history.cards[card].core_capacity_percent
    if not capacity:  # a device that left: what it had is not known any more
        return False
    for _, change in sorted(steps):
        core += change
        if core > capacity:
            return True
    return False
