"""
Compares ledger and API all the time, and records what they say differently and when that is over.

Rule: design sections 4, 6 and 8; docs/drift.md. `drift` finds what disagrees, `Lasting` what lasts.
Here nodes are compared a few at a time. What is about a Pod is confirmed by a consistent read. It
is recorded, told in Events, and left to `releasing` where that repairs it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from certs.ports import ApiError, Object
from ledger.domain.annotations.guarded import given
from ledger.domain.annotations.signed import Checker
from ledger.domain.errors import LedgerError
from ledger.domain.log import drift, machines
from ledger.domain.log.clock import SKEW_MAX_US
from ledger.domain.log.drift import DRIFT_KINDS
from ledger.domain.log.events import BY_COUNT, DriftFound, DriftResolved, LedgerEvent, PodReserved
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.state import Holding
from ledger.domain.resources import ANNOTATION_TENURE_ALLOCATION, ANNOTATION_TENURE_PROOF
from scheduler.record import events
from scheduler.service import drift as differing
from scheduler.service.agents import Agents
from scheduler.service.announcing import Announcing
from scheduler.service.beginning import Beginning
from scheduler.service.binding import Binder, pod_path
from scheduler.service.claims import ClaimBook
from scheduler.service.due import NodesDue
from scheduler.service.inventory import Inventory
from scheduler.service.kept import given_digest, pod_seen
from scheduler.service.ports import WhyNot
from scheduler.service.recording import RecordUntilKnown
from scheduler.service.releasing import Releasing
from scheduler.service.telling import about_node, about_pod
from scheduler.service.view import ClusterView

TOGETHER: Final = 10
"""Nodes that are looked at without a pause: a filter that comes meanwhile waits for them."""
PROOFS_TOGETHER: Final = 8
"""Proofs that are checked without a pause, of about 0.1 ms each."""
SOON_SECONDS: Final = 2.0
"""After a change, which seldom comes alone."""
AGAIN_SECONDS: Final = 10.0
"""Between two looks at where something disagrees, and at what is about no node."""
SWEEP_SECONDS: Final = 120.0
RECORDS_TOGETHER: Final = 5
"""Drifts that are recorded, of each settling."""
CLUSTER: Final = ""
"""The scope of what is about no node, or about several."""
OF_CLUSTER: Final = frozenset(
    {
        machines.MACHINE_REGISTERED_TWICE,
        machines.MACHINE_ID_CLONED,
        machines.MACHINE_IDS_TAKEN,
        machines.DEVICE_ID_CLONED,
        drift.NAMESPACE_LABEL_WRONG,
        drift.CLOCK_SKEW,
    }
)
_MENDED: Final = frozenset(
    {drift.HOLDER_GONE, drift.UNSETTLED, drift.BOUND_ELSEWHERE, drift.UNKNOWN_HOLDERS}
)
"""What `releasing` mends as soon as it looks at the node."""
_OF_WORDS: Final = frozenset({drift.ANNOTATION_DIFFERS, drift.ANNOTATION_MISSING})
_ACTION: Final = "Reconciling"
_OVER: Final = "no longer so"

_log: Final = logging.getLogger("tenure.scheduler.drift")


class Reconciling:
    """
    Keeps the ledger told of what disagrees with it.

    Args:
        binder: also whose books, ledger, API, Events, clock and name are used.
        trusted: tells whether a key signed a proof, and is one that nodes trust; None = Pods carry
            no proofs.
        cluster: the origin of the ledger, which proofs are for.
        skew: seconds that our clock is ahead of the API server's.
        claims_end: keys of what claims have on a node and what ends once that confirms it.
    """

    def __init__(
        self,
        *,
        view: ClusterView,
        binder: Binder,
        inventory: Inventory,
        releasing: Releasing,
        announcing: Announcing,
        agents: Agents,
        claims: ClaimBook,
        begun: Beginning,
        trusted: Checker | None,
        cluster: str,
        skew: Callable[[], float],
        why_not: WhyNot,
        claims_end: Callable[[str], Mapping[str, float]],
    ) -> None:
        self._view = view
        self._binder = binder
        self._inventory = inventory
        self._releasing = releasing
        self._announcing = announcing
        self._agents = agents
        self._trusted = trusted
        self._cluster = cluster if trusted is not None else ""
        self._skew = skew
        self._why_not = why_not
        self._claims = claims
        self._claims_end = claims_end
        self._due = NodesDue(
            binder.clock.monotonic,
            self._names,
            together=TOGETHER,
            sweep_seconds=SWEEP_SECONDS,
            delays=(SOON_SECONDS, AGAIN_SECONDS),
        )
        self._cluster_at = 0.0
        self._proven: dict[str, differing.Proven] = {}  # by Pod UID
        self._records = RecordUntilKnown(binder.recorder, binder.books.recorded)  # by id
        self._scopes: dict[str, str] = {}  # id -> where it is looked for, of what is open
        self._number = 0
        self.lasting = Lasting()
        for one in begun.drifts:
            self._take_event(0, one, None)
        wakeups = view.wakeups
        wakeups.event_folded.subscribe(self._take_event)
        for topic in (
            wakeups.node_due,
            wakeups.node_fault_changed,
            wakeups.pod_annotations_changed,
        ):
            topic.subscribe(self._look_soon)

    def count(self, kind: str) -> int:
        """Return how many drifts of a kind are open."""
        return self.lasting.counts()[kind]

    # --- what is to be looked at ----------------------------------------------------------------

    def _take_event(self, _position: int, event: LedgerEvent, _holding: Holding | None) -> None:
        """Take note of drift that the ledger has, whoever recorded it."""
        if isinstance(event, DriftFound):
            state = None if event.kind in OF_CLUSTER else self._view.recorded(event.node_uid)
            scope = CLUSTER if state is None else state.name
            self.lasting.recorded(scope, event.drift_id, event.kind, event.pod_uid)
            self._scopes[event.drift_id] = scope
        elif isinstance(event, DriftResolved):
            self.lasting.forget(self._scopes.pop(event.drift_id, CLUSTER), event.drift_id)

    def _look_soon(self, name: str) -> None:
        self._due.note(name, SOON_SECONDS)

    def _names(self) -> list[str]:
        """Return the nodes to sweep, and forget the proofs of Pods that are gone."""
        seen = self._view.pods.seen
        self._proven = {uid: one for uid, one in self._proven.items() if uid in seen}
        known = (*self._releasing.names(), *self._inventory.faults, *self.lasting.scopes())
        return [name for name in dict.fromkeys(known) if name != CLUSTER]

    # --- the comparison -------------------------------------------------------------------------

    async def settle(self) -> None:
        """
        Look at what is due, and record what has lasted and what is over.

        Raises:
            FencedError: another writer took over.
            LedgerError, ApiError: one of them is away; it is looked at again.
        """
        if self._why_not():
            return
        for drift_id, (new,) in list(self._records.unsure.items()):
            await self._append(drift_id, new)
        now = self._binder.clock.monotonic()
        room, proofs = RECORDS_TOGETHER, PROOFS_TOGETHER
        names = self._due.take()
        while names:
            name = names.pop()
            try:
                if room <= 0 or not (proofs := self._checked(name, proofs)):
                    self._look_soon(name)
                    continue
                room -= await self._look(name, now, room)
            except (LedgerError, ApiError):
                for each in (name, *names):
                    self._look_soon(each)
                raise
        if now >= self._cluster_at and room > 0:
            self._cluster_at = now + AGAIN_SECONDS
            await self._record(CLUSTER, self._of_cluster(), now, room)

    def _checked(self, name: str, most: int) -> int:
        """Check the proofs on a node; return how many more may be, 0 where some are left."""
        if self._trusted is None:
            return most
        pods = self._view.pods
        for uid in pods.running_on(name) & pods.proofs.keys():
            if most <= 1:
                return 0
            self._proven[uid] = differing.proven(pods.take_proof(uid), self._trusted)
            most -= 1
        return most

    async def _look(self, name: str, now: float, room: int) -> int:
        found = differing.disagreements(self._sight(name))
        try:
            return await self._record(name, found, now, room)
        finally:
            if self.lasting.is_watched(name):
                self._due.note(name, AGAIN_SECONDS, now)
                if any(one.kind in _MENDED for one in found):
                    self._releasing.look_at(name)

    def _sight(
        self, name: str, *, read: Mapping[str, Object | None] | None = None
    ) -> differing.Sight:
        """
        Return all that is compared of a node.

        Args:
            read: Pods as the API server has them now, by UID; None = it has none.
        """
        view, states = self._view, self._releasing.states(name)
        held = {holding.pod_uid for state in states for holding in state.holdings.values()}
        seen = view.pods.seen
        there = sorted(held.union(view.pods.running_on(name)) & seen.keys())
        pods = {uid: seen[uid] for uid in there}
        proofs: Mapping[str, differing.Proven] = self._proven
        for uid, pod in (read or {}).items():
            pods.pop(uid, None)
            if pod is not None:
                now = pods[uid] = pod_seen(pod, view.device_names)
                if self._trusted is not None and now.proof:
                    text = pod["metadata"]["annotations"][ANNOTATION_TENURE_PROOF]
                    proofs = {**proofs, now.uid: differing.proven(text, self._trusted)}
        fault, facts = view.fault(name), view.facts(name)
        waiting = self._releasing.waiting.get(name, {})
        node_uid = view.nodes.uid(name)
        return differing.Sight(
            name=name,
            node_uid=node_uid,
            is_full=node_uid is not None and self._agents.is_full(node_uid),
            is_silent=any(
                not self._agents.word(one).agent_ready for one in states if one.uid == node_uid
            ),
            fault=(fault, self._inventory.faults.get(name, "")),
            states=states,
            pods=pods,
            holds_elsewhere=lambda uid: self._binder.books.standing(uid) is not None,
            given=self._given,
            otherwise=self._agents.otherwise,
            crossing={} if node_uid is None else self._agents.crossing(node_uid),
            proven=proofs,
            cluster=self._cluster,
            waiting=waiting.keys() | self._claims_end(name).keys(),
            is_claim_gone=self._claims.is_gone,
            unread=self._releasing.faults,
            open=self.lasting.open(name),
            is_under_way=self._binder.is_under_way,
            past_gate=self._claims.past_gate,
            is_of_two_modes=facts is not None and view.modes.why_closed(facts) == drift.TWO_MODES,
        )

    def _given(self, holding: Holding) -> bytes | None:
        words = self._words(holding)
        return None if words is None else given_digest(words)

    def _words(self, holding: Holding) -> Mapping[str, str] | None:
        """Return what our Binding said; None where the ledger does not tell."""
        event = self._view.opening(holding.opened_position)
        if event is None or ANNOTATION_TENURE_ALLOCATION in event.annotations:
            return None  # archived, or recovered from the Pod's own signed words
        is_given = isinstance(event, PodReserved) or event.source == BY_COUNT
        return event.annotations if is_given else None

    def _of_cluster(self) -> list[differing.Disagreement]:
        """Return what is about no node, or about several."""
        claims, lost = self._view.engine.claimants(), self._agents.lost()
        names = self._releasing.names() if lost else ()
        there = [state for name in names for state in self._releasing.states(name)]
        return [
            *map(differing.contradicted, machines.contradictions(claims)),
            *map(differing.contradicted, machines.ids_taken(there, lost)),
            *differing.mislabelled(self._announcing.mislabelled),
            *differing.skewed(self._skew(), SKEW_MAX_US / 1e6),
        ]

    # --- the ledger -----------------------------------------------------------------------------

    async def _record(
        self, scope: str, there: list[differing.Disagreement], now: float, room: int
    ) -> int:
        states = self._releasing.states(scope) if scope else ()
        held = {one.pod_uid for state in states for one in state.holdings.values()}
        unsure = frozenset(filter(self._binder.is_under_way, held))
        changes = self.lasting.look(scope, there, now=now, unsure=unsure)
        for drift_id in changes.over[:room]:
            await self._change(DriftResolved(drift_id=drift_id, how=_OVER))
        room_left = max(room - len(changes.over), 0)
        for one in changes.found[:room_left]:
            await self._find(scope, one)
        return min(room, len(changes.over) + len(changes.found))

    async def _find(self, scope: str, one: differing.Disagreement) -> None:
        """Record what has lasted, unless the API server itself says otherwise."""
        if one.pod_uid:
            closer = await self._closer(scope, one)
            if closer is None:
                self.lasting.forget(scope, one.drift_id)
                return
            one = closer
        event = DriftFound(
            drift_id=one.drift_id,
            kind=one.kind,
            node_uid=one.node_uid,
            detail=one.words,
            device_type=one.device_type,
            minor=one.minor,
            pod_uid=one.pod_uid or one.claim_uid,
            cpus=one.cpus,
        )
        await self._change(event)
        self._tell(scope, one)

    async def _change(self, event: DriftFound | DriftResolved) -> None:
        self._number += 1
        key = f"drift:{event.drift_id}:{self._binder.recorder.epoch}.{self._number}"
        new = events.of_ledger(event, key, self._binder.clock.wall_us())
        await self._append(event.drift_id, events.by(self._binder.actor, new))

    async def _append(self, drift_id: str, new: NewEvent) -> None:
        error = await self._records.record(drift_id, (new,))
        if error is not None:
            words = {"drift_id": drift_id, "reason": str(error)}
            _log.error("drift can't be recorded", extra=words)
        elif isinstance(new.event, DriftFound):
            words = {"drift_id": drift_id, "reason": new.event.detail}
            _log.warning("drift was found", extra=words)
        else:
            _log.info("drift is over", extra={"drift_id": drift_id})

    async def _closer(
        self, scope: str, one: differing.Disagreement
    ) -> differing.Disagreement | None:
        """Look again at what is about a Pod, by a consistent read; None = it is not so."""
        pod = await self._binder.api.read(pod_path(*one.pod))
        if pod is not None and pod["metadata"]["uid"] != one.pod_uid:
            pod = None
        found = differing.disagreements(self._sight(scope, read={one.pod_uid: pod}))
        closer = next((each for each in found if each.drift_id == one.drift_id), None)
        if closer is None or pod is None or closer.kind not in _OF_WORDS:
            return closer
        state = self._view.recorded(closer.node_uid)
        holding = None if state is None else state.holdings.get(closer.about)
        words = None if holding is None else self._words(holding)
        said = given(pod["metadata"].get("annotations") or {})
        more = "" if words is None else differing.reworded(given(words), said)
        return replace(closer, words=f"{closer.words}: {more}") if more else closer

    def _tell(self, scope: str, one: differing.Disagreement) -> None:
        kind = DRIFT_KINDS[one.kind]
        note = f"{one.words}. {kind.repair or kind.mend}"
        if one.pod_uid:
            subject = about_pod(*one.pod, one.pod_uid)
        else:
            name = scope
            if not name:
                state = self._view.recorded(one.node_uid)
                name = "" if state is None else state.name
            uid = self._view.nodes.uid(name)
            if uid is None:
                return
            subject = about_node(name, uid)
        self._binder.telling.tell(subject, one.kind, note, action=_ACTION)


LOOKS: Final = 2
GRACE_SECONDS: Final = 30.0
GRACES: Final[Mapping[str, float]] = MappingProxyType(
    {
        drift.HOLDER_GONE: 60.0,
        drift.UNSETTLED: 60.0,
        drift.UNKNOWN_HOLDERS: 60.0,
        drift.RELEASE_UNCONFIRMED: 600.0,
    }
)
"""Of kinds that are mended without anybody, and take longer than a watch."""
OVER_SECONDS: Final = 5.0
SCOPE_MAX: Final = 20
"""Open drifts of one node, or of what is about none; more are counted and not recorded."""


@dataclass(slots=True, kw_only=True)
class _Seen:
    """A disagreement that was found, or open at the start; `missed`: looks in a row without it."""

    kind: str
    pod_uid: str
    first: float
    looks: int = 0
    missed: int = 0
    missed_first: float = 0.0
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What is to be recorded after a look; `over`: ids of what is open and is no longer so."""

    found: tuple[differing.Disagreement, ...] = ()
    over: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True)
class Lasting:
    """
    Which disagreements last: watches lag and Pods are on their way, and neither is drift.

    Rule: design section 6. One is recorded after it was found in two looks over a grace, and is
    over after it was missed in two looks over a while. A scope is the name of a node; empty = the
    cluster.
    """

    _seen: dict[str, dict[str, _Seen]] = field(default_factory=dict)

    def recorded(self, scope: str, drift_id: str, kind: str, pod_uid: str) -> None:
        """Take note of drift that the ledger has as open, from now on or from the start."""
        seen = _Seen(kind=kind, pod_uid=pod_uid, first=0.0, is_open=True)
        self._seen.setdefault(scope, {})[drift_id] = seen

    def look(
        self,
        scope: str,
        there: Iterable[differing.Disagreement],
        *,
        now: float,
        unsure: AbstractSet[str] = frozenset(),
    ) -> Changes:
        """Compare a scope with earlier looks; of Pods in `unsure`, by UID, nothing is known now."""
        seen = self._seen.setdefault(scope, {})
        now_there = {one.drift_id: one for one in there}
        for drift_id, one in now_there.items():
            known = seen.get(drift_id)
            if known is None:
                known = seen[drift_id] = _Seen(kind=one.kind, pod_uid=one.pod_uid, first=now)
            known.looks += 1
            known.missed = 0
        for drift_id, known in list(seen.items()):
            if drift_id in now_there or known.pod_uid in unsure:
                continue
            if not known.is_open:
                del seen[drift_id]
                continue
            known.missed_first = known.missed_first if known.missed else now
            known.missed += 1
        if not seen:
            del self._seen[scope]
        room = SCOPE_MAX - sum(known.is_open for known in seen.values())
        ripe = [one for drift_id, one in now_there.items() if _is_ripe(seen[drift_id], now)]
        return Changes(
            found=tuple(ripe[: max(room, 0)]),
            over=tuple(drift_id for drift_id, known in seen.items() if _is_over(known, now)),
        )

    def forget(self, scope: str, drift_id: str) -> None:
        """Take note that its end is recorded, or that it was none when somebody looked closer."""
        seen = self._seen.get(scope, {})
        seen.pop(drift_id, None)
        if not seen:
            self._seen.pop(scope, None)

    def is_watched(self, scope: str) -> bool:
        """Tell whether anything was seen there that is not over."""
        return scope in self._seen

    def scopes(self) -> Iterator[str]:
        """Yield where something was seen that is not over."""
        yield from self._seen

    def open(self, scope: str) -> frozenset[str]:
        """Return the ids of what is recorded of a scope and not over."""
        seen = self._seen.get(scope, {})
        return frozenset(drift_id for drift_id, known in seen.items() if known.is_open)

    def counts(self) -> Counter[str]:
        """Count what is recorded and not over, by kind."""
        return Counter(
            known.kind for seen in self._seen.values() for known in seen.values() if known.is_open
        )


def _is_ripe(known: _Seen, now: float) -> bool:
    grace = GRACES.get(known.kind, GRACE_SECONDS)
    return not known.is_open and known.looks >= LOOKS and now - known.first >= grace


def _is_over(known: _Seen, now: float) -> bool:
    return known.is_open and known.missed >= LOOKS and now - known.missed_first >= OVER_SECONDS
