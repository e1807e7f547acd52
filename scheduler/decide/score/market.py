"""
What GPUs and cores of unlike nodes are worth, from what typical Pods ask and may use.

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
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler.decide.nodes.arrays import BoolArray, IntArray

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
