"""`tenure serve agent`: what runs on a node, with the device plugin that shows containers cards."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import Any, Final, Protocol

import aiohttp
from prometheus_client import CollectorRegistry, Counter

from agent.checkpoint import FILE_NAME
from agent.decide.env_proof import ProbePod
from agent.decide.gpushare import marking
from agent.decide.isolation import Provider
from agent.discover.host_files import HostFiles
from agent.discover.sysfs import read_identity
from agent.kubelet.watch import KubeletPods
from agent.plugin.files import CardFiles, CheckpointFile, SpecFolder
from agent.plugin.held import HeldHere, HoldingsFile
from agent.plugin.isolating import Isolation
from agent.plugin.preparing import Holdings, SlotPlugin, Slots
from agent.plugin.runtime import RuntimeCheck
from agent.plugin.serving import DevicePlugin, Metrics
from agent.plugin.sharing import GpuShare, ShareSlots
from agent.service.own_node import node_of_token
from agent.witness.asking import PodResources, Runtime
from agent.witness.confirmer import Gate
from certs.ports import ConflictError, api_path
from ledger.domain.errors import InputError
from tenure.exits import with_next
from tenure.kube.objects import KubeObjects, connected
from tenure.serving.agent_cpus import make_cpu_reader
from tenure.serving.agent_environment import FILE_NAME as FILE_NAME_OF_PROOF
from tenure.serving.agent_environment import Prover, proving, stamp_of
from tenure.serving.agent_options import AgentMode, AgentOptions
from tenure.serving.agent_reporting import NodeToTell, reporting
from tenure.serving.agent_witness import witness
from tenure.serving.agent_words import expect_https, kubelet_of, words_of
from tenure.serving.background import Tasks, every, tasks_of_process, told_to_stop
from tenure.serving.connections import Connections
from tenure.serving.listening import announced
from tenure.serving.probes import probes_app

_START_BYTES: Final = 10


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
        if options.holdings is not None:
            holdings = HoldingsFile(options.holdings)
        else:
            told = words_of(options, session, kubelet, registry, tasks, mode=options.mode)
            _check_node(options, told.node)
            holdings, beside = told.held, told.words.lines
            gate = Gate(told.held, options.state)
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
            plugin = DevicePlugin(
                served,
                folder=options.plugins,
                start=start,
                metrics=metrics,
                offered=PodResources(options.pod_resources).offered,
            )
            why_not_ready = plugin.why_not_ready
            tasks.append(plugin.run())
        app = probes_app(registry, why_not_ready, beside)
        await stack.enter_async_context(announced(app, options.probes, "probes", Connections()))
        if options.node:
            config = options.kubeconfig
            connecting = connected(None if config is None else str(config))
            objects = await stack.enter_async_context(connecting)
            node = _proven(
                NodeToTell(held=holdings, sizes=sizes, isolation=options.provider),
                options,
                objects,
                kubelet,
                registry=registry,
                tasks=tasks,
                own_pod=("", "") if told is None else told.own_pod,
            )
            if options.topology:
                node = replace(node, cpus=make_cpu_reader(options, kubelet, options.kubelet_root))
            if isinstance(served, GpuShare | ShareSlots):
                node = replace(node, heard=served.saw)
                _mark(objects, options.node, served, registry, tasks)
            await reporting(options, node, objects, registry, tasks)
            if told is not None and gate is not None:
                gated = served is not None
                witness(options, told, objects, gate, gated=gated, registry=registry, tasks=tasks)
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
    kubelet: KubeletPods,
    *,
    registry: CollectorRegistry,
    tasks: Tasks,
    own_pod: tuple[str, str],
) -> NodeToTell:
    if options.mode is not AgentMode.ENV:
        return node
    boot_id = read_identity(HostFiles(root=options.host)).boot_id
    prover = Prover(
        objects=objects,
        pods=kubelet,
        pod=ProbePod(
            node=options.node,
            namespace=options.probe_namespace,
            image=options.probe_image,
            runtime_class=options.probe_runtime_class,
            owner=own_pod,
        ),
        stamp=partial(stamp_of, boot_id, options.runtime),
        file=options.state / FILE_NAME_OF_PROOF,
    )
    tasks.append(proving(prover, registry))
    return replace(node, heard=prover.saw, closes=prover.closes)


def _check(options: AgentOptions) -> None:
    if bool(options.service) == (options.holdings is not None):
        fact = "the holdings are told by the service or by a file: give one of the two"
        raise InputError(fact, field="--service")
    expect_https(options)
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
    if options.provider is not Provider.NONE and not options.has_slots:
        fact = f"the mode {options.mode} can't bring a library into containers"
        raise with_next(InputError(fact, field="--isolation"), "show cards by slots: --mode plugin")
    if options.node:
        if options.mode is AgentMode.ENV and not options.probe_image:
            missing = InputError(
                "the mode env is proved by a Pod of our own", field="--probe-image"
            )
            raise with_next(missing, "name the image that has `tenure`")
        if options.mode is AgentMode.ENV and options.runtime is None:
            fact = "a proof of the mode env ends with the runtime that gave it, and none is watched"
            raise with_next(InputError(fact, field="--runtime"), "name the runtime's socket")
        return
    if options.service:
        fact = "nobody would tell the service what runs here: what Pods held would never end"
        raise with_next(InputError(fact, field="--node"), "name this machine's Node: --node")
    if options.provider is not Provider.NONE:
        fact = "nobody tells how large the node's cards are"
        raise with_next(InputError(fact, field="--isolation"), "name the node: --node")
    if options.mode is AgentMode.GPUSHARE:
        fact = "nobody tells which cards the node has"
        raise with_next(InputError(fact, field="--mode"), "name the node: --node")


def _check_node(options: AgentOptions, of_token: str) -> None:
    """Refuse to report another Node than the one that our token is of."""
    if options.node and options.node != of_token:
        fact = f"our token is of another Node: value={options.node}, token={of_token}"
        raise with_next(InputError(fact, field="--node"), "name the one that we run on")


def _served(
    options: AgentOptions,
    cards: CardFiles,
    sizes: Mapping[str, int],
    holdings: Holdings,
    kubelet: KubeletPods,
    *,
    why_no_cdi: Callable[[], str],
    came: Callable[[], None],
) -> SlotPlugin | GpuShare | None:
    if options.mode is AgentMode.ENV:
        return None
    checkpoint = CheckpointFile(options.plugins / FILE_NAME).read
    if not options.has_slots:
        return GpuShare(pods=kubelet.pods, checkpoint=checkpoint, holdings=holdings)
    isolation = Isolation(
        provider=options.provider,
        host=HostFiles(root=options.host),
        sizes=lambda: sizes,
        library=PurePosixPath(options.isolation_library),
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
    return ShareSlots(
        slots, why_no_cdi, came, pods=kubelet.pods, checkpoint=checkpoint, holdings=holdings
    )


def _kubelet(options: AgentOptions, session: aiohttp.ClientSession) -> KubeletPods:
    node = options.node
    if not node and options.service:
        node, _ = node_of_token(options.token)
    return kubelet_of(options, session, node)


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
        """Mark what waits, then wait for a start, not for ever. Raises ApiError, NotYetError."""
        self._served.started.clear()
        try:
            node = await self._objects.read(api_path("v1", "nodes", self._node))
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
            path = api_path("v1", "namespaces", pod.namespace, "pods", pod.name)
            try:
                await self._objects.patch(path, marking(pod))
            except ConflictError as error:  # it is gone, another one, or marked
                _log.info("not marked", extra={"pod_uid": pod.uid, "reason": str(error)})
            else:
                _log.info("marked as assigned", extra={"pod_uid": pod.uid})
            self._marked.add(pod.uid)
        self._marked &= {pod.uid for pod in pods}
