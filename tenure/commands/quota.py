"""`tenure quota`: what a ResourceQuota on cards has to count beside."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class QuotaFormat(StrEnum):
    """The forms of a manifest."""

    YAML = "yaml"
    JSON = "json"


class QuotaDomain(StrEnum):
    """Under which domain the names are counted, as admission's setting `domain`."""

    KOORDINATOR = "koordinator.sh"
    KUBERNETES = "kubernetes.io"


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = typer.Typer(help="Quotas on GPUs, under the names that count.", no_args_is_help=True)
    group.command("translate")(translate)
    app.add_typer(group, name="quota")


def translate(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE",
            help="YAML, JSON, lists, directories, or - for stdin: ResourceQuotas.",
            show_default=False,
        ),
    ],
    *,
    domain: Annotated[
        QuotaDomain, typer.Option(help="Domain of the names that are added.")
    ] = QuotaDomain.KOORDINATOR,
    output: Annotated[
        QuotaFormat, typer.Option("--output", "-o", help="Form of the answer.")
    ] = QuotaFormat.YAML,
) -> None:
    """
    Let ResourceQuotas that count cards in one dialect count what others ask for them by.

    Example: tenure quota translate quota.yaml | kubectl apply -f -

    Everything else in them is kept. Other kinds in the input are left out.
    """
    from tenure.quotas import answer_translate

    answer_translate(files, domain=domain.value, as_json=output is QuotaFormat.JSON)
