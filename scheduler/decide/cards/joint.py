"""What the members of a group get of one node together: GPUs with the best links between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ledger.domain.devices import GPU
from ledger.domain.request.requests import DeviceDemand, PodRequest
from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards.fit import fits
from scheduler.decide.cards.links import pick_linked
from scheduler.decide.cards.split import split_linked
from scheduler.decide.cards.view import NodeView
from scheduler.decide.dialects.registry import chooser_of
from scheduler.decide.group.room import Rooms, one_kind, whole_demands


def linked_gpus(members: Sequence[PodRequest]) -> tuple[int, ...]:
    """
    Return per member how many GPUs are chosen by the links between all GPUs of the group.

    None at all where the members' whole cards are of different kinds, or where more than links
    decides which cards a member may have (hints, partitions, joint devices, its dialect's own
    search).
    """
    whole = whole_demands([member.devices for member in members])
    if not one_kind(whole) or any(map(_chooses_alone, members)):
        return (0,) * len(members)
    return tuple(
        sum(demand.count for demand in whole_demands([member.devices])) for member in members
    )


def bottlenecks(rooms: Rooms) -> Callable[[Sequence[int], int], list[float]]:
    """
    Return the function from places and a number of their free GPUs to the best bottlenecks, GB/s.

    Rule: Koordinator GPU-topology proposal, "Pick GPUs of Node". A node of which no link is known
    counts as 0 GB/s where several GPUs are asked for; a single GPU has no slowest link.
    """
    speeds, alike = rooms.speeds, rooms.alike

    def of_places(places: Sequence[int], count: int) -> list[float]:
        if count < 2:
            return [math.inf] * len(places)
        new = [place for place in places if (alike[place], count) not in speeds]
        if rooms.bottlenecks is not None and new:
            found = rooms.bottlenecks(new, count)
        else:
            found = [_bottleneck(*rooms.gpus(place), count) for place in new]
        speeds.update(
            ((alike[place], count), speed) for place, speed in zip(new, found, strict=True)
        )
        return [speeds[alike[place], count] for place in places]

    return of_places


def _bottleneck(minors: tuple[int, ...], links: LinkMatrix | None, count: int) -> float:
    if links is None:
        return 0.0
    best = pick_linked(minors, count, links, ties_by_minor=True)
    return links.bottleneck_gbps(best) if best[-1] < len(links) else 0.0


def joint_minors(members: Sequence[PodRequest], node: NodeView) -> dict[str, frozenset[int] | None]:
    """
    Return Pod UID -> GPUs, so that the slowest link between all GPUs of the members is fastest.

    Rule: Koordinator GPU-topology proposal, "Pick GPUs of Node".

    Members share the chosen GPUs out so that each one's own links are fast, too (`split_linked`);
    parts of cards go to other GPUs. Empty
    when the GPUs can't be chosen together (see `linked_gpus`) or the node has no links: then each
    Pod chooses.
    """
    counts = linked_gpus(members)
    links = _links(node)
    if not any(counts) or links is None or node.facts.honors_partitions:
        return {}
    gpus = [card for card in node.cards if card.record.device_type == GPU]
    demand = whole_demands([member.devices for member in members])[0]
    free = [card.record.minor for card in gpus if fits(card, demand)]
    if sum(counts) > len(free):
        return {}
    minors = pick_linked(free, sum(counts), links)
    others = frozenset(card.record.minor for card in gpus) - frozenset(minors)
    return {
        member.uid: frozenset(own) if own else others
        for member, own in zip(members, split_linked(minors, counts, links), strict=True)
    }


def _links(node: NodeView) -> LinkMatrix | None:
    """Return the measured links of a node, else those that places and partitions suggest."""
    return node.facts.links or node.facts.derived_links


def _chooses_alone(member: PodRequest) -> bool:
    """Tell whether more than links decides which whole GPUs the Pod may have."""
    wishes = any(demand.hint for demand in member.devices) or member.partition is not None
    return wishes or member.joint is not None or not chooser_of(member.dialect).by_links


def size_of(request: PodRequest) -> tuple[int, int, int]:
    """Return a sort key, the largest request first: core percent, device bytes, cpu."""
    demands: tuple[DeviceDemand, ...] = request.devices
    return (
        -sum(demand.count * demand.core_percent for demand in demands),
        -sum(demand.count * demand.memory_bytes for demand in demands),
        -request.cpu_milli,
    )
