"""Ledgers whose decisions are decided again."""

from __future__ import annotations

from collections.abc import Iterable

from ledger.domain.log.recorded import RecordedEvent
from scheduler.record.ahead import Ahead
from scheduler.record.replay import Again, Replay
from scheduler.record.so_far import InForce


def replayed(
    recorded: Iterable[RecordedEvent], *, whole: bool = True, by: InForce | None = None
) -> list[Again]:
    """Return every decision, decided again."""
    log = list(recorded)
    ahead = Ahead(event_at={each.envelope.position: each for each in log}.__getitem__)
    for each in log:
        ahead.add(each)
    replay = Replay(ahead=None if whole else ahead, by=by)
    return [again for each in log if (again := replay.take(each)) is not None]


def differing(
    recorded: Iterable[RecordedEvent], *, whole: bool = True, by: InForce | None = None
) -> list[Again]:
    """Return the decisions that come out otherwise."""
    return [again for again in replayed(recorded, whole=whole, by=by) if again.differences]
