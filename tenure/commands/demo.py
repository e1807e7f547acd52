"""`tenure demo`: a virtual week of a GPU cluster, from nothing to a report."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Size(StrEnum):
    """How large the demonstration is."""

    SMALL = "small"
    FULL = "full"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("demo")(demo)


def demo(
    size: Annotated[Size, typer.Option(help="small: seconds; full: about a minute.")] = Size.FULL,
    out: Annotated[
        Path, typer.Option(file_okay=False, help="Directory for the trace, ledger and report.")
    ] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Same seed and size, same ledger.")] = 42,
) -> None:
    """
    Run a virtual week of a GPU cluster and leave its ledger and report.

    Example: tenure demo --size small --out demo
    """
    from tenure.demo import run_demo

    run_demo(size=size.value, directory=out, seed=seed)
