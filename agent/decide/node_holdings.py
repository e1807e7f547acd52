"""
Who holds what on this node, as far as the service told, and up to which position of its ledger.

Rule: docs/contracts/agents.md. Pure: answers of the service in, one value out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import UNSET

from ledger.domain.annotations.proof import ProvenContainer, ProvenDevice
from ledger.domain.annotations.tenure import Shown, cards_in
from ledger.domain.cpuset import CpuSet

GRANTED: Final = "granted"
LOST: Final = "lost"

HoldingKey = tuple[str, int]
"""UID of the Pod and attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldByPod:
    """
    What one Pod holds on this node, as the ledger says it.

    Attributes:
        attempt: which reservation of this Pod, from 1.
        kind: `granted` or `observed`, that is by somebody else.
        phase: `reserved`, `bound`, `assigned`, `observed` or `lost`.
        position: of the reservation in the ledger.
        proof: the text of `tenure.sh/proof`, signed for this node; empty where it has none.
        shown: the cards that its containers see.
    """

    pod_uid: str
    namespace: str
    pod_name: str
    containers: tuple[ProvenContainer, ...]
    attempt: int
    kind: str
    phase: str
    position: int
    proof: str = ""
    shown: Shown = UNSET

    @property
    def key(self) -> HoldingKey:
        """Return what tells it from other holdings of the node."""
        return self.pod_uid, self.attempt

    @property
    def devices(self) -> tuple[ProvenDevice, ...]:
        """Return every device that a container of it has, each once, by type and minor."""
        found = {
            (one.device_type, one.device_id): one
            for container in self.containers
            for one in container.devices
        }
        return tuple(sorted(found.values(), key=lambda one: (one.device_type, one.minor)))

    @property
    def in_sight(self) -> frozenset[str]:
        """Return the ids of its devices, and of the cards that its containers see beside them."""
        return frozenset((*(one.device_id for one in self.devices), *cards_in(self.shown)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuClaim:
    """A claim that has CPUs of this node to itself; nothing is confirmed of it."""

    claim_uid: str
    position: int
    namespace: str
    name: str
    cpus: CpuSet


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """
    Of which node, and out of which ledger, an answer is.

    Attributes:
        cluster: the origin of the ledger; empty where an older service does not tell it.
        incarnation: which is open; positions of two of them can't be compared.
    """

    node_name: str
    node_uid: str
    cluster: str = ""
    incarnation: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What happened to one holding, and how it is now; None = it has ended."""

    position: int
    what: str
    pod_uid: str
    attempt: int
    reason: str = ""
    holding: HeldByPod | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeHoldings:
    """
    All holdings of one node.

    Attributes:
        position: of the ledger; up to there they are all. Newer changes may be among them.
        held: the holdings by their keys.
        ended: Pods whose holding ended beyond `position`, and where.
        cpu_claims: by the last answer; None = it does not say.
    """

    origin: Origin
    position: int
    held: Mapping[HoldingKey, HeldByPod] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    cpu_claims: tuple[CpuClaim, ...] | None = None

    def pods(self) -> tuple[HeldByPod, ...]:
        """Return all holdings, the oldest first."""
        return tuple(sorted(self.held.values(), key=lambda one: (one.position, one.key)))

    def of_pod(self, pod_uid: str) -> tuple[HeldByPod, ...]:
        """Return the holdings of a Pod by attempt: one, but while it is moved to another."""
        return tuple(
            sorted((one for key, one in self.held.items() if key[0] == pod_uid), key=_attempt)
        )


def all_holdings(origin: Origin, position: int, held: Iterable[HeldByPod]) -> NodeHoldings:
    """Return what an answer with all holdings says."""
    return NodeHoldings(origin=origin, position=position, held={one.key: one for one in held})


def after_changes(
    known: NodeHoldings, origin: Origin, position: int, changes: Iterable[Change]
) -> NodeHoldings | None:
    """
    Return the holdings after some changes; None where they do not go on from what is known.

    The same change may come again, and later ones beside it: each says how its holding is now.
    """
    if origin != known.origin or position < known.position:
        return None
    held, ended = dict(known.held), dict(known.ended)
    for change in changes:
        key = (change.pod_uid, change.attempt)
        if change.holding is None:
            held.pop(key, None)
            ended[change.pod_uid] = max(ended.get(change.pod_uid, 0), change.position)
        else:
            held[key] = change.holding
    later = {pod: at for pod, at in ended.items() if at > position}
    return replace(known, position=position, held=held, ended=later)


def _attempt(holding: HeldByPod) -> int:
    return holding.attempt
