"""`tenure serve scheduler`: the extender with its view, its ledger and what binds."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack
from typing import Final

from ledger.store.service import open_service
from scheduler.cluster.settings import settings_hash
from scheduler.decide.settings import SchedulingSettings
from scheduler.record.events import DecidedBy
from scheduler.service.agents import SILENT_SECONDS
from scheduler.service.assembly import Ports, assemble
from scheduler.service.freshness import Freshness
from scheduler.service.http import extender_app
from scheduler.service.leading import Leading
from scheduler.service.metrics import Metrics
from scheduler.service.replica import Replica
from tenure.config import read_settings
from tenure.kube.objects import connected
from tenure.kube.reflector import Reflector, SetBackError
from tenure.serving.background import as_coroutine, tasks_of_process
from tenure.serving.listening import Connections, announced
from tenure.serving.probes import probes_app
from tenure.serving.scheduling.agents import agent_routes
from tenure.serving.scheduling.api import answer_people
from tenure.serving.scheduling.certificates import ServingFolder
from tenure.serving.scheduling.cluster import origin_of, reflectors
from tenure.serving.scheduling.label import label_the_leader
from tenure.serving.scheduling.ledger import ProbedLane, beginning_of, refusals_told
from tenure.serving.scheduling.options import ProcessClock, SchedulerOptions
from tenure.serving.scheduling.process import Process
from tenure.serving.scheduling.replica import (
    be_a_replica,
    is_skewed,
    leadership_of,
    why_not_ready,
)
from tenure.serving.scheduling.signing import signer_of, trusted_proofs
from tenure.serving.scheduling.standing import Standing
from tenure.version import tenure_version

LOOK_SECONDS: Final = 2.0
FOLLOW_SECONDS: Final = 0.1

_log: Final = logging.getLogger("tenure.scheduler")


async def serve_scheduler(options: SchedulerOptions) -> None:
    """
    Serve until SIGTERM or SIGINT, then let go of kube-scheduler in order.

    Raises:
        InputError: the settings file, a key or the ledger is wrong.
        ApiError: there are no credentials for a cluster, or it does not answer.
        CertificateError: the certificates can't be served.
        FencedError: another writer took the ledger over.
    """
    settings = SchedulingSettings() if options.config is None else read_settings(options.config)
    metrics = Metrics()
    folder = ServingFolder(options, metrics)
    async with AsyncExitStack() as stack:
        standing = Standing(options)
        process = await _opened(options, settings, metrics, stack, standing)
        await _show_probes(process)
        pods = _follow(process)
        be_a_replica(process, standing, pods)
        await label_the_leader(process)
        process.repeat(LOOK_SECONDS, "certificates", as_coroutine(folder.look))
        process.repeat(LOOK_SECONDS, "holds", as_coroutine(process.live.holds.expire))
        await answer_people(process, agent_routes(process))
        process.tasks.start()
        await _answer(process, folder)


async def _opened(
    options: SchedulerOptions,
    settings: SchedulingSettings,
    metrics: Metrics,
    stack: AsyncExitStack,
    standing: Standing,
) -> Process:
    """Open the ledger of our cluster, and put together what decides."""
    stopping, woken = _told_to_stop(), asyncio.Event()
    clock, freshness = ProcessClock(), Freshness()
    objects = await stack.enter_async_context(connected(options.kubeconfig))
    origin = await origin_of(objects)
    service = await stack.enter_async_context(open_service(options.ledger, write=True))
    begun = await asyncio.to_thread(beginning_of, options.ledger, origin)
    recorder = ProbedLane(service, freshness, clock.monotonic)
    stack.push_async_callback(recorder.close)
    leadership = leadership_of(options, objects, freshness, recorder)
    leading = Leading(
        now=clock.monotonic,
        lease_until=lambda: leadership.until,
        skewed=lambda: is_skewed(objects),
        fresh=freshness.why_not,
        quarantined=lambda: freshness.quarantine,
    )
    tasks = await stack.enter_async_context(tasks_of_process())
    holder = f"scheduler/{options.replica}"
    words = DecidedBy(
        policy=settings.node_policy,
        settings_hash=settings_hash(settings, seed=0),
        tenure_version=tenure_version(),
    )
    ports = Ports(
        origin=origin,
        recorder=recorder,
        api=objects,
        clock=clock,
        freshness=freshness,
        leading=leading,
        words=words,
        proofs=signer_of(options, origin, lambda: standing.incarnation),
        told=refusals_told(options.ledger),
        start=tasks.run,
        wake=woken.set,
        actor=holder,
        trusted=trusted_proofs(options),
        skew=lambda: objects.skew().total_seconds(),
    )
    live = assemble(settings, begun, ports)
    return Process(
        options=options,
        settings=settings,
        stack=stack,
        stopping=stopping,
        woken=woken,
        clock=clock,
        metrics=metrics,
        objects=objects,
        origin=origin,
        service=service,
        recorder=recorder,
        freshness=freshness,
        leadership=leadership,
        leading=leading,
        replica=Replica(live, leading, begun),
        holder=holder,
        words=words,
        begun=begun,
        live=live,
        tasks=tasks,
    )


def _told_to_stop() -> asyncio.Event:
    """Return what SIGTERM and SIGINT set."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


async def _show_probes(process: Process) -> None:
    """Listen for kubelet and Prometheus."""
    live, metrics, leading = process.live, process.metrics, process.leading
    metrics.count_drift(live.reconciling.count)
    metrics.read(
        nodes=lambda: len(live.view.nodes.nodes),
        faults=lambda: len(live.inventory.faults),
        position=lambda: live.view.position,
        holds=lambda: len(live.holds),
        unconfirmed=lambda: sum(map(len, live.releasing.waiting.values())),
        quarantined=lambda: bool(process.freshness.quarantine),
        unrecorded=lambda: len(live.releasing.faults),
        unexplained=lambda: len(live.refusing),
        waiting_pods=live.view.pods.waiting,
        binding=live.binder.under_way,
        epoch=lambda: leading.epoch,
        answering=lambda: not leading.why_not(),
        oldest_unconfirmed_seconds=live.releasing.oldest_seconds,
        agents=lambda: len(live.agents.reported),
        silent_agents=lambda: sum(each >= SILENT_SECONDS for each in live.agents.seconds()),
    )
    metrics.count_cards(live.view.engine.card_counts, each=process.options.card_metrics)
    for name, words, label, counts in (
        ("tenure_refusals", "Refusals, by what became of them.", "what", live.refusing.counts),
        ("tenure_soft_holds_ended", "Soft holds, by why they ended.", "why", live.holds.ended),
        ("tenure_bind_acts", "Acts of binding, with their outcome.", "act", live.binder.counts),
        ("tenure_agent_words", "What agents confirmed, by result.", "what", live.agents.counts),
        ("tenure_kubernetes_events", "Events for people, by fate.", "what", live.telling.counts),
    ):
        metrics.count(name, words, label, counts.copy)
    app = probes_app(metrics.registry, lambda: why_not_ready(process))
    listens = announced(app, process.options.probes, "probes", Connections())
    await process.stack.enter_async_context(listens)


def _follow(process: Process) -> Reflector:
    """
    Follow the cluster's collections; return who follows Pods.

    An API server that was set back ends the process: what it lists lacks Pods that run, and the
    next start compares it with the ledger before anything is released.
    """
    followed = reflectors(process.live, process.objects)
    process.freshness.followed = followed
    process.metrics.watch_staleness(followed)
    for name, one in followed.items():
        process.repeat(FOLLOW_SECONDS, name, one.follow, fatal=(SetBackError,))
    return followed["pods"]


async def _answer(process: Process, folder: ServingFolder) -> None:
    """Answer kube-scheduler until the process is told to stop, and a while longer."""
    connections = Connections()
    app = extender_app(
        process.live.extender, process.metrics, connections.answering, process.leading.is_silent
    )
    where, drain = process.options.extender, process.options.drain_seconds
    async with announced(app, where, "extender", connections, folder.serving.context):
        await process.stopping.wait()
        _log.info("draining", extra={"seconds": drain})
        await asyncio.sleep(drain)
