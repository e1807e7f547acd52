"""Options that several commands share."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from tenure.opening import LEDGER_HELP
from tenure.output import DataFormat, OutputFormat

LedgerUrl = Annotated[str | None, typer.Option("--ledger", metavar="URL", help=LEDGER_HELP)]
Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE...]", help="Manifests to ask in place of a ledger; - for stdin."),
]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="Form of the answer.")]
DataOutput = Annotated[DataFormat, typer.Option("--output", "-o", help="Form of the answer.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FILE", help="With -o parquet: the file to write.")
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help='ISO 8601 with a zone, a date, or "7d ago". Default: the ledger\'s beginning.',
    ),
]
Until = Annotated[
    str | None,
    typer.Option(
        "--until",
        metavar="TIME",
        help="Likewise, itself left out. Default: now, of a simulation its end.",
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help='ISO 8601 with a zone, a date (its midnight here), or "2h ago". Default: now.',
    ),
]

Segments = Annotated[
    Path | None,
    typer.Option(
        "--segments",
        metavar="DIR",
        help="The folder of the archive, to read the events that moved there.",
    ),
]
ObjectFiles = Annotated[
    list[str] | None,
    typer.Option(
        "--objects",
        metavar="FILE",
        help="Nodes, Devices and Pods (YAML, JSON, a directory, - for stdin): tells what a ledger"
        " does not record. May be given several times.",
    ),
]

_live = partial(typer.Option, rich_help_panel="Ask a service that runs")
Live = Annotated[
    bool,
    _live(
        "--live",
        help="Ask the cluster's live service through kube-apiserver, by the kubeconfig of kubectl.",
    ),
]
Server = Annotated[
    str | None,
    _live(
        "--server", metavar="URL", help="Ask a live service directly, such as over a port-forward."
    ),
]
TokenFile = Annotated[
    Path | None,
    _live(
        "--token-file", metavar="FILE", help="With --server: a bearer token that the cluster knows."
    ),
]
ServerCa = Annotated[
    Path | None,
    _live(
        "--server-ca",
        metavar="FILE",
        help="With --server: the authority of its certificate. Default: those of this machine.",
    ),
]
ServerName = Annotated[
    str | None,
    _live(
        "--server-name",
        metavar="NAME",
        help="With --server: the name in its certificate, where the URL has another.",
    ),
]
Namespace = Annotated[
    str | None,
    _live(
        "--namespace",
        "-n",
        metavar="NAMESPACE",
        help="Of a live service: the lines of one namespace, for who may see no more.",
    ),
]

Key = Annotated[Path, typer.Option("--key", metavar="FILE", help="The file of a signer key.")]
