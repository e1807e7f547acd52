"""`tenure ledger void`: the way out for an event that can't be."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.commands.ask import Ledger


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
    ledger: Ledger = None,
) -> None:
    """
    Declare an event void that `verify` names as impossible. It stays in the log.

    Takes the ledger over: a process that writes it meanwhile is fenced.

    Example: tenure ledger void 4711 --reason "put in by hand, see ticket 12" --ledger tenure.db
    """
    from tenure.asking.void import answer_void

    answer_void(position=position, reason=reason, dry_run=dry_run, ledger=ledger)
