"""`tenure serve scheduler`: the extender with its view, its ledger and what binds."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from certs.ports import ApiError
from certs.serving import Folder, Serving
from ledger.domain.errors import (
    CorruptLedgerError,
    FencedError,
    InputError,
    LedgerError,
    OverloadedError,
)
from ledger.domain.log.clock import Reading, SteadyClock
from ledger.domain.log.events import EpochStarted
from ledger.domain.resources import UNHEALTHY_GPU_NAMESPACE
from ledger.store.mending.recover import incarnations
from ledger.store.open import open_ledger
from ledger.store.reading.feed import follow
from ledger.store.service import Service, open_service
from ledger.store.writing.commands import Command, Outcome
from ledger.store.writing.lane import Lane, Turn, open_lane
from scheduler.cluster.settings import settings_hash, settings_json
from scheduler.decide.settings import SchedulingSettings
from scheduler.record import events
from scheduler.record.events import DecidedBy
from scheduler.service.assembly import Assembly, Ports, assemble
from scheduler.service.beginning import Beginning, begin
from scheduler.service.books import LiveBooks
from scheduler.service.freshness import Freshness
from scheduler.service.http import extender_app
from scheduler.service.inventory import Inventory
from scheduler.service.metrics import Metrics
from scheduler.service.proofs import Signing
from scheduler.service.view import ClusterView
from tenure.config import read_settings
from tenure.exits import with_next
from tenure.keys import private_key
from tenure.kube.lease import SKEW_MAX
from tenure.kube.objects import KubeObjects, connected
from tenure.kube.reflector import Reflector
from tenure.serving.background import as_coroutine, every, tasks_of_process
from tenure.serving.listening import Connections, announced
from tenure.serving.probes import probes_app
from tenure.version import tenure_version

LOOK_SECONDS: Final = 2.0
FOLLOW_SECONDS: Final = 0.1
SETTLE_SECONDS: Final = 0.05
"""How long changes of nodes gather before they are recorded."""
PROBE_SECONDS: Final = 1.0
PATHS: Final = {
    "nodes": "/api/v1/nodes",
    "pods": "/api/v1/pods",
    "namespaces": "/api/v1/namespaces",
    "configmaps": f"/api/v1/namespaces/{UNHEALTHY_GPU_NAMESPACE}/configmaps",
    "devices": "/apis/scheduling.koordinator.sh/v1alpha1/devices",
    "noderesourcetopologies": "/apis/topology.node.k8s.io/v1alpha1/noderesourcetopologies",
}
"""Where the collections are that are followed."""
_CLUSTER: Final = "/api/v1/namespaces/kube-system"
_FATAL: Final = (FencedError, CorruptLedgerError)

_log: Final = logging.getLogger("tenure.scheduler")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """
    What the process is told at its start.

    Attributes:
        ledger: URL of a ledger that is there.
        extender, probes: host and port to listen on; port 0 takes a free one.
        certificates: folder with `tls.crt`, `tls.key` and `ca.crt`, kept by somebody else.
        clients: the authority whose leaves kube-scheduler shows; None = that of the folder.
        names: DNS names and addresses that kube-scheduler calls us by.
        proof_key, ledger_key: files of signer keys, for the proofs on Pods and for what is said of
            the ledger.
        drain_seconds: time for the news to spread that we are going, before we stop listening.
    """

    ledger: str
    extender: tuple[str, int]
    probes: tuple[str, int]
    config: Path | None
    kubeconfig: str | None
    certificates: Path
    clients: Path | None
    names: tuple[str, ...]
    proof_key: Path
    ledger_key: Path
    replica: str
    drain_seconds: float = 5.0


class ProcessClock:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        """Return seconds that never run backwards."""
        return time.monotonic()

    def wall_us(self) -> int:
        """Return the wall clock in microseconds since 1970."""
        return time.time_ns() // 1000

    def reading(self) -> Reading:
        """Return both at one moment."""
        return Reading(wall_us=self.wall_us(), monotonic_us=time.monotonic_ns() // 1000)

    async def sleep(self, seconds: float) -> None:
        """Come back after that many seconds."""
        await asyncio.sleep(seconds)


class ProbedLane:
    """A lane, and whether the ledger behind it answers."""

    def __init__(self, lane: Lane, service: Service, freshness: Freshness) -> None:
        self._lane = lane
        self._service = service
        self._freshness = freshness

    @property
    def epoch(self) -> int:
        """The epoch that is written in."""
        return self._lane.epoch

    @property
    def position(self) -> int:
        """The last position that is known to be durable."""
        return self._lane.position

    async def record(self, command: Command) -> Outcome:
        """Record a command; see `Lane.record`."""
        try:
            outcome = await self._lane.record(command)
        except OverloadedError:
            raise
        except LedgerError:
            self._freshness.away = True
            raise
        self._freshness.away = False
        return outcome

    async def probe(self) -> None:
        """Look whether a ledger that was away is back."""
        if not self._freshness.away:
            return
        await self._service.probe(PROBE_SECONDS)
        self._freshness.away = False


async def serve_scheduler(options: SchedulerOptions) -> None:
    """
    Serve until SIGTERM or SIGINT, then let go of kube-scheduler in order.

    Raises:
        InputError: the settings file, a key or the ledger is wrong, or our clock is.
        ApiError: there are no credentials for a cluster, or it does not answer.
        CertificateError: the certificates can't be served.
        FencedError: another writer took the ledger over.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    settings = SchedulingSettings() if options.config is None else read_settings(options.config)
    clock, metrics = ProcessClock(), Metrics()
    failures = metrics.background_failures
    authority = options.clients or options.certificates / "ca.crt"
    serving = Serving(clients=_read(authority))
    folder = Folder(options.certificates, serving, names=options.names, clock=_now)
    folder.look()
    async with AsyncExitStack() as stack:
        objects = await stack.enter_async_context(connected(options.kubeconfig))
        origin = await _origin(objects)
        service = await stack.enter_async_context(open_service(options.ledger, write=True))
        turn = Turn(
            holder=f"scheduler/{options.replica}",
            origin=origin,
            version=tenure_version(),
            wall_us=clock.wall_us(),
            clock=SteadyClock(clock.reading),
        )
        lane = await stack.enter_async_context(open_lane(service, turn))
        begun, incarnation = await asyncio.to_thread(_begin, options.ledger)
        freshness, woken = Freshness(), asyncio.Event()
        recorder = ProbedLane(lane, service, freshness)
        tasks = await stack.enter_async_context(tasks_of_process())
        words = DecidedBy(
            policy=settings.node_policy,
            settings_hash=settings_hash(settings, seed=0),
            tenure_version=tenure_version(),
        )
        live = assemble(
            settings,
            begun,
            Ports(
                recorder=recorder,
                api=objects,
                clock=clock,
                freshness=freshness,
                words=words,
                proofs=_signing(options, origin, incarnation),
                start=tasks.run,
                wake=woken.set,
                actor=turn.holder,
            ),
        )
        reflectors = freshness.followed = _reflectors(live, objects)
        _show(metrics, live, reflectors)

        def why_not_ready() -> str:
            return "stopping" if stopping.is_set() else freshness.why_not()

        probes = probes_app(metrics.registry, why_not_ready)
        await stack.enter_async_context(announced(probes, options.probes, "probes", Connections()))
        await _say_settings(recorder, settings, words, begun, clock)
        for name, one in reflectors.items():
            tasks.append(every(FOLLOW_SECONDS, name, one.follow, failures))
        tasks.append(_feed(service, live.books, begun.position, lane.epoch))
        settle = _settling(live.inventory, freshness, woken)
        tasks.append(every(SETTLE_SECONDS, "inventory", settle, failures, fatal=_FATAL))
        release, tell = live.releasing.settle, live.releasing.tell
        tasks.append(every(SETTLE_SECONDS, "releases", release, failures, fatal=_FATAL))
        tasks.append(every(SETTLE_SECONDS, "wakes", tell, failures))
        tasks.append(every(PROBE_SECONDS, "events", live.telling.send, failures))
        tasks.append(every(PROBE_SECONDS, "ledger", recorder.probe, failures))
        for what, act in (
            ("certificates", folder.look),
            ("holds", live.holds.expire),
            ("metrics", lambda: _gauge(serving, metrics)),
        ):
            tasks.append(every(LOOK_SECONDS, what, as_coroutine(act), failures))
        tasks.start()
        connections = Connections()
        app = extender_app(live.extender, metrics, connections.answering)
        where = options.extender
        async with announced(app, where, "extender", connections, serving.context):
            await stopping.wait()
            _log.info("draining", extra={"seconds": options.drain_seconds})
            await asyncio.sleep(options.drain_seconds)


def _signing(
    options: SchedulerOptions, origin: str, incarnation: str
) -> Callable[[ClusterView], Signing]:
    """Return what makes the signer of a view's reservations. Raises InputError: no such key."""
    proof_key, ledger_key = private_key(options.proof_key), private_key(options.ledger_key)

    def signing(view: ClusterView) -> Signing:
        return Signing(
            cluster=origin,
            incarnation=incarnation,
            proof_key=proof_key,
            ledger_key=ledger_key,
            machine_of=lambda uid: _machine_of(view, uid),
        )

    return signing


def _show(metrics: Metrics, live: Assembly, followed: Mapping[str, Reflector]) -> None:
    metrics.watch_staleness(followed)
    metrics.read(
        nodes=lambda: len(live.view.nodes.nodes),
        faults=lambda: len(live.inventory.faults),
        position=lambda: live.view.position,
        holds=lambda: len(live.holds),
        unconfirmed=lambda: sum(map(len, live.releasing.waiting.values())),
        unrecorded=lambda: len(live.releasing.faults),
    )


def _reflectors(live: Assembly, objects: KubeObjects) -> dict[str, Reflector]:
    """Return who follows what, by the name of the collection; kinds of others may be absent."""
    return {
        name: Reflector(
            objects,
            PATHS[name],
            sink,
            monotonic=time.monotonic,
            may_be_absent=PATHS[name].startswith("/apis/"),
        )
        for name, sink in live.sinks().items()
    }


async def _origin(objects: KubeObjects) -> str:
    """
    Return whose ledger is ours: that of the cluster.

    Raises:
        ApiError: the API can't be asked.
        InputError: our clock is another one than the API server's.
    """
    cluster = await objects.read(_CLUSTER)
    if cluster is None:
        raise ApiError(f"there is no such namespace: path={_CLUSTER}")
    skew = objects.skew()
    if abs(skew) > SKEW_MAX:
        fact = f"ClockSkew: our clock is off the API server's: seconds={skew.total_seconds():.1f}"
        raise with_next(InputError(fact), "set this machine's clock, then start it again")
    return f"ledger/{cluster['metadata']['uid']}"


def _begin(url: str) -> tuple[Beginning, str]:
    """Return what the ledger tells at its head, and the incarnation that is open."""
    with open_ledger(url, mode="read") as ledger:
        lives, _ = incarnations(ledger)
        return begin(ledger), lives[-1].name


async def _say_settings(
    recorder: ProbedLane,
    settings: SchedulingSettings,
    words: DecidedBy,
    begun: Beginning,
    clock: ProcessClock,
) -> None:
    """Record what is decided by, where it is other than before."""
    text = settings_json(settings, seed=0)
    if begun.settings == text:
        return
    new = events.settings_changed(words, text, clock.wall_us())
    key = f"{new.idempotency_key}:{recorder.epoch}"
    await recorder.record(Command(events=(events.by("scheduler", new, key=key),)))


async def _feed(service: Service, books: LiveBooks, after: int, epoch: int) -> None:
    """Take note of every event; end where another writer's epoch starts."""
    async with aclosing(follow(service, after=after)) as recorded:
        async for one in recorded:
            if isinstance(one.event, EpochStarted) and one.envelope.epoch != epoch:
                raise FencedError(f"another writer took over: epoch={one.envelope.epoch}")
            books.take(one.envelope.position, one.event)


def _settling(
    inventory: Inventory, freshness: Freshness, woken: asyncio.Event
) -> Callable[[], Awaitable[None]]:
    async def settle() -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await woken.wait()
        except TimeoutError:
            pass
        woken.clear()
        await inventory.settle()
        freshness.settled = inventory.settled

    return settle


def _machine_of(view: ClusterView, uid: str) -> tuple[str, str]:
    node = view.recorded(uid)
    return ("", "") if node is None else (node.system_uuid, node.machine_id)


def _gauge(serving: Serving, metrics: Metrics) -> None:
    if serving.leaf is not None:
        metrics.certificate_not_after.set(serving.leaf.not_after.timestamp())


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        fact = f"can't read it: {(error.strerror or str(error)).lower()}"
        raise InputError(fact, place=str(path)) from error


def _now() -> datetime:
    return datetime.now(UTC)
