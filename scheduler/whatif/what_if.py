"""A copy of the cluster to try things on: Pods are lifted, placed and put back, nothing is kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from scheduler.cluster.model import ClusterSnapshot, Holder
from scheduler.decide.cards.view import NodeView
from scheduler.decide.engine import Engine
from scheduler.decide.group.groups import plan
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.score.typical import workload_of
from scheduler.decide.settings import SchedulingSettings

KEPT: Final = "kept by --keep"
_STEADY: Final = "binpack"


class WhatIf:
    """
    The cluster as it is, in an engine of its own.

    Whoever tries something leaves the cluster as it was. The node policy `random` is replaced:
    what is tried twice must come out alike.

    Attributes:
        decisions: questions asked of the engine so far, what a search's bound is counted in.
    """

    def __init__(
        self,
        nodes: Sequence[NodeFacts],
        holders: Iterable[Holder],
        settings: SchedulingSettings,
        *,
        by_count: bool = False,
    ) -> None:
        self.by_count = by_count
        self.nodes = tuple(nodes)
        self.holders = {holder.uid: holder for holder in holders}
        policy = _STEADY if settings.node_policy == "random" else settings.node_policy
        self.settings = replace(settings, node_policy=policy)
        requests = [holder.request for holder in self.holders.values() if holder.request]
        self.decisions = 0
        workload = workload_of(requests)
        self._engine = Engine(self.nodes, self.settings, workload=workload, by_count=by_count)
        self._lifted: dict[str, Holder] = {}
        self._placed: dict[str, Placement] = {}
        self._by_node: dict[int, list[Holder]] = {}
        for holder in self.holders.values():
            self._engine.adopt(holder.node, holder.held)
            self._by_node.setdefault(holder.node, []).append(holder)

    def on(self, node: int) -> Sequence[Holder]:
        """Return the holders of one node, in the order given."""
        return self._by_node.get(node, ())

    def decide(self, request: PodRequest) -> Placement | Unplaced:
        """Return what the engine answers now."""
        self.decisions += 1
        return self._engine.decide(request)

    def view(self, node: int) -> NodeView:
        """Return what is left of one node now."""
        return self._engine.view(node)

    def candidates(self, request: PodRequest) -> Sequence[int]:
        """Return the nodes that pass every test over arrays, best first by node policy."""
        self.decisions += 1
        return self._engine.candidates(request)

    def place(
        self, request: PodRequest, node: int, minors: frozenset[int] | None = None
    ) -> Placement | None:
        """Reserve the Pod on this node, on these GPUs if given; None changes nothing."""
        self.decisions += 1
        placement = self._engine.try_place(request, node, minors)
        if placement is not None:
            self._placed[request.uid] = placement
        return placement

    def reserve(self, placement: Placement) -> None:
        """Reserve exactly this, whether or not the engine would choose it."""
        self._engine.reserve(placement)
        self._placed[placement.request.uid] = placement

    def undo(self, placement: Placement) -> None:
        """Take back what was reserved."""
        self._engine.undo(placement)
        del self._placed[placement.request.uid]

    def fits_on(self, request: PodRequest, node: int) -> bool:
        """Tell whether the node takes the Pod now."""
        placement = self.place(request, node)
        if placement is None:
            return False
        self.undo(placement)
        return True

    def plan_together(self, members: Sequence[PodRequest]) -> Sequence[Placement | None]:
        """Return places for the members of a group, None where one has none; reserve nothing."""
        self.decisions += len(members)
        return plan(members, self._engine).placements

    def lift(self, holder: Holder) -> None:
        """Take a Pod away, as if it had ended."""
        self._engine.release(holder.uid)
        self._lifted[holder.uid] = holder

    def put_back(self, holder: Holder) -> None:
        """Give a lifted Pod back exactly what it held."""
        self._engine.adopt(holder.node, holder.held)
        del self._lifted[holder.uid]

    def rewind(self) -> None:
        """Take back all that was reserved, and give back all that was lifted."""
        for placement in list(self._placed.values()):
            self.undo(placement)
        for holder in list(self._lifted.values()):
            self.put_back(holder)


def what_if_of(
    cluster: ClusterSnapshot, pod_uid: str, *, kept: frozenset[str] = frozenset()
) -> WhatIf:
    """Return the cluster beside one Pod; `kept` names Pods that may not be moved, by path."""
    holders = [
        replace(holder, fixed=KEPT) if holder.path in kept and not holder.fixed else holder
        for holder in cluster.others(pod_uid)
    ]
    return WhatIf(cluster.nodes, holders, cluster.settings, by_count=cluster.by_count)
