"""Events into the ledger, a few decisions per durable commit; on a resumed run, compared first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ledger.domain.errors import InputError
from ledger.domain.log.events import EpochStarted, encode_event
from ledger.domain.log.recorded import NewEvent, RecordedEvent
from tenure.exits import with_next


class Writer(Protocol):
    """The ledger's writer, as far as a simulation uses it."""

    def append(self, events: Sequence[NewEvent]) -> int:
        """Append in one durable commit; return the head position."""


class ResumedEvents:
    """
    The events that an interrupted run recorded, met again by the same run from its start.

    Decisions are pure, so the same inputs give the same events; a difference means that
    something else wrote here or that another version decides, and ends the run.
    """

    def __init__(self, recorded: Iterator[RecordedEvent]) -> None:
        self._recorded = (event for event in recorded if not isinstance(event.event, EpochStarted))

    def unknown(self, events: Sequence[NewEvent]) -> Sequence[NewEvent]:
        """Return the events that are not in the ledger yet: a tail of `events`."""
        for place, event in enumerate(events):
            known = next(self._recorded, None)
            if known is None:
                return events[place:]
            _refuse_difference(known, event)
        return ()

    def refuse_rest(self) -> None:
        """Make sure that the ledger holds nothing beyond what the run came to."""
        extra = next(self._recorded, None)
        if extra is not None:
            raise _other_run(extra)


class Recorder:
    """Appends events of decisions together."""

    def __init__(self, writer: Writer, *, batch: int, replay: ResumedEvents | None = None) -> None:
        assert batch >= 1, batch
        self._writer = writer
        self._batch = batch
        self._replay = replay
        self._waiting: list[NewEvent] = []
        self._decisions = 0

    def add(self, event: NewEvent) -> None:
        """Take an event that belongs to the decision under way."""
        self._waiting.append(event)

    def decided(self) -> None:
        """End a decision: its events are in one commit, shared with at most `batch` - 1 others."""
        self._decisions += 1
        if self._decisions >= self._batch:
            self.flush()

    def flush(self) -> None:
        """Commit what waits."""
        events: Sequence[NewEvent] = self._waiting
        if self._replay is not None:
            events = self._replay.unknown(events)
        if events:
            self._writer.append(events)
        self._waiting = []
        self._decisions = 0

    def finish(self) -> None:
        """Commit what waits and end the run."""
        self.flush()
        if self._replay is not None:
            self._replay.refuse_rest()


def _refuse_difference(known: RecordedEvent, event: NewEvent) -> None:
    envelope = known.envelope
    if (
        envelope.idempotency_key != event.idempotency_key
        or envelope.stream != event.stream
        or envelope.wall_us != event.wall_us
        or envelope.actor != event.actor
        or envelope.body != encode_event(event.event)
    ):
        raise _other_run(known)


def _other_run(known: RecordedEvent) -> InputError:
    envelope = known.envelope
    error = InputError(
        "the ledger holds another decision than this run comes to: "
        f"position={envelope.position}, event={envelope.idempotency_key}",
        field="--resume",
    )
    return with_next(error, "resume with the version that began the run, or use a new file")
