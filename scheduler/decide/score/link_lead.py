"""The order of nodes for a Pod whose GPUs are chosen by measured links: bottlenecks lead."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ledger.domain.annotations.device_hints import JointScope
from ledger.domain.annotations.partitions import HOPPER_PARTITIONS
from ledger.domain.devices import GPU
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest, is_whole
from scheduler.decide.cards.joint import bottlenecks
from scheduler.decide.cards.link_table import ALIKE_PERCENT
from scheduler.decide.dialects.registry import chooser_of
from scheduler.decide.group.room import RoomCounter, Speeds
from scheduler.decide.nodes.arrays import BoolArray, IntArray, with_rows
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.score.rows import Ratings
from scheduler.decide.shapes import Shape

_KNOWN_MAX: Final = 64
_NOT_MEASURED: Final = -1.0


@dataclass(slots=True)
class _Known:
    """The bottlenecks that a shape could have on every node, as of `seen` in the change log."""

    shape: Shape  # kept alive: it is found by its identity
    speeds: Speeds
    seen: int


class LinkLead:
    """
    Puts nodes with measured links in the order of the best bottleneck that they have free.

    Rule: Koordinator GPU-topology proposal, Goal 1 and Story 1; DIVERGENCES, "a single Pod of
    several GPUs".
    """

    def __init__(self, arrays: NodeArrays, rooms: RoomCounter, *, bottleneck_first: bool) -> None:
        self._arrays = arrays
        self._rooms = rooms
        self._bottleneck_first = bottleneck_first
        self._measured: BoolArray = np.array([_by_links(node) for node in arrays.nodes], dtype=bool)
        self._any = np.count_nonzero(self._measured) > 1
        self._known: OrderedDict[int, _Known] = OrderedDict()

    def put(self, node: int) -> None:
        """Take a node as it is now."""
        self._measured = with_rows(self._measured, len(self._arrays))
        self._measured[node] = _by_links(self._arrays.nodes[node])
        self._any = np.count_nonzero(self._measured) > 1

    def applies(self, request: PodRequest) -> bool:
        """Tell whether the links between free GPUs alone decide which several GPUs it gets."""
        if not self._any or not request.devices:
            return False
        gpus = [demand for demand in request.devices if demand.device_type == GPU]
        if len(gpus) != 1 or gpus[0].count < 2 or not is_whole(gpus[0]) or gpus[0].hint:
            return False
        same = request.joint is not None and request.joint.required_scope is JointScope.SAME_PCIE
        links = chooser_of(request.dialect).by_links
        return links and not (same or request.partition)

    def order(self, shape: Shape, ratings: Ratings, rows: IntArray | None = None) -> Ratings:
        """
        Return ratings in the order of links for the nodes at these rows, all by default.

        Args:
            ratings: the node policy's; -1 = the node can't take the Pod.
        """
        speeds = self._speeds(shape)
        return lead(
            ratings,
            speeds if rows is None else speeds.take(rows),
            bottleneck_first=self._bottleneck_first,
        )

    def draw(self, shape: Shape, ratings: Ratings) -> Ratings:
        """Return ratings for a policy that draws: alike where links are, or aren't known."""
        speeds = self._speeds(shape)
        able = np.flatnonzero((ratings >= 0) & (speeds >= 0))
        classes = _classes(speeds[able])
        drawn = np.full(len(ratings), classes.max(initial=0), dtype=np.int32)
        drawn[able] -= classes
        drawn[ratings < 0] = -1
        return drawn

    def forget(self) -> None:
        """Drop all bottlenecks that are remembered."""
        self._known.clear()

    def _speeds(self, shape: Shape) -> Speeds:
        """Return the best bottleneck on every node, GB/s; below 0 where links don't decide."""
        log = self._arrays.log
        known = self._known.get(id(shape))
        if known is None:
            everything = self._arrays.everything
            speeds = np.full(len(self._arrays), _NOT_MEASURED)
            known = self._known[id(shape)] = _Known(shape, speeds, log.position)
            if len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
            self._measure(known, everything)
        else:
            self._known.move_to_end(id(shape))
            changed = log.since(known.seen)
            some = self._arrays.everything if changed is None else np.unique(changed)
            known.speeds = with_rows(known.speeds, len(self._arrays))
            self._measure(known, some)
            known.seen = log.position
        return known.speeds

    def _measure(self, known: _Known, nodes: IntArray) -> None:
        known.speeds[nodes] = _NOT_MEASURED
        nodes = nodes[self._measured[nodes]]
        if not len(nodes):
            return
        (count,) = [demand.count for demand in known.shape.demands if demand.device_type == GPU]
        every = np.ones(len(self._arrays), dtype=np.bool_)
        rooms = self._rooms.count([known.shape], nodes, [every], [1], nodes.tolist())
        known.speeds[nodes] = 0.0
        enough = np.flatnonzero(rooms.cards >= count)
        known.speeds[nodes[enough]] = bottlenecks(rooms)(enough.tolist(), count)


def lead(ratings: Ratings, speeds: Speeds, *, bottleneck_first: bool) -> Ratings:
    """
    Return ratings in which nodes that measured changed places among themselves, all different.

    Nodes whose bottleneck is within `ALIKE_PERCENT` of the fastest are one class, of the rest
    again those near its fastest; a faster class comes before the node policy's number, or after
    it. All other nodes keep their place, ties go to the first.

    Args:
        ratings: the node policy's; -1 = the node can't take the Pod.
        speeds: below 0 where links don't decide.
    """
    order = np.argsort(-ratings, kind="stable")[: np.count_nonzero(ratings >= 0)]
    measured = speeds[order] >= 0
    mine = order[measured]
    by_class, by_policy = _classes(speeds[mine]), -ratings[mine]
    keys = (by_policy, by_class) if bottleneck_first else (by_class, by_policy)
    order[measured] = mine[np.lexsort(keys)]  # stable; the last key counts first
    result = np.full(len(ratings), -1, dtype=np.int32)
    result[order] = np.arange(len(order) - 1, -1, -1)
    return result


def _classes(speeds: Speeds) -> npt.NDArray[np.int32]:
    """Return the class of each speed, 0 for the fastest."""
    classes = np.zeros(len(speeds), dtype=np.int32)
    falling = np.argsort(-speeds, kind="stable")
    number, fastest = 0, np.inf
    for row in falling.tolist():
        speed = speeds.item(row)
        if fastest * 100 > speed * (100 + ALIKE_PERCENT):
            number += fastest != np.inf
            fastest = speed
        classes[row] = number
    return classes


def _by_links(node: NodeFacts) -> bool:
    """Tell whether measured links choose its GPUs; a partition table may come before them."""
    tabled = node.partitions is not None and node.partitions != HOPPER_PARTITIONS
    return node.links is not None and not (tabled or node.honors_partitions)
