"""`tenure verify` and `tenure status`: does the ledger prove itself, and where does it stand."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from ledger.domain.errors import InputError
from ledger.store import report_queries as queries
from tenure.asking.opening import ledger_url, opened
from tenure.exits import AnswerIsNo
from tenure.look.fleet import GONE
from tenure.output import Column, OutputFormat, one_line, write_answer
from tenure.progress import progress_bar
from tenure.times import iso_time

if TYPE_CHECKING:
    from ledger.store.open import Ledger
    from ledger.store.verify import VerifyReport

FINDINGS_SHOWN: Final = 50

_FINDING_COLUMNS: Final = (
    Column(key="position", title="POSITION", right=True),
    Column(key="finding", title="FINDING"),
)
_STATUS_COLUMNS: Final = (Column(key="what", title="WHAT"), Column(key="value", title="VALUE"))


def answer_verify(*, ledger: str | None, output: OutputFormat) -> None:
    """
    Prove the ledger: chain, constraints at every position, projection equal to the fold.

    Rule: cli.md, Commands: exit 1 when the answer is no.

    Raises:
        AnswerIsNo: it does not prove itself; the findings are printed.
    """
    report = _proved(ledger)
    findings = [
        {"position": finding.position, "finding": finding.text} for finding in report.findings
    ]
    document = {
        "ok": report.ok,
        "events": report.events,
        "seconds": round(report.seconds, 3),
        "findings": findings,
    }
    if not output.is_table:
        write_answer(output, findings, _FINDING_COLUMNS, document=document)
    elif report.ok:
        sys.stdout.write(
            f"{report.events:,} events, chain ok, 0 over-commits at every position,"
            f" projection = fold, {report.seconds:.1f} s\n"
        )
    else:
        sys.stdout.write(f"{report.events:,} events, NOT PROVED: {len(findings)} findings\n")
        write_answer(output, findings[:FINDINGS_SHOWN], _FINDING_COLUMNS)
    if not report.ok:
        raise AnswerIsNo


def _proved(ledger: str | None) -> VerifyReport:
    """Prove a ledger; a file that was one and can't even be opened is a finding too."""
    from ledger.store.damage import was_a_ledger
    from ledger.store.open import sqlite_path
    from ledger.store.verify import unopened

    try:
        with opened(ledger) as source:
            return run_verify(source)
    except InputError as error:
        path = sqlite_path(ledger_url(ledger))
        if not error.message.startswith("not a ledger") or not was_a_ledger(path):
            raise
        return unopened(error.message.removeprefix("not a ledger: "))


def run_verify(source: Ledger) -> VerifyReport:
    """Prove a ledger, with a progress bar where someone is watching."""
    from ledger.store.verify import verify

    with progress_bar("verifying") as progress:
        return verify(source, progress)


def answer_status(*, ledger: str | None, output: OutputFormat) -> None:
    """Print which ledger this is, where its head stands, and how much it holds."""
    with opened(ledger) as source:
        record = status_record(source)
    rows = [{"what": key.replace("_", " "), "value": value} for key, value in record.items()]
    write_answer(output, rows, _STATUS_COLUMNS, document=record)


def status_record(source: Ledger) -> dict[str, Any]:
    """Return where a ledger stands, as one record."""
    head = source.head()
    with source.connection.begin():
        devices = [d for d in queries.devices(source.connection) if d.closed_reason != GONE]
        counts = queries.counts(source.connection)
        nodes = queries.nodes(source.connection)
    gpus = [device for device in devices if device.device_type == "gpu"]
    return {
        "ledger": source.url,
        "origin": one_line(head.origin),
        "head": head.position,
        "head_at": iso_time(head.at_us) if head.position else None,
        "chain_head": head.chain_hash.hex(),
        "epoch": head.epoch,
        "nodes": len(nodes),
        "cards": len(gpus),
        "cards_held": sum(1 for device in gpus if device.tenants),
        "cards_closed": sum(1 for device in gpus if device.closed_reason),
        "pods_decided": counts.decided,
        "pods_placed": counts.placed,
        "pods_refused": counts.refused,
        "pods_waiting": counts.waiting,
    }
