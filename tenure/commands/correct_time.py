"""`tenure ledger correct-time`: the way out for times that a wrong clock recorded."""

from __future__ import annotations

from typing import Annotated

import typer

from ledger.domain.bounds import bounds_of
from tenure.commands.ask import Ledger

_SHIFT_MIN, _SHIFT_MAX = bounds_of("shift_seconds")


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
    ledger: Ledger = None,
) -> None:
    """
    Say when events really were that a wrong clock recorded. Their recorded times stay.

    What comes behind them counts by its own clock. Takes the ledger over: a process that writes it
    meanwhile is fenced.

    Example: tenure ledger correct-time --first 12 --last 12 --shift -31536000 --reason "ticket 12"
    """
    from tenure.asking.correct_time import answer_correct_time

    answer_correct_time(
        first=first,
        last=last,
        shift_seconds=shift,
        reason=reason,
        dry_run=dry_run,
        ledger=ledger,
    )
