from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from ledger.domain.errors import InputError
from ledger.domain.log.events import EpochStarted, PodReleased, PodReserved
from ledger.store.open import open_ledger
from scheduler.decide.settings import SchedulingSettings
from scheduler.record.core import Placed
from tenure.simulate.model import Run
from tenure.simulate.results import Outcome, Result
from tenure.simulate.runner import RunRecord, recorded_start_us, run_simulation
from tenure.simulate.simulator import Progress
from tests.support.runs import START_US, arrival, gpu_node, gpu_pod, health, run_of

pytestmark = pytest.mark.integration

PODS = 200
TEMPORARY = RunRecord()


def busy_run(*, timed: bool = False) -> Run:
    """Return a run in which Pods of several sizes fill four nodes, and some do not fit."""
    arrivals = [
        arrival(gpu_pod(f"p{i}", 1 + i % 3, 100 if i % 3 else 40), i, 30 if timed else None)
        for i in range(PODS)
    ]
    changes = [health(5, 0, 1, healthy=False), health(25, 0, 1, healthy=True)]
    nodes = [gpu_node(name, 4) for name in ("a", "b", "c", "d")]
    return run_of(nodes, arrivals, changes=changes if timed else (), timed=timed)


def simulated(
    run: Run,
    record: RunRecord = TEMPORARY,
    *,
    policy: str = "binpack",
    progress: Progress | None = None,
) -> Result:
    """Run a simulation with a clock that ticks once per look."""
    ticks = count()
    return run_simulation(
        run,
        settings=SchedulingSettings(node_policy=policy),
        seed=1,
        version="test",
        clock=lambda: float(next(ticks)),
        record=record,
        progress=progress,
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
        simulated(busy_run(timed=timed), RunRecord(ledger=str(tmp_path / f"{n}.db"), batch=n))
        for n in (batch, 3)
    ]

    assert results[0].ledger.chain_hash == results[1].ledger.chain_hash
    assert results[0].ledger.last == results[1].ledger.last > PODS
    assert places(results[0].outcomes) == places(results[1].outcomes)


def test_what_is_answered_is_what_is_recorded(tmp_path: Path) -> None:
    """Every placement is in the ledger, on the node and the cards of the answer, and no other."""
    result = simulated(busy_run(), RunRecord(ledger=str(tmp_path / "l.db")))

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
    simulated(busy_run(timed=True), RunRecord(ledger=str(tmp_path / "l.db")))

    with open_ledger(str(tmp_path / "l.db"), mode="read") as ledger:
        events = list(ledger.read_events())
    assert {event.envelope.wall_us for event in events[:6]} == {START_US}
    assert all(0 <= e.envelope.wall_us - START_US < 3_600_000_000 for e in events)
    assert any(isinstance(event.event, PodReleased) for event in events)


class KilledError(Exception):
    """Stands for the end of the process."""


def killed(run: Run, record: RunRecord) -> None:
    """Run a simulation that ends in the middle, with decisions that were not committed."""

    def stop(done: int) -> None:
        if done >= 64:
            raise KilledError

    with pytest.raises(KilledError):
        simulated(run, record, progress=stop)


@pytest.mark.parametrize(
    "timed", [pytest.param(False, id="untimed"), pytest.param(True, id="on a virtual clock")]
)
@pytest.mark.parametrize("batch", [pytest.param(1, id="one"), pytest.param(7, id="seven")])
def test_a_resumed_run_ends_like_an_uninterrupted_one(
    tmp_path: Path, *, timed: bool, batch: int
) -> None:
    """Same placements, same events, but for the epoch that the second process began."""
    run = busy_run(timed=timed)
    whole, parts = (
        RunRecord(ledger=str(tmp_path / name), batch=batch) for name in ("w.db", "p.db")
    )
    expected = simulated(run, whole)

    killed(run, parts)
    begun = len(bodies(parts))
    result = simulated(run, replace(parts, resume=True))

    assert 10 < begun < len(bodies(whole))
    assert bodies(parts) == bodies(whole)
    assert places(result.outcomes) == places(expected.outcomes)
    assert result.ledger.last == expected.ledger.last + 1


def bodies(record: RunRecord) -> list[str]:
    """Return the events of a ledger without the epochs."""
    assert record.ledger is not None
    with open_ledger(record.ledger, mode="read") as ledger:
        return [
            f"{event.envelope.idempotency_key} {event.envelope.body}"
            for event in ledger.read_events()
            if not isinstance(event.event, EpochStarted)
        ]


def test_a_finished_run_can_be_resumed_and_adds_nothing(tmp_path: Path) -> None:
    """Only the epoch of the process that looked."""
    record = RunRecord(ledger=str(tmp_path / "l.db"), batch=50)
    first = simulated(busy_run(), record)
    second = simulated(busy_run(), replace(record, resume=True))

    assert second.ledger.last == first.ledger.last + 1
    assert places(second.outcomes) == places(first.outcomes)


@pytest.mark.parametrize(
    "leftover", [pytest.param(None, id="no file"), pytest.param(b"", id="empty")]
)
def test_a_run_that_never_began_is_begun(tmp_path: Path, leftover: bytes | None) -> None:
    """A process killed before its first commit left nothing to go on with."""
    path = tmp_path / "l.db"
    if leftover is not None:
        path.write_bytes(leftover)

    assert recorded_start_us(str(path)) is None
    assert simulated(busy_run(), RunRecord(ledger=str(path), resume=True)).tally.placed > 0
    assert recorded_start_us(str(path)) == START_US


@pytest.mark.parametrize(
    ("policy", "inputs_hash"),
    [
        pytest.param("spread", "0" * 64, id="another policy"),
        pytest.param("binpack", "1" * 64, id="other inputs"),
    ],
)
def test_another_run_is_never_continued(tmp_path: Path, policy: str, inputs_hash: str) -> None:
    """The origin tells: nothing is written, not even an epoch."""
    record = RunRecord(ledger=str(tmp_path / "l.db"), batch=50)
    simulated(busy_run(), record)
    before = (tmp_path / "l.db").read_bytes()

    other = replace(busy_run(), inputs_hash=inputs_hash)
    with pytest.raises(InputError, match="other inputs, settings, policy or seed"):
        simulated(other, replace(record, resume=True), policy=policy)
    assert (tmp_path / "l.db").read_bytes() == before


def test_a_new_run_refuses_a_ledger_that_has_events(tmp_path: Path) -> None:
    """A live or a finished ledger is never written into."""
    record = RunRecord(ledger=str(tmp_path / "l.db"), batch=50)
    simulated(busy_run(), record)
    before = (tmp_path / "l.db").read_bytes()

    with pytest.raises(InputError, match="the ledger is not empty"):
        simulated(busy_run(), record)
    assert (tmp_path / "l.db").read_bytes() == before


def test_a_temporary_ledger_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --ledger the run is recorded all the same, in a file that is deleted."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = simulated(busy_run())

    assert list(tmp_path.iterdir()) == []
    assert (result.ledger.url, result.ledger.first) == ("", 1)
    assert result.ledger.last > PODS


@pytest.mark.parametrize(
    ("run", "fact"),
    [
        pytest.param(
            run_of(
                [gpu_node("a")], [arrival(gpu_pod("p"), 5), arrival(gpu_pod("q"), 4)], timed=True
            ),
            "not in the order of time",
            id="arrivals out of order",
        ),
        pytest.param(
            replace(
                run_of([gpu_node("a")], [arrival(gpu_pod("p"), 5)], timed=True), end_us=START_US
            ),
            "arrives after the end of the run",
            id="an arrival after the end",
        ),
    ],
)
def test_time_only_goes_forward(run: Run, fact: str) -> None:
    """A schedule that was edited by hand is refused, not half done."""
    with pytest.raises(InputError, match=fact):
        simulated(run)
