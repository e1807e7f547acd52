"""
Refusals of admission on their way into the ledger: the webhook tells, the one writer records.

Rule: design section 2, "refusals reach the ledger through the scheduler's API". Each is recorded
once, however often it is told, and no namespace fills the ledger.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from ledger.domain.bounds import NAME_MAX, Name
from ledger.domain.errors import InputError
from ledger.domain.log.codec import decode_value
from ledger.domain.log.events import RefusalReason, RequestRefused
from ledger.store.writing.commands import Command, Recorded
from scheduler.record import events
from scheduler.service.api.callers import Caller
from scheduler.service.api.http import RefusedError, Route, json_answer, read_object
from scheduler.service.api.words import REFUSALS, REFUSALS_MAX, WEBHOOK_ACTOR
from scheduler.service.budgets import SharedBudgets
from scheduler.service.http import read_aside
from scheduler.service.ports import Clock, Recorder, TakeRecorded, WhyNot
from scheduler.service.refusing import refusal_budgets

BINDING: Final = "Binding"
ADMISSION, TAKEOVER = "admission", "takeover"
TEXT_MAX: Final = 1_024
FAULTS_MAX: Final = 8
"""How many of the refusals that can't be read are named in an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One rule that an object breaks, at which of its fields."""

    rule: str
    field: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldRefusal:
    """An object that admission refused; `uid` is the request's, `name` as its user wrote it."""

    uid: Name
    kind: Name
    namespace: Name
    name: str
    user: str
    violations: tuple[Violation, ...]


@dataclass(slots=True, eq=False)
class RefusalRoutes:
    """Records what webhooks tell, whose tokens are those of `user`."""

    recorder: Recorder
    recorded: TakeRecorded
    clock: Clock
    user: str
    why_not: WhyNot
    counts: Counter[str] = field(default_factory=Counter)
    _budgets: SharedBudgets = field(init=False)

    def __post_init__(self) -> None:
        self._budgets = refusal_budgets(self.clock.monotonic)

    def routes(self) -> list[Route]:
        """Return what is taken, at which path."""
        return [Route(method="POST", path=REFUSALS, act=self.take)]

    async def take(self, request: web.Request, caller: Caller) -> web.StreamResponse:
        """Record what a webhook tells; what it tells again is recorded already."""
        if caller.user != self.user or caller.how != "token":
            fact = f"webhooks alone are heard here: user={caller.user}"
            raise RefusedError(403, "Forbidden", fact)
        why = self.why_not()
        if why:
            raise RefusedError(503, "ServiceUnavailable", why, retry=True)
        counts = Counter[str]()
        refusals, faults = await read_aside(read_refusals, await request.read())
        for told in refusals:
            counts[await self._record(told)] += 1
        counts["unreadable"] += len(faults)
        self.counts += counts
        said: dict[str, object] = {what: counts[what] for what in sorted(counts) if counts[what]}
        if faults:
            said["faults"] = [str(fault) for fault in faults[:FAULTS_MAX]]
        return json_answer({"format": 1, **said})

    async def _record(self, told: ToldRefusal) -> str:
        if not self._budgets.take(told.namespace):
            return "dropped"
        event = refused_by_admission(told)
        words = json.dumps([[one.rule, one.field] for one in told.violations])
        key = f"refuse:{told.uid}:{hashlib.sha256(words.encode()).hexdigest()[:16]}"
        new = events.refused_request(event, key, self.clock.wall_us())
        before, is_new = self.recorder.position, False
        try:
            outcome = await self.recorder.record(Command(events=(events.by(WEBHOOK_ACTOR, new),)))
            if isinstance(outcome, Recorded):
                is_new = outcome.first > before
                self.recorded((new,), outcome.first)
        finally:
            if not is_new:  # it was there, or is told again
                self._budgets.give_back(told.namespace)
        return "recorded" if isinstance(outcome, Recorded) else "refused"


def refused_by_admission(told: ToldRefusal) -> RequestRefused:
    """Return the event of a refusal, the same for the same words."""
    errors = [f"{one.field}: {one.message}" for one in told.violations]
    what = "" if told.kind == "Pod" else f" of a {told.kind}"
    return RequestRefused(
        pod_uid=told.uid,
        namespace=told.namespace,
        pod_name=told.name[:NAME_MAX],
        stage=TAKEOVER if told.kind == BINDING else ADMISSION,
        message=f"{'; '.join(errors)}{what}"[:TEXT_MAX],
        reasons=tuple(
            RefusalReason(reason=one.rule, nodes=0, detail=error[:TEXT_MAX])
            for one, error in zip(told.violations, errors, strict=True)
        ),
    )


def read_refusals(body: bytes) -> tuple[list[ToldRefusal], list[InputError]]:
    """
    Read what a webhook tells, and what of it can't be read, each with its field.

    Raises:
        InputError: another shape, too much at once, or nothing that can be read.
    """
    words = "expected an object with `refusals`"
    value = read_object(body, words)
    if value.keys() != {"refusals"}:
        raise InputError(words, field="body")
    items = value["refusals"]
    if not isinstance(items, list):
        raise InputError("expected a list", field="body.refusals")
    if len(items) > REFUSALS_MAX:
        raise InputError(f"too many refusals at once: most={REFUSALS_MAX}", field="body.refusals")
    told, faults = [], []
    for number, item in enumerate(items):
        try:
            told.append(_read(item, f"body.refusals[{number}]"))
        except InputError as error:
            faults.append(error)
    if faults and not told:
        raise faults[0]
    return told, faults


def _read(item: object, path: str) -> ToldRefusal:
    told: ToldRefusal = decode_value(ToldRefusal, item, path)
    if not (told.uid and told.violations):
        raise InputError("empty", field=path)
    return told
