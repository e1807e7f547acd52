"""What a container of the probe Pod says of itself: its variable, and the cards that it sees."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from agent.decide.env_proof import Seen
from ledger.domain.resources import ENV_NVIDIA_VISIBLE

TOLD: Final = Path("/dev/termination-log")
"""What is written there kubelet tells of the container."""
_CARD: Final = re.compile(r"nvidia([0-9]+)")


def say(environment: Mapping[str, str], *, devices: Path, told: Path) -> None:
    """Write what is seen among the device nodes of a folder."""
    numbers = sorted(
        int(found[1]) for one in devices.iterdir() if (found := _CARD.fullmatch(one.name))
    )
    seen = Seen(
        visible=environment.get(ENV_NVIDIA_VISIBLE),
        cards=[f"/dev/nvidia{number}" for number in numbers],
    )
    told.write_bytes(msgspec.json.encode(seen))
