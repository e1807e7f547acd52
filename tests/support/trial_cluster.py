"""A cluster of node views on which groups are planned: the port's plainest implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ledger.domain.requests import PodRequest
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.outcome import Placement
from scheduler.decide.settings import SchedulingSettings


class ListCluster:
    """Nodes in a list, candidates in their order; free cpu per node in `cpu_milli`."""

    def __init__(self, nodes: Sequence[NodeView], cpu_milli: Sequence[int] | None = None) -> None:
        self.nodes = list(nodes)
        self.cpu_milli = list(cpu_milli or [10**9] * len(self.nodes))
        self.settings = SchedulingSettings()
        self.trials = 0

    def candidates(self, request: PodRequest) -> list[int]:
        """Return the nodes that can take the Pod alone, in the order of the list."""
        return [
            node for node in range(len(self.nodes)) if self._choice(request, node, None) is not None
        ]

    def view(self, node: int) -> NodeView:
        """Return one node as it is now."""
        return self.nodes[node]

    def try_place(
        self, request: PodRequest, node: int, only_minors: frozenset[int] | None = None
    ) -> Placement | None:
        """Reserve the Pod on the node if it fits."""
        self.trials += 1
        choice = self._choice(request, node, only_minors)
        if choice is None:
            return None
        facts = self.nodes[node].facts
        placement = Placement(
            request=request,
            node=node,
            node_uid=facts.uid,
            node_name=facts.name,
            shares=choice.shares,
        )
        self.reserve(placement)
        return placement

    def reserve(self, placement: Placement) -> None:
        """Take what the placement holds."""
        self._hold(placement, 1)

    def undo(self, placement: Placement) -> None:
        """Give back what the placement holds."""
        self._hold(placement, -1)

    def _choice(
        self, request: PodRequest, node: int, only_minors: frozenset[int] | None
    ) -> Choice | None:
        if request.cpu_milli > self.cpu_milli[node]:
            return None
        answer = choose(request, self.nodes[node], self.settings, only_minors=only_minors)
        return answer if isinstance(answer, Choice) else None

    def _hold(self, placement: Placement, times: int) -> None:
        node = placement.node
        self.cpu_milli[node] -= times * placement.request.cpu_milli
        shares = {share.key: share for share in placement.shares}
        cards = tuple(
            card
            if (share := shares.get(card.record.key)) is None
            else replace(
                card,
                core_free=card.core_free - times * share.core_percent,
                memory_free=card.memory_free - times * share.memory_bytes,
                tenants=card.tenants + times,
                instances=card.instances + times * share.instances,
                exclusive=times > 0 if share.exclusive else card.exclusive,
            )
            for card in self.nodes[node].cards
        )
        self.nodes[node] = replace(self.nodes[node], cards=cards)
