"""
The fragmentation of a node: how much of its idle GPU typical Pods can't use.

Everything is an exact integer in percent of a card times Pods seen. For one typical Pod the idle
GPU of a node is either lost as a whole (the Pod can't run there) or in part (cards with too
little left); so what is *usable* adds up over cards, and a table over (cpu left, percent left)
answers for all typical Pods at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ledger.domain.devices import GPU, WHOLE_PERCENT
from ledger.domain.log.workload import TypicalPod, Workload
from scheduler.decide.filter.predicates import Predicates
from scheduler.decide.nodes.arrays import IMPOSSIBLE, IntArray, with_rows
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.shapes import StaticNeed

SHARES = WHOLE_PERCENT + 1
"""Number of values that the percent left on a card can have."""

_SPARE_KINDS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Odd:
    """A typical Pod for several parts of cards, which no table over single cards can hold."""

    cpu_class: int
    percent_by_kind: IntArray
    gpu_count: int
    weight: int


class Fragmentation:
    """
    What each node's idle GPU is worth to the typical Pods, kept up to date from the change log.

    Rule: FGD paper, "fragmentation measure"; the formula of the trace's documentation: F(n) = sum
    over typical m of p(m) x f(n, m), where f is all idle GPU when m can't run on n (or asks for
    no GPU), else the idle GPU of cards with less left than m asks per card. Here F x (number of
    Pods seen) = idle x total weight - usable.

    A cpu class is the number of distinct cpu requests of typical Pods that fit, plus 1; class 0
    is cpu below zero, where nothing may be placed. A kind of node is a set of typical Pods that
    its predicates and card sizes allow.

    Attributes:
        weight: Pods seen, all typical Pods together.
        asked: what typical Pods ask, for another measure of the same ones.
        renewals: how often kinds got other numbers.
        by_share: usable percent of a card, at [kind, percent left, cpu class].
        by_whole: what untouched cards are worth beyond that to Pods for several whole cards, at
            [kind, number of untouched cards, cpu class].
        usable: at [node, cpu class], with the cards as they are.
        usable_now: at [node].
    """

    kinds: IntArray
    by_share: IntArray
    by_whole: IntArray
    usable: IntArray
    usable_now: IntArray
    _numbers: dict[bytes, int]
    _share_start: IntArray
    _whole_start: IntArray

    def __init__(
        self,
        arrays: NodeArrays,
        predicates: Predicates,
        workload: Workload,
        asked: AskedPercents | None = None,
    ) -> None:
        self._arrays = arrays
        self.weight = sum(workload.counts)
        assert self.weight < 1 << 31, self.weight  # keeps sums far from IMPOSSIBLE
        typical = [
            (pod, count)
            for pod, count in zip(workload.pods, workload.counts, strict=True)
            if pod.gpu_count
        ]
        self._typical = typical
        self._ladder = np.array(sorted({0} | {pod.cpu_milli for pod, _ in typical}), dtype=np.int64)
        self._ladder_list: list[int] = self._ladder.tolist()
        self.cpu_classes = len(self._ladder) + 1
        self.asked = asked or AskedPercents(arrays, predicates, [pod for pod, _ in typical])
        self.renewals = -1
        self._build()

    def put(self, node: int) -> None:
        """Take a node as it is now, after predicates did."""
        rows = len(self._arrays)
        asked = self.asked.on(node)
        kind = self._numbers.get(asked.tobytes())
        many = len(self._numbers) > 2 * rows + _SPARE_KINDS
        if self.by_whole.shape[1] != self._arrays.gpus.width + 1 or (kind is None and many):
            self._build()
            return
        if kind is None:
            several = [pod.gpu_count > 1 for pod, _ in self._typical]
            if self.odd or (asked[several] < WHOLE_PERCENT).any():
                self._build()
                return
            kind = self._add_kind(asked)
        self.kinds = with_rows(self.kinds, rows)
        self.kinds[node] = kind
        self._share_start = with_rows(self._share_start, rows)
        self._share_start[node] = kind * SHARES
        self._whole_start = with_rows(self._whole_start, rows)
        self._whole_start[node] = kind * self.by_whole.shape[1]
        self.usable = with_rows(self.usable, rows)
        self.usable_now = with_rows(self.usable_now, rows)

    def _build(self) -> None:
        arrays = self._arrays
        self.renewals += 1
        rows, self.kinds = _distinct(self.asked.everywhere())
        self._numbers = {row.tobytes(): kind for kind, row in enumerate(rows)}
        self.odd: list[_Odd] = []
        self.by_share, self.by_whole = self._tables(rows)
        self._share_start = self.kinds * SHARES
        self._whole_start = self.kinds * self.by_whole.shape[1]
        self._share_rows = self.by_share.reshape(-1, self.cpu_classes)
        self._whole_rows = self.by_whole.reshape(-1, self.cpu_classes)
        self.usable = np.zeros((len(arrays), self.cpu_classes), dtype=np.int64)
        self.usable_now = np.zeros(len(arrays), dtype=np.int64)
        self._renew(arrays.everything)
        self._seen = arrays.log.position

    def _add_kind(self, asked: IntArray) -> int:
        """Take a kind of node that was not there before; return its number."""
        kind = self._numbers[asked.tobytes()] = len(self._numbers)
        by_share, by_whole = self._tables(asked[None, :])
        self.by_share = np.concatenate([self.by_share, by_share])
        self.by_whole = np.concatenate([self.by_whole, by_whole])
        self._share_rows = self.by_share.reshape(-1, self.cpu_classes)
        self._whole_rows = self.by_whole.reshape(-1, self.cpu_classes)
        return kind

    def _tables(self, percents: IntArray) -> tuple[IntArray, IntArray]:
        """Return `by_share` and `by_whole` for what typical Pods ask per card, at [kind, Pod]."""
        kinds, classes = len(percents), self.cpu_classes
        by_share: IntArray = np.zeros((kinds, SHARES, classes), dtype=np.int64)
        by_whole: IntArray = np.zeros((kinds, self._arrays.gpus.width + 1, classes), dtype=np.int64)
        for position, (pod, count) in enumerate(self._typical):
            self._enter(pod, count, percents[:, position], by_share, by_whole)
        by_whole[:, :, 0] = IMPOSSIBLE
        return by_share, by_whole

    def cpu_class(self, cpu_milli: IntArray) -> IntArray:
        """Return the cpu class of each amount of free cpu; 0 below zero."""
        classes: IntArray = self._ladder.searchsorted(cpu_milli, side="right")
        return classes

    def cpu_class_of(self, cpu_milli: int) -> int:
        """Return the cpu class of one amount of free cpu."""
        return bisect_right(self._ladder_list, cpu_milli)

    def refresh(self) -> None:
        """Catch up on the nodes that changed."""
        log = self._arrays.log
        if self._seen == log.position:
            return
        nodes = log.since(self._seen)
        if nodes is None or len(nodes) > len(self._arrays):
            self._renew(self._arrays.everything)
        elif len(nodes) == 1:
            self._renew_one(nodes.item(0))
        else:
            self._renew(nodes)
        self._seen = log.position

    def percent(self) -> float:
        """Return the fragmentation of the cluster, in percent of all its GPU."""
        self.refresh()
        idle = int(self._arrays.gpus.left_total.sum())
        whole = self.weight * int(self._arrays.gpus.count.sum()) * WHOLE_PERCENT
        lost = self.weight * idle - int(self.usable_now.sum())
        return 100 * lost / whole if whole else 0.0

    def usable_of(self, nodes: IntArray, cpu_class: IntArray, left: IntArray) -> IntArray:
        """Return what nodes would be worth with this cpu class and these percents left."""
        classes = self.cpu_classes
        at = (self._share_start.take(nodes)[:, None] + left) * classes + cpu_class[:, None]
        whole = np.count_nonzero(left == WHOLE_PERCENT, axis=1)
        total: IntArray = self._share_rows.take(at).sum(axis=1)
        total += self._whole_rows.take(
            (self._whole_start.take(nodes) + whole) * classes + cpu_class
        )
        for odd in self.odd:
            total += np.where(cpu_class >= odd.cpu_class, self._odd_worth(odd, nodes, left), 0)
        return total

    def _renew(self, nodes: IntArray) -> None:
        gpus = self._arrays.gpus
        left = gpus.left.take(nodes, axis=0)
        at = left + self._share_start.take(nodes)[:, None]
        worth = np.add.reduce(self._share_rows.take(at, axis=0), axis=1)
        worth += self._whole_rows.take(
            self._whole_start.take(nodes) + gpus.whole.take(nodes), axis=0
        )
        for odd in self.odd:
            worth[:, odd.cpu_class :] += self._odd_worth(odd, nodes, left)[:, None]
        self.usable[nodes] = worth
        classes = np.maximum(self.cpu_class(self._arrays.cpu_free.take(nodes)), 1)
        self.usable_now[nodes] = self.usable.take(nodes * self.cpu_classes + classes)

    def _renew_one(self, node: int) -> None:
        """Do what `_renew` does, with fewer steps: after most decisions one node has changed."""
        gpus = self._arrays.gpus
        if self.odd:
            self._renew(self._arrays.everything[node : node + 1])
            return
        at = gpus.left[node] + self._share_start.item(node)
        worth = np.add.reduce(self._share_rows.take(at, axis=0), axis=0)
        worth += self._whole_rows[self._whole_start.item(node) + gpus.whole.item(node)]
        self.usable[node] = worth
        cpu_class = self.cpu_class_of(self._arrays.cpu_free.item(node))
        self.usable_now[node] = worth.item(max(cpu_class, 1))

    def _odd_worth(self, odd: _Odd, nodes: IntArray, left: IntArray) -> IntArray:
        fitting = left >= odd.percent_by_kind.take(self.kinds.take(nodes))[:, None]
        enough = np.count_nonzero(fitting, axis=1) >= odd.gpu_count
        worth: IntArray = np.where(enough, (left * fitting).sum(axis=1), 0) * odd.weight
        return worth

    def _enter(
        self,
        pod: TypicalPod,
        weight: int,
        percents: IntArray,
        by_share: IntArray,
        by_whole: IntArray,
    ) -> None:
        """Enter one typical Pod; `percents` it asks per card, by kind, too large = can't run."""
        cpu_class = int(self._ladder.searchsorted(pod.cpu_milli, side="right"))
        shares = np.arange(SHARES)
        if pod.gpu_count == 1:
            usable = np.where(shares >= percents[:, None], shares, 0) * weight
            by_share[:, :, cpu_class:] += usable[:, :, None]
        elif (percents >= WHOLE_PERCENT).all():
            cards = np.arange(by_whole.shape[1])
            runs = (cards >= pod.gpu_count) & (percents == WHOLE_PERCENT)[:, None]
            worth = np.where(runs, cards * WHOLE_PERCENT, 0) * weight
            by_whole[:, :, cpu_class:] += worth[:, :, None]
        else:
            self.odd.append(
                _Odd(
                    cpu_class=cpu_class,
                    percent_by_kind=percents,
                    gpu_count=pod.gpu_count,
                    weight=weight,
                )
            )


class AskedPercents:
    """The percent that each typical Pod asks of a node's cards, 101 = it can't run there."""

    def __init__(
        self, arrays: NodeArrays, predicates: Predicates, pods: Sequence[TypicalPod]
    ) -> None:
        self._arrays = arrays
        self._predicates = predicates
        needs = [_need(pod) for pod in pods]
        self._needs = list(dict.fromkeys(needs))
        self._need_of: IntArray = np.array([*map(self._needs.index, needs)], dtype=np.int64)
        self._percent = np.array([pod.gpu_percent for pod in pods], dtype=np.int64)
        self._last: tuple[int, int, IntArray] = (-1, -1, self._need_of)
        self._bytes = np.array([pod.gpu_memory_bytes for pod in pods], dtype=np.int64)

    def everywhere(self) -> IntArray:
        """Return the percents at [node, Pod]."""
        smallest = self._smallest(self._arrays.everything)
        asked: IntArray = np.empty((len(smallest), len(self._need_of)), dtype=np.int64)
        for pod, need in enumerate(self._need_of.tolist()):
            admits = self._predicates.verdict(self._needs[need]).admits
            percent = self._percents(smallest, pod)
            asked[:, pod] = percent if admits is None else np.where(admits, percent, SHARES)
        return asked

    def on(self, node: int) -> IntArray:
        """Return the percents on one node, by Pod."""
        if self._last[:2] == (node, self._arrays.facts.position):
            return self._last[2]
        reasons = [self._predicates.reason(need, node) for need in self._needs]
        admits = np.array([reason is None for reason in reasons], dtype=np.bool_)
        percents = self._percents(self._smallest(self._arrays.everything[node : node + 1]))
        asked: IntArray = np.where(admits[self._need_of], percents, SHARES)
        self._last = node, self._arrays.facts.position, asked
        return asked

    def _smallest(self, nodes: IntArray) -> IntArray:
        gpus = self._arrays.gpus
        present, caps = gpus.present.take(nodes, axis=0), gpus.memory_cap.take(nodes, axis=0)
        smallest: IntArray = np.where(present, caps, np.iinfo(np.int64).max).min(axis=1)
        return smallest

    def _percents(self, smallest: IntArray, pod: int | slice = slice(None)) -> IntArray:
        by_bytes = -(-self._bytes[pod] * WHOLE_PERCENT // np.maximum(smallest, 1))
        percents: IntArray = np.maximum(self._percent[pod], np.minimum(by_bytes, SHARES))
        return percents


def _need(pod: TypicalPod) -> StaticNeed:
    return StaticNeed(placement=pod.placement, device_types=(GPU,), model_names=(pod.model_names,))


def _distinct(asked: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct rows, at least one, and which of them each row is."""
    if asked.size == 0:
        return np.zeros((1, asked.shape[1]), dtype=np.int64), np.zeros(len(asked), dtype=np.int64)
    rows, kinds = np.unique(asked, axis=0, return_inverse=True)
    return rows, kinds.reshape(-1).astype(np.int64)
