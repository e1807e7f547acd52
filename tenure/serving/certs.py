"""`tenure certs ...`: the webhook's certificates in a cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from tenure.commands import Commands
from tenure.output import OutputFormat

CERTS = typer.Typer(
    cls=Commands, name="certs", help="Look after the certificates.", no_args_is_help=True
)

Kubeconfig = Annotated[
    str | None, typer.Option("--kubeconfig", help="Credentials; the default is kubectl's.")
]
Namespace = Annotated[str, typer.Option("--namespace", "-n", help="Namespace of our own.")]
SecretName = Annotated[str, typer.Option("--secret", help="Secret that holds the certificates.")]
Output = Annotated[OutputFormat, typer.Option("--output", "-o", help="How to print.")]

_SECRET = "tenure-webhook-certs"  # noqa: S105 - a name


def register(app: typer.Typer) -> None:
    """Add the commands to `tenure`."""
    CERTS.command("status")(status)
    CERTS.command("rotate")(rotate)
    app.add_typer(CERTS)


def status(
    *,
    kubeconfig: Kubeconfig = None,
    namespace: Namespace = "tenure-system",
    secret: SecretName = _SECRET,
    configuration: Annotated[
        str, typer.Option(help="Name of the webhook configurations.")
    ] = "tenure",
    output: Output = OutputFormat.TABLE,
) -> None:
    """
    Show the certificates, where a rotation stands, and what every replica serves.

    Exit 1 when a webhook configuration does not trust what is served, or a certificate has ended.

    Example: tenure certs status -o json
    """
    from tenure.extras import needs

    with needs("service"):
        from tenure.serving.certificates import print_status

    print_status(
        kubeconfig=kubeconfig,
        namespace=namespace,
        secret=secret,
        configuration=configuration,
        output=output,
    )


def rotate(
    *,
    kubeconfig: Kubeconfig = None,
    namespace: Namespace = "tenure-system",
    secret: SecretName = _SECRET,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
) -> None:
    """
    Ask for a new authority and a new leaf; the replica that leads does it, without a failed call.

    Example: tenure certs rotate
    """
    from tenure.extras import needs

    with needs("service"):
        from tenure.serving.certificates import ask_rotation

    ask_rotation(kubeconfig=kubeconfig, namespace=namespace, secret=secret, dry_run=dry_run)
