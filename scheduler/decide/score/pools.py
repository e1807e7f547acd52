"""
The cluster as pools of like nodes, and what a Pod costs in each by what is scarce.

`Market` says what GPUs and cores of unlike nodes are worth, from what typical Pods ask and may use.

Worked example: two pools. Of two Pods that are seen equally often, both ask one GPU and 8 cores;
the first may use either pool, the second pool 0 alone.

>>> may = np.array([[True, True], [True, False]])
>>> market = Market(Asks(cpu_milli=[8000, 8000], gpu_percent=100 * may, allowed=may), [1, 1])

With 8 GPUs idle in each pool, pool 0 is asked for more than it has: a GPU costs 5/16 there. With 2
of them left it costs the most there is, 24/16; pool 1 is never short of anything, and a place there
is free.

>>> market.prices(idle=[800, 800], cpu_free=[128_000, 128_000]).gpu
(5, 0)
>>> market.prices(idle=[200, 800], cpu_free=[128_000, 128_000]).gpu
(24, 0)

With 16 cores free beside its 8 idle GPUs, pool 1 is short of cores: one costs 49/256 of a GPU.

>>> market.prices(idle=[800, 800], cpu_free=[128_000, 16_000]).core
(0, 49)
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from ledger.domain.devices import GPU, WHOLE_PERCENT
from ledger.domain.log.workload import Workload
from ledger.domain.request.requests import DeviceDemand, PlacementRules
from scheduler.decide.filter.predicates import Predicates
from scheduler.decide.nodes.arrays import BoolArray, IntArray, with_rows
from scheduler.decide.nodes.node_arrays import ABSENT, NodeArrays
from scheduler.decide.score.fragmentation import AskedPercents, Fragmentation
from scheduler.decide.shapes import Shape, StaticNeed

GPU_STEPS: Final = 16
"""A price of a GPU is a whole number of these parts of a GPU."""

CORE_STEPS: Final = 256
"""A price of a core is a whole number of these parts of a GPU."""

_ROUNDS: Final = 48
_KEPT: Final = 12  # the last rounds, whose mean is the price
_FIRST_STEP: Final = 0.1
_LAST_STEP: Final = 0.02
_CORE_STEP: Final = 0.1  # of the step of a GPU's price
_GPU_MAX: Final = 1.5
_CORE_MAX: Final = 0.3
_CORE_WORTH: Final = 0.02  # GPUs; what a Pod without GPUs would pay for a core
_LEAST_WORTH: Final = 0.05  # GPUs
_SPREAD: Final = 0.1  # of what a Pod would pay: at a price that much higher, 1/e as many go there

_BITS: Final = 16
_SHARE_BITS: Final = 20
_EXP_BITS: Final = 24
_EXP_STEPS: Final = 32
_EXP: Final[IntArray] = np.array(
    [int(math.exp(-step / _EXP_STEPS) * (1 << _EXP_BITS)) for step in range(17 * _EXP_STEPS)] + [0],
    dtype=np.int64,
)
_NOWHERE: Final = int(math.exp(-1 / _SPREAD) / 1000 * (1 << _EXP_BITS + _SHARE_BITS))
_MILLI_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """At [pool]: a whole GPU in `1/GPU_STEPS`, a core in `1/CORE_STEPS` of a GPU."""

    gpu: tuple[int, ...]
    core: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asks:
    """
    What typical Pods ask of pools of nodes.

    Attributes:
        cpu_milli: at [pod].
        gpu_percent: all cards together, at [pod, pool]; 0 for Pods without GPUs.
        allowed: at [pod, pool].
    """

    cpu_milli: Sequence[int]
    gpu_percent: IntArray
    allowed: BoolArray


class Market:
    """
    Finds the prices at which typical Pods, each going where it is cheapest, just fill each pool.

    Rule: docs/adr/0009, "Prices". As many Pods are expected as the idle
    GPUs can hold. Prices rise where more is asked than is free and fall where less is, a number
    of rounds; sums are of integers, so that the answer does not depend on their order.

    Args:
        counts: how often each Pod of `asks` was seen.
    """

    def __init__(self, asks: Asks, counts: Sequence[int]) -> None:
        total = max(sum(counts), 1)
        runs = asks.allowed.any(axis=1)
        self._weight: IntArray = np.array(
            [(count << _BITS) // total for count in counts], dtype=np.int64
        )[runs]
        self._allowed = asks.allowed[runs]
        self._gpu = asks.gpu_percent[runs] * self._allowed
        cpu = np.array([min(milli, _MILLI_MAX) for milli in asks.cpu_milli], dtype=np.int64)
        self._cpu: IntArray = cpu[runs][:, None]
        most = np.iinfo(np.int64).max
        least = np.where(self._allowed, self._gpu, most).min(axis=1, initial=most)
        self._asks_gpu: BoolArray = least > 0
        self._asked_percent = int((self._weight * np.where(least < most, least, 0)).sum())
        gpus, cores = self._gpu / 100, self._cpu / 1000
        worth = np.where(self._asks_gpu[:, None], gpus, _CORE_WORTH * cores)
        worth = np.maximum(worth, _LEAST_WORTH) * _SPREAD / _EXP_STEPS
        self._gpu_steps = gpus / worth
        self._core_steps = cores / worth

    def prices(self, idle: Sequence[int], cpu_free: Sequence[int]) -> Prices:
        """Return prices for so much idle GPU (percent of cards) and cpu (milli) in each pool."""
        pools = len(idle)
        if not self._asked_percent or not sum(idle):
            return Prices(gpu=(0,) * pools, core=(0,) * pools)
        shares = np.where(self._asks_gpu[:, None], _shares(idle), _shares(cpu_free))
        shares *= self._allowed
        pods = sum(idle) / self._asked_percent / (1 << _BITS)
        per_gpu = np.array([pods / amount if amount else 0.0 for amount in idle])
        per_core = np.array([pods / amount if amount else 0.0 for amount in cpu_free])
        gpu, core = np.zeros(pools), np.zeros(pools)
        gpu_sum, core_sum = np.zeros(pools), np.zeros(pools)
        for number in range(_ROUNDS):
            gpu_load, core_load = self._loads(shares, gpu, core)
            step = _FIRST_STEP - (_FIRST_STEP - _LAST_STEP) * number / _ROUNDS
            gpu += step * np.minimum(gpu_load * per_gpu - 1, 1)
            core += step * _CORE_STEP * np.minimum(core_load * per_core - 1, 1)
            np.clip(gpu, 0, _GPU_MAX, out=gpu)
            np.clip(core, 0, _CORE_MAX, out=core)
            if number >= _ROUNDS - _KEPT:
                gpu_sum += gpu
                core_sum += core
        return Prices(gpu=_rounded(gpu_sum, GPU_STEPS), core=_rounded(core_sum, CORE_STEPS))

    def _loads(
        self, shares: IntArray, gpu: np.ndarray, core: np.ndarray
    ) -> tuple[IntArray, IntArray]:
        """Return the GPU and the cpu that Pods ask of each pool at these prices."""
        dear = self._gpu_steps * gpu
        dear += self._core_steps * core
        np.minimum(dear, len(_EXP) - 1, out=dear)
        goes = shares * _EXP.take(dear.astype(np.int64))
        goes = (goes << _BITS) // (goes.sum(axis=1) + _NOWHERE)[:, None]
        goes *= self._weight[:, None]
        gpu_load: IntArray = (goes * self._gpu).sum(axis=0)
        core_load: IntArray = (goes * self._cpu).sum(axis=0)
        return gpu_load, core_load


def _shares(amounts: Sequence[int]) -> IntArray:
    total = max(sum(amounts), 1)
    return np.array([(amount << _SHARE_BITS) // total for amount in amounts], dtype=np.int64)


def _rounded(sums: np.ndarray, steps: int) -> tuple[int, ...]:
    return tuple(math.floor(each / _KEPT * steps + 0.5) for each in sums.tolist())


_POOLS_MAX: Final = 64
_PODS_MAX: Final = 128
_KNOWN_MAX: Final = 512
_SHAPES_MAX: Final = 4096
_CPU_MAX: Final = 1 << 40  # milli; nodes without a limit count as that much
_CORE: Final = 1000
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
        kind = self._measure.kinds.item(node)
        known = self._by_kind.get(kind)
        if known is None:
            known = self._by_kind[kind] = self._asked.on(node)
        return known

    def _may_use(self, nodes: IntArray) -> list[bool]:
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
