"""Ledgers whose decisions are decided again."""

from __future__ import annotations

from collections.abc import Iterable

from ledger.domain.log.recorded import RecordedEvent
from scheduler.record.replay import Again, InForce, Replay


def replayed(
    recorded: Iterable[RecordedEvent], *, whole: bool = True, by: InForce | None = None
) -> list[Again]:
    """Return every decision, decided again."""
    replay = Replay(whole=whole, by=by)
    return [again for each in recorded if (again := replay.take(each)) is not None]


def differing(recorded: Iterable[RecordedEvent], *, whole: bool = True) -> list[Again]:
    """Return the decisions that come out otherwise."""
    return [again for again in replayed(recorded, whole=whole) if again.differences]
