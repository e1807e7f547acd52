"""Recording events whose outcome may stay unknown for a while."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from certs.ports import ApiError
from ledger.domain.errors import CorruptLedgerError, FencedError, LedgerError
from ledger.domain.log.recorded import NewEvent
from ledger.store.writing.commands import Command, Outcome, Recorded
from scheduler.service.ports import Recorder, TakeRecorded


async def record(
    recorder: Recorder, new: Sequence[NewEvent], recorded: TakeRecorded
) -> LedgerError | None:
    """
    Record events; return why the ledger refused them, None once they are durable.

    Raises:
        LedgerError: see `Recorder.record`.
    """
    return _take(await recorder.record(Command(events=tuple(new))), new, recorded)


class RecordUntilKnown:
    """
    Records events, and asks for them in the same words again until their outcome is known.

    A command without an answer may be recorded or not. The same command again is known by its
    keys; one in other words would be a second event.

    Attributes:
        unsure: events whose outcome is not known, by what they are about.
    """

    def __init__(self, recorder: Recorder, recorded: TakeRecorded) -> None:
        self._recorder = recorder
        self._recorded = recorded
        self.unsure: dict[str, tuple[NewEvent, ...]] = {}

    def forget(self, about: str) -> None:
        """Ask no more: the outcome is known by another way, or matters no more."""
        self.unsure.pop(about, None)

    async def record(self, about: str, new: Sequence[NewEvent]) -> LedgerError | None:
        """
        Record events; return why the ledger refused them, None once they are durable.

        Args:
            about: events about the same whose outcome is not known are recorded instead.

        Raises:
            FencedError: another writer took over.
            LedgerError: it is not known whether they are recorded, or nothing is.
        """
        new = self.unsure.setdefault(about, tuple(new))
        outcome = await self._recorder.record(Command(events=new))
        self.forget(about)  # another task may have asked in the same words meanwhile
        return _take(outcome, new, self._recorded)


def _take(outcome: Outcome, new: Sequence[NewEvent], recorded: TakeRecorded) -> LedgerError | None:
    if not isinstance(outcome, Recorded):
        return outcome.error
    recorded(new, outcome.first)
    return None


def gravest(failures: Iterable[BaseException]) -> BaseException:
    """Return the failure to raise: what ends the process, our mistake, else what is away."""
    ends, is_away = (FencedError, CorruptLedgerError), (LedgerError, ApiError)
    return min(failures, key=lambda one: (not isinstance(one, ends), isinstance(one, is_away)))
