"""What the events of a ledger say so far, folded into one engine that decides again."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace

from msgspec import structs

from ledger.domain.annotations.tenure import cards_in, read_shown
from ledger.domain.errors import InputError
from ledger.domain.log import events
from ledger.domain.log.claims import claim_as_observed
from ledger.domain.log.recorded_request import RecordedRequest, request_digest
from ledger.domain.log.workload import NO_WORKLOAD
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from scheduler.cluster.rebuilt import as_observed, node_of, request_of
from scheduler.cluster.settings import recorded_settings
from scheduler.decide.engine import Engine
from scheduler.decide.group.life import DEADLINE
from scheduler.decide.nodes.adopted_cpus import numa_parts_of
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings
from scheduler.record.events import DecidedBy
from scheduler.record.grouping import Grouping


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """Settings that are decided by, and the seed of what is drawn."""

    settings: SchedulingSettings
    settings_hash: str
    seed: int = 0


@dataclass(slots=True)
class _Node:
    """What events say of one node so far."""

    inventory: events.NodeInventoried
    described: events.NodeDescribed | None = None
    lost: bool = False


class SoFar:
    """
    The state that a ledger's events come to.

    Args:
        at_work: of a cluster at work, where the choice of node is not made again; else of a
            simulation.
        by: decide by these settings, whatever was recorded; None = by those in force.
        requests: by digest, what is known of requests before any event.

    Attributes:
        nodes: by UID, in the order of their first inventories.
        numbers: UID of a node -> its number in the engine.
        held: Pod UID -> what it holds, but through a node that was lost.
        past_deadline: gangs whose last plan ended so.
    """

    def __init__(
        self, *, at_work: bool, by: InForce | None, requests: dict[str, RecordedRequest]
    ) -> None:
        self._at_work = at_work
        self._by = by
        self.in_force = by or InForce(settings=SchedulingSettings(), settings_hash="")
        self._workload = NO_WORKLOAD
        self.nodes: dict[str, _Node] = {}
        self.facts: list[NodeFacts] = []
        self.numbers: dict[str, int] = {}
        self._changed: dict[str, None] = {}  # UIDs of nodes that the engine has as they were
        self.requests = requests
        self.held: dict[str, events.PodReserved | events.PodObserved] = {}
        self._stuck: dict[
            str, events.PodReserved | events.PodObserved
        ] = {}  # through lost nodes, by `_name`
        self.past_deadline: set[str] = set()
        self._engine: Engine | None = None  # None = what it was made for has changed
        self.groups = Grouping((), Engine((), self.in_force.settings), {})

    # --- events ---------------------------------------------------------------------------------

    def apply(self, event: events.LedgerEvent, at_us: int) -> None:
        """Fold an event in that is no decision, or one as it was recorded."""
        self.groups.fold(event, at_us)
        match event:
            case events.SettingsChanged() if self._by is None:
                self.in_force = InForce(
                    settings=recorded_settings(event.settings),
                    settings_hash=hashlib.sha256(event.settings.encode()).hexdigest(),
                    seed=json.loads(event.settings or "{}").get("seed", 0),
                )
                self._engine = None
            case events.WorkloadDescribed():
                self._workload = event.workload
                self._engine = None
            case events.RequestDescribed():
                self.requests[request_digest(event.request)] = event.request
            case events.NodeInventoried():
                known = self.nodes.get(event.node_uid)
                told = None if known is None else known.described
                self.nodes[event.node_uid] = _Node(event, told)
                self._change(event.node_uid)
            case events.NodeDescribed():
                if event.node_uid in self.nodes:
                    self.nodes[event.node_uid].described = event
                    self._change(event.node_uid)
            case events.DeviceHealthChanged():
                self._change_health(event)
            case events.NodeLost():
                self._lose(event)
            case events.NodeCleared():
                self._clear(event)
            case events.PodObserved():
                self.hold(event)
            case events.ClaimReserved() | events.ClaimObserved():
                self.hold(claim_as_observed(event))
            case (
                events.PodReleased()
                | events.PodVoided()
                | events.ClaimReleased()
                | events.ClaimVoided()
            ):
                self._release(event)
            case events.PlanDropped():
                self._drop(event)
            case _:
                pass

    def _change_health(self, event: events.DeviceHealthChanged) -> None:
        node = self.nodes.get(event.node_uid)
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

    def _lose(self, event: events.NodeLost) -> None:
        """Let what is held on a node that is lost stay held."""
        if event.node_uid in self.nodes:
            self.nodes[event.node_uid].lost = True
            self._change(event.node_uid)
        for uid, held in list(self.held.items()):
            if held.node_uid == event.node_uid:
                self._stuck[self._name(held)] = self.held.pop(uid)

    def _clear(self, event: events.NodeCleared) -> None:
        for name, held in list(self._stuck.items()):
            if held.node_uid == event.node_uid:
                del self._stuck[name]
                if self._engine is not None:
                    self._engine.release(name)
        self.groups.cleared(event.node_uid, self.held)

    def _release(self, event: events.Ending) -> None:
        held = self.held.get(event.pod_uid)
        if held is None or held.node_uid != event.node_uid:
            return
        self._give_back(event.pod_uid)
        if isinstance(held, events.PodReserved) and held.group:
            self.groups.released(held.group, event.pod_uid)

    def _drop(self, event: events.PlanDropped) -> None:
        for placement in self.groups.dropped(event.group):
            if self._engine is not None:
                self._engine.release(placement.request.uid)
        if event.reason == DEADLINE:
            self.past_deadline.add(event.group)

    def hold(self, event: events.PodReserved | events.PodObserved) -> None:
        """Let a Pod hold what was recorded."""
        if event.node_uid not in self.nodes:
            return  # an observed holding of a node without inventory: no engine has it
        if event.pod_uid in self.held:
            self._give_back(event.pod_uid)
        if self.groups.taken(event.pod_uid) is not None and self._engine is not None:
            self._engine.release(event.pod_uid)
        self.held[event.pod_uid] = event
        if self._engine is not None:
            self._enter(self.now(), event)

    def _give_back(self, uid: str) -> None:
        held = self.held.pop(uid)
        if self._engine is not None:
            self._engine.release(self._name(held))

    def _name(self, event: events.PodReserved | events.PodObserved) -> str:
        """Return what a holding is called in the engine, where a place may be kept beside it."""
        return f"{event.pod_uid}/{event.attempt}" if self._at_work else event.pod_uid

    # --- the engine ---------------------------------------------------------------------------

    def _change(self, uid: str) -> None:
        """Note that a node is another now; one that comes has its place among the others."""
        if uid in self.numbers:
            self._changed[uid] = None
        elif not self._at_work:
            self._engine = None
        else:
            self._changed[uid] = None  # where the choice of node is not made, any place will do

    def now(self) -> Engine:
        """Return the engine, with all that the events so far say."""
        engine = self._engine
        if engine is None:
            engine = self._engine = self._engine_anew()
        for uid in self._changed:
            facts = self._node(uid)
            number = self.numbers[uid] = engine.put_node(facts)
            self.facts[number : number + 1] = [facts]
        if self._changed:
            self._changed.clear()
            self.groups.use(self.facts, engine)
        return engine

    def _engine_anew(self) -> Engine:
        order = sorted(self.nodes, key=lambda uid: _place_of(self.nodes[uid]))
        self.facts = [self._node(uid) for uid in order]
        self.numbers = {uid: place for place, uid in enumerate(order)}
        self._changed.clear()
        ranked = sorted(range(len(order)), key=lambda i: _rank_of(self.nodes[order[i]]))
        rank = sorted(range(len(order)), key=ranked.__getitem__)
        engine = Engine(
            self.facts,
            self.in_force.settings,
            workload=self._workload,
            seed=self.in_force.seed,
            rank=None if rank == list(range(len(order))) else rank,
            by_count=not self._at_work,
        )
        self.groups.use(self.facts, engine)
        for held in (*self.held.values(), *self._stuck.values()):
            self._enter(engine, held)
        for placement in self.groups.all_kept():
            engine.reserve(placement)
        return engine

    def _node(self, uid: str) -> NodeFacts:
        node = self.nodes[uid]
        if node.described is None:
            raise InputError(
                f"what deciding reads of a node is not in the log: node={node.inventory.node_name}"
            )
        facts = node_of(node.inventory, node.inventory.devices, node.described.facts)
        return replace(facts, lost=node.lost)

    def _enter(self, engine: Engine, event: events.PodReserved | events.PodObserved) -> None:
        place = self.numbers[event.node_uid]
        # A cluster at work is decided on as what Pods hold, with the devices of that moment.
        placement = None
        if isinstance(event, events.PodReserved) and not self._at_work:
            placement = self.placement(event, place)
        if placement is None:
            observed = as_observed(event) if isinstance(event, events.PodReserved) else event
            engine.adopt(place, structs.replace(observed, pod_uid=self._name(event)))
        else:
            engine.reserve(placement)

    def placement(self, event: events.PodReserved, place: int) -> Placement | None:
        """Return what was placed, None where its request is not told or a device is not there."""
        request = request_of(event, self.requests)
        listed = {device.key: device for device in self.facts[place].devices}
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
            shown=cards_in(read_shown(event.annotations)),
        )

    def request(
        self,
        event: events.PodReserved | events.PodObserved | events.RequestRefused | events.GroupMember,
    ) -> PodRequest:
        """Return what a Pod asked for. Raises InputError where the ledger does not tell."""
        request = request_of(event, self.requests)
        if request is None:
            is_member = isinstance(event, events.GroupMember)
            fact = "a member of the group asks for" if is_member else "the Pod asked for"
            path = f"{event.namespace}/{event.pod_name}"
            raise InputError(f"what {fact} is not in the log: pod={path}")
        return request

    def words(self, event: events.PodReserved | events.RequestRefused) -> DecidedBy:
        """Return what the event of a decision made now would repeat."""
        version = event.tenure_version if isinstance(event, events.PodReserved) else ""
        return DecidedBy(
            policy=self.in_force.settings.node_policy,
            settings_hash=self.in_force.settings_hash,
            tenure_version=version,
        )


def _place_of(node: _Node) -> int:
    return 0 if node.described is None else node.described.number


def _rank_of(node: _Node) -> int:
    return 0 if node.described is None else node.described.rank
