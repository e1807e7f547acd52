"""Groups in time, recorded in a real ledger: its rules hold, and an interrupted run goes on."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from ledger.domain.log.events import EpochStarted, GroupPlanned, PlanDropped, PodReserved, PodVoided
from ledger.domain.request.requests import GangRef, GroupRef
from ledger.store.open import open_ledger
from ledger.store.proving.verify import verify
from scheduler.decide.group.life import DEADLINE, DEVICE_UNUSABLE
from scheduler.decide.settings import SchedulingSettings
from tenure.simulate.model import Arrival, Run
from tenure.simulate.runner import RunRecord, run_simulation
from tests.support.group_lives import lives_of
from tests.support.links import TWO_BY_FOUR_PCIE
from tests.support.runs import arrival, gpu_node, gpu_pod, health, run_of

pytestmark = pytest.mark.integration


class KilledError(Exception):
    """Stands for the end of the process."""


def groups_in_time(*, timed: bool = True) -> Run:
    """Return a run of groups, gangs and Pods that come and go, on nodes whose GPUs die."""
    rng = random.Random(3)
    pods: list[Arrival] = []
    for job in range(72):
        start, size, kind = 8 * job, rng.randint(2, 4), job % 3
        cards = rng.randint(1, 3)
        for place in range(size):
            request = gpu_pod(f"j{job}-{place}", cards)
            if kind != 1:
                request = replace(request, group=GroupRef(name=f"j{job}", replica=size))
            if kind != 0:
                gang = GangRef(name=f"j{job}", min_available=size, waiting_seconds=15)
                request = replace(request, gang=gang)
            pods.append(arrival(request, start + place * rng.choice((0, 5, 12)), 20))
        pods.append(arrival(gpu_pod(f"single-{job}", 1, 50), start + 2, 30))
    pods.sort(key=lambda one: one.at_us)
    changes = [health(10 + 4 * n, n % 5, n // 10 % 4, healthy=n // 5 % 2 == 1) for n in range(140)]
    nodes = [replace(gpu_node(name, 4), links=TWO_BY_FOUR_PCIE) for name in "abcde"]
    return run_of(nodes, pods, changes=changes if timed else (), timed=timed)


def simulated(run: Run, record: RunRecord, *, stop_at: int | None = None) -> None:
    """Run it, until so many arrivals were dealt with."""

    def progress(done: int) -> None:
        if stop_at is not None and done >= stop_at:
            raise KilledError

    ticks = count()
    run_simulation(
        run,
        settings=SchedulingSettings(),
        seed=1,
        version="test",
        clock=lambda: float(next(ticks)),
        record=record,
        progress=progress,
    )


def bodies(path: Path) -> list[str]:
    """Return the events of a ledger without the epochs."""
    with open_ledger(str(path), mode="read") as ledger:
        return [
            f"{event.envelope.idempotency_key} {event.envelope.body}"
            for event in ledger.read_events()
            if not isinstance(event.event, EpochStarted)
        ]


@pytest.mark.parametrize("timed", [True, False], ids=["on a virtual clock", "untimed"])
def test_a_ledger_of_groups_is_proved(tmp_path: Path, *, timed: bool) -> None:
    """Plans, places kept, members that come, deadlines: the database refuses none of it."""
    path = tmp_path / "l.db"
    simulated(groups_in_time(timed=timed), RunRecord(ledger=str(path)))

    with open_ledger(str(path), mode="write") as ledger:
        assert verify(ledger).ok
        events = [(event.event, event.envelope.wall_us) for event in ledger.read_events()]
    kinds = {type(event) for event, _ in events}
    expected = {GroupPlanned, PodReserved} | ({PlanDropped, PodVoided} if timed else set())
    assert expected <= kinds
    dropped = {event.reason for event, _ in events if isinstance(event, PlanDropped)}
    assert dropped == ({DEADLINE, DEVICE_UNUSABLE} if timed else set())
    assert all(not life.places for life in lives_of(events).values())
    later = [event for event, _ in events if isinstance(event, PodReserved) and event.attempt > 1]
    assert not timed or later, "a gang that gave up came back"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of a run that nothing interrupted."""
    path = tmp_path_factory.mktemp("whole") / "w.db"
    simulated(groups_in_time(), RunRecord(ledger=str(path)))
    return path


@pytest.mark.parametrize("stop_at", [64, 192])
def test_an_interrupted_run_of_groups_goes_on_to_the_same_places(
    whole: Path, tmp_path: Path, stop_at: int
) -> None:
    """With plans open and gangs incomplete: the same events as an uninterrupted run."""
    run, parts = groups_in_time(), tmp_path / "p.db"
    with pytest.raises(KilledError):
        simulated(run, RunRecord(ledger=str(parts)), stop_at=stop_at)
    begun = len(bodies(parts))

    simulated(run, RunRecord(ledger=str(parts), resume=True))

    assert 10 < begun < len(bodies(whole))
    assert bodies(parts) == bodies(whole)
