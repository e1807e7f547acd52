"""`tenure verify`: whether a ledger proves itself."""

from __future__ import annotations

import sys
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ledger.domain.errors import InputError
from tenure.exits import NO, NOT_COMPARED, AnswerIsNo
from tenure.opening import ledger_url, opened
from tenure.options import LedgerUrl, Output, Segments
from tenure.output import Column, OutputFormat, fitted, one_line, write_answer
from tenure.progress import progress_bar
from tenure.units import format_duration

if TYPE_CHECKING:
    from ledger.signing import Checkpoint
    from ledger.store.mending.acts import Withdrawal
    from ledger.store.open import Ledger
    from ledger.store.proving.tree_proof import KeptCheckpoint
    from ledger.store.proving.verify import VerifyReport


FINDINGS_SHOWN: Final = 50
_FINDING_COLUMNS: Final = (
    Column(key="position", title="POSITION", right=True),
    Column(key="finding", title="FINDING"),
)


def verify(
    *,
    checkpoint: Annotated[
        list[Path] | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE",
            help="A signed note that was kept elsewhere. May be given several times.",
            show_default=False,
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            "--export",
            metavar="FILE",
            help="An exported file: names the first position that differs.",
            show_default=False,
        ),
    ] = None,
    proof: Annotated[
        Path | None,
        typer.Option(
            "--proof",
            metavar="FILE",
            help="What `tenure ledger prove` printed: checked alone, without a ledger.",
            show_default=False,
        ),
    ] = None,
    public_key: Annotated[
        str | None,
        typer.Option(
            "--public-key",
            metavar="VKEY",
            help="Who is trusted, and signed them: a public key or its file.",
            show_default=False,
        ),
    ] = None,
    segments: Segments = None,
    ledger: LedgerUrl = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Prove the ledger: hash chain, constraints at every position, projection equal to the events.

    Exit 1 when it does not prove itself; the findings name positions. Exit 4 when nothing is wrong,
    and rows of archived events could not be compared.

    Example: tenure verify --ledger run.db

    Against a rewritten or shortened ledger: tenure verify --checkpoint NOTE --public-key VKEY

    One event, without a ledger: tenure verify --proof FILE --checkpoint NOTE --public-key VKEY
    """
    from ledger.domain.log.clock import SKEW_MAX_US

    if proof is not None:
        from tenure.admin.proofs import answer_proof

        if not checkpoint or public_key is None:
            raise typer.BadParameter("--proof goes with --checkpoint and --public-key")
        if export or segments or ledger:
            raise typer.BadParameter("--proof is checked alone: no --ledger, --export, --segments")
        answer_proof(proof, checkpoint, public_key, output)
        return
    if (checkpoint or export) and public_key is None:
        raise typer.BadParameter("--checkpoint and --export go with --public-key")
    report, noted = _proved(ledger, checkpoint or (), export, public_key, segments)
    findings = [
        {"position": finding.position, "finding": finding.text} for finding in report.findings
    ]
    document = {
        "ok": report.ok,
        "outcome": report.outcome,
        "not_compared": [asdict(each) for each in report.not_compared],
        "events": report.events,
        "archived_unread": report.unread,
        "seconds": round(report.seconds, 3),
        "ahead_of_clock_us": report.ahead_us,
        "ahead_at_position": report.ahead_position,
        "withdrawn": [
            {
                "size": each.event.size,
                "position": each.position,
                "actor": each.actor,
                "reason": each.event.reason,
                "keys": list(each.event.keys),
            }
            for each in report.withdrawn
        ],
        "checkpoints": [
            {"note": note, "size": each.size, "origin": each.origin, "root": each.root.hex()}
            for note, each in noted
        ],
        "findings": findings,
    }
    if not output.is_table:
        write_answer(output, findings, _FINDING_COLUMNS, document=document)
    elif not report.findings:
        _say(_sound(report))
        for note, kept in noted:
            _say(
                f"{one_line(note)}: signature ok, root {b64encode(kept.root).decode()} is that of"
                f" the first {kept.size:,} of {report.events:,} events\n"
            )
        if report.unread:
            rows = "other rows" if report.not_compared else "rows"
            _say(
                f"events 1 to {report.unread:,} are in an archive: their hashes were proved, and"
                f" {rows} that ended there are those that the log commits to; their words and the"
                " capacity at each were not read; --segments DIR reads them\n"
            )
    else:
        _say(f"{report.events:,} events, NOT PROVED: {len(findings)} findings\n")
        write_answer(output, findings[:FINDINGS_SHOWN], _FINDING_COLUMNS)
    if output.is_table:
        for each in report.withdrawn:
            _say(_withdrawn(each))
    if output.is_table and report.ahead_us > SKEW_MAX_US:
        ahead = format_duration(report.ahead_us)
        at = f"position {report.ahead_position:,}"
        _say(f"time runs up to {ahead} ahead of the recorded clock, at {at}\n")
    if not report.ok:
        raise AnswerIsNo(NO if report.findings else NOT_COMPARED)


def _sound(report: VerifyReport) -> str:
    """Return the lines about a ledger in which nothing is wrong: what was proved, and what not."""
    since = f" from {report.unread + 1:,} on" if report.unread else ""
    folded = "projection = fold" if report.ok else "NOT COMPARED: rows that ended in an archive"
    text = (
        f"{report.events:,} events, chain ok, 0 over-commits at every position{since}, {folded},"
        f" {report.seconds:.1f} s\n"
    )
    for each in report.not_compared:
        rows = f"{each.first:,} to {each.last:,}: {', '.join(each.tables)}"
        text += f"not compared, for the log has no digest of rows that ended in {rows}\n"
    return text


def _say(line: str) -> None:
    sys.stdout.write(fitted(line))


def _withdrawn(withdrawal: Withdrawal) -> str:
    """Return the line about a checkpoint that counts for nothing: by whom, why, who was tried."""
    event = withdrawal.event
    tried = f", not signed by {', '.join(event.keys)}" if event.keys else ""
    by = one_line(f"{withdrawal.actor}: {event.reason}{tried}")
    return (
        f"checkpoint of size {event.size} withdrawn at position {withdrawal.position:,} by {by}\n"
    )


def _proved(
    ledger: str | None,
    checkpoints: Sequence[Path],
    export: Path | None,
    public_key: str | None,
    segments: Path | None,
) -> tuple[VerifyReport, Sequence[tuple[str, Checkpoint]]]:
    """
    Prove a ledger; return the report, and against which checkpoints, each with where it was read.

    Where there is no ledger any more, what tells that there was one is a finding.
    """
    try:
        with opened(ledger) as source:
            witness, noted, refusals = _witness(source, checkpoints, export, public_key)
            return _with(run_verify(source, witness, segments), refusals), noted
    except InputError as error:
        if not error.message.startswith("not a ledger"):
            raise
        from ledger.store.place import is_postgres, sqlite_path
        from ledger.store.proving.damage import was_a_ledger
        from ledger.store.proving.verify import unopened

        kept, url = _kept(checkpoints, export, public_key), ledger_url(ledger)
        if not kept and (is_postgres(url) or not was_a_ledger(sqlite_path(url))):
            raise  # a server answers for itself
        fact = error.message.removeprefix("not a ledger: ")
        return _with(unopened(fact), kept), ()


def _kept(checkpoints: Sequence[Path], export: Path | None, public_key: str | None) -> list[str]:
    """Return what was kept of a ledger that is none any more, whoever signed it, as findings."""
    from tenure.admin.checkpoint import NotSignedError, parsed_checkpoint
    from tenure.admin.export import proved_export
    from tenure.keys import public_key as read_key

    found = []
    for path in checkpoints:
        signed = parsed_checkpoint(path.read_text(encoding="utf-8"), place=str(path))
        found.append(f"there is no ledger, and the checkpoint says {signed.size} events: {path}")
    if export is not None and public_key is not None:
        try:
            last = proved_export(export, read_key(public_key)).last
            found.append(f"there is no ledger, and the export has events up to {last}: {export}")
        except NotSignedError as error:
            found.append(str(error))
    return found


def run_verify(
    source: Ledger, witness: KeptCheckpoint | None = None, segments: Path | None = None
) -> VerifyReport:
    """Prove a ledger, with a progress bar where someone is watching."""
    from ledger.store.proving.tree_proof import NO_WITNESS
    from ledger.store.proving.verify import verify

    with progress_bar("verifying") as progress:
        kept = witness or NO_WITNESS
        return verify(source, progress, witness=kept, segments=segments)


def _witness(
    source: Ledger, checkpoints: Sequence[Path], export: Path | None, public_key: str | None
) -> tuple[KeptCheckpoint | None, list[tuple[str, Checkpoint]], list[str]]:
    """Read what was kept outside; return what is signed, where, and why the rest is no witness."""
    if public_key is None:
        return None, [], []
    from ledger.store.proving.checkpoints import trusted_keys
    from ledger.store.proving.tree_proof import KeptCheckpoint
    from tenure.admin.checkpoint import NotSignedError, checkpoint_of, parsed_checkpoint
    from tenure.admin.export import proved_export
    from tenure.keys import public_key as read_key

    key = read_key(public_key)
    trusted = tuple(trusted_keys(source, [key]).keys.values())
    leaves: Sequence[bytes] = ()
    first, noted, refusals = 1, [], []
    for path in checkpoints:
        text = path.read_text(encoding="utf-8")
        try:
            noted.append((str(path), checkpoint_of(source, text, key, place=str(path))))
        except NotSignedError as error:
            refusals.append(str(error))
    if export is not None:
        try:
            told = proved_export(export, key)
        except NotSignedError as error:
            refusals.append(str(error))
        else:
            noted.append((str(export), parsed_checkpoint(told.note, place=str(export))))
            leaves, first = told.leaves, told.first
    signed = tuple(each for _, each in noted)
    witness = KeptCheckpoint(checkpoints=signed, leaves=leaves, first=first, keys=trusted)
    return witness, noted, refusals


def _with(report: VerifyReport, refusals: Sequence[str]) -> VerifyReport:
    from ledger.store.proving.verify import Finding

    found = tuple(Finding(position=None, text=each) for each in refusals)
    return replace(report, findings=(*report.findings, *found))
