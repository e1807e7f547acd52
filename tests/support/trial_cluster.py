"""A cluster of node views on which groups are planned: the port's plainest implementation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ledger.domain.devices import GPU
from ledger.domain.dialects.names import Dialect
from ledger.domain.request.requests import PodRequest
from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards.choose import choose
from scheduler.decide.cards.fit import fits
from scheduler.decide.cards.view import Choice, NodeView
from scheduler.decide.group.room import Rooms, one_kind, whole_demands
from scheduler.decide.outcome import CardView, Placement
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

    def rooms(self, requests: Sequence[PodRequest], most: Sequence[int]) -> Rooms:
        """Return the rooms, counted as far as they can be counted without trying."""
        able = [self.candidates(request) for request in requests]
        nodes = list(dict.fromkeys(node for some in able for node in some))
        whole = whole_demands([request.devices for request in requests])
        kind = whole[0] if one_kind(whole) else None
        gpus = [[card for card in _gpus(self.nodes[node]) if not card.closed] for node in nodes]
        free = [
            [
                card.record.minor
                for card in cards
                if (fits(card, kind) if kind is not None else not card.tenants)
            ]
            for cards in gpus
        ]
        return Rooms(
            nodes=nodes,
            copies=np.array(
                [
                    [count if node in some else 0 for node in nodes]
                    for some, count in zip(able, most, strict=True)
                ],
                dtype=np.int64,
            ).reshape(len(requests), len(nodes)),
            cpu_milli=np.array([self.cpu_milli[node] for node in nodes], dtype=np.int64),
            memory_bytes=np.full(len(nodes), 10**15, dtype=np.int64),
            pods=np.full(len(nodes), 10**6, dtype=np.int64),
            cards=np.array([len(minors) for minors in free], dtype=np.int64),
            core_percent=np.array(
                [sum(card.core_free for card in cards) for cards in gpus], dtype=np.int64
            ),
            alike=[
                (tuple(minors), _links(self.nodes[node]))
                for node, minors in zip(nodes, free, strict=True)
            ],
            gpus=lambda place: (
                tuple(free[place]),
                _links(self.nodes[nodes[place]]),
            ),
        )

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
        containers = placement.request.dialect is Dialect.MGPU
        cards = tuple(
            card
            if (share := shares.get(card.record.key)) is None
            else replace(
                card,
                core_free=card.core_free - times * share.core_percent,
                memory_free=card.memory_free - times * share.memory_bytes,
                tenants=card.tenants + times,
                instances=card.instances + times * containers * share.instances,
                exclusive=times > 0 if share.exclusive else card.exclusive,
            )
            for card in self.nodes[node].cards
        )
        self.nodes[node] = replace(self.nodes[node], cards=cards)


def _gpus(node: NodeView) -> list[CardView]:
    return [card for card in node.cards if card.record.device_type == GPU]


def _links(node: NodeView) -> LinkMatrix | None:
    if node.facts.honors_partitions:
        return None
    return node.facts.links or node.facts.derived_links
