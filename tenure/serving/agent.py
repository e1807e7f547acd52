"""`tenure serve agent`: what runs on a node, with the device plugin that shows containers cards."""

from __future__ import annotations

import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry

from agent.checkpoint import FILE_NAME
from agent.plugin.files import CardFiles, CheckpointFile, SpecFolder
from agent.plugin.holdings_file import HoldingsFile
from agent.plugin.metrics import Metrics
from agent.plugin.preparing import SlotPlugin, Slots
from agent.plugin.serving import DevicePlugin
from ledger.domain.errors import InputError
from tenure.exits import with_next
from tenure.serving.agent_reporting import ReportingOptions, reporting
from tenure.serving.background import tasks_of_process, told_to_stop
from tenure.serving.listening import Connections, announced
from tenure.serving.probes import probes_app

_START_BYTES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """
    What the process is told at its start.

    Attributes:
        probes: host and port to listen on; port 0 takes a free one.
        plugins: kubelet's folder of device plugins, with its socket and its checkpoint.
        cdi: the folder of CDI specifications that the container runtime reads and we write.
        cards: CDI specifications of the cards, by their ids, as the vendor's tool writes them.
        holdings: who holds what on this node.
        slots: how many containers with devices may be here at once.
        reporting: what is told of this machine; None = somebody else tells it.
    """

    probes: tuple[str, int]
    plugins: Path
    cdi: Path
    cards: tuple[Path, ...]
    holdings: Path
    slots: int
    reporting: ReportingOptions | None = None


async def serve_agent(options: AgentOptions) -> None:
    """
    Serve until SIGTERM or SIGINT. Containers keep what they have when we go.

    Raises:
        InputError: kubelet can't take so many slots, or a folder or file is missing.
    """
    for option, folder in (("--plugins", options.plugins), ("--cdi", options.cdi)):
        if not folder.is_dir():
            missing = InputError(f"no such folder: {folder}", field=option)
            raise with_next(missing, "mount the node's own folder there")
    stopping = told_to_stop()
    registry, start = CollectorRegistry(), secrets.token_hex(_START_BYTES)
    cards = CardFiles(options.cards)
    cards.cards()  # what can't be read is said at once
    slots = Slots(
        count=options.slots,
        start=start,
        specifications=SpecFolder(options.cdi),
        checkpoint=CheckpointFile(options.plugins / FILE_NAME).read,
        holdings=HoldingsFile(options.holdings),
        cards=cards.cards,
    )
    plugin = DevicePlugin(
        SlotPlugin(slots), folder=options.plugins, start=start, metrics=Metrics(registry)
    )
    async with AsyncExitStack() as stack:
        app = probes_app(registry, plugin.why_not_ready)
        await stack.enter_async_context(announced(app, options.probes, "probes", Connections()))
        tasks = await stack.enter_async_context(tasks_of_process())
        tasks.append(plugin.run())
        if options.reporting is not None:
            await reporting(options.reporting, registry, stack, tasks)
        tasks.start()
        await stopping.wait()
