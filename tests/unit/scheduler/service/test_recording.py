"""Events are asked for in the same words until their outcome is known."""

from __future__ import annotations

import asyncio

import pytest

from certs.ports import ApiError
from ledger.domain.errors import CorruptLedgerError, FencedError, LedgerError, UnknownOutcomeError
from ledger.domain.log.events import LedgerEvent, PodReleased
from ledger.domain.log.recorded import NewEvent
from scheduler.record import events
from scheduler.service.recording import RecordUntilKnown, gravest
from tests.support.live import MemoryLedger


class Scene:
    """A ledger, and who records in it."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger()
        self.taken: list[tuple[int, LedgerEvent]] = []
        self.records = RecordUntilKnown(
            self.ledger, lambda new, first: self.taken.append((first, new[0].event))
        )

    def record(self, about: str, at_us: int) -> LedgerError | None:
        """Record that a Pod has ended."""
        return asyncio.run(self.records.record(about, [self.ended(at_us)]))

    def ended(self, at_us: int) -> NewEvent:
        """Return the end of a Pod at a moment."""
        event = PodReleased(pod_uid="p", attempt=1, node_uid="a", reason=f"at {at_us}")
        return events.of_pod(event, at_us)


def test_an_event_without_an_answer_is_recorded_in_its_first_words() -> None:
    """Once: what comes after is another one."""
    scene = Scene()
    scene.ledger.away = UnknownOutcomeError("lost")
    with pytest.raises(UnknownOutcomeError):
        scene.record("p", 1)
    assert list(scene.records.unsure) == ["p"]

    scene.ledger.away = None
    assert scene.record("p", 2) is None
    assert [event.reason for event in scene.ledger.log if isinstance(event, PodReleased)] == [
        "at 1"
    ]
    assert scene.taken == [(1, scene.ledger.log[0])]
    assert scene.records.unsure == {}


def test_what_is_forgotten_is_recorded_in_other_words() -> None:
    """Whoever forgets knows that the first ones are not needed."""
    scene = Scene()
    scene.ledger.away = LedgerError("down")
    with pytest.raises(LedgerError):
        scene.record("p", 1)
    scene.ledger.away = None
    scene.records.forget("p")
    assert scene.record("p", 2) is None
    assert scene.taken == [(1, scene.ended(2).event)]


def test_a_refusal_is_an_outcome() -> None:
    """It is returned, and nobody is told of events."""
    scene = Scene()
    scene.ledger.refuses["a"] = "no such holding"
    error = scene.record("p", 1)
    assert str(error) == "no such holding"
    assert (scene.taken, scene.records.unsure) == ([], {})


def test_the_gravest_failure_is_raised() -> None:
    """What ends the process before a mistake of ours, and that before what is away."""
    fenced, mistake, away = FencedError("new writer"), KeyError("p"), ApiError("down")
    assert gravest([away, mistake, fenced]) is fenced
    corrupt = CorruptLedgerError("chain", position=3)
    assert gravest([away, mistake, corrupt]) is corrupt
    assert gravest([away, mistake]) is mistake
    assert gravest([away, LedgerError("down")]) is away
