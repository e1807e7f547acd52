"""Holdings of a node with their proofs, signed by a key of the tests."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from agent.decide.believing import Believing, OwnNode
from agent.decide.node_holdings import GRANTED, HeldByPod, NodeHoldings, Origin, all_holdings
from ledger.domain.annotations.proof import (
    ProvenContainer,
    ProvenDevice,
    SignedHolding,
    encode_proof,
)
from ledger.domain.resources import ANNOTATION_TENURE_PROOF
from ledger.signing import PrivateKey, published, trusting

KEY = PrivateKey.new("proofs.test")
OTHER_KEY = PrivateKey.new("proofs.other")
OWN = OwnNode(name="a", uid="uid-a", machine=("SYSTEM-a", "machine-a"))
ORIGIN = Origin(node_name="a", node_uid="uid-a", cluster="ledger/test", incarnation="first")


def believing(own: OwnNode = OWN) -> Believing:
    """Return what a node believes that trusts the key."""
    return Believing(own, trusting(published([KEY.public])))


def holds(index: str, *devices: str) -> ProvenContainer:
    """Return what a container may have."""
    return ProvenContainer(
        index=index,
        devices=tuple(
            ProvenDevice(device_type="gpu", device_id=one, minor=number)
            for number, one in enumerate(devices)
        ),
    )


def proven(
    pod_uid: str,
    position: int,
    *containers: ProvenContainer,
    attempt: int = 1,
    node_uid: str = "uid-a",
    incarnation: str = "first",
    key: PrivateKey = KEY,
) -> str:
    """Return the text of a proof."""
    proof = SignedHolding(
        cluster="ledger/test",
        incarnation=incarnation,
        epoch=0,
        position=position,
        attempt=attempt,
        pod_uid=pod_uid,
        node_uid=node_uid,
        machine=("system-a", "machine-a"),
        containers=containers,
    )
    return encode_proof(proof, key=key.public.key_id, sign=key.sign)[ANNOTATION_TENURE_PROOF]


def held_by_pod(
    *,
    pod_uid: str,
    namespace: str,
    pod_name: str,
    containers: tuple[ProvenContainer, ...] = (),
    attempt: int = 1,
    kind: str = GRANTED,
    phase: str = "bound",
    position: int = 0,
) -> HeldByPod:
    """Return a holding without a proof: the first of its Pod, granted and bound."""
    return HeldByPod(
        pod_uid=pod_uid,
        namespace=namespace,
        pod_name=pod_name,
        containers=containers,
        attempt=attempt,
        kind=kind,
        phase=phase,
        position=position,
    )


def held(
    pod_uid: str, position: int, *containers: ProvenContainer, attempt: int = 1, **words: str
) -> HeldByPod:
    """Return a holding with its proof."""
    one = held_by_pod(
        pod_uid=pod_uid,
        namespace="ml",
        pod_name=pod_uid,
        attempt=attempt,
        position=position,
        containers=containers,
    )
    proof = proven(pod_uid, position, *containers, attempt=attempt)
    return replace(one, **{"proof": proof, **words})  # type: ignore[arg-type] # of its own fields


def word(position: int, *holdings: HeldByPod, origin: Origin = ORIGIN) -> NodeHoldings:
    """Return the service's word up to a position."""
    return all_holdings(origin, position, holdings)


def annotation(text: str | None) -> dict[str, str]:
    """Return the annotations of a Pod with this proof."""
    return {} if text is None else {ANNOTATION_TENURE_PROOF: text}


def devices(containers: Iterable[ProvenContainer]) -> list[str]:
    """Return the ids of all devices."""
    return [one.device_id for each in containers for one in each.devices]
