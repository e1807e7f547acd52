"""What nodes have free for the members of a group, counted over many nodes at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from ledger.domain.devices import GPU, WHOLE_PERCENT
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import DeviceDemand
from ledger.domain.topology import LinkMatrix
from scheduler.decide.cards.fit import asked_bytes
from scheduler.decide.filter.fitting import Fitting
from scheduler.decide.nodes.arrays import BoolArray, IntArray, with_rows
from scheduler.decide.nodes.labels import Kinds
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.shapes import Shape

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


SPEEDS_MAX: Final = 1 << 18
"""Bottlenecks that are remembered from plan to plan, some 40 MiB."""

LinkedGpus = tuple[tuple[int, ...], LinkMatrix | None]
"""Minors of free GPUs, ascending, and the links that count between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """
    What nodes have free for the members of a group: one entry per node, never too little.

    Attributes:
        nodes: nodes that can take some member alone, best first by node policy.
        copies: at [shape, place] how many such Pods there could be; 0 = not even one.
        cpu_milli, memory_bytes, pods: free; a very large number where there is no limit.
        cards: free GPUs for whole-card members; where these differ in what they take, all
            GPUs without a tenant.
        core_percent: free of open GPUs, in sum; what a plan leaves over is counted in it.
        alike: nodes of equal keys have the same free GPUs with the same links between them.
        gpus: place in `nodes` -> the free GPUs that are counted in `cards`.
        bottlenecks: (places, number of their free GPUs) -> the best bottlenecks, GB/s; None where
            they are worked out one by one.
        speeds: (key of `alike`, number of GPUs) -> bottleneck, as far as it was worked out; the
            cluster may keep it, for it never changes.
    """

    nodes: Sequence[int]
    copies: IntArray
    cpu_milli: IntArray
    memory_bytes: IntArray
    pods: IntArray
    cards: IntArray
    core_percent: IntArray
    alike: Sequence[tuple[object, ...]]
    gpus: Callable[[int], LinkedGpus]
    bottlenecks: Callable[[Sequence[int], int], Sequence[float]] | None = None
    speeds: dict[tuple[object, int], float] = field(default_factory=dict)


class RoomCounter:
    """Counts rooms in the arrays of a cluster. Nodes are places in the cluster here."""

    def __init__(self, arrays: NodeArrays, fitting: Fitting) -> None:
        self._arrays = arrays
        self._fitting = fitting
        self._link_kinds: Kinds[Hashable] | None = None
        self._renewals = 0
        self._links = LinkStack(0)
        self._speeds: dict[tuple[object, int], float] = {}

    def put(self, node: int) -> None:
        """Take a node as it is now."""
        if self._link_kinds is not None:
            self._link_kinds.put(node)

    def count(
        self,
        shapes: Sequence[Shape],
        places: IntArray,
        takes: Sequence[BoolArray],
        most: Sequence[int],
        nodes: Sequence[int],
    ) -> Rooms:
        """
        Return the rooms at `places`, called `nodes` outside.

        Args:
            takes: per shape, which places of the whole cluster can take one such Pod.
            most: per shape, how many such members there are.
        """
        arrays, gpus = self._arrays, self._arrays.gpus
        copies = np.zeros((len(shapes), len(places)), dtype=np.int64)
        for row, (shape, able, count) in enumerate(zip(shapes, takes, most, strict=True)):
            copies[row] = self._copies(shape, places, count) * able.take(places)
        if len(self._speeds) > SPEEDS_MAX:
            self._speeds.clear()
        free = self._free_cards(shapes, places)
        is_open = gpus.open.take(places, axis=0)
        packed = np.packbits(free, axis=1).tobytes()
        width = len(packed) // max(1, len(places))
        kinds = self._kinds().take(places).tolist()
        return Rooms(
            nodes=nodes,
            copies=copies,
            cpu_milli=arrays.cpu_free.take(places),
            memory_bytes=arrays.memory_free.take(places),
            pods=arrays.pods_free.take(places),
            cards=np.count_nonzero(free, axis=1),
            core_percent=(gpus.core_free.take(places, axis=0) * is_open).sum(axis=1),
            alike=[
                (kind, packed[width * place : width * (place + 1)])
                for place, kind in enumerate(kinds)
            ],
            gpus=lambda place: self._gpus(int(places[place]), free[place]),
            bottlenecks=self._bottlenecks(places, free),
            speeds=self._speeds,
        )

    def _copies(self, shape: Shape, places: IntArray, most: int) -> IntArray:
        copies = self._arrays.extended.times(shape.extended, places, most)
        if shape.plain_percent == WHOLE_PERCENT:
            return np.minimum(copies, self._arrays.gpus.whole.take(places) // shape.plain_count)
        for demand in shape.demands:
            slots = self._slots(demand, shape, places, most)
            copies = np.minimum(copies, slots // demand.count)
        return copies

    def _slots(self, demand: DeviceDemand, shape: Shape, places: IntArray, most: int) -> IntArray:
        """Return how many single shares of the demand all cards of each node could give."""
        fit = self._fitting.cards(demand, places, shape.dialect)
        if demand.exclusive:
            cards: IntArray = np.count_nonzero(fit, axis=1)
            return cards
        devices = self._arrays.devices_of(demand.device_type)
        shares = np.full(fit.shape, most, dtype=np.int64)
        if demand.core_percent:
            core = devices.core_free.take(places, axis=0) // demand.core_percent
            shares = np.minimum(shares, core)
        asked = asked_bytes(demand, devices.memory_cap.take(places, axis=0))
        memory = devices.memory_free.take(places, axis=0) // np.maximum(asked, 1)
        shares = np.where(np.asarray(asked) > 0, np.minimum(shares, memory), shares)
        slots: IntArray = (shares * fit).sum(axis=1)
        return slots

    def _free_cards(self, shapes: Sequence[Shape], places: IntArray) -> BoolArray:
        gpus = self._arrays.gpus
        if all(shape.plain_percent == WHOLE_PERCENT for shape in shapes):
            free: BoolArray = gpus.left.take(places, axis=0) == WHOLE_PERCENT
            return free
        whole = whole_demands([shape.demands for shape in shapes])
        if one_kind(whole):
            return self._fitting.cards(whole[0], places, None)
        untouched: BoolArray = gpus.open & gpus.present & (gpus.tenants == 0)
        return untouched.take(places, axis=0)

    def _bottlenecks(
        self, places: IntArray, free: BoolArray
    ) -> Callable[[Sequence[int], int], Sequence[float]] | None:
        if self._arrays.gpus.width > WIDTH_MAX:
            return None

        def bottlenecks(some: Sequence[int], count: int) -> Sequence[float]:
            kinds = self._kinds().take(places.take(some))
            return self._links.bottlenecks(kinds, free.take(some, axis=0), count)

        return bottlenecks

    def _kinds(self) -> IntArray:
        """Return a number per node that nodes share whose GPUs have equal minors and links."""
        width = self._arrays.gpus.width
        if self._link_kinds is None or self._links.width != width:
            self._link_kinds = Kinds(self._arrays.nodes, _linked)
            self._renewals = -1
        kinds = self._link_kinds
        if kinds.renewals != self._renewals:
            self._renewals = kinds.renewals
            self._links = LinkStack(width)
            self._speeds.clear()
        if width <= WIDTH_MAX and len(self._links) < len(kinds.examples):
            more = kinds.examples[len(self._links) :]
            self._links.add(more, [_minors(facts) for facts in more])
        return kinds.of

    def _gpus(self, place: int, free: BoolArray) -> LinkedGpus:
        facts, records = self._arrays.nodes[place], self._arrays.gpus.records[place]
        columns = zip(records, free.tolist(), strict=False)
        minors = tuple([record.minor for record, is_free in columns if is_free])
        return minors, None if facts.honors_partitions else facts.links or facts.derived_links


def _minors(node: NodeFacts) -> tuple[int, ...]:
    return tuple([device.minor for device in node.devices if device.device_type == GPU])


def _linked(node: NodeFacts) -> Hashable:
    return node.links or node.derived_links, _minors(node), node.honors_partitions


def whole_demands(demands: Sequence[Sequence[DeviceDemand]]) -> list[DeviceDemand]:
    """Return every demand for GPUs without another tenant."""
    return [
        demand
        for of_pod in demands
        for demand in of_pod
        if demand.device_type == GPU and demand.exclusive
    ]


def one_kind(demands: Sequence[DeviceDemand]) -> bool:
    """Tell whether there are such demands, and a card that suits one of them suits all."""
    return len({_kind(demand) for demand in demands}) == 1


def _kind(demand: DeviceDemand) -> tuple[object, ...]:
    return (
        demand.core_percent,
        demand.memory_bytes,
        demand.memory_ratio_percent,
        demand.model_names,
    )
