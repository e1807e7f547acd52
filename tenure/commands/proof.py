"""`tenure ledger key|checkpoint|prove|export`: what an auditor keeps and checks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tenure.commands.ask import Ledger

Key = Annotated[Path, typer.Option("--key", metavar="FILE", help="The file of a signer key.")]


def register(group: typer.Typer) -> None:
    """Add the commands to `tenure ledger`."""
    keys = typer.Typer(help="Make and change the keys that sign checkpoints.", no_args_is_help=True)
    keys.command("new")(new)
    keys.command("rotate")(rotate)
    group.add_typer(keys, name="key")
    group.command("checkpoint")(checkpoint)
    group.command("prove")(prove)
    group.command("export")(export)


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
    from tenure.asking.checkpoint import answer_key_new

    answer_key_new(name=name, out=out)


def rotate(
    *,
    old: Annotated[
        Path, typer.Option("--old", metavar="FILE", help="The signer key in force until now.")
    ],
    new_key: Annotated[
        Path, typer.Option("--new", metavar="FILE", help="The signer key from here on.")
    ],
    ledger: Ledger = None,
) -> None:
    """
    Record that another key signs from here on, signed by both. Stop the service first.

    Example: tenure ledger key rotate --old 2026.key --new 2027.key --ledger tenure.db
    """
    from tenure.asking.checkpoint import answer_key_rotate

    answer_key_rotate(ledger=ledger, old_key=old, new_key=new_key)


def checkpoint(
    *,
    key: Key,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write the note to a file too.", show_default=False
        ),
    ] = None,
    ledger: Ledger = None,
) -> None:
    """
    Sign the ledger as it is now. Keep the note elsewhere: it shows every change of what it covers.

    Example: tenure ledger checkpoint --key cluster-1.key --out monday.checkpoint
    """
    from tenure.asking.checkpoint import answer_checkpoint

    answer_checkpoint(ledger=ledger, key=key, out=out)


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
    ledger: Ledger = None,
) -> None:
    """
    Prove that an event is in the ledger, and that an older ledger is its beginning. JSON.

    Example: tenure ledger prove 1042 --from 1000
    """
    from tenure.asking.checkpoint import answer_prove

    answer_prove(position, start=start, size=size, ledger=ledger)


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
    ledger: Ledger = None,
) -> None:
    """
    Write events to a compressed file that proves itself, with `python -m tenure.offline`.

    Example: tenure ledger export --out ledger.jsonl.gz --key cluster-1.key
    """
    from tenure.asking.export import answer_export

    if key is not None and checkpoint is not None:
        raise typer.BadParameter("--key and --checkpoint exclude each other")
    answer_export(ledger=ledger, out=out, first=first, last=last, key=key, checkpoint=checkpoint)
