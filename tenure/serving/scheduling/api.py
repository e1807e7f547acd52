"""The second listener of `tenure serve scheduler`: for people, agents and webhooks."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from certs.ports import Objects
from certs.serving import Folder, Serving
from ledger.domain.errors import InputError, LedgerError
from ledger.store.open import Ledger, open_ledger
from scheduler.service.api.answers import Said, answer_routes, discovery_routes
from scheduler.service.api.callers import AGENTS_SECONDS, AUTHENTICATION, Callers, read_rule
from scheduler.service.api.http import LateRoutes, OpenRoute, RefusedError, Route, Took, api_app
from scheduler.service.api.rights import Rights
from scheduler.service.metrics import Metrics
from tenure.asking import Sight
from tenure.kube.objects import KubeObjects
from tenure.query.questions import QUESTIONS, Asked, asked
from tenure.serving.background import Tasks, as_coroutine, every
from tenure.serving.connections import ConnectionLimits, Connections
from tenure.serving.listening import announced
from tenure.serving.scheduling.options import SchedulerOptions
from tenure.serving.scheduling.process import Process

LOOK_SECONDS: Final = 2.0
RULE_SECONDS: Final = 10.0
"""How often it is looked whose headers are believed."""
WAITING_MAX: Final = 16
ANSWER_SECONDS: Final = 20.0
ROWS_MAX: Final = 200_000
"""Of one query: 100 MB of a process that decides beside it."""
TEXT_MAX: Final = 32 << 20
ENDS_MAX: Final = 60
END_SECONDS: Final = 1.0
"""How often it is tried to end a query of a question that is late, and how long between."""


@dataclass(slots=True)
class _Work:
    """A question on its way to the thread; `is_late`: it has timed out, `over`: it is answered."""

    question: Asked
    sight: Sight
    source: Ledger | None = None
    is_late: bool = False
    over: threading.Event = field(default_factory=threading.Event)


class Answering:
    """
    Answers one question at a time out of the ledger, over a connection for reading.

    A thread, so that who waits for kube-scheduler does not wait for a database; one, so that
    questions take no more than one place of it. `sight` is called outside it and for `why` alone,
    with the namespace whose lines are asked for.
    """

    def __init__(
        self,
        ledger: str,
        sight: Callable[[str], Sight] = lambda namespace: Sight(namespace=namespace),
        *,
        thread: ThreadPoolExecutor | None = None,
        seconds: float = ANSWER_SECONDS,
        rows_max: int = ROWS_MAX,
    ) -> None:
        self._url = ledger
        self._sight = sight
        self._thread = thread or ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._seconds = seconds
        self._rows_max = rows_max
        self._waiting = 0
        self._answering: _Work | None = None

    def close(self) -> None:
        """Answer no more; the question that is being answered is let go."""
        if self._answering is not None:
            _end(self._answering)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def answer(self, name: str, params: Sequence[tuple[str, str]], namespace: str) -> Said:
        """
        Return the answer to a question.

        Raises:
            RefusedError: too many wait, or it took too long.
            InputError: the question can't be read, or asks for too much.
            LedgerError: the ledger does not answer.
        """
        question = asked(name, params)
        if self._waiting >= WAITING_MAX:
            fact = f"too many questions wait: waiting_max={WAITING_MAX}"
            raise RefusedError(429, "TooManyRequests", fact, retry=True)
        self._waiting += 1
        sight = self._sight(namespace) if name == "why" else Sight(namespace=namespace)
        one = _Work(question, sight)
        begun = self._thread.submit(self._answered, one)
        work = asyncio.wrap_future(begun)
        work.add_done_callback(self._done)
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.shield(work)
        except TimeoutError:
            if begun.cancel():
                work.cancel()
            else:
                _end(one)  # it has its place until it is over
            fact = f"no answer in time: seconds={self._seconds:g}"
            raise RefusedError(504, "Timeout", fact) from None

    def _done(self, work: asyncio.Future[Said]) -> None:
        self._waiting -= 1
        if not work.cancelled():
            work.exception()  # whoever waits has it; perhaps nobody does any more

    def _answered(self, work: _Work) -> Said:
        self._answering = work
        try:
            with _opened(self._url) as source:
                source.bound(self._rows_max)
                work.source = source
                if work.is_late:
                    raise LedgerError("nobody waits for the answer any more")
                answer = work.question.answer(source, work.sight)
        finally:
            self._answering = work.source = None
            work.over.set()
        text = answer.text
        if len(text) > TEXT_MAX:
            fact = f"the answer is too long: characters={len(text)}, most={TEXT_MAX}"
            raise RefusedError(413, "RequestEntityTooLarge", f"{fact}; ask for less")
        return Said(text=text, notes=answer.notes, is_no=answer.is_no)


def _end(work: _Work) -> None:
    """End what a question waits for; a database that hangs keeps nobody else waiting."""
    work.is_late = True
    threading.Thread(target=_cancel, args=(work,), name="cancel", daemon=True).start()


def _cancel(work: _Work) -> None:
    """End the queries of a question; between two of them there is none, so it is tried again."""
    for _ in range(ENDS_MAX):
        source = work.source
        if source is not None:
            source.cancel()
        if work.over.wait(END_SECONDS):
            return


def _opened(url: str) -> Ledger:
    """Open the ledger. Raises LedgerError: it is away, whatever that looks like."""
    try:
        return open_ledger(url, mode="read")
    except InputError as error:
        raise LedgerError(f"the ledger can't be opened: {error}") from error


def questions(api: Objects, answering: Answering) -> list[Route]:
    """Return the routes of the questions, for whoever may get their answers."""
    rights = Rights(api, time.monotonic)
    return answer_routes(tuple(QUESTIONS), rights, answering.answer)


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
    live = process.live

    def sight(namespace: str) -> Sight:
        binding, in_part = live.permits.waiting(), live.groups.starts.in_part()
        return Sight(namespace=namespace, binding=binding, in_part=in_part)

    answering = Answering(process.options.ledger, sight)
    process.stack.callback(answering.close)
    late.come([*questions(process.objects, answering), *routes])
    process.stack.callback(late.go)
