"""GPU-hours of cards that no row of a device says: whole ones, where nobody can say less."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Final

from ledger.domain.devices import WHOLE_PERCENT
from ledger.store.reading.report_rows import UnplacedRow, UsageRecord
from scheduler.usage.machines import DeviceKey

HOUR_US: Final = 3_600_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlisted:
    """
    What a Pod held that no row of a device says.

    Attributes:
        percent: of all the cards together, of which each whole one is 100.
        among: the cards that it may be; empty = any that the machine's inventory has.
        card: the one that it is, where somebody can name it.
    """

    row: UnplacedRow
    cards: int
    percent: int
    model: str = ""
    among: tuple[DeviceKey, ...] = ()
    card: DeviceKey | None = None


@dataclass(slots=True)
class _Shared:
    """Something of which several hold parts, and for how long a part of it has counted so far."""

    room: int
    at_us: int
    asked: int = 0
    counted_us: int = 0

    def pass_to(self, at_us: int) -> None:
        """Let time pass: it goes slower while more is asked for than there is."""
        lasted, self.at_us = at_us - self.at_us, at_us
        self.counted_us += lasted * self.room // self.asked if self.asked > self.room else lasted

    @property
    def taken(self) -> int:
        """Return what of it is somebody's."""
        return min(self.room, self.asked)


def unlisted(rows: Iterable[UnplacedRow]) -> Iterator[Unlisted]:
    """Yield what Pods held on cards of the inventory that nobody can name."""
    for row in rows:
        if row.gpu_count > 0:
            yield Unlisted(row=row, cards=row.gpu_count, percent=WHOLE_PERCENT * row.gpu_count)


def counted_us(
    held: Sequence[Unlisted],
    cards: Iterable[DeviceKey],
    window: tuple[int, int],
    passing: AbstractSet[DeviceKey] = frozenset(),
) -> list[int]:
    """
    Return for how many microseconds of a window each of these counts all that it asks for.

    Rule: docs/audit.md, GPU-hours.

    Args:
        held: all that was held of these cards, each with a card or some that it may be.
        cards: whole ones; those of a node whose holder nobody can name are any that are left.
        passing: those of them that are there only while somebody holds them.
    """
    since, until = window
    there = Counter(card[0] for card in cards if card not in passing)
    rooms = defaultdict[str, _Shared](lambda: _Shared(0, since))
    rooms.update({n: _Shared(WHOLE_PERCENT * number, since) for n, number in there.items()})
    tenants = Counter[DeviceKey]()
    named: dict[DeviceKey, _Shared] = {}
    edges: list[tuple[int, int, int]] = []
    for number, each in enumerate(held):
        begin, ended = max(since, each.row.opened_at_us), each.row.counted_until_us
        end = until if ended is None else min(until, ended)
        if begin < end and (each.card or each.among):
            edges += ((begin, number, 1), (end, number, -1))
    counted = [0] * len(held)
    for at, number, sign in sorted(edges):
        each = held[number]
        room = rooms[(each.card or each.among[0])[0]]
        room.pass_to(at)
        part = room
        if each.card is not None:
            part = named.setdefault(each.card, _Shared(WHOLE_PERCENT, since))
            part.pass_to(at)
            room.room += part.taken
            if each.card in passing:
                before, tenants[each.card] = tenants[each.card], tenants[each.card] + sign
                room.room += WHOLE_PERCENT * (bool(tenants[each.card]) - bool(before))
        counted[number] -= sign * part.counted_us
        part.asked += sign * each.percent
        if each.card is not None:
            room.room -= part.taken
    return counted


def with_unplaced(
    rows: Iterable[UsageRecord], by: str, held: Iterable[tuple[Unlisted, int]]
) -> list[UsageRecord]:
    """
    Return usage with the GPU-hours of cards that no row of a device has, by group.

    Args:
        by: `namespace`, `owner`, `labels` or `model`.
        held: what was held, and for how many microseconds that counts.
    """
    hours: dict[str, float] = {}
    pods: dict[str, set[str]] = {}
    for each, lasted in held:
        if not lasted:
            continue
        key = each.model if by == "model" else str(getattr(each.row, by))
        hours[key] = hours.get(key, 0.0) + each.percent * lasted / WHOLE_PERCENT / HOUR_US
        pods.setdefault(key, set()).add(each.row.pod_uid)
    found = {record.group: record for record in rows}
    for key, more in hours.items():
        record = found.get(key)
        if record is None:
            none = None if by == "model" else 0.0
            record = UsageRecord(group=key, pods=0, gpu_hours=0.0, cpu_hours=none)
        number = record.pods + len(pods[key]) if by == "model" else record.pods
        found[key] = replace(record, pods=number, gpu_hours=record.gpu_hours + more)
    return [found[key] for key in sorted(found)]
