"""Virtual functions: one per chosen device, the smallest free one that the Pod's selector takes."""

from __future__ import annotations

import re
from typing import Final

from ledger.domain.annotations.device_hints import LabelSelector
from scheduler.decide.outcome import CardView

_BUS_ID: Final = re.compile(
    r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-9a-f]{1,3})"
)


def free_function(card: CardView, selector: LabelSelector) -> str | None:
    """
    Return the bus id of the VF that the next Pod would get of this device, None without one.

    Rule: Koordinator contract 8.6, "VF choice", and quirk Q15 as "ours": bus ids are compared as
    numbers. A VF without a bus id can't be told from another one and is never handed out.
    """
    free = [
        vf.bus_id
        for vf in card.record.vfs
        if vf.bus_id and vf.bus_id not in card.vfs_in_use and selector.matches(vf.labels)
    ]
    return min(free, key=bus_order, default=None)


def bus_order(bus_id: str) -> tuple[bool, tuple[int, ...], str]:
    """Return a sort key: domain, bus, device, function; what is no bus id comes last, as text."""
    parts = _BUS_ID.fullmatch(bus_id.lower())
    if parts is None:
        return True, (), bus_id
    return False, tuple(int(part or "0", 16) for part in parts.groups()), bus_id
