"""How a request is spread over several NUMA nodes."""

from __future__ import annotations

from collections.abc import Mapping


def split(amount: int, available: Mapping[int, int], unit: int = 1) -> dict[int, int] | None:
    """
    Return NUMA node -> its part of `amount`, None when the nodes have not enough together.

    Rule: Koordinator contract 7, splitting a request over a mask; equal nodes by id (Q10).

    The node with the least comes first; each gets what it has, at most an even part of what is
    left, in whole units.

    >>> split(6, {0: 12, 1: 12}, unit=2)
    {0: 2, 1: 4}
    >>> split(5000, {0: 1500, 1: 9000})
    {0: 1500, 1: 3500}

    Args:
        amount: CPUs, thousandths of a CPU or bytes.
        available: NUMA node -> what it has left of them.
        unit: what a part is a multiple of: CPUs per core for whole cores.
    """
    parts: dict[int, int] = {}
    left = amount
    order = sorted(available, key=lambda node: (available[node], node))
    for place, node in enumerate(order):
        share = min(available[node], left // (len(order) - place))
        parts[node] = share - share % unit
        left -= parts[node]
    return None if left else parts
