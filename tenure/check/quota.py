"""`tenure quota`: what a ResourceQuota on cards has to count beside."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ledger.domain.errors import InputError
from tenure.commands import Commands
from tenure.exits import note, warn, with_next
from tenure.output import write_json, write_yaml

if TYPE_CHECKING:
    from tenure.manifests import Document
    from webhook.decide.settings import DomainSetting


KIND: Final = "ResourceQuota"
_SERVERS: Final = frozenset(
    {"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields", "selfLink"}
)
"""Metadata that the API server writes; a manifest to apply has none of it."""


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
    group = typer.Typer(
        cls=Commands, help="Quotas on GPUs, under the names that count.", no_args_is_help=True
    )
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
    device_class: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="DeviceClass of the claims that are counted too, for namespaces in mode dra.",
        ),
    ] = "",
    output: Annotated[
        QuotaFormat, typer.Option("--output", "-o", help="Form of the answer.")
    ] = QuotaFormat.YAML,
) -> None:
    """
    Let ResourceQuotas that count cards in one dialect count what others ask for them by.

    Example: tenure quota translate quota.yaml | kubectl apply -f -

    Everything else in them is kept. Other kinds in the input are left out.
    """
    from tenure.manifests import read_manifests
    from webhook.decide.settings import DomainSetting

    documents = read_manifests(files).documents
    quotas = [document for document in documents if document.kind == KIND]
    if not quotas:
        error = InputError(f"no {KIND} in the input: objects={len(documents)}")
        raise with_next(error, "kubectl get resourcequota -A -o yaml | tenure quota translate -")
    left_out = len(documents) - len(quotas)
    if left_out:
        warn(f"objects of other kinds left out: {left_out}")
    names = DomainSetting(domain.value)
    result = [_translated(document, names, device_class) for document in quotas]
    if output is QuotaFormat.JSON:
        write_json({"apiVersion": "v1", "kind": "List", "items": result}, sys.stdout)
        return
    for number, quota in enumerate(result):
        if number:
            sys.stdout.write("---\n")
        write_yaml(quota, sys.stdout)


def _translated(document: Document, domain: DomainSetting, device_class: str) -> dict[str, Any]:
    from webhook.decide.validating.quota import translate_quota

    try:
        quota = translate_quota(document.body, domain, device_class)
    except InputError as error:
        raise document.blame(error) from None
    if quota == document.body:
        note(f"nothing to add: {document.title}")
    written = document.body["metadata"]
    kept = {key: value for key, value in quota.items() if key != "status"}
    metadata = {key: value for key, value in written.items() if key not in _SERVERS}
    return {**kept, "metadata": metadata}
