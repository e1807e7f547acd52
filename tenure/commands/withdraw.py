"""`tenure ledger withdraw`: the way out for a checkpoint that is false."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.commands.ask import Ledger


def register(group: typer.Typer) -> None:
    """Add the command to `tenure ledger`."""
    group.command("withdraw")(withdraw)


def withdraw(
    *,
    size: Annotated[int, typer.Argument(min=0, help="Of a kept checkpoint that `verify` names.")],
    reason: Annotated[str, typer.Option("--reason", help="Who found it, and why it is false.")],
    public_keys: Annotated[
        list[str] | None,
        typer.Option(
            "--public-key",
            metavar="VKEY",
            help="A key that is trusted, or its file; again for another. None of them signed it.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say whether it may be withdrawn.")
    ] = False,
    ledger: Ledger = None,
) -> None:
    """
    Withdraw a checkpoint that the ledger keeps and its events do not bear out. It stays there.

    Takes the ledger over: a process that writes it meanwhile is fenced.

    Example: tenure ledger withdraw 300 --public-key cluster-1.pub --reason "put in, ticket 12"
    """
    from tenure.asking.withdraw import answer_withdraw

    answer_withdraw(
        size=size, reason=reason, public_keys=public_keys or (), dry_run=dry_run, ledger=ledger
    )
