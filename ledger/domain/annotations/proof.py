"""
The proof that a Pod carries: what its containers may have, said by the ledger's writer and signed.

Rule: design section 8, "Ownership of the metal"; docs/contracts/proof.md. The node's agent believes
nothing else about a Pod while no service of ours answers. Checking needs no ledger and no API.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import UNSET

from ledger.domain.annotations.signed import Checker, Signer, decode_signed, encode_signed
from ledger.domain.annotations.tenure import Shown, read_shown
from ledger.domain.annotations.wire import annotation_path
from ledger.domain.bounds import Count, Exact, Number, Units
from ledger.domain.cpuset import CpuSet
from ledger.domain.devices import DeviceShare
from ledger.domain.errors import InputError
from ledger.domain.log.codec import decode_value, plain_value
from ledger.domain.log.events import PodReserved
from ledger.domain.log.state import Holding
from ledger.domain.resources import ANNOTATION_TENURE_PROOF

FORMAT: Final = 1
_WORD: Final = "proof"
_PATH: Final = annotation_path(ANNOTATION_TENURE_PROOF)
EVERY: Final = ""
"""The index of what belongs to every container of the Pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenDevice:
    """A device, by what it is and not by where it is, and how much of it."""

    device_type: str
    device_id: str
    minor: Exact
    core_percent: Units = 0
    memory_bytes: Count = 0
    vf_bus_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenContainer:
    """
    What one container may have.

    Attributes:
        index: its place in the spec, `<i>` or `init-<i>`; empty = every container of the Pod.
    """

    index: str
    devices: tuple[ProvenDevice, ...] = ()
    cpus: CpuSet = CpuSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundContainer(ProvenContainer):
    """What a node says that one has: `cpus` by the kernel, `written` where its cgroup asks more."""

    written: CpuSet = CpuSet()


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHolding:
    """
    What one Pod was given on one node, and where the ledger says so.

    Attributes:
        cluster: the origin of the ledger.
        incarnation, epoch, position: the reservation's event.
        machine: system UUID and machine id of the node, empty where the node tells none.
        containers: by index, those of the whole Pod first.
        shown: the cards that its containers are to be shown.
    """

    format: Exact = FORMAT
    cluster: str
    incarnation: str
    epoch: Count
    position: Exact
    attempt: Number
    pod_uid: str
    node_uid: str
    machine: tuple[str, str]
    containers: tuple[ProvenContainer, ...] = ()
    shown: Shown = UNSET


# tenure.sh/proof: {"key":"proofs.tenure+9c56cc51","proof":{"attempt":1,"cluster":"ledger/<uid>",
#   "containers":[{"cpus":"0-3","devices":[],"index":""},{"cpus":"","devices":[{"core_percent":50,
#   "device_id":"GPU-...","device_type":"gpu","memory_bytes":42949672960,"minor":0,
#   "vf_bus_ids":[]}],"index":"0"}],"epoch":3,"format":1,"incarnation":"first",
#   "machine":["4c4c4544-...","9f8e..."],"node_uid":"...","pod_uid":"...","position":1017},
#   "signature":"<base64, 64 bytes of Ed25519>"}


def proof_of(
    event: PodReserved,
    *,
    cluster: str,
    incarnation: str,
    epoch: int,
    position: int,
    machine: tuple[str, str],
) -> SignedHolding:
    """Return what is to be signed for a reservation at this position."""
    return SignedHolding(
        cluster=cluster,
        incarnation=incarnation,
        epoch=epoch,
        position=position,
        attempt=event.attempt,
        pod_uid=event.pod_uid,
        node_uid=event.node_uid,
        machine=machine,
        containers=containers_of(event),
        shown=read_shown(event.annotations),
    )


def containers_of(held: PodReserved | Holding) -> tuple[ProvenContainer, ...]:
    """Return what each container may have of what its Pod holds, by index."""
    by_index: dict[str, list[ProvenDevice]] = {}
    for share in held.shares:
        for part in share.containers:
            device = _device(share, part.core_percent, part.memory_bytes)
            by_index.setdefault(part.index, []).append(device)
        if not share.containers:
            device = _device(share, share.core_percent, share.memory_bytes)
            by_index.setdefault(EVERY, []).append(device)
    if held.cpuset:
        by_index.setdefault(EVERY, [])
    return tuple(
        ProvenContainer(
            index=index, devices=tuple(devices), cpus=CpuSet() if index else held.cpuset
        )
        for index, devices in sorted(by_index.items())
    )


def _device(share: DeviceShare, core_percent: int, memory_bytes: int) -> ProvenDevice:
    return ProvenDevice(
        device_type=share.device_type,
        device_id=share.device_id,
        minor=share.minor,
        core_percent=core_percent,
        memory_bytes=memory_bytes,
        vf_bus_ids=share.vf_bus_ids,
    )


def encode_proof(proof: SignedHolding, *, key: str, sign: Signer) -> dict[str, str]:
    """Write the annotation, signed with the key of that id."""
    words: dict[str, object] = plain_value(proof)
    return encode_signed(ANNOTATION_TENURE_PROOF, _WORD, words, key=key, sign=sign)


def decode_proof(text: str, *, check: Checker) -> SignedHolding:
    """Read the annotation of a Pod. Raises InputError as `decode_signed` does."""
    words = decode_signed(ANNOTATION_TENURE_PROOF, _WORD, text, check=check, version=FORMAT)
    proof: SignedHolding = decode_value(SignedHolding, words, f"{_PATH}.{_WORD}")
    return proof


def verified_proof(
    annotations: Mapping[str, str],
    *,
    check: Checker,
    cluster: str,
    pod_uid: str,
    node_uid: str,
    machine: tuple[str, str],
    released_position: int,
) -> SignedHolding:
    """
    Return the proof of a Pod that is about to start on this node.

    Rule: docs/contracts/proof.md, "What the agent checks".

    Args:
        cluster: the origin of the ledger; one that the node was never told is not compared, for
            the Node's UID is of one cluster alone.
        machine: what this machine says of itself; what it does not say is not compared.
        released_position: the position of this node's last release of that Pod, 0 without one.

    Raises:
        InputError: there is none, it is not signed by a key we trust, it is for another cluster,
            Pod, Node or machine, or for a reservation that was released.
    """
    text = annotations.get(ANNOTATION_TENURE_PROOF)
    if text is None:
        raise InputError("missing", field=_PATH)
    proof = decode_proof(text, check=check)
    for name, said, ours in (
        ("cluster", proof.cluster, cluster or proof.cluster),
        ("pod_uid", proof.pod_uid, pod_uid),
        ("node_uid", proof.node_uid, node_uid),
        ("machine[0]", *_ids(proof.machine[0], machine[0])),
        ("machine[1]", *_ids(proof.machine[1], machine[1])),
    ):
        if said != ours:
            fact = f"a proof for another one: said={said!r}, expected={ours!r}"
            raise InputError(fact, field=f"{_PATH}.{_WORD}.{name}")
    if proof.position <= released_position:
        raise InputError(
            f"of a reservation that was released: position={proof.position},"
            f" released_position={released_position}",
            field=f"{_PATH}.{_WORD}.position",
        )
    return proof


def _ids(said: str, ours: str) -> tuple[str, str]:
    """Return two ids to compare, of which case says nothing; ours unknown equals any."""
    return (said.lower(), ours.lower() or said.lower())


def attempt_in(annotations: Mapping[str, str], pod_uid: str) -> int:
    """
    Return the attempt that a bound Pod says it was bound by, 0 where it says none of ours.

    The signature is not looked at. What a Pod says here only tells whether the ledger's own
    reservation became its Binding, and a key that was rotated away must not void one that did.
    """
    try:
        words = json.loads(annotations[ANNOTATION_TENURE_PROOF])[_WORD]
        attempt, uid = words["attempt"], words["pod_uid"]
    except (KeyError, TypeError, ValueError, RecursionError):
        return 0
    return attempt if uid == pod_uid and type(attempt) is int and attempt > 0 else 0
