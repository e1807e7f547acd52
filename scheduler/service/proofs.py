"""What the scheduler signs on a Pod: its proof for the node, its allocation for a restore."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ledger.domain.annotations.proof import SignedHolding, containers_of, encode_proof, proof_of
from ledger.domain.annotations.signed_allocation import Allocation, encode_signed_allocation
from ledger.domain.log.codec import common_fields
from ledger.domain.log.events import PodReserved
from ledger.domain.log.state import GRANTED, LOST, Holding
from ledger.domain.resources import ANNOTATION_TENURE_PROOF
from ledger.signing import OwnKey, PrivateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Signing:
    """
    Signs what the ledger says of a reservation; see `scheduler.service.binding.Proofs`.

    Args:
        cluster: the origin of the ledger.
        incarnation: the one that is open.
        proof_key: its own, so that a node's trust in Pods and an auditor's in checkpoints end
            apart.
        ledger_key: of checkpoints, and of the allocations that `tenure ledger recover` believes.
        machine_of: system UUID and machine id by the UID of a node.
    """

    cluster: str
    incarnation: Callable[[], str]
    proof_key: OwnKey | PrivateKey
    ledger_key: PrivateKey
    machine_of: Callable[[str], tuple[str, str]]

    def annotations(
        self, event: PodReserved, *, epoch: int, position: int, at_us: int
    ) -> Mapping[str, str]:
        """Return proof and allocation of a reservation that is durable at this position."""
        incarnation = self.incarnation()
        proof = proof_of(
            event,
            cluster=self.cluster,
            incarnation=incarnation,
            epoch=epoch,
            position=position,
            machine=self.machine_of(event.node_uid),
        )
        allocation = Allocation(
            origin=self.cluster,
            incarnation=incarnation,
            epoch=epoch,
            position=position,
            at_us=at_us,
            shown=proof.shown,
            **common_fields(event, Allocation),
        )
        return {
            **encode_proof(proof, key=self.proof_key.public.key_id, sign=self.proof_key.sign),
            **encode_signed_allocation(
                allocation, key=self.ledger_key.public.key_id, sign=self.ledger_key.sign
            ),
        }

    def proof(self, holding: Holding, node_uid: str) -> str:
        """
        Return the proof of what is held on a node now; empty where we did not give it.

        Its epoch is 0: it may be said by another writer than the one that recorded the reservation,
        and nobody compares epochs of proofs on a node.
        """
        if holding.kind != GRANTED or holding.phase == LOST or holding.machine:
            return ""
        proof = SignedHolding(
            cluster=self.cluster,
            incarnation=self.incarnation(),
            epoch=0,
            position=holding.opened_position,
            attempt=holding.attempt,
            pod_uid=holding.pod_uid,
            node_uid=node_uid,
            machine=self.machine_of(node_uid),
            containers=containers_of(holding),
            shown=holding.shown,
        )
        key = self.proof_key
        return encode_proof(proof, key=key.public.key_id, sign=key.sign)[ANNOTATION_TENURE_PROOF]
