"""Which ledger a question goes to, and what "now" means in it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from ledger.domain.errors import InputError
from tenure.exits import note, with_next
from tenure.times import LedgerTime, is_relative, ledger_time, read_moment
from tenure.units import DATE, MICROSECONDS, format_time
from tenure.version import tenure_version

if TYPE_CHECKING:
    from ledger.store.open import Ledger, Mode
    from ledger.store.writing.append import Writer

LEDGER_VARIABLE: Final = "TENURE_LEDGER"
DEFAULT_LEDGER: Final = "tenure.db"
LEDGER_HELP: Final = (
    "The ledger to ask: a file or postgresql://user@host/database."
    " Default: TENURE_LEDGER, else tenure.db."
)
_NO_LEDGER: Final = (
    f"name one with --ledger FILE or {LEDGER_VARIABLE}; "
    "`tenure demo` or `tenure simulate FILE... --ledger FILE` makes one, and"
    " `kubectl get nodes,pods -A -o json | tenure map -` needs none"
)


def ledger_url(option: str | None) -> str:
    """Return the ledger that is meant: --ledger, else TENURE_LEDGER, else ./tenure.db (cli.md)."""
    return option or os.environ.get(LEDGER_VARIABLE) or DEFAULT_LEDGER


@contextmanager
def opened(option: str | None, mode: Mode = "read") -> Iterator[Ledger]:
    """
    Open the ledger that is meant, and say on stderr which one it is.

    Raises:
        InputError: there is none, or it can't be read; with what to do next.
    """
    from ledger.store.place import expect_file

    url = ledger_url(option)
    try:
        if mode != "create":
            expect_file(url)  # before the databases are imported, which takes a second
        from ledger.store.open import open_ledger

        ledger = open_ledger(url, mode=mode)
    except InputError as error:
        raise with_next(error, _NO_LEDGER) from None
    with ledger:
        note(f"ledger: {ledger.url}")
        yield ledger


def taken_over(ledger: Ledger, holder: str) -> tuple[Writer, int]:
    """
    Start an epoch for a command that records one act, and return the wall time to record it with.

    A simulation's ledger has virtual time, to which a command adds none of its own.
    """
    wall_us = 0 if ledger.is_simulation else clock_us()
    origin = ledger.head().origin
    return ledger.start_epoch(holder, origin, tenure_version(), wall_us=wall_us), wall_us


def time_of(ledger: Ledger) -> LedgerTime:
    """Return what "now" means in this ledger."""
    head = ledger.head()
    if ledger.began is not None:
        return LedgerTime(now_us=ledger.began[""], virtual=True, began=ledger.began)
    return ledger_time(origin=head.origin, head_at_us=ledger.now_us(), clock_us=clock_us())


def moment_of(text: str, now: LedgerTime, *, option: str, say: Callable[[str], None] = note) -> int:
    """Return the moment an option names; say beside the answer which one, where it says no zone."""
    at_us = read_moment(text, now, option=option)
    if is_relative(text):
        say(f"{option}: {format_time(at_us)}, counted from {now.source}")
    elif DATE.fullmatch(text):
        say(f"{option}: {format_time(at_us)}, midnight here")
    return at_us


def window_of(
    since: str | None, until: str | None, now: LedgerTime, first_us: int, say: Callable[[str], None]
) -> tuple[int, int]:
    """Return the recorded part of an interval. Raises InputError: there is none."""
    since_us, until_us = first_us, now.now_us
    if since is not None:
        since_us = moment_of(since, now, option="--since", say=say)
    if until is not None:
        until_us = moment_of(until, now, option="--until", say=say)
    begins_us = first_us - first_us % MICROSECONDS  # events of one moment are microseconds apart
    outside = "--until" if until_us < begins_us else "--since" if since_us > now.now_us else ""
    if outside:
        error = InputError("nothing is recorded in this period", field=outside)
        told = f"{format_time(first_us)} to {format_time(now.now_us)}"
        raise with_next(error, f"choose a part of {told}")
    if until_us < since_us:
        raise InputError("the window ends before it begins", field="--until")
    return max(since_us, first_us), max(since_us, min(until_us, now.now_us))


def clock_us() -> int:
    """Return the wall clock, microseconds since the epoch."""
    return time.time_ns() // 1000
