"""`tenure report`: one page of a ledger, or stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from tenure.exits import AnswerIsNo, note, warn
from tenure.opening import opened
from tenure.options import LedgerUrl

STDOUT: Final = "-"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("report")(report)


def report(
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The page; - for stdout.")
    ] = "report.html",
    verify: Annotated[
        bool, typer.Option(help="Prove the ledger first; only then the page claims it.")
    ] = True,
    ledger: LedgerUrl = None,
) -> None:
    """
    One self-contained HTML page: card map over time, capacity, refusals, GPU-hours.

    Example: tenure report -o report.html --ledger run.db
    """
    import shlex

    from tenure.admin.verify import run_verify
    from tenure.report.build import page_of, write_report

    command = shlex.join(["tenure", *sys.argv[1:]])
    with opened(ledger) as source:
        proof = run_verify(source) if verify else None
        if output == STDOUT:
            sys.stdout.write(page_of(source, proof=proof, command=command))
            return
        size = write_report(source, Path(output), proof=proof, command=command)
    note(f"report: {output}, {size / 1e6:.1f} MB; open it in a browser")
    if proof is not None and not proof.ok:
        warn("the ledger does not prove itself, and the page says so: run `tenure verify`")
        raise AnswerIsNo
