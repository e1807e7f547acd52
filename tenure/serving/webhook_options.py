"""The options of `tenure serve webhook`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from ledger.domain.errors import InputError
from tenure.serving import options
from tenure.serving.run import default_replica


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    """
    How the webhook is started.

    Attributes:
        certificates: None lets Tenure issue and rotate its own.
        drain_seconds: time for the news to spread that we are going, before we stop listening.
    """

    listen: Annotated[
        options.Address,
        options.Option("HOST:PORT that kube-apiserver calls, TLS.", read=options.Address.read),
    ] = options.TLS_ADDRESS
    probes: Annotated[options.Address, options.PROBES] = options.PROBES_ADDRESS
    client_ca: Annotated[
        Path | None,
        options.Option(
            "Authority of the certificate that kube-apiserver shows. Default: whoever reaches the"
            " port is answered."
        ),
    ] = None
    client_name: Annotated[
        tuple[str, ...],
        options.Option(
            "With --client-ca: common name of kube-apiserver's certificate; may be given again."
            " Default: kube-apiserver-kubelet-client."
        ),
    ] = ()
    config: Annotated[
        Path | None, options.Option("AdmissionConfiguration file, read again when it changes.")
    ] = None
    kubeconfig: Annotated[
        str | None, options.Option("Credentials; the default is the Pod's own.")
    ] = None
    certificates: Annotated[
        Path | None,
        options.Option("Folder with tls.crt, tls.key and ca.crt that somebody else keeps."),
    ] = None
    name: Annotated[
        tuple[str, ...], options.Option("DNS name or address that callers use; may be given again.")
    ] = ()
    namespace: Annotated[str, options.Option("Namespace of our own.")] = "tenure-system"
    secret: Annotated[str, options.Option("Secret that holds the certificates.")] = (
        "tenure-webhook-certs"  # noqa: S105 - the name of a Secret is none
    )
    configuration: Annotated[
        str, options.Option("Name of the webhook configurations whose caBundle is ours.")
    ] = "tenure"
    replica: Annotated[str, options.Option("What tells this replica from others.")] = field(
        default_factory=default_replica
    )
    drain_seconds: Annotated[
        float, options.Option("How long after SIGTERM calls are still answered.", least=0)
    ] = 5.0
    settle_seconds: Annotated[
        float, options.Option("How long a caBundle takes to reach every API server.", least=1)
    ] = 30.0
    scheduler_api: Annotated[
        str | None,
        options.Option(
            "With --client-ca: API of the scheduler that records refusals. Default: none are"
            " recorded.",
            metavar="URL",
        ),
    ] = None
    scheduler_ca: Annotated[Path, options.Option("Authority of that API's certificate.")] = Path(
        "/etc/tenure/scheduler-api/ca.crt"
    )
    scheduler_token: Annotated[Path, options.Option("Token of our own ServiceAccount.")] = Path(
        "/var/run/secrets/kubernetes.io/serviceaccount/token"
    )
    debug: Annotated[bool, options.DEBUG] = False

    def __post_init__(self) -> None:
        """Refuse to have refusals recorded of callers that anybody may be."""
        if self.scheduler_api is not None and self.client_ca is None:
            fact = "refusals are recorded of callers that show a certificate: give this"
            raise InputError(fact, field="--client-ca")

    @property
    def client_names(self) -> tuple[str, ...] | None:
        """Return the common names that callers may have; None = whoever calls is answered."""
        return None if self.client_ca is None else self.client_name or (options.KUBE_API_SERVER,)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the DNS names and addresses that the API server calls us by."""
        return self.name or (f"tenure-webhook.{self.namespace}.svc",)
