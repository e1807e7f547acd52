"""
Which word about a Pod a node believes: the service's, else a copy of it, else the Pod's own proof.

Rule: design section 8, "Ownership of the metal"; docs/contracts/proof.md. Whatever is believed is
signed for this node by the key of the ledger's writer; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from agent.decide.node_holdings import GRANTED, LOST, HeldByPod, NodeHoldings
from ledger.domain.annotations.proof import SignedHolding, verified_proof
from ledger.domain.annotations.signed import Checker
from ledger.domain.errors import InputError
from ledger.domain.resources import ANNOTATION_TENURE_PROOF


class Source(StrEnum):
    """Whose word it is."""

    SERVICE = "service"
    COPY = "copy"
    ANNOTATION = "annotation"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnNode:
    """What a node knows of itself; `machine`: system UUID and machine id, empty = not compared."""

    name: str
    uid: str
    machine: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Believed:
    """What the containers of a Pod may have, and who says so."""

    proof: SignedHolding
    source: Source


class Believing:
    """What one node believes."""

    def __init__(self, own: OwnNode, check: Checker) -> None:
        """Begin; `check` tells whether a key that this node trusts now signed something."""
        self.own = own
        self._check = check

    def of_pod(
        self,
        pod_uid: str,
        known: NodeHoldings | None,
        *,
        is_heard: bool,
        annotations: Mapping[str, str] | None,
    ) -> Believed | None:
        """
        Return what is believed of a Pod; None where nobody says anything, and who does may come.

        Args:
            known: the service's last word.
            is_heard: it is its word of now, and nothing else counts then.
            annotations: the Pod's own; None = kubelet has not told of it.

        Raises:
            InputError: somebody says something, and it can't be believed; with the reason.
        """
        holding = None if known is None else granted(known, pod_uid)
        if is_heard:
            if holding is None or known is None:
                return None
            return Believed(proof=self.holding(holding, known), source=Source.SERVICE)
        later = None
        if annotations is not None and ANNOTATION_TENURE_PROOF in annotations:
            try:
                later = self._annotation(pod_uid, known, annotations)
            except InputError:
                if holding is None:
                    raise
        if later is not None:
            return Believed(proof=later, source=Source.ANNOTATION)
        if holding is None or known is None:
            return None
        return Believed(proof=self.holding(holding, known), source=Source.COPY)

    def holding(self, holding: HeldByPod, known: NodeHoldings) -> SignedHolding:
        """Return a holding's proof. Raises InputError: none, another node's, or it differs."""
        place = f"holdings[{holding.pod_uid}/{holding.attempt}].proof"
        if not holding.proof:
            raise InputError("missing", field=place)
        cluster = known.origin.cluster
        try:
            proof = self._verified(
                holding.pod_uid, {ANNOTATION_TENURE_PROOF: holding.proof}, cluster
            )
        except InputError as error:
            raise error.within(place) from error
        said = (proof.attempt, proof.position, proof.containers, proof.incarnation)
        ours = (holding.attempt, holding.position, holding.containers, known.origin.incarnation)
        if said != ours or proof.shown != holding.shown:
            raise InputError("it proves another holding than it stands beside", field=place)
        return proof

    def copy(self, known: NodeHoldings) -> None:
        """Refuse a copy that is not this node's, or has a holding without proof, by InputError."""
        origin = known.origin
        if (origin.node_name, origin.node_uid) != (self.own.name, self.own.uid):
            raise InputError(f"of another node: name={origin.node_name}, uid={origin.node_uid}")
        for one in known.pods():
            if is_granted(one):
                self.holding(one, known)

    def _annotation(
        self, pod_uid: str, known: NodeHoldings | None, annotations: Mapping[str, str]
    ) -> SignedHolding | None:
        """
        Return what a Pod's own proof says beyond what is known; None where it says no more.

        What is known is complete up to its position: a reservation of before that is not among it
        has ended.
        """
        if known is None:
            return self._verified(pod_uid, annotations, "")
        proof = self._verified(pod_uid, annotations, known.origin.cluster)
        if proof.incarnation != known.origin.incarnation:
            fact = f"of another incarnation of the ledger: said={proof.incarnation}"
            raise InputError(f"{fact}, known={known.origin.incarnation}")
        if proof.position > known.position and proof.position > known.ended.get(pod_uid, 0):
            return proof
        if (pod_uid, proof.attempt) in known.held:
            return None
        fact = f"of a reservation that was released: position={proof.position}"
        raise InputError(f"{fact}, known_position={known.position}")

    def _verified(self, pod_uid: str, said: Mapping[str, str], cluster: str) -> SignedHolding:
        return verified_proof(
            said,
            check=self._check,
            cluster=cluster,
            pod_uid=pod_uid,
            node_uid=self.own.uid,
            machine=self.own.machine,
            released_position=0,
        )


def granted(known: NodeHoldings, pod_uid: str) -> HeldByPod | None:
    """Return what a Pod was given by us on this node: its last reservation."""
    ours = [one for one in known.of_pod(pod_uid) if is_granted(one)]
    return ours[-1] if ours else None


def is_granted(holding: HeldByPod) -> bool:
    """Tell whether we gave it, and it is still here."""
    return holding.kind == GRANTED and holding.phase != LOST
