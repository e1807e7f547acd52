"""
The gate before every claim's allocation: asked by the API server, answered out of the ledger.

Rule: docs/contracts/dra.md, docs/dra.md. Each write is decided by `scheduler.gate` from what the
ledger has, recorded, and answered once that is durable. Who stands by answers nobody.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import Counter
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct, structs

from certs.ports import ApiError, Object, Objects
from ledger.domain.bounds import Name
from ledger.domain.dialects.dra.asking import Asking, Giver
from ledger.domain.errors import FencedError, LedgerError
from ledger.domain.kube.object_fields import is_full_name
from ledger.domain.log import events as log
from ledger.domain.log.drift import DRIFT_KINDS, TWO_MODES
from ledger.domain.log.recorded import NewEvent
from ledger.domain.systems import Claimant
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary
from scheduler.decide.bounded import decode_bounded
from scheduler.gate.claims import ClaimSeen, check_names, claim_seen
from scheduler.gate.cpus import ClaimCpus, patch_of
from scheduler.gate.decide import (
    DEVICE_CLOSED,
    DEVICE_TAKEN,
    DRIVER_UNLISTED,
    Accounts,
    Barred,
    Standing,
    Through,
    Write,
    decide,
    end_of,
)
from scheduler.gate.exchange import Place
from scheduler.gate.follow import DELETED, follow, gone
from scheduler.gate.leaving import ON_LOST_NODE, Stays
from scheduler.gate.modes import Mode
from scheduler.gate.own import (
    TEMPLATE_NOT_OURS,
    OwnAccounts,
    asked_of,
    may_be_none,
    miscounted,
    owner_of,
)
from scheduler.gate.selectors import Selectors, exchangeable
from scheduler.record import events
from scheduler.record.events import DecidedBy
from scheduler.service.answering import NotNowError
from scheduler.service.claim_refusals import ClaimRefusals
from scheduler.service.claim_waits import Leaves, WaitingEnds, fence
from scheduler.service.claims import CLAIMS, ClaimBook
from scheduler.service.confirming import NOT_STORED_TOO_OFTEN, Confirming
from scheduler.service.http import check_depth, read_aside
from scheduler.service.ports import Attempts, Clock, PendingPod, Recorder, TakeRecorded, WhyNot
from scheduler.service.recording import gravest, record
from scheduler.service.releasing import FORCED
from scheduler.service.slices import SLICES, SliceBook
from scheduler.service.telling import Telling
from scheduler.service.wakeups import Wakeups

NOT_YET: Final = "ClaimsNotListed"
OPEN_SECONDS: Final = 30.0
"""A write that was let through and is not seen by then is lost, or late: its claim is moved on."""
TOGETHER: Final = 200
"""Claims of which is recorded at once what the watch showed."""
LEDGER_REFUSED: Final = "LedgerRefused"

_log: Final = logging.getLogger("tenure.scheduler.gate")


class _Request(Struct, rename="camel"):
    uid: Name
    object: dict[str, Any]
    old_object: dict[str, Any]
    dry_run: bool | None = None


class _Review(Struct):
    request: _Request


def _read(body: bytes) -> _Request:
    request = decode_bounded(body, _Review).request
    check_depth(request.object, "request.object")
    check_depth(request.old_object, "request.oldObject")
    return request


@dataclass(frozen=True, slots=True, kw_only=True)
class GateWorks:
    """
    What a gate works with.

    Attributes:
        slices: listed once before the first answer.
        giver: whose cards serve the claims of Pods whose request admission wrote as one.
        mode: who gives the devices of the node of a name.
        classes: what DeviceClasses select by.
        place: which of devices that are alike a claim gets.
        node_name: the name of the Node of a UID, empty of one that the ledger has not.
    """

    book: ClaimBook
    slices: SliceBook
    accounts: Accounts
    recorded: TakeRecorded
    recorder: Recorder
    api: Objects
    clock: Clock
    telling: Telling
    attempts: Attempts
    leaving: Leaves
    why_not: WhyNot
    actor: str
    classes: Selectors
    place: Place
    cpus: ClaimCpus
    pod: PendingPod
    giver: Callable[[], Giver]
    mode: Callable[[str], Mode]
    node_name: Callable[[str], str]
    wakeups: Wakeups
    vocabulary: Vocabulary = DEFAULT_VOCABULARY


class Gate:
    """
    Answers writes of claims' allocations, and records what the watch shows of them.

    The first call shows that the API server asks this gate. Claims and slices are listed after it
    and recorded before the first answer: what is not listed then will pass here.

    Args:
        drivers: whose devices are looked at; which of them are guarded, the book of claims knows.
    """

    def __init__(
        self, works: GateWorks, *, drivers: Container[str], words: Callable[[], DecidedBy]
    ) -> None:
        self._book = works.book
        self._works = works
        self._drivers = drivers
        self._words = words
        self._locks = WeakValueDictionary[str, asyncio.Lock]()
        self._on_their_way: dict[str, log.ClaimReserved | log.ClaimObserved] = {}
        self._listing, self._settling = asyncio.Lock(), asyncio.Lock()
        self._listed = False
        self._epoch = 0  # in which we have looked at all that is held
        self._again: dict[str, dict[str, None]] = {}  # name of a node -> claims to look at again
        self._open: dict[str, tuple[str, float]] = {}  # claim -> holding, since when it is not seen
        self.counts: Counter[str] = Counter()
        self.refusals = ClaimRefusals(
            works.book,
            works.recorder,
            works.recorded,
            works.clock,
            works.telling,
            actor=works.actor,
        )
        self.confirming = Confirming(works.book, works.api, works.clock, works.pod)
        self.ends = WaitingEnds(works.book, works.api, works.clock, works.leaving, self.confirming)
        for topic in (works.wakeups.pod_moved, works.wakeups.kubelet_ready_changed):
            topic.subscribe(self.look_again)
        works.wakeups.claim_end_answered.subscribe(self.node_answered)

    # --- answers --------------------------------------------------------------------------------

    async def answer(self, body: bytes) -> bytes:
        """
        Answer one AdmissionReview.

        Raises:
            NotNowError: another replica may answer, or this one later.
            InputError: it is no review of a claim.
            LedgerError: the ledger is away, or the outcome is not known.
        """
        request = await read_aside(_read, body)
        old = claim_seen(request.old_object, self._drivers)
        new = claim_seen(request.object, self._drivers)
        check_names(old, new)
        new = self.confirming.confirmed(old, new)
        given = () if new.allocated is None or old.is_allocated else new.allocated.results
        is_ours = bool(given) and all(self._book.is_guarded((one,)) for one in given)
        write = Write(old=old, new=new)
        self._check_now()
        await self._list_claims()
        asked = await self._asked(request.object, write)
        if is_ours:
            spec, by_us = request.object.get("spec") or {}, isinstance(asked, Asking)
            write = replace(write, free=exchangeable(spec, self._works.classes, is_ours=by_us))
        if write.new.allocated is not None:
            self.look_again(write.new.allocated.node_name)
        has_news = self._book.changed or self._settling.locked()
        if has_news and (isinstance(self._decide(write, asked), Barred) or self._book.is_past_us()):
            await self.settle()  # what the watch showed already frees cards, or takes them
        async with self._alone(write.new.uid):
            untrue = await self.confirming.untrue(write)
            self._check_now()
            if untrue is not None:
                self.counts[f"refused {untrue.reason}"] += 1
            answer = untrue or await self._decided(write, asked, is_dry=bool(request.dry_run))
        patch: Sequence[Object] = ()
        if isinstance(answer, Through) and answer.results is not None:
            patch = patch_of(request.object, given, answer.results, self._drivers)
        return _response(request.uid, answer, patch)

    def _check_now(self) -> None:
        why = self._works.why_not()
        if why:
            self.counts["not now"] += 1
            raise NotNowError(why)

    async def _asked(self, claim: Object, write: Write) -> Asking | Barred | None:
        """
        Return what its Pod asks for by a claim of ours, None by any other; or that it is not ours.

        Raises:
            NotNowError: the API server can't be asked for the Pod.
        """
        given = None if write.old.is_allocated else write.new.allocated
        owner = None if given is None else owner_of(claim)
        if given is None or owner is None:
            return None
        pod = await self.confirming.pod(write.new.namespace, owner.name, owner.uid)
        if pod is None:
            fact = f"the Pod {write.new.namespace}/{owner.name} of claim {write.new.name} is gone"
            return Barred(reason=TEMPLATE_NOT_OURS, message=fact)
        found = asked_of(claim, pod, self._works.giver(), self._works.vocabulary)
        if isinstance(found, str):
            fact = f"claim {write.new.full_name}: {found}"
            return Barred(reason=TEMPLATE_NOT_OURS, message=fact)
        wrong = None if found is None else miscounted(found, given.results)
        if wrong is not None:
            reason, fact = wrong
            return Barred(reason=reason, message=f"claim {write.new.full_name}: {fact}")
        return found

    def _decide(self, write: Write, asked: Asking | Barred | None) -> Through | Barred:
        claim, given = write.new, write.new.allocated
        standing = self._book.standing(claim.uid)
        if isinstance(asked, Barred):
            return asked
        if given is not None and not write.old.is_allocated:
            if not self._book.is_guarded(given.results):
                fact = f"claim {claim.full_name} has devices of drivers that are not listed here"
                return Barred(reason=DRIVER_UNLISTED, message=f"{fact} alone")
            if self._works.mode(given.node_name) is Mode.BOTH:
                meaning = DRIFT_KINDS[TWO_MODES].meaning
                return Barred(reason=TWO_MODES, message=f"{given.node_name}: {meaning}")
        own: dict[str, Any] = {} if asked is None else {"may_be_none": may_be_none(asked)}

        def kept(consumers: Sequence[Claimant]) -> Stays | None:
            return self._works.leaving.kept(claim.full_name, standing, consumers)

        return decide(
            write,
            self._works.accounts if asked is None else OwnAccounts(self._works.accounts, asked),
            standing,
            seen=self._book.version(claim.uid),
            attempts=self._book.attempts(claim.uid),
            consumers=self._book.consumers(claim.uid),
            on_their_way=list(self._on_their_way.values()),
            kept=kept,
            place=self._works.place,
            cpus=self._works.cpus,
            settings_hash=self._words().settings_hash,
            tenure_version=self._words().tenure_version,
            **own,
        )

    async def _decided(
        self, write: Write, asked: Asking | Barred | None, *, is_dry: bool
    ) -> Through | Barred:
        claim, answer = write.new, self._decide(write, asked)
        if is_dry:
            self.counts["dry run"] += 1
            return answer
        if isinstance(answer, Through) and answer.events:
            answer = await self._granted(claim, answer)
        if isinstance(answer, Barred):
            await self._refuse(claim, answer)
            if self.confirming.knows_callers:
                await self.refusals.refuse(claim, answer, is_free=bool(write.free))
        else:
            self.counts["granted" if answer.events else "let through"] += 1
            written = () if claim.allocated is None else claim.allocated.results
            stored = answer.results or written
            if answer.events and [one.device for one in written] != [one.device for one in stored]:
                self.counts["granted on another device"] += 1
                self._works.wakeups.device_exchanged.publish()
            self.refusals.forget(claim.uid)
            if answer.events and claim.allocated is not None:
                self._look_again_at(claim.uid, claim.allocated.node_name)
        return answer

    async def _granted(self, claim: ClaimSeen, answer: Through) -> Through | Barred:
        if not self.confirming.may_grant(claim.uid):
            fact = f"claim {claim.full_name} was granted devices that nobody stored: try again"
            return Barred(reason=NOT_STORED_TOO_OFTEN, message=fact)
        error = await self._record(answer.events, claim.version)
        return answer if error is None else Barred(reason=LEDGER_REFUSED, message=str(error))

    async def _record(self, found: Sequence[log.ClaimEvent], version: int) -> LedgerError | None:
        new = tuple(self._signed(one, version) for one in found)
        opening = next(
            (one for one in found if isinstance(one, log.ClaimReserved | log.ClaimObserved)), None
        )
        if opening is not None:
            self._on_their_way[opening.claim_uid] = opening
        try:
            error = await record(self._works.recorder, new, self._works.recorded)
            if isinstance(error, FencedError):
                raise error
            for one in found:
                if isinstance(one, log.ClaimBound) and error is None:
                    self.confirming.stored(one)
            return error
        finally:
            if opening is not None:
                self._on_their_way.pop(opening.claim_uid, None)

    def _signed(self, event: log.ClaimEvent, version: int) -> NewEvent:
        """Return an event as it is recorded: a forced end has the actor who ordered it."""
        key, reason, actor = self.ends.forced.get(event.claim_uid, ("", "", ""))
        is_end = isinstance(event, log.ClaimReleased | log.ClaimVoided)
        if not is_end or key != f"{event.claim_uid}/{event.attempt}":
            actor = self._works.actor
        else:
            event = structs.replace(event, reason=f"{FORCED}: {reason}")
        return events.by(actor, events.of_claim(event, self._works.clock.wall_us(), version))

    async def _refuse(self, claim: ClaimSeen, answer: Barred) -> None:
        self.counts[f"refused {answer.reason}"] += 1
        if answer.fence and self.confirming.may_call():
            await fence(self._works.api, claim)
        if answer.reason in {DEVICE_CLOSED, DEVICE_TAKEN} and claim.allocated is not None:
            self._works.wakeups.allocation_refused.publish(claim.allocated)
        if answer.asks:  # it is asked for again once the node has confirmed
            self.ends.hold_back(claim.uid)
            self._book.changed[claim.uid] = None

    def _alone(self, uid: str) -> asyncio.Lock:
        """Return what lets one task at a time decide on a claim, while one does."""
        return self._locks.setdefault(uid, asyncio.Lock())

    # --- what the watch shows ---------------------------------------------------------------------

    async def _list_claims(self) -> None:
        """List slices and claims once, after the first call. Raises NotNowError: no list came."""
        async with self._listing:
            if self._listed:
                return
            for path, book in ((SLICES, self._works.slices), (CLAIMS, self._book)):
                await self._list(path, book)
            await self._learn()
            await self.settle()
            self._listed = True

    async def _list(self, path: str, book: SliceBook | ClaimBook) -> None:
        """List a collection; what its watch tells as gone meanwhile stays gone."""
        with book.readings.one() as went:
            try:
                listed = await self._works.api.read(path)
            except ApiError as error:
                raise NotNowError(f"{NOT_YET}: {error}") from error
        if listed is not None:
            book.take_list(listed, went)

    async def _learn(self) -> None:
        """Learn what claims held before this process began; those that come later held nothing."""
        unknown = list(self._book.without_attempts())
        self._book.learn(dict.fromkeys(unknown, 0) | dict(await self._works.attempts(unknown)))

    async def settle(self) -> None:
        """Record what the watch showed since. Raises LedgerError: call it again, unless fenced."""
        if self._works.why_not():
            return
        async with self._settling:
            await self._learn()
            if self._epoch != self._works.recorder.epoch:
                self._epoch = self._works.recorder.epoch
                self._book.changed.update(dict.fromkeys(self.ends.begin()))
            uids = self._book.take_changed()
            for start in range(0, len(uids), TOGETHER):
                part = uids[start : start + TOGETHER]
                done = await asyncio.gather(*map(self._settle, part), return_exceptions=True)
                failed = [one for one in done if isinstance(one, BaseException)]
                if failed:
                    self._book.changed.update(dict.fromkeys(uids[start:]))
                    raise gravest(failed)

    async def _settle(self, uid: str) -> None:
        async with self._alone(uid):
            await self._record_news(uid)

    async def _record_news(self, uid: str) -> None:
        book = self._book
        seen, standing = book.seen.get(uid), book.standing(uid)
        if standing is None:
            self.ends.over(uid)
            if seen is None:
                return
        consumers = book.consumers(uid)
        users = consumers if seen is None else (*dict.fromkeys((*consumers, *seen.consumers)),)
        kept = (
            None
            if standing is None or not is_full_name(*standing.full_name.split("/", 1))
            else self._works.leaving.kept(standing.full_name, standing, users)
        )
        if seen is not None:
            found = follow(
                seen,
                standing,
                consumers,
                self._works.accounts,
                attempts=book.attempts(uid),
                kept=kept,
                runs=self._works.leaving.runs,
            )
        else:
            assert standing is not None, "else there is nothing to look at"
            found = gone(standing, kept)
            if found and not await self.ends.is_gone(standing):
                self._look_again_at(uid, standing.opening.node_name)
                return
        error = await self._record(found, book.version(uid)) if found else None
        if error is not None:
            _log.error("not recorded", extra={"claim": uid, "reason": str(error)})
        waits = await self.ends.ask(uid, seen, users, kept)
        waits = await self._let_open(uid, seen) or waits
        if error is not None or waits or book.is_open(uid):
            self._look_again_at(uid, _node_name(seen, standing))

    async def _let_open(self, uid: str, seen: ClaimSeen | None) -> bool:
        """
        Fence a claim whose write was let through and is stored nowhere; tell whether it is open.

        Else it might never be written again, and its reservation never end.
        """
        standing = self._book.standing(uid)
        if standing is None or seen is None or not _is_open(seen, standing):
            self._open.pop(uid, None)
            return False
        key, since = self._open.get(uid, ("", 0.0))
        if key != standing.key:
            key, since = standing.key, self._works.clock.monotonic()
        self._open[uid] = key, since
        is_late = self._works.clock.monotonic() - since >= OPEN_SECONDS
        is_late = is_late and self._book.is_guarded(standing.opening.results)
        if is_late and self.ends.delays.is_due(uid):
            self.ends.delays.failed(uid)
            try:
                is_there = await self.confirming.is_there(uid, seen.namespace, seen.name)
            except ApiError as error:
                _log.warning("not fenced", extra={"claim": uid, "reason": str(error)})
                return True
            if not is_there:
                self.ends.delays.over(uid)
                self._book.drop(uid)  # it went while it was read
                return True
            self.confirming.doubt(uid)
            now = self._book.seen.get(uid, seen)
            if uid not in self._book.changed and now.allocated is None:
                await fence(self._works.api, now)
        return True

    async def force(
        self, namespace: str, name: str, uid: str, *, reason: str, actor: str, dry_run: bool = False
    ) -> dict[str, bool]:
        """
        Release by somebody's act what a claim has, though its node is silent.

        Rule: design section 8, "When parts are down". The act counts as the node's own word, for
        the Pods that use the claim now. It helps only where a release waits for its node.

        Args:
            uid: the claim's; empty = any of that name.
            dry_run: only say which claims would be released.

        Returns:
            By UID of the claim whether it is released; else it will be once its controller, which
            is woken, deallocates it.

        Raises:
            FencedError: another writer took over.
            LedgerError: it is not recorded.
            ApiError: whether a Pod of it runs is not known.
        """
        forced, asks = [], self._works.leaving.asks
        for each in (uid,) if uid else self._book.called(f"{namespace}/{name}"):
            async with self._alone(each):
                standing, seen = self._book.standing(each), self._book.seen.get(each)
                if standing is None or standing.full_name != f"{namespace}/{name}":
                    continue
                users = (*self._book.consumers(each), *(() if seen is None else seen.consumers))
                waits = self.ends.key_of(each) == standing.key
                if not waits and not await self._is_of_nothing(standing, users):
                    continue
                if await self.confirming.runs(namespace, users, "" if waits else name):
                    continue
                pods = [one.uid for one in users]
                if waits and not (asks.is_asked(each) if dry_run else asks.vouched(each, pods)):
                    continue
                forced.append(each)
                if dry_run:
                    continue
                self.ends.forced[each] = standing.key, reason, actor
                error = None if waits else await self._record((end_of(standing, DELETED),), 0)
                if error is not None:
                    raise error
        if dry_run:
            return dict.fromkeys(forced, False)
        self._book.changed.update(dict.fromkeys(forced))
        await self.settle()
        return {each: self._book.standing(each) is None for each in forced}

    async def _is_of_nothing(self, standing: Standing, users: Sequence[Claimant]) -> bool:
        """Tell whether the API server itself lacks a claim whose node is not lost with it."""
        opening = standing.opening
        why = self._works.leaving.kept(standing.full_name, standing, users)
        if why is not None and why.reason == ON_LOST_NODE:
            return False
        of = opening.claim_uid, opening.namespace, opening.claim_name
        return not await self.confirming.is_there(*of)

    def _look_again_at(self, uid: str, node: str) -> None:
        self._again.setdefault(node, {})[uid] = None

    def look_again(self, node: str = "") -> None:
        """
        Look again at claims of which ledger and watch differ for a reason outside of them.

        Their node or devices were not known, a Pod runs with what they gave back, their node was
        asked, or the ledger refused. Whatever may end that calls this, and a clock does.

        Args:
            node: whose; empty = of all.
        """
        for name in [node] if node else [*self._again]:
            self._book.changed.update(self._again.pop(name, {}))

    def node_answered(self, node_uid: str) -> None:
        """Look again at the claims of a node that said what is left of one."""
        name = self._works.node_name(node_uid)
        if name:
            self.look_again(name)


def _is_open(seen: ClaimSeen, standing: Standing) -> bool:
    """Tell whether what was let through may be stored yet, in the place of what a claim has."""
    if seen.allocated is None:
        return not standing.stored
    return seen.version <= standing.fence and seen.allocated.results != standing.opening.results


def _node_name(seen: ClaimSeen | None, standing: Standing | None) -> str:
    if seen is not None and seen.allocated is not None:
        return seen.allocated.node_name
    return "" if standing is None else standing.opening.node_name


def _response(uid: str, answer: Through | Barred, patch: Sequence[Object]) -> bytes:
    response: dict[str, Any] = {"uid": uid, "allowed": isinstance(answer, Through)}
    if isinstance(answer, Barred):
        message = f"{answer.reason}: {answer.message}"
        response["status"] = {"code": 409, "reason": "Conflict", "message": message}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(patch)).decode()
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    return msgspec.json.encode(review)
