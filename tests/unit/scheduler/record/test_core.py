"""The core without a run: whoever has Pods and a clock decides with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ledger.domain.log.events import (
    PodReleased,
    PodReserved,
    RefusalReason,
    RequestDescribed,
    RequestRefused,
)
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.workload import NO_WORKLOAD
from scheduler.cluster.model import Cluster
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Unplaced
from scheduler.decide.settings import SchedulingSettings
from scheduler.record.core import Decisions, Placed
from scheduler.record.events import DecidedBy
from scheduler.record.refusing import REFUSALS_PER_POD_MAX
from tests.support.runs import gpu_node, gpu_pod

NOON_US = 1_700_000_000_000_000


@dataclass
class Kept:
    """Keeps what it is given: one inner list per decision."""

    decisions: list[list[NewEvent]] = field(default_factory=list)
    waiting: list[NewEvent] = field(default_factory=list)

    def add(self, event: NewEvent) -> None:
        """Keep an event."""
        self.waiting.append(event)

    def decided(self) -> None:
        """End a decision."""
        self.decisions.append(self.waiting)
        self.waiting = []


def core_of(kept: Kept) -> Decisions:
    """Return the core of one node with two cards, begun."""
    cluster, settings = Cluster(nodes=(gpu_node("a", 2),)), SchedulingSettings()
    core = Decisions(
        cluster,
        engine=Engine(cluster.nodes, settings),
        record=kept,
        settings=settings,
        words=DecidedBy(policy="binpack", settings_hash="", tenure_version="test"),
    )
    assert core.begin("{}", NO_WORKLOAD, NOON_US) == ()
    kept.decided()
    kept.decisions.clear()
    return core


def test_what_is_decided_is_held_recorded_at_its_moment_and_given_back() -> None:
    """A decision is one commit with the time it is given; its release opens the cards again."""
    kept = Kept()
    core = core_of(kept)
    pod = gpu_pod("p", 2)

    placed = core.decide(0, pod, NOON_US + 1)

    assert isinstance(placed, Placed)
    assert core.holds(pod.uid)
    assert isinstance(core.decide(1, gpu_pod("late", 1), NOON_US + 2), Unplaced)
    assert core.release(pod.uid, "completed", NOON_US + 3) == placed.placement.node
    assert not core.holds(pod.uid)
    assert isinstance(core.decide(1, gpu_pod("late", 1), NOON_US + 4), Placed)
    told = [[(type(new.event), new.wall_us - NOON_US) for new in each] for each in kept.decisions]
    assert told == [
        [(RequestDescribed, 1), (PodReserved, 1)],
        [(PodReleased, 3)],
        [(RequestDescribed, 4), (PodReserved, 4)],
    ]
    assert core.decisions == 3


def test_a_refusal_is_recorded_when_its_reasons_change_and_not_without_end() -> None:
    """The same reasons again are no event; nor is a change beyond the most for one Pod."""
    kept = Kept()
    core = core_of(kept)
    answer = core.decide(0, gpu_pod("p", 3), NOON_US)
    assert isinstance(answer, Unplaced)

    assert core.record_refusal(0, answer, NOON_US)
    assert not core.record_refusal(0, answer, NOON_US + 1)
    for number in range(2 * REFUSALS_PER_POD_MAX):
        other = replace(answer, reasons=(RefusalReason(reason=f"reason {number}", nodes=1),))
        recorded = core.record_refusal(0, other, NOON_US + 2)
        assert recorded == (number + 1 < REFUSALS_PER_POD_MAX)

    refused = [new for each in kept.decisions for new in each]
    assert sum(isinstance(new.event, RequestRefused) for new in refused) == REFUSALS_PER_POD_MAX


def test_a_pod_that_is_another_now_is_refused_anew() -> None:
    """Its reasons were those of what it asked for before."""
    core = core_of(Kept())
    answer = core.decide(0, gpu_pod("p", 3), NOON_US)
    assert isinstance(answer, Unplaced)
    core.record_refusal(0, answer, NOON_US)

    core.change_pod(answer.request.uid)

    assert core.record_refusal(0, answer, NOON_US + 1)
