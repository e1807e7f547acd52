"""
What every set of one node's GPUs is worth by its links: numbers ready to look up.

Worked example: GPUs 0 and 1 have 50 GB/s between them, 2 and 3 have 25, all other pairs 10.

>>> rows = ((0.0, 50.0, 10.0, 10.0), (50.0, 0.0, 10.0, 10.0))
>>> rows += ((10.0, 10.0, 0.0, 25.0), (10.0, 10.0, 25.0, 0.0))
>>> table = LinkTable(LinkMatrix(rows=rows))

A set of GPUs is a number, GPU 0 its highest bit: 0b1100 is {0, 1}. Its slowest link decides, so
that two of four are 0 and 1. Any three have a link of 10: as all are equal, the lowest are taken.
One GPU has no link; GPU 2 is taken because what is left then, {0, 1, 3}, still has the fast pair.

>>> table.pick(0b1111, 2)
(0, 1)
>>> table.pick(0b0111, 2)
(2, 3)
>>> table.pick(0b1111, 3)
(0, 1, 2)
>>> table.pick(0b1111, 1)
(2,)
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ledger.domain.topology import LinkMatrix

TABLE_GPUS_MAX: Final = 16
"""Every set of so many GPUs has its entry: 65,536 at most."""

ALIKE_PERCENT: Final = 10
"""Links that differ by less are one class: measured twice, one link differs by so much."""

_MEMO_MAX: Final = 1024  # answers kept per table; all that 8 GPUs can be asked
_REST_SIZES: Final = (8, 4, 2)
_NO_LINK: Final = 255  # above every rank: 16 GPUs have 120 links at most

Sets = NDArray[np.int64]
Ranks = NDArray[np.uint8]
Classes = tuple[tuple[int, ...], ...]


class LinkTable:
    """
    The choice among the GPUs of one matrix, at most `TABLE_GPUS_MAX` of them.

    Rule: Koordinator GPU-topology proposal, "Pick GPUs of Node".

    A set of GPUs is a number: GPU 0 is its highest bit, so that of sets of one size the greater
    number has the lower minors.
    """

    def __init__(self, links: LinkMatrix) -> None:
        assert len(links) <= TABLE_GPUS_MAX, len(links)
        self.size = len(links)
        speeds = sorted({links.bandwidth_gbps(a, b) for a, b in combinations(range(self.size), 2)})
        ranks = {speed: rank for rank, speed in enumerate(speeds)}
        alike = _classes(speeds)
        by_rank = [
            [_NO_LINK if a == b else ranks[links.bandwidth_gbps(a, b)] for b in range(self.size)]
            for a in range(self.size)
        ]
        self._slowest = _slowest(by_rank)
        self._classes: Classes = tuple(
            tuple(_NO_LINK if rank == _NO_LINK else alike[rank] for rank in row) for row in by_rank
        )
        self._picks: dict[tuple[int, ...], tuple[int, ...]] = {}

    def prepare(self) -> None:
        """Work out now what else the first answer that needs it would work out."""
        for count in range(self.size + 1):
            _sets_of(self.size, count)
        _rests(self._classes)
        _rings(self._classes)

    def pick(
        self,
        free: int,
        count: int,
        *,
        within: tuple[int, ...] = (),
        ties_by_minor: bool = False,
    ) -> tuple[int, ...]:
        """
        Return the minors of the best `count` GPUs of the set `free`, ascending.

        In this order: the fastest slowest link; the ring whose slowest link is fastest; the best
        rest; the lowest minors. `ties_by_minor` leaves out ring and rest. The GPUs are all in one
        of the sets `within`, if there are any; the rest is that of `free`.
        """
        asked = (free << 6 | count << 1 | ties_by_minor, *within)
        known = self._picks.get(asked)
        if known is not None:
            return known
        if len(self._picks) >= _MEMO_MAX:
            self._picks.clear()
        found = self._picks[asked] = self._best(
            free, count, within=within, ties_by_minor=ties_by_minor
        )
        return found

    def _best(
        self, free: int, count: int, *, within: tuple[int, ...], ties_by_minor: bool
    ) -> tuple[int, ...]:
        sets = _sets_of(self.size, count)
        sets = sets[(sets & ~free) == 0]
        if within:
            sets = sets[np.logical_or.reduce([(sets & ~inside) == 0 for inside in within])]
        slowest = self._slowest[sets]
        sets = sets[slowest == slowest.max()]
        if len(sets) > 1 and not ties_by_minor:
            if count > 3:  # fewer are their own ring
                rings = _rings(self._classes)[sets]
                sets = sets[rings == rings.max()]
            sets = sets[_rests(self._classes)[free ^ sets].argmax() :]  # the first, lowest minors
        bits = int(sets[0])
        return tuple(place for place in range(self.size) if bits >> (self.size - 1 - place) & 1)


@lru_cache(maxsize=1024)
def table_of(links: LinkMatrix) -> LinkTable:
    """Return the table of a matrix; nodes that report the same share one."""
    return LinkTable(links)


def _classes(speeds: list[float]) -> list[int]:
    """Return the class of each speed, ascending: one class as long as neighbours are alike."""
    classes = [0]
    for before, after in pairwise(speeds):
        apart = after * 100 > before * (100 + ALIKE_PERCENT)
        classes.append(classes[-1] + apart)
    return classes


def _slowest(ranks: list[list[int]]) -> Ranks:
    """Return the rank of the slowest link inside every set, `_NO_LINK` where there is none."""
    size = len(ranks)
    slowest = np.full(1 << size, _NO_LINK, dtype=np.uint8)
    for high in range(size):  # the sets whose highest bit this is
        row = ranks[size - 1 - high]
        to_rest = np.full(1 << high, _NO_LINK, dtype=np.uint8)
        for low in range(high):
            np.minimum(to_rest[: 1 << low], row[size - 1 - low], out=to_rest[1 << low : 2 << low])
        np.minimum(slowest[: 1 << high], to_rest, out=slowest[1 << high : 2 << high])
    return slowest


@lru_cache(maxsize=64)
def _rests(classes: Classes) -> Sets:
    """
    Return how good every set is to be left: what it still offers to 8, to 4, to 2 GPUs.

    Rule: Koordinator contract 8.5 weighs what a partition leaves by the same sizes. Sets that
    offer the same are told apart by the sum over their links, which prefers few large groups to
    many small ones. Links count by class: noise of the measurement is no quality.
    """
    size = len(classes)
    slowest = _slowest([list(row) for row in classes])
    links = [row[b] for a, row in enumerate(classes) for b in range(a)]
    base = max(links, default=0) + 2  # a class, plus one; 0 = offers no such group
    worth = np.zeros(1 << size, dtype=np.int64)
    for count in _REST_SIZES:
        best = np.zeros(1 << size, dtype=np.uint8)
        if count <= size:
            sets = _sets_of(size, count)
            best[sets] = slowest[sets] + np.uint8(1)
        for bit in range(size):
            halves = best.reshape(-1, 2, 1 << bit)
            np.maximum(halves[:, 1], halves[:, 0], out=halves[:, 1])
        worth = worth * base + best
    return worth * (sum(links) + len(links) + 1) + _sums(classes)


def _sums(classes: Classes) -> Sets:
    """Return the sum over the links inside every set, each its class plus one."""
    size = len(classes)
    sums = np.zeros(1 << size, dtype=np.int64)
    for high in range(size):
        row = classes[size - 1 - high]
        to_rest = np.zeros(1 << high, dtype=np.int64)
        for low in range(high):
            to_rest[1 << low : 2 << low] = to_rest[: 1 << low] + row[size - 1 - low] + 1
        sums[1 << high : 2 << high] = sums[: 1 << high] + to_rest
    return sums


@lru_cache(maxsize=64)
def _rings(classes: Classes) -> Ranks:
    """
    Return for every set of three and more the class of the slowest link of its best ring.

    A ring is a closed way through all GPUs of the set, each once; the fewer hold 0.
    """
    size = len(classes)
    rings = np.zeros(1 << size, dtype=np.uint8)
    levels = sorted({row[b] for a, row in enumerate(classes) for b in range(a)})
    for level in levels[1:]:  # at the lowest class everything is a ring
        near = np.zeros(size, dtype=np.int64)  # by bit, not by place
        for bit in range(size):
            row = classes[size - 1 - bit]
            for other in range(size):
                near[bit] |= (row[size - 1 - other] >= level and other != bit) << other
        closed = _closed(near)
        if not closed.any():
            break
        rings[closed] = level
    return rings


def _closed(near: Sets) -> NDArray[np.bool_]:
    """
    Tell which sets have a closed way over the links given.

    Args:
        near: per bit the set of bits it is linked with.
    """
    size = len(near)
    ends = np.zeros(1 << size, dtype=np.int64)  # of the ways that begin at the highest bit
    for bit in range(size):
        ends[1 << bit] = 1 << bit
    closed = np.zeros(1 << size, dtype=np.bool_)
    for count in range(2, size + 1):
        sets, highest = _layer(size, count)
        reached = np.zeros(len(sets), dtype=np.int64)
        for bit in range(size - 1):
            before = ends[sets & ~(1 << bit)]  # the set itself, still 0, when it lacks the bit
            reached |= ((before & near[bit]) != 0).astype(np.int64) << bit
        reached &= (1 << highest) - 1  # a way does not end where it begins
        ends[sets] = reached
        if count > 2:
            closed[sets] = (reached & near[highest]) != 0
    return closed


@lru_cache(maxsize=(TABLE_GPUS_MAX + 1) * (TABLE_GPUS_MAX + 2))
def _sets_of(size: int, count: int) -> Sets:
    """Return the sets of `count` among `size` GPUs, those of low minors first."""
    sets: Sets = np.arange((1 << size) - 1, -1, -1, dtype=np.int64)
    chosen: Sets = sets[np.bitwise_count(sets) == count]
    return chosen


@lru_cache(maxsize=(TABLE_GPUS_MAX + 1) * (TABLE_GPUS_MAX + 2))
def _layer(size: int, count: int) -> tuple[Sets, Sets]:
    sets = _sets_of(size, count)
    highest: Sets = np.frexp(sets.astype(np.float64))[1].astype(np.int64) - 1
    return sets, highest
