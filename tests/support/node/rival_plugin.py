"""A device plugin that registers our slots as its own, and shows nobody a card."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvloop
from prometheus_client import CollectorRegistry

from agent.plugin.messages import Allocated
from agent.plugin.serving import DevicePlugin, Metrics
from ledger.domain.resources import SLOT
from tenure.serving.logs import set_up_logs
from tests.support.node.plain_plugin import START, WholeCards

PREFIX: Final = "rival"
"""Of its sockets: those of another agent of ours would mean an upgrade."""


class TakenSlots(WholeCards):
    """Slots by their own ids."""

    resource = SLOT

    async def allocate(self, _: Sequence[str]) -> Allocated:
        """Answer with nothing."""
        return Allocated(answer={}, told={})


async def _serve(folder: Path, slots: Sequence[str]) -> None:
    metrics = Metrics(CollectorRegistry())
    plugin = DevicePlugin(TakenSlots(slots), folder=folder, start=START, metrics=metrics)
    plugin._prefix = PREFIX
    await plugin.run()


if __name__ == "__main__":
    set_up_logs()
    uvloop.run(_serve(Path(sys.argv[1]), sys.argv[2:]))
