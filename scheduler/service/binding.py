"""
Binding: `scheduler.bind.protocol` executed, one task for each Pod on its way to a node.

Rule: design section 5.3. A call is answered in time whether or not the protocol has ended: what is
under way goes on, and a repeated call joins it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, assert_never

from certs.ports import ApiError, ConflictError, Object, Objects, api_path
from ledger.domain import errors
from ledger.domain.log.events import PodBound, PodObserved, PodReserved, PodVoided
from ledger.domain.log.recorded import NewEvent
from ledger.domain.resources import ANNOTATION_TENURE_FENCE
from ledger.store.writing import commands
from ledger.store.writing.commands import Command, Outcome, Recorded
from scheduler.bind import protocol
from scheduler.bind import protocol as steps
from scheduler.record import events
from scheduler.service import outcomes, ports
from scheduler.service.telling import Telling, about_pod
from scheduler.service.wakeups import Wakeups

_log: Final = logging.getLogger("tenure.scheduler.binding")
ANSWER_SECONDS: Final = 8.0
"""Below kube-scheduler's `httpTimeout` of 10 s for an extender."""
CALLS_MAX: Final = 64
"""Calls to the API server at once."""
BINDS_MAX: Final = 4_096
"""Pods on their way at once."""
AGAIN_SECONDS: Final = 0.05
AGAIN_SECONDS_MAX: Final = 5.0

BEHIND_SECONDS: Final = 2.0
"""How long a bind waits for the ledger's feed, which tells within 0.1 s."""

UNDER_WAY: Final = "the binding is still under way"
UNKNOWN_POD: Final = "no such Pod waits"
TOO_MANY: Final = "too many Pods are being bound"
UNCONFIRMED: Final = "the Pod is gone, and its node has not confirmed that nothing of it runs"
NODE_MOVED: Final = "the node keeps changing"
REFUSED: Final = "BindingRefused"
"""The reason of the Event about a Pod whose Binding the API server refused."""


class Proofs(Protocol):
    """Says on the Pod where the ledger has its reservation; see `scheduler.service.proofs`."""

    def annotations(
        self, event: PodReserved, *, epoch: int, position: int, at_us: int
    ) -> Mapping[str, str]:
        """Return what the Binding says beside the reservation's own annotations."""
        ...


@dataclass(slots=True, kw_only=True)
class _Job:
    """
    One Pod on its way.

    Attributes:
        chosen: of the attempt that is being reserved, or was in this call.
        unsure: whether what was chosen is recorded is not known.
        position: of the reservation, once it is durable.
        read: the Pod as it was last read.
        failures: of the same act, one after another.
    """

    call: ports.BindCall
    node_uid: str
    attempt: int
    answer: asyncio.Future[str]
    chosen: ports.Chosen | None = None
    unsure: bool = False
    position: int = 0
    read: Object | None = None
    failures: int = 0

    @property
    def path(self) -> str:
        return pod_path(self.call.namespace, self.call.pod_name)


@dataclass(slots=True, kw_only=True)
class _Ahead:
    """A reservation that waits for its Pod's bind; `known` is set once the ledger answered."""

    chosen: ports.Chosen
    position: int = 0
    known: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, kw_only=True)
class Binder:
    """
    Binds Pods, and settles reservations that are not known as bound.

    Args:
        actor: of the events, such as `scheduler/<replica>`.
        ready: returns once a Pod may be chosen for: the others of its gang were let go.
        is_gone: given UIDs of a node and of a Pod whose object is gone, tells whether nothing of it
            is left there, as far as the node says anything.
        is_awaited: tells whether a gang that has begun waits for this member's bind: what is
            reserved for it stays.

    Attributes:
        counts: what every act came to, as `<act> <effect>`.
        refusals: Bindings that the API server refused, by HTTP status.
    """

    recorder: ports.Recorder
    api: Objects
    clock: ports.Clock
    books: ports.Books
    proofs: Proofs
    telling: Telling
    actor: str
    start: ports.Start
    wakeups: Wakeups
    ready: Callable[[str], Awaitable[None]]
    is_gone: Callable[[str, str], bool]
    is_awaited: Callable[[str], bool]
    answer_seconds: float = ANSWER_SECONDS
    calls_max: int = CALLS_MAX
    binds_max: int = BINDS_MAX
    counts: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _ahead: dict[str, _Ahead] = field(default_factory=dict)
    _calls: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._calls = asyncio.Semaphore(self.calls_max)
        self.wakeups.member_given_up.subscribe(self.give_up)

    def under_way(self) -> int:
        """Return how many Pods are being bound or settled."""
        return len(self._jobs)

    def is_under_way(self, pod_uid: str) -> bool:
        """Tell whether a Pod is being bound or settled: what it holds is not for others to end."""
        return pod_uid in self._jobs or pod_uid in self._ahead

    def give_up(self, pod_uid: str, why: str) -> None:
        """Take back a reservation that waits for its Pod to be bound, behind the fence."""
        ahead = self._ahead.pop(pod_uid, None)
        if ahead is not None:
            ahead.known.set()
        elif not self.is_awaited(pod_uid):
            return
        standing = self.books.standing(pod_uid)
        if standing is not None and not standing.is_bound and pod_uid not in self._jobs:
            self._begin_to_settle(standing, why)

    async def bind(self, call: ports.BindCall) -> str:
        """
        Bind a Pod to a node; return why not, empty when it is bound there.

        The same call again joins the one under way, or answers what came of it. For another node
        the first one is ended before: bound, or taken back behind the fence.
        """
        if not self.books.is_named(call):
            return UNKNOWN_POD
        try:
            async with asyncio.timeout(self.answer_seconds):
                return await self._bind(call)
        except TimeoutError:
            return UNDER_WAY

    def settle(self, standing: ports.Standing) -> None:
        """Find out in the background what became of a reservation that is not known as bound."""
        uid = standing.pod_uid
        if not (self.is_under_way(uid) or self.is_awaited(uid)):
            self._begin_to_settle(standing)

    async def _bind(self, call: ports.BindCall) -> str:
        uid = call.pod_uid
        while True:
            ahead = self._ahead.get(uid)
            if uid not in self._jobs and ahead is not None and not ahead.known.is_set():
                await ahead.known.wait()
                continue
            job = self._jobs.get(uid)
            standing = self.books.standing(uid)
            if job is None and standing is not None:
                if standing.is_bound:
                    return "" if standing.node_name == call.node_name else steps.ELSEWHERE
                goes_on = standing.node_name == call.node_name and self.is_awaited(uid)
                why = steps.MOVED if goes_on else steps.UNSETTLED
                job = self._begin_ahead(call) or self._begin_to_settle(standing, why)
            if job is None:
                break
            answer = await asyncio.shield(job.answer)
            if job.call.node_name == call.node_name or answer == steps.DEPOSED:
                return answer
            if standing is not None and standing == self.books.standing(uid):
                return answer  # nothing came of it
        if len(self._jobs) >= self.binds_max:
            return TOO_MANY
        job = self._job(call)  # from here on a second call joins this one
        self.start(self._run(job, None))
        return await asyncio.shield(job.answer)

    async def _begun(self, job: _Job) -> steps.Next | None:
        """Return the first act for a Pod that waits, None where none does."""
        call = job.call
        await self._caught_up(call)
        await self.ready(call.pod_uid)
        # Another member of its gang may have been asked for in the same moment.
        while (ahead := self._ahead.get(call.pod_uid)) is not None:
            await ahead.known.wait()
            if self._ahead.get(call.pod_uid) is ahead:
                del self._ahead[call.pod_uid]
                return self._with_ahead(job, ahead)
        version = self.books.version(call.pod_uid)
        if version is None:  # kube-scheduler may have heard of it before us
            told = await self._read(job)
            if not (isinstance(told, steps.PodNow) and not told.node and not told.deleting):
                return None
            version = told.resource_version
        attempt = self.books.attempts(call.pod_uid) + 1
        first = protocol.begin(node=call.node_name, attempt=attempt, resource_version=version)
        by_number = self.books.by_number(call)
        if by_number is None:
            return first
        return first[0], steps.Answer(await self._bind_counted(job, version, *by_number))

    def _begin_ahead(self, call: ports.BindCall) -> _Job | None:
        ahead = self._ahead.pop(call.pod_uid, None)
        assert ahead is None or ahead.known.is_set(), call
        if ahead is None or ahead.chosen.reservation.node_name != call.node_name:
            return None
        job = self._job(call)
        self.start(self._run(job, self._with_ahead(job, ahead)))
        return job

    def _with_ahead(self, job: _Job, ahead: _Ahead) -> steps.Next:
        event = ahead.chosen.reservation
        job.chosen, job.position = ahead.chosen, ahead.position
        job.node_uid, job.attempt = event.node_uid, event.attempt
        is_there = event.node_name == job.call.node_name
        begin = protocol.reserved_ahead if is_there else protocol.settle
        return begin(
            node=event.node_name, attempt=event.attempt, resource_version=event.resource_version
        )

    def _begin_to_settle(self, standing: ports.Standing, why: str = steps.UNSETTLED) -> _Job:
        call = ports.BindCall(
            namespace=standing.namespace,
            pod_name=standing.pod_name,
            pod_uid=standing.pod_uid,
            node_name=standing.node_name,
        )
        job = self._job(call, node_uid=standing.node_uid, attempt=standing.attempt)
        first = protocol.settle(
            node=standing.node_name,
            attempt=standing.attempt,
            resource_version=standing.resource_version,
            why=why,
        )
        self.start(self._run(job, first))
        return job

    def _job(self, call: ports.BindCall, *, node_uid: str = "", attempt: int = 0) -> _Job:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        job = _Job(call=call, node_uid=node_uid, attempt=attempt, answer=answer)
        self._jobs[call.pod_uid] = job
        return job

    def _end(self, job: _Job, error: str) -> None:
        del self._jobs[job.call.pod_uid]
        job.answer.set_result(error)
        words = {
            "pod_uid": job.call.pod_uid,
            "node_name": job.call.node_name,
            "attempt": job.attempt,
            "position": job.position,
            "error": error,
        }
        _log.info("a Pod was not bound" if error else "a Pod was bound", extra=words)

    async def _run(self, job: _Job, first: steps.Next | None) -> None:
        """Do what the protocol says until it answers; None = it begins with a Pod that waits."""
        error = UNKNOWN_POD
        try:
            following = first or await self._begun(job)
            while following is not None:
                state, act = following
                if isinstance(act, steps.Answer):
                    error = act.error
                    break
                is_unseen = isinstance(act, steps.RecordVoided) and act.reason == steps.GONE_UNSEEN
                if is_unseen and not self.is_gone(job.node_uid, job.call.pod_uid):
                    error = UNCONFIRMED  # the reservation stays, and is settled later
                    break
                told = await self._done(job, act)
                self.counts[f"{type(act).__name__} {type(told).__name__}"] += 1
                following = protocol.step(state, told)
        except asyncio.CancelledError:
            job.answer.cancel()
            raise
        except Exception as fault:  # ours: whoever waits hears of it, and the process ends
            job.answer.set_exception(fault)
            job.answer.exception()
            raise
        self._end(job, error)

    async def _done(self, job: _Job, act: steps.Act) -> steps.Effect:
        """Do one act; wait after one that got no answer."""
        match act:
            case steps.Reserve(attempt, version):
                told = await self._reserve(job, attempt, version)
            case steps.PostBinding(attempt, version):
                return await self._post(job, attempt, version)
            case steps.PatchFence():
                told = await self._fence(job)
            case steps.ReadPod():
                told = await self._read(job)
            case steps.RecordBound(attempt):
                bound = PodBound(pod_uid=job.call.pod_uid, attempt=attempt, node_uid=job.node_uid)
                told = await self._note(events.of_pod(bound, self.clock.wall_us()))
            case steps.RecordVoided(attempt, reason):
                voided = PodVoided(
                    pod_uid=job.call.pod_uid,
                    attempt=attempt,
                    node_uid=job.node_uid,
                    reason=reason,
                )
                told = await self._note(events.of_pod(voided, self.clock.wall_us()))
            case steps.Answer():
                raise AssertionError("an answer is not done")
            case _:
                assert_never(act)
        job.failures = job.failures + 1 if isinstance(told, steps.NoAnswer) else 0
        if job.failures:
            pause = AGAIN_SECONDS * 2 ** min(job.failures - 1, 16)
            await self.clock.sleep(min(pause, AGAIN_SECONDS_MAX))
        return told

    # --- the ledger ---------------------------------------------------------------------------

    async def _reserve(self, job: _Job, attempt: int, version: str) -> steps.Effect:
        """Choose and reserve, again where the node has changed since it was decided on."""
        for _ in range(steps.TRIES_MAX):
            if not job.unsure:
                await self._caught_up(job.call)
                # A member of its gang may have chosen for it, and that have been given up again.
                uid = job.call.pod_uid
                if uid in self._ahead or self.books.attempts(uid) >= attempt:
                    return steps.Rejected(UNDER_WAY)
                chosen = self.books.choose(job.call, attempt, version, job.read)
                if isinstance(chosen, ports.NotChosen):
                    return steps.Rejected(chosen.message)
                job.chosen, job.attempt = chosen, attempt
                self._expect_others(chosen)
                job.node_uid = chosen.reservation.node_uid
            assert job.chosen is not None, job.call
            answer = await self._record(job.chosen.events, job.chosen.after)
            told = outcomes.of_command(answer, is_new=not job.unsure)
            job.unsure = isinstance(told, steps.NoAnswer)
            if isinstance(answer, Recorded):
                job.position = answer.last
                self._wait_for_others(job.chosen, answer.first)
            if isinstance(told, steps.Rejected | steps.Deposed):
                self.books.refused(job.chosen)
                self._forget_others(job.chosen)
            if _is_for(answer, errors.IdempotencyError):
                self.books.used(job.chosen)  # kube-scheduler asks again
            if not (
                _is_for(answer, errors.StaleStreamError) or _is_for(answer, errors.NotAfterError)
            ):
                return told
        return steps.Rejected(NODE_MOVED)

    async def _caught_up(self, call: ports.BindCall) -> None:
        """Come back once the ledger's feed has told of everything, or after a while."""
        until = self.clock.monotonic() + BEHIND_SECONDS
        while self.books.is_behind(call) and self.clock.monotonic() < until:
            await self.clock.sleep(AGAIN_SECONDS)

    def _expect_others(self, chosen: ports.Chosen) -> None:
        for new in chosen.events[:-1]:
            if isinstance(new.event, PodReserved):
                alone = ports.Chosen(reservation=new.event, events=(new,))
                self._ahead[new.event.pod_uid] = _Ahead(chosen=alone)

    def _wait_for_others(self, chosen: ports.Chosen, first: int) -> None:
        for position, new in enumerate(chosen.events[:-1], start=first):
            if isinstance(new.event, PodReserved) and new.event.pod_uid in self._ahead:
                ahead = self._ahead[new.event.pod_uid]
                ahead.position = position
                ahead.known.set()

    def _forget_others(self, chosen: ports.Chosen) -> None:
        for event in chosen.others:
            ahead = self._ahead.pop(event.pod_uid, None)
            if ahead is not None:
                ahead.known.set()

    async def _note(self, event: NewEvent) -> steps.Effect:
        return outcomes.of_command(await self._record((event,)), is_new=False)

    async def _record(
        self, new: tuple[NewEvent, ...], after: tuple[str, ...] = ()
    ) -> Outcome | errors.LedgerError:
        ours = tuple(events.by(self.actor, event) for event in new)
        try:
            answer = await self.recorder.record(Command(events=ours, after=after))
        except errors.LedgerError as error:
            return error
        if isinstance(answer, Recorded):
            self.books.recorded(ours, answer.first)
        return answer

    # --- the API server -----------------------------------------------------------------------

    async def _bind_counted(
        self, job: _Job, version: str, counted: PodObserved, new: tuple[NewEvent, ...]
    ) -> str:
        """
        Bind a Pod to a node that gives its cards by number; return why not, empty when it is bound.

        Rule: docs/adr/0033. Nothing is reserved: kubelet's device plugin picks the cards. What
        can't be recorded now is adopted once the Pod is seen to run.
        """
        error = await self._create(job, binding(job.call, version, {}))
        if error is not None or not isinstance(await self._record(new), Recorded):
            self.books.unbound(counted)
        return "" if error is None else str(error)

    async def _post(self, job: _Job, attempt: int, version: str) -> steps.Effect:
        assert job.chosen is not None, job.call
        event = job.chosen.reservation
        assert (event.attempt, event.resource_version) == (attempt, version), (attempt, version)
        signed = self.proofs.annotations(
            event,
            epoch=self.recorder.epoch,
            position=job.position,
            at_us=job.chosen.events[-1].wall_us,
        )
        body = binding(job.call, version, {**event.annotations, **signed})
        return outcomes.of_binding(await self._create(job, body))

    async def _create(self, job: _Job, body: Object) -> ConflictError | ApiError | None:
        """Create a Binding; return what it failed by, after saying so if that is an answer."""
        try:
            async with self._calls:
                await self.api.create(f"{job.path}/binding", body)
        except (ConflictError, ApiError) as error:
            if isinstance(outcomes.of_binding(error), steps.Rejected):
                self._refused(job.call, error)
            return error
        return None

    def _refused(self, call: ports.BindCall, error: ConflictError | ApiError) -> None:
        if isinstance(error, ConflictError):  # the protocol expects it
            self.refusals["409"] += 1
            return
        self.refusals[str(error.status)] += 1
        words = {"pod_uid": call.pod_uid, "node_name": call.node_name, "reason": str(error)}
        _log.error("the API server refused a Binding", extra=words)
        pod = about_pod(call.namespace, call.pod_name, call.pod_uid)
        self.telling.tell(pod, REFUSED, str(error), action="Binding")

    async def _fence(self, job: _Job) -> steps.Effect:
        """
        Move the Pod's version.

        Every attempt has its own value: a patch that changes nothing moves no version. After a
        refusal the Pod is read: that it is gone or has another UID is an end. That it has no
        annotations yet, or that the patch lost a race, is none.
        """
        mark = f"{self.recorder.epoch}/{job.attempt}"
        try:
            async with self._calls:
                await self.api.patch(job.path, fence(job.call.pod_uid, mark, job.read))
        except (ConflictError, ApiError) as error:
            if isinstance(error, ApiError) and not outcomes.is_definite(error):
                return steps.NoAnswer()
            if isinstance(error, ApiError) and not job.failures:
                words = {"pod_uid": job.call.pod_uid, "reason": str(error)}
                _log.error("the API server refused to fence a Pod", extra=words)
            told = await self._read(job)
            return told if isinstance(told, steps.NotThere) else steps.NoAnswer()
        return steps.Done()

    async def _read(self, job: _Job) -> steps.Effect:
        try:
            async with self._calls:
                job.read = await self.api.read(job.path)
        except ApiError:
            return steps.NoAnswer()
        return outcomes.of_pod(job.read, job.call.pod_uid)


def binding(call: ports.BindCall, version: str, annotations: Mapping[str, str]) -> Object:
    """Return a Binding that only this Pod takes, and only at this version."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {
            "name": call.pod_name,
            "namespace": call.namespace,
            "uid": call.pod_uid,
            "resourceVersion": version,
            "annotations": dict(annotations),
        },
        "target": {"apiVersion": "v1", "kind": "Node", "name": call.node_name},
    }


def fence(pod_uid: str, mark: str, seen: Object | None) -> list[Object]:
    """
    Return the patch that moves a Pod's version.

    Args:
        seen: the Pod as it was last read. One without annotations gets some at that version only,
            so that annotations of others are not lost.
    """
    uid = {"op": "test", "path": "/metadata/uid", "value": pod_uid}
    metadata = (seen or {}).get("metadata", {})
    if seen is None or metadata.get("annotations"):
        key = ANNOTATION_TENURE_FENCE.replace("/", "~1")
        return [uid, {"op": "add", "path": f"/metadata/annotations/{key}", "value": mark}]
    at = {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}
    words = {ANNOTATION_TENURE_FENCE: mark}
    return [uid, at, {"op": "add", "path": "/metadata/annotations", "value": words}]


def pod_path(namespace: str, name: str, *part: str) -> str:
    """Return the path of a Pod, or of a part of one. Raises ApiError: no Pod is called so."""
    return api_path("v1", "namespaces", namespace, "pods", name, *part)


def _is_for(answer: Outcome | errors.LedgerError, why: type[errors.LedgerError]) -> bool:
    return isinstance(answer, commands.Refused) and isinstance(answer.error, why)
