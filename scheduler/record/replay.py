"""
Decisions decided again, from nothing but the events of their ledger, and what comes out otherwise.

Every event is folded into one engine. A decision is made before its event is applied, and then what
was recorded is applied, so that one difference brings no others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from ledger.domain.errors import InputError
from ledger.domain.log.events import (
    BY_COUNT,
    DeviceHealthChanged,
    GroupMember,
    GroupPlanned,
    LedgerEvent,
    NodeCleared,
    NodeDescribed,
    NodeInventoried,
    NodeLost,
    PlanDropped,
    PodObserved,
    PodReleased,
    PodReserved,
    PodVoided,
    RequestDescribed,
    RequestRefused,
    SettingsChanged,
    WorkloadDescribed,
)
from ledger.domain.log.recorded import RecordedEvent, is_recovered
from ledger.domain.log.recorded_request import request_digest, request_from
from ledger.domain.log.workload import NO_WORKLOAD
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest, PodSnapshot, group_name
from ledger.domain.resources import ANNOTATION_TENURE_ALLOCATION
from scheduler.cluster.rebuilt import as_observed, node_of, request_of
from scheduler.cluster.settings import recorded_settings
from scheduler.decide.answers import encode
from scheduler.decide.engine import Engine
from scheduler.decide.group.life import DEADLINE, MEMBER_CHANGED, MEMBER_GONE, GroupLife, take_again
from scheduler.decide.nodes.adopted_cpus import numa_parts_of
from scheduler.decide.outcome import Placement, Rated, Unfit, Unplaced
from scheduler.decide.settings import SchedulingSettings
from scheduler.record import events
from scheduler.record.ahead import Ahead
from scheduler.record.differences import (
    OUTCOME,
    STAYS,
    Difference,
    End,
    difference,
    end_differences,
    field_differences,
    outcome,
    where,
)
from scheduler.record.events import DecidedBy
from scheduler.record.grouping import Grouping, past_deadline, refused_everywhere

PLACED: Final = "placed"
REFUSED: Final = "refused"
PLANNED: Final = "planned"
ENDED: Final = "ended"
NOT_THERE: Final = "the node that was named would not take it"
HELD: Final = "the Pod held something already"
KEPT: Final = "a plan that stands keeps places for them"
NOT_BEFORE: Final = "a position before its own"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """Settings that are decided by, and the seed of what is drawn."""

    settings: SchedulingSettings
    settings_hash: str
    seed: int = 0


@dataclass(slots=True)
class _Node:
    """What events say of one node so far."""

    inventory: NodeInventoried
    described: NodeDescribed | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class _Held:
    """What one Pod holds; `lost` since its node was."""

    event: PodReserved | PodObserved
    lost: bool = False


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
        self._by = by
        self._in_force = by or InForce(settings=SchedulingSettings(), settings_hash="")
        self._workload = NO_WORKLOAD
        self._nodes: dict[str, _Node] = {}  # by UID, in the order of their first inventories
        self._facts: list[NodeFacts] = []  # as the engine has them
        self._numbers: dict[str, int] = {}  # UID of a node -> its number in the engine
        self._changed: dict[str, None] = {}  # UIDs of nodes that the engine has as they were
        self._requests = {} if ahead is None else ahead.requests  # by digest
        self._made: dict[int, tuple[Difference, ...]] = {}  # position -> what differs there
        self._held: dict[str, _Held] = {}  # Pod UID -> what it holds
        self._refusals: dict[str, Unfit | None] = {}  # group -> why its newest plan gave nothing
        self._past_deadline: set[str] = set()  # gangs whose last plan ended so
        self._ends: dict[str, tuple[Sequence[End], list[End]]] = {}  # as decided, and as recorded
        self._engine: Engine | None = None  # None = what it was made for has changed
        self._groups = Grouping((), Engine((), self._in_force.settings), {})

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
            case PodReserved():
                return self._reserved(recorded, event, decide=decide)
            case PodObserved() if self._ahead is None and event.source == BY_COUNT:
                return self._counted(recorded, event, decide=decide)
            case RequestRefused():
                return self._refused(recorded, event) if decide else None
            case GroupPlanned():
                return self._planned(recorded, event, decide=decide)
            case PlanDropped() | PodVoided() if self._is_end(event):
                return self._ended(recorded, event, decide=decide)
            case _:
                self._apply(event, recorded.envelope.wall_us)
                return None

    # --- what is no decision ------------------------------------------------------------------

    def _apply(self, event: LedgerEvent, at_us: int) -> None:
        self._groups.fold(event, at_us)
        match event:
            case SettingsChanged() if self._by is None:
                self._in_force = InForce(
                    settings=recorded_settings(event.settings),
                    settings_hash=hashlib.sha256(event.settings.encode()).hexdigest(),
                    seed=json.loads(event.settings or "{}").get("seed", 0),
                )
                self._engine = None
            case WorkloadDescribed():
                self._workload = event.workload
                self._engine = None
            case RequestDescribed():
                self._requests[request_digest(event.request)] = event.request
            case NodeInventoried():
                known = self._nodes.get(event.node_uid)
                told = None if known is None else known.described
                self._nodes[event.node_uid] = _Node(event, told)
                self._change(event.node_uid)
            case NodeDescribed():
                if event.node_uid in self._nodes:
                    self._nodes[event.node_uid].described = event
                    self._change(event.node_uid)
            case DeviceHealthChanged():
                self._change_health(event)
            case NodeLost():
                self._lose(event)
            case NodeCleared():
                self._clear(event)
            case PodObserved():
                self._hold(event)
            case PodReleased() | PodVoided():
                self._release(event)
            case PlanDropped():
                self._drop(event)
            case _:
                pass

    def _change_health(self, event: DeviceHealthChanged) -> None:
        node = self._nodes.get(event.node_uid)
        if node is None:
            return
        key = (event.device_type, event.minor)
        node.inventory = structs.replace(
            node.inventory,
            devices=tuple(
                replace(device, healthy=event.healthy)
                if device.key == key and event.device_id in {"", device.device_id}
                else device
                for device in node.inventory.devices
            ),
        )
        self._change(event.node_uid)

    def _lose(self, event: NodeLost) -> None:
        """Let what is held on a node that is lost stay held."""
        if event.node_uid in self._nodes:
            self._nodes[event.node_uid].lost = True
            self._change(event.node_uid)
        for uid, held in self._held.items():
            if held.event.node_uid == event.node_uid:
                self._held[uid] = replace(held, lost=True)

    def _clear(self, event: NodeCleared) -> None:
        for uid, held in list(self._held.items()):
            if held.lost and held.event.node_uid == event.node_uid:
                self._give_back(uid)

    def _release(self, event: PodReleased | PodVoided) -> None:
        held = self._held.get(event.pod_uid)
        if held is None or held.event.node_uid != event.node_uid:
            return
        self._give_back(event.pod_uid)
        if isinstance(held.event, PodReserved) and held.event.group:
            self._groups.released(held.event.group, event.pod_uid)

    def _drop(self, event: PlanDropped) -> None:
        for placement in self._groups.dropped(event.group):
            if self._engine is not None:
                self._engine.release(placement.request.uid)
        if event.reason == DEADLINE:
            self._past_deadline.add(event.group)

    def _hold(self, event: PodReserved | PodObserved) -> None:
        if event.node_uid not in self._nodes:
            return  # an observed holding of a node without inventory: no engine has it
        if event.pod_uid in self._held:
            self._give_back(event.pod_uid)
        if self._groups.taken(event.pod_uid) is not None and self._engine is not None:
            self._engine.release(event.pod_uid)
        held = self._held[event.pod_uid] = _Held(event)
        if self._engine is not None:
            self._enter(self._now(), held)

    def _give_back(self, uid: str) -> None:
        del self._held[uid]
        if self._engine is not None:
            self._engine.release(uid)

    # --- the engine ---------------------------------------------------------------------------

    def _change(self, uid: str) -> None:
        """Note that a node is another now; one that comes has its place among the others."""
        if uid in self._numbers:
            self._changed[uid] = None
        elif self._ahead is None:
            self._engine = None
        else:
            self._changed[uid] = None  # where the choice of node is not made, any place will do

    def _now(self) -> Engine:
        """Return the engine, with all that the events so far say."""
        engine = self._engine
        if engine is None:
            engine = self._engine = self._engine_anew()
        for uid in self._changed:
            facts = self._node(uid)
            number = self._numbers[uid] = engine.put_node(facts)
            self._facts[number : number + 1] = [facts]
        if self._changed:
            self._changed.clear()
            self._groups.use(self._facts, engine)
        return engine

    def _engine_anew(self) -> Engine:
        order = sorted(self._nodes, key=lambda uid: _place_of(self._nodes[uid]))
        self._facts = [self._node(uid) for uid in order]
        self._numbers = {uid: place for place, uid in enumerate(order)}
        self._changed.clear()
        ranked = sorted(range(len(order)), key=lambda i: _rank_of(self._nodes[order[i]]))
        rank = sorted(range(len(order)), key=ranked.__getitem__)
        engine = Engine(
            self._facts,
            self._in_force.settings,
            workload=self._workload,
            seed=self._in_force.seed,
            rank=None if rank == list(range(len(order))) else rank,
            by_count=self._ahead is None,
        )
        self._groups.use(self._facts, engine)
        for held in self._held.values():
            self._enter(engine, held)
        for placement in self._groups.all_kept():
            engine.reserve(placement)
        return engine

    def _node(self, uid: str) -> NodeFacts:
        node = self._nodes[uid]
        if node.described is None:
            raise InputError(
                f"what deciding reads of a node is not in the log: node={node.inventory.node_name}"
            )
        facts = node_of(node.inventory, node.inventory.devices, node.described.facts)
        return replace(facts, lost=node.lost)

    def _enter(self, engine: Engine, held: _Held) -> None:
        event, place = held.event, self._numbers[held.event.node_uid]
        if isinstance(event, PodObserved):
            engine.adopt(place, event)
            return
        placement = self._placement(event, place)
        if placement is None:
            engine.adopt(place, as_observed(event))
        else:
            engine.reserve(placement)

    def _placement(self, event: PodReserved, place: int) -> Placement | None:
        """Return what was placed, None where its request is not told or a device is not there."""
        request = request_of(event, self._requests)
        listed = {device.key: device for device in self._facts[place].devices}
        devices = [listed.get(share.key) for share in event.shares]
        known = tuple(device for device in devices if device is not None)
        if request is None or len(known) < len(devices):
            return None
        return Placement(
            request=request,
            node=place,
            node_uid=event.node_uid,
            node_name=event.node_name,
            shares=event.shares,
            devices=known,
            cpuset=event.cpuset,
            numa_parts=numa_parts_of(event),
        )

    def _request(self, event: PodReserved | PodObserved | RequestRefused) -> PodRequest:
        request = request_of(event, self._requests)
        if request is None:
            path = f"{event.namespace}/{event.pod_name}"
            raise InputError(f"what the Pod asked for is not in the log: pod={path}")
        return request

    def _member(self, member: GroupMember) -> PodRequest:
        recorded = self._requests.get(member.request)
        if recorded is None:
            path = f"{member.namespace}/{member.pod_name}"
            raise InputError(f"what a member of the group asks for is not in the log: pod={path}")
        return request_from(
            recorded,
            uid=member.pod_uid,
            namespace=member.namespace,
            name=member.pod_name,
            cpu_milli=member.cpu_milli,
            memory_bytes=member.memory_bytes,
            snapshot=PodSnapshot(qos=member.qos),
        )

    def _words(self, event: PodReserved | RequestRefused) -> DecidedBy:
        version = event.tenure_version if isinstance(event, PodReserved) else ""
        return DecidedBy(
            policy=self._in_force.settings.node_policy,
            settings_hash=self._in_force.settings_hash,
            tenure_version=version,
        )

    # --- decisions ----------------------------------------------------------------------------

    def _reserved(
        self, recorded: RecordedEvent, event: PodReserved, *, decide: bool
    ) -> Again | None:
        """Decide a reservation again, and apply the one that was recorded."""
        differences: tuple[Difference, ...] | None = None
        position = recorded.envelope.position
        if decide and not is_recovered(recorded.envelope):
            if self._ahead is None:
                answer = self._choose(self._request(event), event)
                differences = self._compared(recorded, event, answer)
            elif event.decided_on is not None and event.decided_on >= position:
                differences = (difference("decided_on", event.decided_on, NOT_BEFORE),)
            elif event.decided_on is not None:
                differences = self._made[position]
        self._made.pop(position, None)
        self._take_reservation(event, recorded.envelope.wall_us)
        if differences is None:
            return None
        name = f"{event.namespace}/{event.pod_name}"
        return Again(position=position, kind=PLACED, name=name, differences=differences)

    def _counted(
        self, recorded: RecordedEvent, event: PodObserved, *, decide: bool
    ) -> Again | None:
        """Decide a placement by count again, and apply the one that was recorded."""
        differences: tuple[Difference, ...] = ()
        if decide:
            answer = self._decide(self._request(event), event.arrival)
            if isinstance(answer, Unplaced):
                differences = (outcome(where(event), f"refused: {answer.message}"),)
            else:
                differences = tuple(field_differences(event, _counted_as(event, answer)))
        self._apply(event, recorded.envelope.wall_us)
        if not decide:
            return None
        name = f"{event.namespace}/{event.pod_name}"
        position = recorded.envelope.position
        return Again(position=position, kind=PLACED, name=name, differences=differences)

    def _compared(
        self, recorded: RecordedEvent, event: PodReserved, answer: Placement | Unplaced
    ) -> tuple[Difference, ...]:
        """Return where a reservation differs from what is decided now."""
        if isinstance(answer, Unplaced):
            return (outcome(where(event), f"refused: {answer.message}"),)
        if answer.counted:
            return (outcome(where(event), where(_counted_as(event, answer))),)
        answer = self._groups.with_seen(answer)
        return tuple(
            field_differences(event, self._expected(event, answer, recorded.envelope.wall_us))
        )

    def _choose(self, request: PodRequest, event: PodReserved) -> Placement | Unplaced:
        self._now()
        kept = self._groups.kept(request)  # asked for by the plan, which has no snapshot
        return (
            structs.replace(kept, request=request) if kept else self._decide(request, event.arrival)
        )

    def _decide_on(self, ahead: Ahead, position: int) -> None:
        """Make the choices that were made on the state at this position, ahead of their events."""
        for later in ahead.decided_on.pop(position, ()):
            if later.position <= position:
                continue  # said where the event is met
            recorded = ahead.event_at(later.position)
            event = recorded.event
            assert isinstance(event, PodReserved), recorded
            with ExitStack() as meanwhile:
                for at in later.meanwhile:
                    meanwhile.enter_context(self._given_meanwhile(ahead.event_at(at).event))
                if later.plan:
                    meanwhile.enter_context(self._planned_meanwhile(ahead.event_at(later.plan)))
                meanwhile.enter_context(self._without_place(event.pod_uid))
                answer = self._choose_on_named(self._request(event), event, later.minors)
                self._made[later.position] = self._compared(recorded, event, answer)

    @contextmanager
    def _given_meanwhile(self, event: LedgerEvent) -> Iterator[None]:
        """Let a Pod hold inside of the block what it was chosen before, and is recorded later."""
        assert isinstance(event, PodReserved), event
        place = self._numbers.get(event.node_uid)
        placement = None if place is None else self._placement(event, place)
        if placement is None or event.pod_uid in self._held:
            yield
            return
        with self._without_place(event.pod_uid):
            self._now().reserve(placement)
            if event.group:
                self._groups.given(placement)
            yield
            self._now().release(event.pod_uid)
            if event.group:
                self._groups.released(event.group, event.pod_uid)

    @contextmanager
    def _planned_meanwhile(self, recorded: RecordedEvent) -> Iterator[None]:
        """Keep the places of a plan inside of the block that was made before, and is told later."""
        plan = recorded.event
        assert isinstance(plan, GroupPlanned), plan
        if self._groups.places(plan.group):
            yield
            return
        waiting = {each.pod_uid: self._member(each) for each in plan.waiting}
        members = {uid: each for uid, each in waiting.items() if not self._groups.has_given(uid)}
        life = GroupLife(
            name=plan.group,
            places={each.pod_uid: each for each in plan.members if each.pod_uid in members},
        )
        engine = self._now()
        taken = take_again(life, members, self._numbers, engine) or {}
        for placement in taken.values():
            engine.undo(placement)
        for placement in taken.values():
            self._groups.keep(plan.group, placement)
        yield
        for placement in self._groups.dropped(plan.group):
            engine.release(placement.request.uid)

    @contextmanager
    def _without_place(self, uid: str) -> Iterator[None]:
        """Let no place be kept for a Pod inside of the block."""
        place = self._groups.taken(uid)
        if place is not None:
            self._now().release(uid)
        yield
        if place is not None:
            self._groups.keep(group_name(place.request), place)

    def _choose_on_named(
        self, request: PodRequest, event: PodReserved, minors: frozenset[int] | None
    ) -> Placement | Unplaced:
        """Choose cards and CPUs on the node that was named; how that was rated is not asked."""
        engine = self._now()
        if request.uid in self._held:
            return Unplaced(request=request, message=HELD)
        place = self._numbers.get(event.node_uid)
        given = None if place is None else engine.try_place(request, place, minors)
        if given is None:
            return Unplaced(request=request, message=NOT_THERE)
        engine.undo(given)
        rated = Rated(event.score, event.runner_up, event.runner_up_score)
        return structs.replace(given, rated=rated)

    def _decide(self, request: PodRequest, arrival: int) -> Placement | Unplaced:
        """Decide one Pod, beside its group if it has one."""
        engine = self._now()
        if request.uid in self._held:
            return Unplaced(request=request, message=HELD)
        return self._groups.beside(request) or engine.decide(request, ordinal=arrival)

    def _expected(self, event: PodReserved, answer: Placement, at_us: int) -> PodReserved:
        """Return the event that would be recorded now."""
        annotations = encode(
            answer,
            node=self._facts[answer.node],
            now_ns=at_us * 1000,
            settings=self._in_force.settings,
        )
        signed = event.annotations.get(ANNOTATION_TENURE_ALLOCATION)
        at_work = self._ahead is not None
        if at_work and signed is not None:
            annotations[ANNOTATION_TENURE_ALLOCATION] = signed
        new = events.reserved(
            self._words(event),
            answer,
            annotations,
            at_us,
            digest=event.request or "",
            arrival=event.arrival,
            attempt=event.attempt,
            resource_version=event.resource_version if at_work else "",
            decided_on=event.decided_on if at_work else None,
        )
        assert isinstance(new.event, PodReserved), new
        return new.event

    def _take_reservation(self, event: PodReserved, at_us: int) -> None:
        request = request_of(event, self._requests)
        if event.group and request is not None:
            self._groups.life_of(request)
        self._hold(event)
        if event.group and event.node_uid in self._nodes:
            self._now()
            placement = self._placement(event, self._numbers[event.node_uid])
            if placement is not None:
                self._groups.given(placement)
        self._groups.fold(event, at_us)

    def _refused(self, recorded: RecordedEvent, event: RequestRefused) -> Again | None:
        """Decide a refusal again; one by rules of a Pod is none of ours."""
        if self._ahead is not None or (event.stage != events.STAGE and event.request is None):
            return None
        request = self._request(event)
        self._now()
        name = group_name(request)
        plan = past_deadline(request) if name in self._past_deadline else self._refusals.get(name)
        answer: Placement | Unplaced
        if plan is not None:
            answer = refused_everywhere(request, plan, len(self._facts))
        else:
            answer = self._decide(request, event.arrival)
        if isinstance(answer, Placement):
            recorded_as = f"refused: {event.message}"
            differences: tuple[Difference, ...] = (
                outcome(recorded_as, f"placed on {answer.node_name}"),
            )
        else:
            new = events.unplaced(
                self._words(event), answer, 1, 0, digest=event.request or "", arrival=event.arrival
            )
            assert isinstance(new.event, RequestRefused), new
            differences = tuple(field_differences(event, new.event))
        return Again(
            position=recorded.envelope.position,
            kind=REFUSED,
            name=f"{event.namespace}/{event.pod_name}",
            differences=differences,
        )

    def _planned(
        self, recorded: RecordedEvent, event: GroupPlanned, *, decide: bool
    ) -> Again | None:
        """Decide a group's plan again, and keep the places that were recorded."""
        name, position = event.group, recorded.envelope.position
        for member in (*event.waiting, *event.to_come):
            self._groups.came(name, member.pod_uid)
        wrong = self._wrong_members(event)
        if self._ahead is not None or wrong:
            self._groups.fold(event, recorded.envelope.wall_us)
            members = [self._member(member) for member in (*event.waiting, *event.to_come)]
            self._keep(event, members, None)
            if self._ahead is not None or not decide:
                return None
            return Again(position=position, kind=PLANNED, name=name, differences=wrong)
        self._now()
        waiting = [self._member(member) for member in event.waiting]
        to_come = [self._member(member) for member in event.to_come]
        self._groups.count_running(name, event.running)
        answer = self._groups.plan(waiting, to_come)
        taken = [placement for placement in answer.placements if placement is not None]
        new = events.group_planned(
            name,
            taken,
            1,
            0,
            waiting=event.waiting,
            to_come=event.to_come,
            running=self._groups.running(name),
        )
        assert isinstance(new.event, GroupPlanned), new
        differences = tuple(field_differences(event, new.event))
        self._past_deadline.discard(name)
        self._refusals[name] = answer.refusal
        self._groups.fold(event, recorded.envelope.wall_us)
        self._keep(event, [*waiting, *to_come], None if differences else taken)
        if not decide:
            return None
        return Again(position=position, kind=PLANNED, name=name, differences=differences)

    def _wrong_members(self, event: GroupPlanned) -> tuple[Difference, ...]:
        """Return why a plan can't be for these members; let places go that they have already."""
        members = (*event.waiting, *event.to_come)
        if not event.waiting:
            return (difference("waiting", event.waiting, SOMEBODY),)
        kept = [self._groups.taken(member.pod_uid) for member in members]
        places = [*filter(None, kept), *self._groups.dropped(event.group)]
        for placement in places:
            self._now().release(placement.request.uid)
        holds = tuple(member for member in members if member.pod_uid in self._held)
        if holds:
            return (difference("waiting", holds, HELD),)
        return (difference("waiting", members, KEPT),) if places else ()

    def _is_end(self, event: End) -> bool:
        """Tell whether the end of a plan or a wait is decided again: in a simulation it is."""
        if self._ahead is not None:
            return False
        return isinstance(event, PlanDropped) or bool(self._groups.group_of(event.pod_uid))

    def _ended(self, recorded: RecordedEvent, event: End, *, decide: bool) -> Again | None:
        """
        Decide the end of a plan or a wait again, and apply the one that was recorded.

        That a Pod left its group is a fact from outside, which the event has.
        """
        at_us = recorded.envelope.wall_us
        name = (
            event.group if isinstance(event, PlanDropped) else self._groups.group_of(event.pod_uid)
        )
        if name not in self._groups.lives:
            self._apply(event, at_us)
            unknown = (difference(OUTCOME, event.reason, STAYS),)
            position = recorded.envelope.position
            return Again(position=position, kind=ENDED, name=name, differences=unknown)
        if name not in self._ends:
            self._now()
            if event.reason in {MEMBER_GONE, MEMBER_CHANGED} and isinstance(event, PlanDropped):
                now = "" if event.reason == MEMBER_CHANGED else None
                self._groups.left(name, event.pod_uid, now)
            self._ends[name] = (self._groups.ends(name, at_us), [])
        decided, ended = self._ends[name]
        ended.append(event)
        self._apply(event, at_us)
        if isinstance(event, PodVoided):
            return None
        del self._ends[name]
        if not decide:
            return None
        return Again(
            position=recorded.envelope.position,
            kind=ENDED,
            name=name,
            differences=tuple(end_differences(ended, decided)),
        )

    def _keep(
        self, event: GroupPlanned, members: Sequence[PodRequest], taken: list[Placement] | None
    ) -> None:
        """Keep the places of a plan; `taken` is None where ours would be other ones."""
        engine, name = self._now(), event.group
        for placement in self._groups.dropped(name):
            engine.release(placement.request.uid)
        if taken is None:
            known = {member.uid: member for member in members if member.uid not in self._held}
            again = take_again(self._groups.lives[name], known, self._numbers, engine)
            taken = list((again or {}).values())
            for placement in taken:
                engine.undo(placement)
        for placement in taken:
            self._groups.keep(name, placement)


def _counted_as(event: PodReserved | PodObserved, answer: Placement) -> PodObserved:
    """Return the event that would be recorded now of a Pod that is placed by count."""
    new = events.placed_by_count(
        answer, 0, digest=event.request or "", arrival=event.arrival, attempt=event.attempt
    )
    assert isinstance(new.event, PodObserved), new
    if answer.counted:
        return new.event
    return structs.replace(new.event, unknown_types=(), counted={}, shares=answer.shares)


def _place_of(node: _Node) -> int:
    return 0 if node.described is None else node.described.number


def _rank_of(node: _Node) -> int:
    return 0 if node.described is None else node.described.rank
