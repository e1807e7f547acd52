"""CPUs spread evenly over the fewest NUMA nodes that can hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

NUMA_NODES_MAX: Final = 8
"""Beyond it, sets of NUMA nodes are not enumerated, and nothing is distributed."""

Pick = Callable[[int, int], int | None]
"""Picks so many CPUs of a NUMA node; None when it has not that many."""


def distribute(count: int, free: Mapping[int, int], unit: int, pick: Pick) -> int | None:
    """
    Return CPUs (a mask) in even parts from the fewest NUMA nodes, None when none of them fit.

    Rule: Koordinator contract, quirk Q8; CPU proposal, `DistributeEvenly` and kubelet's
    `distribute-cpus-across-numa`, whose balance it keeps: of equally many NUMA nodes those are
    taken that leave the machine's NUMA nodes the most alike, the lowest ids among equals.

    >>> parts_of(8, {0: 6, 1: 6, 2: 3}, 2)
    {0: 4, 1: 4}

    Args:
        count: CPUs.
        free: NUMA node -> CPUs that may be chosen there.
        unit: what parts are multiples of: CPUs of a core for FullPCPUs.
        pick: the picker on one NUMA node.
    """
    parts = parts_of(count, free, unit)
    if parts is None:
        return None
    chosen = 0
    for node, part in parts.items():
        cpus = pick(node, part)
        if cpus is None:
            return None
        chosen |= cpus
    return chosen


def parts_of(count: int, free: Mapping[int, int], unit: int) -> dict[int, int] | None:
    """Return NUMA node -> CPUs to take there, by node; None when no set of nodes has them."""
    if len(free) > NUMA_NODES_MAX:
        return None
    for size in range(1, len(free) + 1):
        found = [
            parts
            for nodes in combinations(sorted(free), size)
            for parts in _even_parts(count, free, nodes, unit)
        ]
        if found:
            return min(found, key=lambda parts: _unevenness(free, parts))
    return None


def _even_parts(
    count: int, free: Mapping[int, int], nodes: Sequence[int], unit: int
) -> Iterator[dict[int, int]]:
    """Yield the ways to part `count` over just these nodes; they differ in who takes the rest."""
    each = count // len(nodes) // unit * unit
    rest = count - each * len(nodes)
    units, odd = divmod(rest, unit)
    for more in combinations(nodes, units + bool(odd)):
        for last in reversed(more) if odd else nodes[:1]:
            parts = {node: each + unit * (node in more) for node in nodes}
            if odd:  # less than a unit is left, and one node takes it
                parts[last] -= unit - odd
            if all(parts[node] <= free[node] for node in nodes):
                yield {node: part for node, part in parts.items() if part}


def _unevenness(free: Mapping[int, int], parts: Mapping[int, int]) -> int:
    """Return how unlike the NUMA nodes are afterwards; their sum is the same for all parts."""
    return sum((left - parts.get(node, 0)) ** 2 for node, left in free.items())
