"""The best bottleneck that GPUs of many nodes could have, worked out for all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from ledger.domain.nodes import NodeFacts
from scheduler.decide.nodes.arrays import BoolArray, IntArray, with_rows

WIDTH_MAX: Final = 8
"""Nodes of more GPUs are looked at one by one, out of their tables."""

_CELLS: Final = 1 << 20

Speeds = npt.NDArray[np.float64]


class LinkStack:
    """
    The links of every kind of node, by column of its GPUs.

    Kinds differ in links or in the minors of their GPUs.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._count = 0
        self._links: Speeds = np.zeros((0, width, width), dtype=np.float64)

    def __len__(self) -> int:
        """Return the number of kinds."""
        return self._count

    def add(self, kinds: Sequence[NodeFacts], minors: Sequence[Sequence[int]]) -> None:
        """Take an example of each of more kinds, and its GPUs' minors; their numbers follow on."""
        first, self._count = self._count, self._count + len(kinds)
        self._links = with_rows(self._links, self._count)
        for kind, (facts, numbers) in enumerate(zip(kinds, minors, strict=True), first):
            links = facts.links or facts.derived_links
            if links is None or facts.honors_partitions:
                continue
            inside = [minor for minor in numbers if minor < len(links)]  # else a link of 0 GB/s
            if 0 < len(inside) <= self.width:  # a wider one was a node's that has gone
                rows = np.array(links.rows)[np.ix_(inside, inside)]
                self._links[kind, : len(inside), : len(inside)] = np.minimum(rows, rows.T)

    def bottlenecks(self, kinds: IntArray, free: BoolArray, count: int) -> list[float]:
        """
        Return the best bottleneck of `count` free GPUs for every node; 0 where no link is known.

        Args:
            free: at [node, column]; every node has `count` free GPUs at least.
        """
        inside, pairs = _sets(self.width, count)
        result = np.zeros(len(kinds), dtype=np.float64)
        step = max(1, _CELLS // pairs.size)
        for start in range(0, len(kinds), step):
            part = slice(start, start + step)
            links = self._links[kinds[part]].reshape(-1, self.width * self.width)
            slowest = links[:, pairs].min(axis=2)
            usable = ~(inside & ~free[part, None, :]).any(axis=2)
            result[part] = np.where(usable, slowest, -1.0).max(axis=1)
        best: list[float] = result.tolist()
        return best


@lru_cache(maxsize=(WIDTH_MAX + 1) * (WIDTH_MAX + 1))
def _sets(width: int, count: int) -> tuple[BoolArray, IntArray]:
    """Return every set of so many columns, as columns inside it and as the places of its links."""
    sets = list(combinations(range(width), count))
    inside = np.zeros((len(sets), width), dtype=np.bool_)
    for number, columns in enumerate(sets):
        inside[number, list(columns)] = True
    pairs = [[a * width + b for a, b in combinations(columns, 2)] for columns in sets]
    return inside, np.array(pairs, dtype=np.int64)
