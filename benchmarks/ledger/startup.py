"""From a closed ledger to a writer that has appended, with the state folded from a snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks.ledger.work import ORIGIN, Work
from benchmarks.measure import say, spent_by
from ledger.store.open import open_ledger
from ledger.store.reading.snapshots import take_snapshot
from ledger.store.reading.timetravel import load_state

TAIL_EVENTS: Final = 1_000
"""Events behind the newest snapshot: as many as are appended between two of them at the most."""


def startup(path: Path, size: int, work: Work, rounds: int) -> None:
    """Measure the parts of a start and the whole of it."""
    with open_ledger(str(path), mode="write") as ledger:
        writer = ledger.start_epoch("benchmark", ORIGIN, "0")
        taken = spent_by(lambda: take_snapshot(ledger, writer, wall_us=0))
        writer.append(work.batch(TAIL_EVENTS))
    say(what="take a snapshot", events=size, seconds=round(taken.seconds, 3))
    read = spent_by(lambda: _load(path), rounds)
    whole = spent_by(lambda: _start(path, work), rounds)
    say(
        what="start from a snapshot",
        events=size,
        tail=TAIL_EVENTS,
        state_seconds=round(read.seconds, 3),
        seconds=round(whole.seconds, 3),
        cpu_seconds=round(whole.cpu_seconds, 3),
    )


def _load(path: Path) -> None:
    with open_ledger(str(path), mode="read") as ledger:
        assert load_state(ledger).snapshot_position > 0


def _start(path: Path, work: Work) -> None:
    with open_ledger(str(path), mode="write") as ledger:
        assert load_state(ledger).snapshot_position > 0
        ledger.start_epoch("benchmark", ORIGIN, "0").append(work.batch(1))
