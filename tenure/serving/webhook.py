"""`tenure serve webhook`: the admission server with its certificates, settings and probes."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from certs.files import Folder
from certs.following import Follower
from certs.material import CertificateError
from certs.plan import Phase
from certs.plan import Settings as RotationSettings
from certs.ports import ApiError, ConflictError, Objects
from certs.reports import Reports
from certs.rotator import Place, Rotator, configuration_paths
from certs.serving import Serving
from ledger.domain.errors import InputError
from tenure.exits import with_next
from tenure.kube.lease import Leadership, LeaseSettings
from tenure.kube.lookups import KubeLookups, KubeWatches
from tenure.kube.objects import KubeObjects, connected
from tenure.serving.refusals import RefusalQueue
from tenure.serving.settings_file import SettingsFile
from webhook.server.app import Admission, hooks_app, probes_app
from webhook.server.listening import Connections, listening
from webhook.server.metrics import Metrics

LOOK_SECONDS: Final = 2.0
LOOKUP_SECONDS: Final = 1.0
"""How long one attempt of a look-up may take: all of them together leave time for the answer."""
FINISH_SECONDS: Final = 25.0
"""How long requests in flight may take once we stop listening."""
GOODBYE_SECONDS: Final = 3.0
"""How long signing off may take: what is left of the grace period is for requests."""
STALE: Final = timedelta(minutes=5)
"""A replica that could not read its Secret for this long is not ready: the plan counts on it."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,120}[a-z0-9])?")
_LENGTHS: Final = {"--namespace": 63, "--secret": 63}  # the Secret's name is a label's value too

_log: Final = logging.getLogger("tenure.webhook")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    """
    What the process is told at its start.

    Attributes:
        hooks, probes: host and port to listen on; port 0 takes a free one.
        certificates: folder with `tls.crt`, `tls.key` and `ca.crt` that somebody else keeps; None
            lets Tenure issue and rotate its own.
        names: DNS names and addresses that the API server calls us by.
        configuration: name of the webhook configurations whose caBundle is ours.
        drain_seconds: time for the news to spread that we are going, before we stop listening.
        settle: how long a published bundle takes to reach every API server.
    """

    hooks: tuple[str, int]
    probes: tuple[str, int]
    config: Path | None
    kubeconfig: str | None
    certificates: Path | None
    names: tuple[str, ...]
    namespace: str
    secret: str
    configuration: str
    replica: str
    drain_seconds: float = 5.0
    settle: timedelta = timedelta(seconds=30)


def default_replica() -> str:
    """Return what tells this replica from others: the Pod's name, else host and process."""
    host = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower()).strip("-") or "replica"
    return os.environ.get("POD_NAME") or f"{host}-{os.getpid()}"


def check_names(options: WebhookOptions) -> None:
    """
    Refuse names that no object can have.

    Raises:
        InputError: with the option.
    """
    named = {
        "--namespace": options.namespace,
        "--secret": options.secret,
        "--configuration": options.configuration,
        "--replica": options.replica,
    }
    for option, value in named.items():
        if not _NAME.fullmatch(value) or len(value) > _LENGTHS.get(option, len(value)):
            fact = f"not a name that an object can have: value={value!r}"
            raise with_next(InputError(fact, field=option), "use a-z, 0-9, '-' and '.'")


async def serve_webhook(options: WebhookOptions) -> None:
    """
    Serve until SIGTERM or SIGINT, then let go of callers in order.

    Raises:
        InputError: the settings file is wrong, or a name is none.
        ApiError: there are no credentials for a cluster.
        CertificateError: the certificates that were provided can't be served.
    """
    check_names(options)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as stack:
        metrics = Metrics()
        settings = SettingsFile(options.config, metrics)
        objects = await stack.enter_async_context(connected(options.kubeconfig))
        serving = Serving()
        keeper = await stack.enter_async_context(_keeper(options, objects, serving))
        readiness = Readiness(serving, keeper, stopping, _now)
        watches = KubeWatches(objects)
        admission = Admission(
            settings=settings,
            lookups=KubeLookups(objects.within(LOOKUP_SECONDS), metrics, watches=watches),
            refusals=RefusalQueue(metrics),
            metrics=metrics,
            clock=_now,
            why_not_ready=readiness.why_not,
        )
        await stack.enter_async_context(
            _listening(probes_app(admission), options.probes, "probes", Connections())
        )
        tasks = await stack.enter_async_context(_tasks())
        tasks.append(_every(LOOK_SECONDS, "settings", _as_coroutine(settings.look), metrics))
        tasks.append(_every(LOOK_SECONDS, "certificates", keeper.look, metrics))
        tasks.append(_every(LOOK_SECONDS, "namespaces", watches.namespaces.follow, metrics))
        tasks.append(_every(LOOK_SECONDS, "resourcequotas", watches.quotas.follow, metrics))
        tasks.append(_every(LOOK_SECONDS, "metrics", _gauge(serving, keeper, metrics), metrics))
        if options.certificates is None:
            tasks.append(_rotating(options, objects, metrics))
        tasks.start()
        await _first(keeper.keeps_one, stopping)
        if stopping.is_set():
            return  # nobody was told to come here
        app, connections = hooks_app(admission), admission.connections
        async with _listening(app, options.hooks, "hooks", connections, serving.context):
            await stopping.wait()
            _log.info("draining", extra={"seconds": options.drain_seconds})
            await asyncio.sleep(options.drain_seconds)


@dataclass(slots=True, kw_only=True)
class Keeper:
    """
    Whatever keeps the leaf current.

    Attributes:
        confirmed_at, phase: for one that must ask the API.
    """

    look: Callable[[], Awaitable[None]]
    keeps_one: asyncio.Event
    confirmed_at: Callable[[], datetime | None] | None = None
    phase: Callable[[], Phase | None] = lambda: None


@asynccontextmanager
async def _keeper(
    options: WebhookOptions, objects: Objects, serving: Serving
) -> AsyncIterator[Keeper]:
    if options.certificates is not None:
        folder = Folder(options.certificates, serving, names=options.names, clock=_now)
        folder.look()
        keeps_one = asyncio.Event()
        keeps_one.set()
        yield Keeper(look=_as_coroutine(folder.look), keeps_one=keeps_one)
        return
    follower = Follower(
        objects,
        Reports(objects, options.namespace, options.secret),
        _place(options).secret_path,
        serving,
        replica=options.replica,
        names=options.names,
        clock=_now,
    )

    keeper = Keeper(
        look=_as_coroutine(lambda: None),
        keeps_one=asyncio.Event(),
        confirmed_at=lambda: follower.confirmed_at,
        phase=lambda: follower.phase,
    )

    async def look() -> None:
        if await follower.look():
            keeper.keeps_one.set()

    keeper.look = look
    try:
        yield keeper
    finally:
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                await follower.leave()
        except (ApiError, TimeoutError) as error:
            _log.warning("could not sign off", extra={"reason": str(error) or "no answer"})


@dataclass(slots=True)
class Readiness:
    """Whether calls should come here, and why not."""

    serving: Serving
    keeper: Keeper
    stopping: asyncio.Event
    clock: Callable[[], datetime]

    def why_not(self) -> str:
        """Return why no calls should come here; empty when they may."""
        if self.stopping.is_set():
            return "stopping"
        if self.serving.leaf is None:
            return "no certificate yet"
        if self.clock() >= self.serving.leaf.not_after:
            return "the certificate has ended"
        if self.keeper.confirmed_at is None:
            return ""
        confirmed = self.keeper.confirmed_at()
        if confirmed is None or self.clock() - confirmed > STALE:
            return "the certificate's Secret could not be read for minutes"
        return ""


def _place(options: WebhookOptions) -> Place:
    return Place(
        namespace=options.namespace,
        secret=options.secret,
        configurations=configuration_paths(options.configuration),
    )


async def _rotating(options: WebhookOptions, objects: KubeObjects, metrics: Metrics) -> None:
    """Compete for the Lease, and rotate while it is ours."""
    rotator = Rotator(
        objects,
        Reports(objects, options.namespace, options.secret),
        _place(options),
        RotationSettings(names=options.names, settle=options.settle),
        _now,
    )
    settings = LeaseSettings(
        namespace=options.namespace,
        name=f"{options.secret}-rotation",
        identity=options.replica,
    )

    async def advance() -> None:
        await rotator.advance()

    async def lead() -> None:
        await _every(LOOK_SECONDS, "rotation", advance, metrics)

    leadership = Leadership(objects, settings, _now, time.monotonic, objects.skew)
    await leadership.run(lead)


@asynccontextmanager
async def _listening(
    app: web.Application,
    where: tuple[str, int],
    what: str,
    connections: Connections,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[None]:
    """Listen until the block ends, then let requests in flight finish."""
    async with listening(app, where, connections, tls=tls, finish_seconds=FINISH_SECONDS) as port:
        _log.info("listening", extra={"what": what, "host": where[0], "port": port})
        yield


class _Tasks(list[Coroutine[Any, Any, None]]):
    """Tasks that run for as long as the process; one that ends is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.running: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start what was collected."""
        main = asyncio.current_task()
        assert main is not None, "started within a task"
        for one in self:
            task = asyncio.create_task(one)
            task.add_done_callback(lambda done: None if done.cancelled() else main.cancel())
            self.running.append(task)


@asynccontextmanager
async def _tasks() -> AsyncIterator[_Tasks]:
    tasks = _Tasks()
    try:
        yield tasks
    finally:
        for task in tasks.running:
            task.cancel()
        ended = await asyncio.gather(*tasks.running, return_exceptions=True)
        for result in ended:
            if isinstance(result, Exception):
                raise result


async def _every(
    seconds: float, what: str, act: Callable[[], Awaitable[None]], metrics: Metrics
) -> None:
    """
    Act again and again, whatever goes wrong: it is counted, said once, and tried again.

    Nothing of this may take the answers down with it, so a mistake of ours is caught here too.
    """
    reason = ""
    while True:
        try:
            await act()
            reason = ""
        except (ApiError, ConflictError, CertificateError) as error:
            metrics.background_failures.labels(what).inc()
            if str(error) != reason:
                reason = str(error)
                _log.error("failed", extra={"what": what, "reason": reason})
        except Exception as error:  # noqa: BLE001 - the edge of this task
            metrics.background_failures.labels(what).inc()
            if repr(error) != reason:
                reason = repr(error)
                _log.exception("failed, and it is our mistake", extra={"what": what})
        await asyncio.sleep(seconds)


async def _first(*events: asyncio.Event) -> None:
    """Wait until one of the events is set."""
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()


def _as_coroutine(act: Callable[[], object]) -> Callable[[], Awaitable[None]]:
    async def acting() -> None:
        act()

    return acting


def _gauge(serving: Serving, keeper: Keeper, metrics: Metrics) -> Callable[[], Awaitable[None]]:
    async def show() -> None:
        if serving.leaf is not None:
            metrics.certificate_not_after.set(serving.leaf.not_after.timestamp())
        now = keeper.phase()
        if now is not None:
            for phase in Phase:
                metrics.rotation_phase.labels(str(phase)).set(phase is now)

    return show


def _now() -> datetime:
    return datetime.now(UTC)
