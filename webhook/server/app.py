"""The admission server: two hooks as an aiohttp application."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final
from urllib.parse import parse_qs

from aiohttp import web

from ledger.domain.annotations.gang import SECOND_NS, parse_duration
from ledger.domain.errors import InputError
from webhook.decide import review as reviews
from webhook.decide.answers import AdmissionAnswer
from webhook.decide.facts import NamespaceFacts
from webhook.decide.mutating.pod import mutate_pod
from webhook.decide.settings import AdmissionSettings
from webhook.decide.validating.validate import validate
from webhook.server import ports
from webhook.server.metrics import Metrics
from webhook.server.reading import Needs, gather_facts, needs_of, read_review
from webhook.server.remembering import Memory, Remembered, cut_of, decided

MARGIN_SECONDS: Final = 0.5
"""How long before the API server gives up we do: time for the answer to travel."""

_FIELDS_MAX: Final = 16

MUTATE: Final = "mutate"
VALIDATE: Final = "validate"
JSON: Final = "application/json"
TOLD_MAX: Final = 16
"""Violations of one object that are handed on, of each mode: its user chooses how many it has."""

_log: Final = logging.getLogger("tenure.admission")

Decide = Callable[[reviews.AdmissionRequest, AdmissionSettings, NamespaceFacts], AdmissionAnswer]
_DECISIONS: Final[dict[str, Decide]] = {MUTATE: mutate_pod, VALIDATE: validate}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """
    What one request may cost.

    Attributes:
        in_flight_max: requests that are answered at once; more wait. Only a request whose body is
            here counts, so that a slow caller keeps nobody out.
        containers_quick: a Pod with more is decided on aside, like a larger request.
        seconds_max: for one request, less when the API server gives up earlier.
        seconds_min: what is tried at least, however soon the API server gives up.
    """

    review: reviews.ReviewLimits = reviews.DEFAULT_LIMITS
    in_flight_max: int = 64
    large_bytes: int = 64 * 2**10
    containers_quick: int = 32
    seconds_max: float = 4.5
    seconds_min: float = 0.25


def takes_long(request: reviews.AdmissionRequest, length: int, limits: ServerLimits) -> bool:
    """Tell whether a request is worth a thread of its own: its length, or a Pod's containers."""
    return length > limits.large_bytes or any(
        sum(map(len, reviews.lists_of_containers(pod).values())) > limits.containers_quick
        for pod in (request.obj, request.old)
        if pod is not None
    )


@lru_cache(maxsize=64)
def budget_of_query(query: str, limits: ServerLimits) -> float:
    """Return how long a request with this query string may take; see `budget_seconds`."""
    try:
        found = parse_qs(query, max_num_fields=_FIELDS_MAX).get("timeout", [""])
    except ValueError:
        found = [""]
    return budget_seconds(found[0], limits)


def budget_seconds(timeout: str | None, limits: ServerLimits) -> float:
    """Return a request's seconds by the API server's `timeout`; unreadable counts as none."""
    try:
        given = parse_duration(timeout or "") / SECOND_NS
    except InputError:
        return limits.seconds_max
    left = given - MARGIN_SECONDS if given >= 0 else limits.seconds_max
    return max(limits.seconds_min, min(limits.seconds_max, left))


@dataclass(slots=True, kw_only=True)
class Admission:
    """
    What the hooks work with.

    Attributes:
        take_refusal: None where nobody records them.
        why_not_ready: tells why no calls should come here; empty when they may.
        memory: decisions that Pods alike share.
        aside: reads large requests and decides on Pods of many containers, so that the others are
            answered meanwhile.
    """

    settings: ports.SettingsSource
    lookups: ports.Lookups
    take_refusal: ports.TakeRefusal | None
    metrics: Metrics
    limits: ServerLimits = field(default_factory=ServerLimits)
    why_not_ready: Callable[[], str] = str
    memory: Memory = field(default_factory=Memory)
    answering: ports.Answering = nullcontext
    aside: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "large"))


class _BeyondError(Exception):
    """The request is of more than is read; `request` is whose it is, without its object."""

    def __init__(self, request: reviews.AdmissionRequest, error: reviews.LimitError) -> None:
        super().__init__(str(error))
        self.request = request
        fact = f'{request.kind} "{request.shown_name}" is invalid: {error}'
        self.answer = AdmissionAnswer(allowed=False, message=fact)


class _BrokenError(Exception):
    """The request is none of admission's; with the status that says how."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


def hooks_app(admission: Admission) -> web.Application:
    """Return the application that kube-apiserver calls: `/mutate` and `/validate`, TLS outside."""
    app = web.Application()
    for hook in _DECISIONS:
        app.router.add_post(f"/{hook}", _handler(admission, hook))
    return app


def _handler(admission: Admission, hook: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    metrics, limits = admission.metrics, admission.limits
    took = metrics.seconds.labels(hook)
    places = asyncio.Semaphore(limits.in_flight_max)  # callers wait for one in order

    async def handle(request: web.Request) -> web.Response:
        with admission.answering(request.protocol):
            return await timed(request)

    async def timed(request: web.Request) -> web.Response:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(budget_of_query(request.rel_url.raw_query_string, limits)):
                content = await _content(request, limits)
                read = None
                if len(content) > limits.large_bytes:  # takes long, so others come in between
                    loop = asyncio.get_running_loop()
                    read = await loop.run_in_executor(admission.aside, _read, content, limits)
                async with places:
                    with metrics.in_flight.track_inprogress():
                        response = await _answer(admission, hook, content, read, started)
                if admission.why_not_ready():
                    response.force_close()  # callers shall not come back on this connection
                return response
        except TimeoutError:
            metrics.broken.labels("timeout").inc()
            return web.Response(status=504, text="no time left to answer\n")
        except _BeyondError as error:
            asked, seconds = error.request, time.perf_counter() - started
            note = _Note(hook=hook, request=asked, uid=asked.uid, name=asked.shown_name)
            _take_note(admission, note, error.answer, seconds)
            body = json.dumps(reviews.encode_review(asked, error.answer))
            return web.Response(text=body, content_type=JSON)
        except _BrokenError as error:
            metrics.broken.labels(error.reason).inc()
            return web.Response(status=error.status, text=f"{error}\n")
        finally:
            took.observe(time.perf_counter() - started)

    return handle


async def _answer(
    admission: Admission,
    hook: str,
    content: bytes,
    read: reviews.AdmissionRequest | None,
    started: float,
) -> web.Response:
    """Answer a request, read already if it is a large one."""
    settings, limits, memory = admission.settings.current, admission.limits, admission.memory
    cut = cut_of(hook, content)
    known = memory.find(cut, settings)
    if cut is not None and known is not None:
        facts = await _facts(admission, known.needs)
        if facts == known.facts:
            name = cut.name or known.name
            note = _Note(hook=hook, request=known.request, uid=cut.uid, name=name)
            admission.metrics.remembered.inc()
            _take_note(admission, note, known.answer, time.perf_counter() - started)
            return web.Response(body=known.response(cut.uid), content_type=JSON)
    request = _read(content, limits) if read is None else read
    needs = needs_of(request)
    facts = await _facts(admission, needs)

    def decide() -> tuple[Remembered, bytes]:
        return decided(request, needs, facts, _DECISIONS[hook](request, settings, facts))

    if takes_long(request, len(content), limits):
        loop = asyncio.get_running_loop()
        decision, response = await loop.run_in_executor(admission.aside, decide)
    else:
        decision, response = decide()
    memory.keep(cut, request, decision, settings, limits.review)
    note = _Note(hook=hook, request=request, uid=request.uid, name=request.shown_name)
    _take_note(admission, note, decision.answer, time.perf_counter() - started)
    return web.Response(body=response, content_type=JSON)


async def _content(http: web.Request, limits: ServerLimits) -> bytes:
    if http.headers.get("Content-Encoding", "identity") != "identity":
        raise _BrokenError(415, "encoding", "compressed requests are not read")
    if http.content_type != JSON:
        raise _BrokenError(415, "content_type", f"expected {JSON}: got={http.content_type}")
    content = bytearray()
    while len(content) <= limits.review.bytes_max and (more := await http.content.readany()):
        content += more
    return bytes(content)


def _read(content: bytes, limits: ServerLimits) -> reviews.AdmissionRequest:
    try:
        return read_review(content, limits.review)
    except InputError as error:
        if isinstance(error, reviews.LimitError):
            with suppress(InputError):
                raise _BeyondError(reviews.request_beyond(content), error) from error
        if len(content) > limits.review.bytes_max:
            raise _BrokenError(413, "too_large", str(error)) from error
        raise _BrokenError(400, "unreadable", str(error)) from error


async def _facts(admission: Admission, needs: Needs) -> NamespaceFacts:
    try:
        return await gather_facts(needs, admission.lookups)
    except ports.LookupFailedError as error:
        # Not a refusal of ours: the API server goes by the hook's failurePolicy.
        raise _BrokenError(503, "lookup", f"the API could not be asked: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Note:
    """Whom a decision is about; `uid` and `name` are not those of a request that is alike."""

    hook: str
    request: reviews.AdmissionRequest
    uid: str
    name: str


def _take_note(admission: Admission, note: _Note, answer: AdmissionAnswer, seconds: float) -> None:
    """Count the decision, hand its violations on and log it in one line."""
    metrics, request = admission.metrics, note.request
    decision = "allowed" if answer.allowed else "refused"
    metrics.count(note.hook, request.operation, decision)
    told = Counter[str]()
    for refusal in answer.refusals:
        metrics.violations.labels(refusal.rule, refusal.mode).inc()
        told[refusal.mode] += 1
        is_over = told[refusal.mode] > TOLD_MAX
        if admission.take_refusal is None or request.dry_run or is_over:
            continue  # of a dry run nothing happens, so nothing is recorded
        admission.take_refusal(
            ports.RefusalRecord(
                uid=note.uid,
                kind=request.kind,
                namespace=request.namespace,
                name=note.name,
                user=request.user.name,
                rule=refusal.rule,
                mode=refusal.mode,
                field=refusal.error.field,
                message=refusal.error.message,
            )
        )
    _say(
        {
            "hook": note.hook,
            "decision": decision,
            "operation": request.operation,
            "kind": request.kind,
            "subresource": request.subresource,
            "namespace": request.namespace,
            "object_name": note.name,
            "user": request.user.name,
            "uid": note.uid,
            "rules": sorted({refusal.rule for refusal in answer.refusals}),
            "patch_operations": len(answer.patch),
            "warnings": len(answer.warnings),
            "dry_run": request.dry_run,
            "milliseconds": round(seconds * 1_000, 2),
        }
    )


def _say(fields: dict[str, object]) -> None:
    """Log a decision, without the search for who called that `Logger.info` makes for each line."""
    if _log.isEnabledFor(logging.INFO):
        record = logging.LogRecord(_log.name, logging.INFO, "", 0, "admission", None, None)
        record.__dict__.update(fields)
        _log.handle(record)
