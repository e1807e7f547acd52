"""The options of `tenure serve scheduler`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

from ledger.domain.errors import InputError
from tenure.opening import LEDGER_HELP, ledger_url
from tenure.serving.options import (
    DEBUG,
    KUBE_API_SERVER,
    PROBES,
    PROBES_ADDRESS,
    TLS_ADDRESS,
    Address,
    Option,
    if_given,
)
from tenure.serving.run import default_replica

KUBE_SCHEDULER: Final = "system:kube-scheduler"
"""What kubeadm calls kube-apiserver in its own client certificate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """
    How the scheduler is started.

    Attributes:
        drain_seconds: time for the news to spread that we are going, before we stop listening.
    """

    ledger: Annotated[str, Option(LEDGER_HELP, variable="", metavar="URL", read=ledger_url)] = (
        field(default_factory=partial(ledger_url, None))
    )
    extender: Annotated[
        Address, Option("HOST:PORT that kube-scheduler calls, TLS.", read=Address.read)
    ] = TLS_ADDRESS
    probes: Annotated[Address, PROBES] = PROBES_ADDRESS
    api: Annotated[
        Address | None,
        Option(
            "Where people, agents and webhooks ask, TLS. Default: nowhere.",
            metavar="HOST:PORT",
            read=if_given(Address.read),
        ),
    ] = None
    api_name: Annotated[
        tuple[str, ...], Option("DNS name or address that they use; may be given again.")
    ] = ()
    gate: Annotated[
        Address | None,
        Option(
            "Where kube-apiserver asks about claims, TLS. Default: nowhere.",
            metavar="HOST:PORT",
            read=if_given(Address.read),
        ),
    ] = None
    driver: Annotated[
        tuple[str, ...],
        Option("With --gate: DRA driver whose devices are guarded; may be given again."),
    ] = ()
    gate_name: Annotated[
        tuple[str, ...],
        Option("With --gate: DNS name or address that kube-apiserver uses; may be given again."),
    ] = ()
    gate_client_ca: Annotated[
        Path | None,
        Option("With --gate: authority of the certificate that kube-apiserver shows."),
    ] = None
    gate_client_name: Annotated[
        tuple[str, ...],
        Option(
            "With --gate: common name of kube-apiserver's certificate; may be given again."
            " Default: kube-apiserver-kubelet-client."
        ),
    ] = ()
    gate_open: Annotated[
        bool,
        Option("With --gate, instead of --gate-client-ca: whoever reaches the port may ask."),
    ] = False
    untold_devices: Annotated[
        Literal["refuse", "record"],
        Option(
            "Devices of drivers that no UUID, address or counter tells apart: `refuse` claims"
            " for them, or `record` them by name."
        ),
    ] = "refuse"
    config: Annotated[Path | None, Option("SchedulerConfiguration file.")] = None
    kubeconfig: Annotated[str | None, Option("Credentials; the default is the Pod's own.")] = None
    certificates: Annotated[
        Path, Option("Folder with tls.crt, tls.key and ca.crt that somebody else keeps.")
    ]
    client_ca: Annotated[
        Path | None,
        Option("The authority of kube-scheduler's own certificate; the default is ca.crt."),
    ] = None
    client_name: Annotated[
        tuple[str, ...],
        Option(
            "Common name of kube-scheduler's certificate; may be given again."
            " Default: system:kube-scheduler."
        ),
    ] = ()
    proof_key: Annotated[Path, Option("Signer key of the proofs that Pods carry.")]
    ledger_key: Annotated[
        Path, Option("Signer key of what Pods carry for a restore of the ledger.")
    ]
    trusted_proof_key: Annotated[
        tuple[str, ...],
        Option(
            "Verifier key of proofs that Pods still carry, or its file; may be given again.",
            metavar="VKEY",
        ),
    ] = ()
    namespace: Annotated[str, Option("Namespace of our own.")] = "tenure-system"
    name: Annotated[
        tuple[str, ...], Option("DNS name or address that kube-scheduler uses; may be given again.")
    ] = ()
    replica: Annotated[str, Option("What tells this replica from others.")] = field(
        default_factory=default_replica
    )
    lease: Annotated[str, Option("Lease of the replica that leads, of all alike.")] = (
        "tenure-scheduler"
    )
    pod: Annotated[
        str,
        Option(
            "The Pod that we run in, which is labelled while we lead. Default: none.",
            variable="POD_NAME",
        ),
    ] = ""
    drain_seconds: Annotated[
        float, Option("How long after SIGTERM calls are still answered.", least=0)
    ] = 5.0
    card_metrics: Annotated[
        bool, Option("Show every card in the metrics: three lines for each.")
    ] = False
    evict_partial_gangs: Annotated[
        bool,
        Option("Evict bound members of a gang that missed its deadline: all of it or nothing."),
    ] = False
    preemption: Annotated[
        Literal["off", "dry-run", "on"],
        Option("End others for Pods that wait for fragmentation alone; `dry-run` tells whom."),
    ] = "off"
    debug: Annotated[bool, DEBUG] = False

    def __post_init__(self) -> None:
        """Refuse a gate without drivers or without a word on who may ask, and the reverse."""
        if bool(self.gate) != bool(self.driver):
            fact = "a gate goes with the drivers whose devices it guards"
            raise InputError(fact, field="--driver" if self.gate else "--gate")
        if self.gate and (self.gate_client_ca is None) != self.gate_open:
            fact = (
                "a gate asks callers for a certificate, or is open to all: give one of --gate-open"
            )
            raise InputError(f"{fact} and this", field="--gate-client-ca")

    @property
    def client_names(self) -> tuple[str, ...]:
        """Return the common names that kube-scheduler's certificate may have."""
        return self.client_name or (KUBE_SCHEDULER,)

    @property
    def gate_client_names(self) -> tuple[str, ...] | None:
        """Return those that kube-apiserver's may have; None = whoever calls is answered."""
        return None if self.gate_open else self.gate_client_name or (KUBE_API_SERVER,)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the DNS names and addresses that kube-scheduler calls us by."""
        return self.name or (f"tenure-scheduler.{self.namespace}.svc",)

    @property
    def api_names(self) -> tuple[str, ...]:
        """Return those that people, agents and webhooks call us by."""
        return self.api_name or (f"tenure-api.{self.namespace}.svc",)

    @property
    def gate_names(self) -> tuple[str, ...]:
        """Return those that the API server calls us by about claims."""
        return self.gate_name or (f"tenure-scheduler.{self.namespace}.svc",)
