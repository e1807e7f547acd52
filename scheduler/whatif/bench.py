"""A copy of the cluster to try things on: Pods are lifted, placed and put back, nothing is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest
from scheduler.decide.cards.view import NodeView
from scheduler.decide.engine import Engine
from scheduler.decide.group.groups import plan
from scheduler.decide.outcome import Placement, Unplaced
from scheduler.decide.score.typical import workload_of
from scheduler.decide.settings import SchedulingSettings

_STEADY: Final = "binpack"
NOT_ACCEPTED: Final = "there is a place, but none as it is wanted"


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
    """

    node: int
    held: PodObserved
    request: PodRequest | None = None
    fixed: str = ""
    group: str = ""

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


class Bench:
    """
    The cluster as it is, in an engine of its own.

    Whoever tries something leaves the bench as it was found. The node policy `random` is replaced:
    what is tried twice must come out alike.

    Args:
        wanted, accepts: a Pod by UID, and what must hold of its place beyond its request, such as
            CPUs of one NUMA node. A place that is not accepted counts as none.

    Attributes:
        nodes, settings: as given; `holders` by UID.
        decisions: questions asked of the engine so far, what a search's bound is counted in.
    """

    def __init__(
        self,
        nodes: Sequence[NodeFacts],
        holders: Iterable[Holder],
        settings: SchedulingSettings,
        *,
        wanted: str = "",
        accepts: Callable[[Placement, NodeFacts], bool] | None = None,
    ) -> None:
        self._wanted = wanted
        self._accepts = accepts
        self.nodes = tuple(nodes)
        self.holders = {holder.uid: holder for holder in holders}
        policy = _STEADY if settings.node_policy == "random" else settings.node_policy
        self.settings = replace(settings, node_policy=policy)
        requests = [holder.request for holder in self.holders.values() if holder.request]
        self.decisions = 0
        self._engine = Engine(self.nodes, self.settings, workload=workload_of(requests))
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
