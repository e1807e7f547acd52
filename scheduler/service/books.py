"""What is held and what is on its way into the ledger, as binding needs it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Final

from msgspec import structs

from certs.ports import Object
from ledger.domain.dialects.registry import gives_by_number
from ledger.domain.errors import InputError
from ledger.domain.log import events as log
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.recorded_request import RecordedRequest, recorded_request, request_digest
from ledger.domain.log.state import GRANTED, LOST, LedgerState
from ledger.domain.request.requests import PodRequest, group_name, is_member
from scheduler.bind.protocol import GONE, GONE_UNSEEN
from scheduler.decide.answers import encode
from scheduler.decide.outcome import Placement
from scheduler.record import events
from scheduler.record.events import DecidedBy
from scheduler.service.beginning import Beginning
from scheduler.service.ending import DELETED
from scheduler.service.groups import LiveGroups
from scheduler.service.ports import BindCall, Chosen, Clock, NotChosen, Standing, WhyNot
from scheduler.service.view import ClusterView

_PODS_END: Final = frozenset({GONE, GONE_UNSEEN, DELETED})
"""Reasons of an end that say that the Pod is gone: who follows the ledger may hear of it last."""
LATE_SECONDS: Final = 60.0
"""So long the ledger's feed may be behind the API. What is later still is remembered too long."""


class LiveBooks:
    """The `Books` of a service, and a sink of Pods; of `lifted` see `assembly.giving_way`."""

    def __init__(
        self,
        view: ClusterView,
        clock: Clock,
        words: DecidedBy,
        begun: Beginning,
        groups: LiveGroups,
        *,
        lifted: Callable[[str, str], AbstractContextManager[Placement | None]],
        why_not: WhyNot = str,
    ) -> None:
        self._view = view
        self._groups = groups
        self._clock = clock
        self.words = words
        self._lifted = lifted
        self._why_not = why_not
        self._described: set[str] = set()
        self._attempts: dict[str, int] = dict(begun.attempts)
        self._begun = frozenset(begun.attempts)
        self._gone: set[str] = set()  # Pods that are gone, and something is reserved for them
        self._late: dict[str, float] = {}  # Pods that went without a reservation, and when
        self._standing = _standing(begun.state, begun.opened)
        view.wakeups.settings_decided.subscribe(self.decide_by)

    def decide_by(self, words: DecidedBy) -> None:
        """Let every later reservation repeat these words."""
        self.words = words

    def standing(self, pod_uid: str) -> Standing | None:
        """
        Return what is reserved for a Pod, None where nothing is.

        What was held through a lost node stays held there, and nobody can bind or void it.
        """
        standing = self._standing.get(pod_uid)
        if standing is None:
            return None
        node = self._view.recorded(standing.node_uid)
        held = None if node is None else node.holdings.get(f"{pod_uid}/{standing.attempt}")
        return None if held is None or held.phase == LOST else standing

    def is_named(self, call: BindCall) -> bool:
        """Tell whether a Pod has the name of a call; see `ports.Books.is_named`."""
        seen, held = self._view.pods.seen.get(call.pod_uid), self._standing.get(call.pod_uid)
        names = {(one.namespace, one.name) for one in (seen,) if one is not None}
        names |= {(one.namespace, one.pod_name) for one in (held,) if one is not None}
        return names <= {(call.namespace, call.pod_name)}

    def version(self, pod_uid: str) -> str | None:
        """Return the resourceVersion of a Pod that was seen unbound; None without such a Pod."""
        seen = self._view.pods.seen.get(pod_uid)
        return None if seen is None or seen.node or seen.ended else seen.version

    def attempts(self, pod_uid: str) -> int:
        """Return the number of the Pod's newest reservation, ended or not; 0 without one."""
        return self._attempts.get(pod_uid, 0)

    def is_behind(self, call: BindCall) -> bool:
        """Tell whether the ledger has more than is known here; see `ports.Books.is_behind`."""
        request = self._view.requests.by_uid(call.pod_uid)
        return not isinstance(request, str) and bool(self._why_unsure(request, call.node_name))

    def _why_unsure(self, request: PodRequest, node_name: str) -> str:
        nodes = self._groups.nodes_of(request, node_name)
        return next(filter(None, map(self._view.why_unsure, nodes)), "")

    def choose(
        self, call: BindCall, attempt: int, resource_version: str, pod: Object | None
    ) -> Chosen | NotChosen:
        """Choose from what the ledger holds alone; see `ports.Books.choose`."""
        why = self._why_not()
        if why:
            return NotChosen(message=why)
        if pod is not None:
            try:
                self._view.requests.read(pod)
            except InputError as error:
                return NotChosen(message=str(error))
        request = self._view.requests.by_uid(call.pod_uid)
        if isinstance(request, str):
            return NotChosen(message=request)
        self._groups.plans.lead()  # another process may have told kube-scheduler of the node
        why = self._why_unsure(request, call.node_name)
        if why:
            return NotChosen(message=why)
        nodes = self._groups.nodes_of(request, call.node_name)
        with ExitStack() as lifted:
            held = [lifted.enter_context(self._lifted(call.pod_uid, name)) for name in nodes]
            return self._chosen(request, call.node_name, attempt, resource_version, held[0])

    def by_number(self, call: BindCall) -> tuple[log.PodObserved, tuple[NewEvent, ...]] | None:
        """Count cards that a node gives by number; see `ports.Books.by_number`."""
        facts, request = self._view.facts(call.node_name), self._view.requests.by_uid(call.pod_uid)
        if facts is None or isinstance(request, str) or not gives_by_number(facts):
            return None
        if self._why_not() or is_member(request):
            return None
        self._groups.plans.lead()
        attempt, digest = self.attempts(request.uid) + 1, request_digest(recorded_request(request))
        with self._lifted(request.uid, call.node_name) as held:
            place = self._view.choose(request.uid, call.node_name, held)
            if isinstance(place, str) or not place.counted:
                return None
            event = events.placed_aside(place, 0, digest=digest, arrival=0, attempt=attempt).event
            assert isinstance(event, log.PodObserved), event
            self._view.expect(event)
        return event, self.observed(event, request)

    def unbound(self, counted: log.PodObserved) -> None:
        """Give back what was counted: the Pod is not bound, or nothing of it is recorded."""
        self._view.forget_expected(counted)
        self._view.wakeups.room_freed.publish(counted.node_name)

    def _chosen(
        self,
        request: PodRequest,
        node_name: str,
        attempt: int,
        resource_version: str,
        held: Placement | None,
    ) -> Chosen | NotChosen:
        is_member = bool(group_name(request))
        placement = (
            self._groups.choose(request, node_name)
            if is_member
            else self._view.choose(request.uid, node_name, held)
        )
        if isinstance(placement, str):
            return NotChosen(message=placement)
        at_us = self._clock.wall_us()
        first: list[NewEvent] = []
        others: list[NewEvent] = []
        requests = [request]
        reservation = self._reservation(placement, attempt, resource_version, at_us)
        if is_member:
            first, planned = self._groups.plans.before(group_name(request))
            requests += planned
            last, implied = f"{request.uid}/{attempt}", set[str]()
            for other, version in self._groups.others(request):
                requests.append(other.request)
                number = self.attempts(other.request.uid) + 1
                others.append(self._reservation(other, number, version, at_us, implied))
                implied.add(last)
                last = f"{other.request.uid}/{number}"
        described: dict[str, NewEvent] = {}
        for each in requests:
            recorded = recorded_request(each)
            digest = request_digest(recorded)
            about = f"{request.uid}:{attempt}"
            for new in self.describing(recorded, digest, about, at_us):
                described.setdefault(digest, new)
        assert isinstance(reservation.event, log.PodReserved)
        together = (*described.values(), *first, *others, reservation)
        return Chosen(
            reservation=reservation.event,
            events=together,
            after=events.counted_keys(together),
            others=tuple(new.event for new in others if isinstance(new.event, log.PodReserved)),
        )

    def _reservation(
        self,
        placement: Placement,
        attempt: int,
        resource_version: str,
        at_us: int,
        implied: Collection[str] = (),
    ) -> NewEvent:
        """
        Return the reservation of what was chosen, which counts from here on.

        Args:
            implied: keys of reservations that the last one of its command tells of.
        """
        view, uid, plans = self._view, placement.request.uid, self._groups.plans
        groups = plans.under_way(placement.node_name) | {group_name(placement.request)} - {""}
        node = view.facts(placement.node_name)
        assert node is not None, "a node that gives something is there"
        new = events.reserved(
            self.words,
            structs.replace(placement, rated=view.rated(uid, placement.node_name)),
            encode(placement, node=node, now_ns=at_us * 1000, settings=view.settings),
            at_us,
            digest=request_digest(recorded_request(placement.request)),
            arrival=0,
            attempt=attempt,
            resource_version=resource_version,
            decided_on=view.position,
            beside=view.on_their_way(placement.node_uid, groups, implied),
            dropped=plans.ends_due(),
        )
        assert isinstance(new.event, log.PodReserved), new
        view.expect(new.event)
        return new

    def observed(
        self, event: log.PodObserved, request: PodRequest | None, *, after: int = 0
    ) -> tuple[NewEvent, ...]:
        """
        Return what is to be recorded of a holding that others gave.

        Args:
            request: what the Pod asks for, None where that breaks rules.
            after: the number of what the Pod held so far, where this comes in its place.
        """
        at_us = self._clock.wall_us()
        event = structs.replace(event, attempt=max(after, self.attempts(event.pod_uid)) + 1)
        new = events.of_pod(event, at_us)
        if request is None or event.request is None:
            return (new,)
        recorded = recorded_request(request)
        about = f"{event.pod_uid}:{event.attempt}"
        return (*self.describing(recorded, event.request, about, at_us), new)

    def describing(
        self, recorded: RecordedRequest, digest: str, about: str, at_us: int
    ) -> tuple[NewEvent, ...]:
        """Return the description of a request, unless the ledger has it."""
        if digest in self._described:
            return ()
        # Named by who needs it: a command that repeats a part of another one is refused.
        described = events.described(recorded, digest, at_us)
        key = f"{described.idempotency_key}:{about}"
        return (structs.replace(described, idempotency_key=key),)

    def _counts(self, event: log.PodReserved | log.PodObserved) -> bool:
        if event.attempt <= self.attempts(event.pod_uid):
            return False
        self._attempts[event.pod_uid] = event.attempt
        return True

    def refused(self, chosen: Chosen) -> None:
        """Give back what was chosen: the ledger has not recorded it, and will not."""
        for reservation in chosen.reservations:
            self._view.forget_expected(reservation)
            self._view.wakeups.room_freed.publish(reservation.node_name)
        if chosen.reservation.group:
            self._groups.refused(chosen)

    def used(self, chosen: Chosen) -> None:
        """
        Number Pods on from what was chosen: the ledger has others of these numbers.

        A start does not read what ended as its node was cleared, and a Pod that waits may have had
        that.
        """
        for reservation in chosen.reservations:
            self._counts(reservation)

    def put(self, pod_uid: str, _item: Object) -> None:
        """Take a Pod that came or changed: nothing of it is kept in here."""
        self._late.pop(pod_uid, None)

    def drop(self, pod_uid: str) -> None:
        """Forget a Pod that is gone, once nothing is reserved for it: it asks no more."""
        if pod_uid in self._standing:
            self._gone.add(pod_uid)
        else:
            self._attempts.pop(pod_uid, None)
            self._late.pop(pod_uid, None)
            self._late[pod_uid] = self._clock.monotonic()

    def compare(self) -> None:
        """Forget Pods that the ledger told of at the start and the API's complete list has not."""
        for uid in self._begun - self._view.pods.seen.keys():
            self.drop(uid)
        self._begun = frozenset()
        now = self._clock.monotonic()
        while self._late and now - next(iter(self._late.values())) > LATE_SECONDS:
            del self._late[next(iter(self._late))]

    def _ended(self, event: log.PodReleased | log.PodVoided) -> None:
        uid = event.pod_uid
        standing = self._standing.get(uid)
        if standing is None or standing.attempt != event.attempt:
            return
        del self._standing[uid]
        is_over = isinstance(event, log.PodReleased) or event.reason in _PODS_END
        if uid in self._gone or (is_over and uid not in self._view.pods.seen):
            self._gone.discard(uid)
            self._attempts.pop(uid, None)

    def recorded(self, events: Sequence[NewEvent], first: int) -> None:
        """Take note of events that are durable, the first at that position."""
        for position, new in enumerate(events, start=first):
            self.take(position, new.event)

    def take(self, position: int, event: log.LedgerEvent) -> None:
        """Take note of one event, whoever tells of it; each counts once."""
        if self._view.has(position):
            return
        match event:
            case log.PodReserved():
                if self._counts(event):
                    self._standing[event.pod_uid] = _reserved(event)
                    if event.pod_uid in self._late:
                        self._gone.add(event.pod_uid)
            case log.PodObserved():
                if event.pod_uid not in self._late:
                    self._counts(event)
            case log.PodBound() | log.PodAssigned():
                standing = self._standing.get(event.pod_uid)
                if standing is not None and standing.attempt == event.attempt:
                    self._standing[event.pod_uid] = replace(standing, is_bound=True)
            case log.PodReleased() | log.PodVoided():
                self._ended(event)
            case log.RequestDescribed():
                self._described.add(request_digest(event.request))
            case _:
                pass
        self._view.take(position, event)


def _standing(state: LedgerState, opened: Mapping[int, object]) -> dict[str, Standing]:
    found: dict[str, Standing] = {}
    for uid, node in state.nodes.items():
        for holding in node.holdings.values():
            if holding.kind != GRANTED or holding.phase == LOST:
                continue
            event = opened.get(holding.opened_position)
            known = found.get(holding.pod_uid)
            if known is not None and known.attempt > holding.attempt:
                continue
            found[holding.pod_uid] = Standing(
                namespace=holding.namespace,
                pod_name=holding.pod_name,
                pod_uid=holding.pod_uid,
                node_name=node.name,
                node_uid=uid,
                attempt=holding.attempt,
                resource_version=event.resource_version
                if isinstance(event, log.PodReserved)
                else "",
                is_bound=holding.phase in ("bound", "assigned"),
            )
    return found


def _reserved(event: log.PodReserved) -> Standing:
    return Standing(
        namespace=event.namespace,
        pod_name=event.pod_name,
        pod_uid=event.pod_uid,
        node_name=event.node_name,
        node_uid=event.node_uid,
        attempt=event.attempt,
        resource_version=event.resource_version,
        is_bound=False,
    )
