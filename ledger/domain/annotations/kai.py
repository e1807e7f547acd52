"""
What KAI-Scheduler and run:ai write on Pods that share a card.

Rule: docs/contracts/kai.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ledger.domain.annotations.wire import annotation_path, is_number

GROUP: Final = "runai-gpu-group"  # a label: cfbc; of several cards runai-gpu-group/cfbc: cfbc
FRACTION: Final = "gpu-fraction"  # 0.5
MEMORY: Final = "gpu-memory"  # 4000, in MiB
_DEVICES: Final = "gpu-fraction-num-devices"  # 2
RESERVED: Final = "run.ai/reserve_for_gpu_index"  # GPU-f89440fa-..., of old releases 0
_PART: Final = re.compile(r"0?\.[0-9]{1,9}|1(\.0{1,9})?")
_QUEUES: Final = ("kai.scheduler/queue", "runai/queue")
_SCHEDULERS: Final = ("", "default-scheduler")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartAsked:
    """What a Pod has of each of its cards; where neither amount is there it is not known."""

    fraction: Fraction
    memory_mib: int
    field: str
    text: str

    def memory_bytes(self, of_card: int) -> int:
        """Return the bytes of a card that has so many."""
        return self.memory_mib << 20 or int(self.fraction * of_card)


def groups_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the cards that a Pod is on, by the names of their groups."""
    own = (value for key, value in labels.items() if key.partition("/")[0] == GROUP)
    return tuple(sorted(dict.fromkeys(filter(None, own))))


def memory_of(labels: Mapping[str, str]) -> int:
    """Return the bytes of each card that a Node's label tells; 0 = not told."""
    text = labels.get("nvidia.com/gpu.memory", "")
    return int(text) << 20 if is_number(text) else 0


def keeps_a_place(name: str) -> bool:
    """Tell whether a Pod of this name has a card for others that are on it."""
    return name.startswith(("gpu-reservation", "runai-reservation"))


def part_asked(
    annotations: Mapping[str, str], labels: Mapping[str, str], scheduler: str
) -> PartAsked | None:
    """Return what a Pod asks of cards by annotation; None for nothing, or where nobody reads it."""
    field = next((key for key in (FRACTION, MEMORY) if key in annotations), None)
    is_read = scheduler not in _SCHEDULERS or groups_of(labels) or any(map(labels.get, _QUEUES))
    if field is None or not is_read:
        return None
    text, many = annotations[field], annotations.get(_DEVICES)
    fraction = text if field == FRACTION and _PART.fullmatch(text) else "0"
    return PartAsked(
        fraction=Fraction(fraction),
        memory_mib=int(text) if field == MEMORY and is_number(text) else 0,
        field=annotation_path(field),
        text=f"{text}{' MiB' * (field == MEMORY)} of {f'each of {many} GPUs' if many else 'a GPU'}",
    )
