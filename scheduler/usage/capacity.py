"""
How the GPU share of a cluster was used over time: allocated, stranded, usable, closed.

Stranded is the free share that an average GPU Pod of the workload could not have used where it
lies. For one kind of Pod that is all that is free on a node where it does not fit, and on a node
where it fits the cards with less left than it asks of one card; over the kinds it is the mean,
weighed by how many Pods of each there were.

Rule: the FGD paper's fragmentation measure, over the GPU Pods of the recorded workload.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ledger.domain.resources import TYPE_GPU
from scheduler.usage.model import (
    WHOLE,
    CapacityPoint,
    CardInfo,
    Claim,
    History,
    Loss,
    Outage,
    WorkloadShape,
)

SHAPES_MAX: Final = 64
"""Kinds of Pods that are weighed, the most frequent first."""

Integers = npt.NDArray[np.int64]


def capacity_over(history: History, moments: Sequence[int]) -> tuple[CapacityPoint, ...]:
    """Return the use of the GPUs at each moment; `moments` ascend."""
    cards = _Cards(history)
    edges = sorted(_edges(history, cards))
    times = [edge[0] for edge in edges]
    points, done = [], 0
    for moment in moments:
        upto = bisect_right(times, moment)
        for _, kind, index, amount, memory in edges[done:upto]:
            cards.apply(kind, index, amount, memory)
        done = upto
        points.append(cards.point(moment))
    return tuple(points)


_CARD, _CLAIM, _OUTAGE, _LOSS = range(4)
_Edge = tuple[int, int, int, int, int]  # moment, kind, card or node, percent or milli, bytes


def _edges(history: History, cards: _Cards) -> Iterator[_Edge]:
    for hold in history.holds:
        if cards.is_gpu(hold.card):
            amount = history.shares[hold.share].percent
            yield hold.opened, _CARD, hold.card, amount, 0
            if hold.closed is not None:
                yield hold.closed, _CARD, hold.card, -amount, 0
    for loss in history.losses:
        if cards.is_gpu(loss.card):
            yield from _loss_edges(loss)
    for claim in history.claims:
        yield from _claim_edges(claim)
    for outage in history.outages:
        if cards.is_gpu(outage.card):
            yield from _outage_edges(outage)


def _loss_edges(loss: Loss) -> Iterator[_Edge]:
    yield loss.opened, _LOSS, loss.card, loss.percent, 0
    if loss.closed is not None:
        yield loss.closed, _LOSS, loss.card, -loss.percent, 0


def _claim_edges(claim: Claim) -> Iterator[_Edge]:
    yield claim.opened, _CLAIM, claim.node, claim.cpu_milli, claim.memory_bytes
    if claim.closed is not None:
        yield claim.closed, _CLAIM, claim.node, -claim.cpu_milli, -claim.memory_bytes


def _outage_edges(outage: Outage) -> Iterator[_Edge]:
    yield outage.opened, _OUTAGE, outage.card, 1, 0
    if outage.closed is not None:
        yield outage.closed, _OUTAGE, outage.card, -1, 0


class _Cards:
    """What is left of every node, and how much of it is stranded; only changed nodes are redone."""

    def __init__(self, history: History) -> None:
        count = len(history.nodes)
        gpus = [
            [i for i in node.cards if history.cards[i].device_type == TYPE_GPU]
            for node in history.nodes
        ]
        width = max((len(cards) for cards in gpus), default=0) or 1
        self.slot = {card: (n, k) for n, cards in enumerate(gpus) for k, card in enumerate(cards)}
        self.capacity = np.zeros((count, width), np.int64)
        for card, (n, k) in self.slot.items():
            self.capacity[n, k] = _capacity(history.cards[card])
        self.used = np.zeros((count, width), np.int64)
        self.lost = np.zeros((count, width), np.int64)
        self.outages = np.zeros((count, width), np.int64)
        unlimited = np.iinfo(np.int64).max // 2
        self.cpu = np.array([node.cpu_milli or unlimited for node in history.nodes], np.int64)
        self.memory = np.array([node.memory_bytes or unlimited for node in history.nodes], np.int64)
        self.shapes = _Shapes(history.shapes)
        self.stranded = np.zeros(count, np.float64)
        self.changed = set(range(count))

    def is_gpu(self, card: int) -> bool:
        """The card counts here."""
        return card in self.slot

    def apply(self, kind: int, index: int, amount: int, memory: int) -> None:
        """Take one edge of the history in."""
        if kind == _CLAIM:
            self.cpu[index] -= amount
            self.memory[index] -= memory
            self.changed.add(index)
            return
        n, k = self.slot[index]
        {_CARD: self.used, _LOSS: self.lost, _OUTAGE: self.outages}[kind][n, k] += amount
        self.changed.add(n)

    def point(self, moment: int) -> CapacityPoint:
        """Return the sums as they stand."""
        held = np.minimum(self.used, self.capacity)
        used = np.minimum(self.used - self.lost, self.capacity)
        free = np.where(self.outages > 0, 0, self.capacity - held)
        closed = int((self.capacity - used - free).sum())
        if self.changed:
            rows = np.fromiter(sorted(self.changed), np.int64, len(self.changed))
            self.stranded[rows] = self.shapes.stranded(
                free[rows], self.cpu[rows], self.memory[rows]
            )
            self.changed.clear()
        stranded = round(float(self.stranded.sum()))
        return CapacityPoint(
            at=moment,
            allocated=int(used.sum()),
            stranded=stranded,
            usable=int(free.sum()) - stranded,
            closed=closed,
        )


class _Shapes:
    """The workload's kinds of GPU Pods, as columns."""

    def __init__(self, shapes: Sequence[WorkloadShape]) -> None:
        gpu = sorted((s for s in shapes if s.gpu_count), key=_by_frequency)[:SHAPES_MAX]
        self.cpu = np.array([s.cpu_milli for s in gpu], np.int64)
        self.memory = np.array([s.memory_bytes for s in gpu], np.int64)
        self.count = np.array([s.gpu_count for s in gpu], np.int64)
        self.each = np.array([max(1, s.core_percent_each) for s in gpu], np.int64)
        weights = np.array([s.pods for s in gpu], np.float64)
        self.weights = weights / weights.sum() if gpu else weights

    def stranded(self, free: Integers, cpu: Integers, memory: Integers) -> npt.NDArray[np.float64]:
        """Return the stranded percent of each node: rows of `free` are nodes, columns cards."""
        if not len(self.weights):
            return np.zeros(len(free), np.float64)
        fits_card = free[:, None, :] >= self.each[None, :, None]
        fits = fits_card.sum(axis=2) >= self.count
        fits &= (cpu[:, None] >= self.cpu) & (memory[:, None] >= self.memory)
        useless = np.where(fits[:, :, None] & fits_card, 0, free[:, None, :]).sum(axis=2)
        result: npt.NDArray[np.float64] = useless @ self.weights
        return result


def _by_frequency(shape: WorkloadShape) -> tuple[int, int, int, int, int]:
    return (
        -shape.pods,
        shape.gpu_count,
        shape.core_percent_each,
        shape.cpu_milli,
        shape.memory_bytes,
    )


def _capacity(card: CardInfo) -> int:
    """Return a card's capacity in percent of a whole one."""
    return card.core_capacity_percent or WHOLE


def cards_over(history: History) -> frozenset[int]:
    """Return the cards whose holders ever had more core percent together than the card has."""
    edges: dict[int, list[tuple[int, int]]] = {}
    for hold in history.holds:
        core = history.shares[hold.share].core_percent
        card = edges.setdefault(hold.card, [])
        card.append((hold.opened, core))
        if hold.closed is not None:
            card.append((hold.closed, -core))
    return frozenset(card for card, steps in edges.items() if _is_over(history, card, steps))


def _is_over(history: History, card: int, steps: list[tuple[int, int]]) -> bool:
    """Walk one card's edges; what ends at a moment has ended before what begins at it."""
    core, capacity = 0, history.cards[card].core_capacity_percent
    if not capacity:  # a device that left: what it had is not known any more
        return False
    for _, change in sorted(steps):
        core += change
        if core > capacity:
            return True
    return False
