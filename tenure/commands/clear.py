"""`tenure ledger clear`: the explicit act that opens what a lost node's Pods held."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.commands.ask import Ledger


def register(group: typer.Typer) -> None:
    """Add the command to `tenure ledger`."""
    group.command("clear")(clear)


def clear(
    *,
    node: Annotated[str, typer.Argument(help="A lost node's name or UID.")],
    reason: Annotated[str, typer.Option("--reason", help="Who made sure that nothing runs, how.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say which holders would be ended.")
    ] = False,
    ledger: Ledger = None,
) -> None:
    """
    Say that nothing runs any more which a lost node's Pods held: their cards and CPUs open.

    Takes the ledger over: a process that writes it meanwhile is fenced.

    Example: tenure ledger clear gpu-0042 --reason "powered off, ticket 12" --ledger tenure.db
    """
    from tenure.asking.clear import answer_clear

    answer_clear(node=node, reason=reason, dry_run=dry_run, ledger=ledger)
