"""The keys of the process, what they sign on Pods, and the certificate that it is served with."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from certs.serving import Folder, Serving
from ledger.signing import OwnKey
from scheduler.service.metrics import Metrics
from scheduler.service.proofs import Signing
from scheduler.service.view import ClusterView
from tenure.keys import private_key, public_key
from tenure.serving.listening import HTTP1, HTTP2
from tenure.serving.scheduling.options import SchedulerOptions
from tenure.sources.text import content_of


def proof_key_of(options: SchedulerOptions) -> OwnKey:
    """Return the signing key of proofs, which checks returning ones. Raises InputError: no key."""
    return OwnKey(private_key(options.proof_key), older=map(public_key, options.trusted_proof_key))


def signer_of(
    options: SchedulerOptions, origin: str, incarnation: Callable[[], str], proof_key: OwnKey
) -> Callable[[ClusterView], Signing]:
    """Return what makes the signer of a view's reservations. Raises InputError: no such key."""
    ledger_key = private_key(options.ledger_key)

    def signing(view: ClusterView) -> Signing:
        return Signing(
            cluster=origin,
            incarnation=incarnation,
            proof_key=proof_key,
            ledger_key=ledger_key,
            machine_of=lambda uid: _machine_of(view, uid),
        )

    return signing


def _machine_of(view: ClusterView, uid: str) -> tuple[str, str]:
    node = view.recorded(uid)
    return ("", "") if node is None else (node.system_uuid, node.machine_id)


class ServingFolder:
    """
    The folder of the serving certificate, read again when it changes.

    Raises:
        InputError: the authority of callers can't be read.
        CertificateError: what is in it can't be served.
    """

    def __init__(self, options: SchedulerOptions, metrics: Metrics) -> None:
        authority = options.client_ca or options.certificates / "ca.crt"
        self.serving = Serving(clients=content_of(authority), protocols=(HTTP2, HTTP1))
        self._metrics = metrics
        self._folder = Folder(
            options.certificates, self.serving, names=options.names, clock=lambda: datetime.now(UTC)
        )
        self.look()

    def look(self) -> None:
        """Read it where it changed, and show when its leaf ends."""
        self._folder.look()
        leaf = self.serving.leaf
        if leaf is not None:
            self._metrics.certificate_not_after.set(leaf.not_after.timestamp())
