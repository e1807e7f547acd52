"""`tenure ledger key|checkpoint|prove`: what an auditor keeps and checks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ledger.domain.errors import InputError
from tenure.commands import Commands
from tenure.exits import with_next
from tenure.keys import private_key
from tenure.opening import clock_us, ledger_url, opened, taken_over
from tenure.options import Key, LedgerUrl
from tenure.version import tenure_version

if TYPE_CHECKING:
    from ledger.signing import Checkpoint, PublicKey
    from ledger.store.open import Ledger


_HOLDER: Final = "tenure ledger key rotate"


def register(group: typer.Typer) -> None:
    """Add the commands to `tenure ledger`."""
    keys = typer.Typer(
        cls=Commands, help="Make and change the keys that sign checkpoints.", no_args_is_help=True
    )
    keys.command("new")(new)
    keys.command("rotate")(rotate)
    group.add_typer(keys, name="key")
    group.command("checkpoint")(checkpoint)
    group.command("prove")(prove)


def new(
    *,
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="One word, such as the cluster's name.")
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="A new file, for its owner alone.")
    ],
) -> None:
    """
    Make an Ed25519 key. The file holds the secret; the public key is printed.

    Example: tenure ledger key new --name cluster-1 --out cluster-1.key
    """
    from ledger.signing import PrivateKey

    key = PrivateKey.new(name)
    try:
        descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        found = InputError("there is a file already", place=str(out))
        raise with_next(found, "keys are never overwritten: name a new file") from error
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"{key.text()}\n")
        file.flush()
        os.fsync(file.fileno())
    sys.stdout.write(f"{key.public}\n")


def rotate(
    *,
    old: Annotated[
        Path, typer.Option("--old", metavar="FILE", help="The signer key in force until now.")
    ],
    new_key: Annotated[
        Path, typer.Option("--new", metavar="FILE", help="The signer key from here on.")
    ],
    ledger: LedgerUrl = None,
) -> None:
    """
    Record that another key signs from here on, signed by both. Stop the service first.

    Example: tenure ledger key rotate --old 2026.key --new 2027.key --ledger tenure.db
    """
    from ledger.domain.log.events import KeyRotated
    from ledger.domain.log.recorded import NewEvent
    from ledger.signing import rotation_text, sign_note
    from ledger.store.proving.checkpoints import key_at

    before, after = private_key(old), private_key(new_key)
    url = ledger_url(ledger)
    if "://" in url and not url.startswith("sqlite:///"):
        raise InputError("only a local SQLite ledger is written from here", place=url)
    if str(before.public) == str(after.public):
        raise InputError("the new key is the old one", place=str(new_key))
    with opened(ledger, mode="write") as target:
        origin = target.head().origin
        if not origin:
            raise nothing_recorded(target)
        follows = key_at(target, before.public, origin, target.head().position)
        if str(follows) != str(before.public):
            found = InputError(f"the old key signs no more: {follows} follows it", place=url)
            raise with_next(found, "rotate from the key that signs now")
        event = KeyRotated(
            old_key=str(before.public),
            new_key=str(after.public),
            note=sign_note(rotation_text(origin, before.public, after.public), before, after),
        )
        writer = target.start_epoch(_HOLDER, origin, tenure_version(), wall_us=clock_us())
        position = writer.append(
            [
                NewEvent(
                    stream="sys",
                    event=event,
                    actor=_HOLDER,
                    idempotency_key=f"key:{before.public}:{after.public}",
                    wall_us=clock_us(),
                )
            ]
        )
    sys.stdout.write(f"position {position}: {after.public} follows {before.public}\n")


def checkpoint(
    *,
    key: Key,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write the note to a file too.", show_default=False
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Take the ledger over, and store it there too.")
    ] = False,
    ledger: LedgerUrl = None,
) -> None:
    """
    Sign the ledger as it is now. Keep the note elsewhere: it shows every change of what it covers.

    Example: tenure ledger checkpoint --key cluster-1.key --out monday.checkpoint
    """
    from ledger.signing import sign_note
    from ledger.store.proving.checkpoints import checkpoint_at, store_checkpoint

    signer = private_key(key)
    with opened(ledger, mode="write" if keep else "read") as source:
        expect_events(source)
        tree = checkpoint_at(source)
        signed = sign_note(tree.text(), signer)
        if keep:
            writer, wall_us = taken_over(source, "tenure ledger checkpoint")
            store_checkpoint(writer, tree, signed, wall_us=wall_us)
    if out is not None:
        out.write_text(signed, encoding="utf-8")
    sys.stdout.write(signed)


def prove(
    position: Annotated[int, typer.Argument(metavar="POSITION", help="The event to prove.", min=1)],
    *,
    start: Annotated[
        int | None,
        typer.Option(
            "--from",
            metavar="SIZE",
            help="Prove too that the tree of this size grew into this one.",
            min=0,
            show_default=False,
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--size", metavar="SIZE", help="The tree to prove in. Default: all events.", min=1
        ),
    ] = None,
    ledger: LedgerUrl = None,
) -> None:
    """
    Prove that an event is in the ledger, and that an older ledger is its beginning. JSON.

    Example: tenure ledger prove 1042 --from 1000 > 1042.proof

    Check it, without a ledger: tenure verify --proof 1042.proof --checkpoint NOTE --public-key VKEY
    """
    from ledger.store.proving.checkpoints import checkpoint_at, prove_consistency, prove_inclusion

    with opened(ledger) as source:
        expect_events(source)
        tree = checkpoint_at(source, size)
        included = prove_inclusion(source, position, tree.size)
        document: dict[str, Any] = {
            "origin": tree.origin,
            "size": tree.size,
            "root": tree.root.hex(),
            "inclusion": {
                "position": included.position,
                "leaf_index": included.position - 1,
                "leaf_hash": included.leaf_hash.hex(),
                "proof": [each.hex() for each in included.proof],
            },
        }
        words = _words(source, position)
        if words:
            document["event"] = words
        if start is not None:
            [older] = prove_consistency(source, [start], tree.size)
            document["consistency"] = {
                "size": older.size,
                "root": older.root.hex(),
                "proof": [each.hex() for each in older.proof],
            }
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def _words(source: Ledger, position: int) -> dict[str, Any]:
    """Return the words that the leaf hash of an event is of; none where they are in an archive."""
    from msgspec import structs

    from ledger.store.archives.segments import archived_up_to

    with source.connection.begin():
        archived, _ = archived_up_to(source.connection)
    if position <= archived:
        return {}
    (event,) = source.read_events(after=position - 1, limit=1)
    return structs.asdict(event.envelope)


def expect_events(source: Ledger) -> None:
    """Raise InputError for an empty ledger: there is nothing to sign, prove or export."""
    if not source.head().origin:
        raise nothing_recorded(source)


def nothing_recorded(source: Ledger) -> InputError:
    """Return the error for a ledger that nobody ever wrote to."""
    found = InputError("the ledger has no events yet: nobody wrote to it", place=source.url)
    return with_next(found, "name a ledger with events: --ledger FILE")


class NotSignedError(InputError):
    """What was kept outside can be read and does not prove itself: the answer to `verify` is no."""


def checkpoint_of(source: Ledger, text: str, key: PublicKey, *, place: str) -> Checkpoint:
    """
    Read one checkpoint whose signature holds, for someone who trusts `key`.

    Raises:
        NotSignedError: the key that was in force at its size did not sign it.
        InputError: it is no checkpoint.
    """
    from ledger.signing import Note
    from ledger.store.proving.checkpoints import key_at

    checkpoint = parsed_checkpoint(text, place=place)
    expected = key_at(source, key, checkpoint.origin, checkpoint.size)
    if not Note.parse(text).is_signed_by(expected):
        raise NotSignedError(
            f"the checkpoint is not signed by this key: key={expected}", place=place
        )
    return checkpoint


def parsed_checkpoint(text: str, *, place: str) -> Checkpoint:
    """Return what a signed note says, whoever signed it. Raises InputError: no checkpoint."""
    from ledger.signing import Checkpoint, Note

    try:
        return Checkpoint.parse(Note.parse(text).text)
    except InputError as error:
        raise error.at(place) from None
