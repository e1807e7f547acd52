"""What HAMi writes, written again from docs/contracts/hami.md 3 and 4."""

from __future__ import annotations

import json
from collections.abc import Iterable

from tests.support.objects import Object

ALLOCATED = "hami.io/vgpu-devices-allocated"
REGISTER = "hami.io/node-nvidia-register"

Given = tuple[str, int, int]
"""UUID, MiB and percent of compute."""


def allocated(*containers: Iterable[Given]) -> str:
    """Return the annotation of a Pod whose containers got these cards."""
    return "".join(
        "".join(f"{uuid},NVIDIA,{mib},{cores}:" for uuid, mib, cores in cards) + ";"
        for cards in containers
    )


def registered(*cards: Object) -> str:
    """Return the annotation of a Node since v2.8.0; what is 0, empty or false is left out."""
    return json.dumps(
        [
            {name: value for name, value in card.items() if value not in ("", 0, False)}
            for card in cards
        ]
    )


def registered_v2_7(*cards: Object, fields: int = 9) -> str:
    """Return the annotation of a Node until v2.7.0, of 7 or 9 fields a card."""
    names = ("id", "count", "devmem", "devcore", "type", "numa", "health", "index", "mode")
    texts = (
        ",".join(
            str(value).lower() if isinstance(value, bool) else str(value)
            for value in (card[name] for name in names[:fields])
        )
        for card in cards
    )
    return "".join(f"{text}:" for text in texts)


def card(uuid: str, /, *, index: int = 0, mib: int = 32768, **more: object) -> Object:
    """Return a card as the device plugin knows it."""
    return {
        "id": uuid,
        "index": index,
        "count": 10,
        "devmem": mib,
        "devcore": 100,
        "type": "NVIDIA-Tesla V100-PCIE-32GB",
        "numa": 0,
        "mode": "hami-core",
        "health": True,
        **more,
    }
