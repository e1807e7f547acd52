"""A run without time: every Pod is decided once, in order, and stays."""

from __future__ import annotations

from ledger.domain.request.requests import gpu_core_percent, group_name
from scheduler.cluster.model import RefusedPod
from scheduler.decide.outcome import Unplaced
from tenure.simulate.simulator import Progress, Simulator

PROGRESS_EVERY = 64


def decide_all(simulator: Simulator, progress: Progress | None = None) -> None:
    """
    Decide every arrival in order; a group or gang at its first member.

    Rule: cli.md, Order.
    """
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
