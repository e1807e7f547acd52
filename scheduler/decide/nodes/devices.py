"""The devices of one type on every node, as arrays: row = node, column = slot by minor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ledger.domain.devices import GPU, WHOLE_PERCENT, DeviceRecord, DeviceShare
from ledger.domain.dialects.registry import parts_of
from ledger.domain.nodes import NodeFacts
from ledger.domain.resources import HUAWEI_NPU_CORE
from scheduler.decide.nodes.arrays import BoolArray, IntArray, with_columns, with_rows

_NO_COLUMNS: Final[Mapping[int, int]] = {}
_BY_NODE: Final = (
    "count",
    "core_total",
    "memory_total",
    "core_left",
    "memory_left",
    "unknown",
    "counted",
    "whole",
    "left_total",
    "by_number",
    "made_up",
)
_BY_CARD: Final = (
    "core_cap",
    "memory_cap",
    "present",
    "healthy",
    "core_free",
    "memory_free",
    "tenants",
    "exclusive",
    "instances",
    "barred",
    "viewed",
    "by_cores",
    "open",
    "left",
)
"""The arrays with a row per node, by what a number in them is of."""


class _StandIns(NamedTuple):
    """
    Cards of one node that stand in for those that are counted.

    Attributes:
        lacking: counted cards for which there is not even a closed one that nobody has.
    """

    columns: list[int]
    lacking: int


class DeviceArrays:
    """
    What each card of one type has, what is free on it, and what it can still give.

    A type is data: nothing here knows what it is. A slot without a card has no capacity and is
    never open.

    Attributes:
        count, core_total, memory_total: per node, of all its cards.
        core_left, memory_left: per node, the sums of `core_free` and `memory_free`.
        core_free, memory_free: below 0 where observed holders over-fill a card.
        tenants, exclusive, instances: holders, those among them that want the card alone, and
            containers of which a card may hold so many only.
        amounts_cap, amounts_free: what cards have beside core percent and memory, by resource name.
        by_cores: the card's compute is counted in AI cores and not given by percent; `left` is 0.
        unknown: holders, per node, of cards that nobody can name; they close the whole row.
        counted: cards, per node, that are held alone by holders who are known, on cards that nobody
            can name. As many untouched cards stand in for them, so that what is free is right in
            number; which of the row they are is not asked.
        barred: something closes a card beside its health: another machine claims or holds its id,
            or its node grants nothing.
        viewed: who does not hold the card is shown it, and is of another group than is asked for.
        open: the card may be granted: healthy, not barred, not viewed, not over-full, no unknown
            holder on the node.
        left: the percent of the card that one more tenant can get as core and as memory ratio at
            once; 0 when closed or held alone, `WHOLE_PERCENT` only without any tenant.
        whole: untouched cards per node, by `left`.
        left_total: sum of `left` per node.
        by_number: per node, the units that it gives are parts of cards, which no grant names.
        made_up: per node, so many that nothing lists: a row has a slot for each, and no card.
        closed_count: cards of the whole cluster that are not open.
        core_over: core percent that is held beyond what cards have, of the whole cluster, with
            counted cards that are not there.
    """

    def __init__(self, device_type: str, nodes: Sequence[NodeFacts]) -> None:
        self.device_type = device_type
        self.records: list[tuple[DeviceRecord, ...]] = [()] * len(nodes)
        self._columns: list[Mapping[int, int]] = [_NO_COLUMNS] * len(nodes)
        listed = [self._listed(node) for node in nodes]
        shape = (len(nodes), max(1, max(map(len, listed), default=0)))
        self.core_cap: IntArray = np.zeros(shape, dtype=np.int64)
        self.memory_cap: IntArray = np.zeros(shape, dtype=np.int64)
        self.present: BoolArray = np.zeros(shape, dtype=np.bool_)
        self.healthy: BoolArray = np.zeros(shape, dtype=np.bool_)
        self.count: IntArray = np.zeros(len(nodes), dtype=np.int64)
        self.core_total: IntArray = np.zeros(len(nodes), dtype=np.int64)
        self.memory_total: IntArray = np.zeros(len(nodes), dtype=np.int64)
        self.core_free: IntArray = np.zeros(shape, dtype=np.int64)
        self.memory_free: IntArray = np.zeros(shape, dtype=np.int64)
        self.core_left: IntArray = np.zeros(len(nodes), dtype=np.int64)
        self.memory_left: IntArray = np.zeros(len(nodes), dtype=np.int64)
        self.tenants: IntArray = np.zeros(shape, dtype=np.int64)
        self.exclusive: IntArray = np.zeros(shape, dtype=np.int64)
        self.instances: IntArray = np.zeros(shape, dtype=np.int64)
        self.unknown: IntArray = np.zeros(len(nodes), dtype=np.int64)
        self.counted: IntArray = np.zeros(len(nodes), dtype=np.int64)
        self._stand_ins: dict[int, _StandIns] = {}  # of nodes where some are counted
        self.barred: BoolArray = np.zeros(shape, dtype=np.bool_)
        self.viewed: BoolArray = np.zeros(shape, dtype=np.bool_)
        self._viewers: dict[tuple[int, int], Counter[str]] = {}  # groups of who is shown a card
        self._asking = ""
        self.amounts_cap: dict[str, IntArray] = {}
        self.amounts_free: dict[str, IntArray] = {}
        self.by_cores: BoolArray = np.zeros(shape, dtype=np.bool_)
        self.open: BoolArray = np.zeros(shape, dtype=np.bool_)
        self.left: IntArray = np.zeros(shape, dtype=np.int64)
        self.whole: IntArray = np.zeros(len(nodes), dtype=np.int64)
        self.left_total: IntArray = np.zeros(len(nodes), dtype=np.int64)
        self.by_number: BoolArray = np.zeros(len(nodes), dtype=np.bool_)
        self.made_up: BoolArray = np.zeros(len(nodes), dtype=np.bool_)
        self.closed_count = 0
        self.core_over = 0
        self._excess: dict[tuple[int, int], tuple[int, int]] = {}  # of cards that others scale
        self._functions: dict[tuple[int, int], Counter[str]] = {}
        for row, (node, records) in enumerate(zip(nodes, listed, strict=True)):
            if records:
                self._list(row, records, node)
        self._open_up(slice(None))

    def put(self, node: int, facts: NodeFacts) -> None:
        """Take what a node lists now; nothing is held of it yet."""
        records = self._listed(facts)
        if node == len(self.records):
            self.records.append(())
            self._columns.append(_NO_COLUMNS)
            self._reshape(lambda some: with_rows(some, node + 1))
        if records == self.records[node] and not self._is_used(node, facts):
            return
        self._clear(node)
        self.count[node] = len(records)
        width = max(1, int(self.count.max()))
        if width != self.width:
            self._reshape(lambda some: some if some.ndim == 1 else with_columns(some, width))
        self._list(node, records, facts)
        self._open_up(slice(node, node + 1))

    def _is_used(self, node: int, facts: NodeFacts) -> bool:
        """Tell whether a row may be other than these facts would make it."""
        if facts.card_amounts or self.amounts_cap or self.unknown.item(node):
            return True
        if self.by_number.item(node) or parts_of(facts) or facts.systems.scaled or self._excess:
            return True
        if node in self._stand_ins or any(row == node for row, _ in self._viewers):
            return True
        return bool(self.tenants[node].any() or self.barred[node].any())

    def _listed(self, node: NodeFacts) -> tuple[DeviceRecord, ...]:
        listed = tuple([each for each in node.devices if each.device_type == self.device_type])
        if listed or self.device_type != GPU:
            return listed
        return _slots(parts_of(node))

    def _reshape(self, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]) -> None:
        for name in (*_BY_NODE, *_BY_CARD):
            setattr(self, name, change(getattr(self, name)))
        for amounts in (self.amounts_cap, self.amounts_free):
            amounts.update({name: change(values) for name, values in amounts.items()})

    def _clear(self, node: int) -> None:
        if node in self._stand_ins:
            self._count_over(node, -self._stand_ins.pop(node).lacking)
        self.closed_count -= int((self.present[node] & ~self.open[node]).sum())
        self.core_over += int(np.minimum(self.core_free[node], 0).sum())
        for name in (*_BY_NODE, *_BY_CARD):
            getattr(self, name)[node] = 0
        for name, values in list(self.amounts_cap.items()):
            values[node] = self.amounts_free[name][node] = 0
            if not values.any():
                del self.amounts_cap[name], self.amounts_free[name]
        for column in range(len(self.records[node])):
            self._functions.pop((node, column), None)
            self._excess.pop((node, column), None)
            self._viewers.pop((node, column), None)

    def _list(self, node: int, records: Sequence[DeviceRecord], facts: NodeFacts) -> None:
        self.records[node] = tuple(records)
        if self.device_type == GPU:
            self.by_number[node] = parts_of(facts) > 0
            self.made_up[node] = all(each.device_type != GPU for each in facts.devices)
        self._columns[node] = columns = _columns_of(tuple([record.minor for record in records]))
        for column, record in enumerate(records):
            self.core_cap[node, column] = record.core_percent
            self.memory_cap[node, column] = record.memory_bytes
            self.present[node, column] = True
            self.healthy[node, column] = record.healthy
            if facts.systems.scaled:
                self._excess[node, column] = facts.systems.excess(record)
        if self.device_type == GPU and facts.card_amounts:
            self._list_amounts(node, columns, facts)

    def _list_amounts(self, node: int, columns: Mapping[int, int], facts: NodeFacts) -> None:
        for minor, amounts in facts.card_amounts.items():
            column = columns.get(minor)
            for name, amount in amounts.items() if column is not None else ():
                if amount and name not in self.amounts_cap:
                    for arrays in (self.amounts_cap, self.amounts_free):
                        arrays[name] = np.zeros(self.present.shape, dtype=np.int64)
                if amount:
                    self.amounts_cap[name][node, column] = amount
                    self.amounts_free[name][node, column] = amount
        self.amounts_cap = dict(sorted(self.amounts_cap.items()))
        self.amounts_free = dict(sorted(self.amounts_free.items()))
        if HUAWEI_NPU_CORE in self.amounts_cap:
            self.by_cores[node] = self.amounts_cap[HUAWEI_NPU_CORE][node] > 0

    def _open_up(self, rows: slice) -> None:
        """Work out what follows from the inventory where nobody holds anything."""
        core, memory, present = self.core_cap[rows], self.memory_cap[rows], self.present[rows]
        self.count[rows] = present.sum(axis=1)
        self.core_free[rows] = core
        self.memory_free[rows] = memory
        self.core_total[rows] = self.core_left[rows] = core.sum(axis=1)
        self.memory_total[rows] = self.memory_left[rows] = memory.sum(axis=1)
        self.open[rows] = self.healthy[rows]
        by_memory = (WHOLE_PERCENT * (memory + 1) - 1) // np.maximum(memory, 1)
        left = np.minimum(core, WHOLE_PERCENT)
        left = np.where(memory > 0, np.minimum(left, by_memory), left)
        left[~self.healthy[rows] | self.by_cores[rows]] = 0
        self.left[rows] = left
        self.whole[rows] = np.count_nonzero(left == WHOLE_PERCENT, axis=1)
        self.left_total[rows] = left.sum(axis=1)
        self.closed_count += int(np.count_nonzero(present & ~self.healthy[rows]))

    @property
    def is_counted(self) -> bool:
        """Tell whether some cards of some node are held by number."""
        return bool(self._stand_ins) or bool(self.by_number.any())

    def knows(self, nodes: IntArray) -> BoolArray:
        """Return on which of these nodes each card has a name, and each holder's card is known."""
        known: BoolArray = (self.counted.take(nodes) == 0) & ~self.by_number.take(nodes)
        return known

    @property
    def width(self) -> int:
        """Return the number of columns, the most cards a node has (at least 1)."""
        return int(self.core_cap.shape[1])

    def column(self, node: int, minor: int) -> int | None:
        """Return the column of a card, None when the node has no such minor."""
        return self._columns[node].get(minor)

    def add(
        self, node: int, column: int, share: DeviceShare, holders: int, *, instances: int = 0
    ) -> None:
        """
        Take a share of a card (`holders` 1) or give it back (`holders` -1).

        `instances`: how many containers that count the share is for.
        """
        self._send_away(node)
        self._add(node, column, share, holders, instances)
        self._stand_in(node)

    def _add(
        self, node: int, column: int, share: DeviceShare, holders: int, instances: int = 0
    ) -> None:
        core_percent, memory_bytes = holders * share.core_percent, holders * share.memory_bytes
        free = self.core_free.item(node, column)
        self.core_over += max(0, core_percent - free) - max(0, -free)
        self.core_free[node, column] = free - core_percent
        self.memory_free[node, column] -= memory_bytes
        self.core_left[node] -= core_percent
        self.memory_left[node] -= memory_bytes
        self.tenants[node, column] += holders
        if instances:
            self.instances[node, column] += holders * instances
        if share.exclusive:
            self.exclusive[node, column] += holders
        if share.vf_bus_ids:
            self._count_functions(node, column, share, holders)
        self._derive(node, column)

    def add_amounts(
        self, node: int, column: int, amounts: Iterable[tuple[str, int]], holders: int
    ) -> None:
        """Take what else a Pod has of a card or give it back; what no card reports is not kept."""
        for name, amount in amounts:
            if name in self.amounts_free:
                self.amounts_free[name][node, column] -= holders * amount

    def functions_in_use(self, node: int, column: int) -> frozenset[str]:
        """Return the bus ids of the VFs that Pods hold on a device."""
        return frozenset(self._functions.get((node, column), ()))

    def _count_functions(self, node: int, column: int, share: DeviceShare, holders: int) -> None:
        held = self._functions.setdefault((node, column), Counter())
        for bus_id in share.vf_bus_ids:
            held[bus_id] += holders
            if not held[bus_id]:
                del held[bus_id]

    def set_barred(self, node: int, column: int, *, barred: bool) -> None:
        """Note whether something closes a card beside its health; its holders stay."""
        self._close(self.barred, node, column, closed=barred)

    def _close(self, by: BoolArray, node: int, column: int, *, closed: bool) -> None:
        by[node, column] = closed
        self._derive(node, column)
        if node in self._stand_ins:
            self._send_away(node)
            self._stand_in(node)

    def show(self, node: int, column: int, group: str, holders: int) -> None:
        """Count who is shown a card that it does not hold, by its group, or forget it (-1)."""
        groups = self._viewers.setdefault((node, column), Counter())
        groups[group] += holders
        if not groups[group]:
            del groups[group]
        self._view(node, column)
        if not groups:
            del self._viewers[node, column]

    def ask(self, group: str) -> list[int]:
        """Judge for Pods of this group from now on; return the nodes whose cards open or close."""
        if group == self._asking:
            return []
        self._asking = group
        return [node for node, column in self._viewers if self._view(node, column)]

    def viewers(self, node: int, column: int) -> list[str]:
        """Return the groups that are shown a card that they do not hold, sorted."""
        return sorted(self._viewers.get((node, column), ()))

    @property
    def grantable(self) -> BoolArray:
        """Return the cards that are open, or would be if nobody was shown them."""
        if not self._viewers:
            return self.open
        return self.open | (self.viewed & self.healthy & ~self.barred)

    def _view(self, node: int, column: int) -> bool:
        """Bring a card up to date with who is shown it; tell whether that opens or closes it."""
        viewed = bool(self._viewers[node, column].keys() - {self._asking})
        if viewed == self.viewed.item(node, column):
            return False
        self._close(self.viewed, node, column, closed=viewed)
        return True

    def add_counted(self, node: int, cards: int) -> None:
        """
        Count cards that somebody has alone, whichever they are, or forget them (below 0).

        Rule: docs/DIVERGENCES.md, Placing by count. Example: of cards 0 to 3 somebody is known to
        have card 1 and somebody to have two others: 0 and 2 stand in, and one card is free. Once
        the first goes, 0 and 1 stand in, and two are.
        """
        self._send_away(node)
        self.counted[node] += cards
        self._stand_in(node)

    def _stand_in(self, node: int) -> None:
        """Let the first untouched cards of a node be held by those who are counted."""
        counted = self.counted.item(node)
        if not counted:
            return
        records = self.records[node]
        untouched = [
            column for column in range(len(records)) if not self.tenants.item(node, column)
        ]
        taken = [column for column in untouched if self.open.item(node, column)][:counted]
        self._stand_ins[node] = _StandIns(taken, max(0, counted - len(untouched)))
        self._count_over(node, self._stand_ins[node].lacking)
        for column in taken:
            self._add(node, column, _all_of(records[column]), 1)

    def _send_away(self, node: int) -> None:
        stand_ins = self._stand_ins.pop(node, None)
        if stand_ins is None:
            return
        self._count_over(node, -stand_ins.lacking)
        for column in stand_ins.columns:
            self._add(node, column, _all_of(self.records[node][column]), -1)

    def _count_over(self, node: int, cards: int) -> None:
        if not self.made_up.item(node):
            self.core_over += WHOLE_PERCENT * cards

    def add_unknown(self, node: int, holders: int) -> None:
        """Count a holder of a card that nobody can name, or forget it (-1)."""
        self._send_away(node)
        self.unknown[node] += holders
        for column in range(len(self.records[node])):
            self._derive(node, column)
        self._stand_in(node)

    def is_over_full(self, node: int, column: int) -> bool:
        """Tell whether holders have more of the card than it is, or share one held alone."""
        _, memory = self._excess.get((node, column), (0, 0))
        return self.is_over_held(node, column) or self.memory_free.item(node, column) < -memory

    def is_over_held(self, node: int, column: int) -> bool:
        """
        Tell whether holders contradict each other or the card; unknown memory is no limit.

        Rule: docs/contracts/hami.md 4, as "ours": what others gave is judged by their figures.
        """
        core, memory = self._excess.get((node, column), (0, 0))
        return bool(
            (self.memory_cap.item(node, column) and self.memory_free.item(node, column) < -memory)
            or self.core_free.item(node, column) < -core
            or (self.exclusive.item(node, column) and self.tenants.item(node, column) > 1)
        )

    def _derive(self, node: int, column: int) -> None:
        """Bring `open`, `left`, `whole` and `left_total` up to date with one card."""
        is_open = (
            self.healthy.item(node, column)
            and not self.barred.item(node, column)
            and not self.viewed.item(node, column)
            and not self.unknown.item(node)
            and not self.is_over_full(node, column)
        )
        left = self._share_left(node, column) if is_open else 0
        before = self.left.item(node, column)
        if is_open != self.open.item(node, column):
            self.closed_count += -1 if is_open else 1
            self.open[node, column] = is_open
        if left != before:
            self.left[node, column] = left
            self.left_total[node] += left - before
        if WHOLE_PERCENT in {left, before}:
            self.whole[node] += (left == WHOLE_PERCENT) - (before == WHOLE_PERCENT)

    def _share_left(self, node: int, column: int) -> int:
        if self.exclusive.item(node, column) or self.by_cores.item(node, column):
            return 0
        share = min(self.core_free.item(node, column), WHOLE_PERCENT)
        memory_cap = self.memory_cap.item(node, column)
        if memory_cap:
            # The largest ratio r with floor(r * capacity / 100) <= free.
            memory_free = self.memory_free.item(node, column)
            share = min(share, (WHOLE_PERCENT * (memory_free + 1) - 1) // memory_cap)
        share = max(share, 0)
        return min(share, WHOLE_PERCENT - 1) if self.tenants.item(node, column) else share


@lru_cache(maxsize=1024)
def _slots(count: int) -> tuple[DeviceRecord, ...]:
    return tuple(
        [DeviceRecord(device_type=GPU, minor=minor, device_id="") for minor in range(count)]
    )


@lru_cache(maxsize=1024)
def _columns_of(minors: tuple[int, ...]) -> Mapping[int, int]:
    """Return minor -> column; most nodes have the same minors, and share it."""
    return {minor: column for column, minor in enumerate(minors)}


def _all_of(card: DeviceRecord) -> DeviceShare:
    return DeviceShare(
        device_type=card.device_type,
        minor=card.minor,
        device_id=card.device_id,
        core_percent=card.core_percent,
        memory_bytes=card.memory_bytes,
        memory_ratio_percent=WHOLE_PERCENT,
        exclusive=True,
    )
