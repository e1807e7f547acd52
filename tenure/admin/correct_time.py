"""`tenure ledger correct-time`: when it really was, where a clock was off."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from ledger.domain.bounds import bounds_of
from tenure.opening import opened, taken_over
from tenure.options import LedgerUrl
from tenure.times import iso_time

_SHIFT_MIN, _SHIFT_MAX = bounds_of("shift_seconds")


_HOLDER: Final = "tenure ledger correct-time"


def register(group: typer.Typer) -> None:
    """Add the command to `tenure ledger`."""
    group.command("correct-time")(correct_time)


def correct_time(
    *,
    first: Annotated[int, typer.Option("--first", min=1, help="First position with a wrong time.")],
    last: Annotated[int, typer.Option("--last", min=1, help="Last position of that clock.")],
    shift: Annotated[
        int,
        typer.Option(
            "--shift",
            min=_SHIFT_MIN,
            max=_SHIFT_MAX,
            help="Seconds to add to what the clock said; below 0 for one that was ahead.",
        ),
    ],
    reason: Annotated[str, typer.Option("--reason", help="Who found it, and how far it was off.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which times these would be.")
    ] = False,
    ledger: LedgerUrl = None,
) -> None:
    """
    Say when events really were that a wrong clock recorded. Their recorded times stay.

    What comes behind them counts by its own clock. Takes the ledger over: a process that writes it
    meanwhile is fenced.

    Example: tenure ledger correct-time --first 12 --last 12 --shift -31536000 --reason "ticket 12"
    """
    from ledger.domain.log.events import TimeCorrected
    from ledger.store.mending.correcting import check_correction, correct

    shift_seconds = shift
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
