"""The cluster as pools of like nodes, and what a Pod costs in each by what is scarce."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from ledger.domain.devices import GPU, WHOLE_PERCENT
from ledger.domain.log.workload import TypicalPod, Workload
from ledger.domain.request.requests import DeviceDemand
from scheduler.decide.filter.predicates import Predicates
from scheduler.decide.nodes.arrays import IntArray
from scheduler.decide.nodes.fleet import Fleet
from scheduler.decide.score.fragmentation import Fragmentation, asked_percents
from scheduler.decide.score.market import CORE_STEPS, GPU_STEPS, Asks, Market, Prices
from scheduler.decide.shapes import Shape, StaticNeed

_POOLS_MAX: Final = 64
_PODS_MAX: Final = 128
_KNOWN_MAX: Final = 512
_SHAPES_MAX: Final = 4096
_CPU_MAX: Final = 1 << 40  # milli; nodes without a limit count as that much
_CORE: Final = 1000
_MILLI_MAX: Final = 1 << 20
_TOLL_MAX: Final = 10 * WHOLE_PERCENT


class Tolls:
    """
    What each pool charges a Pod for what others will need there.

    Rule: docs/adr/0009, "Prices".

    A pool is a set of nodes that the same typical Pods may use and that have about as much cpu
    per card. Prices are a function of the idle GPUs and the free cores of each pool, both in steps
    of half an octave, and of nothing else: whatever led there, the same state has the same prices.
    With more than 64 kinds of node nothing is charged.
    """

    def __init__(
        self, fleet: Fleet, predicates: Predicates, measure: Fragmentation, workload: Workload
    ) -> None:
        self._fleet = fleet
        self._weight = measure.weight
        self._pools, examples = _pools(fleet, measure.kinds)
        count = len(examples)
        self._on = 1 < count <= _POOLS_MAX and measure.weight > 0
        most = _PODS_MAX if self._on else 0
        pods, counts = workload.pods[:most], workload.counts[:most]
        asks = _asks(fleet, predicates, pods, pools=self._pools, examples=examples)
        self._market = Market(asks, counts)
        caps = np.where(fleet.gpus.present, fleet.gpus.memory_cap, 1 << 62)
        self._card_bytes: IntArray = caps[examples].min(axis=1)
        self._nothing: IntArray = np.zeros(count, dtype=np.int64)
        self._gpu_prices = self._core_prices = self._nothing
        self._prices = Prices(gpu=(0,) * count, core=(0,) * count)
        self._version = 0
        self._seen = -1
        self._picture = [(-1, -1)] * count
        self._known: OrderedDict[tuple[tuple[int, int], ...], Prices] = OrderedDict()
        self._tolls: dict[Shape, IntArray] = {}
        self._pool_of: list[int] = self._pools.tolist()
        self._idle_of: list[int] = []
        self._cpu_of: list[int] = []
        self._idle: list[int] = []
        self._cpu: list[int] = []

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
        tolls = self._tolls.get(shape)
        if tolls is None:
            if len(self._tolls) >= _SHAPES_MAX:
                self._tolls.clear()
            tolls = self._tolls[shape] = self._toll_by_pool(shape)
        charged: IntArray = tolls.take(self._pools.take(nodes))
        return charged

    def _toll_by_pool(self, shape: Shape) -> IntArray:
        gpu = sum([_percents(demand, self._card_bytes) for demand in shape.demands], self._nothing)
        toll = self._gpu_prices * gpu * self._weight // GPU_STEPS
        cpu_milli = min(shape.cpu_milli, _MILLI_MAX)
        toll += self._core_prices * cpu_milli * self._weight // (10 * CORE_STEPS)
        tolls: IntArray = np.minimum(toll, _TOLL_MAX * self._weight)
        return tolls

    def _refresh(self) -> None:
        """Catch up on the nodes that changed; find new prices where the picture is another."""
        log = self._fleet.log
        if self._seen == log.position or not self._on:
            return
        nodes = None if self._seen < 0 else log.since(self._seen)
        if nodes is None or len(nodes) > len(self._fleet):
            pools = self._count_all()
        else:
            pools = {self._count(node) for node in nodes.tolist()}
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
            self._tolls.clear()

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
        fleet, count = self._fleet, len(self._card_bytes)
        self._idle_of = fleet.gpus.left_total.tolist()
        self._cpu_of = np.clip(fleet.cpu_free, 0, _CPU_MAX).tolist()
        self._idle = [0] * count
        self._cpu = [0] * count
        for pool, idle, cpu in zip(self._pool_of, self._idle_of, self._cpu_of, strict=True):
            self._idle[pool] += idle
            self._cpu[pool] += cpu
        return range(count)

    def _count(self, node: int) -> int:
        """Count one node anew; return its pool."""
        fleet, pool = self._fleet, self._pool_of[node]
        idle = fleet.gpus.left_total.item(node)
        cpu = min(max(fleet.cpu_free.item(node), 0), _CPU_MAX)
        self._idle[pool] += idle - self._idle_of[node]
        self._cpu[pool] += cpu - self._cpu_of[node]
        self._idle_of[node], self._cpu_of[node] = idle, cpu
        return pool


def _pools(fleet: Fleet, kinds: IntArray) -> tuple[IntArray, IntArray]:
    """Return the pool of every node, and one node of each; without cpu where that is too many."""
    cards = fleet.gpus.present.sum(axis=1).tolist()
    caps = np.clip(fleet.cpu_cap, 0, _CPU_MAX).tolist()
    per_card = [
        _coarse(cap // count, _CORE) if count else -1
        for cap, count in zip(caps, cards, strict=True)
    ]
    bare = [-1 if each < 0 else 0 for each in per_card]
    for ratios in (per_card, bare):
        keys = np.stack([kinds, np.array(ratios, dtype=np.int64)], axis=1)
        _, examples, pools = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        if len(examples) <= _POOLS_MAX:
            break
    return pools.reshape(-1).astype(np.int64), examples.astype(np.int64)


def _asks(
    fleet: Fleet,
    predicates: Predicates,
    pods: Sequence[TypicalPod],
    *,
    pools: IntArray,
    examples: IntArray,
) -> Asks:
    """Return what typical Pods ask of each pool; a Pod without GPUs may use it if any node does."""
    percents = asked_percents(fleet, predicates, pods)[examples].T
    allowed = percents <= WHOLE_PERCENT
    for position, pod in enumerate(pods):
        if not pod.gpu_count:
            admits = predicates.verdict(StaticNeed(placement=pod.placement)).admits
            reached = pools if admits is None else pools[admits]
            allowed[position] = np.isin(np.arange(len(examples)), reached)
    gpus = np.array([pod.gpu_count for pod in pods], dtype=np.int64)
    return Asks(
        cpu_milli=[pod.cpu_milli for pod in pods],
        gpu_percent=percents * gpus[:, None],
        allowed=allowed,
    )


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
