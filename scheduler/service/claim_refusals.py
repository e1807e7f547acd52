"""What is said of claims that were refused: to the ledger, to people, and in metrics."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ledger.domain.bounds import NAME_MAX
from ledger.domain.errors import FencedError, LedgerError
from ledger.domain.log.events import RefusalReason, RequestRefused
from scheduler.gate.claims import ClaimSeen
from scheduler.gate.decide import DEVICE_CLOSED, DEVICE_TAKEN, Barred
from scheduler.record import events
from scheduler.service.budgets import SharedBudgets, put_newest
from scheduler.service.claims import ClaimBook
from scheduler.service.ports import Clock, Recorder, TakeRecorded
from scheduler.service.recording import record
from scheduler.service.refusing import refusal_budgets
from scheduler.service.telling import Telling, about_pod

REFUSED: Final = "DevicesRefused"
STAGE: Final = "claim"
TEXT_MAX: Final = 1_024
SHOWN_MAX: Final = 64
"""Claims that are shown one by one, of those that were refused most often."""
_TOLD_MAX: Final = 10_000
"""Claims of which it is remembered why they were refused last."""

_log: Final = logging.getLogger("tenure.scheduler.gate")


@dataclass(slots=True, eq=False)
class ClaimRefusals:
    """Refusals of claims that wait; `times` counts them by UID since a claim was let through."""

    book: ClaimBook
    recorder: Recorder
    recorded: TakeRecorded
    clock: Clock
    telling: Telling
    actor: str
    _told: dict[str, str] = field(default_factory=dict)  # UID of a claim -> why it was refused last
    times: Counter[str] = field(default_factory=Counter)
    _budgets: SharedBudgets = field(init=False)

    def __post_init__(self) -> None:
        self._budgets = refusal_budgets(self.clock.monotonic)

    def forget(self, uid: str) -> None:
        """Begin anew with a claim: it was let through."""
        self.times.pop(uid, None)
        self._told.pop(uid, None)

    def most(self) -> Mapping[str, int]:
        """Return how often the claims were refused that were so most often and wait still."""
        return {
            seen.full_name: times
            for uid, times in self.times.most_common(SHOWN_MAX)
            if (seen := self.book.seen.get(uid)) is not None and not seen.is_allocated
        }

    async def refuse(self, claim: ClaimSeen, answer: Barred, *, is_free: bool) -> None:
        """Say why a claim was refused: to the ledger once for the same words, and to its Pods."""
        self.times[claim.uid] += 1
        if len(self.times) > _TOLD_MAX:
            del self.times[next(iter(self.times))]
        for pod in claim.consumers:
            subject = about_pod(claim.namespace, pod.name, pod.uid)
            times = self.times[claim.uid]
            note = f"claim {claim.name}: {answer.message}. {_way_out(answer, is_free=is_free)}"
            self.telling.tell(subject, REFUSED, f"{note} (refused {times} times)", action="Gate")
        if self._told.get(claim.uid) == answer.message or not self._budgets.take(claim.namespace):
            return
        put_newest(self._told, claim.uid, answer.message, _TOLD_MAX)
        event = _refusal(claim, answer)
        digest = hashlib.sha256(answer.message.encode()).hexdigest()[:16]
        key = f"refuse:{claim.uid}:{claim.version}:{digest}"
        new = events.by(self.actor, events.refused_request(event, key, self.clock.wall_us()))
        try:
            await record(self.recorder, (new,), self.recorded)
        except FencedError:
            raise
        except LedgerError as error:  # it is refused all the same
            _log.warning("not recorded", extra={"claim": claim.full_name, "reason": str(error)})


def _way_out(answer: Barred, *, is_free: bool) -> str:
    if answer.reason not in {DEVICE_CLOSED, DEVICE_TAKEN}:
        return "It is asked again"
    words = "once its holder ends" if answer.taken else "once it is open again"
    if is_free:
        return f"It is to be had {words}, or another one like it is free"
    return f"It is to be had {words}; the claim may name this very device, so no other is tried"


def _refusal(claim: ClaimSeen, answer: Barred) -> RequestRefused:
    pod = claim.consumers[0] if claim.consumers else None
    return RequestRefused(
        pod_uid=claim.uid if pod is None else pod.uid,
        namespace=claim.namespace,
        pod_name=(claim.name if pod is None else pod.name)[:NAME_MAX],
        stage=STAGE,
        message=f"claim {claim.full_name}: {answer.message}"[:TEXT_MAX],
        reasons=(RefusalReason(reason=answer.reason, nodes=1, detail=answer.message[:TEXT_MAX]),),
    )
