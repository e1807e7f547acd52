"""`tenure certs ...`: the webhook's certificates in a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from certs.ports import api_path
from tenure.commands import Commands, command_of
from tenure.output import OutputFormat

CERTS = typer.Typer(
    cls=Commands, name="certs", help="Look after the certificates.", no_args_is_help=True
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretOptions:
    """Which cluster's certificates."""

    kubeconfig: Annotated[
        str | None, typer.Option(help="Credentials; the default is kubectl's.")
    ] = None
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of our own.")] = (
        "tenure-system"
    )
    secret: Annotated[str, typer.Option(help="Secret that holds the certificates.")] = (
        "tenure-webhook-certs"  # noqa: S105 - a name
    )

    @property
    def path(self) -> str:
        """Return the Secret's path in the API."""
        return api_path("v1", "namespaces", self.namespace, "secrets", self.secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusOptions(SecretOptions):
    """The command line of `tenure certs status`."""

    configuration: Annotated[str, typer.Option(help="Name of the webhook configurations.")] = (
        "tenure"
    )
    output: Annotated[OutputFormat, typer.Option("--output", "-o", help="How to print.")] = (
        OutputFormat.TABLE
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateOptions(SecretOptions):
    """The command line of `tenure certs rotate`."""

    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False


def register(app: typer.Typer) -> None:
    """Add the commands to `tenure`."""
    CERTS.command("status")(command_of(StatusOptions, _status))
    CERTS.command("rotate")(command_of(RotateOptions, _rotate))
    app.add_typer(CERTS)


def _status(options: StatusOptions) -> None:
    """
    Show the certificates, where a rotation stands, and what every replica serves.

    Exit 1 when a webhook configuration does not trust what is served, or a certificate has ended.

    Example: tenure certs status -o json
    """
    from tenure.extras import needs

    with needs("service"):
        from tenure.serving.certificates import print_status

    print_status(options)


def _rotate(options: RotateOptions) -> None:
    """
    Ask for a new authority and a new leaf; the replica that leads does it, without a failed call.

    Example: tenure certs rotate
    """
    from tenure.extras import needs

    with needs("service"):
        from tenure.serving.certificates import ask_rotation

    ask_rotation(options)
