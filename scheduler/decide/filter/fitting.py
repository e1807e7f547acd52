"""Whether requests, and parts of cards together, fit into what many nodes have free, at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import combinations
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from ledger.domain.devices import GPU, WHOLE_PERCENT
from ledger.domain.dialects.names import Dialect
from ledger.domain.request.requests import DeviceDemand
from scheduler.decide.cards.fit import asked_bytes
from scheduler.decide.dialects.registry import CHOOSERS, chooser_of
from scheduler.decide.nodes.arrays import (
    BoolArray,
    IntArray,
    row_counts,
    row_maxima,
    row_sums,
    with_rows,
)
from scheduler.decide.nodes.devices import DeviceArrays
from scheduler.decide.nodes.node_arrays import NodeArrays
from scheduler.decide.nodes.pins import CpuPins
from scheduler.decide.settings import SchedulingSettings
from scheduler.decide.shapes import Shape

T = TypeVar("T", np.int64, np.bool_)

_NO_LIMIT: Final = 1 << 31


class Fitting:
    """
    Tests shapes against nodes; the answer is exact for one demand per type.

    Several demands for one type are tested alone and together, which every node that can take them
    passes; the card choice on the node has the last word.
    """

    def __init__(self, arrays: NodeArrays, pins: CpuPins, settings: SchedulingSettings) -> None:
        self._arrays = arrays
        self._pins = pins
        self._most = {
            each.dialect: each.limit.most(settings) for each in CHOOSERS if each.limit is not None
        }
        self._models: dict[tuple[str, tuple[str, ...]], BoolArray] = {}

    def put(self, node: int) -> None:
        """Take a node as it is now."""
        for key, known in list(self._models.items()):
            device_type, models = key
            devices = self._arrays.devices_of(device_type)
            if known.shape[1] != devices.width:
                del self._models[key]
                continue
            allowed = self._models[key] = with_rows(known, len(self._arrays))
            records = devices.records[node]
            allowed[node] = False
            allowed[node, : len(records)] = [record.model in models for record in records]

    def feasible(self, shape: Shape, nodes: IntArray) -> BoolArray:
        """Return which of `nodes` have cpu, memory, devices and CPUs for the shape."""
        arrays = self._arrays
        fit: BoolArray = arrays.cpu_free.take(nodes) >= shape.cpu_milli
        if not shape.cpu_milli:
            fit[:] = True  # asks for nothing: also where running Pods hold more than there is
        if shape.memory_bytes:
            fit &= arrays.memory_free.take(nodes) >= shape.memory_bytes
        for name, amount in shape.extended:
            fit &= ~arrays.extended.lacking(name, amount, nodes)
        if shape.is_plain:
            if shape.plain_percent:
                fit &= self.plain_cards(shape, nodes)
                fit &= self.knows_cards(shape, nodes)
            return fit
        if not self._decides_together(shape):
            for demand in shape.demands:
                cards = self.cards(demand, nodes, shape.dialect)
                fit &= row_counts(cards) >= demand.count
        if shape.demands:
            fit &= self.knows_cards(shape, nodes)
        if len(shape.demands) > 1:
            fit &= self.together(shape, nodes)
        if shape.cpuset is not None:
            fit &= ~self._pins.lacks(shape.cpuset, nodes)
        return fit

    def hopeless(self, shape: Shape, memory_bytes: int, nodes: IntArray) -> BoolArray:
        """
        Return which nodes are too small for the shape even with no Pod on them.

        Rule: Koordinator contract 13: preemption can't help there. Closed cards stay closed.
        """
        arrays = self._arrays
        lost: BoolArray = arrays.cpu_cap.take(nodes) < shape.cpu_milli
        if memory_bytes:
            lost |= arrays.memory_cap.take(nodes) < memory_bytes
        for name, amount in shape.extended:
            lost |= arrays.extended.too_small(name, amount, nodes)
        for demand in shape.demands:
            devices = self._arrays.devices_of(demand.device_type)
            cap = self._rows(devices.memory_cap, nodes)
            able = self._rows(devices.grantable, nodes) & (asked_bytes(demand, cap) <= cap)
            if demand.core_percent:
                able &= self._rows(devices.core_cap, nodes) >= demand.core_percent
            for name, amount in demand.amounts:
                most = devices.amounts_cap.get(name)
                able &= False if most is None else self._rows(most, nodes) >= amount
            if demand.core_percent and not demand.amounts:
                able &= ~self._rows(devices.by_cores, nodes)
            lost |= row_counts(able) < demand.count
        return lost

    def knows_cards(self, shape: Shape, nodes: IntArray) -> BoolArray | bool:
        """Return on which nodes it is known which cards are free, if the shape asks for that."""
        gpus = self._arrays.gpus
        if not gpus.is_counted or shape.is_counted:
            return True
        if all(demand.device_type != GPU for demand in shape.demands):
            return True
        return gpus.knows(nodes)

    def plain_cards(self, shape: Shape, nodes: IntArray) -> BoolArray:
        """Return which nodes have enough cards for a plain shape."""
        gpus = self._arrays.gpus
        if shape.plain_percent == WHOLE_PERCENT:
            whole: BoolArray = gpus.whole.take(nodes) >= shape.plain_count
            return whole
        left = self._rows(gpus.left, nodes)
        if shape.plain_count == 1:
            one: BoolArray = row_maxima(left) >= shape.plain_percent
            return one
        many: BoolArray = row_counts(left >= shape.plain_percent) >= shape.plain_count
        return many

    def cards(self, demand: DeviceDemand, nodes: IntArray, dialect: Dialect | None) -> BoolArray:
        """Return which cards of which nodes can take one share of the demand."""
        devices = self._arrays.devices_of(demand.device_type)
        return self.shares(demand, nodes, dialect) & self._rows(devices.open, nodes)

    def shares(self, demand: DeviceDemand, nodes: IntArray, dialect: Dialect | None) -> BoolArray:
        """Return the same for cards that are closed as if they were open."""
        return self.within_limit(self.capacities(demand, nodes), demand, nodes, dialect)

    def within_limit(
        self, cards: BoolArray, demand: DeviceDemand, nodes: IntArray, dialect: Dialect | None
    ) -> BoolArray:
        """Return those of the cards that may hold one more container; all, where none counts."""
        most = self._most.get(dialect)
        if most is None:
            return cards
        instances = self._rows(self._arrays.devices_of(demand.device_type).instances, nodes)
        within: BoolArray = cards & (instances < most)
        return within

    def capacities(self, demand: DeviceDemand, nodes: IntArray) -> BoolArray:
        """Return the same without the limit of containers per card."""
        devices = self._arrays.devices_of(demand.device_type)
        fit: BoolArray = devices.present.take(nodes, axis=0)
        if demand.core_percent:
            fit &= self._rows(devices.core_free, nodes) >= demand.core_percent
        cap = self._rows(devices.memory_cap, nodes)
        fit &= self._rows(devices.memory_free, nodes) >= asked_bytes(demand, cap)
        if demand.memory_ratio_percent > demand.core_percent and not demand.exclusive:
            fit &= cap > 0  # a ratio of nothing would go unconstrained
        holders = devices.tenants if demand.exclusive else devices.exclusive
        fit &= self._rows(holders, nodes) == 0
        for name, amount in demand.amounts:
            free = devices.amounts_free.get(name)
            fit &= False if free is None else self._rows(free, nodes) >= amount
        if demand.core_percent and not demand.amounts:
            fit &= ~self._rows(devices.by_cores, nodes)
        if demand.model_names:
            fit &= self._rows(self.models(demand), nodes)
        return fit

    def models(self, demand: DeviceDemand) -> BoolArray:
        """Return which cards of the cluster are of a model that the demand allows."""
        key = (demand.device_type, demand.model_names)
        allowed = self._models.get(key)
        if allowed is None:
            devices = self._arrays.devices_of(demand.device_type)
            allowed = np.zeros(devices.present.shape, dtype=np.bool_)
            for node, records in enumerate(devices.records):
                for column, record in enumerate(records):
                    allowed[node, column] = record.model in demand.model_names
            self._models[key] = allowed
        return allowed

    def together(self, shape: Shape, nodes: IntArray) -> BoolArray:
        """
        Return which nodes have enough for all demands of each type together.

        Exact for a few parts of one card each; for others the sums have to be enough, which every
        node that can take them passes.
        """
        fit: BoolArray = np.ones(len(nodes), dtype=np.bool_)
        for device_type in dict.fromkeys(demand.device_type for demand in shape.demands):
            devices = self._arrays.devices.get(device_type)
            demands = [item for item in shape.demands if item.device_type == device_type]
            if devices is not None and len(demands) > 1:
                fit &= self._together(devices, demands, nodes, shape.dialect)
        return fit

    def _decides_together(self, shape: Shape) -> bool:
        """Tell whether `together` alone says all about the demands."""
        packs_exactly = chooser_of(shape.dialect).packs
        return packs_exactly and can_pack(shape.demands, self._arrays.gpus.width)

    def _together(
        self,
        devices: DeviceArrays,
        demands: Sequence[DeviceDemand],
        nodes: IntArray,
        dialect: Dialect | None,
    ) -> BoolArray:
        if chooser_of(dialect).packs and can_pack(demands, devices.width):
            return self._packed(devices, demands, nodes, self._most.get(dialect, _NO_LIMIT))
        is_open = self._rows(devices.open, nodes)
        core = row_sums(self._rows(devices.core_free, nodes) * is_open)
        memory = row_sums(self._rows(devices.memory_free, nodes) * is_open)
        fit: BoolArray = core >= sum(item.count * item.core_percent for item in demands)
        fit &= memory >= sum(item.count * item.memory_bytes for item in demands)
        return fit

    def _packed(
        self, devices: DeviceArrays, demands: Sequence[DeviceDemand], nodes: IntArray, most: int
    ) -> BoolArray:
        rows = self._rows
        is_open, cap = rows(devices.open, nodes), rows(devices.memory_cap, nodes)
        cards = CardColumns(
            shareable=is_open & (rows(devices.exclusive, nodes) == 0),
            untouched=is_open & (rows(devices.tenants, nodes) == 0),
            core_free=rows(devices.core_free, nodes),
            memory_free=rows(devices.memory_free, nodes),
            room=most - rows(devices.instances, nodes),
        )
        models = [rows(self.models(item), nodes) if item.model_names else None for item in demands]
        return packs(cards, demands, [asked_bytes(item, cap) for item in demands], models)

    def _rows(self, values: npt.NDArray[T], nodes: IntArray) -> npt.NDArray[T]:
        """Return the rows of some nodes, to be read only: all of them are not copied."""
        return values if nodes is self._arrays.everything else values.take(nodes, axis=0)


PARTS_MAX: Final = 4
"""More parts have too many groupings to try them all; a search on the node decides those."""

CARDS_MAX: Final = 16
"""The cards of a node are the bits of one number."""

_BYTES: Final = 8
_GATHER: Final = np.uint64(0x0102040810204080)
_TOP_BYTE: Final = np.uint64(56)

Bits = npt.NDArray[np.uint16]
Group = tuple[int, ...]
"""Places in the list of parts that share one card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardColumns:
    """
    What packing reads of the cards of some nodes, row = node, column = card.

    Attributes:
        shareable: open, and nobody has it alone.
        untouched: open and without any tenant.
        room: containers that the card may still take.
    """

    shareable: BoolArray
    untouched: BoolArray
    core_free: IntArray
    memory_free: IntArray
    room: IntArray


def can_pack(parts: Sequence[DeviceDemand], width: int) -> bool:
    """Tell whether `packs` is for these parts on nodes of so many cards."""
    few = 2 <= len(parts) <= PARTS_MAX and width <= CARDS_MAX
    alike = len({part.device_type for part in parts}) == 1
    return few and alike and all(part.count == 1 for part in parts)


def packs(
    cards: CardColumns,
    parts: Sequence[DeviceDemand],
    sizes: Sequence[IntArray | int],
    models: Sequence[BoolArray | None],
) -> BoolArray:
    """
    Return the nodes whose cards take all parts at once.

    Every way to group the parts is tried: groups go on different cards, and by Hall's theorem they
    can when any m of the groups have at least m cards between them.

    Args:
        sizes: the bytes that each part takes of each card.
        models: the cards of a model that each part allows; None = all.
    """
    open_cards = _Cards(cards, parts, sizes, models)
    alone = [open_cards.bits(group) for group in groupings(len(parts))[0]]
    found = _apart(alone)
    undecided = np.flatnonzero(~found & np.logical_and.reduce([mask > 0 for mask in alone]))
    if not len(undecided):
        return found
    rest = open_cards.only(undecided)
    late: BoolArray = np.zeros(len(undecided), dtype=np.bool_)
    for grouping in groupings(len(parts))[1:]:
        late |= _apart([rest.bits(group) for group in grouping])
    found[undecided] = late
    return found


@cache
def groupings(count: int) -> tuple[tuple[Group, ...], ...]:
    """Return every way to split `count` parts into groups, the most groups first."""
    return tuple(sorted(_splits(tuple(range(count))), key=lambda groups: -len(groups)))


def _splits(parts: Group) -> Iterator[tuple[Group, ...]]:
    if not parts:
        yield ()
        return
    first, rest = parts[0], parts[1:]
    for size in range(len(rest) + 1):
        for others in combinations(rest, size):
            left = tuple(part for part in rest if part not in others)
            for groups in _splits(left):
                yield ((first, *others), *groups)


@dataclass(slots=True, eq=False)
class _Cards:
    """The cards of some nodes, and which of them take each group of parts."""

    cards: CardColumns
    parts: Sequence[DeviceDemand]
    sizes: Sequence[IntArray | int]
    models: Sequence[BoolArray | None]
    _bits: dict[Group, Bits] = field(default_factory=dict)

    def only(self, rows: IntArray) -> _Cards:
        """Return the same for some of the nodes; what is known of single parts is kept."""
        cards = self.cards
        less = _Cards(
            CardColumns(
                shareable=cards.shareable.take(rows, axis=0),
                untouched=cards.untouched.take(rows, axis=0),
                core_free=cards.core_free.take(rows, axis=0),
                memory_free=cards.memory_free.take(rows, axis=0),
                room=cards.room.take(rows, axis=0),
            ),
            self.parts,
            [size if isinstance(size, int) else size.take(rows, axis=0) for size in self.sizes],
            [None if allowed is None else allowed.take(rows, axis=0) for allowed in self.models],
        )
        less._bits = {group: bits.take(rows) for group, bits in self._bits.items()}
        return less

    def bits(self, group: Group) -> Bits:
        """Return one number per node whose bits are the cards that take the whole group."""
        known = self._bits.get(group)
        if known is None:
            known = self._bits[group] = _as_bits(self._fitting(group))
        return known

    def _fitting(self, group: Group) -> BoolArray:
        cards, parts = self.cards, [self.parts[place] for place in group]
        alone = any(part.exclusive for part in parts)
        if alone and len(parts) > 1:
            return np.zeros(cards.core_free.shape, dtype=np.bool_)
        fit: BoolArray = cards.room >= len(parts)
        fit &= cards.untouched if alone else cards.shareable
        fit &= cards.core_free >= sum(part.core_percent for part in parts)
        fit &= cards.memory_free >= sum(self.sizes[place] for place in group)
        for place in group:
            allowed = self.models[place]
            if allowed is not None:
                fit &= allowed
        return fit


def _as_bits(cards: BoolArray) -> Bits:
    if cards.shape[1] == _BYTES:
        # Eight bytes of 0 or 1 are one word; the product moves each to a bit of the top byte.
        words = np.ascontiguousarray(cards).view(np.uint64)[:, 0]
        return ((words * _GATHER) >> _TOP_BYTE).astype(np.uint16)
    bits: Bits = np.zeros(len(cards), dtype=np.uint16)
    for column in range(cards.shape[1]):
        bits |= cards[:, column].astype(np.uint16) << column
    return bits


def _apart(masks: Sequence[Bits]) -> BoolArray:
    able: BoolArray = np.ones(len(masks[0]), dtype=np.bool_)
    unions: list[tuple[int, Bits]] = []
    for mask in masks:
        grown = [(1, mask), *((size + 1, union | mask) for size, union in unions)]
        for size, union in grown:
            able &= np.bitwise_count(union) >= size
        unions += grown
    return able
