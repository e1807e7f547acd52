"""Resources that nodes offer by a number alone, as arrays: what there is, and what is free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ledger.domain.nodes import NodeFacts
from ledger.domain.resources import CLAIMED_BY_CLASS
from scheduler.decide.nodes.arrays import UNLIMITED, BoolArray, IntArray, with_rows

Amounts = Sequence[tuple[str, int]]


class ExtendedArrays:
    """
    Per resource name and node, how many there are and how many nobody holds.

    A name that no node offers has no arrays: nobody is given any of it. What is given by claims is
    no number of the node's: it never lacks here, and who asks for it is told so (`Predicates`).
    """

    def __init__(self, nodes: Sequence[NodeFacts]) -> None:
        self._rows = len(nodes)
        self._cap: dict[str, IntArray] = {}
        self._free: dict[str, IntArray] = {}
        for row, node in enumerate(nodes):
            self.lay(row, node)

    def lay(self, row: int, node: NodeFacts) -> None:
        """Fill the row of a node with what it offers; nothing is held of it then."""
        self._rows = max(self._rows, row + 1)
        for name in {*node.extended, *node.by_claims} - self._cap.keys():
            self._cap[name] = np.zeros(self._rows, dtype=np.int64)
            self._free[name] = np.zeros(self._rows, dtype=np.int64)
        for arrays in (self._cap, self._free):
            for name, known in arrays.items():
                arrays[name] = with_rows(known, self._rows)
                number = UNLIMITED if name in node.by_claims else node.extended.get(name, 0)
                arrays[name][row] = number

    def add(self, row: int, held: Mapping[str, int], sign: int) -> None:
        """Take what a Pod holds from a node, or give it back."""
        for name, amount in held.items():
            if name in self._free:
                self._free[name][row] -= sign * amount

    def free(self, row: int, name: str) -> int:
        """Return how many are free on one node; below 0 where more is held than there is."""
        return int(self._free[name][row]) if name in self._free else 0

    def cap(self, row: int, name: str) -> int:
        """Return how many one node has."""
        if name.startswith(CLAIMED_BY_CLASS):
            return UNLIMITED
        return int(self._cap[name][row]) if name in self._cap else 0

    def most_free(self, name: str, where: BoolArray) -> int:
        """Return the first of these nodes that have most free."""
        free = self._free.get(name)
        if free is None:
            return int(where.argmax())
        return int(np.where(where, free, -UNLIMITED).argmax())

    def lacking(self, name: str, amount: int, nodes: IntArray) -> BoolArray:
        """Return which of these nodes have too few free."""
        if name.startswith(CLAIMED_BY_CLASS):
            return np.zeros(len(nodes), dtype=np.bool_)
        return _below(self._free.get(name), amount, nodes)

    def too_small(self, name: str, amount: int, nodes: IntArray) -> BoolArray:
        """Return which of these nodes have too few at all."""
        if name.startswith(CLAIMED_BY_CLASS):
            return np.zeros(len(nodes), dtype=np.bool_)
        return _below(self._cap.get(name), amount, nodes)

    def times(self, asked: Amounts, nodes: IntArray, most: int) -> IntArray:
        """Return how often what is asked for is free on each node, `most` at the most."""
        times: IntArray = np.full(len(nodes), most, dtype=np.int64)
        for name, amount in asked:
            free = self._free.get(name)
            there = np.zeros(len(nodes), np.int64) if free is None else free.take(nodes)
            times = np.minimum(times, np.maximum(there, 0) // amount)
        return times


def _below(have: IntArray | None, amount: int, nodes: IntArray) -> BoolArray:
    if have is None:
        return np.ones(len(nodes), dtype=np.bool_)
    below: BoolArray = have.take(nodes) < amount
    return below
