"""The second listener of `tenure serve scheduler`: for people, agents and webhooks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Final

from certs.ports import Objects
from certs.serving import Folder, Serving
from scheduler.service.api.callers import AGENTS_SECONDS, AUTHENTICATION, Callers, read_rule
from scheduler.service.api.discovery import discovery_routes
from scheduler.service.api.http import LateRoutes, OpenRoute, Route, Took, api_app
from scheduler.service.metrics import Metrics
from tenure.kube.objects import KubeObjects
from tenure.serving.background import Tasks, as_coroutine, every
from tenure.serving.connections import ConnectionLimits, Connections
from tenure.serving.listening import announced
from tenure.serving.scheduling.answers import Answering, questions
from tenure.serving.scheduling.options import SchedulerOptions
from tenure.serving.scheduling.process import Process

LOOK_SECONDS: Final = 2.0
RULE_SECONDS: Final = 10.0
"""How often it is looked whose headers are believed."""


class ApiListener:
    """
    Listens with a leaf of a folder, and believes headers of whoever the cluster says.

    Raises:
        CertificateError: the leaf can't be served.
    """

    def __init__(
        self,
        options: SchedulerOptions,
        api: Objects,
        clock: Callable[[], datetime],
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._options = options
        self._api = api
        self._serving = Serving(optional=True)
        self._folder = Folder(
            options.certificates, self._serving, names=options.api_names, clock=clock
        )
        self._folder.look()
        self._callers = Callers(api, time.monotonic)
        self._agents = Callers(api, time.monotonic, AGENTS_SECONDS)
        self._connections = Connections(limits)

    def look(self) -> bool:
        """Serve the folder's leaf, if it is another one; see `Folder.look`."""
        return self._folder.look()

    async def read_rule(self) -> None:
        """
        Learn whose headers are believed.

        Raises:
            ApiError: the API server does not say; what it said last counts on.
            InputError, CertificateError: what it says can't be read; likewise.
        """
        rule = read_rule(await self._api.read(AUTHENTICATION))
        if rule == self._callers.rule:
            return
        self._serving.trust(rule.authority)
        self._callers.rule = self._agents.rule = rule

    def late_routes(self) -> LateRoutes:
        """Return routes that come later, for callers that this listener knows."""
        takes_in = self._connections.take_in
        return LateRoutes(self._callers, self._agents, self._serving, takes_in)

    @asynccontextmanager
    async def listening(
        self,
        routes: Iterable[Route | OpenRoute] = (),
        took: Took = lambda *_: None,
        late: LateRoutes | None = None,
    ) -> AsyncIterator[None]:
        """Answer these routes, and what clients look around for, until the block ends."""
        connections = self._connections
        app = api_app(
            [*discovery_routes(), *routes],
            self._callers,
            self._serving,
            connections.answering,
            took,
            takes_in=connections.take_in,
            late=late,
        )
        where = self._options.api
        assert where is not None
        async with announced(app, where, "api", connections, self._serving.context):
            yield


async def answer_discovery(
    options: SchedulerOptions,
    objects: KubeObjects,
    metrics: Metrics,
    tasks: Tasks,
    stack: AsyncExitStack,
) -> LateRoutes:
    """
    Listen until the stack closes; return what routes are added to once there is a ledger.

    Rule: design section 8: the aggregated API answers discovery even while the ledger is away, and
    so from before it was ever there.
    """
    listener = ApiListener(options, objects, lambda: datetime.now(UTC))
    failures = metrics.background_failures
    look = as_coroutine(listener.look)
    tasks.append(every(RULE_SECONDS, "api callers", listener.read_rule, failures))
    tasks.append(every(LOOK_SECONDS, "api certificates", look, failures))
    late, seconds = listener.late_routes(), metrics.api_seconds

    def took(route: str, status: int, waited: float) -> None:
        seconds.labels(route, str(status)).observe(waited)

    await stack.enter_async_context(listener.listening(took=took, late=late))
    return late


def answer_people(process: Process, late: LateRoutes, routes: Iterable[Route]) -> None:
    """Answer questions, and these routes besides, until the process ends; whoever leads."""
    answering = Answering(process.options.ledger)
    process.stack.callback(answering.close)
    late.come([*questions(process.objects, answering), *routes])
    process.stack.callback(late.go)
