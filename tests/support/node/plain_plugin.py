"""
A device plugin of whole cards as a vendor's: kubelet chooses the card, and nobody else is asked.

It is what a node had before Tenure came.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import uvloop
from prometheus_client import CollectorRegistry

from agent.plugin import messages
from agent.plugin.messages import Allocated
from agent.plugin.serving import DevicePlugin, Metrics
from ledger.domain.resources import NVIDIA_GPU
from tenure.serving.logs import set_up_logs

START: Final = "fedcba9876543210"


class WholeCards:
    """Cards by their own ids."""

    resource = NVIDIA_GPU
    allocate_seconds = 0.0
    prefers = False

    def __init__(self, cards: Sequence[str]) -> None:
        devices = [{"ID": each, "health": "Healthy"} for each in cards]
        self._all = messages.ListAndWatchResponse(devices=devices)

    def begin(self) -> None:
        """Remember nothing."""

    def why_not(self) -> str:
        """Be there."""
        return ""

    def listing(self) -> Any:  # noqa: ANN401 - a message
        """Return all cards."""
        return self._all

    async def allocate(self, ids: Sequence[str]) -> Allocated:
        """Tell the runtime by the environment, and show the cards."""
        paths = [f"/dev/card-{one.rpartition('-')[2]}" for one in ids]
        answer = {
            "envs": {"NVIDIA_VISIBLE_DEVICES": ",".join(ids)},
            "devices": [
                {"container_path": path, "host_path": "/dev/null", "permissions": "rw"}
                for path in paths
            ],
        }
        return Allocated(answer=answer, told={})

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """Return any."""
        return [*must, *(each for each in available if each not in must)][:size]

    async def prepare(self, _: frozenset[str]) -> Mapping[str, object]:
        """Let it start."""
        return {}

    def sweep(self) -> int:
        """Keep nothing."""
        return 0


async def _serve(folder: Path, cards: Sequence[str]) -> None:
    metrics = Metrics(CollectorRegistry())
    await DevicePlugin(WholeCards(cards), folder=folder, start=START, metrics=metrics).run()


if __name__ == "__main__":
    set_up_logs()
    uvloop.run(_serve(Path(sys.argv[1]), sys.argv[2:]))
