"""
What Volcano's vGPU plugin and scheduler write on Nodes and Pods.

Rule: docs/contracts/volcano-vgpu.md.
"""

from __future__ import annotations

from typing import Final

from ledger.domain.annotations.wire import is_number
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.systems import UNHEALTHY, VOLCANO, SystemCard, SystemPart

# GPU-a,10,20000,NVIDIA-A10,true,hami-core:GPU-b,...:
VGPU_REGISTER: Final = "volcano.sh/node-vgpu-register"
# GPU-a,NVIDIA,1000,10:;GPU-a,NVIDIA,2000,20:
VGPU_GIVEN: Final = "volcano.sh/vgpu-ids-new"
VGPU_GIVEN_NODE: Final = "volcano.sh/vgpu-node"
VGPU_NUMBER: Final = "volcano.sh/vgpu-number"
VGPU_NAMES: Final = (
    VGPU_NUMBER,
    "volcano.sh/vgpu-memory",
    "volcano.sh/vgpu-cores",
    "volcano.sh/vgpu-memory-percentage",
)

CHOOSING: Final = (
    *(f"nvidia.com/{each}use-gpu{what}" for each in ("", "no") for what in ("type", "uuid")),
    "volcano.sh/vgpu-mode",
)
"""Annotations by which a Pod chooses among cards."""
_FIELDS_MIN: Final = 5
_CARDS_MAX: Final = 1024


def decode_vgpu_register(text: str) -> tuple[SystemCard, ...] | None:
    """Return the cards of a register: `:` parts them, `,` their fields; None for another text."""
    cards = []
    for place, entry in enumerate(filter(None, text.split(":"))):
        fields = entry.split(",")
        numbers = len(fields) >= _FIELDS_MIN and all(map(is_number, fields[1:3]))
        if not numbers or place >= _CARDS_MAX:
            return None
        is_healthy = fields[4].strip().lower() in {"1", "t", "true"}
        in_slices = len(fields) > _FIELDS_MIN and fields[_FIELDS_MIN] == "mig"
        cards.append(
            SystemCard(
                system=VOLCANO,
                key=fields[0],
                id=fields[0],
                minor=place,
                share_count=int(fields[1]),
                memory_mib=int(fields[2]),
                model=fields[3].removeprefix("NVIDIA-"),
                mode="slices" if in_slices else "shares",
                closed="" if is_healthy else UNHEALTHY,
            )
        )
    return tuple(cards)


def decode_vgpu_given(
    text: str, system: str = VOLCANO, driver: str = ""
) -> tuple[SystemPart, ...] | None:
    """
    Return what a Pod's containers have of each card; None for a text of another form.

    `;` parts containers, `:` their cards, `,` the fields: id, kind, MiB, core percent.
    """
    found: dict[str, tuple[int, int]] = {}
    for entry in (one for part in text.split(";") for one in filter(None, part.split(":"))):
        fields = [*entry.split(","), "", "", "", ""]
        card = fields[0].partition("[")[0]
        if not all(map(is_number, fields[2:4])) or len(found) > _CARDS_MAX:
            return None
        before = found.get(card, (0, 0))
        found[card] = (before[0] + int(fields[2]), before[1] + int(fields[3]))
    return tuple(
        SystemPart(
            system=system,
            card=card,
            driver=driver,
            core_percent=core,
            memory_mib=memory,
            whole=core >= WHOLE_PERCENT,
        )
        for card, (memory, core) in found.items()
    )
