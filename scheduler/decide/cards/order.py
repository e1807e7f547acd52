"""How full a device would be: the order in which devices that fit are taken."""

from __future__ import annotations

from typing import Final

from ledger.domain.devices import GPU, WHOLE_PERCENT
from ledger.domain.request.requests import DeviceDemand
from scheduler.decide.outcome import CardView

MOST_ALLOCATED: Final = "MostAllocated"
LEAST_ALLOCATED: Final = "LeastAllocated"


def score(card: CardView, demand: DeviceDemand, *, scoring: str) -> int:
    """
    Return how full (MostAllocated) or else how empty the device would be, 0..100.

    Rule: Koordinator contract 8.2: the integer mean over memory ratio and memory of a GPU, the
    unit asked for alone counting as requested; one unit for other types and for GPUs that report
    no memory. 40 GiB with 16 GiB used, ratio 25 asked: most (65 + 40) / 2 = 52, least 47.
    """
    most = scoring == MOST_ALLOCATED
    record = card.record
    total = record.memory_bytes
    if record.device_type != GPU or not total:
        used = record.core_percent - card.core_free + demand.core_percent
        return _part(used, record.core_percent, most=most)
    used = total - card.memory_free
    ratio_used = -(-used * WHOLE_PERCENT // total)  # up: bytes came from a ratio by rounding down
    by_ratio = _part(ratio_used + demand.memory_ratio_percent, WHOLE_PERCENT, most=most)
    by_bytes = _part(used + demand.memory_bytes, total, most=most)
    return (by_ratio + by_bytes) // 2


def _part(used: int, total: int, *, most: bool) -> int:
    """Return the percentage used or left of one resource; 0 when there is none of it."""
    if not total:
        return 0
    used = min(used, total)
    return (used if most else total - used) * WHOLE_PERCENT // total
