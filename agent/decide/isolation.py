"""
What keeps a container to its part of a card: the limits that HAMi-core reads, and its library.

Rule: Koordinator contract 9.2; per container out of its holding, and for every part of a card on a
node that has a provider (docs/DIVERGENCES.md). Whole cards are limited by nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from agent.decide.slots_cdi import Edits
from ledger.domain.annotations.proof import ProvenDevice
from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.errors import InputError, TenureError
from ledger.domain.resources import ENV_CUDA_VISIBLE, HAMI_CORE, TYPE_GPU

LIBRARY: Final = "/usr/local/vgpu/libvgpu.so"
"""Where a container finds the library, and, unless the settings say otherwise, the node has it."""
LOCKS: Final = "/tmp/vgpulock"  # noqa: S108 - the library's own, a mount of ours
"""Where processes that start on one card wait for one another, of whichever container."""
CACHE: Final = "/run/vgpu-cache"
"""What the processes of one container count in together; new at each start, and gone with it."""

_MEMORY: Final = "CUDA_DEVICE_MEMORY_LIMIT"
_CORES: Final = "CUDA_DEVICE_SM_LIMIT"
_SHARED: Final = "CUDA_DEVICE_MEMORY_SHARED_CACHE"
_ORDER: Final = "CUDA_DEVICE_ORDER"
_PRELOAD: Final = "LD_PRELOAD"
_CACHE_BYTES: Final = 16 << 20
_MOUNTED: Final = ("nosuid", "nodev")


class Provider(StrEnum):
    """What limits parts of cards on a node, as its label says it."""

    NONE = "none"
    HAMI_CORE = HAMI_CORE

    @classmethod
    def named(cls, text: str) -> Provider:
        """Return the provider of this name, in any case. Raises InputError: there is none."""
        for one in cls:
            if one.lower() == text.lower():
                return one
        raise InputError(f"expected one of {', '.join(cls)}: value={text!r}")


class UnknownSizeError(TenureError):
    """Nobody has said yet how large a card is, so a part of it can't be told from it. Retry."""

    def __init__(self, device_id: str) -> None:
        super().__init__(f"the card's size is not known: device={device_id}")


def limits_of(devices: Sequence[ProvenDevice], sizes: Mapping[str, int]) -> dict[str, str]:
    """
    Return the variables that limit one container; none where all of its cards are whole.

    Bytes as they are held, compute in percent. One card is limited by the plain names; of several
    each part by its place among the container's cards by minor, and the order is fixed by the PCI
    bus. Compute that was not asked for is not limited.

    Args:
        devices: what the container holds.
        sizes: the bytes of every card of the node by id, less what the driver keeps.

    Raises:
        UnknownSizeError: a card that it holds is not among them.
    """
    cards = sorted((one for one in devices if one.device_type == TYPE_GPU), key=_minor)
    found: dict[str, str] = {}
    for place, card in enumerate(cards):
        if card.device_id not in sizes:
            raise UnknownSizeError(card.device_id)
        suffix = f"_{place}" if len(cards) > 1 else ""
        if 0 < card.memory_bytes < sizes[card.device_id]:
            found[f"{_MEMORY}{suffix}"] = str(card.memory_bytes)
        if 0 < card.core_percent < WHOLE_PERCENT:
            found[f"{_CORES}{suffix}"] = str(card.core_percent)
    if found and len(cards) > 1:
        found[_ORDER] = "PCI_BUS_ID"
        found[ENV_CUDA_VISIBLE] = ",".join(map(str, range(len(cards))))
    return found


def limited(limits: Mapping[str, str], *, library: str, locks: str) -> Edits:
    """
    Return how the runtime keeps a container to its limits; nothing where it has none.

    What it adds to the environment counts over what the Pod says there.

    Args:
        library: the node's path of the library; `locks` of the folder that containers share.
    """
    if not limits:
        return {}
    said = {**limits, _PRELOAD: LIBRARY, _SHARED: f"{CACHE}/cache"}
    bound = ["rbind", *_MOUNTED]
    return {
        "env": [f"{name}={text}" for name, text in sorted(said.items())],
        "mounts": [
            {"hostPath": library, "containerPath": LIBRARY, "options": [*bound, "ro"]},
            {"hostPath": locks, "containerPath": LOCKS, "options": [*bound, "rw", "noexec"]},
            {
                "hostPath": "tmpfs",
                "containerPath": CACHE,
                "type": "tmpfs",
                "options": [*_MOUNTED, "noexec", "mode=1777", f"size={_CACHE_BYTES}"],
            },
        ],
    }


def _minor(device: ProvenDevice) -> int:
    return device.minor
