"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from tenure.output import DataFormat, OutputFormat

LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="The ledger to ask: a file or postgresql://user@host/database."
        " Default: TENURE_LEDGER, else tenure.db.",
        show_default=False,
    ),
]
Files = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[FILE...]",
        help="Manifests to ask in place of a ledger; - for stdin.",
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
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help='ISO 8601 with a zone, a date, or "7d ago". Default: the ledger\'s beginning.',
        show_default=False,
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="TIME",
        help="Likewise, itself left out. Default: now, of a simulation its end.",
        show_default=False,
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help='ISO 8601 with a zone, a date (its midnight here), or "2h ago". Default: now.',
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
ObjectFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--objects",
        metavar="FILE",
        help="Nodes, Devices and Pods (YAML, JSON, a directory, - for stdin): tells what a ledger"
        " does not record. May be given several times.",
        show_default=False,
    ),
]

_LIVE: Final = "Ask a service that runs"
Live = Annotated[
    bool,
    typer.Option(
        "--live",
        help="Ask the cluster's live service through kube-apiserver, by the kubeconfig of kubectl.",
        rich_help_panel=_LIVE,
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Ask a live service directly, such as over a port-forward.",
        show_default=False,
        rich_help_panel=_LIVE,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help="With --server: a bearer token that the cluster knows.",
        show_default=False,
        rich_help_panel=_LIVE,
    ),
]
ServerCa = Annotated[
    Path | None,
    typer.Option(
        "--server-ca",
        metavar="FILE",
        help="With --server: the authority of its certificate. Default: those of this machine.",
        show_default=False,
        rich_help_panel=_LIVE,
    ),
]
ServerName = Annotated[
    str | None,
    typer.Option(
        "--server-name",
        metavar="NAME",
        help="With --server: the name in its certificate, where the URL has another.",
        show_default=False,
        rich_help_panel=_LIVE,
    ),
]
Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        metavar="NAMESPACE",
        help="Of a live service: the lines of one namespace, for who may see no more.",
        show_default=False,
        rich_help_panel=_LIVE,
    ),
]

Key = Annotated[Path, typer.Option("--key", metavar="FILE", help="The file of a signer key.")]
