"""What the members of a group could have of one node together, before anything is tried."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Protocol

from ledger.domain.devices import GPU
from ledger.domain.requests import DeviceDemand, PodRequest
from ledger.domain.resources import Dialect
from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards.fit import asked_bytes, fits
from scheduler.decide.cards.links import pick_linked
from scheduler.decide.cards.view import NodeView
from scheduler.decide.outcome import CardView


class Nodes(Protocol):
    """The part of the cluster that is looked at here."""

    def candidates(self, request: PodRequest) -> Sequence[int]:
        """Return the nodes that can take this Pod alone now, best first."""
        ...

    def view(self, node: int) -> NodeView:
        """Return what is left of one node."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRoom:
    """
    Where the members of a group could go.

    Attributes:
        members: the largest first, so that the small ones fill what is left.
        shapes: per member; equal shapes are interchangeable.
        choices: per member the nodes that can take it alone.
        nodes: every such node, best first by node policy.
        rooms: per node how many members could have devices there, never too few.
        nodes_min: fewer nodes than this can't hold the group.
        by_input: places in `members`, in the order the members were given.
    """

    members: tuple[PodRequest, ...]
    shapes: tuple[Hashable, ...]
    choices: tuple[frozenset[int], ...]
    nodes: tuple[int, ...]
    rooms: Mapping[int, int]
    nodes_min: int
    by_input: tuple[int, ...]


def room_for(members: Sequence[PodRequest], cluster: Nodes) -> GroupRoom | None:
    """Return where the members could go, None when some can't or there is no room for all."""
    order = sorted(range(len(members)), key=lambda place: (_size(members[place]), place))
    ordered = [members[place] for place in order]
    shapes = [_shape(member) for member in ordered]
    by_shape: dict[Hashable, tuple[int, ...]] = {}
    for shape, member in zip(shapes, ordered, strict=True):
        if shape not in by_shape:
            by_shape[shape] = tuple(cluster.candidates(member))
    examples = dict(zip(shapes, ordered, strict=True))
    counts = Counter(shapes)
    nodes = tuple(dict.fromkeys(chain.from_iterable(by_shape.values())))
    choices = {shape: frozenset(found) for shape, found in by_shape.items()}
    rooms = dict.fromkeys(nodes, 0)
    for node in nodes:
        cards = cluster.view(node).cards
        for shape, found in choices.items():
            if node in found:
                rooms[node] += min(counts[shape], _copies(examples[shape], cards, len(members)))
    most = list(accumulate(sorted(rooms.values(), reverse=True)))
    if not all(by_shape.values()) or most[-1] < len(members):
        return None
    return GroupRoom(
        members=tuple(ordered),
        shapes=tuple(shapes),
        choices=tuple(choices[shape] for shape in shapes),
        nodes=nodes,
        rooms=rooms,
        nodes_min=1 + next(place for place, room in enumerate(most) if room >= len(members)),
        by_input=tuple(order.index(place) for place in range(len(members))),
    )


def quality(members: Sequence[PodRequest], node: NodeView) -> tuple[float, int]:
    """
    Return how good one node is for all members: bottleneck in GB/s, then less core left.

    Rule: GPU-topology proposal, "Node Selection". A node of which no link is known counts as
    0 GB/s where several GPUs are asked for; a single GPU has no slowest link.
    """
    left = sum(card.core_free for card in node.cards if not card.closed)
    count = sum(demand.count for member in members for demand in _gpu_demands(member))
    links = _links(node)
    minors = _together(members, node)
    if count < 2:
        return math.inf, -left
    if links is None or minors is None or minors[-1] >= len(links):
        return 0.0, -left
    return links.bottleneck_gbps(minors), -left


def joint_minors(members: Sequence[PodRequest], node: NodeView) -> dict[str, frozenset[int] | None]:
    """
    Return Pod UID -> GPUs, so that the slowest link between all GPUs of the members is fastest.

    Rule: Koordinator GPU-topology proposal, "Pick GPUs of Node".

    Members take the chosen GPUs in their order, by minor. Empty when the GPUs can't be chosen
    together (parts of cards, different kinds of demands, no links): then each Pod chooses.
    """
    minors = _together(members, node)
    if minors is None or _links(node) is None:
        return {}
    result: dict[str, frozenset[int] | None] = {}
    start = 0
    for member in members:
        count = sum(demand.count for demand in _gpu_demands(member))
        result[member.uid] = frozenset(minors[start : start + count])
        start += count
    return result


def _together(members: Sequence[PodRequest], node: NodeView) -> tuple[int, ...] | None:
    """Return the GPUs for whole-card members of one kind; None for others or too few GPUs."""
    demands = [demand for member in members for demand in _gpu_demands(member)]
    kinds = {(demand.exclusive, demand.core_percent, demand.model_names) for demand in demands}
    whole = all(demand.exclusive for demand in demands)
    alone = node.facts.honors_partitions or any(map(_chooses_alone, members))
    if len(kinds) != 1 or not whole or alone:
        return None
    free = [
        card.record.minor
        for card in node.cards
        if card.record.device_type == GPU and fits(card, demands[0])
    ]
    count = sum(demand.count for demand in demands)
    if count > len(free):
        return None
    links = _links(node)
    if links is None:
        return tuple(free[:count])
    return pick_linked(free, count, links)


def _links(node: NodeView) -> LinkMatrix | None:
    """Return the measured links of a node, else those that places and partitions suggest."""
    return node.facts.links or node.facts.derived_links


def _chooses_alone(member: PodRequest) -> bool:
    """Tell whether more than links decides which whole GPUs the Pod may have."""
    wishes = any(demand.hint for demand in member.devices) or member.partition is not None
    return wishes or member.joint is not None or member.dialect is Dialect.MGPU


def _gpu_demands(request: PodRequest) -> list[DeviceDemand]:
    return [demand for demand in request.devices if demand.device_type == GPU]


def _copies(request: PodRequest, cards: Sequence[CardView], most: int) -> int:
    """Return how many such Pods the free devices could serve at best, at most `most`."""
    copies = most
    for demand in request.devices:
        slots = sum(
            _copies_on(card, demand, most)
            for card in cards
            if card.record.device_type == demand.device_type
        )
        copies = min(copies, slots // demand.count)
    return copies


def _copies_on(card: CardView, demand: DeviceDemand, most: int) -> int:
    if not fits(card, demand):
        return 0
    if demand.exclusive:
        return 1
    asked = asked_bytes(demand, card.record.memory_bytes)
    by_core = card.core_free // demand.core_percent if demand.core_percent else most
    by_memory = card.memory_free // asked if asked else most
    return min(by_core, by_memory)


def _size(request: PodRequest) -> tuple[int, int, int]:
    """Return a sort key, the largest request first: core percent, device bytes, cpu."""
    demands = request.devices
    return (
        -sum(demand.count * demand.core_percent for demand in demands),
        -sum(demand.count * demand.memory_bytes for demand in demands),
        -request.cpu_milli,
    )


def _shape(request: PodRequest) -> Hashable:
    return (
        request.devices,
        request.cpu_milli,
        request.memory_bytes,
        request.cpuset,
        request.joint,
        request.partition,
        request.placement,
        request.dialect,
    )
