"""`tenure report`: one page of a ledger, or stdout."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from tenure.exits import AnswerIsNo, note, warn
from tenure.live.place import Place, expect_now
from tenure.opening import moment_of, time_of
from tenure.options import Files, LedgerUrl, Since, Until
from tenure.simulate.dump import ledger_of_files

STDOUT: Final = "-"


def report(
    files: Files = None,
    *,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The page; - for stdout.")
    ] = "report.html",
    verify: Annotated[
        bool, typer.Option(help="Prove the ledger first; only then the page claims it.")
    ] = True,
    since: Since = None,
    until: Until = None,
    ledger: LedgerUrl = None,
) -> None:
    """
    One self-contained HTML page: card map over time, capacity, refusals, GPU-hours.

    Example: tenure report -o report.html --ledger run.db

    Any cluster, as it is: kubectl get nodes,pods -A -o json | tenure report -

    Of a day: tenure report --since 2026-03-03T00:00Z --until 2026-03-04T00:00Z
    """
    import shlex

    from tenure.admin.verify import run_verify
    from tenure.report.build import Period, read_report, write_report
    from tenure.report.page import render

    expect_now(files, since=since, until=until)
    command = shlex.join(["tenure", *sys.argv[1:]])
    place = Place(ledger=ledger).over(files, ledger_of_files, decide=True)
    with place.opened() as source:
        now = time_of(source)
        period = Period(
            since_us=None if since is None else moment_of(since, now, option="--since"),
            until_us=None if until is None else moment_of(until, now, option="--until"),
        )
        proof = run_verify(source) if verify and not files else None
        report = read_report(source, proof=proof, command=command, period=period)
    if output == STDOUT:
        sys.stdout.write(render(report))
        return
    size = write_report(report, Path(output))
    note(f"report: {output}, {size / 1e6:.1f} MB; open it in a browser")
    if proof is not None and not proof.ok:
        warn(f"the ledger is {proof.outcome}, and the page says so: run `tenure verify`")
        raise AnswerIsNo
