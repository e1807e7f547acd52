"""The keys of the process, and what they sign on Pods."""

from __future__ import annotations

from collections.abc import Callable

from ledger.signing import OwnKey
from scheduler.service.proofs import Signing
from scheduler.service.view import ClusterView
from tenure.keys import private_key, public_key
from tenure.serving.scheduling.options import SchedulerOptions


def proof_key_of(options: SchedulerOptions) -> OwnKey:
    """
    Return the key that proofs are signed with, which knows those again that come back on Pods.

    Raises:
        InputError: no such key.
    """
    return OwnKey(private_key(options.proof_key), older=map(public_key, options.trusted_proof_keys))


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
