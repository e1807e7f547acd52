"""One run at work: who arrives, what each arrival came to, and the sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from ledger.domain.devices import GPU, DeviceShare
from ledger.domain.log.workload import Workload
from ledger.domain.request.requests import PodRequest, gpu_core_percent, group_name
from scheduler.cluster.model import Pod, RefusedPod
from scheduler.cluster.rebuilt import held_as_placed
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Unfit, Unplaced
from scheduler.decide.settings import SchedulingSettings
from scheduler.record.core import Decisions, Placed, Refused
from scheduler.record.events import DecidedBy
from scheduler.record.grouping import Ended, refused_everywhere
from tenure.simulate.claiming import Claiming, holding_of
from tenure.simulate.model import PodChange, Run
from tenure.simulate.recorder import Recorder
from tenure.simulate.results import Outcome, Tally
from tenure.simulate.vgpus import Vgpus

NEVER_CAME: Final = "deleted before it arrived"

Progress = Callable[[int], None]
"""Called with the number of arrivals dealt with."""


class Simulator:
    """
    Lets the arrivals of a run be decided, and keeps what they came to.

    Attributes:
        pods: per arrival, as it is now; None when it was deleted.
        outcomes: per arrival, the latest; a place once had stays.
        keep_nodes: keep why every single node refused; costs memory, and only JSON shows it.
    """

    def __init__(
        self,
        run: Run,
        *,
        engine: Engine,
        recorder: Recorder,
        settings: SchedulingSettings,
        words: DecidedBy,
        keep_nodes: bool,
    ) -> None:
        self.run = run
        self.core = Decisions(
            run, engine=engine, record=recorder, settings=settings, words=words, rank=run.rank
        )
        self.engine, self.groups = engine, self.core.groups
        names = [node.name for node in run.nodes]
        self._claiming = Claiming(run.claims_there, names, run.claims, words)
        self._vgpus = Vgpus(run.nodes, run.adopted)
        self.pods: list[Pod | None] = [arrival.pod for arrival in run.arrivals]
        self.tally = Tally()
        self.outcomes: list[Outcome | None] = [None] * len(run.arrivals)
        self._recorder = recorder
        self._keep_nodes = keep_nodes

    def begin(self, settings: str, workload: Workload) -> tuple[str, ...]:
        """
        Record what is there before the first decision; return what contradicts itself.

        `settings` is the canonical JSON that the first event carries, `workload` the engine's.
        """
        conflicts = self.core.begin(settings, workload, self.run.start_us)
        for place, pod in self.core.adopted:
            self._claiming.note(place, holding_of(pod))
            self._use(place, pod.shares, pod.counted.get(GPU, 0))
        self._recorder.flush()
        return (*map(str, self.run.conflicts), *conflicts)

    def refuse(self, index: int, pod: RefusedPod) -> None:
        """Record a Pod that breaks rules of ours."""
        self.outcomes[index] = pod
        self.core.refuse(pod, self.run.arrivals[index].at_us)

    def decide(self, index: int, at_us: int) -> Placed | Unplaced:
        """Decide one Pod, as `Decisions.decide`."""
        request = self.request(index)
        asked = self.run.claims_there.asked.get(request.uid)
        vgpus = self.run.vgpus.get(request.uid)
        if vgpus:
            take = partial(self._vgpus.take, vgpus)
            limits = self._vgpus.limits(vgpus)
            answer = self.core.decide_by_claims(index, request, at_us, limits, take)
            if isinstance(answer, Unplaced):
                answer = replace(answer, never=self._vgpus.never(vgpus) or answer.never)
        elif asked is None:
            answer = self.core.decide(index, request, at_us)
        elif asked.missing:
            nodes = len(self.run.nodes)
            answer = refused_everywhere(request, Unfit(reason=asked.missing), nodes)
        else:
            answer = self.core.decide_by_claims(
                index,
                request,
                at_us,
                self._claiming.limits(asked.claims),
                partial(self._claiming.take, asked.claims),
            )
        self._note(index, answer)
        return answer

    def decide_group(
        self,
        indices: Sequence[int],
        at_us: int,
        refused: Refused,
        *,
        expected: Sequence[int] = (),
    ) -> list[Placed | Unplaced]:
        """Decide members of one group or gang, as `Decisions.decide_group`; one per index."""
        answers = self.core.decide_group(
            {index: self.request(index) for index in indices},
            at_us,
            refused,
            expected=[self.request(index) for index in expected],
        )
        for index, answer in answers.items():
            self._note(index, answer)
        return [answers[index] for index in indices]

    def end_of_wait(self, index: int) -> Unplaced:
        """Return the refusal of a member whose gang missed its deadline."""
        return self.core.end_of_wait(self.request(index))

    def review_group(self, name: str, now_us: int) -> Ended:
        """End a plan that is no longer valid, or the wait of a gang."""
        ended = self.core.review_group(name, now_us)
        self.tally.placed -= len(ended.voided)
        return ended

    def record_refusal(self, index: int, answer: Unplaced, at_us: int) -> None:
        """Record that a Pod has no place now, unless it waits for the same reasons as before."""
        answer = replace(answer, request=self.request(index))
        by_claims = answer.request.uid in {*self.run.claims_there.asked, *self.run.vgpus}
        if self.core.record_refusal(index, answer, at_us, by_claims=by_claims):
            self.outcomes[index] = answer if self._keep_nodes else replace(answer, nodes=None)

    def holds(self, index: int) -> bool:
        """Tell whether an arrival holds its place now, on a node that is there."""
        placed = self.outcomes[index]
        return isinstance(placed, Placed) and self.core.holds(placed.placement.request.uid)

    def release(self, index: int, at_us: int, reason: str = "") -> int:
        """End the reservation that an arrival got; return its node."""
        placed = self.outcomes[index]
        assert isinstance(placed, Placed), index
        reason = reason or self.run.arrivals[index].end_reason
        return self.core.release(placed.placement.request.uid, reason, at_us)

    def change_pod(self, change: PodChange) -> str:
        """Take a Pod as it is now; return the name of the group that it left, empty without."""
        before, after = self.pods[change.arrival], change.pod
        self.pods[change.arrival] = after
        if not isinstance(before, PodRequest):
            return ""
        self.core.change_pod(before.uid)
        old, new = group_name(before), group_name(after) if isinstance(after, PodRequest) else ""
        if new:
            self.groups.came(new, before.uid)
        if not old or old == new:
            return ""
        self.groups.left(old, before.uid, None if after is None else new)
        return old

    def note_gone(self, index: int) -> None:
        """Let a Pod that was deleted before it arrived have an outcome."""
        pod = self.run.arrivals[index].pod
        if isinstance(pod, PodRequest) and self.outcomes[index] is None:
            self.outcomes[index] = Unplaced(request=pod, message=NEVER_CAME)
        elif isinstance(pod, RefusedPod):
            self.outcomes[index] = pod

    def finish(self) -> Sequence[Outcome]:
        """Commit what waits; return one outcome per arrival."""
        self._recorder.finish()
        outcomes = [outcome for outcome in self.outcomes if outcome is not None]
        assert len(outcomes) == len(self.outcomes), "every arrival has an outcome"
        self.tally.failed = len(outcomes) - self.tally.placed
        self.tally.decisions = self.core.decisions
        return outcomes

    def request(self, index: int) -> PodRequest:
        """Return what an arrival asks for now."""
        pod = self.pods[index]
        assert isinstance(pod, PodRequest), pod
        return pod

    def _note(self, index: int, answer: Placed | Unplaced) -> None:
        if isinstance(answer, Placed):
            self.outcomes[index] = answer
            self.tally.placed += 1
            placement = answer.placement
            self._claiming.note(placement.node, holding_of(held_as_placed(placement, {})))
            self._use(placement.node, placement.shares, placement.counted)

    def _use(self, node: int, shares: Sequence[DeviceShare], counted: int) -> None:
        self.tally.cards_counted[node] += counted
        self.tally.nodes_used.add(node)
        self.tally.cards_used.update(
            (node, share.minor) for share in shares if share.device_type == GPU
        )


PROGRESS_EVERY = 64


def decide_all(simulator: Simulator, progress: Progress | None = None) -> None:
    """Decide every arrival in order, a group or gang at its first member (cli.md, Order)."""
    arrivals = simulator.run.arrivals
    groups = _groups(simulator)
    tally, engine = simulator.tally, simulator.engine
    for index, arrival in enumerate(arrivals):
        pod = arrival.pod
        if isinstance(pod, RefusedPod):
            simulator.refuse(index, pod)
        else:
            tally.asked_core_percent += gpu_core_percent(pod)
            if pod.gang is not None or pod.group is not None:
                _decide_group(simulator, groups.pop(group_name(pod), []))
            else:
                answer = simulator.decide(index, arrival.at_us)
                if isinstance(answer, Unplaced):
                    simulator.record_refusal(index, answer, arrival.at_us)
        tally.series.append((tally.asked_core_percent, engine.core_percent_allocated))
        if progress is not None and index % PROGRESS_EVERY == 0:
            progress(index)


def _groups(simulator: Simulator) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for index, arrival in enumerate(simulator.run.arrivals):
        pod = arrival.pod
        if not isinstance(pod, RefusedPod) and (pod.gang is not None or pod.group is not None):
            groups.setdefault(group_name(pod), []).append(index)
    return groups


def _decide_group(simulator: Simulator, indices: list[int]) -> None:
    if not indices:  # decided with its first member
        return
    first = simulator.run.arrivals[indices[0]]
    simulator.decide_group(
        indices,
        first.at_us,
        lambda index, answer: simulator.record_refusal(index, answer, first.at_us),
    )
