"""`tenure ledger export`: events in a file that proves itself to whoever has the public key."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import structs

from ledger.domain.errors import InputError, LedgerError
from tenure.admin.checkpoint import NotSignedError, expect_events, parsed_checkpoint
from tenure.exits import with_next
from tenure.keys import private_key
from tenure.opening import opened
from tenure.options import LedgerUrl

if TYPE_CHECKING:
    from ledger.signing import Checkpoint, PublicKey
    from ledger.store.open import Ledger
    from tenure.offline import Export


def export(
    *,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="A new file, such as ledger.jsonl.gz.")
    ],
    first: Annotated[
        int, typer.Option("--from", metavar="POSITION", help="The first event.", min=1)
    ] = 1,
    last: Annotated[
        int | None,
        typer.Option("--to", metavar="POSITION", help="The last event. Default: the head.", min=1),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key", metavar="FILE", help="A signer key, to sign the end.", show_default=False
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE",
            help="A note that was signed before, in place of --key.",
            show_default=False,
        ),
    ] = None,
    ledger: LedgerUrl = None,
) -> None:
    """
    Write events to a compressed file that proves itself, with `python -m tenure.offline`.

    Example: tenure ledger export --out ledger.jsonl.gz --key cluster-1.key
    """
    # The file appears under its name only when it is on disk and was read back whole.
    if key is not None and checkpoint is not None:
        raise typer.BadParameter("--key and --checkpoint exclude each other")
    from ledger.signing import sign_note
    from ledger.store.proving.checkpoints import checkpoint_at

    if out.exists():
        raise with_next(InputError("there is a file already", place=str(out)), "name a new file")
    given = checkpoint.read_text(encoding="utf-8") if checkpoint is not None else ""
    if given and last is None:
        last = parsed_checkpoint(given, place=str(checkpoint)).size
    with opened(ledger) as source:
        expect_events(source)
        tree = checkpoint_at(source, last)
        if not 1 <= first <= tree.size:
            raise InputError(f"no such events: from={first}, to={tree.size}", place=source.url)
        if given and parsed_checkpoint(given, place=str(checkpoint)) != tree:
            raise InputError(
                f"the checkpoint is not of these events: to={tree.size}", place=str(checkpoint)
            )
        signed = sign_note(tree.text(), private_key(key)) if key is not None else given
        written = _write(out, _lines(source, first, tree, signed))
    if written.root != tree.root:
        _partial(out).unlink()
        raise LedgerError(f"the export was read back with another root: file={out}")
    _rename(out)
    size = out.stat().st_size
    sys.stdout.write(f"{tree.size - first + 1:,} events, {size:,} bytes, read back: {out}\n")


def proved_export(path: Path, key: PublicKey) -> Export:
    """Read an export that its own signature proves. Raises NotSignedError: it does not."""
    from tenure.offline import NotProvedError, check

    try:
        return check(path, str(key))
    except NotProvedError as error:
        raise NotSignedError(
            f"the export does not prove itself: {error}", place=str(path)
        ) from error


def _lines(source: Ledger, first: int, tree: Checkpoint, signed: str) -> Iterator[str]:
    from ledger.domain.proofs.canonical import canonical_json
    from ledger.domain.proofs.hashing import GENESIS
    from ledger.domain.proofs.merkle import split_hashes
    from ledger.store.proving.checkpoints import range_before
    from tenure.offline import FORMAT

    whole = first == 1  # the chain before a part is nothing that its signature covers
    yield canonical_json(
        {
            **({"chain_hash": GENESIS.hex()} if whole else {}),
            "first": first,
            "format": FORMAT,
            "last": tree.size,
            "origin": tree.origin,
            "range": [each.hex() for each in split_hashes(range_before(source, first))],
        }
    )
    for event in source.read_events(after=first - 1, limit=tree.size - first + 1):
        chain = {"chain_hash": event.chain_hash.hex()} if whole else {}
        leaf = {"leaf_hash": event.leaf_hash.hex()}
        yield canonical_json(structs.asdict(event.envelope) | leaf | chain)
    if signed:
        yield canonical_json({"checkpoint": signed})


def _write(out: Path, lines: Iterator[str]) -> Export:
    """Write the lines under a temporary name, force them to disk, and read them back."""
    import gzip

    from tenure.offline import NotProvedError, read

    partial = _partial(out)
    try:
        with partial.open("wb") as file:
            with gzip.GzipFile(fileobj=file, mode="wb", filename="", mtime=0) as packed:
                for line in lines:
                    packed.write(f"{line}\n".encode())
            file.flush()
            os.fsync(file.fileno())
        return read(partial)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, NotProvedError):
            raise LedgerError(f"the export can't be read back: {error}") from error
        raise


def _rename(out: Path) -> None:
    _partial(out).replace(out)
    folder = os.open(out.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the name too is on disk
    finally:
        os.close(folder)


def _partial(out: Path) -> Path:
    return out.with_name(f".{out.name}.partial")
