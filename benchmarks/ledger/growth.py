"""
Reading, proving, rebuilding and starting, at one size of the ledger after another.

The limit of reading is the same file without a ledger: every column of every row through the
driver, and one SHA-256 over each body. All of ours do that too, and then their own work.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

from benchmarks.ledger.startup import startup
from benchmarks.ledger.work import ORIGIN, Work
from benchmarks.measure import Spent, say, spent_by
from ledger.domain.log.state import Folding, LedgerState
from ledger.store.open import Ledger, open_ledger
from ledger.store.profile import connect
from ledger.store.projections.rebuild import rebuild
from ledger.store.proving.verify import verify
from ledger.store.reading.read import proven_pages, read_events, replay

ALL_COLUMNS = "SELECT * FROM ledger_events ORDER BY position"


def growth(path: Path, size: int, rounds: int) -> None:
    """Fill a ledger of `size` events and measure it; `rounds` times what is short."""
    work = Work()
    with open_ledger(str(path), mode="create") as ledger:
        _say("append by 500", size, spent_by(lambda: _fill(ledger, work, size)))
    limit = spent_by(lambda: _bare_pass(path), rounds)
    _say("bare SELECT and SHA-256", size, limit)
    parts: list[tuple[str, Callable[[Ledger], object]]] = [
        ("check: density, chain, leaves", _check),
        ("check and decode", _decode),
        ("check and decode, with envelopes", _envelopes),
        ("replay: check, decode and fold", _replay),
    ]
    with open_ledger(str(path), mode="read") as ledger:
        for what, act in parts:
            replayed = spent_by(partial(act, ledger), rounds)
            _say(what, size, replayed, of_bare_pass=limit)
        _say("verify", size, spent_by(partial(_verify, ledger)), of_bare_pass=limit)
    with open_ledger(str(path), mode="write") as ledger:
        _say("rebuild", size, spent_by(partial(_rebuild, ledger)), of_replay=replayed)
    startup(path, size, work, rounds)


def _fill(ledger: Ledger, work: Work, size: int) -> None:
    writer = ledger.start_epoch("benchmark", ORIGIN, "0")
    writer.append(work.inventories())
    for done in range(0, size, 500):
        writer.append(work.batch(min(500, size - done)))


def _say(what: str, events: int, spent: Spent, **limits: Spent) -> None:
    """Print rates, and ratios of the processor's time to that of other work on the same rows."""
    ratios = {
        name: round(limit.cpu_seconds / spent.cpu_seconds, 3) for name, limit in limits.items()
    }
    say(
        what=what,
        events=events,
        seconds=round(spent.seconds, 3),
        per_second=round(events / spent.seconds),
        per_cpu_second=round(events / spent.cpu_seconds),
        **ratios,
    )


def _bare_pass(path: Path) -> None:
    connection = connect(path, write=False)
    for row in connection.execute(ALL_COLUMNS):
        sha256(row[4].encode()).digest()
    connection.close()


def _check(ledger: Ledger) -> None:
    for _ in proven_pages(ledger.connection):
        pass


def _decode(ledger: Ledger) -> None:
    for _ in replay(ledger.connection):
        pass


def _envelopes(ledger: Ledger) -> None:
    for _ in read_events(ledger.connection):
        pass


def _replay(ledger: Ledger) -> LedgerState:
    fold = Folding(LedgerState())
    for position, event in replay(ledger.connection):
        fold.add(position, event)
    return fold.state


def _verify(ledger: Ledger) -> None:
    report = verify(ledger)
    assert report.ok, report.findings


def _rebuild(ledger: Ledger) -> None:
    assert rebuild(ledger).equal, "the benchmark's own ledger does not prove itself"
