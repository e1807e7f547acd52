"""`tenure ledger void`: an impossible event counts for nothing."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from tenure.opening import opened, taken_over
from tenure.options import LedgerUrl

_HOLDER: Final = "tenure ledger void"


def register(group: typer.Typer) -> None:
    """Add the command to `tenure ledger`."""
    group.command("void")(void)


def void(
    *,
    position: Annotated[int, typer.Argument(min=1, help="Of an event that `verify` names.")],
    reason: Annotated[str, typer.Option("--reason", help="Who found it, and why it can't be.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say whether the event may be declared void.")
    ] = False,
    ledger: LedgerUrl = None,
) -> None:
    """
    Declare an event void that `verify` names as impossible. It stays in the log.

    Takes the ledger over: a process that writes it meanwhile is fenced.

    Example: tenure ledger void 4711 --reason "put in by hand, see ticket 12" --ledger tenure.db
    """
    from ledger.store.mending.voiding import declare_void, impossible_event

    with opened(ledger, mode="read" if dry_run else "write") as source:
        event = impossible_event(source, position)
        for finding in event.findings:
            sys.stdout.write(f"{finding}\n")
        if dry_run:
            sys.stdout.write(f"would be void: position={position}, {event.event_type}\n")
            return
        writer, wall_us = taken_over(source, _HOLDER)
        at = declare_void(writer, event, reason, wall_us=wall_us)
    sys.stdout.write(f"void: position={position}, {event.event_type}, by the event at {at}\n")
