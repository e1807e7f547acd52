"""A cluster as deciding begins with it, and what happens to it: plain values."""

from __future__ import annotations

from collections.abc import Sequence
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
class Cluster:
    """
    Nodes, and what runs on them before the first decision.

    Attributes:
        nodes: in the order that breaks ties.
        adopted: what running Pods hold before the first decision, in file order. One on a node
            that is not in the input has no node UID; it is listed and holds nothing.
        running_requests: what the running Pods ask for, of those that break no rule.
        shared_templates: what the ConfigMap says of them; None = none is in the input, the settings
            count.
        warnings: what was read and is not used, in words.
        conflicts: what running Pods' annotations say wrongly or against their requests.
    """

    nodes: tuple[NodeFacts, ...]
    adopted: tuple[PodObserved, ...] = ()
    running_requests: Sequence[PodRequest] = ()
    shared_templates: tuple[SharedTemplate, ...] | None = None
    warnings: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
