"""Whether requests fit into what nodes have free, over many nodes at once."""

from __future__ import annotations

import numpy as np

from ledger.domain.devices import WHOLE_PERCENT
from ledger.domain.requests import DeviceDemand
from ledger.domain.resources import Dialect
from scheduler.decide.arrays import BoolArray, IntArray
from scheduler.decide.devices import DeviceArrays
from scheduler.decide.fleet import Fleet
from scheduler.decide.pins import CpuPins
from scheduler.decide.settings import SchedulingSettings
from scheduler.decide.shapes import Shape


class Fitting:
    """
    Tests shapes against nodes; the answer is exact for one demand per type.

    Several demands for one type are tested alone and in sum, which every node that can take them
    passes; the card choice on the node has the last word.
    """

    def __init__(self, fleet: Fleet, pins: CpuPins, settings: SchedulingSettings) -> None:
        self._fleet = fleet
        self._pins = pins
        self._instances_max = settings.mgpu.max_containers_per_card
        self._models: dict[tuple[str, tuple[str, ...]], BoolArray] = {}

    def feasible(self, shape: Shape, nodes: IntArray) -> BoolArray:
        """Return which of `nodes` have cpu, memory, devices and CPUs for the shape."""
        fleet = self._fleet
        fit: BoolArray = fleet.cpu_free.take(nodes) >= shape.cpu_milli
        if not shape.cpu_milli:
            fit[:] = True  # asks for nothing: also where running Pods hold more than there is
        if shape.memory_bytes:
            fit &= fleet.memory_free.take(nodes) >= shape.memory_bytes
        if shape.is_plain:
            if shape.plain_percent:
                fit &= self.plain_cards(shape, nodes)
            return fit
        for demand in shape.demands:
            cards = self.cards(demand, nodes, shape.dialect)
            fit &= np.count_nonzero(cards, axis=1) >= demand.count
        if len(shape.demands) > 1:
            fit &= self.sums(shape, nodes)
        if shape.cpuset is not None:
            fit &= self._pins.free_counts.take(nodes) >= shape.cpuset.cpus
        return fit

    def plain_cards(self, shape: Shape, nodes: IntArray) -> BoolArray:
        """Return which nodes have enough cards for a plain shape."""
        gpus = self._fleet.gpus
        if shape.plain_percent == WHOLE_PERCENT:
            whole: BoolArray = gpus.whole.take(nodes) >= shape.plain_count
            return whole
        left = gpus.left.take(nodes, axis=0)
        if shape.plain_count == 1:
            one: BoolArray = left.max(axis=1) >= shape.plain_percent
            return one
        many: BoolArray = np.count_nonzero(left >= shape.plain_percent, axis=1) >= shape.plain_count
        return many

    def cards(self, demand: DeviceDemand, nodes: IntArray, dialect: Dialect | None) -> BoolArray:
        """Return which cards of which nodes can take one share of the demand."""
        devices = self._devices(demand)
        return self.shares(demand, nodes, dialect) & devices.open.take(nodes, axis=0)

    def shares(self, demand: DeviceDemand, nodes: IntArray, dialect: Dialect | None) -> BoolArray:
        """Return the same for cards that are closed as if they were open."""
        fit = self.capacities(demand, nodes)
        if dialect is Dialect.MGPU:
            instances = self._devices(demand).instances.take(nodes, axis=0)
            fit &= instances < self._instances_max
        return fit

    def capacities(self, demand: DeviceDemand, nodes: IntArray) -> BoolArray:
        """Return the same without the limit of containers per card."""
        devices = self._devices(demand)
        fit: BoolArray = devices.present.take(nodes, axis=0)
        if demand.core_percent:
            fit &= devices.core_free.take(nodes, axis=0) >= demand.core_percent
        cap = devices.memory_cap.take(nodes, axis=0)
        fit &= devices.memory_free.take(nodes, axis=0) >= asked_bytes(demand, cap)
        if demand.memory_ratio_percent > demand.core_percent and not demand.exclusive:
            fit &= cap > 0  # a ratio of nothing would go unconstrained
        holders = devices.tenants if demand.exclusive else devices.exclusive
        fit &= holders.take(nodes, axis=0) == 0
        if demand.model_names:
            fit &= self.models(demand).take(nodes, axis=0)
        return fit

    def models(self, demand: DeviceDemand) -> BoolArray:
        """Return which cards of the fleet are of a model that the demand allows."""
        key = (demand.device_type, demand.model_names)
        allowed = self._models.get(key)
        if allowed is None:
            devices = self._devices(demand)
            allowed = np.zeros(devices.present.shape, dtype=np.bool_)
            for node, records in enumerate(devices.records):
                for column, record in enumerate(records):
                    allowed[node, column] = record.model in demand.model_names
            self._models[key] = allowed
        return allowed

    def sums(self, shape: Shape, nodes: IntArray) -> BoolArray:
        """Return which nodes have enough free in sum for all demands of each type."""
        fit: BoolArray = np.ones(len(nodes), dtype=np.bool_)
        for device_type in dict.fromkeys(demand.device_type for demand in shape.demands):
            devices = self._fleet.devices.get(device_type)
            demands = [item for item in shape.demands if item.device_type == device_type]
            if devices is None or len(demands) == 1:
                continue
            is_open = devices.open.take(nodes, axis=0)
            core = (devices.core_free.take(nodes, axis=0) * is_open).sum(axis=1)
            memory = (devices.memory_free.take(nodes, axis=0) * is_open).sum(axis=1)
            fit &= core >= sum(item.count * item.core_percent for item in demands)
            fit &= memory >= sum(item.count * item.memory_bytes for item in demands)
        return fit

    def _devices(self, demand: DeviceDemand) -> DeviceArrays:
        devices = self._fleet.devices.get(demand.device_type)
        return self._fleet.no_devices if devices is None else devices


def asked_bytes(demand: DeviceDemand, memory_cap: IntArray) -> IntArray | int:
    """
    Return the bytes that one share takes of cards with these capacities.

    Rule: Koordinator contract 4.5 (a ratio is floored to bytes once); GPU-sharing contract A.5
    (a whole card is fully consumed, memory included).
    """
    if demand.memory_ratio_percent:
        return demand.memory_ratio_percent * memory_cap // WHOLE_PERCENT
    if demand.exclusive and not demand.memory_bytes:
        return memory_cap
    return demand.memory_bytes
