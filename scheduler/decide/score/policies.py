"""The node policies: which of the nodes that can take a Pod should."""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from ledger.domain.devices import GPU, WHOLE_PERCENT
from ledger.domain.request.requests import DeviceDemand
from scheduler.decide.cards.fit import asked_bytes
from scheduler.decide.filter.fitting import Fitting
from scheduler.decide.nodes.arrays import UNLIMITED, IntArray
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.shapes import Shape

MILLION: Final = 1_000_000
_KIB_BITS: Final = 10
_64_BITS: Final = (1 << 64) - 1


class NodePolicy(Protocol):
    """
    Rates nodes for a shape.

    Attributes:
        reads_memory: the rating depends on the Pod's memory request.
    """

    reads_memory: bool

    def put(self, node: int) -> None:
        """Take a node as it is now, after predicates and fitting did."""

    def rate(self, shape: Shape, nodes: IntArray) -> IntArray:
        """
        Return one number per node, the larger the better, from 0; -1 where the shape won't fit.

        Devices, cpu and what the shape says of memory are tested here; predicates and the number
        of Pods are not.
        """

    def version(self) -> int:
        """Return a number that grows when nodes that did not change are rated otherwise."""

    def card(self, shape: Shape, node: int) -> int | None:
        """Return the column of the GPU that a part of one should take; None = no opinion."""


class _OfNodeAlone:
    """A policy whose rating depends on its node alone, and which has no opinion on cards."""

    def put(self, node: int) -> None:
        """Do nothing: a rating depends on its node alone."""

    def version(self) -> int:
        """Return 0: a rating depends on its node alone."""
        return 0

    def card(self, shape: Shape, node: int) -> int | None:  # noqa: ARG002 - the interface's
        """Leave the card to the settings of device scoring."""
        return None


class UsedShare(_OfNodeAlone):
    """
    `binpack` and `spread`: the highest or lowest mean used share after placement.

    Rule: cli.md, Policies. Over cpu, memory and the requested units of each requested device
    type, in millionths, rounded down; a resource without a limit counts 0.
    """

    reads_memory = True

    def __init__(self, arrays: NodeArrays, fitting: Fitting, *, most: bool) -> None:
        self._arrays = arrays
        self._fitting = fitting
        self._most = most

    def rate(self, shape: Shape, nodes: IntArray) -> IntArray:
        """Return the mean used share, or for `spread` what is missing to all."""
        arrays = self._arrays
        shares = [
            _used(arrays.cpu_cap.take(nodes), arrays.cpu_free.take(nodes), shape.cpu_milli),
            _used(
                arrays.memory_cap.take(nodes) >> _KIB_BITS,
                arrays.memory_free.take(nodes) >> _KIB_BITS,
                shape.memory_bytes >> _KIB_BITS,
            ),
        ]
        for demand in shape.demands:
            shares.extend(self._device_shares(demand, nodes))
        mean = np.add.reduce(shares) // len(shares)
        rating = mean if self._most else MILLION - mean
        return np.where(self._fitting.feasible(shape, nodes), np.maximum(rating, 0), -1)

    def _device_shares(self, demand: DeviceDemand, nodes: IntArray) -> list[IntArray]:
        devices = self._arrays.devices_of(demand.device_type)
        shares = []
        if demand.core_percent:
            asked = demand.count * demand.core_percent
            free = devices.core_left.take(nodes)
            shares.append(_used(devices.core_total.take(nodes), free, asked))
        if demand.memory_bytes or demand.memory_ratio_percent:
            cap = devices.memory_total.take(nodes)
            free = devices.memory_left.take(nodes)
            mean = cap // np.maximum(devices.count.take(nodes), 1)
            size = demand.count * asked_bytes(demand, mean)
            shares.append(_used(cap >> _KIB_BITS, free >> _KIB_BITS, size >> _KIB_BITS))
        return shares


class BestFit:
    """
    `bestfit`: the least room left, cpu and GPU weighted alike.

    Rule: the trace's documentation, published method: 100 less the weighted sum of (free -
    requested) / largest node, rounded down.

    A sharing Pod gets the card with the least left that fits, the lowest minor among equals.
    """

    reads_memory = False

    def __init__(self, arrays: NodeArrays, fitting: Fitting) -> None:
        self._arrays = arrays
        self._fitting = fitting
        self._most = self._largest()
        self._version = 0

    def put(self, node: int) -> None:  # noqa: ARG002 - the largest may be another now
        """Take a node as it is now."""
        most = self._largest()
        self._version += most != self._most
        self._most = most

    def _largest(self) -> tuple[int, int]:
        caps, gpus = self._arrays.cpu_cap, self._arrays.gpus.count
        cpu = int(caps[caps < UNLIMITED].max(initial=0))
        return max(cpu, 1), max(int(gpus.max(initial=0)) * WHOLE_PERCENT, 1)

    def rate(self, shape: Shape, nodes: IntArray) -> IntArray:
        """Return 0 (a largest node, empty) to 100 (nothing would be left)."""
        arrays, (cpu_max, gpu_max) = self._arrays, self._most
        most = cpu_max * gpu_max
        cpu = np.minimum(arrays.cpu_free.take(nodes) - shape.cpu_milli, cpu_max)
        gpu = arrays.gpus.left_total.take(nodes) - self._gpu_percent(shape, nodes)
        room = 50 * (cpu * gpu_max + gpu * cpu_max)
        rating = (100 * most - room) // most
        return np.where(self._fitting.feasible(shape, nodes), np.maximum(rating, 0), -1)

    def _gpu_percent(self, shape: Shape, nodes: IntArray) -> IntArray | int:
        """Return the percent of GPUs a shape asks for; bytes as percent of a node's mean card."""
        asked: IntArray | int = 0
        for demand in shape.demands:
            if demand.device_type != GPU:
                continue
            percent: IntArray | int = max(demand.core_percent, demand.memory_ratio_percent)
            if demand.memory_bytes:
                caps = self._arrays.gpus.memory_total.take(nodes)
                cards = self._arrays.gpus.count.take(nodes)
                mean = np.maximum(caps // np.maximum(cards, 1), 1)
                by_bytes = -(-demand.memory_bytes * WHOLE_PERCENT // mean)
                percent = np.maximum(percent, np.minimum(by_bytes, WHOLE_PERCENT))
            asked = asked + demand.count * percent
        return asked

    def version(self) -> int:
        """Return a number that grows when the largest node is another."""
        return self._version

    def card(self, shape: Shape, node: int) -> int | None:
        """Return the card with the least left that fits, for a plain share of one GPU."""
        asked = shape.plain_percent
        if not 0 < asked < WHOLE_PERCENT or shape.plain_count != 1:
            return None
        left = self._arrays.gpus.left[node].tolist()
        fitting = [(share, column) for column, share in enumerate(left) if share >= asked]
        return min(fitting)[1] if fitting else None


class Random(_OfNodeAlone):
    """`random`: every node that fits is as good as any other; the engine draws."""

    reads_memory = False

    def __init__(self, fitting: Fitting) -> None:
        self._fitting = fitting

    def rate(self, shape: Shape, nodes: IntArray) -> IntArray:
        """Return 0 for every node that fits."""
        return np.where(self._fitting.feasible(shape, nodes), 0, -1)


def draw(seed: int, ordinal: int, count: int) -> int:
    """
    Return a number below `count` that only `seed` and `ordinal` decide (splitmix64).

    Without state a resumed run draws what the first one did.
    """
    mixed = (seed * 0x9E3779B97F4A7C15 + ordinal + 1) * 0x9E3779B97F4A7C15 & _64_BITS
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & _64_BITS
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & _64_BITS
    return (mixed ^ (mixed >> 31)) % count


def _used(cap: IntArray, free: IntArray, asked: IntArray | int) -> IntArray:
    """
    Return the share used after the placement, in millionths, 0 to a million.

    What others took may be more than there is; such a unit is full, not beyond it.
    """
    used: IntArray = (cap - free + asked) * MILLION // np.maximum(cap, 1)
    return np.clip(used, 0, MILLION)
