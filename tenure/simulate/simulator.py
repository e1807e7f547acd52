"""One run at work: the engine's arrays and the recorder move together, decision by decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ledger.domain.devices import GPU
from ledger.domain.log.events import PodObserved, PodVoided
from ledger.domain.log.machines import contradictions
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.recorded_node import RecordedNode, recorded_node
from ledger.domain.log.recorded_request import recorded_request, request_digest
from ledger.domain.log.workload import Workload
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest, group_name
from scheduler.cluster.model import HealthChange, Pod, RefusedPod
from scheduler.decide.answers import encode
from scheduler.decide.engine import Engine
from scheduler.decide.group.life import Step, next_step
from scheduler.decide.nodes.accounts import granting_nodes, in_order_of_registration
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.settings import SchedulingSettings
from scheduler.record import events
from scheduler.record.events import Words
from scheduler.record.grouping import Ended, Grouping, past_deadline, refused_everywhere
from tenure.simulate.model import Clearing, NodeChange, PodChange, Run
from tenure.simulate.recorder import Recorder
from tenure.simulate.results import Outcome, Placed, Tally

NEVER_CAME: Final = "deleted before it arrived"

Progress = Callable[[int], None]
"""Called with the number of arrivals dealt with."""

Refused = Callable[[int, Unplaced], None]
"""Called with an arrival and why it has no place."""


class Simulator:
    """
    Decides the Pods of a run and records what was decided.

    Attributes:
        pods: per arrival, as it is now; None when it was deleted.
        outcomes: per arrival, the latest; a place once had stays.
        groups: the groups and gangs of the run.
        keep_nodes: keep why every single node refused; costs memory, and only JSON shows it.
    """

    def __init__(
        self,
        run: Run,
        *,
        engine: Engine,
        recorder: Recorder,
        settings: SchedulingSettings,
        words: Words,
        keep_nodes: bool,
    ) -> None:
        self.run = run
        self.engine = engine
        elsewhere = Counter(pod.group for pod in run.adopted if pod.group and not pod.node_uid)
        self.groups = Grouping(run.nodes, engine, elsewhere)
        self.pods: list[Pod | None] = [arrival.pod for arrival in run.arrivals]
        self.tally = Tally()
        self.outcomes: list[Outcome | None] = [None] * len(run.arrivals)
        self._recorder = recorder
        self._settings = settings
        self._words = words
        self._keep_nodes = keep_nodes
        self._refusals: dict[str, int] = {}  # Pod UID -> refusals recorded
        self._plans: Counter[str] = Counter()  # group -> plans recorded
        self._plan: Callable[[], None] | None = None  # records the plan that was made last
        self._attempts: dict[str, int] = {}  # Pod UID -> reservations, of those with several
        self._described: set[str] = set()  # digests of requests
        self._facts: dict[str, RecordedNode] = {}  # UID of a node -> its newest description
        self._nodes = list(run.nodes)
        self._held: dict[str, Placement] = {}  # Pod UID -> what it holds, of those placed here
        self._stuck: dict[str, Placement] = {}  # likewise, since its node was lost
        self._adopted = self._adopted_first()
        self._changes = 0  # of nodes and their devices

    def begin(self, settings: str, workload: Workload) -> tuple[str, ...]:
        """
        Record settings, inventory and what running Pods hold; return what contradicts itself.

        `settings` is the canonical JSON that the first event carries, `workload` the engine's.
        """
        start_us = self.run.start_us
        self._recorder.add(events.settings_changed(self._words, settings, start_us))
        self._recorder.add(events.workload_described(workload, start_us))
        nodes = self.run.nodes
        granting = granting_nodes(nodes)
        # What a machine has is what the Node says that gives it: that Node's word comes last.
        for last in (False, True):
            for number, node in enumerate(nodes):
                if (granting[number] == number) is last:
                    self._recorder.add(events.inventoried(node, start_us))
                    self._describe_node(number, start_us)
        conflicts = [*self.run.conflicts]
        claims = [nodes[number] for number in in_order_of_registration(nodes)]
        for found in contradictions(claims):
            conflicts.append(str(found))
            self._recorder.add(events.drift_found(found, start_us))
        for request in self.run.running_requests:
            self._describe(request, start_us)
        for place, pod in self._adopted:
            conflicts += self.engine.adopt(place, pod)
            self._use(place, [share.minor for share in pod.shares if share.device_type == GPU])
            self._add(events.observed(pod, start_us))
        for node in nodes:
            if node.lost:
                self._recorder.add(events.node_lost(node, start_us))
        self._recorder.flush()
        return tuple(conflicts)

    def _adopted_first(self) -> list[tuple[int, PodObserved]]:
        places = {node.uid: place for place, node in enumerate(self.run.nodes)}
        return [(places[pod.node_uid], pod) for pod in self.run.adopted if pod.node_uid in places]

    def refuse(self, index: int, pod: RefusedPod) -> None:
        """Record a Pod that breaks rules of ours."""
        self.outcomes[index] = pod
        self._recorder.add(events.broken_rules(self._words, pod, self.run.arrivals[index].at_us))
        self._recorder.decided()

    def decide(self, index: int, request: PodRequest, at_us: int) -> Placed | Unplaced:
        """
        Decide one Pod, beside its group if it has one. A place is taken and recorded.

        A refusal is left to the caller.
        """
        self.tally.decisions += 1
        answer = self.groups.beside(request) or self.engine.decide(request, ordinal=index)
        if isinstance(answer, Unplaced):
            return answer
        placed = self._take(index, answer, at_us)
        self._recorder.decided()
        return placed

    def decide_group(
        self,
        indices: Sequence[int],
        at_us: int,
        refused: Refused,
        *,
        expected: Sequence[int] = (),
    ) -> list[Placed | Unplaced]:
        """
        Decide members of one group or gang; one answer per index, same order.

        Rule: cli.md, Order; GPU-topology proposal, "main steps". What a plan places is one
        commit, behind the plan itself.

        Args:
            refused: called with a member and its refusal before anything else is decided, to
                record it.
            expected: members that arrive later; a plan keeps places for them.
        """
        self._plan = None
        answers: dict[int, Placed | Unplaced] = {}
        for index in indices:
            if index in answers:
                continue
            request = self._request(index)
            life = self.groups.life_of(request)
            match next_step(life, request.uid, has_group=request.group is not None):
                case Step.TAKE_PLACE:
                    answers[index] = self._take_place(index, at_us)
                case Step.PLACE_ALONE:
                    answers[index] = self._decide_alone(index, request, at_us, refused)
                case Step.PLAN_GROUP:
                    left = [other for other in indices if other not in answers]
                    answers |= self._plan_group(left, expected, at_us, refused)
        return [answers[index] for index in indices]

    def end_of_wait(self, index: int) -> Unplaced:
        """Return the refusal of a member whose gang missed its deadline."""
        request = self._request(index)
        return refused_everywhere(request, past_deadline(request), len(self.run.nodes))

    def review_group(self, name: str, now_us: int) -> Ended:
        """End a plan that is no longer valid, or the wait of a gang; one commit."""
        ended = self.groups.review(name, now_us)
        for end in ended.events:
            if isinstance(end, PodVoided):
                self._add(events.voided(end, now_us))
            else:
                number = self.groups.lives[name].drops + 1
                self._add(events.plan_dropped(end, number, now_us))
        if ended.events:
            self._recorder.decided()
        self.tally.placed -= len(ended.voided)
        for uid in ended.voided:
            self._held.pop(uid)
        return ended

    def record_refusal(self, index: int, answer: Unplaced, at_us: int) -> None:
        """Record that a Pod has no place now."""
        self.outcomes[index] = answer if self._keep_nodes else replace(answer, nodes=None)
        self._record_plan()
        number = self._refusals[answer.request.uid] = self.refusals_of(answer.request.uid) + 1
        digest = self._describe(answer.request, at_us)
        self._recorder.add(
            events.unplaced(self._words, answer, number, at_us, digest=digest, arrival=index)
        )
        self._recorder.decided()

    def refusals_of(self, uid: str) -> int:
        """Return how many refusals of this Pod are recorded."""
        return self._refusals.get(uid, 0)

    def holds(self, index: int) -> bool:
        """Tell whether an arrival holds its place now, on a node that is there."""
        placed = self.outcomes[index]
        return isinstance(placed, Placed) and placed.placement.request.uid in self._held

    def release(self, index: int, at_us: int, reason: str = "") -> int:
        """End the reservation that an arrival got; return its node."""
        placed = self.outcomes[index]
        assert isinstance(placed, Placed), index
        request = placed.placement.request
        self.engine.release(request.uid)
        self._held.pop(request.uid)
        attempt = self._attempts.get(request.uid, 1)
        reason = reason or self.run.arrivals[index].end_reason
        self.record(events.released(placed.placement, reason, at_us, attempt=attempt))
        self.groups.released(group_name(request), request.uid)
        return placed.placement.node

    def change_health(self, change: HealthChange) -> None:
        """Close a device to grants, or open it again."""
        self._changes += 1
        node = self._nodes[change.node]
        self._put(
            change.node,
            node.with_health(change.device_type, change.minor, healthy=change.healthy),
        )
        self.record(events.health_changed(change, node, self._changes))

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
            self.record(lost)
        else:
            self._add(events.inventoried(node, change.at_us, self._changes + 1))
            self._describe_node(change.node, change.at_us)
            self._recorder.decided()

    def _put(self, number: int, node: NodeFacts) -> None:
        self._nodes[number] = node
        assert self.engine.put_node(node) == number, node.uid

    def clear(self, change: Clearing) -> None:
        """Give back what Pods held when their node was lost."""
        self._changes += 1
        gone = [uid for uid, stuck in self._stuck.items() if stuck.node == change.node]
        for uid in gone:
            self._stuck.pop(uid)
        gone += [pod.pod_uid for place, pod in self._adopted if place == change.node]
        self._adopted = [(place, pod) for place, pod in self._adopted if place != change.node]
        for uid in gone:
            self.engine.release(uid)
        node = self._nodes[change.node]
        self.record(events.node_cleared(node, change.reason, change.at_us, self._changes))

    def change_pod(self, change: PodChange) -> str:
        """Take a Pod as it is now; return the name of the group that it left, empty without."""
        before, after = self.pods[change.arrival], change.pod
        self.pods[change.arrival] = after
        old, new = (
            group_name(pod) if isinstance(pod, PodRequest) else "" for pod in (before, after)
        )
        if not isinstance(before, PodRequest) or not old or old == new:
            return ""
        self.groups.left(before, None if after is None else new)
        return old

    def note_gone(self, index: int) -> None:
        """Let a Pod that was deleted before it arrived have an outcome."""
        pod = self.run.arrivals[index].pod
        if isinstance(pod, PodRequest) and self.outcomes[index] is None:
            self.outcomes[index] = Unplaced(request=pod, message=NEVER_CAME)
        elif isinstance(pod, RefusedPod):
            self.outcomes[index] = pod

    def record(self, event: NewEvent) -> None:
        """Record an event that is a decision of its own."""
        self._add(event)
        self._recorder.decided()

    def finish(self) -> Sequence[Outcome]:
        """Commit what waits; return one outcome per arrival."""
        self._recorder.finish()
        outcomes = [outcome for outcome in self.outcomes if outcome is not None]
        assert len(outcomes) == len(self.outcomes), "every arrival has an outcome"
        self.tally.failed = len(outcomes) - self.tally.placed
        return outcomes

    def _request(self, index: int) -> PodRequest:
        pod = self.pods[index]
        assert isinstance(pod, PodRequest), pod
        return pod

    def _decide_alone(
        self, index: int, request: PodRequest, at_us: int, refused: Refused
    ) -> Placed | Unplaced:
        answer = self.decide(index, request, at_us)
        if isinstance(answer, Unplaced):
            refused(index, answer)
        return answer

    def _plan_group(
        self, indices: Sequence[int], expected: Sequence[int], at_us: int, refused: Refused
    ) -> dict[int, Placed | Unplaced]:
        requests = [self._request(index) for index in indices]
        to_come = [self._request(index) for index in expected]
        self.tally.decisions += len(requests)
        planned = self.groups.plan(requests, to_come)
        taken = [placement for placement in planned.placements if placement is not None]
        self._plan = partial(self._add_plan, requests, to_come, taken, at_us)
        answers: dict[int, Placed | Unplaced] = {}
        if planned.refusal is not None:
            for index, request in zip(indices, requests, strict=True):
                answer = refused_everywhere(request, planned.refusal, len(self.run.nodes))
                refused(index, answer)
                answers[index] = answer
            self._plan = None  # nothing new came of it, and nothing later does
            return answers
        here, later = planned.placements[: len(indices)], planned.placements[len(indices) :]
        name = group_name(requests[0])
        if taken:
            self._record_plan()
        for placement in later:
            if placement is not None:
                self.groups.keep(name, placement)
        for index, placement in zip(indices, here, strict=True):
            if placement is not None:
                answers[index] = self._take(index, placement, at_us)
        if taken:
            self._recorder.decided()
        for index, request in zip(indices, requests, strict=True):
            if index not in answers:
                answers[index] = self._decide_alone(index, request, at_us, refused)
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

    def _take_place(self, index: int, at_us: int) -> Placed:
        """Give a member the place that its group's plan kept for it."""
        self.tally.decisions += 1
        placement = self.groups.kept(self._request(index))
        assert placement is not None, "every open place is taken in the engine"
        placed = self._take(index, placement, at_us, kept=True)
        self._recorder.decided()
        return placed

    def _take(self, index: int, placement: Placement, at_us: int, *, kept: bool = False) -> Placed:
        self._record_plan()
        if not kept:
            self.engine.reserve(placement)
        request = placement.request
        attempt = 1
        if request.gang is not None or request.group is not None:
            placement = self.groups.with_seen(placement)
            attempt = self._attempts[request.uid] = self._attempts.get(request.uid, 0) + 1
        self._held[request.uid] = placement
        node = self._nodes[placement.node]
        digest = self._describe(request, at_us)
        annotations = encode(placement, node=node, now_ns=at_us * 1000, settings=self._settings)
        self._add(
            events.reserved(
                self._words,
                placement,
                annotations,
                at_us,
                digest=digest,
                arrival=index,
                attempt=attempt,
            )
        )
        placed = Placed(placement=placement, annotations=annotations)
        self.outcomes[index] = placed
        self.tally.placed += 1
        self._use(placement.node, [s.minor for s in placement.shares if s.device_type == GPU])
        if request.gang is not None or request.group is not None:
            self.groups.given(placement)
        return placed

    def _describe_node(self, place: int, at_us: int) -> None:
        """Record what deciding reads of a node beside its inventory, unless it is as it was."""
        node, rank = self._nodes[place], self.run.rank
        facts = recorded_node(node)
        if self._facts.get(node.uid) != facts:
            self._facts[node.uid] = facts
            self._recorder.add(
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
            self._recorder.add(events.described(recorded, digest, at_us))
        return digest

    def _add(self, event: NewEvent) -> None:
        self._recorder.add(event)
        self.groups.fold(event.event, event.wall_us)

    def _use(self, node: int, minors: Sequence[int]) -> None:
        self.tally.nodes_used.add(node)
        for minor in minors:
            self.tally.cards_used.add((node, minor))
