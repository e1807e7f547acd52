from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from ledger.domain.errors import InputError
from ledger.domain.events import EpochStarted, PodReleased, PodReserved
from ledger.store.open import open_ledger
from scheduler.decide.settings import SchedulingSettings
from tenure.simulate.model import Run
from tenure.simulate.results import Outcome, Placed, Result
from tenure.simulate.session import Record, recorded_start_us, run_simulation
from tests.support.runs import START_US, arrival, gpu_node, gpu_pod, health, run_of

pytestmark = pytest.mark.integration

PODS = 40


def busy_run(*, timed: bool = False) -> Run:
    """Return a run in which Pods of several sizes fill four nodes, and some do not fit."""
    arrivals = [
        arrival(gpu_pod(f"p{i}", 1 + i % 3, 100 if i % 3 else 40), i, 30 if timed else None)
        for i in range(PODS)
    ]
    changes = [health(5, 0, 1, healthy=False), health(25, 0, 1, healthy=True)]
    nodes = [gpu_node(name, 4) for name in ("a", "b", "c", "d")]
    return run_of(nodes, arrivals, health_changes=changes if timed else (), timed=timed)


def simulated(run: Run, record: Record = Record(), *, policy: str = "binpack") -> Result:
    """Run a simulation with a clock that ticks once per look."""
    ticks = count()
    return run_simulation(
        run,
        settings=SchedulingSettings(node_policy=policy),
        seed=1,
        version="test",
        clock=lambda: float(next(ticks)),
        record=record,
    )


def places(outcomes: object) -> list[object]:
    """Return who is where: node and minors per Pod, None for a Pod without a place."""
    assert isinstance(outcomes, list)
    return [place_of(outcome) for outcome in outcomes]


def place_of(outcome: Outcome) -> object:
    """Return node and minors of one outcome."""
    if not isinstance(outcome, Placed):
        return None
    placement = outcome.placement
    return (placement.node_name, [share.minor for share in placement.shares])


@pytest.mark.parametrize(
    "timed", [pytest.param(False, id="untimed"), pytest.param(True, id="on a virtual clock")]
)
@pytest.mark.parametrize("batch", [pytest.param(1, id="one"), pytest.param(7, id="seven")])
def test_the_same_run_gives_the_same_ledger(tmp_path: Path, *, timed: bool, batch: int) -> None:
    """Same inputs, same bytes, same chain head: also with other commits in between."""
    results = [
        simulated(busy_run(timed=timed), Record(ledger=str(tmp_path / f"{n}.db"), batch=n))
        for n in (batch, 3)
    ]

    assert results[0].ledger.chain_hash == results[1].ledger.chain_hash
    assert results[0].ledger.last == results[1].ledger.last > PODS
    assert places(results[0].outcomes) == places(results[1].outcomes)


def test_what_is_answered_is_what_is_recorded(tmp_path: Path) -> None:
    """Every placement is in the ledger, on the node and the cards of the answer, and no other."""
    result = simulated(busy_run(), Record(ledger=str(tmp_path / "l.db")))

    with open_ledger(str(tmp_path / "l.db"), mode="read") as ledger:
        reserved = {
            event.event.pod_uid: (event.event.node_name, [s.minor for s in event.event.shares])
            for event in ledger.read_events()
            if isinstance(event.event, PodReserved)
        }
        origin = ledger.head().origin
    answered = {
        outcome.placement.request.uid: place_of(outcome)
        for outcome in result.outcomes
        if isinstance(outcome, Placed)
    }
    assert reserved == answered
    assert 0 < result.tally.placed < PODS
    assert origin.startswith("simulation/")


def test_events_carry_virtual_time(tmp_path: Path) -> None:
    """The clock of the machine is not in the ledger."""
    simulated(busy_run(timed=True), Record(ledger=str(tmp_path / "l.db")))

    with open_ledger(str(tmp_path / "l.db"), mode="read") as ledger:
        events = list(ledger.read_events())
    assert {event.envelope.wall_us for event in events[:6]} == {START_US}
    assert all(0 <= e.envelope.wall_us - START_US < 200_000_000 for e in events)
    assert any(isinstance(event.event, PodReleased) for event in events)


def cut(source: Path, target: Path, run: Run, *, after: int, batch: int) -> None:
    """Make the ledger of a run that was killed after some commits."""

    class KilledError(Exception):
        pass

    def stop(done: int) -> None:
        if done >= after:
            raise KilledError

    del source
    many = replace(run, arrivals=run.arrivals)
    with pytest.raises(KilledError):
        run_simulation(
            many,
            settings=SchedulingSettings(),
            seed=1,
            version="test",
            clock=lambda: 0.0,
            record=Record(ledger=str(target), batch=batch),
            progress=stop,
        )
