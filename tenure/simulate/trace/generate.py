"""`tenure trace generate`: clusters and arrivals to try things on, from published statistics."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tenure.commands import Commands


class Profile(StrEnum):
    """What a generated trace looks like."""

    OPENB = "openb"
    WEEK = "week"


def register(app: typer.Typer) -> None:
    """Add the `trace` group to the command line."""
    group = typer.Typer(
        cls=Commands,
        help="Make traces to simulate on.",
        no_args_is_help=True,
    )
    group.command("generate")(generate)
    app.add_typer(group, name="trace")


def generate(
    like: Annotated[
        Profile,
        typer.Option(
            help="openb: the published trace's format and shapes; week: API objects, lifetimes, "
            "faults."
        ),
    ],
    nodes: Annotated[int, typer.Option(min=1, max=20_000, help="GPU nodes.")],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", file_okay=False, help="Directory to write; made if missing."
        ),
    ],
    seed: Annotated[int, typer.Option(help="Same seed and size, same bytes.")] = 42,
    pods: Annotated[
        int | None,
        typer.Option(min=1, max=1_000_000, help="Arrivals (week only; default 50 a node)."),
    ] = None,
) -> None:
    """
    Write a seeded cluster and its arrivals, drawn from published shape statistics.

    Example: tenure trace generate --like openb --nodes 1213 --seed 7 -o trace
    then: tenure simulate --openb-nodes trace/nodes.csv --openb-pods trace/pods.csv --policy fgd
    """
    from ledger.domain.errors import InputError
    from tenure.simulate.trace.shapes import write_openb_like
    from tenure.simulate.trace.week import write_week

    if like is Profile.OPENB and pods is not None:
        raise InputError(
            "the openb profile has the published ratio of Pods to nodes", field="--pods"
        )
    try:
        output.mkdir(parents=True, exist_ok=True)
        if like is Profile.OPENB:
            summary = write_openb_like(output, nodes=nodes, seed=seed)
        else:
            summary = write_week(output, nodes=nodes, pods=pods or 50 * nodes, seed=seed)
    except OSError as error:
        raise InputError(f"can't write the trace: {error.strerror}", place=str(output)) from error
    typer.echo(f"{output}: " + ", ".join(f"{count} {what}" for what, count in summary.items()))
