"""GPU-hours of cards that no row of a device says: whole ones, where nobody can say less."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.log.unnamed import unnamed_cards
from ledger.store.reading.report_rows import UnplacedRow, UsageRecord
from scheduler.usage.machines import DeviceKey
from scheduler.usage.pods import pod_of

HOUR_US: Final = 3_600_000_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Unlisted:
    """
    What a Pod held that no row of a device says.

    Attributes:
        percent: of all the cards together, of which each whole one is 100.
        among: the cards that it may be; empty = any that the machine's inventory has.
    """

    row: UnplacedRow
    cards: int
    percent: int
    model: str = ""
    among: tuple[DeviceKey, ...] = ()


def unlisted(rows: Iterable[UnplacedRow]) -> Iterator[Unlisted]:
    """Yield what Pods held on cards of the inventory that nobody can name."""
    for row in rows:
        cards = unnamed_cards(pod_of(row))
        if cards:
            yield Unlisted(row=row, cards=cards, percent=WHOLE_PERCENT * cards)


def with_unplaced(
    rows: Iterable[UsageRecord],
    by: str,
    unplaced: Iterable[Unlisted],
    window: tuple[int, int],
) -> list[UsageRecord]:
    """
    Return usage with the GPU-hours of cards that no row of a device has, by group.

    Args:
        by: `namespace`, `owner`, `labels` or `model`.
        window: since and until, microseconds.
    """
    since, until = window
    hours: dict[str, float] = {}
    pods: dict[str, set[str]] = {}
    for each in unplaced:
        row = each.row
        ended = until if row.counted_until_us is None else min(until, row.counted_until_us)
        lasted = ended - max(since, row.opened_at_us)
        if lasted <= 0:
            continue
        key = each.model if by == "model" else str(getattr(row, by))
        hours[key] = hours.get(key, 0.0) + each.percent * lasted / WHOLE_PERCENT / HOUR_US
        pods.setdefault(key, set()).add(row.pod_uid)
    found = {record.group: record for record in rows}
    for key, more in hours.items():
        record = found.get(key)
        if record is None:
            none = None if by == "model" else 0.0
            record = UsageRecord(group=key, pods=0, gpu_hours=0.0, cpu_hours=none)
        number = record.pods + len(pods[key]) if by == "model" else record.pods
        found[key] = replace(record, pods=number, gpu_hours=record.gpu_hours + more)
    return [found[key] for key in sorted(found)]
