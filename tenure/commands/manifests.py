"""`tenure manifests ...`: what a cluster is told of Tenure, as YAML to apply."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

MANIFESTS = typer.Typer(
    name="manifests", help="Print objects to apply to a cluster.", no_args_is_help=True
)

Config = Annotated[
    Path | None, typer.Option("--config", help="AdmissionConfiguration file to write them for.")
]
Name = Annotated[
    str,
    typer.Option("--name", help="What the objects are called; another one for a second release."),
]
Namespace = Annotated[str, typer.Option("--namespace", help="Namespace of our own.")]

_NAMESPACE = "tenure-system"


class Action(StrEnum):
    """What a violation of a policy does."""

    ENFORCE = "enforce"
    WARN = "warn"


def register(app: typer.Typer) -> None:
    """Add the commands to `tenure`."""
    MANIFESTS.command("webhook")(webhook)
    MANIFESTS.command("policies")(policies)
    MANIFESTS.command("rbac")(rbac)
    app.add_typer(MANIFESTS)


def webhook(
    *,
    config: Config = None,
    name: Name = "tenure",
    url: Annotated[
        str, typer.Option(help="Base URL of a server outside the cluster, instead of the Service.")
    ] = "",
    namespace: Namespace = _NAMESPACE,
    service: Annotated[str, typer.Option(help="Service of the webhook.")] = "tenure-webhook",
    cert_manager: Annotated[
        str, typer.Option(help="NAMESPACE/NAME of the Certificate whose CA cert-manager injects.")
    ] = "",
) -> None:
    """
    Print the webhook configurations; the caBundle is written by rotation or by cert-manager.

    Example: tenure manifests webhook | kubectl apply -f -
    """
    from tenure.serving.manifests import print_webhook

    print_webhook(
        config=config,
        name=name,
        url=url,
        namespace=namespace,
        service=service,
        cert_manager=cert_manager,
    )


def policies(
    *,
    config: Config = None,
    name: Name = "tenure",
    namespace: Namespace = _NAMESPACE,
    action: Annotated[Action, typer.Option(help="What a violation does.")] = Action.ENFORCE,
) -> None:
    """
    Print the ValidatingAdmissionPolicies, which hold while our own Pods are down.

    Example: tenure manifests policies --action warn | kubectl apply -f -
    """
    from tenure.serving.manifests import print_policies

    print_policies(config=config, name=name, namespace=namespace, warn=action is Action.WARN)


def rbac(
    *,
    name: Name = "tenure",
    namespace: Namespace = _NAMESPACE,
    secret: Annotated[
        str, typer.Option(help="Secret that holds the certificates.")
    ] = "tenure-webhook-certs",  # noqa: S107 - the name of a Secret is none
) -> None:
    """
    Print the webhook's service account with exactly the rights it needs.

    Example: tenure manifests rbac | kubectl apply -f -
    """
    from tenure.serving.manifests import print_rights

    print_rights(name=name, namespace=namespace, secret=secret)
