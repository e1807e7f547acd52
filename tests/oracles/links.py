"""
GPUs by measured links, said again over every group of GPUs.

Rule: GPU-topology proposal, Pick GPUs of Node; DIVERGENCES, "GPU groups with equally slow slowest
links" (best ring, then what is left, then the lowest minors).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations, pairwise, permutations

from ledger.domain.topology import LinkMatrix

Group = tuple[int, ...]
ALIKE_PERCENT = 10


def pick(links: LinkMatrix, groups: Sequence[Group], free: Collection[int]) -> Group:
    """Return the best of the allowed groups (in ascending order) when these GPUs are free."""
    size = len(groups[0])
    bottlenecks = {group: bottleneck(links, group) for group in groups}
    best = max(bottlenecks.values())
    groups = [group for group in groups if bottlenecks[group] == best]
    classes = _classes(links)
    if size > 3 and len(groups) > 1:  # up to three GPUs a ring is every link there is
        rings = [classes[ring(links, group)] for group in groups]
        groups = [group for group, ring in zip(groups, rings, strict=True) if ring == max(rings)]
    rests = [[minor for minor in sorted(free) if minor not in group] for group in groups]
    left = [_left(links, classes, rest) for rest in rests]
    return groups[left.index(max(left))]


def bottleneck(links: LinkMatrix, group: Sequence[int]) -> float:
    """Return the slowest link of a group; a link counts at its slower direction."""
    return min((_speed(links, a, b) for a, b in combinations(group, 2)), default=float("inf"))


def _speed(links: LinkMatrix, a: int, b: int) -> float:
    return min(links.rows[a][b], links.rows[b][a])


def ring(links: LinkMatrix, group: Group) -> float:
    """Return the slowest link of the best closed way through all GPUs of the group."""
    if len(group) < 4:
        return bottleneck(links, group)
    ways = ((group[0], *order, group[0]) for order in permutations(group[1:]))
    return max(min(_speed(links, a, b) for a, b in pairwise(way)) for way in ways)


def _classes(links: LinkMatrix) -> dict[float, int]:
    """Return the class of every speed: 10 % or less above the next slower one is alike."""
    speeds = sorted({_speed(links, a, b) for a, b in combinations(range(len(links)), 2)})
    classes = dict.fromkeys(speeds[:1], 0)
    for slower, speed in pairwise(speeds):
        classes[speed] = classes[slower] + (speed > slower * (1 + ALIKE_PERCENT / 100))
    return classes


def _left(links: LinkMatrix, classes: dict[float, int], rest: Sequence[int]) -> tuple[int, ...]:
    """Return what the rest offers to 8, to 4 and to 2 GPUs, then the sum over all its links."""
    offers = [
        max((classes[bottleneck(links, group)] for group in combinations(rest, size)), default=-1)
        for size in (8, 4, 2)
    ]
    return (*offers, sum(classes[_speed(links, a, b)] + 1 for a, b in combinations(rest, 2)))


def node_order(
    ratings: Sequence[int], speeds: Sequence[float | None], *, bottleneck_first: bool
) -> list[int]:
    """
    Return the nodes best first, for a Pod that could have GPUs of these bottlenecks on them.

    Rule: GPU-topology proposal, Goal 1 and Story 1 ("preferentially selects the GPU cards
    combination with large bottleneck bandwidth"); DIVERGENCES, "a single Pod of several GPUs":
    nodes that measured (a speed is known) change places among themselves, the others keep theirs.
    """
    by_policy = sorted(range(len(ratings)), key=lambda node: (-ratings[node], node))
    left = [node for node in by_policy if speeds[node] is not None]
    rank: dict[int, int] = {}
    while len(rank) < len(left):
        fastest = max(speeds[node] or 0.0 for node in left if node not in rank)
        alike = [
            node
            for node in left
            if node not in rank and (speeds[node] or 0.0) * (1 + ALIKE_PERCENT / 100) >= fastest
        ]
        rank |= dict.fromkeys(alike, len(rank))
    if bottleneck_first:
        left.sort(key=lambda node: rank[node])
    else:
        left.sort(key=lambda node: (-ratings[node], rank[node]))
    measured = iter(left)
    return [node if speeds[node] is None else next(measured) for node in by_policy]


def best_split(links: LinkMatrix, minors: Sequence[int], counts: Sequence[int]) -> float:
    """
    Return the best slowest link inside any member's GPUs, over all ways to share these out.

    Rule: GPU-topology proposal, Pick GPUs of Node, for every member of a group by itself.
    """
    if not counts:
        return float("inf")
    return max(
        min(
            bottleneck(links, part),
            best_split(links, [minor for minor in minors if minor not in part], counts[1:]),
        )
        for part in combinations(minors, counts[0])
    )
