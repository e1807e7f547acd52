"""A run on a virtual clock: Pods arrive, hold, leave and wait; devices die and come back."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from ledger.domain.requests import PodRequest
from scheduler.decide.outcome import Unplaced
from tenure.simulate.events import gpu_core_percent, group_name
from tenure.simulate.model import RefusedPod
from tenure.simulate.simulator import Progress, Simulator
from tenure.simulate.untimed import PROGRESS_EVERY

REFUSALS_PER_POD_MAX: Final = 16
"""Changes of the reasons that are recorded for one Pod (design section 8, bounded)."""

EXPLAIN_EVERY_US: Final = 3600 * 1_000_000
"""A Pod that still waits is asked for its reasons again after so much virtual time."""


class VirtualClock:
    """
    Lets a run's time pass, moment by moment.

    At one moment Pods leave first, then devices change, then waiting Pods are tried in the order
    of their arrival if anything became free, then new Pods are decided. So a Pod that arrives
    never overtakes one that waits for the same.
    """

    def __init__(self, simulator: Simulator) -> None:
        self._simulator = simulator
        self._arrivals = simulator.run.arrivals
        self._ends: list[tuple[int, int]] = []  # heap of (moment, arrival)
        self._waiting: dict[str, list[int]] = {}  # one Pod or group -> arrivals, oldest first
        self._reasons: dict[int, frozenset[str]] = {}  # waiting arrival -> why, as recorded
        self._shapes: dict[tuple[object, ...], int] = {}
        self._explained: dict[int, int] = {}  # waiting arrival -> when it got its reasons
        # Shapes that failed since something was freed, with the reasons where they were asked for.
        self._hopeless: dict[int, Unplaced | None] = {}

    def run(self, progress: Progress | None = None) -> None:
        """Let time pass until the last event, the end of the last Pod among them."""
        arrived, changed = 0, 0
        changes = self._simulator.run.health_changes
        while (now_us := self._next(arrived, changed)) is not None:
            freed = self._leave(now_us)
            while changed < len(changes) and changes[changed].at_us == now_us:
                freed |= changes[changed].healthy
                self._simulator.change_health(changes[changed])
                changed += 1
            if freed:
                self._try_again(now_us)
            first = arrived
            while arrived < len(self._arrivals) and self._arrivals[arrived].at_us == now_us:
                arrived += 1
            self._arrive(range(first, arrived), now_us)
            if progress is not None and first // PROGRESS_EVERY != arrived // PROGRESS_EVERY:
                progress(arrived)

    def _next(self, arrived: int, changed: int) -> int | None:
        changes = self._simulator.run.health_changes
        moments = [self._ends[0][0]] if self._ends else []
        if arrived < len(self._arrivals):
            moments.append(self._arrivals[arrived].at_us)
        if changed < len(changes):
            moments.append(changes[changed].at_us)
        moment = min(moments, default=None)
        end_us = self._simulator.run.end_us
        return None if moment is None or (end_us is not None and moment >= end_us) else moment

    def _leave(self, now_us: int) -> bool:
        freed = False
        while self._ends and self._ends[0][0] == now_us:
            _, index = heapq.heappop(self._ends)
            self._simulator.release(index, now_us)
            freed = True
        return freed

    def _arrive(self, indices: Iterable[int], now_us: int) -> None:
        """Decide the Pods of one moment; members of a group that come together, together."""
        units: dict[str, None] = {}
        for index in indices:
            pod = self._arrivals[index].pod
            if isinstance(pod, RefusedPod):
                self._simulator.refuse(index, pod)
                continue
            self._simulator.tally.asked_core_percent += gpu_core_percent(pod)
            unit = group_name(pod) or f"pod/{index}"
            self._waiting.setdefault(unit, []).append(index)
            units[unit] = None
        for unit in units:
            self._try_unit(unit, now_us)

    def _try_again(self, now_us: int) -> None:
        """Try every waiting Pod in order. Of equal requests the first that fails speaks for all."""
        self._hopeless.clear()
        for unit in list(self._waiting):
            self._try_unit(unit, now_us)

    def _try_unit(self, unit: str, now_us: int) -> None:
        indices = self._waiting[unit]
        if unit.startswith("pod/"):
            left = [index for index in indices if not self._try_pod(index, now_us)]
        else:
            left = self._try_group(unit, indices, now_us)
        if left:
            self._waiting[unit] = left
        else:
            del self._waiting[unit]

    def _try_group(self, unit: str, indices: list[int], now_us: int) -> list[int]:
        """Return the members that still wait. A plan is dear: without room for one, none is made."""
        if not any(self._is_due(index, now_us) or self._has_room(index) for index in indices):
            return indices
        answers = self._simulator.decide_group(unit, indices, now_us)
        left: list[int] = []
        for index, answer in zip(indices, answers, strict=True):
            if isinstance(answer, Unplaced):
                self._refused(index, answer, now_us)
                left.append(index)
            else:
                self._holds(index, now_us)
        return left

    def _try_pod(self, index: int, now_us: int) -> bool:
        """Tell whether the Pod got a place. Reasons are only asked for when they are due."""
        request = self._request(index)
        shape = self._shape_of(request)
        due = self._is_due(index, now_us)
        if shape not in self._hopeless and not due and not self._has_room(index):
            self._hopeless[shape] = None
        if shape in self._hopeless:
            known = self._hopeless[shape]
            if not due:
                return False
            if known is not None:
                self._refused(index, known, now_us)
                return False
        answer = self._simulator.decide(index, request, now_us)
        if isinstance(answer, Unplaced):
            self._hopeless[shape] = answer
            self._refused(index, answer, now_us)
            return False
        self._holds(index, now_us)
        return True

    def _is_due(self, index: int, now_us: int) -> bool:
        explained_us = self._explained.get(index)
        return explained_us is None or now_us - explained_us >= EXPLAIN_EVERY_US

    def _has_room(self, index: int) -> bool:
        """Tell whether some node may take the Pod: one vector test, without reasons."""
        return len(self._simulator.engine.candidates(self._request(index))) > 0

    def _holds(self, index: int, now_us: int) -> None:
        self._reasons.pop(index, None)
        self._explained.pop(index, None)
        lifetime_us = self._arrivals[index].lifetime_us
        if lifetime_us is not None:
            heapq.heappush(self._ends, (now_us + lifetime_us, index))

    def _refused(self, index: int, answer: Unplaced, now_us: int) -> None:
        """
        Record a refusal if its reasons are others than last time.

        Rule: design section 8, "Refusals are recorded when the set of reasons changes".
        """
        self._explained[index] = now_us
        reasons = frozenset(reason.reason for reason in answer.reasons)
        if self._reasons.get(index) == reasons:
            return
        request = self._request(index)
        if self._simulator.refusals_of(request.uid) < REFUSALS_PER_POD_MAX:
            self._reasons[index] = reasons
            self._simulator.record_refusal(index, replace(answer, request=request), now_us)

    def _request(self, index: int) -> PodRequest:
        request = self._arrivals[index].pod
        assert isinstance(request, PodRequest), request
        return request

    def _shape_of(self, request: PodRequest) -> int:
        """Return a number that requests share when a decision can't tell them apart."""
        key = (
            request.cpu_milli,
            request.memory_bytes,
            request.dialect,
            request.devices,
            request.cpuset,
            request.placement,
            request.mgpu_policy,
            request.mgpu_multi,
            request.gpushare_units,
        )
        return self._shapes.setdefault(key, len(self._shapes))
