"""
Decisions decided again, from nothing but the events of their ledger, and what comes out otherwise.

Every event is folded into one engine. A decision is made before its event is applied, and then what
was recorded is applied, so that one difference brings no others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import structs

from ledger.domain.devices import DeviceShare
from ledger.domain.errors import InputError
from ledger.domain.log.events import (
    DeviceHealthChanged,
    GroupMember,
    GroupPlanned,
    LedgerEvent,
    NodeCleared,
    NodeDescribed,
    NodeInventoried,
    NodeLost,
    PlanDropped,
    PlannedMember,
    PodObserved,
    PodReleased,
    PodReserved,
    PodVoided,
    RefusalReason,
    RequestDescribed,
    RequestRefused,
    SettingsChanged,
    WorkloadDescribed,
)
from ledger.domain.log.recorded import RecordedEvent, is_recovered
from ledger.domain.log.recorded_request import RecordedRequest, request_digest, request_from
from ledger.domain.log.workload import NO_WORKLOAD
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest, PodSnapshot, group_name
from ledger.domain.resources import ANNOTATION_TENURE_ALLOCATION
from scheduler.cluster.rebuilt import as_observed, node_of, request_of
from scheduler.cluster.settings import recorded_settings
from scheduler.decide.answers import encode
from scheduler.decide.engine import Engine
from scheduler.decide.group.life import DEADLINE, take_again
from scheduler.decide.nodes.adopted_cpus import numa_parts_of
from scheduler.decide.outcome import Placement, Rated, Unfit, Unplaced
from scheduler.decide.settings import SchedulingSettings
from scheduler.record import events
from scheduler.record.events import Words
from scheduler.record.grouping import Grouping, past_deadline, refused_everywhere

PLACED: Final = "placed"
REFUSED: Final = "refused"
PLANNED: Final = "planned"
OUTCOME: Final = "outcome"
NOT_THERE: Final = "the node that was named would not take it"
_CALLED: Final = {
    "node_name": "node",
    "shares": "devices",
    "cpuset": "cpus",
    "device_models": "models",
    "members": "places",
}
"""What fields of events are called where a difference is told."""

Decision = PodReserved | RequestRefused | GroupPlanned


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact of a decision that comes out otherwise now, in words."""

    what: str
    recorded: str
    decided: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """
    One decision, decided again.

    Attributes:
        kind: what was recorded: `placed`, `refused` or `planned`.
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
        whole: the choice of node too, refusals and plans of groups, as in a simulation. Otherwise
            the choice of cards and CPUs on the node that was named, and nothing else.
        by: decide by these settings, whatever was recorded; None = by those in force.
    """

    def __init__(self, *, whole: bool, by: InForce | None = None) -> None:
        self._whole = whole
        self._by = by
        self._in_force = by or InForce(settings=SchedulingSettings(), settings_hash="")
        self._workload = NO_WORKLOAD
        self._nodes: dict[str, _Node] = {}  # by UID, in the order of their first inventories
        self._facts: tuple[NodeFacts, ...] = ()  # as the engine has them
        self._places: dict[str, int] = {}  # UID of a node -> its number in the engine
        self._requests: dict[str, RecordedRequest] = {}  # by digest
        self._held: dict[str, _Held] = {}  # Pod UID -> what it holds
        self._refusals: dict[str, Unfit | None] = {}  # group -> why its newest plan gave nothing
        self._past_deadline: set[str] = set()  # gangs whose last plan ended so
        self._engine: Engine | None = None  # None = facts changed since it was made
        self._groups = Grouping((), Engine((), self._in_force.settings), {})

    def take(self, recorded: RecordedEvent, *, decide: bool = True) -> Again | None:
        """
        Take the next event; a decision is decided again first, unless `decide` is false.

        Returns:
            None for an event that is no decision, or one that is not decided again.

        Raises:
            InputError: the ledger does not tell what the decision was made on.
        """
        event, position = recorded.event, recorded.envelope.position
        try:
            match event:
                case PodReserved():
                    return self._reserved(recorded, event, decide=decide)
                case RequestRefused():
                    return self._refused(recorded, event) if decide else None
                case GroupPlanned():
                    return self._planned(recorded, event, decide=decide)
                case _:
                    self._apply(event, recorded.envelope.wall_us)
                    return None
        except InputError as error:
            raise InputError(f"{error.message}: position={position}", field=error.field) from error

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
                self._engine = None
            case NodeDescribed():
                if event.node_uid in self._nodes:
                    self._nodes[event.node_uid].described = event
                    self._engine = None
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
                replace(device, healthy=event.healthy) if device.key == key else device
                for device in node.inventory.devices
            ),
        )
        if self._engine is not None:
            place = self._places[event.node_uid]
            facts = self._engine.view(place).facts
            self._engine.put_node(facts.with_health(*key, healthy=event.healthy))

    def _lose(self, event: NodeLost) -> None:
        """Let what is held on a node that is lost stay held."""
        if event.node_uid in self._nodes:
            self._nodes[event.node_uid].lost = True
            self._engine = None
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
        held = self._held[event.pod_uid] = _Held(event)
        if self._engine is not None:
            self._enter(self._engine, held)

    def _give_back(self, uid: str) -> None:
        del self._held[uid]
        if self._engine is not None:
            self._engine.release(uid)

    # --- the engine ---------------------------------------------------------------------------

    def _now(self) -> Engine:
        """Return the engine, with all that the events so far say."""
        if self._engine is None:
            order = sorted(self._nodes, key=lambda uid: _place_of(self._nodes[uid]))
            self._facts = tuple(self._node(uid) for uid in order)
            self._places = {uid: place for place, uid in enumerate(order)}
            ranked = sorted(range(len(order)), key=lambda i: _rank_of(self._nodes[order[i]]))
            rank = sorted(range(len(order)), key=ranked.__getitem__)
            self._engine = Engine(
                self._facts,
                self._in_force.settings,
                workload=self._workload,
                seed=self._in_force.seed,
                rank=None if rank == list(range(len(order))) else rank,
            )
            self._groups.use(self._facts, self._engine)
            for held in self._held.values():
                self._enter(self._engine, held)
            for placement in self._groups.all_kept():
                self._engine.reserve(placement)
        return self._engine

    def _node(self, uid: str) -> NodeFacts:
        node = self._nodes[uid]
        if node.described is None:
            raise InputError(
                f"what deciding reads of a node is not in the log: node={node.inventory.node_name}"
            )
        facts = node_of(node.inventory, node.inventory.devices, node.described.facts)
        return replace(facts, lost=node.lost)

    def _enter(self, engine: Engine, held: _Held) -> None:
        event, place = held.event, self._places[held.event.node_uid]
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

    def _request(self, event: PodReserved | RequestRefused) -> PodRequest:
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

    def _words(self, event: PodReserved | RequestRefused) -> Words:
        version = event.tenure_version if isinstance(event, PodReserved) else ""
        return Words(
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
        if decide and not is_recovered(recorded.envelope):
            request = self._request(event)
            answer = self._choose(request, event)
            if isinstance(answer, Unplaced):
                differences = (_outcome(_where(event), f"refused: {answer.message}"),)
            else:
                expected = self._expected(event, answer, recorded.envelope.wall_us)
                differences = tuple(_differences(event, expected))
        self._take_reservation(event, recorded.envelope.wall_us)
        if differences is None:
            return None
        name = f"{event.namespace}/{event.pod_name}"
        return Again(
            position=recorded.envelope.position, kind=PLACED, name=name, differences=differences
        )

    def _choose(self, request: PodRequest, event: PodReserved) -> Placement | Unplaced:
        engine = self._now()
        if self._whole:
            kept = self._groups.kept(request)  # asked for by the plan, which has no snapshot
            answer = (
                structs.replace(kept, request=request)
                if kept
                else self._decide(request, event.arrival)
            )
        else:
            place = self._places.get(event.node_uid)
            given = None if place is None else engine.try_place(request, place)
            if given is None:
                return Unplaced(request=request, message=NOT_THERE)
            engine.undo(given)
            rated = Rated(event.score, event.runner_up, event.runner_up_score)
            answer = structs.replace(given, rated=rated)
        return self._groups.with_seen(answer) if isinstance(answer, Placement) else answer

    def _decide(self, request: PodRequest, arrival: int) -> Placement | Unplaced:
        """Decide one Pod, beside its group if it has one."""
        engine = self._now()
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
        if signed is not None:
            annotations[ANNOTATION_TENURE_ALLOCATION] = signed
        new = events.reserved(
            self._words(event),
            answer,
            annotations,
            at_us,
            digest=event.request or "",
            arrival=event.arrival,
            attempt=event.attempt,
        )
        assert isinstance(new.event, PodReserved), new
        return structs.replace(new.event, resource_version=event.resource_version)

    def _take_reservation(self, event: PodReserved, at_us: int) -> None:
        request = request_of(event, self._requests)
        if event.group and request is not None:
            self._groups.life_of(request)
            if self._groups.taken(request) is not None and self._engine is not None:
                self._engine.release(event.pod_uid)
        self._hold(event)
        if event.group and event.node_uid in self._nodes:
            self._now()
            placement = self._placement(event, self._places[event.node_uid])
            if placement is not None:
                self._groups.given(placement)
        self._groups.fold(event, at_us)

    def _refused(self, recorded: RecordedEvent, event: RequestRefused) -> Again | None:
        """Decide a refusal again; one by rules of a Pod is none of ours."""
        if event.stage != events.STAGE or not self._whole:
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
                _outcome(recorded_as, f"placed on {answer.node_name}"),
            )
        else:
            new = events.unplaced(
                self._words(event), answer, 1, 0, digest=event.request or "", arrival=event.arrival
            )
            assert isinstance(new.event, RequestRefused), new
            differences = tuple(_differences(event, new.event))
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
        if not self._whole or not event.waiting:
            self._groups.fold(event, recorded.envelope.wall_us)
            return None
        self._now()
        name = event.group
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
        differences = tuple(_differences(event, new.event))
        self._past_deadline.discard(name)
        self._refusals[name] = answer.refusal
        self._groups.fold(event, recorded.envelope.wall_us)
        self._keep(event, [*waiting, *to_come], None if differences else taken)
        if not decide:
            return None
        return Again(
            position=recorded.envelope.position, kind=PLANNED, name=name, differences=differences
        )

    def _keep(
        self, event: GroupPlanned, members: Sequence[PodRequest], taken: list[Placement] | None
    ) -> None:
        """Keep the places of a plan; `taken` is None where ours would be other ones."""
        engine, name = self._now(), event.group
        for placement in self._groups.dropped(name):
            engine.release(placement.request.uid)
        if taken is None:
            known = {member.uid: member for member in members}
            again = take_again(self._groups.lives[name], known, self._places, engine)
            taken = list((again or {}).values())
            for placement in taken:
                engine.undo(placement)
        for placement in taken:
            self._groups.keep(name, placement)


def _place_of(node: _Node) -> int:
    return 0 if node.described is None else node.described.place


def _rank_of(node: _Node) -> int:
    return 0 if node.described is None else node.described.rank


def _outcome(recorded: str, decided: str) -> Difference:
    return Difference(what=OUTCOME, recorded=recorded, decided=decided)


def _where(event: PodReserved) -> str:
    given = [_text(event.shares)] if event.shares else []
    given += [f"CPUs {event.cpuset}"] if event.cpuset else []
    return f"placed on {event.node_name}" + (f": {', '.join(given)}" if given else "")


def _differences(recorded: Decision, decided: Decision) -> Iterator[Difference]:
    """Yield the fields of two events of one type that are not the same, in words."""
    for name in recorded.__struct_fields__:
        before, after = getattr(recorded, name), getattr(decided, name)
        if before == after:
            continue
        if isinstance(before, Mapping):
            for key in sorted(before.keys() | after.keys()):
                if before.get(key) != after.get(key):
                    yield _difference(key, before.get(key), after.get(key))
        else:
            yield _difference(_CALLED.get(name, name), before, after)


def _difference(what: str, before: object, after: object) -> Difference:
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
        case RefusalReason():
            near = f" ({value.nearest_node}: {value.detail})" if value.nearest_node else ""
            return f"{value.nodes} {value.reason}{near}"
        case PlannedMember():
            cards = ",".join(map(str, value.minors))
            return f"{value.pod_name} on {value.node_uid} gpu/{cards}"
        case _:
            return str(value)
