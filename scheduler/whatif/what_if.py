"""A copy of the cluster to try things on: Pods are lifted, placed and put back, nothing is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
NOT_ACCEPTED: Final = "there is a place, but none as it is wanted"


Accepts = Callable[[Placement, NodeFacts], bool]
"""Tells whether a place is as it is wanted, beyond what its request says."""


class WhatIf:
    """
    The cluster as it is, in an engine of its own.

    Whoever tries something leaves the cluster as it was. The node policy `random` is replaced:
    what is tried twice must come out alike.

    Args:
        wanted, accepts: a Pod by UID, and what must hold of its place beyond its request, such as
            CPUs of one NUMA node. A place that is not accepted counts as none.

    Attributes:
        decisions: questions asked of the engine so far, what a search's bound is counted in.
    """

    def __init__(
        self,
        nodes: Sequence[NodeFacts],
        holders: Iterable[Holder],
        settings: SchedulingSettings,
        *,
        wanted: str = "",
        accepts: Accepts | None = None,
        by_count: bool = False,
    ) -> None:
        self._wanted = wanted
        self.by_count = by_count
        self._accepts = accepts
        self.nodes = tuple(nodes)
        self.holders = {holder.uid: holder for holder in holders}
        policy = _STEADY if settings.node_policy == "random" else settings.node_policy
        self.settings = replace(settings, node_policy=policy)
        requests = [holder.request for holder in self.holders.values() if holder.request]
        self.decisions = 0
        workload = workload_of(requests)
        self._engine = Engine(self.nodes, self.settings, workload=workload, by_count=by_count)
        self._by_node: dict[int, list[Holder]] = {}
        for holder in self.holders.values():
            self._engine.adopt(holder.node, holder.held)
            self._by_node.setdefault(holder.node, []).append(holder)

    def on(self, node: int) -> Sequence[Holder]:
        """Return the holders of one node, in the order given."""
        return self._by_node.get(node, ())

    def decide(self, request: PodRequest) -> Placement | Unplaced:
        """Return what the engine answers now, or the best place that is accepted."""
        self.decisions += 1
        answer = self._engine.decide(request)
        if isinstance(answer, Unplaced) or self._is_accepted(answer):
            return answer
        for node in self._engine.candidates(request):
            placement = self.place(request, node)
            if placement is not None:
                self.undo(placement)
                return placement
        return Unplaced(request=request, message=NOT_ACCEPTED)

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
        if placement is None or self._is_accepted(placement):
            return placement
        self.undo(placement)
        return None

    def _is_accepted(self, placement: Placement) -> bool:
        if self._accepts is None or placement.request.uid != self._wanted:
            return True
        return self._accepts(placement, self.nodes[placement.node])

    def reserve(self, placement: Placement) -> None:
        """Reserve exactly this, whether or not the engine would choose it."""
        self._engine.reserve(placement)

    def undo(self, placement: Placement) -> None:
        """Take back what `place` reserved."""
        self._engine.undo(placement)

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

    def put_back(self, holder: Holder) -> None:
        """Give a lifted Pod back exactly what it held."""
        self._engine.adopt(holder.node, holder.held)


def what_if_of(
    cluster: ClusterSnapshot,
    pod_uid: str,
    *,
    kept: frozenset[str] = frozenset(),
    accepts: Accepts | None = None,
) -> WhatIf:
    """Return the cluster beside one Pod; `kept` names Pods that may not be moved, by path."""
    holders = [
        replace(holder, fixed=KEPT) if holder.path in kept and not holder.fixed else holder
        for holder in cluster.others(pod_uid)
    ]
    return WhatIf(
        cluster.nodes,
        holders,
        cluster.settings,
        wanted=pod_uid,
        accepts=accepts,
        by_count=cluster.by_count,
    )


def on_one(part: str | None) -> Accepts | None:
    """Return what accepts a place whose CPUs are of one NUMA node (`numa`), or of one `socket`."""
    if part is None:
        return None

    def together(placement: Placement, node: NodeFacts) -> bool:
        topology = node.cpu_topology
        if topology is None or not placement.cpuset:
            return False
        groups = (
            [topology.cpus_in_numa(numa) for numa in topology.numa_nodes]
            if part == "numa"
            else [topology.cpus_in_socket(socket) for socket in topology.sockets]
        )
        return any(not placement.cpuset - group for group in groups)

    return together
