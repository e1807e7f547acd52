import pytest
from msgspec import structs

from ledger.domain.errors import InputError
from ledger.domain.log.events import EpochStarted, PodReleased
from ledger.domain.log.recorded import NewEvent
from tenure.simulate.recorder import Recorder, ResumedEvents
from tests.support.runs import ListLedger


def event(number: int, *, wall_us: int = 7, reason: str = "completed") -> NewEvent:
    """Return the release of Pod `number`."""
    released = PodReleased(pod_uid=f"u{number}", attempt=1, node_uid="n", reason=reason)
    return NewEvent(
        stream="node/n",
        event=released,
        actor="simulation",
        idempotency_key=f"release:u{number}:1",
        wall_us=wall_us,
    )


def epoch() -> NewEvent:
    """Return the event that opens a writer's epoch."""
    started = EpochStarted(epoch=1, holder="simulate", origin="simulation/x", tenure_version="1")
    return NewEvent(
        stream="sys", event=started, actor="simulate", idempotency_key="epoch:1", wall_us=7
    )


def ledger_of(*events: NewEvent) -> ListLedger:
    """Return a ledger that holds these."""
    return ListLedger(commits=[list(events)])


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [
        pytest.param(1, [1, 1, 1, 1, 1], id="a commit per decision"),
        pytest.param(2, [2, 2, 1], id="two decisions per commit, the rest at the end"),
        pytest.param(100, [5], id="one commit for all"),
    ],
)
def test_a_commit_holds_a_batch_of_decisions(batch: int, sizes: list[int]) -> None:
    """Nothing is lost or reordered, whatever the batch."""
    ledger = ListLedger()
    recorder = Recorder(ledger, batch=batch)
    for number in range(5):
        recorder.add(event(number))
        recorder.decided()
    recorder.finish()

    assert [len(commit) for commit in ledger.commits] == sizes
    assert ledger.events == [event(number) for number in range(5)]


def test_events_of_one_decision_are_never_parted() -> None:
    """A plan and the reservations behind it are durable together or not at all."""
    ledger = ListLedger()
    recorder = Recorder(ledger, batch=1)
    for number in range(3):
        recorder.add(event(number))
    recorder.decided()

    assert [len(commit) for commit in ledger.commits] == [3]


def test_a_resumed_run_appends_only_what_is_missing() -> None:
    """What the interrupted run recorded is compared; the rest is appended, across batches."""
    before = ledger_of(epoch(), event(0), event(1), event(2), epoch())
    after = ListLedger()
    recorder = Recorder(after, batch=2, replay=ResumedEvents(before.recorded()))
    for number in range(6):
        recorder.add(event(number))
        recorder.decided()
    recorder.finish()

    assert after.events == [event(3), event(4), event(5)]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(event(8), id="another decision"),
        pytest.param(event(1, wall_us=8), id="another time"),
        pytest.param(structs.replace(event(1), stream="sys"), id="another stream"),
        pytest.param(event(1, reason="evicted"), id="another word"),
    ],
)
def test_a_run_that_decides_otherwise_ends(other: NewEvent) -> None:
    """A ledger never holds the halves of two different runs."""
    before = ledger_of(event(0), other)
    after = ListLedger()
    recorder = Recorder(after, batch=10, replay=ResumedEvents(before.recorded()))
    recorder.add(event(0))
    recorder.add(event(1))

    with pytest.raises(InputError, match="another decision than this run comes to: position=2"):
        recorder.finish()
    assert after.commits == []


def test_a_ledger_that_holds_more_than_the_run_is_refused() -> None:
    """A finished run of other inputs may begin with the same events."""
    recorder = Recorder(
        ListLedger(), batch=1, replay=ResumedEvents(ledger_of(event(0), event(1)).recorded())
    )
    recorder.add(event(0))

    with pytest.raises(InputError, match="position=2"):
        recorder.finish()
