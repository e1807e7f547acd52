"""`tenure ledger replay`: decide again what a ledger says was decided."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tenure.commands.ask import Ledger, Output
from tenure.output import OutputFormat


def register(group: typer.Typer) -> None:
    """Add the command to `tenure ledger`."""
    group.command("replay")(replay)


def replay(
    position: Annotated[
        int | None,
        typer.Argument(
            metavar="[POSITION]",
            help="Decide only this event again. Default: every decision.",
            min=1,
            show_default=False,
        ),
    ] = None,
    *,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="Decide by these settings. Default: by those that the ledger recorded.",
            show_default=False,
        ),
    ] = None,
    ledger: Ledger = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Decide again, from the events alone, and say what comes out otherwise. Exit 1 if anything does.

    Example: tenure ledger replay 1042 --ledger run.db
    """
    from tenure.asking.replay import answer_replay

    answer_replay(position, config=config, ledger=ledger, output=output)
