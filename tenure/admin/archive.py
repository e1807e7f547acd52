"""`tenure ledger archive`: old events move to a compressed file that proves itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ledger.domain.errors import InputError, LedgerError
from tenure.exits import note, warn, with_next
from tenure.keys import private_key
from tenure.opening import clock_us, ledger_url, moment_of, time_of
from tenure.options import Key, LedgerUrl
from tenure.version import tenure_version

if TYPE_CHECKING:
    from ledger.signing import PrivateKey
    from ledger.store.archives.archive import Archived, Check
    from ledger.store.open import Ledger


_HOLDER: Final = "tenure ledger archive"


def archive(
    *,
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="The folder of the archive's files.")
    ],
    key: Key,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="TIME|POSITION",
            help="The events before this moment or position may go.",
            show_default=False,
        ),
    ] = None,
    keep: Annotated[
        int | None,
        typer.Option(
            "--keep",
            metavar="N",
            help="So many of the newest events stay, in place of --before.",
            min=0,
            show_default=False,
        ),
    ] = None,
    ledger: LedgerUrl = None,
) -> None:
    """
    Move old events to a compressed file that proves itself; state, history and usage stay.

    Takes the ledger over for one event: stop the service first. Whole blocks of 256 events go.

    Example: tenure ledger archive --to /archive --keep 1000000 --key cluster-1.key
    """
    from ledger.signing import sign_note
    from ledger.store.archives.archive import archive, orphans
    from ledger.store.open import open_ledger

    if not to.is_dir():
        raise with_next(InputError("no such folder", place=str(to)), "make it, for its owner alone")
    signer = private_key(key)
    with open_ledger(ledger_url(ledger), mode="write") as source:
        note(f"ledger: {source.url}")
        wall_us = 0 if source.is_simulation else clock_us()
        moved = archive(
            source,
            to,
            up_to=_up_to(source, before, keep),
            sign=lambda text: sign_note(text, signer),
            check=_proved_by(signer),
            holder=_HOLDER,
            version=tenure_version(),
            wall_us=wall_us,
        )
        left = orphans(source, to)
    for path in left:
        warn(f"no segment of this ledger names this file, left by an unfinished run: {path}")
    if moved is None:
        sys.stdout.write("nothing to archive: no whole 256 events behind the last segment may go\n")
        return
    _say(moved)


def _say(moved: Archived) -> None:
    kept = f", {moved.kept:,} of them stay in the log too" if moved.kept else ""
    sys.stdout.write(
        f"events {moved.first:,} to {moved.last:,} moved{kept}: {moved.size_bytes:,} bytes, proved:"
        f" {moved.path}\nposition {moved.position} tells of it\n"
    )


def _proved_by(signer: PrivateKey) -> Check:
    from tenure.offline import NotProvedError, check

    def proved(path: Path) -> None:
        try:
            check(path, str(signer.public))
        except NotProvedError as error:
            raise LedgerError(f"the file does not prove itself: {error}") from error

    return proved


def _up_to(source: Ledger, before: str | None, keep: int | None) -> int:
    from ledger.store.reading.timetravel import position_at

    if (before is None) == (keep is None):
        found = InputError("one of --before and --keep says how far")
        raise with_next(found, "such as --before 2026-01-01T00:00:00Z, or --keep 1000000")
    if keep is not None:
        return source.head().position - keep
    assert before is not None
    if before.isascii() and before.isdigit():
        return int(before) - 1
    return position_at(source, moment_of(before, time_of(source), option="--before") - 1)
