"""
A device plugin that gives each slot one name for ever, and writes its meaning anew each time.

It is what the plugin must not be: with it the runtime may know a name from before, and show a
container the cards of the Pod that had its slot. The proof that a test would see that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import uvloop
from prometheus_client import CollectorRegistry

from agent.checkpoint import FILE_NAME
from agent.plugin.files import CardFiles, CheckpointFile, OtherContentError, SpecFolder
from agent.plugin.held import HoldingsFile
from agent.plugin.preparing import SlotPlugin, Slots
from agent.plugin.serving import DevicePlugin, Metrics
from tenure.serving.logs import set_up_logs

START = "0123456789abcdef"


class OneName(Slots):
    """Slots with one name each."""

    def name_for(self, slots: Iterable[str]) -> str:
        """Return the slot's only name."""
        return f"{min(slots)}.{START}.1"


class Overwriting(SpecFolder):
    """Specifications that are written again."""

    def write(self, name: str, content: str) -> bool:
        """Give a name its newest meaning."""
        with suppress(OtherContentError):
            return super().write(name, content)
        path = self._path(name)
        with self._beside(path, content) as whole:
            whole.rename(path)
        return True


async def _serve(folder: Path, plugins: Path, cdi: Path) -> None:
    slots = OneName(
        count=1,
        start=START,
        specifications=Overwriting(cdi),
        checkpoint=CheckpointFile(plugins / FILE_NAME).read,
        holdings=HoldingsFile(folder / "holdings.json"),
        cards=CardFiles([folder / "vendor.json"]).cards,
    )
    metrics = Metrics(CollectorRegistry())
    await DevicePlugin(SlotPlugin(slots), folder=plugins, start=START, metrics=metrics).run()


if __name__ == "__main__":
    set_up_logs()
    uvloop.run(_serve(*(Path(argument) for argument in sys.argv[1:])))
