"""What the members of a group get of one node together: GPUs with the best links between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations

from ledger.domain.devices import GPU
from ledger.domain.request.requests import DeviceDemand, PodRequest
from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards.fit import fits
from scheduler.decide.cards.links import STEPS_MAX, pick_linked, speed_between
from scheduler.decide.cards.view import NodeView
from scheduler.decide.dialects.registry import chooser_of
from scheduler.decide.group.room import Rooms, one_kind, whole_demands


def split_linked(
    minors: Iterable[int], counts: Sequence[int], links: LinkMatrix
) -> list[tuple[int, ...]]:
    """
    Return the GPUs of every member, in their order; together they are all of `minors`.

    Rule: Koordinator GPU-topology proposal, "Pick GPUs of Node"; DIVERGENCES, "the GPUs of a
    group's members". Of splits as fast, the first members get the lowest minors. A search of
    `STEPS_MAX` steps is made for every speed it tries; by minor there always is a split.

    Args:
        counts: of each member, in sum the number of `minors`.
    """
    places = sorted(minors)
    assert sum(counts) == len(places), (counts, places)
    speeds = {
        (a, b): speed_between(links, places[a], places[b])
        for a, b in combinations(range(len(places)), 2)
    }
    levels = sorted(set(speeds.values()))
    best = _shared_out(counts, [(1 << len(places)) - 1] * len(places))
    slower, faster = 1, len(levels) - 1  # at the slowest level everything is linked
    while slower <= faster:
        middle = (slower + faster) // 2
        near = [0] * len(places)
        for (a, b), speed in speeds.items():
            if speed >= levels[middle]:
                near[a] |= 1 << b
                near[b] |= 1 << a
        found = _shared_out(counts, near)
        if found is None:
            faster = middle - 1
        else:
            best, slower = found, middle + 1
    assert best is not None, "where everything is linked the first try succeeds"
    return [
        tuple(minor for place, minor in enumerate(places) if part >> place & 1) for part in best
    ]


def _shared_out(counts: Sequence[int], near: Sequence[int]) -> list[int] | None:
    """Return a set of linked places per member, the lowest first; None too when steps run out."""
    steps = iter(range(STEPS_MAX))
    failed: set[tuple[int, int]] = set()

    def linked_sets(left: int, count: int) -> Iterator[int]:
        if not count:
            yield 0
            return
        while left.bit_count() >= count and next(steps, None) is not None:
            lowest = left & -left
            left ^= lowest
            for rest in linked_sets(left & near[lowest.bit_length() - 1], count - 1):
                yield lowest | rest

    def give(number: int, left: int) -> list[int] | None:
        if number == len(counts):
            return []
        if (number, left) in failed:
            return None
        alike = len(set(counts[number:])) == 1  # then somebody has the lowest: this member
        for part in linked_sets(left, counts[number]):
            if alike and part and not part & left & -left:
                break
            others = give(number + 1, left ^ part)
            if others is not None:
                return [part, *others]
        failed.add((number, left))
        return None

    return give(0, (1 << len(near)) - 1)


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
