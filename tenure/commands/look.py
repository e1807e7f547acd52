"""`map` and `report`: the fleet in the terminal and on a page."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.commands.ask import At, Ledger, Output
from tenure.output import OutputFormat


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("map")(draw)
    app.command("report")(report)


def draw(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE...]",
            help="Manifests to show in place of a ledger; - for stdin.",
            show_default=False,
        ),
    ] = None,
    *,
    at: At = None,
    cpus: Annotated[
        bool, typer.Option("--cpus", help="Sockets, NUMA nodes, cores and who holds them.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Draw it again and again.")] = False,
    interval: Annotated[
        float, typer.Option(min=0.5, max=3600, metavar="SECONDS", help="Between two drawings.")
    ] = 2.0,
    ledger: Ledger = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Nodes and cards in the terminal: how full each card is, which are shared, free or closed.

    Example: tenure map --at "2h ago"

    Any cluster: kubectl get nodes,pods -A -o json | tenure map -

    CPUs: tenure map --cpus
    """
    from tenure.asking.show import answer_cpus, answer_map

    if cpus:
        answer_cpus(tuple(files or ()), at=at, watch=watch, ledger=ledger, output=output)
        return
    answer_map(
        tuple(files or ()), at=at, watch=watch, interval=interval, ledger=ledger, output=output
    )


def report(
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The page; - for stdout.")
    ] = "report.html",
    verify: Annotated[
        bool, typer.Option(help="Prove the ledger first; only then the page claims it.")
    ] = True,
    ledger: Ledger = None,
) -> None:
    """
    One self-contained HTML page: card map over time, capacity, refusals, GPU-hours.

    Example: tenure report -o report.html --ledger run.db
    """
    import shlex
    import sys

    from tenure.asking.show import write_page

    command = shlex.join(["tenure", *sys.argv[1:]])
    write_page(output, ledger=ledger, verified=verify, command=command)
