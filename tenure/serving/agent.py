"""`tenure serve agent`: what runs on a node, with the device plugin that shows containers cards."""

from __future__ import annotations

import random
import secrets
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import aiohttp
from prometheus_client import CollectorRegistry

from agent.checkpoint import FILE_NAME
from agent.decide.isolation import LIBRARY, Provider
from agent.discover.host_files import HostFiles
from agent.https import Authority, Caller
from agent.kubelet.pods import KubeletPods
from agent.kubelet.watch import PodsHere
from agent.plugin.files import CardFiles, CheckpointFile, SpecFolder
from agent.plugin.held import HeldHere
from agent.plugin.holdings_file import HoldingsFile
from agent.plugin.isolating import Isolation
from agent.plugin.metrics import Metrics
from agent.plugin.preparing import SlotPlugin, Slots
from agent.plugin.serving import DevicePlugin
from agent.service.link import ServiceLink
from ledger.domain.errors import InputError
from tenure.exits import with_next
from tenure.serving.agent_reporting import NodeToTell, ReportingOptions, reporting
from tenure.serving.background import Tasks, tasks_of_process, told_to_stop
from tenure.serving.listening import Connections, announced
from tenure.serving.probes import probes_app

_START_BYTES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """
    Who tells the holdings of this node.

    Attributes:
        url: of the service's API, `https://HOST:PORT`.
        authority: file with whom its certificate must be of.
        token: file with the token that kubelet mounts for us; it says which node we are.
        kubelet: kubelet's own listener, `https://HOST:PORT`.
        kubelet_authority: file with whom kubelet's certificate must be of.
        node: the Node's name, which kubelet's certificate has; empty = the host's of its URL.
    """

    url: str
    authority: Path
    token: Path
    kubelet: str
    kubelet_authority: Path
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """
    What the process is told at its start.

    Attributes:
        probes: host and port to listen on; port 0 takes a free one.
        plugins: kubelet's folder of device plugins, with its socket and its checkpoint.
        cdi: the folder of CDI specifications that the container runtime reads and we write.
        cards: CDI specifications of the cards, by their ids, as the vendor's tool writes them.
        holdings: who holds what on this node: a file, or the service.
        slots: how many containers with devices may be here at once.
        isolation: what keeps containers to their parts of cards, with `library` on the node.
        reporting: what is told of this machine; None = somebody else tells it.
    """

    probes: tuple[str, int]
    plugins: Path
    cdi: Path
    cards: tuple[Path, ...]
    holdings: Path | ServiceOptions
    slots: int
    isolation: Provider = Provider.NONE
    library: str = LIBRARY
    reporting: ReportingOptions | None = None


def provider_of(text: str, option: str) -> Provider:
    """
    Return the provider that an option names.

    Raises:
        InputError: there is no such one.
    """
    try:
        return Provider.named(text)
    except InputError as error:
        raise InputError(str(error), field=option) from error


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
    if options.isolation is not Provider.NONE and options.reporting is None:
        fact = "nobody tells how large the node's cards are"
        raise with_next(InputError(fact, field="--isolation"), "name the node: --node")
    stopping = told_to_stop()
    registry, start = CollectorRegistry(), secrets.token_hex(_START_BYTES)
    cards = CardFiles(options.cards)
    cards.cards()  # what can't be read is said at once
    sizes: dict[str, int] = {}
    isolation = Isolation(
        provider=options.isolation,
        host=HostFiles(root=Path("/") if options.reporting is None else options.reporting.host),
        sizes=lambda: sizes,
        library=PurePosixPath(options.library),
    )
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(tasks_of_process())
        holdings = await _holdings(options.holdings, stack, tasks)
        slots = Slots(
            count=options.slots,
            start=start,
            specifications=SpecFolder(options.cdi),
            checkpoint=CheckpointFile(options.plugins / FILE_NAME).read,
            holdings=holdings,
            cards=cards.cards,
            isolated=isolation.edits,
        )
        plugin = DevicePlugin(
            SlotPlugin(slots), folder=options.plugins, start=start, metrics=Metrics(registry)
        )
        app = probes_app(registry, plugin.why_not_ready)
        await stack.enter_async_context(announced(app, options.probes, "probes", Connections()))
        tasks.append(plugin.run())
        if options.reporting is not None:
            node = NodeToTell(held=holdings, sizes=sizes, isolation=options.isolation)
            await reporting(options.reporting, node, registry, stack, tasks)
        tasks.start()
        await stopping.wait()


async def _holdings(
    options: Path | ServiceOptions, stack: AsyncExitStack, tasks: Tasks
) -> HoldingsFile | HeldHere:
    """Return who tells what containers hold, with the tasks that keep it known."""
    if isinstance(options, Path):
        return HoldingsFile(options)
    session = await stack.enter_async_context(aiohttp.ClientSession())
    service = Caller(
        session=session,
        url=options.url,
        authority=Authority(options.authority),
        token=options.token,
    )
    kubelet = Caller(
        session=session,
        url=options.kubelet,
        authority=Authority(options.kubelet_authority),
        token=options.token,
        server_name=options.node or None,
    )
    link = ServiceLink(service, clock=time.monotonic, draw=random.random)
    pods = PodsHere(KubeletPods(caller=kubelet))
    tasks += [link.run(), pods.run()]
    return HeldHere(link, pods)
