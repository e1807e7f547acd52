"""A run on a virtual clock: Pods arrive, hold, leave and wait; devices die and come back."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Sequence
from typing import Final

from ledger.domain.request.requests import PodRequest, gpu_core_percent, group_name
from scheduler.cluster.model import Clearing, HealthChange, NodeChange, RefusedPod
from scheduler.decide.outcome import Unplaced
from scheduler.decide.shapes import asked_by
from tenure.simulate.model import Change, PodChange
from tenure.simulate.simulator import PROGRESS_EVERY, Progress, Simulator

EXPLAIN_EVERY_US: Final = 3600 * 1_000_000
"""Pods that still wait are asked for their reasons again after so much virtual time."""

Unit = int | str
"""What waits together: Pods of one shape (a number), or the members of a group (its name)."""


class VirtualClock:
    """
    Lets a run's time pass, moment by moment.

    At one moment Pods leave first, then devices, nodes and Pods change, then gangs whose deadline
    has come give back what they hold, then waiting Pods are tried in the order of their arrival if
    anything became free, then new Pods are decided. So a Pod that arrives never overtakes one that
    waits for the same, and of two groups the one that waits longer is planned first.

    The members of a gang begin their lifetimes together, once enough of them hold their devices.

    Between two moments nothing becomes free, so who waits is only held against the nodes where
    something did; of Pods alike the oldest speaks for all.
    """

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._arrivals = simulator.run.arrivals
        self._ends: list[tuple[int, int]] = []  # heap of (moment, arrival)
        self._shapes: dict[Hashable, int] = {}
        self._waiting: dict[Unit, list[int]] = {}  # arrivals, oldest first
        self._explained_us: dict[Unit, int] = {}  # when those who wait got their reasons
        self._members = self._members_of(range(len(self._arrivals)))
        self._arrived = 0
        self._unstarted: dict[str, list[int]] = {}  # members of incomplete gangs that hold devices
        self._changes = 0  # grows whenever something is held or given back
        self._answers: dict[Unit, tuple[int, Unplaced]] = {}  # the latest, and when by `_changes`

    def run(self, progress: Progress | None = None) -> None:
        """Let time pass until all have left, or the run's end."""
        arrived = changed = 0
        changes = self._simulator.run.changes
        while (now_us := self._next(arrived, changed)) is not None:
            freed = self._leave(now_us)
            while changed < len(changes) and changes[changed].at_us == now_us:
                self._changes += 1
                freed += self._change(changes[changed], now_us)
                changed += 1
            freed += self._give_up(now_us)
            if freed:
                self._try_again(freed, now_us)
            first = arrived
            while arrived < len(self._arrivals) and self._arrivals[arrived].at_us == now_us:
                arrived += 1
            self._arrived = arrived
            self._arrive(range(first, arrived), now_us)
            if progress is not None and first // PROGRESS_EVERY != arrived // PROGRESS_EVERY:
                progress(arrived)

    def _next(self, arrived: int, changed: int) -> int | None:
        run = self._simulator.run
        moments = [self._ends[0][0]] if self._ends else []
        deadline = self._simulator.groups.next_deadline()
        if deadline is not None:
            moments.append(deadline)
        if arrived < len(self._arrivals):
            moments.append(self._arrivals[arrived].at_us)
        if changed < len(run.changes):
            moments.append(run.changes[changed].at_us)
        moment = min(moments, default=None)
        return None if moment is None or (run.end_us and moment >= run.end_us) else moment

    def _leave(self, now_us: int) -> list[int]:
        freed: list[int] = []
        while self._ends and self._ends[0][0] == now_us:
            _, index = heapq.heappop(self._ends)
            if not self._simulator.holds(index):
                continue  # it was deleted before, or its node was lost
            freed.append(self._simulator.release(index, now_us))
            self._changes += 1
        return freed

    def _change(self, change: Change, now_us: int) -> list[int]:
        match change:
            case HealthChange():
                self._simulator.core.change_health(change)
                return self._after_change(change.node, now_us, opened=change.healthy)
            case NodeChange():
                self._simulator.core.change_node(change)
                self._forget_unstarted()
                return self._after_change(change.node, now_us, opened=not change.facts.lost)
            case Clearing():
                self._simulator.core.clear(change)
                return [change.node]
            case PodChange():
                return self._change_pod(change, now_us)

    def _after_change(self, node: int, now_us: int, *, opened: bool) -> list[int]:
        """Drop the plans that a change ends; return the nodes where something became free."""
        freed = [node] if opened else []
        for group in self._simulator.groups.planned_on(node):
            freed += self._review(group, now_us)
        return freed

    def _change_pod(self, change: PodChange, now_us: int) -> list[int]:
        """
        Let a Pod be gone, or ask anew under its new labels unless it holds its place already.

        What it waited with, and a plan that names it, are as if it had never been there.
        """
        simulator, index = self._simulator, change.arrival
        freed: list[int] = []
        if simulator.holds(index):
            if change.pod is None:
                freed.append(simulator.release(index, now_us, change.reason))
                self._forget_unstarted()
            return freed
        waited = self._stop_waiting(index)
        left = simulator.change_pod(change)
        self._members = self._members_of(range(len(self._arrivals)))
        if left in simulator.groups.lives:
            freed += self._review(left, now_us)
        if change.pod is None:
            simulator.note_gone(index)
        elif waited:
            self._arrive([index], now_us)
        return freed

    def _forget_unstarted(self) -> None:
        for holding in self._unstarted.values():
            holding[:] = filter(self._simulator.holds, holding)

    def _stop_waiting(self, index: int) -> bool:
        """Tell whether the arrival waited; it does no more."""
        for unit, waiting in list(self._waiting.items()):
            if index in waiting:
                self._keep_waiting(unit, [other for other in waiting if other != index])
                return True
        return False

    def _give_up(self, now_us: int) -> list[int]:
        """End the wait of gangs whose time is over; return the nodes where they were."""
        freed: list[int] = []
        for group in self._simulator.groups.due(now_us):
            freed += self._review(group, now_us)
        return freed

    def _review(self, group: str, now_us: int) -> tuple[int, ...]:
        """End what is over of a group's plan and wait; members that lost their place wait on."""
        simulator = self._simulator
        ended = simulator.review_group(group, now_us)
        self._changes += bool(ended.events)
        if ended.is_deadline:
            voided = self._unstarted.pop(group, [])
            for index in voided:
                simulator.outcomes[index] = simulator.end_of_wait(index)
            waiting = sorted([*self._waiting.get(group, []), *voided])
            self._keep_waiting(group, waiting)
            self._explained_us[group] = now_us
            for index in waiting:
                self._simulator.record_refusal(index, simulator.end_of_wait(index), now_us)
        return ended.nodes

    def _arrive(self, indices: Sequence[int], now_us: int) -> None:
        """Decide one moment's Pods in order, a group at its first member (cli.md, Order)."""
        for group, members in self._members_of(indices).items():
            self._waiting[group] = [*self._waiting.get(group, []), *members]
        tried: set[str] = set()
        for index in indices:
            pod = self._simulator.pods[index]
            if pod is None:
                continue
            if isinstance(pod, RefusedPod):
                self._simulator.refuse(index, pod)
                continue
            self._simulator.tally.asked_core_percent += gpu_core_percent(pod)
            group = group_name(pod)
            if not group:
                self._arrive_alone(index, pod, now_us)
            elif group not in tried:
                tried.add(group)
                self._try_group(group, now_us)

    def _arrive_alone(self, index: int, request: PodRequest, now_us: int) -> None:
        shape = self._shapes.setdefault(asked_by(request), len(self._shapes))
        known = self._answers.get(shape)
        if known is not None and known[0] == self._changes:  # nothing changed since it failed
            answer: object = known[1]
        else:
            answer = self._decide(index, shape, now_us)
        if isinstance(answer, Unplaced):
            self._simulator.record_refusal(index, answer, now_us)
            self._explained_us.setdefault(shape, now_us)
            self._waiting.setdefault(shape, []).append(index)

    def _try_again(self, freed: Sequence[int], now_us: int) -> None:
        nodes = list(dict.fromkeys(freed))
        heads = [(indices[0], unit) for unit, indices in self._waiting.items()]
        heapq.heapify(heads)
        while heads:
            _, unit = heapq.heappop(heads)
            if isinstance(unit, str):
                if self._is_due(unit, now_us) or self._has_room(unit, nodes):
                    self._try_group(unit, now_us)
            elif self._try_oldest(unit, nodes, now_us):
                left = self._waiting.get(unit)
                if left:
                    heapq.heappush(heads, (left[0], unit))

    def _try_oldest(self, shape: int, nodes: Sequence[int], now_us: int) -> bool:
        due = self._is_due(shape, now_us)
        if not due and not self._has_room(shape, nodes):
            return False
        indices = self._waiting[shape]
        answer = self._decide(indices[0], shape, now_us)
        if not isinstance(answer, Unplaced):
            self._keep_waiting(shape, indices[1:])
            return True
        if due:
            self._explained_us[shape] = now_us
            for index in indices:
                self._simulator.record_refusal(index, answer, now_us)
        return False

    def _try_group(self, group: str, now_us: int) -> None:
        simulator, indices = self._simulator, self._waiting[group]
        expected = [index for index in self._members[group] if index >= self._arrived]
        answers = simulator.decide_group(
            indices,
            now_us,
            lambda index, answer: self._simulator.record_refusal(index, answer, now_us),
            expected=expected,
        )
        self._explained_us[group] = now_us
        left: list[int] = []
        holding = self._unstarted.pop(group, [])
        for index, answer in zip(indices, answers, strict=True):
            if isinstance(answer, Unplaced):
                left.append(index)
            else:
                self._changes += 1
                holding.append(index)
        if simulator.groups.is_complete(group):
            for index in holding:
                self._holds(index, now_us)
        elif holding:
            self._unstarted[group] = holding
        self._keep_waiting(group, left)

    def _decide(self, index: int, shape: int, now_us: int) -> object:
        answer = self._simulator.decide(index, now_us)
        if isinstance(answer, Unplaced):
            self._answers[shape] = (self._changes, answer)
        else:
            self._holds(index, now_us)
        return answer

    def _keep_waiting(self, unit: Unit, left: list[int]) -> None:
        if left:
            self._waiting[unit] = left
        else:
            self._waiting.pop(unit, None)
            self._explained_us.pop(unit, None)

    def _holds(self, index: int, now_us: int) -> None:
        self._changes += 1
        lifetime_us = self._arrivals[index].lifetime_us
        if lifetime_us is not None:
            heapq.heappush(self._ends, (now_us + lifetime_us, index))

    def _is_due(self, unit: Unit, now_us: int) -> bool:
        return now_us - self._explained_us[unit] >= EXPLAIN_EVERY_US

    def _has_room(self, unit: Unit, nodes: Sequence[int]) -> bool:
        indices = self._waiting[unit] if isinstance(unit, str) else self._waiting[unit][:1]
        engine = self._simulator.engine
        return any(engine.has_room(self._simulator.request(index), nodes) for index in indices)

    def _members_of(self, indices: Iterable[int]) -> dict[str, list[int]]:
        members: dict[str, list[int]] = {}
        for index in indices:
            pod = self._simulator.pods[index]
            if isinstance(pod, PodRequest) and (name := group_name(pod)):
                members.setdefault(name, []).append(index)
        return members
