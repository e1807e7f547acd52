"""`tenure ledger archive`: room in the log, without losing a word of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tenure.commands.ask import Ledger
from tenure.commands.proof import Key


def register(group: typer.Typer) -> None:
    """Add the command to `tenure ledger`."""
    group.command("archive")(archive)


def archive(
    *,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="The folder of the archive's files.")
    ],
    key: Key,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="TIME|POSITION",
            help="The events before this moment or position may go.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="N",
            help="So many of the newest events stay, in place of --before.",
            min=0,
            show_default=False,
        ),
    ] = None,
    ledger: Ledger = None,
) -> None:
    """
    Move old events to a compressed file that proves itself; state, history and usage stay.

    Takes the ledger over for one event: stop the service first. Whole blocks of 256 events go.

    Example: tenure ledger archive --to /archive --keep 1000000 --key cluster-1.key
    """
    from tenure.asking.archive import answer_archive

    answer_archive(ledger=ledger, to=to, key=key, before=before, keep=keep)
