"""Which moments a ledger says nothing of: what nobody recorded is not the same as nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tenure.units import MICROSECONDS, format_time

if TYPE_CHECKING:
    from ledger.store.open import Ledger
    from tenure.times import LedgerTime


def untold(source: Ledger, at_us: int | None, now: LedgerTime, since_us: int | None = None) -> str:
    """
    Return why a moment is not recorded, empty for one that is.

    It is before the first inventory, in a range that a recovery lost, or has not come yet: a
    simulation ends with its last event. With `since_us` it is the last one of an interval.

    Example: who held a card in 2020, of a ledger from 2026:

        "not recorded: this ledger begins at 2026-03-02T08:00:00+00:00"
    """
    from ledger.store.reading.report_queries import lost_ranges, span

    if at_us is None:
        return ""
    first_us = span(source.connection).first_at_us
    first_us -= first_us % MICROSECONDS  # events of one moment are microseconds apart
    if at_us < first_us:
        return f"not recorded: this ledger begins at {format_time(first_us)}"
    if at_us > now.now_us:
        what = "this ledger ends at" if now.virtual else "it is later than now,"
        return f"not known: {what} {format_time(now.now_us)}"
    for lost in lost_ranges(source.connection):
        if lost.opened_at_us < at_us and (since_us or at_us) < lost.closed_at_us:
            since, until = format_time(lost.opened_at_us), format_time(lost.closed_at_us)
            return f"not known: what happened from {since} to {until} is lost"
    return ""
