"""One row of ratings per shape, brought up to date on just the nodes that changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from scheduler.decide.filter.predicates import Predicates, StaticVerdict
from scheduler.decide.nodes.arrays import IntArray, with_rows
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.score.policies import NodePolicy
from scheduler.decide.shapes import Shape

Ratings: TypeAlias = npt.NDArray[np.int32]

_BYTES_MAX: Final = 64 << 20


def runner_up(ratings: npt.NDArray[np.integer], chosen: int) -> tuple[int, int]:
    """
    Return the rating of what was chosen, and the next best, -1 without one.

    What is rated better, or as well and comes before it, was refused by a closer look; it is not
    read, for a refusal is remembered or not. Ties go to the first.
    """
    score = ratings.item(chosen)
    ratings[chosen] = -1  # for one look: a copy costs more, and so does a look at either side
    second = int(ratings.argmax())
    best = ratings.item(second)
    ratings[chosen] = score
    if best > score or (best == score and second < chosen):
        others = np.where(ratings > score, -1, ratings)
        others[: chosen + 1][others[: chosen + 1] == score] = -1
        second = int(others.argmax())
        best = others.item(second)
    return score, second if best >= 0 else -1


@dataclass(slots=True)
class _Row:
    """
    The ratings for one shape.

    Attributes:
        seen: the position in the change log that they stand for.
        version: what they stand for beside the nodes.
        full_at: the log's count of returns when no node could take the shape, -1 = some could.
    """

    shape: Shape  # kept alive: rows are found by its identity
    ratings: Ratings
    verdict: StaticVerdict
    seen: int = 0
    version: int = 0
    full_at: int = -1


@dataclass(slots=True, eq=False)
class RatingRows:
    """
    The rating of every node for every shape in use; -1 = it can't take the shape.

    `wished`: the policies that a shape may ask for by name; their ratings depend on a node alone.
    Rows that were not used for longest are dropped when all of them exceed `bytes_max`.
    """

    arrays: NodeArrays
    predicates: Predicates
    policy: NodePolicy
    wished: Mapping[str, NodePolicy]
    bytes_max: int = _BYTES_MAX
    _rows: OrderedDict[int, _Row] = field(default_factory=OrderedDict)
    _prefer_bare: bool = False
    _changes: int = 0

    def __post_init__(self) -> None:
        self.put()

    def put(self) -> None:
        """Take a node as it is now, whichever: nodes without devices come first if others have."""
        bare = int(np.count_nonzero(self.arrays.without_devices))
        prefer_bare = 0 < bare < self.arrays.count
        self._changes += prefer_bare != self._prefer_bare
        self._prefer_bare = prefer_bare

    def current(self, shape: Shape) -> Ratings:
        """Return the ratings as of now. The array is the row itself: read it, do not keep it."""
        log = self.arrays.log
        row = self._rows.get(id(shape))
        if row is None:
            row = self._new_row(shape)
        else:
            self._rows.move_to_end(id(shape))
        if row.seen != log.position and row.full_at != log.returns:
            nodes, version, count = log.since(row.seen), self._version(), len(self.arrays)
            row.ratings = with_rows(row.ratings, count)
            if nodes is None or len(nodes) > count or version != row.version:
                nodes = self.arrays.everything
            row.ratings[nodes] = self._rate(row, nodes)
            row.seen = log.position
            row.version = version
            row.full_at = -1
        return row.ratings

    def note_full(self, shape: Shape) -> None:
        """Remember that no node can take the shape, until something is given back."""
        row = self._rows.get(id(shape))
        if row is not None:
            row.full_at = self.arrays.log.returns

    def forget(self) -> None:
        """Drop every row that is remembered."""
        self._rows.clear()

    def _new_row(self, shape: Shape) -> _Row:
        row = self._blank(shape)
        row.ratings[:] = self._rate(row, self.arrays.everything)
        row.seen = self.arrays.log.position
        row.version = self._version()
        self._rows[id(shape)] = row
        if len(self._rows) > max(1, self.bytes_max // max(1, 4 * len(self.arrays))):
            self._rows.popitem(last=False)
        return row

    def _version(self) -> int:
        """Return a number that grows when nodes that did not change are rated otherwise."""
        return self.policy.version() + self._changes

    def _blank(self, shape: Shape) -> _Row:
        return _Row(
            shape=shape,
            ratings=np.zeros(len(self.arrays), dtype=np.int32),
            verdict=self.predicates.verdict(shape.static),
        )

    def _rate(self, row: _Row, nodes: IntArray) -> IntArray:
        policy = self.wished.get(row.shape.node_policy, self.policy)
        ratings = policy.rate(row.shape, nodes)
        if self._prefer_bare and not row.shape.demands:
            # Without devices: nodes without devices first among equals (cli.md, Policies).
            bare = self.arrays.without_devices.take(nodes)
            ratings = np.where(ratings < 0, -1, 2 * ratings + bare)
        admits = self.predicates.as_of_now(row.verdict).admits
        if admits is not None:
            ratings[~admits.take(nodes)] = -1
        if self.arrays.limits_pods:
            ratings[self.arrays.pods_free.take(nodes) < 1] = -1
        return ratings
