"""The cluster as arrays: what every node has and what is free, changed one node at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from ledger.domain.devices import GPU, DeviceRecord
from ledger.domain.nodes import NodeFacts
from scheduler.decide.nodes.accounts import ListedCard, UniqueIds, granting_nodes
from scheduler.decide.nodes.arrays import UNLIMITED, IntArray
from scheduler.decide.nodes.devices import DeviceArrays

_LOG_LENGTH: Final = 1 << 15


class ChangeLog:
    """
    The nodes that changed, in order, so that a reader catches up on just those.

    A reader keeps the position it has seen. A position that has been forgotten reads as None:
    everything may have changed.

    Attributes:
        returns: how many changes gave something back. As long as it stays, what did not fit
            before does not fit now.
    """

    def __init__(self) -> None:
        self._nodes: IntArray = np.zeros(_LOG_LENGTH, dtype=np.int64)
        self._first = 0
        self._length = 0
        self.returns = 0

    @property
    def position(self) -> int:
        """Return the position after the newest change."""
        return self._first + self._length

    def append(self, node: int, *, gave_back: bool) -> None:
        """Note that a node changed, and whether anything on it became free or open."""
        self.returns += gave_back
        if self._length == _LOG_LENGTH:
            kept = _LOG_LENGTH // 2
            self._nodes[:kept] = self._nodes[kept:]
            self._first += kept
            self._length = kept
        self._nodes[self._length] = node
        self._length += 1

    def since(self, position: int) -> IntArray | None:
        """Return the nodes changed since `position`, repeats included; None = unknown."""
        if position < self._first:
            return None
        return self._nodes[position - self._first : self._length]


class Fleet:
    """
    Every node's numbers, in tie-break order: of equal nodes the first is chosen.

    Attributes:
        cpu_cap, memory_cap, pods_cap: `UNLIMITED` where the node names no limit.
        devices: device type -> arrays; `gpu` is always there, `no_devices` stands for the rest.
        mixed_models: some node has GPUs of several models.
        without_devices: at [node], it has no device of any type.
        amplified: at [node], its cpu is more than its CPUs.
        aligns: some node reports NUMA nodes, so that a Pod's memory may decide on a closer look.
        accounts: at [node], the node that what is held of its machine is counted on; another one
            than itself where the machine registered again, and then it grants nothing.
        ids: who lists devices whose ids are unique in the world.
        log: which nodes changed.
        everything: every node's index.
    """

    def __init__(self, nodes: Sequence[NodeFacts], accounts: Sequence[int] | None = None) -> None:
        self.nodes = tuple(nodes)
        self.accounts = tuple(granting_nodes(nodes) if accounts is None else accounts)
        self.ids = UniqueIds(nodes)
        self.cpu_cap = _column([node.cpu_milli for node in nodes])
        self.memory_cap = _column([node.memory_bytes for node in nodes])
        self.pods_cap = _column([node.pods_max for node in nodes])
        self.cpu_free = self.cpu_cap.copy()
        self.memory_free = self.memory_cap.copy()
        self.pods_free = self.pods_cap.copy()
        self.limits_pods = any(node.pods_max is not None for node in nodes)
        types = {record.device_type for node in nodes for record in node.devices}
        self.devices = {
            device_type: DeviceArrays(device_type, nodes) for device_type in sorted(types | {GPU})
        }
        self.gpus = self.devices[GPU]
        self.no_devices = DeviceArrays("", nodes)
        self.mixed_models = any(
            len({record.model for record in records}) > 1 for records in self.gpus.records
        )
        self.without_devices = np.array([not node.devices for node in nodes], dtype=np.bool_)
        self.amplified = np.array([node.cpu_amplification > 1 for node in nodes], dtype=np.bool_)
        self.aligns = any(node.numa_zones or node.cpu_topology for node in nodes)
        self.log = ChangeLog()
        self.everything: IntArray = np.arange(len(self.nodes), dtype=np.int64)
        for place, device in (*self.ids.cloned(), *self._withheld()):
            self.bar(place, device, 1)

    def __len__(self) -> int:
        return len(self.nodes)

    def bar(self, node: int, device: DeviceRecord, times: int) -> None:
        """Close a listed device to grants, or forget that (-1)."""
        devices = self.devices[device.device_type]
        column = devices.column(node, device.minor)
        assert column is not None, (node, device)
        devices.bar(node, column, times)

    def _withheld(self) -> Iterator[ListedCard]:
        """Yield the devices of nodes that grant nothing."""
        for place, node in enumerate(self.nodes):
            if node.lost or self.accounts[place] != place:
                yield from ((place, device) for device in node.devices)

    def add(self, node: int, *, cpu_milli: int, memory_bytes: int, pods: int) -> None:
        """Take cpu, memory and Pod places from a node, or give them back (negative numbers)."""
        self.cpu_free[node] -= cpu_milli
        self.memory_free[node] -= memory_bytes
        self.pods_free[node] -= pods


def _column(limits: Sequence[int | None]) -> IntArray:
    return np.array([UNLIMITED if limit is None else limit for limit in limits], dtype=np.int64)
