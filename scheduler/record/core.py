"""
A scheduler at work: it decides, takes in its engine what it decided, and says so in events.

The moment is an argument of every call, and where events go is handed in: a simulation and a
service differ in who asks when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from ledger.domain.devices import DeviceShare
from ledger.domain.log import events as log
from ledger.domain.log.claims import claim_as_observed
from ledger.domain.log.machines import contradictions, granting_nodes, in_order_of_registration
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.recorded_node import RecordedNode, recorded_node
from ledger.domain.log.recorded_request import recorded_request, request_digest
from ledger.domain.log.workload import Workload
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest, group_name
from ledger.domain.systems import SystemPart
from scheduler.cluster.model import Clearing, Cluster, HealthChange, NodeChange, RefusedPod
from scheduler.decide.answers import encode
from scheduler.decide.engine import Engine, Limits
from scheduler.decide.group.life import MemberAction, next_step
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.settings import SchedulingSettings
from scheduler.record import events
from scheduler.record.events import DecidedBy
from scheduler.record.grouping import Ended, Grouping, past_deadline, refused_everywhere
from scheduler.record.refusing import ToldRefusals

Refused = Callable[[int, Unplaced], None]
"""Called with an arrival and why it has no place."""


class Record(Protocol):
    """Where events go. Those up to a call of `decided` are of one decision, and one commit."""

    def add(self, event: NewEvent) -> None:
        """Take an event that belongs to the decision under way."""

    def decided(self) -> None:
        """End a decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """
    A Pod that got a place, with exactly the annotations of its Binding.

    Attributes:
        claimed: what it has by claims, of whichever cards.
    """

    placement: Placement
    annotations: Mapping[str, str]
    claimed: tuple[DeviceShare, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ByClaims:
    """
    What a Pod that was placed has by claims.

    Attributes:
        opened: claims that get cards which the node lists itself; their shares are of these.
        used: claims that had something, with who uses them from now on.
        parts: of cards that slices alone list.
        shares: of all of them.
    """

    opened: tuple[log.ClaimReserved, ...] = ()
    used: tuple[log.ClaimConsumed, ...] = ()
    parts: tuple[SystemPart, ...] = ()
    shares: tuple[DeviceShare, ...] = ()


class Decisions:
    """
    Keeps engine, groups and events in step, decision by decision.

    An arrival is the number of a Pod among those that ask, the same whenever it asks again.

    Args:
        cluster: as the engine was made from it.
        rank: tie-break order per node, as the engine has it; None = the order of the nodes.

    Attributes:
        adopted: number of the node and what a running Pod, or a claim, holds there, of those not
            decided here.
        decisions: answers that were asked for; a Pod that asks again counts again.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        engine: Engine,
        record: Record,
        settings: SchedulingSettings,
        words: DecidedBy,
        rank: Sequence[int] | None = None,
    ) -> None:
        self.engine = engine
        elsewhere = Counter(pod.group for pod in cluster.adopted if pod.group and not pod.node_uid)
        self.groups = Grouping(cluster.nodes, engine, elsewhere)
        self.adopted = _adopted(cluster)
        self.decisions = 0
        self._claims, self._began = cluster.claims, cluster.began
        self._record = record
        self._settings = settings
        self._words = words
        self._rank = rank
        self._nodes = list(cluster.nodes)
        self._running_requests = cluster.running_requests
        self._refusals = ToldRefusals()
        self._plans: Counter[str] = Counter()  # group -> plans recorded
        self._plan: Callable[[], None] | None = None  # records the plan that was made last
        self._attempts: dict[str, int] = {}  # Pod UID -> reservations, of those with several
        self._described: set[str] = set()  # digests of requests
        self._facts: dict[str, RecordedNode] = {}  # UID of a node -> its newest description
        self._held: dict[str, Placement] = {}  # Pod UID -> what it holds, of those placed here
        self._stuck: dict[str, Placement] = {}  # likewise, since its node was lost
        self._changes = 0  # of nodes and their devices

    # --- the beginning ------------------------------------------------------------------------

    def begin(self, settings: str, workload: Workload, at_us: int) -> tuple[str, ...]:
        """
        Record settings, inventory and what running Pods hold; return what contradicts itself.

        `settings` is the canonical JSON that the first event carries, `workload` the engine's.
        """
        self._record.add(events.settings_changed(self._words, settings, at_us))
        self._record.add(
            events.of_ledger(log.WorkloadDescribed(workload=workload), "workload", at_us)
        )
        nodes = self._nodes
        granting = granting_nodes(nodes)
        # What a machine has is what the Node says that gives it: that Node's word comes last.
        for last in (False, True):
            for number, node in enumerate(nodes):
                if (granting[number] == number) is last:
                    self._record.add(events.inventoried(node, at_us))
                    self._describe_node(number, at_us)
        conflicts: list[str] = []
        claims = [nodes[number] for number in in_order_of_registration(nodes)]
        for found in contradictions(claims):
            conflicts.append(str(found))
            self._record.add(events.drift_found(found, at_us))
        for request in self._running_requests:
            self._describe(request, at_us)
        last_us = max((at_us, *self._began.values()))
        moments = [self._began.get(pod.pod_uid, last_us) for _, pod in self.adopted]
        for number in sorted(range(len(moments)), key=moments.__getitem__):
            place, pod = self.adopted[number]
            conflicts += self.engine.adopt(place, pod)
            self._add(events.of_pod(pod, moments[number]))
        numbers = {node.uid: number for number, node in enumerate(nodes)}
        for claim in self._claims:
            place, held = numbers[claim.node_uid], claim_as_observed(claim)
            conflicts += self.engine.adopt(place, held)
            self._add(events.of_claim(claim, last_us, 0))
            self.adopted.append((place, held))
        for node in nodes:
            if node.lost:
                self._record.add(events.node_lost(node, last_us))
        return tuple(conflicts)

    # --- decisions ----------------------------------------------------------------------------

    def refuse(self, pod: RefusedPod, at_us: int) -> None:
        """Record a Pod that breaks rules of ours."""
        self._record.add(events.broken_rules(self._words, pod, at_us))
        self._record.decided()

    def decide(self, arrival: int, request: PodRequest, at_us: int) -> Placed | Unplaced:
        """
        Decide one Pod, beside its group if it has one. A place is taken and recorded.

        A refusal is left to the caller.
        """
        self.decisions += 1
        answer = self.groups.beside(request) or self.engine.decide(request, ordinal=arrival)
        if isinstance(answer, Unplaced):
            return answer
        placed = self._take(arrival, answer, at_us)
        self._record.decided()
        return placed

    def decide_by_claims(
        self,
        arrival: int,
        request: PodRequest,
        at_us: int,
        limits: Limits,
        given: Callable[[Placement], ByClaims],
    ) -> Placed | Unplaced:
        """
        Decide one Pod that is in no group and has its devices by claims alone; one commit.

        Args:
            limits: the nodes where its claims find nothing.
            given: takes what its claims get on the node that is chosen.
        """
        self.decisions += 1
        answer = self.engine.decide(request, ordinal=arrival, limits=limits)
        if isinstance(answer, Unplaced):
            return answer
        self.engine.reserve(answer)
        self._held[request.uid] = answer
        self._refusals.ask_anew(request.uid)
        digest = self._describe(request, at_us)
        by_claims = given(answer)
        for opening in by_claims.opened:
            uid, attempt = opening.claim_uid, opening.attempt
            bound = log.ClaimBound(claim_uid=uid, attempt=attempt, node_uid=opening.node_uid)
            self.engine.adopt(answer.node, claim_as_observed(opening))
            self._add(events.of_claim(opening, at_us, 0))
            self._add(events.of_claim(bound, at_us, 0))
        for used in by_claims.used:
            self._add(events.of_claim(used, at_us, len(used.consumers)))
        self._add(
            events.placed_aside(
                answer, at_us, digest=digest, arrival=arrival, parts=by_claims.parts
            )
        )
        self._record.decided()
        return Placed(placement=answer, annotations={}, claimed=by_claims.shares)

    def decide_group(
        self,
        members: Mapping[int, PodRequest],
        at_us: int,
        refused: Refused,
        *,
        expected: Sequence[PodRequest] = (),
    ) -> dict[int, Placed | Unplaced]:
        """
        Decide members of one group or gang, by arrival; one answer for each.

        Rule: cli.md, Order; GPU-topology proposal, "main steps". What a plan places is one
        commit, behind the plan itself.

        Args:
            refused: called with a member and its refusal before anything else is decided, to
                record it.
            expected: members that arrive later; a plan keeps places for them.
        """
        self._plan = None
        answers: dict[int, Placed | Unplaced] = {}
        for arrival, request in members.items():
            if arrival in answers:
                continue
            life = self.groups.life_of(request)
            match next_step(life, request.uid, has_group=request.group is not None):
                case MemberAction.TAKE_PLACE:
                    answers[arrival] = self._take_place(arrival, request, at_us)
                case MemberAction.PLACE_ALONE:
                    answers[arrival] = self._decide_alone(arrival, request, at_us, refused)
                case MemberAction.PLAN_GROUP:
                    left = {
                        number: member
                        for number, member in members.items()
                        if number not in answers
                    }
                    answers |= self._plan_group(left, expected, at_us, refused)
        return answers

    def record_refusal(
        self, arrival: int, answer: Unplaced, at_us: int, *, by_claims: bool = False
    ) -> bool:
        """
        Record that a Pod has no place now if its reasons are others than last time; tell whether.

        Rule: design section 8, "Refusals are recorded when the set of reasons changes".

        Args:
            by_claims: what claims find counted, which the log does not tell.
        """
        uid = answer.request.uid
        reasons = frozenset(reason.reason for reason in answer.reasons)
        if not self._refusals.is_news(uid, reasons):
            return False
        self._record_plan()
        number = self._refusals.next_number(uid, reasons)
        digest = self._describe(answer.request, at_us)
        refusal = events.unplaced(
            self._words, answer, number, at_us, digest=digest, arrival=arrival
        )
        self._record.add(events.refused_by_claims(refusal) if by_claims else refusal)
        self._record.decided()
        return True

    def end_of_wait(self, request: PodRequest) -> Unplaced:
        """Return the refusal of a member whose gang missed its deadline."""
        return refused_everywhere(request, past_deadline(request), len(self._nodes))

    def review_group(self, name: str, now_us: int) -> Ended:
        """End a plan that is no longer valid, or the wait of a gang; one commit."""
        ended = self.groups.review(name, now_us)
        for end in ended.events:
            if isinstance(end, log.PodVoided):
                self._add(events.of_pod(end, now_us))
            else:
                number = self.groups.lives[name].drops + 1
                self._add(events.plan_dropped(end, number, now_us))
        if ended.events:
            self._record.decided()
        for uid in ended.voided:
            self._held.pop(uid)
        return ended

    def holds(self, uid: str) -> bool:
        """Tell whether a Pod holds the place that it got here, on a node that is there."""
        return uid in self._held

    def release(self, uid: str, reason: str, at_us: int) -> int:
        """End the reservation that a Pod got here; return its node."""
        placement = self._held.pop(uid)
        self.engine.release(uid)
        event = log.PodReleased(
            pod_uid=uid,
            attempt=self._attempts.get(uid, 1),
            node_uid=placement.node_uid,
            reason=reason,
        )
        self._record_alone(events.of_pod(event, at_us))
        self.groups.released(group_name(placement.request), uid)
        return placement.node

    # --- a cluster that changes ---------------------------------------------------------------

    def change_health(self, change: HealthChange) -> None:
        """Close a device to grants, or open it again."""
        self._changes += 1
        node = self._nodes[change.node]
        self._put(
            change.node,
            node.with_health(change.device_type, change.minor, healthy=change.healthy),
        )
        self._record_alone(events.health_changed(change, node, self._changes))

    def change_node(self, change: NodeChange) -> None:
        """Lose a node, have it back or relabel it; what is held on it stays held."""
        self._changes += 1
        before = self._nodes[change.node]
        health = {device.key: device.healthy for device in before.devices}
        devices = [replace(each, healthy=health[each.key]) for each in change.facts.devices]
        node = replace(change.facts, devices=tuple(devices))
        self._put(change.node, node)
        if node.lost:
            for uid in [uid for uid, held in self._held.items() if held.node == change.node]:
                self._stuck[uid] = self._held.pop(uid)
            lost = events.node_lost(node, change.at_us, reason=change.reason, number=self._changes)
            self._record_alone(lost)
        else:
            self._add(events.inventoried(node, change.at_us, self._changes + 1))
            self._describe_node(change.node, change.at_us)
            self._record.decided()

    def clear(self, change: Clearing) -> None:
        """Give back what Pods held when their node was lost."""
        self._changes += 1
        gone = [uid for uid, stuck in self._stuck.items() if stuck.node == change.node]
        for uid in gone:
            self._stuck.pop(uid)
        gone += [pod.pod_uid for place, pod in self.adopted if place == change.node]
        self.adopted = [(place, pod) for place, pod in self.adopted if place != change.node]
        for uid in gone:
            self.engine.release(uid)
        node = self._nodes[change.node]
        self._record_alone(events.node_cleared(node, change.reason, change.at_us, self._changes))

    def change_pod(self, uid: str) -> None:
        """Let a Pod that holds nothing ask as if it never had, because it is another now."""
        self._refusals.ask_anew(uid)

    # --- inside -------------------------------------------------------------------------------

    def _put(self, number: int, node: NodeFacts) -> None:
        self._nodes[number] = node
        assert self.engine.put_node(node) == number, node.uid

    def _decide_alone(
        self, arrival: int, request: PodRequest, at_us: int, refused: Refused
    ) -> Placed | Unplaced:
        answer = self.decide(arrival, request, at_us)
        if isinstance(answer, Unplaced):
            refused(arrival, answer)
        return answer

    def _plan_group(
        self,
        members: Mapping[int, PodRequest],
        to_come: Sequence[PodRequest],
        at_us: int,
        refused: Refused,
    ) -> dict[int, Placed | Unplaced]:
        requests = list(members.values())
        self.decisions += len(requests)
        planned = self.groups.plan(requests, to_come)
        taken = [placement for placement in planned.placements if placement is not None]
        self._plan = partial(self._add_plan, requests, to_come, taken, at_us)
        answers: dict[int, Placed | Unplaced] = {}
        if planned.refusal is not None:
            for arrival, request in members.items():
                answer = refused_everywhere(request, planned.refusal, len(self._nodes))
                refused(arrival, answer)
                answers[arrival] = answer
            self._plan = None  # nothing new came of it, and nothing later does
            return answers
        here, later = planned.placements[: len(requests)], planned.placements[len(requests) :]
        if taken:
            self._record_plan()
        for placement in (*later, *here):
            if placement is not None:
                self.groups.keep(group_name(requests[0]), placement)
        for arrival, placement in zip(members, here, strict=True):
            if placement is not None:
                answers[arrival] = self._take(arrival, placement, at_us, kept=True)
        if taken:
            self._record.decided()
        for arrival, request in members.items():
            if arrival not in answers:
                answers[arrival] = self._decide_alone(arrival, request, at_us, refused)
        self._plan = None
        return answers

    def _record_plan(self) -> None:
        """Record the plan that was made last, before the first thing that came of it."""
        plan, self._plan = self._plan, None
        if plan is not None:
            plan()

    def _add_plan(
        self,
        waiting: Sequence[PodRequest],
        to_come: Sequence[PodRequest],
        taken: Sequence[Placement],
        at_us: int,
    ) -> None:
        name = group_name(waiting[0])
        members = [
            [events.group_member(request, self._describe(request, at_us)) for request in requests]
            for requests in (waiting, to_come)
        ]
        self._plans[name] += 1
        self._add(
            events.group_planned(
                name,
                taken,
                self._plans[name],
                at_us,
                waiting=members[0],
                to_come=members[1],
                running=self.groups.running(name),
            )
        )

    def _take_place(self, arrival: int, request: PodRequest, at_us: int) -> Placed:
        """Give a member the place that its group's plan kept for it."""
        self.decisions += 1
        placement = self.groups.kept(request)
        assert placement is not None, "every open place is taken in the engine"
        placed = self._take(arrival, placement, at_us, kept=True)
        self._record.decided()
        return placed

    def _take(
        self, arrival: int, placement: Placement, at_us: int, *, kept: bool = False
    ) -> Placed:
        self._record_plan()
        if not kept:
            self.engine.reserve(placement)
        request = placement.request
        is_member = request.gang is not None or request.group is not None
        attempt = 1
        if is_member:
            placement = self.groups.with_seen(placement)
            if placement.shown:
                self.engine.release(request.uid)
                self.engine.reserve(placement)
            attempt = self._attempts[request.uid] = self._attempts.get(request.uid, 0) + 1
        self._held[request.uid] = placement
        self._refusals.ask_anew(request.uid)
        node = self._nodes[placement.node]
        digest = self._describe(request, at_us)
        if placement.counted:
            self._add(
                events.placed_aside(
                    placement, at_us, digest=digest, arrival=arrival, attempt=attempt
                )
            )
            return Placed(placement=placement, annotations={})
        annotations = encode(placement, node=node, now_ns=at_us * 1000, settings=self._settings)
        self._add(
            events.reserved(
                self._words,
                placement,
                annotations,
                at_us,
                digest=digest,
                arrival=arrival,
                attempt=attempt,
            )
        )
        if is_member:
            self.groups.given(placement)
        return Placed(placement=placement, annotations=annotations)

    def _describe_node(self, place: int, at_us: int) -> None:
        """Record what deciding reads of a node beside its inventory, unless it is as it was."""
        node, rank = self._nodes[place], self._rank
        facts = recorded_node(node)
        if self._facts.get(node.uid) != facts:
            self._facts[node.uid] = facts
            self._record.add(
                events.node_described(
                    node,
                    facts,
                    at_us,
                    self._changes + 1,
                    place=place,
                    rank=place if rank is None else rank[place],
                )
            )

    def _describe(self, request: PodRequest, at_us: int) -> str:
        """Record what a Pod asks for, unless one of its kind did before; return its digest."""
        recorded = recorded_request(request)
        digest = request_digest(recorded)
        if digest not in self._described:
            self._described.add(digest)
            self._record.add(events.described(recorded, digest, at_us))
        return digest

    def _record_alone(self, event: NewEvent) -> None:
        self._add(event)
        self._record.decided()

    def _add(self, event: NewEvent) -> None:
        self._record.add(event)
        self.groups.fold(event.event, event.wall_us)


def _adopted(cluster: Cluster) -> list[tuple[int, log.PodObserved]]:
    places = {node.uid: place for place, node in enumerate(cluster.nodes)}
    return [(places[pod.node_uid], pod) for pod in cluster.adopted if pod.node_uid in places]
