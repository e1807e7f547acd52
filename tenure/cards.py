"""Which devices a Pod has, in one cell: a whole card is told from a part of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ledger.domain.amounts import format_bytes
from ledger.domain.devices import WHOLE_PERCENT, DeviceShare

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
