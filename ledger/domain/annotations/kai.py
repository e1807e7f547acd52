"""What KAI-Scheduler and run:ai write on Pods that share a card (docs/contracts/kai.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from ledger.domain.annotations.wire import annotation_path, is_number

GROUP: Final = "runai-gpu-group"  # a label: cfbc; of several cards runai-gpu-group/cfbc: cfbc
RESERVED: Final = "run.ai/reserve_for_gpu_index"  # GPU-f89440fa-..., of old releases 0
_FRACTION: Final = "gpu-fraction"  # 0.5
_MEMORY: Final = "gpu-memory"  # 4000, in MiB
_DEVICES: Final = "gpu-fraction-num-devices"  # 2
_PART: Final = re.compile(r"0?\.[0-9]{1,9}|1(\.0{1,9})?")
SOURCE: Final = "kai"  # of what a Pod with a group's label holds
_KEEPING: Final = ("kai-resource-reservation", "runai-reservation")
_QUEUES: Final = ("kai.scheduler/queue", "runai/queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartAsked:
    """What a Pod has of each of its cards: of neither amount it can't be read."""

    field: str
    text: str
    fraction: Fraction
    memory_mib: int


def groups_of(labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return the cards that a Pod is on, by the names of their groups."""
    return tuple(sorted({labels[key] for key in labels if key.partition("/")[0] == GROUP}))


def keeps_a_place(name: str, namespace: str = "", source: str = SOURCE) -> bool:
    """Tell whether a Pod has a card for others that are on it: of a group, or where such are."""
    is_named = name.startswith(("gpu-reservation", "runai-reservation"))
    return is_named and (source == SOURCE or namespace in _KEEPING)


def part_asked(
    annotations: Mapping[str, str], labels: Mapping[str, str], scheduler: str
) -> PartAsked | None:
    """Return what a Pod asks of cards by annotation; None for nothing, or where nobody reads it."""
    field = next((key for key in (_FRACTION, _MEMORY) if key in annotations), None)
    is_read = scheduler not in {"", "default-scheduler"} or groups_of(labels)
    if field is None or not (is_read or any(key in labels for key in _QUEUES)):
        return None
    text, many = annotations[field], annotations.get(_DEVICES)
    is_part, of = field == _FRACTION, f"each of {many} GPUs" if many else "a GPU"
    return PartAsked(
        field=annotation_path(field),
        text=f"{text} of {of}" if is_part else f"{text} MiB of {of}",
        fraction=Fraction(text if is_part and _PART.fullmatch(text) else 0),
        memory_mib=int(text) if not is_part and is_number(text) else 0,
    )
