"""`tenure demo`: a virtual week of a GPU cluster, from nothing to a report."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ledger.domain.errors import InputError
from tenure.exits import AnswerIsNo, with_next
from tenure.progress import counting_bar, progress_bar
from tenure.version import tenure_version

if TYPE_CHECKING:
    from ledger.store.open import Ledger
    from ledger.store.proving.verify import VerifyReport
    from tenure.simulate.results import Result


TUESDAY_1405: Final = timedelta(days=1, hours=14, minutes=5)
"""A busy moment of the week, from its start."""
BATCH: Final = 200
"""Decisions per durable commit."""


class Size(StrEnum):
    """How large the demonstration is."""

    SMALL = "small"
    FULL = "full"


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
    run_demo(size=size.value, directory=out, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Week:
    """How much of a week: nodes, Pods, and about how long it takes on two cores."""

    nodes: int
    pods: int
    seconds: int


SIZES: Final = {
    "small": Week(nodes=24, pods=1_000, seconds=10),
    "full": Week(nodes=204, pods=10_000, seconds=60),
}


def run_demo(*, size: str, directory: Path, seed: int) -> None:
    """
    Make the week in `directory`, decide and record it, prove the ledger, draw the report.

    Raises:
        InputError: the directory holds something that is not an earlier demonstration.
        AnswerIsNo: the proof failed, which would be a bug of ours.
    """
    from ledger.store.open import open_ledger
    from ledger.store.proving.verify import verify
    from tenure.report.build import read_report, write_report
    from tenure.simulate.trace.week import write_week

    chosen = SIZES[size]
    paths = _Paths(directory)
    _announce(chosen, paths)
    paths.clear()
    summary = write_week(paths.trace, nodes=chosen.nodes, pods=chosen.pods, seed=seed)
    typer.echo(
        f"  made      {summary['nodes']} nodes, {summary['cards']} cards, {summary['pods']} Pods"
    )
    result = _decide(paths, seed)
    with open_ledger(str(paths.ledger), mode="read") as ledger:
        with progress_bar("proving") as progress:
            proof = verify(ledger, progress)
        typer.echo(f"  proved    {proof.events} events in {proof.seconds:.1f} s")
        report = read_report(ledger, proof=proof, command="make demo", seed=str(seed))
        write_report(report, paths.report)
        typer.echo(f"  drawn     {paths.report}")
        hints = _hints(ledger, paths)
    typer.echo("")
    typer.echo(_headline(result, proof))
    typer.echo(hints)
    if not proof.ok:
        raise AnswerIsNo


class _Paths:
    """The files of the demonstration, all in one directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trace = directory / "trace"
        self.ledger = directory / "ledger.db"
        self.report = directory / "report.html"

    def clear(self) -> None:
        """Remove an earlier demonstration, and nothing else."""
        from tenure.simulate.trace.week import FORMAT

        header = self.trace / "trace.json"
        earlier = header.is_file() and FORMAT in header.read_text(encoding="utf-8")
        if self.ledger.exists() and not earlier:
            error = InputError(
                "there is a ledger that no demonstration made", place=str(self.ledger)
            )
            raise with_next(error, "choose another directory with --out")
        for suffix in ("", "-wal", "-shm"):
            self.ledger.with_name(self.ledger.name + suffix).unlink(missing_ok=True)
        self.trace.mkdir(parents=True, exist_ok=True)


def _announce(size: Week, paths: _Paths) -> None:
    typer.echo(
        f"A virtual week of a GPU cluster: {size.nodes} nodes, {size.pods:,} Pods of seven teams "
        "in every dialect, a dying card.\n"
        f"Every decision goes through the ledger. About {size.seconds} s and 60 MB, all of it in "
        f"{paths.directory}/.\n"
    )


def _decide(paths: _Paths, seed: int) -> Result:
    from scheduler.decide.settings import SchedulingSettings
    from tenure.simulate.runner import RunRecord, run_simulation
    from tenure.simulate.trace.reader import read_trace

    settings = SchedulingSettings(node_policy="fgd")
    run = read_trace(paths.trace, settings.vocabulary)
    with counting_bar("deciding", len(run.arrivals)) as progress:
        result = run_simulation(
            run,
            settings=settings,
            seed=seed,
            version=tenure_version(),
            clock=time.perf_counter,
            record=RunRecord(ledger=str(paths.ledger), batch=BATCH),
            progress=progress,
        )
    rate = result.tally.decisions / result.seconds
    typer.echo(
        f"  decided   {result.tally.decisions:,} times in {result.seconds:.1f} s "
        f"({rate:,.0f}/s, waiting Pods are tried again), ledger {paths.ledger}"
    )
    return result


def _headline(result: Result, proof: VerifyReport) -> str:
    decided = len(result.arrivals)
    proved = f"proved at every position in {proof.seconds:.1f} s" if proof.ok else "NOT PROVED"
    over = "0 cards ever above 100 %" if proof.ok else f"{len(proof.findings)} findings"
    return f"{decided:,} Pods decided, {result.tally.placed:,} placed, {over}, {proved}."


def _hints(ledger: Ledger, paths: _Paths) -> str:
    from ledger.store.reading.highlights import busiest_card, waiting_pod
    from tenure.simulate.trace.week import WEEK_START

    moment = WEEK_START + TUESDAY_1405
    tuesday = f"{moment:%Y-%m-%dT%H:%MZ}"
    at_us = round(moment.timestamp() * 1_000_000)
    card = busiest_card(ledger.connection, at_us) or "gpu-0000/0"
    waiting = waiting_pod(ledger.connection)
    option = f"--ledger {paths.ledger}"
    lines = [
        "",
        "Ask it:",
        f"  .venv/bin/tenure who {card} --at {tuesday} {option}",
        *([f"  .venv/bin/tenure why {waiting.path} {option}"] if waiting else []),
        f"  .venv/bin/tenure usage --by namespace {option}",
        f"  .venv/bin/tenure map {option}",
        f"  open {paths.report}   (one file, no network)",
        "",
        "Try to cheat, with nothing but Python's sqlite3 on the file:",
        *_cheats(ledger, paths),
    ]
    return "\n".join(lines)


def _cheats(ledger: Ledger, paths: _Paths) -> list[str]:
    """Return shell lines that try to break the ledger; the database refuses the first two."""
    from ledger.store.reading.highlights import ANOTHER_HISTORY, full_card

    lines = []
    card = full_card(ledger.connection)
    if card is not None:
        lines += [
            f"  # a second holder for {card.name}, which is full",
            _sql(paths, card.second_holder),
        ]
    lines += ["  # another history", _sql(paths, ANOTHER_HISTORY)]
    copy = paths.directory / "copy.db"
    flip = (
        f"""  python3 -c "import re; b = bytearray(open('{paths.ledger}', 'rb').read());"""
        """ m = [x.end() for x in re.finditer(b'pod_name.:.', b)]; b[m[len(m) // 2]] ^= 1;"""
        f""" open('{copy}', 'wb').write(b)\""""
    )
    lines += [
        "  # one byte in a copy of the file, behind the database's back",
        flip,
        f"  .venv/bin/tenure verify --ledger {copy}",
    ]
    return lines


def _sql(paths: _Paths, statement: str) -> str:
    return (
        f"""  python3 -c "import sqlite3; sqlite3.connect('{paths.ledger}')"""
        f""".execute(\\"{statement}\\")"
"""
    ).rstrip("\n")
