"""`tenure ledger correct-time`: when it really was, where a clock was off."""

from __future__ import annotations

import sys
from typing import Final

from tenure.asking.opening import opened, taken_over
from tenure.times import iso_time

_HOLDER: Final = "tenure ledger correct-time"


def answer_correct_time(
    *, first: int, last: int, shift_seconds: int, reason: str, dry_run: bool, ledger: str | None
) -> None:
    """
    Record by how much the clock was off at these positions; the views tell true times from then on.

    Raises:
        InputError: there are no such positions, the times are none, or the role may not.
    """
    from ledger.domain.log.events import TimeCorrected
    from ledger.store.mending.correcting import check_correction, correct

    event = TimeCorrected(first=first, last=last, shift_seconds=shift_seconds, reason=reason)
    with opened(ledger, mode="read" if dry_run else "write") as source:
        from_us, to_us = check_correction(source, event)
        what = f"positions {first} to {last}, from {iso_time(from_us)} to {iso_time(to_us)}"
        if dry_run:
            sys.stdout.write(f"would be corrected: {what}\n")
            return
        writer, wall_us = taken_over(source, _HOLDER)
        at = correct(writer, event, wall_us=wall_us)
    sys.stdout.write(f"corrected: {what}, by the event at {at}\n")
