"""
Keeps in the ledger why Pods wait: what a filter refused is explained and recorded beside the calls.

Rule: design section 8, "Refusals are recorded when the set of reasons changes, bounded per Pod and
namespace". Filter only notes which Pods it refused. Why is decided as for files, over every node,
so that a live ledger and a simulated one answer alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from msgspec import structs

from certs.ports import Object
from ledger.domain import errors
from ledger.domain.log.events import LedgerEvent, PodReserved, RefusalReason
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.recorded_request import recorded_request, request_digest
from ledger.domain.log.state import Holding
from ledger.domain.request.requests import PodRequest, group_name
from ledger.domain.resources import SCHEDULER_NAME
from scheduler.cluster.constraints import gate_errors
from scheduler.cluster.model import RefusedPod, asking
from scheduler.decide.engine import Limits
from scheduler.decide.group.groups import GANG_UNFIT
from scheduler.decide.nodes.arrays import IntArray
from scheduler.decide.outcome import Placement, Unfit, Unplaced
from scheduler.decide.refusal.reasons import NOT_OFFERED, message
from scheduler.record import events
from scheduler.record.grouping import refused_everywhere
from scheduler.record.refusing import Told, ToldRefusals
from scheduler.service.binding import Binder
from scheduler.service.books import LiveBooks
from scheduler.service.budgets import Budgets, SharedBudgets
from scheduler.service.groups import LiveGroups
from scheduler.service.members import may_be_member
from scheduler.service.ports import Clock, Recorder, WhyNot
from scheduler.service.recording import RecordUntilKnown, record
from scheduler.service.starts import ELSEWHERE, MEMBERS_GATED
from scheduler.service.view import ClusterView

TOGETHER: Final = 20
"""Pods that are explained without a pause: a filter that comes meanwhile waits for them."""
DUE_MAX: Final = 10_000
"""Pods that wait to be explained; who comes then is explained when it is asked about again."""
AGAIN_SECONDS: Final = 5.0
"""A Pod is explained at most so often: kube-scheduler may ask about it all the time."""
FILTERED_SECONDS: Final = 30.0
"""For so long the last filter says more than kube-scheduler's verdict, which follows it."""
NAMESPACE_BURST: Final = 2_000.0
NAMESPACE_SECONDS: Final = 10.0
"""Refusals of one namespace: so many at once, and one more after each so many seconds."""
ALL_BURST: Final = 20_000.0
ALL_SECONDS: Final = 1.0
"""Refusals of all namespaces that one kind of callers names: some 60 MB of ledger in a day."""
GONE_TOGETHER: Final = 1_000
"""Deleted Pods of which the ledger is asked in one look whether they wait by it."""
KNOWN_MAX: Final = 50_000
"""Pods of which it is remembered what was said; of others the ledger is asked."""

UNCHANGED: Final = "unchanged"
RECORDED: Final = "recorded"
PLACEABLE: Final = "placeable"
TOO_MANY: Final = "too many"
REFUSED: Final = "refused by the ledger"

History = Callable[[Sequence[str] | None], Awaitable[Mapping[str, Told]]]
"""Returns what the ledger says of why these Pods waited, None = of all that wait by it; of those
that it refused at all."""
_LOST: Final = (errors.FencedError, errors.CorruptLedgerError)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Due:
    """
    A Pod that a filter refused.

    Attributes:
        offered: bits by the number of a node: kube-scheduler asked about it; None = about all.
        has_room: some node took it when it was explained: kube-scheduler is about to ask again, or
            to say that its own filters leave none.
    """

    asked: PodRequest | RefusedPod
    offered: npt.NDArray[np.uint8] | None = None
    has_room: bool = False


class Refusing:
    """Records why Pods wait; `told` is asked about Pods that are not in memory."""

    def __init__(
        self,
        view: ClusterView,
        books: LiveBooks,
        binder: Binder,
        groups: LiveGroups,
        *,
        told: History,
        why_not: WhyNot,
    ) -> None:
        self._view = view
        self._books = books
        self._binder = binder
        self._recorder: Recorder = binder.recorder
        self._clock: Clock = binder.clock
        self._groups = groups
        self._history = told
        self._why_not = why_not
        self._due: dict[str, _Due] = {}  # by UID, who was refused first first
        self._told = ToldRefusals()
        self._filtered: dict[str, float] = {}  # UID -> when it was noted last
        self._looked: dict[str, float] = {}  # UID -> when it was explained last
        self._records = RecordUntilKnown(binder.recorder, books.recorded)  # by UID
        self._recorded_waits: set[str] | None = None  # UIDs, as a start reads them; None = not yet
        self._gone: dict[str, None] = {}  # UIDs of deleted Pods whose wait may not have ended
        self._deleted: dict[str, float] = {}  # UID -> when it was deleted, by that
        self._budgets = refusal_budgets(binder.clock.monotonic)
        self.counts: Counter[str] = Counter()
        view.wakeups.event_folded.subscribe(self._take_event)

    def __len__(self) -> int:
        return len(self._due)

    def noted(self, asked: PodRequest | RefusedPod, offered: IntArray | None = None) -> None:
        """
        Take note that a Pod was left no node, by a filter or the plan of its gang; nothing waits.

        Args:
            offered: numbers of the nodes that it was asked about; None = all.
        """
        if self._note(asked, offered):
            self._filtered[asked.uid] = self._clock.monotonic()

    def _note(self, asked: PodRequest | RefusedPod, offered: IntArray | None) -> bool:
        uid = asked.uid
        if uid not in self._due and len(self._due) >= DUE_MAX:
            self.counts[TOO_MANY] += 1
            return False
        bits = None if offered is None else _packed(offered)
        self._due[uid] = _Due(asked=asked, offered=bits)
        return True

    def put(self, uid: str, item: Object) -> None:
        """
        Take a Pod that came or changed; note one that kube-scheduler refused without asking us.

        It asks no extender once its own filters leave no node, nor about a member of a group that
        somebody else's gate keeps back.
        """
        spec = item.get("spec") or {}
        if spec.get("nodeName") or spec.get("schedulerName") != SCHEDULER_NAME:
            return
        due = self._due.get(uid)
        is_noted = uid in self._filtered if due is None else not due.has_room
        gates = gate_errors(item) if may_be_member(item) else ()
        if is_noted or not (gates or _is_unschedulable(item)):
            return
        try:
            asked = self._view.requests.read(item)
        except errors.InputError:
            return  # its filter says so, or its admission
        if isinstance(asked, PodRequest):
            self._note(asking(asked, gates), np.zeros(0, dtype=np.int64))

    def drop(self, uid: str) -> None:
        """Forget a Pod that is gone; the ledger is told where the Pod waits by it."""
        self._due.pop(uid, None)
        self._filtered.pop(uid, None)
        self._records.forget(uid)
        told = self._told.pods.pop(uid, None)
        now = self._clock.monotonic()
        while self._deleted and next(iter(self._deleted.values())) <= now - FILTERED_SECONDS:
            del self._deleted[next(iter(self._deleted))]
        self._deleted[uid] = now
        if uid in (self._recorded_waits or ()) or (told is not None and told.number):
            self._gone[uid] = None

    def _take_event(self, _position: int, event: LedgerEvent, _holding: Holding | None) -> None:
        if isinstance(event, PodReserved):  # later any reason is news again
            self._told.ask_anew(event.pod_uid)

    async def settle(self) -> None:
        """
        Explain some Pods that wait.

        Raises LedgerError: they are explained later, unless fenced.
        """
        if self._why_not():
            return
        await self._end_waits()
        pods = self._taken()
        unknown = [uid for uid in pods if uid not in self._told.pods]
        if unknown:
            try:
                found = await self._history(unknown)
            except errors.LedgerError:
                self._put_back(pods)
                raise
            self._told.pods |= {uid: found.get(uid, Told()) for uid in unknown}
        for uid, due in list(pods.items()):
            try:
                await self._explain(uid, due)
            except errors.LedgerError:
                self._put_back(pods)
                raise
            del pods[uid]

    async def _end_waits(self) -> None:
        if self._recorded_waits is None:
            found = await self._history(None)
            self._recorded_waits = {uid for uid, told in found.items() if told.waiting}
            absent = self._recorded_waits - self._view.pods.seen.keys()
            self._gone |= dict.fromkeys(absent)
        gone = list(islice(self._gone, GONE_TOGETHER))
        found = await self._history(gone) if gone else {}
        for uid in gone:
            told = found.get(uid, Told())
            if told.waiting is not None:
                new = events.gone((uid, *told.waiting), told.number + 1, self._clock.wall_us())
                key = f"{new.idempotency_key}:{self._recorder.epoch}"
                new = events.by(self._binder.actor, new, key=key)
                await record(self._recorder, (new,), self._books.recorded)
            del self._gone[uid]
            self._recorded_waits.discard(uid)

    def _taken(self) -> dict[str, _Due]:
        """Return the Pods to explain now; those whose time has not come stay."""
        now = self._clock.monotonic()
        lately = now - FILTERED_SECONDS
        self._filtered = {uid: at for uid, at in self._filtered.items() if at > lately}
        self._looked = {uid: at for uid, at in self._looked.items() if now - at < AGAIN_SECONDS}
        pods: dict[str, _Due] = {}
        for uid in list(self._due):
            if uid in self._looked:
                continue
            due = self._due.pop(uid)
            if not self._waits(uid):
                self._records.forget(uid)
                continue
            pods[uid] = due
            self._looked[uid] = now
            if len(pods) == TOGETHER:
                break
        while len(self._told.pods) > KNOWN_MAX:
            del self._told.pods[next(iter(self._told.pods))]
        return pods

    def _waits(self, uid: str) -> bool:
        """
        Tell whether a Pod waits still, as far as we know.

        One that the watch does not show may be ahead of it, or was asked about after its end: it
        waits while its last filter is new.
        """
        seen = self._view.pods.seen.get(uid)
        is_ours = self._binder.is_under_way(uid) or self._books.standing(uid) is not None
        lately = uid in self._filtered and uid not in self._deleted
        waits = lately if seen is None else not (seen.node or seen.ended)
        return waits and (not is_ours or bool(self._kept_off(uid)))

    def _kept_off(self, uid: str) -> str:
        """Return the node that is reserved for a member of a begun gang without a bind call."""
        standing, starts = self._books.standing(uid), self._groups.starts
        is_kept_off = starts.is_awaited(uid) and not starts.is_coming(uid)
        return standing.node_name if standing and not standing.is_bound and is_kept_off else ""

    def _put_back(self, pods: Mapping[str, _Due]) -> None:
        for uid, due in pods.items():
            self._due.setdefault(uid, due)
            self._looked.pop(uid, None)

    async def _explain(self, uid: str, due: _Due) -> None:
        unsure = self._records.unsure.get(uid)
        if unsure is not None:
            await self._record(uid, unsure)
            return
        asked = due.asked
        if isinstance(asked, RefusedPod):
            reasons = frozenset(error.reason for error in asked.errors)
            answer = None
        else:
            asked = replace(asked, stored=self._view.requests.stored(uid))
            answer = self._answer(asked, due)
            if answer is None:
                self.counts[PLACEABLE] += 1
                self._due.setdefault(uid, replace(due, has_room=True))
                return
            reasons = frozenset(reason.reason for reason in answer.reasons)
        if not self._told.is_news(uid, reasons):
            self.counts[UNCHANGED] += 1
            return
        if not self._budgets.take(asked.namespace):
            self.counts[TOO_MANY] += 1  # it would take the place of others; it is noted again
            return
        number = self._told.next_number(uid, reasons)
        await self._record(uid, self._events(asked, answer, number))

    def _answer(self, request: PodRequest, due: _Due) -> Unplaced | None:
        offered = None
        if due.offered is not None:
            offered = np.flatnonzero(np.unpackbits(due.offered)).astype(np.int64)
        refusal = self._groups.why_nowhere(group_name(request))
        if refusal is not None:
            return self._of_gang(request, refusal, offered)
        node_name = self._kept_off(request.uid)
        if node_name:
            answer = explained(self._view, request, offered, ELSEWHERE)
            return None if answer is None else _with_planned(answer, node_name)
        with self._groups.place_lifted(request) as place:
            if place is None:
                return explained(self._view, request, offered)
            elsewhere = offered is not None and place.node not in offered
            answer = explained(self._view, request, offered, ELSEWHERE if elsewhere else "")
        is_open = self._view.directory.number(place.node_name) == place.node
        if answer is None or not (elsewhere and is_open):
            return answer
        return _with_planned(answer, place.node_name)

    def _of_gang(
        self, request: PodRequest, refusal: Unfit, offered: IntArray | None
    ) -> Unplaced | None:
        """Return why a member of a gang waits that nobody got a place of; with nodes' reasons."""
        if refusal.reason != GANG_UNFIT:
            gates = ""
            if refusal.reason == MEMBERS_GATED:
                gates = self._groups.gates_of_others(group_name(request))
            remedy = f"lift the scheduling gate {gates}" if gates else ""
            return refused_everywhere(request, refusal, len(self._view.nodes.nodes), remedy)
        asked_of_some = offered is not None and len(offered)
        answer = explained(self._view, request, offered if asked_of_some else None, GANG_UNFIT)
        return None if answer is None else _with_gang(answer, refusal)

    def _events(
        self, asked: PodRequest | RefusedPod, answer: Unplaced | None, number: int
    ) -> tuple[NewEvent, ...]:
        at_us, words = self._clock.wall_us(), self._books.words
        if isinstance(asked, RefusedPod):
            described: tuple[NewEvent, ...] = ()
            new = events.broken_rules(words, asked, at_us, number)
        else:
            assert answer is not None, asked
            recorded = recorded_request(asked)
            digest = request_digest(recorded)
            about = f"{asked.uid}:refusal:{number}"
            described = self._books.describing(recorded, digest, about, at_us)
            new = events.unplaced(words, answer, number, at_us, digest=digest, arrival=0)
        # A writer that was deposed may have said something else under the same number.
        key = f"{new.idempotency_key}:{self._recorder.epoch}"
        actor = self._binder.actor
        ours = (events.by(actor, one) for one in described)
        return (*ours, events.by(actor, new, key=key))

    async def _record(self, uid: str, new: tuple[NewEvent, ...]) -> None:
        try:
            error = await self._records.record(uid, new)
        except (errors.UnknownOutcomeError, *_LOST):
            raise
        except errors.LedgerError:
            self._records.forget(uid)  # nothing was recorded: it is explained anew
            self._told.pods.pop(uid, None)
            raise
        self.counts[RECORDED if error is None else REFUSED] += 1


def refusal_budgets(now: Callable[[], float]) -> SharedBudgets:
    """Return how many refusals may be added to the ledger: of each namespace, and of all."""
    return SharedBudgets(
        Budgets(now, burst=NAMESPACE_BURST, seconds=NAMESPACE_SECONDS),
        Budgets(now, burst=ALL_BURST, seconds=ALL_SECONDS),
    )


def explained(
    view: ClusterView, request: PodRequest, offered: IntArray | None, otherwise: str = ""
) -> Unplaced | None:
    """
    Return why no node takes a Pod, counted as in a simulation; None where one does now.

    Args:
        offered: numbers of the nodes that kube-scheduler asked about; None = all.
        otherwise: why nodes that would take it do not; empty: they do.
    """
    closed: dict[int, str] = {}
    unread: Counter[str] = Counter()
    for name, reason in view.directory.all_closed().items():
        number = view.number(name)
        if number is None:
            unread[reason] += 1
        else:
            closed[number] = reason
    limits = Limits(closed=closed, offered=offered, otherwise=otherwise)
    answer = view.engine.decide(request, limits=limits)
    if isinstance(answer, Placement):
        return None
    return _with_more(answer, unread) if unread else answer


def _with_more(answer: Unplaced, unread: Counter[str]) -> Unplaced:
    """Return an answer with nodes that the engine knows nothing of."""
    assert answer.nodes is not None, answer
    counts = unread.copy()
    listed = Counter(answer.nodes.codes)
    for code, number in listed.items():
        for text in answer.nodes.texts[code]:
            counts[text] += number
    more = [RefusalReason(reason=reason, nodes=number) for reason, number in unread.items()]
    ordered = sorted((*answer.reasons, *more), key=lambda each: (-each.nodes, each.reason))
    nodes = len(answer.nodes.codes) + unread.total()
    return replace(
        answer, message=message(nodes, counts.items()), reasons=tuple(ordered), nodes=None
    )


def _with_planned(answer: Unplaced, node_name: str) -> Unplaced:
    """Return an answer for a member whose place is on a node that it was not asked about on."""
    detail = f"planned on {node_name}, kube-scheduler did not offer it"
    reasons = [
        structs.replace(reason, nearest_node=node_name, detail=detail)
        if reason.reason == NOT_OFFERED.text
        else reason
        for reason in answer.reasons
    ]
    return replace(answer, reasons=tuple(reasons))


def _with_gang(answer: Unplaced, refusal: Unfit) -> Unplaced:
    """Return an answer with how many of a gang fit together, whether or not a node takes one."""
    nodes = sum(each.nodes for each in answer.reasons if each.reason == refusal.reason)
    detail = f"asks {refusal.requested} {refusal.unit}, {refusal.available} fit"
    others = [each for each in answer.reasons if each.reason != refusal.reason]
    of_gang = RefusalReason(reason=refusal.reason, nodes=nodes, detail=detail)
    ordered = sorted((*others, of_gang), key=lambda each: (-each.nodes, each.reason))
    together = f"Of the {refusal.requested} {refusal.unit} that start together"
    text = f"{answer.message} {together} {refusal.available} fit."
    return replace(answer, message=text, reasons=tuple(ordered))


def _is_unschedulable(item: Object) -> bool:
    conditions: list[dict[str, Any]] = (item.get("status") or {}).get("conditions") or []
    return any(
        (one.get("type"), one.get("status"), one.get("reason"))
        == ("PodScheduled", "False", "Unschedulable")
        for one in conditions
    )


def _packed(numbers: IntArray) -> npt.NDArray[np.uint8]:
    bits = np.zeros(int(numbers.max(initial=-1)) + 1, dtype=np.bool_)
    bits[numbers] = True
    return np.packbits(bits)
