"""The devices of one type on every node, as arrays: row = node, column = place by minor."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ledger.domain.devices import GPU, WHOLE_PERCENT, DeviceRecord, DeviceShare
from ledger.domain.nodes import NodeFacts
from ledger.domain.resources import HUAWEI_NPU_CORE
from scheduler.decide.nodes.arrays import BoolArray, IntArray


class DeviceArrays:
    """
    What each card of one type has, what is free on it, and what it can still give.

    A type is data: nothing here knows what it is. A place without a card has no capacity and is
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
        barred: how much closes a card beside its health: another machine claims or holds its id,
            or its node grants nothing.
        open: the card may be granted: healthy, not barred, not over-full, no unknown holder on the
            node.
        left: the percent of the card that one more tenant can get as core and as memory ratio at
            once; 0 when closed or held alone, `WHOLE_PERCENT` only without any tenant.
        whole: untouched cards per node, by `left`.
        left_total: sum of `left` per node.
        closed_count: cards of the whole fleet that are not open.
    """

    def __init__(self, device_type: str, nodes: Sequence[NodeFacts]) -> None:
        self.device_type = device_type
        self.records: list[tuple[DeviceRecord, ...]] = [
            tuple(record for record in node.devices if record.device_type == device_type)
            for node in nodes
        ]
        self._columns = [
            {record.minor: column for column, record in enumerate(records)}
            for records in self.records
        ]
        width = max((len(records) for records in self.records), default=0)
        shape = (len(nodes), max(1, width))
        self.core_cap: IntArray = np.zeros(shape, dtype=np.int64)
        self.memory_cap: IntArray = np.zeros(shape, dtype=np.int64)
        self.present: BoolArray = np.zeros(shape, dtype=np.bool_)
        self.healthy: BoolArray = np.zeros(shape, dtype=np.bool_)
        for row, records in enumerate(self.records):
            for column, record in enumerate(records):
                self.core_cap[row, column] = record.core_percent
                self.memory_cap[row, column] = record.memory_bytes
                self.present[row, column] = True
                self.healthy[row, column] = record.healthy
        self.count: IntArray = self.present.sum(axis=1)
        self.core_total: IntArray = self.core_cap.sum(axis=1)
        self.memory_total: IntArray = self.memory_cap.sum(axis=1)
        self.core_free = self.core_cap.copy()
        self.memory_free = self.memory_cap.copy()
        self.core_left = self.core_total.copy()
        self.memory_left = self.memory_total.copy()
        self.tenants: IntArray = np.zeros(shape, dtype=np.int64)
        self.exclusive: IntArray = np.zeros(shape, dtype=np.int64)
        self.instances: IntArray = np.zeros(shape, dtype=np.int64)
        self.unknown: IntArray = np.zeros(len(nodes), dtype=np.int64)
        self.barred: IntArray = np.zeros(shape, dtype=np.int64)
        self.amounts_cap = _amounts(device_type, nodes, self._columns, shape)
        self.amounts_free = {name: cap.copy() for name, cap in self.amounts_cap.items()}
        self.by_cores: BoolArray = self.amounts_cap.get(HUAWEI_NPU_CORE, np.zeros(shape)) > 0
        self._functions: dict[tuple[int, int], Counter[str]] = {}
        self.open = self.healthy.copy()
        self.left: IntArray = np.zeros(shape, dtype=np.int64)
        self.whole: IntArray = np.zeros(len(nodes), dtype=np.int64)
        self.left_total: IntArray = np.zeros(len(nodes), dtype=np.int64)
        self.closed_count = int((self.present & ~self.open).sum())
        for row, records in enumerate(self.records):
            for column in range(len(records)):
                self._derive(row, column)

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
        self.core_free[node, column] -= holders * share.core_percent
        self.memory_free[node, column] -= holders * share.memory_bytes
        self.core_left[node] -= holders * share.core_percent
        self.memory_left[node] -= holders * share.memory_bytes
        self.tenants[node, column] += holders
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

    def set_healthy(self, node: int, column: int, *, healthy: bool) -> None:
        """Open or close a card; its holders stay."""
        self.healthy[node, column] = healthy
        self._derive(node, column)

    def bar(self, node: int, column: int, times: int) -> None:
        """Count what closes a card beside its health, or forget it (-1)."""
        self.barred[node, column] += times
        self._derive(node, column)

    def add_unknown(self, node: int, holders: int) -> None:
        """Count a holder of a card that nobody can name, or forget it (-1)."""
        self.unknown[node] += holders
        for column in range(len(self.records[node])):
            self._derive(node, column)

    def is_over_full(self, node: int, column: int) -> bool:
        """Tell whether holders have more of the card than it is, or share one held alone."""
        return self.is_over_held(node, column) or self.memory_free.item(node, column) < 0

    def is_over_held(self, node: int, column: int) -> bool:
        """Tell whether holders contradict each other or the card; unknown memory is no limit."""
        return bool(
            (self.memory_cap.item(node, column) and self.memory_free.item(node, column) < 0)
            or self.core_free.item(node, column) < 0
            or (self.exclusive.item(node, column) and self.tenants.item(node, column) > 1)
        )

    def _derive(self, node: int, column: int) -> None:
        """Bring `open`, `left`, `whole` and `left_total` up to date with one card."""
        is_open = (
            self.healthy.item(node, column)
            and not self.barred.item(node, column)
            and not self.unknown.item(node)
            and not self.is_over_full(node, column)
        )
        left = self._share_left(node, column) if is_open else 0
        before = self.left.item(node, column)
        self.closed_count += self.open.item(node, column) - is_open
        self.open[node, column] = is_open
        self.left[node, column] = left
        self.left_total[node] += left - before
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
        return min(share, WHOLE_PERCENT - 1) if self.tenants.item(node, column) else share


def _amounts(
    device_type: str,
    nodes: Sequence[NodeFacts],
    columns: Sequence[Mapping[int, int]],
    shape: tuple[int, int],
) -> dict[str, IntArray]:
    """Return what GPUs have beside core percent and memory, one array for each resource."""
    found: dict[str, IntArray] = {}
    if device_type != GPU:
        return found
    for row, node in enumerate(nodes):
        for minor, amounts in node.card_amounts.items():
            column = columns[row].get(minor)
            if column is None:
                continue
            for name, amount in amounts.items():
                if name not in found:
                    found[name] = np.zeros(shape, dtype=np.int64)
                found[name][row, column] = amount
    return dict(sorted(found.items()))
