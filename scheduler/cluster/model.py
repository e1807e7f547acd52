"""A cluster as deciding begins with it, and what happens to it: plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ledger.domain.errors import FieldError
from ledger.domain.kube.shared_templates import SharedTemplate
from ledger.domain.log.events import ClaimObserved, PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest, PodSnapshot
from scheduler.decide.settings import SchedulingSettings


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


PLACE: Final = "place/"
"""What the UIDs begin with that stand for cards kept for members of planned groups."""

OTHERS: Final = "held by others"
HELD_BY_CLAIM: Final = "a claim holds it, which no Pod's move frees"
GONE: Final = "its node was lost: what it holds opens with the machine"

Pod = PodRequest | RefusedPod
"""A Pod that asks for a place."""


def asking(request: PodRequest, errors: Sequence[FieldError]) -> Pod:
    """Return what a Pod asks for, or, where it breaks rules of ours, these."""
    if not errors:
        return request
    return RefusedPod(
        uid=request.uid,
        namespace=request.namespace,
        name=request.name,
        errors=tuple(errors),
        snapshot=request.snapshot,
    )


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
class Unreadable:
    """What of an object, by kind and name, can't be read, so that what it says is not known."""

    object: str
    text: str

    def __str__(self) -> str:
        return f"{self.object}: {self.text}; what it says is left out, and not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """What a running Pod's annotations say wrongly or against its request."""

    node_name: str
    pod: str
    fault: str

    def __str__(self) -> str:
        return f"{self.node_name}: held by {self.pod}: {self.fault}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """
    Nodes, and what runs on them before the first decision.

    Attributes:
        nodes: in the order that breaks ties.
        adopted: what running Pods hold before the first decision, in file order. One on a node
            that is not in the input has no node UID; it is listed and holds nothing.
        running_requests: what the running Pods ask for, of those that break no rule.
        claims: what claims have of cards that nodes list themselves.
        shared_templates: what the ConfigMap says of them; None = none is in the input, the settings
            count.
        warnings: what was read and is not used, in words.
        unreadable: what was left out; who decides by the cluster is told of it as an error instead.
        began: Pod UID -> since when it holds, where that is recorded; others from the last moment.
    """

    nodes: tuple[NodeFacts, ...]
    adopted: tuple[PodObserved, ...] = ()
    running_requests: Sequence[PodRequest] = ()
    claims: tuple[ClaimObserved, ...] = ()
    shared_templates: tuple[SharedTemplate, ...] | None = None
    warnings: tuple[str, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    began: Mapping[str, int] = field(default_factory=dict)

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """Return what running Pods' annotations say wrongly or against their requests."""
        return tuple(
            Conflict(node_name=pod.node_name, pod=f"{pod.namespace}/{pod.pod_name}", fault=fault)
            for pod in self.adopted
            for fault in pod.faults
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Holder:
    """
    A Pod that holds something, and what must be known to decide it again; equal only to itself.

    Attributes:
        node: index of its node.
        held: what it holds; the Pod UID is its name here and must be there once.
        request: its own request; None = not known, so it can't be decided again.
        fixed: why it is never moved; empty = it may be.
        group: its group or gang, empty without one; such Pods move together or not at all.
        since: the position of the event that opened it; 0 = nobody wrote it down.
    """

    node: int
    held: PodObserved
    request: PodRequest | None = None
    fixed: str = ""
    group: str = ""
    since: int = 0

    @property
    def uid(self) -> str:
        """Return the Pod's UID."""
        return self.held.pod_uid

    @property
    def path(self) -> str:
        """Return `namespace/name`."""
        return f"{self.held.namespace}/{self.held.pod_name}"

    @property
    def size(self) -> tuple[int, ...]:
        """Return a sort key, small holdings first: device shares, CPUs of its own, cpu, memory."""
        held = self.held
        return (
            sum(share.core_percent for share in held.shares),
            sum(share.memory_bytes for share in held.shares),
            len(held.cpuset),
            held.cpu_milli,
            held.memory_bytes,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """
    What deciding needs to know about a cluster.

    Attributes:
        requests: Pod UID -> its own request, of Pods that wait and Pods that hold.
        untold: facts that nobody wrote down here, so that nothing was decided by them.
        knows_nodes: every node is told as deciding reads it.
        waiting: UIDs of Pods that wait alone, in the order in which they are decided.
        by_count: whole cards are placed by count where nobody knows which are held, as in a
            simulation.
    """

    nodes: tuple[NodeFacts, ...]
    holders: tuple[Holder, ...]
    settings: SchedulingSettings
    requests: Mapping[str, PodRequest] = field(default_factory=dict)
    untold: tuple[str, ...] = ()
    knows_nodes: bool = True
    waiting: tuple[str, ...] = ()
    by_count: bool = False

    def others(self, pod_uid: str) -> list[Holder]:
        """Return who holds what beside one Pod; what is kept for that Pod is free for it."""
        own = f"{PLACE}{pod_uid}/"
        return [h for h in self.holders if h.uid != pod_uid and not h.uid.startswith(own)]
