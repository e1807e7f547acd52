"""`tenure check`: both webhooks on files, without a cluster."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ledger.domain.errors import InputError
from tenure.exits import with_next
from tenure.output import CheckFormat, OutputFormat


class Operation(StrEnum):
    """What is done to the objects."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"


def check(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE",
            help="YAML, JSON, lists, directories, or - for stdin: Pods, workloads and so on.",
            show_default=False,
        ),
    ] = None,
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
        list[Path] | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="AdmissionConfiguration or TenureConfiguration file. Twice, without FILE: what "
            "two settings files say otherwise of requests.",
            show_default=False,
        ),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Compare --config with a ledger's settings.", show_default=False
        ),
    ] = None,
    vocabulary: Annotated[
        str | None,
        typer.Option(
            metavar="SHA256",
            help="Compare --config with a webhook's or a policy's word.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        CheckFormat, typer.Option("--output", "-o", help="Form of the answer.")
    ] = CheckFormat.TABLE,
) -> None:
    """
    What admission would change in these objects, and what it would refuse. Exit 1 if it refuses.

    Example: tenure check examples/

    As a diff of the manifests: tenure check examples/ -o diff

    One change: tenure check new.yaml --operation UPDATE --old old.yaml

    From a cluster: kubectl get deploy -n ml -o yaml | tenure check - -o json

    Settings: tenure check --config scheduler.yaml --config admission.yaml
    """
    from tenure.check.command import Options, check_command

    configs = config or []
    if len(configs) > 1 or ledger is not None or vocabulary is not None:
        from tenure.check.settings import compare_command

        if output is CheckFormat.DIFF:
            error = InputError("settings are compared in a table", field="--output")
            raise with_next(error, "take -o table or -o json")
        form = OutputFormat(output.value)
        compare_command(configs, objects=files or (), ledger=ledger, digest=vocabulary, output=form)
        return
    check_command(
        Options(
            files=tuple(files or ()),
            operation=operation.value,
            old=tuple(old or ()),
            user=user,
            config=configs[0] if configs else None,
            output=output,
        )
    )
