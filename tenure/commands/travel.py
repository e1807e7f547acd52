"""`tenure ledger state` and `tenure ledger snapshot`: the state at any moment, and keeping it."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.commands.ask import Ledger, Output, Segments
from tenure.output import OutputFormat


def register(group: typer.Typer) -> None:
    """Add the commands to `tenure ledger`."""
    group.command("state")(state)
    group.command("snapshot")(snapshot)


def state(
    *,
    at: Annotated[
        str | None, typer.Option("--at", help="The state at this time; the default is the head.")
    ] = None,
    position: Annotated[
        int | None, typer.Option("--position", min=0, help="The state after this event.")
    ] = None,
    segments: Segments = None,
    ledger: Ledger = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Show who held what on every node, folded from the events alone.

    Example: tenure ledger state --at 2026-03-02T14:05:00Z -o json
    """
    from tenure.asking.travel import answer_state

    answer_state(at=at, position=position, ledger=ledger, output=output, segments=segments)


def snapshot(*, ledger: Ledger = None, output: Output = OutputFormat.TABLE) -> None:
    """
    Store the folded state in a ledger file, so that a start reads only the events after it.

    Takes the file over: a process that writes it meanwhile is fenced.

    Example: tenure ledger snapshot --ledger tenure.db
    """
    from tenure.asking.travel import answer_snapshot

    answer_snapshot(ledger=ledger, output=output)
