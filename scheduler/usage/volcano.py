"""
Volcano's vGPUs: who holds how much of which card.

Rule: docs/contracts/volcano-vgpu.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ledger.domain.devices import WHOLE_PERCENT, level_percent
from ledger.domain.log.events import PodObserved
from ledger.domain.request import extended
from scheduler.usage.claims import VgpuCard, VgpuPart, Vgpus
from scheduler.usage.picture import (
    CardGroup,
    DeviceNow,
    HolderNow,
    Units,
    Unplaced,
    group_of,
)

SYSTEM: Final = "volcano"
UNHEALTHY: Final = "unhealthy"
NUMBER: Final = "volcano.sh/vgpu-number"
NAMES: Final = (
    NUMBER,
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-cores",
    "volcano.sh/vgpu-memory-percentage",
)


def volcano_groups(
    node: str,
    vgpus: Vgpus,
    *,
    is_open: bool,
    offers: Mapping[str, int],
    pods: Sequence[PodObserved],
) -> Iterator[CardGroup]:
    """Yield the cards of a node that Volcano's plugin registered, by model and memory."""
    cards, parts = vgpus.cards.get(node, ()), vgpus.parts.get(node, ())
    counts = {pod.pod_uid: extended.held(pod.snapshot) for pod in pods}
    held = {name: sum(each.get(name, 0) for each in counts.values()) for name in NAMES}
    units = {
        name: Units(allocatable=offers.get(name, 0), held=held[name])
        for name in NAMES
        if offers.get(name) or held[name]
    }
    known = {card.id for card in cards}
    named = {part.uid for part in parts if part.card in known}
    unplaced = [
        Unplaced(
            namespace=pod.namespace,
            name=pod.pod_name,
            uid=pod.pod_uid,
            amount=counts[pod.pod_uid][NUMBER],
            unit=NUMBER,
            is_counted=False,
        )
        for pod in pods
        if pod.pod_uid not in named and counts[pod.pod_uid].get(NUMBER)
    ]
    likes: dict[tuple[str, int], list[VgpuCard]] = {}
    for card in cards:
        likes.setdefault((card.model, card.memory_mib), []).append(card)
    if unplaced and not likes:
        likes["", 0] = []
    for (model, memory), some in likes.items():
        yield group_of(
            system=SYSTEM,
            mode="slices" if any(card.in_slices for card in some) else "shares",
            model=model,
            memory_mib=memory or None,
            devices=[_device(card, parts) for card in some],
            is_open=is_open,
            units=units,
            unplaced=unplaced,
        )


def _device(card: VgpuCard, parts: Sequence[VgpuPart]) -> DeviceNow:
    return DeviceNow(
        id=card.id,
        minor=card.minor,
        healthy=card.healthy,
        closed=None if card.healthy else UNHEALTHY,
        holders=tuple(_holder(part, card) for part in parts if part.card == card.id),
    )


def _holder(part: VgpuPart, card: VgpuCard) -> HolderNow:
    memory = part.memory_mib * WHOLE_PERCENT // card.memory_mib if card.memory_mib else 0
    return HolderNow(
        namespace=part.namespace,
        name=part.name,
        uid=part.uid,
        core_percent=part.core_percent or None,
        memory_mib=part.memory_mib or None,
        whole=part.core_percent >= WHOLE_PERCENT,
        level_percent=min(WHOLE_PERCENT, level_percent(part.core_percent, memory)),
    )
