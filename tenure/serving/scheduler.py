"""`tenure serve scheduler`: the extender with its view, its ledger and what binds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final

from certs.ports import ApiError
from ledger.domain.errors import CorruptLedgerError, LedgerError, UnknownEventError
from ledger.store.service import Service, open_service
from ledger.store.threaded import in_thread
from scheduler.cluster.settings import settings_hash
from scheduler.decide.settings import DEFAULT_SCHEDULING, SchedulingSettings
from scheduler.gate.configuration import OPEN
from scheduler.record.events import DecidedBy
from scheduler.service.agents import SILENT_SECONDS
from scheduler.service.api.http import LateRoutes
from scheduler.service.assembly import assemble
from scheduler.service.beginning import Beginning
from scheduler.service.freshness import API_AWAY, AWAY, Freshness
from scheduler.service.http import EXTENDER, calls_app, extender_calls
from scheduler.service.leading import Leading
from scheduler.service.metrics import Metrics
from scheduler.service.permits import LOOK_SECONDS as PERMIT_SECONDS
from scheduler.service.replica import Replica
from scheduler.service.world import Ports
from tenure.kube.lease import SKEW_MAX
from tenure.kube.objects import KubeObjects, connected, waiting_helps
from tenure.kube.reflector import Reflector, SetBackError
from tenure.serving.background import as_coroutine, tasks_of_process, told_to_stop, unless
from tenure.serving.bodies import Bodies
from tenure.serving.connections import Connections
from tenure.serving.listening import Http2, announced
from tenure.serving.memory import give_back, look_seldom, trim
from tenure.serving.probes import probes_app
from tenure.serving.scheduling import replica
from tenure.serving.scheduling.agents import agent_routes
from tenure.serving.scheduling.cluster import origin_of, reflectors, why_not_expected
from tenure.serving.scheduling.gate import attempts_in, guarding, observe_claims
from tenure.serving.scheduling.ledger import ProbedLane, beginning_of, refusals_told
from tenure.serving.scheduling.options import SchedulerOptions
from tenure.serving.scheduling.process import Process, ProcessClock
from tenure.serving.scheduling.signing import ServingFolder, proof_key_of, signer_of
from tenure.serving.scheduling.standing import Standing
from tenure.sources.yaml_text import yaml_documents
from tenure.version import tenure_version
from webhook.decide.settings import SERVICE_ACCOUNTS

LOOK_SECONDS: Final = 2.0
START_SECONDS: Final = 60.0
"""So long a start may take once it has its ledger: cycles are looked for as usual afterwards."""
TRIM_SECONDS: Final = 10.0
"""1,000 connections that came and went leave 50 MB of free pages between those in use."""
FOLLOW_SECONDS: Final = 0.1

_log: Final = logging.getLogger("tenure.scheduler")


async def serve_scheduler(options: SchedulerOptions) -> None:
    """
    Serve until SIGTERM or SIGINT, then let go of kube-scheduler in order.

    Raises:
        InputError: the settings file, a key or the ledger is wrong.
        ApiError: there are no credentials for a cluster, or it does not take them.
        CertificateError: the certificates can't be served.
        FencedError: another writer took the ledger over.
    """
    look_seldom()
    settings, accounts = _settings_of(options)
    metrics = Metrics()
    folder = ServingFolder(options, metrics)
    async with AsyncExitStack() as stack:
        started = await _started(options, metrics, stack)
        found = await unless(started.stopping, _found(started, accounts))
        if found is None:
            return
        asyncio.get_running_loop().call_later(START_SECONDS, give_back)
        standing = Standing(options)
        process = await _opened(started, settings, standing, found)
        _show(process)
        started.process = process
        pods = _follow(process)
        replica.be_a_replica(process, standing, pods)
        await replica.label_the_leader(process)
        process.repeat(LOOK_SECONDS, "certificates", as_coroutine(folder.look))
        process.repeat(TRIM_SECONDS, "memory", as_coroutine(trim))
        process.repeat(LOOK_SECONDS, "holds", as_coroutine(process.live.holds.expire))
        process.repeat(LOOK_SECONDS, "preemptions", as_coroutine(process.live.preempting.expire))
        process.repeat(PERMIT_SECONDS, "permits", as_coroutine(process.live.permits.expire))
        if started.late is not None:
            from tenure.serving.scheduling.api import answer_people

            answer_people(process, started.late, agent_routes(process, standing))
        observe_claims(process)
        process.tasks.start()
        if options.gate is not None:
            await stack.enter_async_context(guarding(process, options.gate))
        await _answer(process, folder)


def _settings_of(options: SchedulerOptions) -> tuple[SchedulingSettings, frozenset[str]]:
    if options.config is None:
        return DEFAULT_SCHEDULING, SERVICE_ACCOUNTS
    from tenure.settings import read_service_accounts, read_settings

    return read_settings(options.config), read_service_accounts(options.config)


@dataclass(slots=True, kw_only=True)
class Started:
    """
    What a process has before there is a ledger.

    Attributes:
        late: what is answered to people once there is one; None = nobody is.
        away: what is waited for, until there is a ledger.
        wrong: what of the cluster is not as this process expects it.
    """

    options: SchedulerOptions
    metrics: Metrics
    stack: AsyncExitStack
    stopping: asyncio.Event
    objects: KubeObjects
    late: LateRoutes | None = None
    away: str = API_AWAY
    wrong: str = ""
    process: Process | None = None

    def why_not_ready(self) -> str:
        """Return why no calls should come here, empty when they may."""
        return (
            self.away if self.process is None else self.wrong or replica.why_not_ready(self.process)
        )


async def _started(options: SchedulerOptions, metrics: Metrics, stack: AsyncExitStack) -> Started:
    """Listen for probes, and for clients that look around: that takes no ledger."""
    started = Started(
        options=options,
        metrics=metrics,
        stack=stack,
        stopping=told_to_stop(),
        objects=await stack.enter_async_context(connected(options.kubeconfig)),
    )
    beside = (OPEN,) if options.gate and options.gate_open else ()
    app = probes_app(metrics.registry, started.why_not_ready, lambda: beside)
    await stack.enter_async_context(announced(app, options.probes, "probes", Connections()))
    if options.api is not None:
        from tenure.serving.scheduling.api import answer_discovery

        tasks = await stack.enter_async_context(tasks_of_process())
        started.late = await answer_discovery(options, started.objects, metrics, tasks, stack)
        tasks.start()
    return started


@dataclass(slots=True, kw_only=True)
class Found:
    """The ledger: whose it is, open, and what it tells."""

    origin: str
    service: Service
    begun: Beginning


async def _found(started: Started, accounts: AbstractSet[str]) -> Found:
    """
    Wait for the API server and for the ledger, and open it.

    Raises:
        ApiError: the API server refuses, and waiting helps nothing.
        InputError: there is none there, or another's.
        CorruptLedgerError, UnknownEventError: waiting makes it no better.
    """
    options, objects, reason = started.options, started.objects, ""
    origin = await _asked(partial(origin_of, objects))
    started.wrong = await _asked(partial(why_not_expected, objects, accounts))
    started.away = AWAY
    while True:
        try:
            begun = await in_thread(beginning_of, options.ledger, origin)
            service = await started.stack.enter_async_context(
                open_service(options.ledger, write=True)
            )
        except (CorruptLedgerError, UnknownEventError):
            raise
        except LedgerError as error:
            if str(error) != reason:
                reason = str(error)
                _log.error("the ledger does not answer: waiting", extra={"reason": reason})
        else:
            return Found(origin=origin, service=service, begun=begun)
        await asyncio.sleep(LOOK_SECONDS)


async def _asked(ask: Callable[[], Awaitable[str]]) -> str:
    """
    Ask the API server until it answers, while waiting may help.

    It may be away, and in its first seconds refuses what it allows later (403).

    Raises:
        ApiError: waiting helps nothing, as where it does not take our credentials.
    """
    reason = ""
    while True:
        try:
            return await ask()
        except ApiError as error:
            if not waiting_helps(error):
                raise
            if str(error) != reason:
                reason, status = str(error), error.status
                fact = "does not answer" if status is None else f"refuses with status {status}"
                _log.error(f"the API server {fact}: waiting", extra={"reason": reason})
        await asyncio.sleep(LOOK_SECONDS)


async def _opened(
    started: Started,
    settings: SchedulingSettings,
    standing: Standing,
    found: Found,
) -> Process:
    origin, service, begun = found.origin, found.service, found.begun
    found.begun = begun.taken()  # whoever was put together keeps what it needs of it
    options, stack, objects = started.options, started.stack, started.objects
    clock, freshness = ProcessClock(), Freshness()
    recorder = ProbedLane(service, freshness, clock.monotonic)
    stack.push_async_callback(recorder.close)
    leadership = replica.leadership_of(options, objects, freshness, recorder)
    leading = Leading(
        now=clock.monotonic,
        lease_until=lambda: leadership.until,
        skewed=lambda: abs(objects.skew()) >= SKEW_MAX,
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
    proof_key = proof_key_of(options)
    signing = signer_of(options, origin, lambda: standing.incarnation, proof_key)
    ports = Ports(
        origin=origin,
        recorder=recorder,
        api=objects,
        clock=clock,
        freshness=freshness,
        leading=leading,
        words=words,
        proofs=signing,
        told=refusals_told(options.ledger),
        documents_in=yaml_documents,
        start=tasks.run,
        actor=holder,
        trusted=proof_key.check,
        skew=lambda: objects.skew().total_seconds(),
        evicts=options.evict_partial_gangs,
        preemption=options.preemption,
        drivers=options.driver,
        untold=options.untold_devices,
        attempts=attempts_in(options.ledger),
    )
    live = assemble(settings, begun, ports)
    return Process(
        options=options,
        stack=stack,
        stopping=started.stopping,
        clock=clock,
        metrics=started.metrics,
        objects=objects,
        origin=origin,
        service=service,
        recorder=recorder,
        freshness=freshness,
        leadership=leadership,
        leading=leading,
        replica=Replica(live, leading),
        holder=holder,
        begun=found.begun,
        live=live,
        signing=signing,
        tasks=tasks,
    )


def _show(process: Process) -> None:
    live, metrics, leading = process.live, process.metrics, process.leading
    metrics.count_drift(live.reconciling.count)
    metrics.read(
        nodes=lambda: len(live.view.nodes.nodes),
        faults=lambda: len(live.inventory.faults),
        position=lambda: live.view.position,
        holds=lambda: len(live.holds),
        unconfirmed=lambda: (
            sum(map(len, live.releasing.waiting.values())) + len(live.guard.gate.ends.waiting())
        ),
        quarantined=lambda: bool(process.freshness.quarantine),
        broken_templates=lambda: bool(live.templates.fault),
        unrecorded=lambda: len(live.releasing.faults),
        unexplained=lambda: len(live.refusing),
        waiting_pods=live.view.pods.waiting,
        binding=live.binder.under_way,
        gang_binds=lambda: len(live.permits),
        epoch=lambda: leading.epoch,
        answering=lambda: not leading.why_not(),
        oldest_unconfirmed_seconds=lambda: _oldest_seconds(process),
        agents=lambda: len(live.agents.reported),
        silent_agents=lambda: sum(each >= SILENT_SECONDS for each in live.agents.seconds()),
    )
    metrics.count_cards(lambda: live.view.engine.card_counts, each=process.options.card_metrics)
    for name, words, label, counts in (
        ("tenure_refusals", "Refusals, by what became of them.", "what", live.refusing.counts),
        ("tenure_soft_holds_ended", "Soft holds, by why they ended.", "why", live.holds.ended),
        ("tenure_preempt_answers", "Answers of preempt.", "what", live.preempting.counts),
        ("tenure_preemptions", "Looks for room by fragments.", "what", live.evicting.counts),
        ("tenure_gang_binds", "Bind calls of gangs that waited.", "what", live.permits.counts),
        ("tenure_bind_acts", "Acts of binding, with their outcome.", "act", live.binder.counts),
        ("tenure_bind_refusals", "Refused Bindings, by status.", "status", live.binder.refusals),
        ("tenure_agent_words", "What agents confirmed, by result.", "what", live.agents.counts),
        ("tenure_claim_words", "What agents said of claims.", "what", live.agents.claims.counts),
        (
            "tenure_claim_writes",
            "Writes of claims, by what was answered.",
            "what",
            live.guard.gate.counts,
        ),
        (
            "tenure_claim_refusals",
            "Refusals of claims that wait, of those refused most.",
            "claim",
            live.guard.gate.refusals.most,
        ),
        ("tenure_kubernetes_events", "Events for people, by fate.", "what", live.telling.counts),
    ):
        metrics.count(name, words, label, counts if callable(counts) else counts.copy)


def _oldest_seconds(process: Process) -> float:
    live, now = process.live, process.clock.monotonic()
    claims = (now - since for since in live.guard.gate.ends.waiting().values())
    return max((live.releasing.oldest_seconds(), *claims))


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
    bodies = Bodies(EXTENDER.body_bytes_max * 9 // 8)
    connections = Connections(names=process.options.client_names, bodies=bodies)
    calls = extender_calls(process.live.extender, process.metrics)
    is_silent = process.leading.is_silent
    app = calls_app(calls, connections.answering, is_silent)
    body_bytes_max = calls.limits.body_bytes_max
    http2 = Http2(answer=calls.answer_path, body_bytes_max=body_bytes_max, is_silent=is_silent)
    tls = folder.serving.context
    where, drain = process.options.extender, process.options.drain_seconds
    async with announced(app, where, "extender", connections, tls, http2=http2):
        await process.stopping.wait()
        process.live.permits.drain()
        _log.info("draining", extra={"seconds": drain})
        await asyncio.sleep(drain)
