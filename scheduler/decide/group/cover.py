"""
Which nodes hold how many members of a group: fewest nodes, largest bottleneck, least left.

Members of one shape are interchangeable, and so are nodes that can take the same numbers of them.
What one node takes is a vector: how many members of each shape.

Worked example: four members of one shape with two GPUs each. Node 0 can take one of them, node 1
three, node 2 two. The vectors are (0,), (1,), (2,), (3,), (4,).

>>> vectors = vectors_of((4,), (2,))
>>> vectors.gpus.tolist()
[0, 2, 4, 6, 8]

No single node takes (4,). Of the pairs that do together, 1 with 0 and 1 with 2, all links are
equally fast here, and 1 with 0 leaves less free.

>>> able = np.arange(5) <= np.array([[1], [3], [2]])
>>> same = lambda places, gpus: [25.0] * len(places)
>>> left = np.array([2, 6, 4])
>>> best_cover(vectors, Offers(able=able, left=left, alike="abc", bottlenecks=same))
(((0, (1,)), (1, (3,))), False)

Faster links on node 2 beat what is left.

>>> faster = lambda places, gpus: [10.0 if 0 in places else 25.0] * len(places)
>>> best_cover(vectors, Offers(able=able, left=left, alike="abc", bottlenecks=faster))
(((1, (3,)), (2, (1,))), False)
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
import numpy.typing as npt

from scheduler.decide.nodes.arrays import BoolArray, IntArray

VECTORS_MAX: Final = 4096
"""Vectors of one group; members of many shapes beyond that are dealt out greedily."""

WORK_MAX: Final = 20_000_000
"""Table cells that one search may fill; beyond that nodes are dealt out greedily."""

_FAR: Final = np.int64(1) << 60

Speeds = npt.NDArray[np.float64]
Vector = tuple[int, ...]
Cover = tuple[tuple[int, Vector], ...]
"""Places with what each takes, in sum exactly the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectors:
    """
    Every number of members of each shape that one node could take; the first is none at all.

    Attributes:
        table: row per vector, column per shape.
        gpus_each: GPUs that are chosen by their links, per member of each shape.
        gpus: the same per vector.
    """

    need: Vector
    table: IntArray
    gpus_each: IntArray
    gpus: IntArray

    def __len__(self) -> int:
        return len(self.table)

    def weights(self) -> IntArray:
        """Return what a member of each shape counts where most GPUs come first, then members."""
        weights: IntArray = self.gpus_each * (sum(self.need) + 1) + 1
        return weights

    def number(self, vector: Vector) -> int:
        """Return the row of a vector."""
        strides = _strides(self.need).tolist()
        return sum(count * step for count, step in zip(vector, strides, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """
    What the nodes could take.

    Attributes:
        able: at [place, vector]. A node that can take a vector can take every part of it.
        left: what is free on the node, the less the better.
        alike: places of equal keys have the same bottleneck for every number of GPUs.
        bottlenecks: (places, number of GPUs) -> GB/s of the best such GPUs; grows when fewer.
        in_use: places where the group has members already; they cost no node.
    """

    able: BoolArray
    left: IntArray
    alike: Sequence[Hashable]
    bottlenecks: Callable[[Sequence[int], int], Sequence[float]]
    in_use: frozenset[int] = frozenset()


@dataclass(slots=True)
class _Item:
    """One kind of nodes: what one of them can take, and the places."""

    able: BoolArray  # per vector
    largest: IntArray  # the vectors that are part of no other one
    places: list[int]
    in_use: bool = False  # the group is there already


def vectors_of(need: Vector, gpus: Sequence[int]) -> Vectors | None:
    """Return all vectors of a group, None when there are too many."""
    count = 1
    for most in need:
        count *= most + 1
    if count > VECTORS_MAX:
        return None
    table = np.array(list(product(*(range(most + 1) for most in need))), dtype=np.int64)
    each = np.array(gpus, dtype=np.int64)
    return Vectors(need=need, table=table, gpus_each=each, gpus=table @ each)


def best_cover(vectors: Vectors, offers: Offers) -> tuple[Cover | None, bool]:
    """
    Return the best cover, None when none was found, and whether the search was cut.

    Rule: Koordinator GPU-topology proposal, "Node Selection" and "Pick GPUs of Node": as few
    nodes as possible beside those in use, which are filled first; of these the largest
    bottleneck, which is the least of any node; then the least left; then the first nodes. Exact
    within `WORK_MAX`; a search that is cut takes the roomiest node again and again, which for
    members of one shape are still the fewest.
    """
    items = _items_of(vectors, offers)
    greedy = _greedy(vectors, items)
    if greedy is None and len(vectors.need) == 1:
        return None, False  # the roomiest nodes first: who does not fit so does not fit
    layers = min(sum(vectors.need), len(offers.left))
    if greedy is not None:
        layers = sum(place not in offers.in_use for place, _ in greedy)
    if not items or _work(vectors, items, layers) > WORK_MAX:
        return greedy, bool(items)
    table = _Table(vectors, layers)
    table.fill(_merged(items))
    fewest = table.fewest()
    if fewest is None:
        return None, False
    return _cheapest(vectors, offers, _fastest(vectors, offers, items, fewest), fewest), False


def closed(vectors: Vectors, able: BoolArray) -> BoolArray:
    """Return the vectors that can be taken with every part of them."""
    result = able.copy()
    for shape, step in enumerate(_strides(vectors.need).tolist()):
        more = vectors.table[:, shape] > 0
        for count in range(1, vectors.need[shape] + 1):
            rows = np.flatnonzero(more & (vectors.table[:, shape] == count))
            result[rows] &= result[rows - step]
    return result


def _largest(vectors: Vectors, able: BoolArray) -> IntArray:
    """Return the vectors that are part of no other one that the node can take."""
    inner = np.zeros(len(vectors), dtype=np.bool_)
    for shape, step in enumerate(_strides(vectors.need).tolist()):
        rows = np.flatnonzero(vectors.table[:, shape] < vectors.need[shape])
        inner[rows] |= able[rows + step]
    found: IntArray = np.flatnonzero(able & ~inner)
    return found


def _item(vectors: Vectors, able: BoolArray, places: list[int]) -> _Item | None:
    """Return a kind of nodes, None when it can take no member at all."""
    return _Item(able, _largest(vectors, able), places) if able[1:].any() else None


def _items_of(vectors: Vectors, offers: Offers) -> list[_Item]:
    packed = np.packbits(offers.able, axis=1)
    width, raw = packed.shape[1], packed.tobytes()
    groups: dict[tuple[Hashable, bytes, bool], list[int]] = {}
    for place, alike in enumerate(offers.alike):
        row = raw[width * place : width * (place + 1)]
        groups.setdefault((alike, row, place in offers.in_use), []).append(place)
    known: dict[bytes, _Item | None] = {}
    items = []
    for (_, row, in_use), places in groups.items():
        if row not in known:
            known[row] = _item(vectors, offers.able[places[0]], [])
        kind = known[row]
        if kind is not None:
            items.append(_Item(kind.able, kind.largest, places, in_use))
    return items


def _merged(items: Sequence[_Item]) -> list[_Item]:
    """Return one item for all kinds that take the same, whatever their links."""
    merged: dict[tuple[bytes, bool], _Item] = {}
    for item in items:
        new = _Item(item.able, item.largest, [], item.in_use)
        known = merged.setdefault((item.able.tobytes(), item.in_use), new)
        known.places.extend(item.places)
    return list(merged.values())


def _worth_trying(vectors: Vectors, item: _Item, layers: int) -> list[int]:
    """Return as many of the places as a cover with so many new nodes can need."""
    return item.places[: sum(vectors.need) if item.in_use else layers]


def _work(vectors: Vectors, items: Sequence[_Item], layers: int) -> int:
    steps = sum(
        len(_worth_trying(vectors, item, layers)) * len(item.largest) for item in _merged(items)
    )
    return steps * max(1, layers) * len(vectors)


def _greedy(vectors: Vectors, items: Sequence[_Item]) -> Cover | None:
    """
    Return a cover in which each node takes the most GPUs, then members, of what is left.

    Nodes in use come first.
    """
    kinds = [(item.largest, sorted(item.places), item.in_use) for item in _merged(items)]
    rest = np.array(vectors.need, dtype=np.int64)
    weights = vectors.weights()
    cover = []
    while rest.any():
        best: tuple[bool, int, int] = (False, 0, 0)
        for number, (largest, places, in_use) in enumerate(kinds):
            if places:
                takes = int((np.minimum(vectors.table[largest], rest) @ weights).max())
                best = max(best, (in_use and takes > 0, takes, -number))
        if not best[1]:
            return None
        largest, places, _ = kinds[-best[2]]
        taken = np.minimum(vectors.table[largest], rest)
        taken = taken[int((taken @ weights).argmax())]
        rest = rest - taken
        cover.append((places.pop(0), tuple(taken.tolist())))
    return tuple(cover)


def _fastest(
    vectors: Vectors, offers: Offers, items: Sequence[_Item], nodes: int
) -> Sequence[_Item]:
    """Return the kinds with what they can take at the largest bottleneck of so many nodes."""
    speeds = _Speeds(vectors, offers, items, nodes)
    best, low, high = items, 0, len(speeds.levels) - 1
    middle = high  # often all nodes are equally fast
    while low <= high:
        tried = speeds.at(speeds.levels[middle])
        table = _Table(vectors, nodes)
        table.fill(tried)
        if table.fewest() is None:
            high = middle - 1
        else:
            best, low = tried, middle + 1
        middle = (low + high) // 2
    return best


class _Speeds:
    """How fast the links are that each kind of nodes offers for a number of its GPUs."""

    def __init__(
        self, vectors: Vectors, offers: Offers, items: Sequence[_Item], nodes: int
    ) -> None:
        self._vectors = vectors
        self._limited: dict[tuple[int, int], _Item | None] = {}
        most = max(int(vectors.gpus[item.largest].max()) for item in items)
        others = nodes + len(offers.in_use) - 1
        fewest = max(0, int(vectors.gpus[-1]) - others * most)  # the others can't take more
        kinds: dict[tuple[int, bool], list[_Item]] = {}
        for item in items:  # who takes the same shares the array
            kinds.setdefault((id(item.able), item.in_use), []).append(item)
        self._known: list[tuple[list[_Item], list[int], Speeds]] = []
        for alike in kinds.values():
            numbers = np.unique(vectors.gpus[alike[0].able])
            counts = numbers[numbers >= fewest].tolist()
            places = [item.places[0] for item in alike]
            speeds = np.array([offers.bottlenecks(places, count) for count in counts])
            if counts:
                self._known.append((alike, counts, speeds))
        every = [speeds.ravel() for _, _, speeds in self._known]
        self.levels: list[float] = np.unique(np.concatenate(every)).tolist()

    def at(self, level: float) -> list[_Item]:
        """Return what nodes take over links at least so fast; one item for all that take it."""
        result = []
        for alike, counts, speeds in self._known:
            fast = (speeds >= level).cumprod(axis=0).sum(axis=0)  # fewer GPUs are never slower
            for number in np.unique(fast[fast > 0]).tolist():
                limited = self._with_gpus(alike[0], counts[number - 1])
                if limited is not None:
                    chosen = np.flatnonzero(fast == number).tolist()
                    places = [place for kind in chosen for place in alike[kind].places]
                    result.append(_Item(limited.able, limited.largest, places, alike[0].in_use))
        return _merged(result)

    def _with_gpus(self, item: _Item, most: int) -> _Item | None:
        key = (id(item.able), most)
        if key not in self._limited:
            able = item.able & (self._vectors.gpus <= most)
            self._limited[key] = _item(self._vectors, able, [])
        return self._limited[key]


def _cheapest(vectors: Vectors, offers: Offers, items: Sequence[_Item], nodes: int) -> Cover | None:
    """
    Return the cover of so many nodes that leaves least, every member once.

    Nodes in use take what they can before the new ones, of which none can be spared.
    """
    left = offers.left.tolist()
    merged = _merged(items)
    for item in merged:
        item.places.sort(key=lambda place: (left[place], place))
    table = _Table(vectors, nodes)
    table.fill(merged, left)
    picked = table.picked()
    spare = _spare(vectors, merged, {place for place, _ in picked}) if nodes else []
    new = sorted(pair for pair in picked if pair[0] not in offers.in_use)
    old = sorted(pair for pair in picked if pair[0] in offers.in_use)
    rest = np.array(vectors.need, dtype=np.int64)
    cover = []
    for place, number in (*old, *spare, *new):
        taken = np.minimum(rest, vectors.table[number])
        rest = rest - taken
        if taken.any():
            cover.append((place, tuple(taken.tolist())))
    assert not rest.any(), "the table says that these nodes are enough"
    return tuple(cover)


def _spare(
    vectors: Vectors, items: Sequence[_Item], picked: Container[int]
) -> list[tuple[int, int]]:
    """Return the other places in use, each with the vector of the most GPUs, then members."""
    weights = vectors.weights()
    return [
        (place, int(item.largest[int((vectors.table[item.largest] @ weights).argmax())]))
        for item in items
        if item.in_use
        for place in _worth_trying(vectors, item, 0)
        if place not in picked
    ]


class _Table:
    """Least cost to cover each vector with at most so many new nodes, node by node."""

    def __init__(self, vectors: Vectors, layers: int) -> None:
        self._vectors = vectors
        self._layers = layers
        self._rests: dict[int, IntArray] = {}
        self._steps: list[tuple[int, int, int, IntArray, IntArray]] = []
        self._costs: IntArray = np.full((layers + 1, len(vectors)), _FAR, dtype=np.int64)
        self._costs[:, 0] = 0

    def fill(self, items: Sequence[_Item], left: Sequence[int] | None = None) -> None:
        """Let every node take what it can; without `left` all cost the same."""
        for item in items:
            numbers, step = item.largest.tolist(), 0 if item.in_use else 1
            for place in _worth_trying(self._vectors, item, self._layers):
                before = self._costs
                # What a node in use has left is left in any case, beside whatever new ones.
                cost = 0 if left is None or (item.in_use and self._layers) else left[place]
                after = before.copy()
                for number in numbers:
                    moved = before[: len(before) - step].take(self._rest(number), axis=1) + cost
                    np.minimum(after[step:], moved, out=after[step:])
                if left is not None:
                    self._steps.append((place, step, cost, item.largest, before))
                self._costs = after

    def fewest(self) -> int | None:
        """Return the least number of new nodes for the whole group, None when it does not fit."""
        layers = np.flatnonzero(self._costs[:, -1] < _FAR)
        return int(layers[0]) if len(layers) else None

    def picked(self) -> list[tuple[int, int]]:
        """Return the places of the cheapest cover, each with the vector that it takes at most."""
        layer, state = self._layers, len(self._vectors) - 1
        after = self._costs
        found: list[tuple[int, int]] = []
        for place, step, cost, largest, before in reversed(self._steps):
            wanted = after.item(layer, state)
            if before.item(layer, state) != wanted:
                for number in largest.tolist():
                    rest = int(self._rest(number)[state])
                    if before.item(layer - step, rest) + cost == wanted:
                        found.append((place, number))
                        layer, state = layer - step, rest
                        break
            after = before
        return found

    def _rest(self, number: int) -> IntArray:
        known = self._rests.get(number)
        if known is None:
            table = self._vectors.table
            known = np.maximum(table - table[number], 0) @ _strides(self._vectors.need)
            self._rests[number] = known
        return known


def _strides(need: Vector) -> IntArray:
    strides = [1]
    for most in reversed(need[1:]):
        strides.insert(0, strides[0] * (most + 1))
    return np.array(strides, dtype=np.int64)
