"""`tenure serve webhook`: the admission server with its certificates, settings and probes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from prometheus_client import Counter

from certs.following import Follower
from certs.plan import Phase
from certs.plan import Settings as RotationSettings
from certs.ports import ApiError, Objects
from certs.reports import Reports
from certs.rotator import RotationObjects, Rotator, configuration_paths
from certs.serving import Folder, Serving
from ledger.domain.errors import InputError
from tenure.exits import with_next
from tenure.kube.lease import Leadership, LeaseSettings
from tenure.kube.lookups import KubeLookups, KubeWatches
from tenure.kube.objects import KubeObjects, connected
from tenure.serving.background import as_coroutine, every, first, tasks_of_process, told_to_stop
from tenure.serving.connections import Connections
from tenure.serving.listening import announced
from tenure.serving.probes import probes_app
from tenure.serving.telling_refusals import RefusalQueue, RefusalTarget, sending
from tenure.serving.webhook_options import WebhookOptions
from tenure.settings import read_admission_file
from tenure.sources.text import content_of
from webhook.decide.settings import DEFAULT_ADMISSION, AdmissionSettings
from webhook.server.app import Admission, hooks_app
from webhook.server.metrics import Metrics

_settings_log: Final = logging.getLogger("tenure.settings")


class SettingsFile:
    """The settings of now: those of the file, or the defaults without one."""

    def __init__(self, path: Path | None, metrics: Metrics) -> None:
        """Read the file. Raises InputError as `read_admission_file`."""
        self._path = path
        self._metrics = metrics
        self._digest = ""
        self._refused = ""
        self._current = DEFAULT_ADMISSION
        if path is not None:
            content = content_of(path)
            self._current = read_admission_file(path, content)
            self._digest = hashlib.sha256(content).hexdigest()
        self._show()

    def _show(self) -> None:
        """Tell by which vocabulary Pods are read, for whoever compares it with the scheduler's."""
        self._metrics.vocabulary.clear()
        self._metrics.vocabulary.labels(self._current.vocabulary.digest).set(1)

    @property
    def current(self) -> AdmissionSettings:
        """The settings as last read and found right."""
        return self._current

    def look(self) -> None:
        """Read the file again if it changed; one that is wrong is logged, and nothing changes."""
        if self._path is None:
            return
        try:
            content = content_of(self._path)
            digest = hashlib.sha256(content).hexdigest()
            if digest == self._digest:
                self._refused = ""
                return
            self._current = read_admission_file(self._path, content)
            self._digest = digest
        except InputError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                self._metrics.settings_reloads.labels("refused").inc()
                _settings_log.error("settings refused", extra={"reason": str(error)})
            return
        self._refused = ""
        self._metrics.settings_reloads.labels("read").inc()
        self._show()
        words = self._current.vocabulary.digest
        _settings_log.info(
            "settings read",
            extra={"path": str(self._path), "sha256": digest, "vocabulary": words},
        )


LOOK_SECONDS: Final = 2.0
SEND_SECONDS: Final = 1.0
"""How long refusals gather before they are told of together."""
LOOKUP_SECONDS: Final = 1.0
"""How long one attempt of a look-up may take: all of them together leave time for the answer."""
GOODBYE_SECONDS: Final = 3.0
"""How long signing off may take: what is left of the grace period is for requests."""
STALE: Final = timedelta(minutes=5)
"""A replica that could not read its Secret for this long is not ready: the plan counts on it."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,120}[a-z0-9])?")
_LENGTHS: Final = {"--namespace": 63, "--secret": 63}  # the Secret's name is a label's value too

_log: Final = logging.getLogger("tenure.webhook")


def check_names(options: WebhookOptions) -> None:
    """Refuse names that no object can have, by InputError with the option."""
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
        InputError: the settings file or callers' authority is wrong, or a name is none.
        ApiError: there are no credentials for a cluster.
        CertificateError: the certificates that were provided can't be served.
    """
    check_names(options)
    stopping = told_to_stop()
    async with AsyncExitStack() as stack:
        metrics, connections = Metrics(), Connections(names=options.client_names)
        failures = metrics.background_failures
        settings = SettingsFile(options.config, metrics)
        objects = await stack.enter_async_context(connected(options.kubeconfig))
        callers = None if options.client_ca is None else content_of(options.client_ca)
        serving = Serving(clients=callers)
        keeper = await stack.enter_async_context(_keeper(options, objects, serving))
        readiness = Readiness(serving, keeper, stopping, _now)
        watches = KubeWatches(objects)
        queue = RefusalQueue(metrics)
        admission = Admission(
            settings=settings,
            lookups=KubeLookups(objects.within(LOOKUP_SECONDS), metrics, watches=watches),
            take_refusal=None if options.scheduler_api is None else queue.put,
            metrics=metrics,
            why_not_ready=readiness.why_not,
            answering=connections.answering,
        )
        await stack.enter_async_context(
            announced(
                probes_app(metrics.registry, readiness.why_not),
                options.probes,
                "probes",
                Connections(),
            )
        )
        tasks = await stack.enter_async_context(tasks_of_process())
        if options.scheduler_api is not None:
            target = RefusalTarget(
                url=options.scheduler_api,
                authority=options.scheduler_ca,
                token=options.scheduler_token,
            )
            sender = await stack.enter_async_context(sending(queue, target))
            tasks.append(every(SEND_SECONDS, "refusals", sender.send, failures))
        tasks.append(every(LOOK_SECONDS, "settings", as_coroutine(settings.look), failures))
        tasks.append(every(LOOK_SECONDS, "certificates", keeper.look, failures))
        tasks.append(every(LOOK_SECONDS, "namespaces", watches.namespaces.follow, failures))
        tasks.append(every(LOOK_SECONDS, "resourcequotas", watches.quotas.follow, failures))
        tasks.append(every(LOOK_SECONDS, "metrics", _gauge(serving, keeper, metrics), failures))
        if options.certificates is None:
            tasks.append(_rotating(options, objects, failures))
        tasks.start()
        await first(keeper.keeps_one, stopping)
        if stopping.is_set():
            return  # nobody was told to come here
        app = hooks_app(admission)
        async with announced(app, options.listen, "hooks", connections, serving.context):
            readiness.listens = True
            await stopping.wait()
            _log.info("draining", extra={"seconds": options.drain_seconds})
            await asyncio.sleep(options.drain_seconds)


@dataclass(slots=True, kw_only=True)
class Keeper:
    """Whatever keeps the leaf current; `confirmed_at` and `phase` are for one that asks the API."""

    look: Callable[[], Awaitable[None]]
    keeps_one: asyncio.Event
    confirmed_at: Callable[[], datetime | None] | None = None
    phase: Callable[[], Phase | None] = lambda: None


@asynccontextmanager
async def _keeper(
    options: WebhookOptions, objects: Objects, serving: Serving
) -> AsyncIterator[Keeper]:
    keeps_one = asyncio.Event()
    if options.certificates is not None:
        folder = Folder(options.certificates, serving, names=options.names, clock=_now)
        folder.look()
        keeps_one.set()
        yield Keeper(look=as_coroutine(folder.look), keeps_one=keeps_one)
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

    async def look() -> None:
        if await follower.look():
            keeps_one.set()

    try:
        yield Keeper(
            look=look,
            keeps_one=keeps_one,
            confirmed_at=lambda: follower.confirmed_at,
            phase=lambda: follower.phase,
        )
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
    listens: bool = False

    def why_not(self) -> str:
        """Return why no calls should come here; empty when they may."""
        if self.stopping.is_set():
            return "stopping"
        if self.serving.leaf is None:
            return "no certificate yet"
        if self.clock() >= self.serving.leaf.not_after:
            return "the certificate has ended"
        if not self.listens:
            return "not listening yet"
        if self.keeper.confirmed_at is None:
            return ""
        confirmed = self.keeper.confirmed_at()
        if confirmed is None or self.clock() - confirmed > STALE:
            return "the certificate's Secret could not be read for minutes"
        return ""


def _place(options: WebhookOptions) -> RotationObjects:
    return RotationObjects(
        namespace=options.namespace,
        secret=options.secret,
        configurations=configuration_paths(options.configuration),
    )


async def _rotating(options: WebhookOptions, objects: KubeObjects, failures: Counter) -> None:
    rotator = Rotator(
        objects,
        Reports(objects, options.namespace, options.secret),
        _place(options),
        RotationSettings(names=options.names, settle=timedelta(seconds=options.settle_seconds)),
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
        await every(LOOK_SECONDS, "rotation", advance, failures)

    leadership = Leadership(objects, settings, _now, time.monotonic, objects.skew)
    await leadership.run(lead)


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
