"""The cluster as pools of like nodes, and what a Pod costs in each by what is scarce."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Final, TypeAlias

import numpy as np

from ledger.domain.devices import GPU, WHOLE_PERCENT
from ledger.domain.log.workload import Workload
from ledger.domain.request.requests import DeviceDemand, PlacementRules
from scheduler.decide.filter.predicates import Predicates
from scheduler.decide.nodes.arrays import BoolArray, IntArray, with_rows
from scheduler.decide.nodes.node_arrays import ABSENT, NodeArrays
from scheduler.decide.score.fragmentation import AskedPercents, Fragmentation
from scheduler.decide.score.market import CORE_STEPS, GPU_STEPS, Asks, Market, Prices
from scheduler.decide.shapes import Shape, StaticNeed

_POOLS_MAX: Final = 64
_PODS_MAX: Final = 128
_KNOWN_MAX: Final = 512
_SHAPES_MAX: Final = 4096
_CPU_MAX: Final = 1 << 40  # milli; nodes without a limit count as that much
_CORE: Final = 1000
_MILLI_MAX: Final = 1 << 20
_MARKETS_MAX: Final = 16
_TOLL_MAX: Final = 10 * WHOLE_PERCENT

_Priced: TypeAlias = OrderedDict[tuple[tuple[int, int], ...], Prices]
_Like: TypeAlias = tuple[int, int]
"""The kind of a node, and its milli of cpu per card by half octaves; -1 without cards."""


class PoolPrices:
    """
    What each pool charges a Pod for what others will need there.

    Rule: docs/adr/0009, "Prices".

    A pool is a set of nodes that the same typical Pods may use and that have about as much cpu
    per card. Prices are a function of the idle GPUs and the free cores of each pool, both in steps
    of half an octave, and of nothing else: whatever led there, the same state has the same prices.
    With more than 64 kinds of node nothing is charged.
    """

    def __init__(
        self, arrays: NodeArrays, predicates: Predicates, measure: Fragmentation, workload: Workload
    ) -> None:
        self._arrays = arrays
        self._predicates = predicates
        self._measure = measure
        self._weight = measure.weight
        self._pods = workload.pods[:_PODS_MAX]
        self._pod_counts = workload.counts[:_PODS_MAX]
        self._asked = AskedPercents(arrays, predicates, self._pods)
        self._gpus: IntArray = np.array([pod.gpu_count for pod in self._pods], dtype=np.int64)
        self._version = 0
        self._markets: OrderedDict[tuple[bytes, bytes], tuple[Market, _Priced]] = OrderedDict()
        self._build()

    def put(self, node: int) -> None:
        """Take a node as it is now, after predicates and the measure did."""
        like = self._like(node)
        before = self._likes.pop(node, None)
        if before is not None:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
        if like is not None:
            self._likes[node] = like
            self._counts[like] += 1
        is_other = (self._measure.renewals, self._with_cpu(), self._charges()) != self._built_for
        if is_other or len(self._numbers) > 2 * _POOLS_MAX:
            self._build()
        elif self._on:
            self._move(node)

    def _build(self) -> None:
        """Find the pools of all nodes, and what typical Pods ask of each."""
        rows = range(len(self._arrays))
        likes = {node: self._like(node) for node in rows}
        self._likes = {node: like for node, like in likes.items() if like is not None}
        self._counts: Counter[_Like] = Counter(self._likes.values())
        self._on = self._charges()
        self._built_for = self._measure.renewals, self._with_cpu(), self._on
        self._numbers: dict[_Like, int] = {}
        self._by_kind: dict[int, IntArray] = {}
        self._pool_of = [self._number(node) for node in rows] if self._on else []
        self._pools: IntArray = np.array(self._pool_of, dtype=np.int64)
        self._card_bytes: IntArray = np.zeros(0, dtype=np.int64)
        self._ask: IntArray = np.zeros((len(self._gpus), 0), dtype=np.int64)
        self._allowed: BoolArray = np.zeros((len(self._gpus), 0), dtype=np.bool_)
        for pool in range(len(self._numbers)):
            self._describe(pool)
        self._seen = -1
        self._idle_of: list[int] = []
        self._cpu_of: list[int] = []
        self._idle: list[int] = []
        self._cpu: list[int] = []
        self._trade()

    def _trade(self) -> None:
        """Find prices anew, for Pods ask otherwise of the pools now; what was found is kept."""
        count = len(self._numbers)
        key = self._ask.tobytes(), self._allowed.tobytes()
        known = self._markets.pop(key, None)
        if known is None:
            asks = Asks(
                cpu_milli=[pod.cpu_milli for pod in self._pods],
                gpu_percent=self._ask.copy(),
                allowed=self._allowed.copy(),
            )
            known = Market(asks, self._pod_counts), OrderedDict()
        self._market, self._known = self._markets[key] = known
        if len(self._markets) > _MARKETS_MAX:
            self._markets.popitem(last=False)
        self._nothing: IntArray = np.zeros(count, dtype=np.int64)
        self._gpu_prices = self._core_prices = self._nothing
        self._prices = Prices(gpu=(0,) * count, core=(0,) * count)
        self._picture = [(-1, -1)] * count
        self._pool_prices: dict[Shape, IntArray] = {}
        self._version += 1
        self._stale = set(range(count))
        self._idle += [0] * (count - len(self._idle))
        self._cpu += [0] * (count - len(self._cpu))

    def _like(self, node: int) -> _Like | None:
        """Return what nodes of one pool have in common: the kind, about as much cpu per card."""
        if self._arrays.nodes[node] is ABSENT:
            return None
        cards = self._arrays.gpus.count.item(node)
        cpu = min(max(self._arrays.cpu_cap.item(node), 0), _CPU_MAX)
        return self._measure.kinds.item(node), _coarse(cpu // cards, _CORE) if cards else -1

    def _with_cpu(self) -> bool:
        """Tell whether cpu tells pools apart; not where that makes too many."""
        return len(self._counts) <= _POOLS_MAX

    def _charges(self) -> bool:
        likes = self._counts if self._with_cpu() else {_without_cpu(like) for like in self._counts}
        return 1 < len(likes) <= _POOLS_MAX and self._weight > 0

    def _number(self, node: int) -> int:
        """Return the pool of a node, -1 where no node is."""
        like = self._likes.get(node)
        if like is None:
            return -1
        like = like if self._with_cpu() else _without_cpu(like)
        return self._numbers.setdefault(like, len(self._numbers))

    def _move(self, node: int) -> None:
        """Bring the pools that a node was and is in up to date."""
        if node == len(self._pool_of):
            self._pool_of.append(-1)
            self._pools = with_rows(self._pools, node + 1)
        before, after = self._pool_of[node], self._number(node)
        self._pool_of[node] = self._pools[node] = after
        if self._seen >= 0:
            self._forget_counted(node, before)
        changed = [self._describe(pool) for pool in sorted({before, after} - {-1})]
        if any(changed):
            self._trade()

    def _forget_counted(self, node: int, pool: int) -> None:
        """Take what was counted of a node out of its pool."""
        for of_pool, of_node in ((self._idle, self._idle_of), (self._cpu, self._cpu_of)):
            if node == len(of_node):
                of_node.append(0)
            of_pool[pool] -= of_node[node]
            of_node[node] = 0
        self._stale.add(pool)

    def _describe(self, pool: int) -> bool:
        """Work out what typical Pods ask of a pool; tell whether that is other than it was."""
        nodes = np.flatnonzero(self._pools == pool)
        gpus, asked, allowed = self._arrays.gpus, self._gpus * 0, self._gpus < 0
        card_bytes = 0
        if len(nodes):
            percents = self._percents_on(int(nodes[0]))
            asked, allowed = percents * self._gpus, percents <= WHOLE_PERCENT
            allowed[self._gpus == 0] = self._may_use(nodes)
            caps = gpus.memory_cap[nodes[0]][gpus.present[nodes[0]]]
            card_bytes = int(caps.min(initial=1 << 62))
        is_new = pool == len(self._card_bytes)
        if is_new:
            self._card_bytes = np.append(self._card_bytes, 0)
            self._ask = np.pad(self._ask, ((0, 0), (0, 1)))
            self._allowed = np.pad(self._allowed, ((0, 0), (0, 1)))
        changed = (
            is_new
            or self._card_bytes[pool] != card_bytes
            or not np.array_equal(self._ask[:, pool], asked)
            or not np.array_equal(self._allowed[:, pool], allowed)
        )
        self._card_bytes[pool] = card_bytes
        self._ask[:, pool] = asked
        self._allowed[:, pool] = allowed
        return changed

    def _percents_on(self, node: int) -> IntArray:
        """Return what Pods ask of a node's cards, which is the same on all nodes of its kind."""
        kind = self._measure.kinds.item(node)
        known = self._by_kind.get(kind)
        if known is None:
            known = self._by_kind[kind] = self._asked.on(node)
        return known

    def _may_use(self, nodes: IntArray) -> list[bool]:
        """Tell which Pods without GPUs may use one of these nodes, in their order."""
        found: dict[PlacementRules, bool] = {}
        for pod in self._pods:
            if not pod.gpu_count and pod.placement not in found:
                need = StaticNeed(placement=pod.placement)
                admits = self._predicates.verdict(need).admits
                found[pod.placement] = admits is None or bool(admits.take(nodes).any())
        return [found[pod.placement] for pod in self._pods if not pod.gpu_count]

    def version(self) -> int:
        """Return a number that changes with the prices."""
        self._refresh()
        return self._version

    def prices(self) -> Prices:
        """Return the prices as of now."""
        self._refresh()
        return self._prices

    def toll(self, shape: Shape, nodes: IntArray) -> IntArray | int:
        """Return what the Pod costs on each node, in percent of a card x Pods seen."""
        self._refresh()
        if not self._on:
            return 0
        pool_prices = self._pool_prices.get(shape)
        if pool_prices is None:
            if len(self._pool_prices) >= _SHAPES_MAX:
                self._pool_prices.clear()
            pool_prices = self._pool_prices[shape] = self._toll_by_pool(shape)
        charged: IntArray = pool_prices.take(self._pools.take(nodes))
        return charged

    def _toll_by_pool(self, shape: Shape) -> IntArray:
        gpu = sum([_percents(demand, self._card_bytes) for demand in shape.demands], self._nothing)
        toll = self._gpu_prices * gpu * self._weight // GPU_STEPS
        cpu_milli = min(shape.cpu_milli, _MILLI_MAX)
        toll += self._core_prices * cpu_milli * self._weight // (10 * CORE_STEPS)
        pool_prices: IntArray = np.minimum(toll, _TOLL_MAX * self._weight)
        return pool_prices

    def _refresh(self) -> None:
        """Catch up on the nodes that changed; find new prices where the picture is another."""
        log = self._arrays.log
        if self._seen == log.position or not self._on:
            return
        nodes = None if self._seen < 0 else log.since(self._seen)
        if nodes is None or len(nodes) > len(self._arrays):
            pools = self._count_all()
        else:
            pools = self._stale | {self._count(node) for node in nodes.tolist()}
        self._stale = set()
        self._seen = log.position
        changed = False
        for pool in pools:
            seen = _coarse(self._idle[pool], WHOLE_PERCENT), _coarse(self._cpu[pool], _CORE)
            if seen != self._picture[pool]:
                self._picture[pool], changed = seen, True
        if changed:
            self._charge(self._priced(tuple(self._picture)))

    def _charge(self, prices: Prices) -> None:
        if prices != self._prices:
            self._prices = prices
            self._gpu_prices = np.array(prices.gpu, dtype=np.int64)
            self._core_prices = np.array(prices.core, dtype=np.int64)
            self._version += 1
            self._pool_prices.clear()

    def _priced(self, picture: tuple[tuple[int, int], ...]) -> Prices:
        known = self._known.get(picture)
        if known is None:
            known = self._market.prices([idle for idle, _ in picture], [cpu for _, cpu in picture])
            self._known[picture] = known
            if len(self._known) > _KNOWN_MAX:
                self._known.popitem(last=False)
        return known

    def _count_all(self) -> Iterable[int]:
        """Count every node; return the pools to look at."""
        arrays, count = self._arrays, len(self._card_bytes)
        self._idle_of = arrays.gpus.left_total.tolist()
        self._cpu_of = np.clip(arrays.cpu_free, 0, _CPU_MAX).tolist()
        self._idle = [0] * count
        self._cpu = [0] * count
        for pool, idle, cpu in zip(self._pool_of, self._idle_of, self._cpu_of, strict=True):
            self._idle[pool] += idle
            self._cpu[pool] += cpu
        return range(count)

    def _count(self, node: int) -> int:
        arrays, pool = self._arrays, self._pool_of[node]
        idle = arrays.gpus.left_total.item(node)
        cpu = min(max(arrays.cpu_free.item(node), 0), _CPU_MAX)
        self._idle[pool] += idle - self._idle_of[node]
        self._cpu[pool] += cpu - self._cpu_of[node]
        self._idle_of[node], self._cpu_of[node] = idle, cpu
        return pool


def _without_cpu(like: _Like) -> _Like:
    kind, per_card = like
    return kind, min(per_card, 0)


def _percents(demand: DeviceDemand, card_bytes: IntArray) -> IntArray | int:
    """Return the percent of cards of these sizes that a demand takes, all its cards together."""
    if demand.device_type != GPU:
        return 0
    percent: IntArray | int = max(demand.core_percent, demand.memory_ratio_percent)
    if demand.exclusive:
        percent = WHOLE_PERCENT
    elif demand.memory_bytes:
        by_bytes = -(-demand.memory_bytes * WHOLE_PERCENT // np.maximum(card_bytes, 1))
        percent = np.minimum(np.maximum(percent, by_bytes), WHOLE_PERCENT)
    return demand.count * percent


def _coarse(amount: int, unit: int) -> int:
    """Return the middle of the half octave of units that an amount is in; 0 below one unit."""
    if amount < unit:
        return 0
    octave = unit << (amount // unit).bit_length() - 1
    return octave * 7 // 4 if 2 * amount >= 3 * octave else octave * 5 // 4
