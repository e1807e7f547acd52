"""
What became of the GPUs over time: allocated, stranded, idle, closed, unknown.

Rule: docs/audit.md, "What became of a card". The amounts are the ledger's (`audit_capacity`), which
`usage`, the report and the views by day have in common; those of cards that no inventory has are
counted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Final

from ledger.domain.devices import WHOLE_PERCENT
from ledger.store.reading.gpu_hours import CapacityChange
from ledger.store.reading.report_rows import LostRange
from scheduler.usage.machines import DeviceKey
from scheduler.usage.model import CapacityPoint, History
from scheduler.usage.others import OthersRows
from scheduler.usage.picture import with_unnamed
from scheduler.usage.unplaced import Unlisted

PARTS: Final = ("allocated", "stranded", "idle", "closed", "unknown")


@dataclass(slots=True)
class _Given:
    """The cards of one node that others hand out, and who holds what of them at a moment."""

    cards: Mapping[DeviceKey, bool]  # whether it is good
    passing: AbstractSet[DeviceKey]  # there only while somebody holds it
    asked: Counter[DeviceKey] = field(default_factory=Counter)
    tenants: Counter[DeviceKey] = field(default_factory=Counter)
    unnamed: int = 0
    there: int = 0
    lost: int = 0

    def change(self, held: Unlisted, sign: int) -> None:
        """Let somebody begin (1) or end (-1) to hold something."""
        if held.card is None:
            self.unnamed += sign * held.percent
        else:
            self.asked[held.card] += sign * held.percent
            self.tenants[held.card] += sign

    def parts(self) -> tuple[int, ...]:
        """Return what became of them, in the order of `PARTS`."""
        parts = dict.fromkeys(PARTS, 0)
        for card, is_good in self.cards.items() if self.there else ():
            if card in self.passing and not self.tenants[card]:
                continue
            used = min(WHOLE_PERCENT, self.asked[card])
            left = "stranded" if self.tenants[card] else "idle"
            left = "unknown" if self.lost else left if is_good else "closed"
            parts["allocated"] += used
            parts[left] += WHOLE_PERCENT - used
        return tuple(with_unnamed(parts, self.unnamed).values())


def changes_of_others(
    others: OthersRows,
    there: Mapping[str, tuple[int, int | None]],
    ranges: Sequence[LostRange],
) -> list[CapacityChange]:
    """
    Return every change of the parts of cards that no inventory has, by time.

    Args:
        there: UID of a node -> from when to when they are there, None = still.
    """
    ill = {(row.node_uid, row.device_type, row.minor) for row in others.health}
    cards: dict[str, dict[DeviceKey, bool]] = {}
    for key in sorted(others.given):
        cards.setdefault(key[0], {})[key] = key not in ill
    held: dict[str, list[Unlisted]] = {}
    for each in others.used:
        if each.card or each.among:
            held.setdefault((each.card or each.among[0])[0], []).append(each)
    sums: dict[int, list[int]] = {}
    for uid, some in cards.items():
        edges = _edges(held.get(uid, ()), there.get(uid, (0, 0)), ranges)
        node, before = _Given(cards=some, passing=others.passing), (0,) * len(PARTS)
        for at_us, acts in groupby(edges, key=itemgetter(0)):
            for _, act in acts:
                act(node)
            now = node.parts()
            change = sums.setdefault(at_us, [0] * len(PARTS))
            sums[at_us] = [c + n - b for c, n, b in zip(change, now, before, strict=True)]
            before = now
    return [CapacityChange(at_us, *sums[at_us]) for at_us in sorted(sums)]


_Act = Callable[[_Given], None]


def _edges(
    held: Iterable[Unlisted], there: tuple[int, int | None], ranges: Iterable[LostRange]
) -> list[tuple[int, _Act]]:
    """Return when something changes about a node's cards, and what, by time."""

    def count(name: str, sign: int) -> _Act:
        return lambda node: setattr(node, name, getattr(node, name) + sign)

    def hold(each: Unlisted, sign: int) -> _Act:
        return lambda node: node.change(each, sign)

    found = [
        *(((at, count("there", sign)) for at, sign in zip(there, (1, -1), strict=True))),
        *((each.opened_at_us, count("lost", 1)) for each in ranges),
        *((each.closed_at_us, count("lost", -1)) for each in ranges),
        *((each.row.opened_at_us, hold(each, 1)) for each in held),
        *((each.row.counted_until_us, hold(each, -1)) for each in held),
    ]
    return sorted(((at, act) for at, act in found if at is not None), key=itemgetter(0))


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
