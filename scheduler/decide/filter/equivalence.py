"""Nodes that a closer look must answer alike, so that one refusal stands for all of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import fields
from operator import attrgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from ledger.domain.annotations.cpu import NumaPolicy
from ledger.domain.annotations.node_cpu import numa_policy_of
from ledger.domain.devices import GPU, DeviceRecord, DeviceTopology
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import PodRequest, is_whole
from scheduler.decide.cards.gpus import is_shaped
from scheduler.decide.dialects.registry import chooser_of
from scheduler.decide.nodes.arrays import BoolArray, IntArray
from scheduler.decide.nodes.devices import DeviceArrays
from scheduler.decide.nodes.labels import Kinds
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.settings import SchedulingSettings
from scheduler.decide.shapes import Shape

REFUSALS_BEFORE: Final = 8
"""So many nodes are looked at one by one first: grouping costs as much as a few looks."""

_WHAT: Final = attrgetter("device_type", "minor", "model", "core_percent", "memory_bytes")
_WHERE: Final = attrgetter(*(each.name for each in fields(DeviceTopology)))


class EquivalenceClasses:
    """
    Groups nodes by everything that choosing devices for a request reads of them.

    Nodes of one group have the same inventory, ids aside, and what is left of their devices is the
    same, as far as the request tells it apart: of GPUs that are asked for whole only whether they
    are used and open. Requests for CPUs, in dialects that know more than shares,
    and nodes with policies for CPUs or NUMA nodes are not grouped: more than devices decides there.
    """

    def __init__(self, arrays: NodeArrays, settings: SchedulingSettings) -> None:
        self._arrays = arrays
        self._aligned = bool(numa_policy_of(settings.cpu.default_numa_topology_policy))
        self._kinds: Kinds[Hashable] | None = None
        if any(map(is_shaped, arrays.nodes)):
            self._kind_numbers()  # now, not in the first decision that needs them

    def put(self, node: int) -> None:
        """Take a node as it is now."""
        if self._kinds is not None:
            self._kinds.put(node)

    def groups(self, request: PodRequest, shape: Shape, places: IntArray) -> dict[int, list[int]]:
        """Return place -> the places of its group among these; only groups of several."""
        if not self._is_grouped(request, shape) or len(places) < 2:
            return {}
        columns = [_as_bytes(self._kind_numbers().take(places)[:, np.newaxis])]
        columns += map(_as_bytes, self._state(shape, places))
        state = np.concatenate(columns, axis=1)
        width, text = state.shape[1], state.tobytes()
        found: dict[bytes, list[int]] = {}
        for number, place in enumerate(places.tolist()):
            found.setdefault(text[number * width : (number + 1) * width], []).append(place)
        return {place: group for group in found.values() if len(group) > 1 for place in group}

    def _is_grouped(self, request: PodRequest, shape: Shape) -> bool:
        gpus = [demand for demand in shape.demands if demand.device_type == GPU]
        if len(gpus) == 1 and gpus[0].count == 1 and not is_whole(gpus[0]):
            return False  # the node policy may name the card
        cpus = request.cpuset is not None or request.numa is not None or request.burst_milli
        return not (cpus or self._aligned) and chooser_of(request.dialect).by_share

    def _state(
        self, shape: Shape, places: IntArray
    ) -> Iterator[npt.NDArray[np.int64] | npt.NDArray[np.bool_]]:
        gpus = [demand for demand in shape.demands if demand.device_type == GPU]
        for device_type in dict.fromkeys(demand.device_type for demand in shape.demands):
            devices = self._arrays.devices.get(device_type)
            if devices is None:
                continue
            yield devices.open.take(places, axis=0)
            yield devices.tenants.take(places, axis=0) > 0
            yield devices.counted.take(places)[:, np.newaxis] > 0
            if device_type != GPU or not all(map(is_whole, gpus)):
                yield from _amounts_left(devices, places)
            if any(demand.hint and demand.hint.vf_selector for demand in shape.demands):
                yield _functions(devices, places)

    def _kind_numbers(self) -> IntArray:
        """Return the number of each node's kind; a node that is never grouped has its own."""
        if self._kinds is None:
            self._kinds = Kinds(self._arrays.nodes, kind_of)
        return self._kinds.of


def _amounts_left(devices: DeviceArrays, places: IntArray) -> Iterator[IntArray | BoolArray]:
    yield devices.core_free.take(places, axis=0)
    yield devices.memory_free.take(places, axis=0)
    yield devices.exclusive.take(places, axis=0) > 0
    for free in devices.amounts_free.values():
        yield free.take(places, axis=0)


def _functions(devices: DeviceArrays, places: IntArray) -> IntArray:
    """Return a number per device for the set of its virtual functions that Pods hold."""
    numbers: dict[frozenset[str], int] = {frozenset(): 0}
    sets: IntArray = np.zeros((len(places), devices.width), dtype=np.int64)
    for row, place in enumerate(places.tolist()):
        for column in range(len(devices.records[place])):
            held = devices.functions_in_use(place, column)
            if held:
                sets[row, column] = numbers.setdefault(held, len(numbers))
    return sets


def _as_bytes(values: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    if values.dtype == np.bool_:
        return np.packbits(values, axis=1)
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)


def decides_more(node: NodeFacts) -> bool:
    """Tell whether a policy of the node for CPUs or NUMA nodes has a say in every Pod."""
    aligned = node.numa_policy is not NumaPolicy.NONE
    return aligned or bool(node.cpu_bind_policy) or node.kubelet is not None


def kind_of(node: NodeFacts) -> Hashable:
    """Return all that choosing devices reads of a node, but for their health and ids."""
    if decides_more(node):
        return node.uid
    partitions = node.partitions
    amounts = node.card_amounts
    return (
        node.dialects,
        node.links,
        node.derived_links,
        node.honors_partitions,
        None if partitions is None else tuple(partitions.items()),
        tuple(sorted((minor, *sorted(given.items())) for minor, given in amounts.items())),
        tuple(map(_device, node.devices)),
    )


def _device(record: DeviceRecord) -> tuple[object, ...]:
    """Return all of a device but its id and its health, which changes."""
    place, labels, functions = record.topology, record.labels, record.vfs
    return (
        *_WHAT(record),
        None if place is None else _WHERE(place),
        tuple(sorted(labels.items())) if labels else (),
        tuple([(vf.bus_id, tuple(sorted(vf.labels.items()))) for vf in functions])
        if functions
        else (),
    )
