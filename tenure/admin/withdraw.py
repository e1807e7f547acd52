"""`tenure ledger withdraw`: a false checkpoint that the ledger keeps counts for nothing."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from tenure.keys import public_key
from tenure.opening import opened, taken_over
from tenure.options import LedgerUrl

_HOLDER: Final = "tenure ledger withdraw"


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
    ledger: LedgerUrl = None,
) -> None:
    """
    Withdraw a checkpoint that the ledger keeps and its events do not bear out. It stays there.

    Takes the ledger over: a process that writes it meanwhile is fenced.

    Example: tenure ledger withdraw 300 --public-key cluster-1.pub --reason "put in, ticket 12"
    """
    from ledger.store.mending.voiding import false_checkpoint, withdraw

    trusted = [public_key(text) for text in public_keys or ()]
    with opened(ledger, mode="read" if dry_run else "write") as source:
        found = false_checkpoint(source, size, trusted)
        for finding in found.findings:
            sys.stdout.write(f"{finding}\n")
        if dry_run:
            sys.stdout.write(f"would be withdrawn: the checkpoint of size {size}\n")
            return
        writer, wall_us = taken_over(source, _HOLDER)
        at = withdraw(writer, found, reason, wall_us=wall_us)
    sys.stdout.write(f"withdrawn: the checkpoint of size {size}, by the event at {at}\n")
