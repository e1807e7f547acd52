"""A cluster of which only some nodes may be planned with."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass

from ledger.domain.request.requests import PodRequest
from scheduler.decide.cards.view import NodeView
from scheduler.decide.engine import Engine
from scheduler.decide.group.room import Rooms
from scheduler.decide.outcome import Placement


@dataclass(frozen=True, slots=True)
class Among:
    """
    A `TrialCluster` of these nodes of an engine.

    Rule: GPU-topology proposal, "main steps": a group's nodes are selected from those that are
    currently able to run the Pod that is asked about.
    """

    engine: Engine
    nodes: Container[int]

    def candidates(self, request: PodRequest) -> Sequence[int]:
        """Return the nodes that can take this Pod alone now, best first by node policy."""
        return [node for node in self.engine.candidates(request) if node in self.nodes]

    def rooms(self, requests: Sequence[PodRequest], most: Sequence[int]) -> Rooms:
        """Return what nodes have free for so many Pods like these; no node has too little."""
        return self.engine.rooms(requests, most, self.nodes)

    def view(self, node: int) -> NodeView:
        """Return what is left of one node, trials included."""
        return self.engine.view(node)

    def try_place(
        self, request: PodRequest, node: int, only_minors: frozenset[int] | None = None
    ) -> Placement | None:
        """Reserve the Pod on this node, on these GPUs if given; None changes nothing."""
        if node not in self.nodes:
            return None
        return self.engine.try_place(request, node, only_minors)

    def undo(self, placement: Placement) -> None:
        """Take back one trial."""
        self.engine.undo(placement)
