"""`fgd`: each Pod where it costs typical Pods the least, the next one or those that follow it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ledger.domain.devices import GPU, WHOLE_PERCENT
from ledger.domain.request.requests import DeviceDemand
from scheduler.decide.filter.fitting import Fitting
from scheduler.decide.nodes.arrays import IMPOSSIBLE, BoolArray, IntArray
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.score.fragmentation import SHARES, Fragmentation
from scheduler.decide.score.pools import PoolPrices
from scheduler.decide.shapes import Shape

ARRIVALS: Final = 50
"""How many Pods a card can wait for. With 1 only the next one counts, as in the FGD paper."""

_FINE_BITS: Final = 16


class ExpectedFill(Fragmentation):
    """
    Fragmentation that looks further: the percent of a card that the next Pods will fill.

    Rule: docs/adr/0009, "Expected fill". Only the worth of a single card
    differs: instead of all that is left where the next typical Pod fits, it is what `ARRIVALS`
    Pods drawn from the typical ones are expected to fill of it, each taken where that is better
    than to wait.
    """

    def _tables(self, percents: IntArray) -> tuple[IntArray, IntArray]:
        by_share, by_whole = super()._tables(percents)
        if not self.weight:
            return by_share, by_whole
        kinds, classes = len(percents), self.cpu_classes
        often: dict[int, IntArray] = {}
        for position, (pod, count) in enumerate(self._typical):
            cpu_class = int(self.cpu_class(np.array(pod.cpu_milli, dtype=np.int64)))
            for kind in range(kinds) if pod.gpu_count == 1 else ():
                percent = int(percents[kind, position])
                if 0 < percent <= WHOLE_PERCENT:
                    counts = often.setdefault(percent, np.zeros((kinds, classes), dtype=np.int64))
                    counts[kind, cpu_class:] += count
        filled = expected_fill(often, self.weight, (kinds, classes))
        return np.ascontiguousarray(filled.transpose(0, 2, 1)), by_whole


def expected_fill(
    often: Mapping[int, IntArray],
    weight: int,
    shape: tuple[int, int],
    *,
    arrivals: int = ARRIVALS,
) -> IntArray:
    """
    Return percent x `weight` that will be filled, at [kind, cpu class, percent left].

    A card with room for k more arrivals: V(0, left) = 0, and V(k, left) = V(k - 1, left) + the sum
    over percents m of p(m) x max(0, m + V(k - 1, left - m) - V(k - 1, left)). In fixed point.

    Args:
        often: percent asked -> of `weight` Pods so many ask for it, at [kind, cpu class].
    """
    fill = np.zeros((*shape, SHARES), dtype=np.int64)
    for _ in range(arrivals):
        more = np.zeros_like(fill)
        for percent, counts in often.items():
            gain = fill[:, :, : SHARES - percent] - fill[:, :, percent:]
            gain += percent << _FINE_BITS
            np.maximum(gain, 0, out=gain)
            gain *= counts[:, :, None]
            more[:, :, percent:] += gain
        fill += more // weight
    filled: IntArray = fill * weight >> _FINE_BITS
    return filled


_TABLE_BYTES_MAX: Final = 64 << 20
_UNCHANGED: Final = 50


class Gradient:
    """
    The `fgd` policy, fragmentation gradient descent; with tolls `scarcity`.

    Rule: FGD paper, algorithm 1; the trace's documentation: the integer part of 100 x sigmoid((F
    before - F after) / 1000), F in thousandths of a card. An unchanged F is exactly 50. What a Pod
    pays on a node counts like fragmentation; cards are chosen without it (docs/adr/0009).

    A sharing Pod gets the card with the best score. Among equals `fgd` takes the lowest minor, as
    published; `scarcity` a card in use before an untouched one, the fuller of two that are worth
    just the same, then the lowest minor. Whole cards are the lowest untouched ones. What a
    placement takes of a card counts in percent, bytes rounded up.
    """

    reads_memory = False

    def __init__(
        self,
        arrays: NodeArrays,
        fitting: Fitting,
        fragmentation: Fragmentation,
        pool_prices: PoolPrices | None = None,
    ) -> None:
        self._arrays = arrays
        self._fitting = fitting
        self._measure = fragmentation
        self._pool_prices = pool_prices
        self._lowest_first = pool_prices is None  # as published
        self._steps = score_steps(max(fragmentation.weight, 1))
        self._bounds: list[int] = self._steps.tolist()
        self._gains: OrderedDict[tuple[int, int], IntArray] = OrderedDict()
        self._renewals = fragmentation.renewals
        self._tables_of = fragmentation.by_whole.shape
        self._tables_max = _tables_max(self._tables_of)

    def put(self, node: int) -> None:
        """Take a node as it is now, after predicates and the measure did."""
        measure = self._measure
        if (measure.renewals, measure.by_whole.shape) != (self._renewals, self._tables_of):
            self._renewals, self._tables_of = measure.renewals, measure.by_whole.shape
            self._tables_max = _tables_max(self._tables_of)
            self._gains.clear()
        if self._pool_prices is not None:
            self._pool_prices.put(node)

    def rate(self, shape: Shape, nodes: IntArray) -> IntArray:
        """Return 0 to 99, 50 for an unchanged fragmentation; -1 where the shape won't fit."""
        measure = self._measure
        if not measure.weight:  # without typical Pods every node that fits is as good
            return np.where(self._fitting.feasible(shape, nodes), _UNCHANGED, -1)
        measure.refresh()
        cpu_class = self._cpu_class(shape, nodes)
        if not self._has_table(shape):
            gain = self._searched(shape, nodes, cpu_class)
        else:
            gain = measure.usable.take(nodes * measure.cpu_classes + cpu_class)
            if shape.plain_percent == WHOLE_PERCENT:
                gain += self._whole_gain(shape.plain_count, nodes, cpu_class)
            elif shape.plain_percent:
                gain += self._card_gains(shape, nodes, cpu_class).max(axis=1)
        gain -= measure.usable_now.take(nodes)
        if self._pool_prices is not None:
            gain -= self._pool_prices.toll(shape, nodes)
        return self._score(gain)

    def version(self) -> int:
        """Return a number that grows when prices change, without them 0."""
        return 0 if self._pool_prices is None else self._pool_prices.version()

    def card(self, shape: Shape, node: int) -> int | None:
        """Return the column of the best card for a Pod that asks for a part of one GPU."""
        demand = _part_of_one(shape)
        if demand is None or not self._measure.weight:
            return None  # without typical Pods every card is as good
        self._measure.refresh()
        if self._has_table(shape):
            return self._card_by_table(shape, node)
        nodes = self._arrays.everything[node : node + 1]
        worth = self._worth_by_card(demand, shape, nodes, self._cpu_class(shape, nodes))[0]
        scores = self._score(worth - self._measure.usable_now.item(node))
        return self._first(node, worth.tolist(), np.flatnonzero(scores == scores.max()).tolist())

    def _card_by_table(self, shape: Shape, node: int) -> int:
        """Return the card of the best score; on one node plain numbers are quicker."""
        measure, gpus = self._measure, self._arrays.gpus
        cpu_free = self._arrays.cpu_free.item(node)
        cpu_class = measure.cpu_class_of(max(cpu_free - shape.cpu_milli, 0))
        table = self._table(shape.plain_percent, 1)
        row = table[measure.kinds.item(node), cpu_class, gpus.whole.item(node)]
        gains = [row.item(share) for share in gpus.left[node].tolist()]
        base = measure.usable.item(node, cpu_class) - measure.usable_now.item(node)
        score = bisect_right(self._bounds, base + max(gains)) - 1
        least = self._bounds[score] - base
        alike = [column for column, gain in enumerate(gains) if gain >= least]
        return self._first(node, gains, alike)

    def _first(self, node: int, gains: Sequence[int], alike: Sequence[int]) -> int:
        """
        Return which of the cards of the best score is taken.

        Rule: Koordinator contract 8.2 and 8.4; docs/adr/0009, "Cards of one score".
        """
        if self._lowest_first or len(alike) == 1:
            return alike[0]
        left = self._arrays.gpus.left[node].tolist()
        first = next((column for column in alike if left[column] < WHOLE_PERCENT), alike[0])
        same = [column for column in alike if gains[column] == gains[first]]
        return min(same, key=left.__getitem__)

    def _cpu_class(self, shape: Shape, nodes: IntArray) -> IntArray:
        """Return the cpu class after placement; a Pod that asks for no cpu always has one."""
        cpu_milli = self._arrays.cpu_free.take(nodes)
        if shape.cpu_milli:
            cpu_milli -= shape.cpu_milli
        else:
            np.maximum(cpu_milli, 0, out=cpu_milli)
        return self._measure.cpu_class(cpu_milli)

    def _score(self, gain: IntArray) -> IntArray:
        score: IntArray = self._steps.searchsorted(gain, side="right")
        score -= 1
        return score

    def _has_table(self, shape: Shape) -> bool:
        """Tell whether the gain of a shape can be read from a table over single cards."""
        one_kind = shape.plain_percent in {0, WHOLE_PERCENT} or shape.plain_count == 1
        tells_all = shape.is_plain and one_kind and not shape.extended
        return tells_all and not self._measure.odd and self._tables_max > 0

    def _card_gains(self, shape: Shape, nodes: IntArray, cpu_class: IntArray) -> IntArray:
        """Return how F falls when each card takes the share, less what the cpu changes."""
        table = self._table(shape.plain_percent, 1)
        gpus = self._arrays.gpus
        kinds, classes, cards, _ = table.shape
        start = gpus.whole.take(nodes)
        start += cpu_class * cards
        if kinds > 1:
            start += self._measure.kinds.take(nodes) * (classes * cards)
        start *= SHARES
        at = gpus.left.take(nodes, axis=0)
        at += start[:, None]
        gains: IntArray = table.take(at)
        return gains

    def _whole_gain(self, count: int, nodes: IntArray, cpu_class: IntArray) -> IntArray:
        """Return how F falls when untouched cards are taken, less what the cpu changes."""
        table = self._table(WHOLE_PERCENT, count)
        kinds, classes, cards, _ = table.shape
        at = self._arrays.gpus.whole.take(nodes)
        at += cpu_class * cards
        if kinds > 1:
            at += self._measure.kinds.take(nodes) * (classes * cards)
        gains: IntArray = table.take(at)
        return gains

    def _table(self, percent: int, count: int) -> IntArray:
        """
        Return the gain of taking `percent` of a card, or `count` whole ones.

        At [kind, cpu class, untouched cards of the node, percent left on the card]; the last
        axis has one entry for whole cards, which are alike.
        """
        key = (percent, count)
        table = self._gains.get(key)
        if table is None:
            table = self._whole_table(count) if percent == WHOLE_PERCENT else self._tables(percent)
            self._gains[key] = table
            if len(self._gains) > self._tables_max:
                self._gains.popitem(last=False)
        return table

    def _tables(self, percent: int) -> IntArray:
        share = self._measure.by_share.transpose(0, 2, 1)  # [kind, cpu class, left]
        whole = self._measure.by_whole.transpose(0, 2, 1)  # [kind, cpu class, untouched]
        kinds, classes, cards = whole.shape
        table = np.full((kinds, classes, cards, SHARES), IMPOSSIBLE, dtype=np.int64)
        change = share[:, :, : SHARES - percent] - share[:, :, percent:]
        change += percent * self._measure.weight  # that much less is idle
        table[:, :, :, percent:] = change[:, :, None, :]
        table[:, :, 1:, WHOLE_PERCENT] += whole[:, :, :-1] - whole[:, :, 1:]
        table[:, 0] = IMPOSSIBLE
        return table

    def _whole_table(self, count: int) -> IntArray:
        share = self._measure.by_share.transpose(0, 2, 1)
        whole = self._measure.by_whole.transpose(0, 2, 1)
        table = np.full((*whole.shape, 1), IMPOSSIBLE, dtype=np.int64)
        if count < whole.shape[2]:
            taken = WHOLE_PERCENT * self._measure.weight - share[:, :, WHOLE_PERCENT, None]
            change = whole[:, :, :-count] - whole[:, :, count:]
            table[:, :, count:, 0] = change + count * taken
        table[:, 0] = IMPOSSIBLE
        return table

    def _searched(self, shape: Shape, nodes: IntArray, cpu_class: IntArray) -> IntArray:
        part = _part_of_one(shape)
        if part is not None:
            worth = self._worth_by_card(part, shape, nodes, cpu_class).max(axis=1)
        else:
            before = self._arrays.gpus.left.take(nodes, axis=0)
            left = before
            for demand in shape.demands:
                if demand.device_type == GPU:
                    left = self._after(demand, shape, nodes, left)
            worth = self._worth(nodes, cpu_class, left, before)
        return np.where(self._fitting.feasible(shape, nodes), worth, IMPOSSIBLE)

    def _worth_by_card(
        self, demand: DeviceDemand, shape: Shape, nodes: IntArray, cpu_class: IntArray
    ) -> IntArray:
        """Return what `_worth` is when each card takes the share, at [node, card]."""
        fit = self._fitting.cards(demand, nodes, shape.dialect)
        before = self._arrays.gpus.left.take(nodes, axis=0)
        after = np.maximum(before - self._asked(demand, nodes), 0)
        worths = np.full(fit.shape, IMPOSSIBLE, dtype=np.int64)
        for column in range(fit.shape[1]):
            left = before.copy()
            left[:, column] = after[:, column]
            worth = self._worth(nodes, cpu_class, left, before)
            worths[:, column] = np.where(fit[:, column], worth, IMPOSSIBLE)
        return worths

    def _worth(
        self, nodes: IntArray, cpu_class: IntArray, left: IntArray, before: IntArray
    ) -> IntArray:
        worth = self._measure.usable_of(nodes, cpu_class, left)
        worth += (before - left).sum(axis=1) * self._measure.weight
        return worth

    def _after(
        self, demand: DeviceDemand, shape: Shape, nodes: IntArray, left: IntArray
    ) -> IntArray:
        """Take the demand from the fullest cards that fit, the lowest minors among equals."""
        fit: BoolArray = self._fitting.cards(demand, nodes, shape.dialect)
        asked = self._asked(demand, nodes)
        fit &= left >= np.minimum(asked, WHOLE_PERCENT)
        order = np.argsort(np.where(fit, left, SHARES), axis=1, kind="stable")
        taken = np.zeros(left.shape, dtype=np.bool_)
        np.put_along_axis(taken, order[:, : demand.count], values=True, axis=1)
        return np.where(taken & fit, np.maximum(left - asked, 0), left)

    def _asked(self, demand: DeviceDemand, nodes: IntArray) -> IntArray:
        caps = self._arrays.gpus.memory_cap.take(nodes, axis=0)
        percent = max(demand.core_percent, demand.memory_ratio_percent)
        if demand.exclusive:
            percent = WHOLE_PERCENT
        by_bytes = -(-demand.memory_bytes * WHOLE_PERCENT // np.maximum(caps, 1))
        asked: IntArray = np.maximum(np.where(caps > 0, by_bytes, 0), percent)
        return asked


def _tables_max(shape: tuple[int, ...]) -> int:
    """Return how many tables are kept for so many kinds, cards and cpu classes."""
    return _TABLE_BYTES_MAX // (8 * math.prod(shape) * SHARES)


def _part_of_one(shape: Shape) -> DeviceDemand | None:
    demands = [demand for demand in shape.demands if demand.device_type == GPU]
    if len(demands) != 1 or demands[0].count != 1 or demands[0].exclusive:
        return None
    return demands[0]


def score_steps(weight: int) -> IntArray:
    """
    Return the least gain for each score, 0 to 99; below the first nothing fits.

    A gain g is (F before - F after) in percent of a card x `weight`, so 1000 thousandths are 100
    x weight. Score s needs sigmoid(g / (100 x weight)) >= s / 100; the bound is irrational but
    for s = 50, where it is 0 exactly.
    """
    bounds = [math.ceil(100 * weight * math.log(score / (100 - score))) for score in range(1, 100)]
    return np.array([IMPOSSIBLE // 2, *bounds], dtype=np.int64)
