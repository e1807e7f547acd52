"""The second listener of `tenure serve scheduler`: for people, agents and webhooks."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

from certs.serving import Folder, Serving
from scheduler.service.api.callers import AUTHENTICATION, Callers, read_rule
from scheduler.service.api.discovery import discovery_routes
from scheduler.service.api.http import OpenRoute, Route, Took, api_app
from scheduler.service.ports import Api
from tenure.serving.background import as_coroutine
from tenure.serving.listening import Connections, announced
from tenure.serving.scheduling.answers import Answering, questions
from tenure.serving.scheduling.options import ApiOptions
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

    def __init__(self, options: ApiOptions, api: Api, clock: Callable[[], datetime]) -> None:
        self._options = options
        self._api = api
        self._serving = Serving(optional=True)
        self._folder = Folder(options.certificates, self._serving, names=options.names, clock=clock)
        self._folder.look()
        self._callers = Callers(api, time.monotonic)

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
        self._callers.rule = rule

    @asynccontextmanager
    async def listening(
        self, routes: Iterable[Route | OpenRoute], took: Took = lambda *_: None
    ) -> AsyncIterator[None]:
        """Answer these routes, and what clients look around for, until the block ends."""
        connections = Connections()
        app = api_app(
            [*discovery_routes(), *routes],
            self._callers,
            self._serving,
            connections.answering,
            took,
        )
        options = self._options
        async with announced(app, options.where, "api", connections, self._serving.context):
            yield


async def answer_people(process: Process, routes: Iterable[Route | OpenRoute]) -> None:
    """
    Answer questions, and these routes besides, until the process ends, where it is told to.

    Every replica answers, whoever leads: a question needs the ledger, discovery not even that.
    """
    options = process.options.api
    if options is None:
        return
    listener = ApiListener(options, process.objects, lambda: datetime.now(UTC))
    process.repeat(RULE_SECONDS, "api callers", listener.read_rule)
    process.repeat(LOOK_SECONDS, "api certificates", as_coroutine(listener.look))
    answering = Answering(process.options.ledger)
    process.stack.callback(answering.close)
    every_route = [*questions(process.objects, answering), *routes]
    seconds = process.metrics.api_seconds

    def took(route: str, status: int, waited: float) -> None:
        seconds.labels(route, str(status)).observe(waited)

    await process.stack.enter_async_context(listener.listening(every_route, took))
