"""`who`, `why`, `usage`, `verify`, `status`: questions to a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tenure.output import DataFormat, OutputFormat

Ledger = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="The ledger to ask: a file or sqlite:///FILE. Default: TENURE_LEDGER, else tenure.db.",
        show_default=False,
    ),
]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="Form of the answer.")]
DataOutput = Annotated[DataFormat, typer.Option("--output", "-o", help="Form of the answer.")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", metavar="FILE", help="With -o parquet: the file to write.", show_default=False
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help='ISO 8601 with a zone, or "2h ago". Default: now.',
        show_default=False,
    ),
]

Segments = Annotated[
    Path | None,
    typer.Option(
        "--segments",
        metavar="DIR",
        help="The folder of the archive, to read the events that moved there.",
        show_default=False,
    ),
]
Objects = Annotated[
    list[str] | None,
    typer.Option(
        "--objects",
        metavar="FILE",
        help="Nodes, Devices and Pods (YAML, JSON, a directory, - for stdin): tells what a ledger"
        " does not record. May be given several times.",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command("who")(who)
    app.command("why")(why)
    app.command("usage")(usage)
    app.command("verify")(verify)
    app.command("status")(status)


def who(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="NODE/CARD, NODE, NODE/cpu/N, NAMESPACE/POD or job/NAME."
        ),
    ],
    *,
    at: At = None,
    history: Annotated[
        bool, typer.Option("--history", help="Everyone who ever held it, not one moment.")
    ] = False,
    ledger: Ledger = None,
    output: DataOutput = DataFormat.TABLE,
    out: Out = None,
) -> None:
    """
    Who holds, or held, a card, a CPU or a node: since when, until when, and why.

    Example: tenure who gpu-a/3 --at 2026-03-03T14:05:00+01:00

    Everyone who ever held it: tenure who gpu-a/3 --history

    What a Pod holds: tenure who ml/train-7
    """
    from tenure.asking.who import answer_who
    from tenure.parquet import parquet_target

    if history and at is not None:
        raise typer.BadParameter("--history and --at exclude each other")
    parquet = parquet_target(output, out)
    answer_who(
        name,
        at=at,
        history=history,
        ledger=ledger,
        output=output.text_form,
        parquet=parquet,
    )


def why(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="NAMESPACE/POD, job/NAME, NODE/CARD or NODE.")
    ],
    *,
    objects: Objects = None,
    ledger: Ledger = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Why a Pod waits, or where it went; why a card is not free.

    For a Pod that waits also what would make it fit now: a smaller request, another wish, Pods
    that would have to end.

    Example: tenure why ml/big-1

    Node by node, with numbers: tenure why ml/big-1 -o wide

    All Pods of a job: tenure why job/train-7

    A card: tenure why gpu-a/3
    """
    from tenure.asking.why import answer_why

    answer_why(name, ledger=ledger, output=output, objects=objects or ())


def usage(
    *,
    by: Annotated[
        str, typer.Option("--by", metavar="GROUP", help="namespace, owner, model or label:KEY.")
    ] = "namespace",
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help='ISO 8601 with a zone, or "7d ago". Default: the ledger\'s beginning.',
            show_default=False,
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--until", metavar="TIME", help="Default: now.", show_default=False),
    ] = None,
    ledger: Ledger = None,
    output: DataOutput = DataFormat.TABLE,
    out: Out = None,
) -> None:
    """
    GPU-hours and CPU-hours by group, with what was idle or stranded.

    Example: tenure usage --by namespace --since "7d ago"

    By the label team: tenure usage --by label:team -o csv
    """
    from tenure.asking.usage import answer_usage
    from tenure.parquet import parquet_target

    parquet = parquet_target(output, out)
    answer_usage(
        by=by,
        since=since,
        until=until,
        ledger=ledger,
        output=output.text_form,
        parquet=parquet,
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
    ledger: Ledger = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Prove the ledger: hash chain, constraints at every position, projection equal to the events.

    Exit 1 when it does not prove itself; the findings name positions.

    Example: tenure verify --ledger run.db

    Against a rewritten or shortened ledger: tenure verify --checkpoint NOTE --public-key VKEY
    """
    from tenure.asking.proof import answer_verify

    if (checkpoint or export) and public_key is None:
        raise typer.BadParameter("--checkpoint and --export go with --public-key")
    answer_verify(
        ledger=ledger,
        output=output,
        checkpoints=checkpoint or (),
        export=export,
        public_key=public_key,
        segments=segments,
    )


def status(*, ledger: Ledger = None, output: Output = OutputFormat.TABLE) -> None:
    """
    Which ledger this is, where its head stands, and how much it holds.

    Example: tenure status -o json
    """
    from tenure.asking.proof import answer_status

    answer_status(ledger=ledger, output=output)
