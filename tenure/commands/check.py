"""`tenure check`: both webhooks on files, without a cluster."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tenure.output import OutputFormat


class Operation(StrEnum):
    """What is done to the objects."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("check")(check)


def check(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="YAML, JSON, lists, directories, or - for stdin: Pods, workloads and so on.",
            show_default=False,
        ),
    ],
    *,
    operation: Annotated[
        Operation,
        typer.Option(help="UPDATE compares with the objects of --old.", case_sensitive=False),
    ] = Operation.CREATE,
    old: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="The objects before the update.", show_default=False),
    ] = None,
    user: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Who asks. Ours: system:serviceaccount:tenure-system:tenure-scheduler, -agent "
            "and -webhook.",
        ),
    ] = "check",
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="AdmissionConfiguration file.", show_default=False
        ),
    ] = None,
    output: Annotated[
        OutputFormat, typer.Option("--output", "-o", help="Form of the answer.")
    ] = OutputFormat.TABLE,
) -> None:
    """
    What admission would change in these objects, and what it would refuse. Exit 1 if it refuses.

    Example: tenure check examples/

    One change: tenure check new.yaml --operation UPDATE --old old.yaml

    From a cluster: kubectl get deploy -n ml -o yaml | tenure check - -o json
    """
    from tenure.checking.command import Options, check_command

    check_command(
        Options(
            files=tuple(files),
            operation=operation.value,
            old=tuple(old or ()),
            user=user,
            config=config,
            output=output,
        )
    )
