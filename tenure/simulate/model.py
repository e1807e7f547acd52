"""What a run of the simulation is made of, and what comes out of it: plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ledger.domain.errors import FieldError
from ledger.domain.kube.shared_templates import SharedTemplate
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest, PodSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedPod:
    """A Pod that breaks rules of ours: it is never decided, only recorded with its errors."""

    uid: str
    namespace: str
    name: str
    errors: tuple[FieldError, ...]
    snapshot: PodSnapshot = field(default_factory=PodSnapshot)

    @property
    def message(self) -> str:
        """Return every field error, as the user sees them."""
        return "; ".join(str(error) for error in self.errors)


Pod = PodRequest | RefusedPod
"""A Pod that asks for a place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """
    One Pod that asks for a place.

    Attributes:
        at_us: virtual time, microseconds since the epoch; carried by the events of the decision.
        lifetime_us: how long it holds its place once placed, in a timed run; None = forever.
        end_reason: what its release is recorded with.
    """

    at_us: int
    pod: Pod
    lifetime_us: int | None = None
    end_reason: str = "completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChange:
    """A device dies or comes back at a moment of a timed run. `node` is an index into the nodes."""

    at_us: int
    node: int
    device_type: str
    minor: int
    healthy: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChange:
    """
    A Node is lost, comes back or gets other labels. `node` is an index into the nodes.

    Attributes:
        facts: the Node from then on, under its UID; the health of its devices is not looked at.
        reason: of a loss.
    """

    at_us: int
    node: int
    facts: NodeFacts
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearing:
    """Nothing runs any more of what held devices of a Node when it was lost: they are free."""

    at_us: int
    node: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PodChange:
    """
    A Pod is deleted, or gets other labels. `arrival` is an index into the arrivals.

    Attributes:
        pod: the Pod from then on, under its UID; None = it is gone.
        reason: of its end.
    """

    at_us: int
    arrival: int
    pod: Pod | None
    reason: str = ""


Change = HealthChange | NodeChange | Clearing | PodChange


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """
    Everything a simulation is fed with; the same run gives the same ledger, byte for byte.

    Attributes:
        source: what the inputs were: `manifests`, `openb` or `trace`.
        nodes: in the order that breaks ties.
        arrivals: in the order of decision; a timed run needs `at_us` ascending.
        adopted: what running Pods hold before the first decision, in file order. One on a node
            that is not in the input has no node UID; it is listed and holds nothing.
        running: gang or group (`events.group_name`) -> the nodes of its running Pods, by name,
            one for each Pod.
        running_requests: what the running Pods ask for, of those that break no rule.
        running_cards: gang or group -> these members' GPUs, as (node name, minor).
        changes: ascending by `at_us`; only a timed run has any.
        typical: the workload whose shapes the fragmentation measure weighs; empty = the arrivals.
        rank: tie-break order per node, 0 first; None = the order of `nodes`.
        conflicts: what running Pods' annotations say wrongly or against their requests.
        shared_templates: what the ConfigMap says of them; None = none is in the input, the settings
            count.
        start_us: virtual time of inventory, settings and adoption.
        inputs_hash: hex SHA-256 over all that may change a decision, settings and seed aside.
        timed: Pods leave, devices die, pending Pods are tried again.
        end_us: a timed run stops here, with what is held still held; None = when all have left.
    """

    source: str
    nodes: tuple[NodeFacts, ...]
    arrivals: Sequence[Arrival]
    start_us: int
    inputs_hash: str
    adopted: tuple[PodObserved, ...] = ()
    running: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    running_requests: Sequence[PodRequest] = ()
    running_cards: Mapping[str, frozenset[tuple[str, int]]] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    typical: Sequence[PodRequest] = ()
    rank: tuple[int, ...] | None = None
    timed: bool = False
    end_us: int | None = None
    shared_templates: tuple[SharedTemplate, ...] | None = None
    warnings: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
