"""Which number and which row every Node has: numbers are what callers say, rows are of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from scheduler.decide.nodes.arrays import IntArray, with_rows


class NodeRows:
    """
    The numbers and rows of the Nodes that are there, by UID.

    Rule: docs/adr/0014. Both are kept while a Node is there. A Node that comes takes the lowest
    number that is free, and the row that its rank names, else the lowest that is free. Of Nodes
    that are as good, the one at the lowest row is chosen.

    Args:
        uids: of the Nodes, by number.
        ranks: their rows.

    Attributes:
        of: at [number], the row; where no Node is, the number means nothing.
        numbers: at [row], the number.
    """

    def __init__(self, uids: Sequence[str], ranks: Sequence[int]) -> None:
        self.of: IntArray = np.array(ranks, dtype=np.int64)
        self.numbers = sorted(range(len(uids)), key=ranks.__getitem__)
        self._by_uid = {uid: number for number, uid in enumerate(uids)}
        self._free_numbers: list[int] = []
        self._free_rows: list[int] = []
        self._listed: IntArray | None = None

    def number_of(self, uid: str) -> int | None:
        """Return the number of a Node, None where it is not there."""
        return self._by_uid.get(uid)

    def listed(self) -> IntArray:
        """Return the rows of the Nodes that are there, by number."""
        if self._listed is None:
            numbers = np.arange(len(self.of), dtype=np.int64)
            self._listed = self.of[np.setdiff1d(numbers, self._free_numbers)]
        return self._listed

    def take(self, uid: str, rank: int | None) -> int:
        """Give a Node that comes its number and row; return the number."""
        assert uid, "a Node has a UID"
        if rank is None:
            rank = heappop(self._free_rows) if self._free_rows else len(self.numbers)
        elif rank < len(self.numbers):
            assert rank in self._free_rows, f"another Node has this rank: rank={rank}"
            self._free_rows.remove(rank)
            heapify(self._free_rows)
        assert 0 <= rank <= len(self.numbers), f"ranks leave no gaps: rank={rank}"
        number = heappop(self._free_numbers) if self._free_numbers else len(self.of)
        self.of = with_rows(self.of, number + 1)
        self.of[number] = rank
        self.numbers[rank : rank + 1] = [number]
        self._by_uid[uid] = number
        self._listed = None
        return number

    def free(self, uid: str) -> None:
        """Let a Node go."""
        number = self._by_uid.pop(uid)
        heappush(self._free_numbers, number)
        heappush(self._free_rows, int(self.of[number]))
        self._listed = None
