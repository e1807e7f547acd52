"""
Decisions decided again, from nothing but the events of their ledger, and what comes out otherwise.

Every event is folded into one engine (`so_far`). A decision is made before its event is applied,
and then what was recorded is applied, so that one difference brings no others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import structs

from ledger.domain.devices import DeviceShare
from ledger.domain.errors import InputError
from ledger.domain.log import events as log
from ledger.domain.log.recorded import RecordedEvent, is_recovered
from ledger.domain.request.requests import PodRequest, group_name
from ledger.domain.resources import ANNOTATION_TENURE_ALLOCATION
from scheduler.cluster.rebuilt import as_observed, request_of
from scheduler.decide.answers import encode
from scheduler.decide.group.life import MEMBER_CHANGED, MEMBER_GONE, GroupLife
from scheduler.decide.outcome import Placement, Rated, Unfit, Unplaced
from scheduler.record import events
from scheduler.record.ahead import Ahead
from scheduler.record.grouping import past_deadline, refused_everywhere
from scheduler.record.so_far import InForce, SoFar

PLACED: Final = "placed"
REFUSED: Final = "refused"
PLANNED: Final = "planned"
ENDED: Final = "ended"
NOT_THERE: Final = "the node that was named would not take it"
HELD: Final = "the Pod held something already"
KEPT: Final = "a plan that stands keeps places for them"
NOT_BEFORE: Final = "a position before its own"
NOT_HERE: Final = "the ledger does not have them"
SOMEBODY: Final = "a plan is made for somebody"


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """
    One decision, decided again.

    Attributes:
        kind: what was recorded: `placed`, `refused`, `planned`, or `ended` for a plan's end.
        name: `namespace/name` of the Pod, or the name of the group.
        differences: none where it comes out the same.
    """

    position: int
    kind: str
    name: str
    differences: tuple[Difference, ...]


class Replay:
    """
    Decides again what a ledger's events say was decided.

    Rule: docs/adr/0011. Not decided again: refusals by rules, which a Pod's manifest decides, and
    reservations that a recovery read off a Pod. The hash of settings is that of their words.

    Args:
        ahead: of a cluster at work, where cards and CPUs on the node that was named are decided
            again, and nothing else; None = a simulation: the choice of node too, refusals, plans
            of groups and their ends.
        by: decide by these settings, whatever was recorded; None = by those in force.
    """

    def __init__(self, *, ahead: Ahead | None = None, by: InForce | None = None) -> None:
        self._ahead = ahead
        requests = {} if ahead is None else ahead.requests
        self._state = SoFar(at_work=ahead is not None, by=by, requests=requests)
        self._made: dict[int, tuple[Difference, ...]] = {}  # position -> what differs there
        self._refusals: dict[str, Unfit | None] = {}  # group -> why its newest plan gave nothing
        self._ends: dict[str, tuple[Sequence[End], list[End]]] = {}  # as decided, and as recorded

    def take(self, recorded: RecordedEvent, *, decide: bool = True) -> Again | None:
        """
        Take the next event; a decision is decided again first, unless `decide` is false.

        Returns:
            None for an event that is no decision, or one that is not decided again.

        Raises:
            InputError: the ledger does not tell what the decision was made on.
        """
        position = recorded.envelope.position
        try:
            again = self._take(recorded, decide=decide)
            if self._ahead is not None:
                self._decide_on(self._ahead, position)
        except InputError as error:
            raise InputError(f"{error.message}: position={position}", field=error.field) from error
        return again

    def _take(self, recorded: RecordedEvent, *, decide: bool) -> Again | None:
        event = recorded.event
        match event:
            case log.PodReserved():
                return self._reserved(recorded, event, decide=decide)
            case log.PodObserved() if self._ahead is None and event.source == log.BY_COUNT:
                return self._counted(recorded, event, decide=decide)
            case log.RequestRefused():
                return self._refused(recorded, event) if decide else None
            case log.GroupPlanned():
                return self._planned(recorded, event, decide=decide)
            case log.PlanDropped() | log.PodVoided() if self._is_end(event):
                return self._ended(recorded, event, decide=decide)
            case _:
                self._state.apply(event, recorded.envelope.wall_us)
                return None

    # --- decisions ----------------------------------------------------------------------------

    def _reserved(
        self, recorded: RecordedEvent, event: log.PodReserved, *, decide: bool
    ) -> Again | None:
        differences: tuple[Difference, ...] | None = None
        position = recorded.envelope.position
        if decide and not is_recovered(recorded.envelope):
            if self._ahead is None:
                answer = self._choose(self._state.request(event), event)
                differences = self._compared(recorded, event, answer)
            elif event.decided_on is not None and event.decided_on >= position:
                differences = (difference("decided_on", event.decided_on, NOT_BEFORE),)
            elif event.decided_on is not None:
                differences = self._made[position]
        self._made.pop(position, None)
        self._take_reservation(event, recorded.envelope.wall_us)
        if differences is None:
            return None
        return _again(recorded, PLACED, _path(event), differences)

    def _counted(
        self, recorded: RecordedEvent, event: log.PodObserved, *, decide: bool
    ) -> Again | None:
        differences: tuple[Difference, ...] = ()
        if decide:
            answer = self._decide(self._state.request(event), event.arrival)
            if isinstance(answer, Unplaced):
                differences = (outcome(where(event), f"refused: {answer.message}"),)
            else:
                differences = tuple(field_differences(event, _counted_as(event, answer)))
        self._state.apply(event, recorded.envelope.wall_us)
        return _again(recorded, PLACED, _path(event), differences) if decide else None

    def _compared(
        self, recorded: RecordedEvent, event: log.PodReserved, answer: Placement | Unplaced
    ) -> tuple[Difference, ...]:
        if isinstance(answer, Unplaced):
            return (outcome(where(event), f"refused: {answer.message}"),)
        if answer.counted:
            return (outcome(where(event), where(_counted_as(event, answer))),)
        answer = self._state.groups.with_seen(answer)
        return tuple(
            field_differences(event, self._expected(event, answer, recorded.envelope.wall_us))
        )

    def _choose(self, request: PodRequest, event: log.PodReserved) -> Placement | Unplaced:
        self._state.now()
        kept = self._state.groups.kept(request)  # asked for by the plan, which has no snapshot
        return (
            structs.replace(kept, request=request) if kept else self._decide(request, event.arrival)
        )

    def _decide_on(self, ahead: Ahead, position: int) -> None:
        """Make the choices that were made on the state at this position, ahead of their events."""
        for later in ahead.decided_on(position):
            if later.lacking:
                self._made[later.position] = (difference("beside", later.lacking, NOT_HERE),)
                continue
            recorded = ahead.event_at(later.position)
            event = recorded.event
            assert isinstance(event, log.PodReserved), recorded
            with ExitStack() as meanwhile:
                for group in later.dropped:
                    meanwhile.enter_context(self._without_plan(group))
                for at in later.plans:
                    meanwhile.enter_context(self._planned_meanwhile(ahead.event_at(at)))
                for at in later.meanwhile:
                    meanwhile.enter_context(self._given_meanwhile(ahead.event_at(at).event))
                meanwhile.enter_context(self._without_place(event.pod_uid))
                answer = self._choose_on_named(self._state.request(event), event)
                self._made[later.position] = self._compared(recorded, event, answer)

    @contextmanager
    def _given_meanwhile(self, event: log.LedgerEvent) -> Iterator[None]:
        """Let a Pod hold inside of the block what it was chosen before, and is recorded later."""
        assert isinstance(event, log.PodReserved), event
        engine, place = self._state.now(), self._state.numbers.get(event.node_uid)
        if place is None or event.pod_uid in self._state.held:
            yield
            return
        with self._without_place(event.pod_uid):
            engine.take(place, as_observed(event))
            if event.group:
                self._state.groups.given_by(event)
            yield
            engine.release(event.pod_uid)
            if event.group:
                self._state.groups.released(event.group, event.pod_uid)

    @contextmanager
    def _planned_meanwhile(self, recorded: RecordedEvent) -> Iterator[None]:
        """Keep the places of a plan inside of the block that was made before, and is told later."""
        plan = recorded.event
        assert isinstance(plan, log.GroupPlanned), plan
        waiting = {each.pod_uid: self._state.request(each) for each in plan.waiting}
        members = {uid: each for uid, each in waiting.items() if uid not in self._state.held}
        life = GroupLife(
            name=plan.group,
            places={each.pod_uid: each for each in plan.members if each.pod_uid in members},
        )
        with self._without_plan(plan.group):
            self._state.groups.lives[plan.group] = life
            self._keep_places(plan.group, members)
            yield
            for placement in self._state.groups.dropped(plan.group):
                self._state.now().release(placement.request.uid)

    @contextmanager
    def _without_plan(self, group: str) -> Iterator[None]:
        """Let no place be kept for a group inside of the block."""
        life, places = self._state.groups.lives.get(group), self._state.groups.dropped(group)
        for placement in places:
            self._state.now().release(placement.request.uid)
        if life is not None:
            self._state.groups.lives[group] = replace(life, places={})
        yield
        if life is None:
            self._state.groups.lives.pop(group, None)
        else:
            self._state.groups.lives[group] = life
        for placement in places:
            self._state.groups.keep(group, placement)

    def _minors(self, event: log.PodReserved) -> frozenset[int] | None:
        """Return the GPUs that a plan keeps for a Pod on its node, None where none does."""
        life = self._state.groups.lives.get(event.group)
        place = None if life is None else life.places.get(event.pod_uid)
        if place is None or place.node_uid != event.node_uid:
            return None
        return frozenset(place.minors) or None

    @contextmanager
    def _without_place(self, uid: str) -> Iterator[None]:
        """Let no place be kept for a Pod inside of the block."""
        place = self._state.groups.taken(uid)
        if place is not None:
            self._state.now().release(uid)
        yield
        if place is not None:
            self._state.groups.keep(group_name(place.request), place)

    def _choose_on_named(self, request: PodRequest, event: log.PodReserved) -> Placement | Unplaced:
        """Choose cards and CPUs on the node that was named; how that was rated is not asked."""
        engine = self._state.now()
        if request.uid in self._state.held:
            return Unplaced(request=request, message=HELD)
        place = self._state.numbers.get(event.node_uid)
        given = None if place is None else engine.try_place(request, place, self._minors(event))
        if given is None:
            return Unplaced(request=request, message=NOT_THERE)
        engine.undo(given)
        rated = Rated(event.score, event.runner_up, event.runner_up_score)
        return structs.replace(given, rated=rated)

    def _decide(self, request: PodRequest, arrival: int) -> Placement | Unplaced:
        engine = self._state.now()
        if request.uid in self._state.held:
            return Unplaced(request=request, message=HELD)
        return self._state.groups.beside(request) or engine.decide(request, ordinal=arrival)

    def _expected(self, event: log.PodReserved, answer: Placement, at_us: int) -> log.PodReserved:
        annotations = encode(
            answer,
            node=self._state.facts[answer.node],
            now_ns=at_us * 1000,
            settings=self._state.in_force.settings,
        )
        signed = event.annotations.get(ANNOTATION_TENURE_ALLOCATION)
        at_work = self._ahead is not None
        if at_work and signed is not None:
            annotations[ANNOTATION_TENURE_ALLOCATION] = signed
        new = events.reserved(
            self._state.words(event),
            answer,
            annotations,
            at_us,
            digest=event.request or "",
            arrival=event.arrival,
            attempt=event.attempt,
            resource_version=event.resource_version if at_work else "",
            decided_on=event.decided_on if at_work else None,
            beside=event.beside if at_work else None,
            dropped=event.dropped if at_work else (),
        )
        assert isinstance(new.event, log.PodReserved), new
        return new.event

    def _take_reservation(self, event: log.PodReserved, at_us: int) -> None:
        request = request_of(event, self._state.requests)
        if event.group and request is not None:
            self._state.groups.life_of(request)
        self._state.hold(event)
        if event.group:
            self._state.groups.given_by(event)
        self._state.groups.fold(event, at_us)

    def _refused(self, recorded: RecordedEvent, event: log.RequestRefused) -> Again | None:
        """Decide a refusal again; one by rules of a Pod is none of ours."""
        if self._ahead is not None or (event.stage != events.STAGE and event.request is None):
            return None
        request = self._state.request(event)
        self._state.now()
        name = group_name(request)
        plan = (
            past_deadline(request)
            if name in self._state.past_deadline
            else self._refusals.get(name)
        )
        answer: Placement | Unplaced
        if plan is not None:
            answer = refused_everywhere(request, plan, len(self._state.facts))
        else:
            answer = self._decide(request, event.arrival)
        if isinstance(answer, Placement):
            recorded_as = f"refused: {event.message}"
            differences: tuple[Difference, ...] = (
                outcome(recorded_as, f"placed on {answer.node_name}"),
            )
        else:
            new = events.unplaced(
                self._state.words(event),
                answer,
                1,
                0,
                digest=event.request or "",
                arrival=event.arrival,
            )
            assert isinstance(new.event, log.RequestRefused), new
            differences = tuple(field_differences(event, new.event))
        return _again(recorded, REFUSED, _path(event), differences)

    def _planned(
        self, recorded: RecordedEvent, event: log.GroupPlanned, *, decide: bool
    ) -> Again | None:
        """Decide a group's plan again, and keep the places that were recorded."""
        name = event.group
        for member in (*event.waiting, *event.to_come):
            self._state.groups.came(name, member.pod_uid)
        wrong = self._wrong_members(event)
        if self._ahead is not None or wrong:
            self._state.groups.fold(event, recorded.envelope.wall_us)
            members = [self._state.request(member) for member in (*event.waiting, *event.to_come)]
            self._keep(event, members, None)
            is_decided = decide and self._ahead is None
            return _again(recorded, PLANNED, name, wrong) if is_decided else None
        self._state.now()
        waiting = [self._state.request(member) for member in event.waiting]
        to_come = [self._state.request(member) for member in event.to_come]
        self._state.groups.count_running(name, event.running)
        answer = self._state.groups.plan(waiting, to_come)
        taken = [placement for placement in answer.placements if placement is not None]
        new = events.group_planned(
            name,
            taken,
            1,
            0,
            waiting=event.waiting,
            to_come=event.to_come,
            running=self._state.groups.running(name),
        )
        assert isinstance(new.event, log.GroupPlanned), new
        differences = tuple(field_differences(event, new.event))
        self._state.past_deadline.discard(name)
        self._refusals[name] = answer.refusal
        self._state.groups.fold(event, recorded.envelope.wall_us)
        self._keep(event, [*waiting, *to_come], None if differences else taken)
        return _again(recorded, PLANNED, name, differences) if decide else None

    def _wrong_members(self, event: log.GroupPlanned) -> tuple[Difference, ...]:
        """Return why a plan can't be for these members; let places go that they have already."""
        members = (*event.waiting, *event.to_come)
        if not event.waiting:
            return (difference("waiting", event.waiting, SOMEBODY),)
        kept = [self._state.groups.taken(member.pod_uid) for member in members]
        places = [*filter(None, kept), *self._state.groups.dropped(event.group)]
        for placement in places:
            self._state.now().release(placement.request.uid)
        holds = tuple(member for member in members if member.pod_uid in self._state.held)
        if holds:
            return (difference("waiting", holds, HELD),)
        return (difference("waiting", members, KEPT),) if places else ()

    def _is_end(self, event: End) -> bool:
        """Tell whether the end of a plan or a wait is decided again: in a simulation it is."""
        if self._ahead is not None:
            return False
        return isinstance(event, log.PlanDropped) or bool(
            self._state.groups.group_of(event.pod_uid)
        )

    def _ended(self, recorded: RecordedEvent, event: End, *, decide: bool) -> Again | None:
        """
        Decide the end of a plan or a wait again, and apply the one that was recorded.

        That a Pod left its group is a fact from outside, which the event has.
        """
        at_us = recorded.envelope.wall_us
        name = (
            event.group
            if isinstance(event, log.PlanDropped)
            else self._state.groups.group_of(event.pod_uid)
        )
        if name not in self._state.groups.lives:
            self._state.apply(event, at_us)
            unknown = (difference(OUTCOME, event.reason, STAYS),)
            return _again(recorded, ENDED, name, unknown)
        if name not in self._ends:
            self._state.now()
            if event.reason in {MEMBER_GONE, MEMBER_CHANGED} and isinstance(event, log.PlanDropped):
                now = "" if event.reason == MEMBER_CHANGED else None
                self._state.groups.left(name, event.pod_uid, now)
            self._ends[name] = (self._state.groups.ends(name, at_us), [])
        decided, ended = self._ends[name]
        ended.append(event)
        self._state.apply(event, at_us)
        if isinstance(event, log.PodVoided):
            return None
        del self._ends[name]
        differences = tuple(end_differences(ended, decided))
        return _again(recorded, ENDED, name, differences) if decide else None

    def _keep(
        self, event: log.GroupPlanned, members: Sequence[PodRequest], taken: list[Placement] | None
    ) -> None:
        """Keep the places of a plan; `taken` is None where ours would be other ones."""
        engine, name = self._state.now(), event.group
        for placement in self._state.groups.dropped(name):
            engine.release(placement.request.uid)
        if taken is None:
            held = self._state.held
            self._keep_places(name, {each.uid: each for each in members if each.uid not in held})
        for placement in taken or ():
            self._state.groups.keep(name, placement)

    def _keep_places(self, name: str, members: Mapping[str, PodRequest]) -> None:
        """Keep the places of a plan, also on cards that got sick or a node closed since then."""
        state, engine = self._state, self._state.now()
        for uid, place in state.groups.lives[name].places.items():
            request, number = members.get(uid), state.numbers.get(place.node_uid)
            if request is None or number is None:
                continue
            minors, facts = frozenset(place.minors) or None, state.facts[number]
            kept = engine.try_place(request, number, minors)
            if kept is None:
                well = tuple(replace(each, healthy=True) for each in facts.devices)
                opened = replace(facts, devices=well, lost=False, taints=(), unschedulable=False)
                engine.put_node(opened)
                kept = engine.try_place(request, number, minors)
                engine.put_node(facts)
            if kept is not None:
                engine.undo(kept)
                state.groups.keep(name, kept)


def _again(
    recorded: RecordedEvent, kind: str, name: str, differences: tuple[Difference, ...]
) -> Again:
    return Again(position=recorded.envelope.position, kind=kind, name=name, differences=differences)


def _path(event: log.PodReserved | log.PodObserved | log.RequestRefused) -> str:
    return f"{event.namespace}/{event.pod_name}"


def _counted_as(event: log.PodReserved | log.PodObserved, answer: Placement) -> log.PodObserved:
    """Return the event that would be recorded now of a Pod that is placed by count."""
    new = events.placed_aside(
        answer, 0, digest=event.request or "", arrival=event.arrival, attempt=event.attempt
    )
    assert isinstance(new.event, log.PodObserved), new
    if answer.counted:
        return new.event
    return structs.replace(new.event, unknown_types=(), counted={}, shares=answer.shares)


OUTCOME: Final = "outcome"
STAYS: Final = "the plan stands"
_CALLED: Final = {
    "node_name": "node",
    "shares": "devices",
    "cpuset": "cpus",
    "device_models": "models",
    "members": "places",
}
"""What fields of events are called where a difference is told."""

Decision = log.PodReserved | log.PodObserved | log.RequestRefused | log.GroupPlanned
End = log.PodVoided | log.PlanDropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact of a decision that comes out otherwise now, in words."""

    what: str
    recorded: str
    decided: str


def outcome(recorded: str, decided: str) -> Difference:
    """Return that another thing altogether is decided now."""
    return Difference(what=OUTCOME, recorded=recorded, decided=decided)


def where(event: log.PodReserved | log.PodObserved) -> str:
    """Return what a decision gave."""
    given = [_text(event.shares)] if event.shares else []
    if isinstance(event, log.PodObserved):
        given += [f"{count} {kind} by count" for kind, count in event.counted.items()]
    given += [f"CPUs {event.cpuset}"] if event.cpuset else []
    return f"placed on {event.node_name}" + (f": {', '.join(given)}" if given else "")


def field_differences(recorded: Decision, decided: Decision) -> Iterator[Difference]:
    """Yield the fields of two events of one type that are not the same, in words."""
    for name in recorded.__struct_fields__:
        before, after = getattr(recorded, name), getattr(decided, name)
        if before == after:
            continue
        if isinstance(before, Mapping):
            for key in sorted(before.keys() | after.keys()):
                if before.get(key) != after.get(key):
                    yield difference(key, before.get(key), after.get(key))
        else:
            yield difference(_CALLED.get(name, name), before, after)


def end_differences(recorded: Sequence[End], decided: Sequence[End]) -> Iterator[Difference]:
    """Yield where the end of a plan comes out otherwise: why it ends, and who gives back."""
    why, now = _ending(recorded), _ending(decided)
    if why != now:
        yield difference(OUTCOME, why, now or STAYS)
    gave, gives = _gives_back(recorded), _gives_back(decided)
    if gave != gives:
        yield difference("voided", gave, gives)


def _ending(ends: Sequence[End]) -> str:
    """Return why a plan ends, and by whose place."""
    last = ends[-1] if ends else None
    return f"{last.reason} {last.pod_uid}".rstrip() if isinstance(last, log.PlanDropped) else ""


def _gives_back(ends: Sequence[End]) -> str:
    return ", ".join(
        f"{end.pod_uid}/{end.attempt} on {end.node_uid}: {end.reason}"
        for end in ends
        if isinstance(end, log.PodVoided)
    )


def difference(what: str, before: object, after: object) -> Difference:
    """Return that a fact is another now."""
    return Difference(what=what, recorded=_text(before), decided=_text(after))


def _text(value: Any) -> str:  # noqa: ANN401 - of whatever a field holds
    match value:
        case None | "" | ():
            return "none"
        case tuple():
            return ", ".join(map(_text, value))
        case DeviceShare():
            parts = [f"{value.core_percent}%", f"{value.memory_bytes} B"]
            parts += [f"ratio {value.memory_ratio_percent}%", f"instances {value.instances}"]
            parts += ["alone"] if value.exclusive else []
            parts += [f"VFs {' '.join(value.vf_bus_ids)}"] if value.vf_bus_ids else []
            return f"{value.device_type}/{value.minor} ({', '.join(parts)})"
        case log.RefusalReason():
            near = f" ({value.nearest_node}: {value.detail})" if value.nearest_node else ""
            return f"{value.nodes} {value.reason}{near}"
        case log.GroupMember():
            return value.pod_name
        case log.PlannedMember():
            cards = ",".join(map(str, value.minors))
            return f"{value.pod_name} on {value.node_uid} gpu/{cards}"
        case _:
            return str(value)
