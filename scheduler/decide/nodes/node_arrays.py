"""The cluster as arrays: what every node has and what is free, changed one node at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

import numpy as np

from ledger.domain.devices import GPU, DeviceRecord
from ledger.domain.log.machines import in_order_of_registration
from ledger.domain.nodes import NodeFacts
from ledger.domain.resources import CLAIMED_BY_CLASS
from scheduler.decide.nodes.accounts import DeviceId, ListedCard, Machines, UniqueIds
from scheduler.decide.nodes.arrays import UNLIMITED, BoolArray, IntArray, with_rows
from scheduler.decide.nodes.devices import DeviceArrays
from scheduler.decide.nodes.labels import Kinds, offers_kind


class NodeRows:
    """
    The numbers and rows of the Nodes that are there, by UID.

    Rule: docs/adr/0014. Both are kept while a Node is there. A Node that comes takes the lowest
    number that is free, and the row that its rank names, else the lowest that is free. Of Nodes
    that are as good, the one at the lowest row is chosen.

    Args:
        uids: of the Nodes, by number.
        ranks: their rows.

    Attributes:
        of: at [number], the row; where no Node is, the number means nothing.
        numbers: at [row], the number.
    """

    def __init__(self, uids: Sequence[str], ranks: Sequence[int]) -> None:
        self.of: IntArray = np.array(ranks, dtype=np.int64)
        self.numbers = sorted(range(len(uids)), key=ranks.__getitem__)
        self._by_uid = {uid: number for number, uid in enumerate(uids)}
        self._free_numbers: list[int] = []
        self._free_rows: list[int] = []
        self._listed: IntArray | None = None

    def number_of(self, uid: str) -> int | None:
        """Return the number of a Node, None where it is not there."""
        return self._by_uid.get(uid)

    def listed(self) -> IntArray:
        """Return the rows of the Nodes that are there, by number."""
        if self._listed is None:
            numbers = np.arange(len(self.of), dtype=np.int64)
            self._listed = self.of[np.setdiff1d(numbers, self._free_numbers)]
        return self._listed

    def take(self, uid: str, rank: int | None) -> int:
        """Give a Node that comes its number and row; return the number."""
        assert uid, "a Node has a UID"
        if rank is None:
            rank = heappop(self._free_rows) if self._free_rows else len(self.numbers)
        elif rank < len(self.numbers):
            assert rank in self._free_rows, f"another Node has this rank: rank={rank}"
            self._free_rows.remove(rank)
            heapify(self._free_rows)
        assert 0 <= rank <= len(self.numbers), f"ranks leave no gaps: rank={rank}"
        number = heappop(self._free_numbers) if self._free_numbers else len(self.of)
        self.of = with_rows(self.of, number + 1)
        self.of[number] = rank
        self.numbers[rank : rank + 1] = [number]
        self._by_uid[uid] = number
        self._listed = None
        return number

    def free(self, uid: str) -> None:
        """Let a Node go."""
        number = self._by_uid.pop(uid)
        heappush(self._free_numbers, number)
        heappush(self._free_rows, int(self.of[number]))
        self._listed = None


_LOG_LENGTH: Final = 1 << 15


ABSENT: Final = NodeFacts(uid="", name="", cpu_milli=0, memory_bytes=0, pods_max=0)
"""What a row says where no node is."""

_COLUMNS: Final = (
    "cpu_cap",
    "memory_cap",
    "pods_cap",
    "cpu_free",
    "memory_free",
    "pods_free",
    "without_devices",
    "amplified",
)


class ChangeLog:
    """
    The nodes that changed, in order, so that a reader catches up on just those.

    A reader keeps the position it has seen. A position that has been forgotten reads as None:
    everything may have changed.

    Attributes:
        position: after the newest change.
        returns: how many changes gave something back. As long as it stays, what did not fit
            before does not fit now.
    """

    def __init__(self) -> None:
        self._nodes: IntArray = np.zeros(_LOG_LENGTH, dtype=np.int64)
        self._first = 0
        self.position = 0
        self.returns = 0

    def append(self, node: int, *, gave_back: bool) -> None:
        """Note that a node changed, and whether anything on it became free or open."""
        self.returns += gave_back
        length = self.position - self._first
        if length == _LOG_LENGTH:
            length = _LOG_LENGTH // 2
            self._nodes[:length] = self._nodes[length:]
            self._first = self.position - length
        self._nodes[length] = node
        self.position += 1

    def since(self, position: int) -> IntArray | None:
        """Return the nodes changed since `position`, repeats included; None = unknown."""
        if position < self._first:
            return None
        return self._nodes[position - self._first : self.position - self._first]


Amounts = Sequence[tuple[str, int]]


class ExtendedArrays:
    """
    Per resource name and node, how many there are and how many nobody holds.

    A name that no node offers has no arrays: nobody is given any of it. What is given by claims is
    no number of the node's: it never lacks here, and who asks for it is told so (`Predicates`).
    """

    def __init__(self, nodes: Sequence[NodeFacts]) -> None:
        self._rows = len(nodes)
        self._cap: dict[str, IntArray] = {}
        self._free: dict[str, IntArray] = {}
        for row, node in enumerate(nodes):
            self.lay(row, node)

    def lay(self, row: int, node: NodeFacts) -> None:
        """Fill the row of a node with what it offers; nothing is held of it then."""
        self._rows = max(self._rows, row + 1)
        for name in {*node.extended, *node.by_claims} - self._cap.keys():
            self._cap[name] = np.zeros(self._rows, dtype=np.int64)
            self._free[name] = np.zeros(self._rows, dtype=np.int64)
        for arrays in (self._cap, self._free):
            for name, known in arrays.items():
                arrays[name] = with_rows(known, self._rows)
                number = UNLIMITED if name in node.by_claims else node.extended.get(name, 0)
                arrays[name][row] = number

    def add(self, row: int, held: Mapping[str, int], sign: int) -> None:
        """Take what a Pod holds from a node, or give it back."""
        for name, amount in held.items():
            if name in self._free:
                self._free[name][row] -= sign * amount

    def free(self, row: int, name: str) -> int:
        """Return how many are free on one node; below 0 where more is held than there is."""
        return int(self._free[name][row]) if name in self._free else 0

    def cap(self, row: int, name: str) -> int:
        """Return how many one node has."""
        if name.startswith(CLAIMED_BY_CLASS):
            return UNLIMITED
        return int(self._cap[name][row]) if name in self._cap else 0

    def most_free(self, name: str, where: BoolArray) -> int:
        """Return the first of these nodes that have most free."""
        free = self._free.get(name)
        if free is None:
            return int(where.argmax())
        return int(np.where(where, free, -UNLIMITED).argmax())

    def lacking(self, name: str, amount: int, nodes: IntArray) -> BoolArray:
        """Return which of these nodes have too few free."""
        if name.startswith(CLAIMED_BY_CLASS):
            return np.zeros(len(nodes), dtype=np.bool_)
        return _below(self._free.get(name), amount, nodes)

    def too_small(self, name: str, amount: int, nodes: IntArray) -> BoolArray:
        """Return which of these nodes have too few at all."""
        if name.startswith(CLAIMED_BY_CLASS):
            return np.zeros(len(nodes), dtype=np.bool_)
        return _below(self._cap.get(name), amount, nodes)

    def times(self, asked: Amounts, nodes: IntArray, most: int) -> IntArray:
        """Return how often what is asked for is free on each node, `most` at the most."""
        times: IntArray = np.full(len(nodes), most, dtype=np.int64)
        for name, amount in asked:
            free = self._free.get(name)
            there = np.zeros(len(nodes), np.int64) if free is None else free.take(nodes)
            times = np.minimum(times, np.maximum(there, 0) // amount)
        return times


def _below(have: IntArray | None, amount: int, nodes: IntArray) -> BoolArray:
    if have is None:
        return np.ones(len(nodes), dtype=np.bool_)
    below: BoolArray = have.take(nodes) < amount
    return below


class NodeArrays:
    """
    Every node's numbers, in tie-break order: of equal nodes the first is chosen.

    A row where no node is, because one went, holds `ABSENT`: it has nothing and takes nothing.

    Args:
        numbers: at [node], what breaks ties between Nodes of one machine that registered at once;
            their order by default.

    Attributes:
        count: nodes that are there.
        cpu_cap, memory_cap, pods_cap: `UNLIMITED` where the node names no limit.
        devices: device type -> arrays; `gpu` is always there. See `devices_of`.
        without_devices: at [node], it has no device of any type.
        amplified: at [node], its cpu is more than its CPUs.
        limits_pods: some node limits, or limited, the number of Pods.
        aligns: some node reports, or reported, NUMA nodes, so that a Pod's memory may decide on a
            closer look.
        accounts: at [node], the node that what is held of its machine is counted on; another one
            than itself where the machine registered again, and then it grants nothing.
        log: which nodes changed.
        offers: the nodes by what they are alike in for `offers_kind`.
        facts: which nodes came, went or are other than they were.
        everything: every node's index.
    """

    def __init__(self, nodes: Sequence[NodeFacts], numbers: Sequence[int] | None = None) -> None:
        self.nodes = list(nodes)
        self.count = len(self.nodes)
        self.machines = Machines()
        self.accounts = self.machines.accounts
        self.ids = UniqueIds(self.machines)
        for row, node in enumerate(nodes):
            self.machines.put(row, node, row if numbers is None else numbers[row])
            self.ids.put(row, (), node)
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
        self._no_devices = DeviceArrays("", nodes)
        self.extended = ExtendedArrays(nodes)
        self.offers = Kinds(self.nodes, offers_kind)
        self._mixed = {row for row in range(len(nodes)) if self._has_mixed_models(row)}
        self.without_devices = np.array([not node.devices for node in nodes], dtype=np.bool_)
        self.amplified = np.array([node.cpu_amplification > 1 for node in nodes], dtype=np.bool_)
        self.aligns = any(map(_has_numa_nodes, nodes))
        self.log = ChangeLog()
        self.facts = ChangeLog()
        self.everything: IntArray = np.arange(len(self.nodes), dtype=np.int64)
        withheld = {row for row in range(len(nodes)) if self._is_withheld(row)}
        self.bar(withheld, self.ids.repeated)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.nodes)

    def devices_of(self, device_type: str) -> DeviceArrays:
        """Return the arrays of a type; of one that no node has, arrays without a device."""
        return self.devices.get(device_type, self._no_devices)

    @property
    def mixed_models(self) -> bool:
        """Tell whether some node has GPUs of several models."""
        return bool(self._mixed)

    def claimants(self) -> list[NodeFacts]:
        """
        Return the live nodes that claim a machine id or a device that others claim too.

        In order of registration: among them, and nowhere else, Nodes contradict each other.
        """
        first: dict[str, int] = {}
        rows: set[int] = set()
        for row, node in enumerate(self.nodes):
            if node.machine_id and not node.lost:
                other = first.setdefault(node.machine_id, row)
                if other != row:
                    rows |= {other, row}
        for key in self.ids.repeated:
            rows.update(row for row, _ in self.ids.listed(key))
        claims = [self.nodes[row] for row in sorted(rows)]
        return [claims[number] for number in in_order_of_registration(claims)]

    def put(self, row: int, node: NodeFacts, number: int) -> frozenset[int]:
        """
        Let a node be what these facts say, `ABSENT` for none; the row is free or the next one.

        Returns:
            The rows whose holders must be lifted, the rows then laid out by `lay`: its own, and
            those of other Nodes of its machine, before and now.
        """
        if row == len(self.nodes):
            self.nodes.append(ABSENT)
        before = self.nodes[row]
        self.nodes[row] = node
        self.count += (node is not ABSENT) - (before is not ABSENT)
        self.ids.put(row, before.devices, node)
        return self.machines.put(row, None if node is ABSENT else node, number)

    def lay(self, row: int) -> None:
        """Fill the row of a node with what its facts say; nothing is held of it then."""
        node = self.nodes[row]
        for name in _COLUMNS:
            setattr(self, name, with_rows(getattr(self, name), len(self.nodes)))
        if len(self.everything) < len(self.nodes):
            self.everything = np.arange(len(self.nodes), dtype=np.int64)
        for name, limit in (
            ("cpu", node.cpu_milli),
            ("memory", node.memory_bytes),
            ("pods", node.pods_max),
        ):
            cap = UNLIMITED if limit is None else limit
            getattr(self, f"{name}_cap")[row] = getattr(self, f"{name}_free")[row] = cap
        for device_type in sorted({record.device_type for record in node.devices}):
            if device_type not in self.devices:
                self.devices[device_type] = DeviceArrays(device_type, self.nodes)
        for devices in (*self.devices.values(), self._no_devices):
            devices.put(row, node)
        self.extended.lay(row, node)
        self.offers.put(row)
        self._mixed.discard(row)
        if self._has_mixed_models(row):
            self._mixed.add(row)
        self.without_devices[row] = not node.devices and node is not ABSENT
        self.amplified[row] = node.cpu_amplification > 1
        self.limits_pods |= node.pods_max is not None and node is not ABSENT
        self.aligns |= _has_numa_nodes(node)

    def bar(self, rows: Iterable[int], keys: Iterable[DeviceId]) -> None:
        """Close the cards of these nodes and ids to grants, or open them, as others claim them."""
        cards = [(row, device) for row in rows for device in self.nodes[row].devices]
        for key in keys:
            cards += self.ids.listed(key)
        for row, device in cards:
            devices, column = self._where(row, device)
            key = (device.device_type, device.device_id)
            barred = self._is_withheld(row) or (
                device.unique_id and self.ids.is_claimed_elsewhere(row, key, self._is_held)
            )
            if devices.barred.item(row, column) != barred:
                devices.set_barred(row, column, barred=barred)
                self.log.append(row, gave_back=not barred)

    def _where(self, row: int, device: DeviceRecord) -> tuple[DeviceArrays, int]:
        devices = self.devices[device.device_type]
        column = devices.column(row, device.minor)
        assert column is not None, (row, device)
        return devices, column

    def _is_held(self, card: ListedCard) -> bool:
        devices, column = self._where(*card)
        return devices.tenants.item(card[0], column) > 0

    def _is_withheld(self, row: int) -> bool:
        return self.nodes[row].lost or self.accounts[row] != row

    def _has_mixed_models(self, row: int) -> bool:
        return len({record.model for record in self.gpus.records[row]}) > 1

    def add(self, node: int, *, cpu_milli: int, memory_bytes: int, pods: int) -> None:
        """Take cpu, memory and Pod slots from a node, or give them back (negative numbers)."""
        self.cpu_free[node] -= cpu_milli
        self.memory_free[node] -= memory_bytes
        self.pods_free[node] -= pods


def _column(limits: Sequence[int | None]) -> IntArray:
    return np.array([UNLIMITED if limit is None else limit for limit in limits], dtype=np.int64)


def _has_numa_nodes(node: NodeFacts) -> bool:
    return bool(node.numa_zones or node.cpu_topology)
