"""`tenure serve agent`: what runs on a node, with the device plugin that shows containers cards."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final, Protocol
from urllib.parse import quote

import aiohttp
from prometheus_client import CollectorRegistry, Counter

from agent.checkpoint import FILE_NAME
from agent.decide.env_proof import ProbePod
from agent.decide.gpushare import marking
from agent.decide.isolation import LIBRARY, Provider
from agent.discover.host_files import HostFiles
from agent.discover.sysfs import read_identity
from agent.https import Authority, Caller
from agent.kubelet.watch import KubeletPods
from agent.plugin.files import CardFiles, CheckpointFile, SpecFolder
from agent.plugin.held import HeldHere, HoldingsFile
from agent.plugin.isolating import Isolation
from agent.plugin.preparing import Holdings, SlotPlugin, Slots
from agent.plugin.runtime import RuntimeCheck
from agent.plugin.serving import DevicePlugin, Metrics
from agent.plugin.sharing import GpuShare, ShareSlots
from agent.service.own_node import node_of_token
from agent.witness.asking import Runtime
from agent.witness.confirmer import Gate
from certs.ports import ConflictError
from ledger.domain.errors import InputError
from tenure.exits import with_next
from tenure.kube.objects import KubeObjects, connected
from tenure.serving.agent_environment import FILE_NAME as FILE_NAME_OF_PROOF
from tenure.serving.agent_environment import Prover, proving, stamp_of
from tenure.serving.agent_mode import AgentMode, ShareUnit
from tenure.serving.agent_reporting import NodeToTell, ReportingOptions, cards_probe, reporting
from tenure.serving.agent_witness import Node, WitnessOptions, witness
from tenure.serving.agent_words import ServiceOptions, words_of
from tenure.serving.background import Tasks, every, tasks_of_process, told_to_stop
from tenure.serving.listening import Connections, announced
from tenure.serving.probes import probes_app

_START_BYTES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletOptions:
    """
    Who tells the Pods of this node.

    Attributes:
        url: kubelet's own listener, `https://HOST:PORT`.
        authority: file with whom kubelet's certificate must be of.
        token: file with the token that kubelet mounts for us.
        node: the Node's name, which kubelet's certificate has; empty = the host's of its URL.
    """

    url: str
    authority: Path
    token: Path
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """
    The Pod that proves the mode `env` on a node.

    Attributes:
        image: has the command `tenure`; empty = none is named.
        namespace: where the agent's account may make that Pod.
        runtime_class: of Pods that hold cards; empty = the node's own runtime.
    """

    image: str = ""
    namespace: str = "tenure-system"
    runtime_class: str = ""


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
        kubelet: its listener; None = what needs it is not served.
        reporting: what is told of this machine; None = somebody else tells it.
        runtime: the container runtime's socket, which is asked whether it has CDI; None = whoever
            runs us says that it has.
        mode: how containers are shown their cards.
        share_unit: what GPU share counts memory in.
        witness: who is asked who is on the cards; with the service and a node to report alone.
        probe: in the mode `env`, with a node to report: what proves it.
    """

    probes: tuple[str, int]
    plugins: Path
    cdi: Path
    cards: tuple[Path, ...]
    holdings: Path | ServiceOptions
    slots: int
    isolation: Provider = Provider.NONE
    library: str = LIBRARY
    kubelet: KubeletOptions | None = None
    reporting: ReportingOptions | None = None
    runtime: Path | None = None
    mode: AgentMode = AgentMode.PLUGIN
    share_unit: ShareUnit = ShareUnit.MIB
    witness: WitnessOptions | None = None
    probe: ProbeOptions = ProbeOptions()

    @property
    def has_slots(self) -> bool:
        """Tell whether containers are known by slots, and shown their cards by CDI."""
        in_mib = self.mode is AgentMode.GPUSHARE and self.share_unit is ShareUnit.MIB
        return in_mib or self.mode is AgentMode.PLUGIN


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
    _check(options)
    stopping = told_to_stop()
    registry = CollectorRegistry()
    cards = CardFiles(options.cards)
    cards.cards()  # what can't be read is said at once
    sizes: dict[str, int] = {}
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(tasks_of_process())
        session = await stack.enter_async_context(aiohttp.ClientSession())
        kubelet = _kubelet(options, session)
        holdings: HoldingsFile | HeldHere
        beside: Callable[[], Sequence[str]] = tuple
        told, gate = None, None
        if isinstance(options.holdings, Path):
            holdings = HoldingsFile(options.holdings)
        else:
            assert kubelet is not None
            told = words_of(options.holdings, session, kubelet, registry, tasks)
            _check_node(options, told.node)
            holdings, beside = told.held, told.words.lines
            if options.witness is not None:
                gate = Gate(told.held, options.holdings.state)
        check = options.has_slots and options.runtime and RuntimeCheck(Runtime(options.runtime))
        if check:
            tasks.append(check.run())
        why_no_cdi = check.why_not if check else str
        served = _served(
            options,
            cards,
            sizes,
            gate or holdings,
            kubelet,
            why_no_cdi=why_no_cdi,
            came=(lambda: None) if told is None else told.pods.somebody_came,
        )
        why_not_ready: Callable[[], str] = str
        if served is not None:
            start, metrics = secrets.token_hex(_START_BYTES), Metrics(registry)
            plugin = DevicePlugin(served, folder=options.plugins, start=start, metrics=metrics)
            why_not_ready = plugin.why_not_ready
            tasks.append(plugin.run())
        app = probes_app(registry, why_not_ready, beside)
        await stack.enter_async_context(announced(app, options.probes, "probes", Connections()))
        if options.reporting is not None:
            config = options.reporting.kubeconfig
            connecting = connected(None if config is None else str(config))
            objects = await stack.enter_async_context(connecting)
            node = _proven(
                NodeToTell(held=holdings, sizes=sizes, isolation=options.isolation),
                options,
                objects,
                kubelet,
                registry=registry,
                tasks=tasks,
                own_pod=("", "") if told is None else told.own_pod,
            )
            if isinstance(served, GpuShare | ShareSlots):
                node = replace(node, heard=served.saw)
                _mark(objects, options.reporting.node, served, registry, tasks)
            await reporting(options.reporting, node, objects, registry, tasks)
            if options.witness is not None and told is not None and gate is not None:
                here = Node(
                    name=options.reporting.node,
                    told=told,
                    plugins=options.plugins,
                    specifications=SpecFolder(options.cdi),
                    host=HostFiles(root=options.reporting.host),
                    probe=cards_probe(options.reporting),
                    state=options.reporting.state,
                    objects=objects,
                    gated=served is not None,
                )
                witness(options.witness, here, gate, registry, tasks)
        tasks.start()
        await stopping.wait()


def _mark(
    objects: KubeObjects,
    node: str,
    served: GpuShare | ShareSlots,
    registry: CollectorRegistry,
    tasks: Tasks,
) -> None:
    failed = Counter(
        "tenure_agent_share_failures",
        "Rounds in which shares could not be marked as assigned",
        ["what"],
        registry=registry,
    )
    tasks.append(every(0, "marks", Marker(objects, node, served).round, failed))


def _proven(
    node: NodeToTell,
    options: AgentOptions,
    objects: KubeObjects,
    kubelet: KubeletPods | None,
    *,
    registry: CollectorRegistry,
    tasks: Tasks,
    own_pod: tuple[str, str],
) -> NodeToTell:
    told, probe = options.reporting, options.probe
    if options.mode is not AgentMode.ENV:
        return node
    assert kubelet is not None
    assert told is not None
    boot_id = read_identity(HostFiles(root=told.host)).boot_id
    prover = Prover(
        objects=objects,
        pods=kubelet,
        pod=ProbePod(
            node=told.node,
            namespace=probe.namespace,
            image=probe.image,
            runtime_class=probe.runtime_class,
            owner=own_pod,
        ),
        stamp=partial(stamp_of, boot_id, options.runtime),
        file=told.state / FILE_NAME_OF_PROOF,
    )
    tasks.append(proving(prover, registry))
    return replace(node, heard=prover.saw, closes=prover.closes)


def _check(options: AgentOptions) -> None:
    folders = []
    if options.mode is not AgentMode.ENV:
        folders.append(("--plugins", options.plugins))
    if options.has_slots:
        folders.append(("--cdi", options.cdi))
    for option, folder in folders:
        if not folder.is_dir():
            missing = InputError(f"no such folder: {folder}", field=option)
            raise with_next(missing, "mount the node's own folder there")
    if options.has_slots and not options.cards:
        fact = f"the mode {options.mode} shows cards by their CDI specifications"
        raise with_next(InputError(fact, field="--cards"), "name the file of the vendor's tool")
    if options.isolation is not Provider.NONE and not options.has_slots:
        fact = f"the mode {options.mode} can't bring a library into containers"
        raise with_next(InputError(fact, field="--isolation"), "show cards by slots: --mode plugin")
    if options.reporting is not None:
        if options.mode is AgentMode.ENV and not (options.probe.image and options.kubelet):
            fact = "the mode env is proved by a Pod of our own"
            what = "--probe-image" if options.kubelet else "--kubelet"
            raise with_next(InputError(fact, field=what), "name the image that has `tenure`")
        if options.mode is AgentMode.ENV and options.runtime is None:
            fact = "a proof of the mode env ends with the runtime that gave it, and none is watched"
            raise with_next(InputError(fact, field="--runtime"), "name the runtime's socket")
        return
    if isinstance(options.holdings, ServiceOptions):
        fact = "nobody would tell the service what runs here: what Pods held would never end"
        raise with_next(InputError(fact, field="--node"), "name this machine's Node: --node")
    if options.isolation is not Provider.NONE:
        fact = "nobody tells how large the node's cards are"
        raise with_next(InputError(fact, field="--isolation"), "name the node: --node")
    if options.mode is AgentMode.GPUSHARE:
        fact = "nobody tells which cards the node has"
        raise with_next(InputError(fact, field="--mode"), "name the node: --node")


def _check_node(options: AgentOptions, of_token: str) -> None:
    """Refuse to report another Node than the one that our token is of."""
    if options.reporting is not None and options.reporting.node != of_token:
        fact = f"our token is of another Node: value={options.reporting.node}, token={of_token}"
        raise with_next(InputError(fact, field="--node"), "name the one that we run on")


def _served(
    options: AgentOptions,
    cards: CardFiles,
    sizes: Mapping[str, int],
    holdings: Holdings,
    kubelet: KubeletPods | None,
    *,
    why_no_cdi: Callable[[], str],
    came: Callable[[], None],
) -> SlotPlugin | GpuShare | None:
    if options.mode is AgentMode.ENV:
        return None
    checkpoint = CheckpointFile(options.plugins / FILE_NAME).read
    if not options.has_slots:
        assert kubelet is not None
        return GpuShare(pods=kubelet.pods, checkpoint=checkpoint, holdings=holdings)
    isolation = Isolation(
        provider=options.isolation,
        host=HostFiles(root=Path("/") if options.reporting is None else options.reporting.host),
        sizes=lambda: sizes,
        library=PurePosixPath(options.library),
    )
    slots = Slots(
        count=options.slots,
        start=secrets.token_hex(_START_BYTES),
        specifications=SpecFolder(options.cdi),
        checkpoint=checkpoint,
        holdings=holdings,
        cards=cards.cards,
        isolated=isolation.edits,
    )
    if options.mode is AgentMode.PLUGIN:
        return SlotPlugin(slots, why_no_cdi, came)
    assert kubelet is not None
    return ShareSlots(
        slots, why_no_cdi, came, pods=kubelet.pods, checkpoint=checkpoint, holdings=holdings
    )


def _kubelet(options: AgentOptions, session: aiohttp.ClientSession) -> KubeletPods | None:
    told = options.kubelet
    if told is None:
        return None
    node, service = told.node, options.holdings
    if not node and isinstance(service, ServiceOptions):
        node, _ = node_of_token(service.token)
    caller = Caller(
        session=session,
        url=told.url,
        authority=Authority(told.authority),
        token=told.token,
        server_name=node or None,
    )
    return KubeletPods(caller=caller)


ROUND_SECONDS: Final = 30.0
SETTLE_SECONDS: Final = 0.5
"""After a start, so that the Pods of a burst are read once."""

_log: Final = logging.getLogger("tenure.agent.sharing")


class Objects(Protocol):
    """The API as far as this needs it. Both raise ApiError, `patch` also ConflictError."""

    async def read(self, path: str) -> Mapping[str, Any] | None:
        """Return an object, None if there is none."""
        ...

    async def patch(self, path: str, operations: Sequence[Mapping[str, Any]]) -> object:
        """Apply a JSON patch whole or not at all."""
        ...


class Marker:
    """Reads what the Node's labels say, and marks Pods whose share is assigned."""

    def __init__(self, objects: Objects, node: str, served: GpuShare | ShareSlots) -> None:
        self._objects = objects
        self._node = node
        self._served = served
        self._marked: set[str] = set()

    async def round(self) -> None:
        """
        Do once what there is to do, then wait for a start of a container, not for ever.

        Raises:
            ApiError: the API does not answer.
            NotYetError: kubelet does not.
        """
        self._served.started.clear()
        try:
            node = await self._objects.read(f"/api/v1/nodes/{_of(self._node)}")
            if node is not None:
                self._served.labelled(node["metadata"].get("labels") or {})
            await self._mark()
        finally:
            try:
                async with asyncio.timeout(ROUND_SECONDS):
                    await self._served.started.wait()
                await asyncio.sleep(SETTLE_SECONDS)
            except TimeoutError:
                pass

    async def _mark(self) -> None:
        pods = await self._served.to_mark()
        for pod in pods:
            if pod.uid in self._marked:
                continue
            path = f"/api/v1/namespaces/{_of(pod.namespace)}/pods/{_of(pod.name)}"
            try:
                await self._objects.patch(path, marking(pod))
            except ConflictError as error:  # it is gone, another one, or marked
                _log.info("not marked", extra={"pod_uid": pod.uid, "reason": str(error)})
            else:
                _log.info("marked as assigned", extra={"pod_uid": pod.uid})
            self._marked.add(pod.uid)
        self._marked &= {pod.uid for pod in pods}


def _of(name: str) -> str:
    return quote(name, safe="")
