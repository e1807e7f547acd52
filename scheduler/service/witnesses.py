"""
What others have seen of the ledger, compared with it before anything is granted or recorded.

Rule: design section 8, "Restore". A witness is a bound Pod's proof whose signature holds, or the
service's ConfigMap. A Pod with another proof is adopted like any that runs unrecorded.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from certs.ports import Object, Objects, api_path
from ledger.domain.annotations.proof import decode_proof
from ledger.domain.annotations.signed import Checker
from ledger.domain.annotations.wire import load
from ledger.domain.bounds import Position
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import found_in, version_number
from ledger.domain.log import standing
from ledger.domain.log.codec import decode_value, encode_value
from ledger.domain.log.events import LedgerEvent, PodReleased, PodReserved, PodVoided
from ledger.domain.log.state import LedgerState
from ledger.domain.resources import ANNOTATION_TENURE_PROOF
from ledger.signing import Checkpoint

RECOVERING: Final = "LedgerRecovering"
CONFIG_MAP: Final = "tenure-ledger-head"
"""The ConfigMap in which the service keeps how far it has seen its ledger."""
_KEY: Final = "witness"
_RECOVER: Final = "run `tenure ledger recover`"
_RESTORE: Final = "put back a copy of this cluster's own ledger"

Reservation = tuple[str, int]
"""Pod UID and number of the attempt."""


class _Said(msgspec.Struct, frozen=True, gc=False):
    """Of a proof, what is looked at before its signature: whether it can tell anything new."""

    cluster: str
    incarnation: str
    position: Position
    attempt: int
    pod_uid: str


class _Proof(msgspec.Struct, frozen=True, gc=False):
    proof: _Said


_PROOF: Final = msgspec.json.Decoder(_Proof)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The proof on a bound Pod, not believed yet; `pod` is namespace and name, for people."""

    pod_uid: str
    pod: str
    incarnation: str
    position: int
    attempt: int
    text: str


class ProofBook:
    """
    A sink of Pods that keeps the proofs which the ledger, as it was begun with, does not explain.

    Args:
        seen: UIDs of the Pods that are there.

    Attributes:
        claims: by UID of the Pod.
        broken: UID of a Pod -> why what it carries is no proof of ours.
    """

    def __init__(self, origin: str, state: LedgerState, seen: Container[str] = ()) -> None:
        self._origin = origin
        self._seen = seen
        self._held: dict[str, int] | None = {
            held.pod_uid: held.opened_position
            for node in state.nodes.values()
            for held in node.holdings.values()
        }
        self.claims: dict[str, Claim] = {}
        self.broken: dict[str, str] = {}

    def close(self) -> None:
        """Forget all: from here on the ledger's one writer signs every proof."""
        self._held = None
        self.claims.clear()
        self.broken.clear()

    def follow(self, position: int, event: LedgerEvent) -> None:
        """Take note of a reservation, which explains the Pod's proof, or of its end."""
        if self._held is None:
            return
        if isinstance(event, PodReleased | PodVoided) and event.pod_uid not in self._seen:
            self._held.pop(event.pod_uid, None)
        elif isinstance(event, PodReserved):
            self._held[event.pod_uid] = position
            claim = self.claims.get(event.pod_uid)
            if claim is not None and claim.position == position:
                del self.claims[event.pod_uid]

    def put(self, uid: str, item: Object) -> None:
        """Take a Pod that came or changed."""
        if self._held is None:
            return
        self._forget(uid)
        metadata = item["metadata"]
        text = (metadata.get("annotations") or {}).get(ANNOTATION_TENURE_PROOF)
        if text is None or not (item.get("spec") or {}).get("nodeName"):
            return
        try:
            said = _PROOF.decode(text).proof
        except (msgspec.DecodeError, TypeError, RecursionError) as error:
            self.broken[uid] = f"not a proof: {error}"
            return
        if (said.cluster, said.pod_uid) != (self._origin, uid):
            self.broken[uid] = f"a proof of another cluster or Pod: cluster={said.cluster!r}"
        elif self._held.get(uid) != said.position:
            self.claims[uid] = Claim(
                pod_uid=uid,
                pod=f"{metadata.get('namespace')}/{metadata.get('name')}",
                incarnation=said.incarnation,
                position=said.position,
                attempt=said.attempt,
                text=text,
            )

    def drop(self, uid: str) -> None:
        """Forget a Pod that is gone."""
        self._forget(uid)
        if self._held is not None:
            self._held.pop(uid, None)

    def _forget(self, uid: str) -> None:
        self.claims.pop(uid, None)
        self.broken.pop(uid, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """
    How a ledger stands beside its witnesses.

    Attributes:
        reason: why nothing may be granted, with the next step; empty where it may.
        disbelieved: UID of a Pod -> why its proof tells nothing.
    """

    reason: str
    disbelieved: Mapping[str, str]


def examine(
    own: standing.Own,
    reserved: Mapping[int, Reservation | None],
    claims: Collection[Claim],
    kept: standing.Witness | None,
    check: Checker,
) -> Examined:
    """
    Compare a ledger with its witnesses; the gravest finding counts.

    Args:
        reserved: position -> whose reservation the ledger has there, None for another event;
            positions that are not at hand are missing, and tell nothing.
        kept: what the ConfigMap says, None without one.
    """
    witnesses = [] if kept is None else [kept]
    disbelieved: dict[str, str] = {}
    for claim in sorted(claims, key=lambda one: (one.position, one.pod_uid)):
        fact = _unexplained(own, reserved, claim)
        if fact is None:
            continue
        try:
            proof = decode_proof(claim.text, check=check)
        except InputError as error:
            disbelieved[claim.pod_uid] = str(error)
            continue
        witness = standing.Witness(
            origin=proof.cluster,
            incarnation=proof.incarnation,
            epoch=proof.epoch,
            position=proof.position,
            seen_by=f"Pod {claim.pod}",
        )
        if fact:
            found: standing.Standing = standing.Forked(witness=witness, fact=fact)
            return Examined(reason=reason_of(found, [witness]), disbelieved=disbelieved)
        witnesses.append(witness)
    return Examined(
        reason=reason_of(standing.standing(own, witnesses), witnesses), disbelieved=disbelieved
    )


def _unexplained(
    own: standing.Own, reserved: Mapping[int, Reservation | None], claim: Claim
) -> str | None:
    """Return None if the ledger explains a proof, "" if it lacks the event, or a contradiction."""
    if not own.has(claim.incarnation, claim.position):
        return None if claim.position <= own.known_lost_to(claim.incarnation) else ""
    there = reserved.get(claim.position, (claim.pod_uid, claim.attempt))
    if there == (claim.pod_uid, claim.attempt):
        return None
    return f"another event at the position: position={claim.position}"


def reason_of(found: standing.Standing, witnesses: Sequence[standing.Witness]) -> str:
    """Return why nothing may be granted from a ledger that stands so, empty where it may."""
    match found:
        case standing.InStep() | standing.Ahead():
            return ""
        case standing.Behind(lost=lost):
            last = lost[-1]
            by = next(
                each.seen_by
                for each in witnesses
                if (each.incarnation, each.position) == (last.incarnation, last.last)
            )
            ranges = ", ".join(
                f"{each.first} to {each.last} of {each.incarnation}" for each in lost
            )
            return f"{RECOVERING}: the ledger lacks positions {ranges}, seen by {by}: {_RECOVER}"
        case standing.Forked(witness=witness, fact=fact):
            words = f"another history than was seen: {fact}, by={witness.seen_by}"
            return f"{RECOVERING}: {words}: {_RESTORE}"
        case standing.ForeignOrigin(witness=witness):
            words = f"another ledger was seen: origin={witness.origin}, by={witness.seen_by}"
            return f"{RECOVERING}: {words}: {_RESTORE}"


def not_grown(kept: Checkpoint, origin: str, position: int, root: bytes | None, by: str) -> str:
    """
    Return why nothing may be granted from a ledger beside a checkpoint that an agent has.

    Args:
        position: of its last event.
        root: of its first `kept.size` events, None where there are not so many.
    """
    if kept.origin != origin:
        words = f"another ledger was seen: origin={kept.origin}, by={by}"
        return f"{RECOVERING}: {words}: {_RESTORE}"
    if root is None:
        words = f"the ledger lacks positions {position + 1} to {kept.size}, seen by {by}"
        return f"{RECOVERING}: {words}: {_RECOVER}"
    if root != kept.root:
        words = f"another history than was seen: size={kept.size}, by={by}"
        return f"{RECOVERING}: {words}: {_RESTORE}"
    return ""


def set_back(seen: Sequence[str], now: str) -> str:
    """
    Return why nothing may be granted by an API server that was set back, empty if it was not.

    Rule: design section 8, "Restore": a resourceVersion below one already seen.

    Args:
        seen: versions of Pods as they were reserved for.
        now: of the list of Pods, empty while they are listed anew. Versions that are no numbers
            tell nothing.
    """
    if not now:
        return f"{RECOVERING}: whether the API server was set back is known once Pods are listed"
    highest = max((version_number(each) or 0 for each in seen), default=0)
    listed = version_number(now)
    if listed is None or listed >= highest:
        return ""
    words = f"the API server was set back: resourceVersion={now}, seen={highest}"
    return f"{RECOVERING}: {words}: {_RECOVER} --api-restored"


# --- the ConfigMap ----------------------------------------------------------------------------


def config_map_path(namespace: str) -> str:
    """Return the path of the ConfigMap."""
    return api_path("v1", "namespaces", namespace, "configmaps", CONFIG_MAP)


def config_map(witness: standing.Witness, namespace: str) -> Object:
    """Return the ConfigMap that says what was seen."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": CONFIG_MAP, "namespace": namespace},
        "data": {_KEY: encode_value(witness)},
    }


def kept_witness(item: Object, origin: str | None = None) -> standing.Witness:
    """
    Return what the ConfigMap says; of the ledger of that origin, if one is given.

    Raises:
        InputError: it says nothing that can be read, or speaks of another ledger.
    """
    text = found_in(item, "data", _KEY)
    if not isinstance(text, str):
        raise InputError("missing", field=f"data[{_KEY}]")
    path = f"data[{_KEY}]"
    witness: standing.Witness = decode_value(standing.Witness, load(text, path), path)
    if origin not in (None, witness.origin):
        raise InputError(f"of another ledger: {witness.origin!r}", field=f"{path}.origin")
    return replace(witness, seen_by=f"ConfigMap {CONFIG_MAP}")


def mangled(error: InputError) -> str:
    """Return why nothing may be granted while the ConfigMap can't be read."""
    step = "delete it once `tenure verify` finds nothing"
    return f"{RECOVERING}: ConfigMap {CONFIG_MAP} can't be read: {error}: {step}"


async def write_head(api: Objects, namespace: str, own: standing.Own) -> str:
    """
    Write how far the ledger is into the ConfigMap; return why nothing may be granted.

    The ConfigMap is read each time: it may have been deleted.

    A ConfigMap that has seen more than our ledger says stays as it is: others grant from another
    ledger then.

    Args:
        own: as far as it is durable, with the chain at its head.

    Raises:
        ApiError, ConflictError: it is not written; call it again.
    """
    now = standing.Witness(
        origin=own.origin,
        incarnation=own.incarnation,
        epoch=own.epoch,
        position=own.position,
        chain=own.chains.get(own.position, ""),
    )
    path = config_map_path(namespace)
    there = await api.read(path)
    body = config_map(now, namespace)
    if there is None:
        await api.create(path.rpartition("/")[0], body)
        return ""
    why = _beyond(there, own)
    if why or _says(there, now):
        return why
    version = there["metadata"].get("resourceVersion")
    same = {"op": "test", "path": "/metadata/resourceVersion", "value": version}
    await api.patch(path, [same, {"op": "add", "path": "/data", "value": body["data"]}])
    return ""


def _says(there: Object, now: standing.Witness) -> bool:
    try:
        return replace(kept_witness(there), seen_by=now.seen_by) == now
    except InputError:
        return False


def _beyond(there: Object, own: standing.Own) -> str:
    """Return what the ConfigMap has seen that our ledger does not say, empty if nothing."""
    try:
        kept = kept_witness(there, own.origin)
    except InputError:
        return ""  # it was compared when we began, and is written anew
    return reason_of(standing.standing(own, [kept]), [kept])
