"""
Which Nodes are one machine as they come and go, and which cards two machines claim, and so close.

A machine that registered twice has two Node objects and one set of cards and CPUs. What is held
through either counts on the one that grants.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from ledger.domain.devices import DeviceRecord
from ledger.domain.log.machines import Machine, machine_of
from ledger.domain.nodes import NodeFacts

ListedCard = tuple[int, DeviceRecord]
"""The row of a node, and a device that it lists."""

DeviceId = tuple[str, str]
"""The type of a device, and its id."""


class Machines:
    """
    Which Nodes are one machine, and which of them its account is kept on, as Nodes come and go.

    Rule: that of `machines.granting_nodes`.

    Attributes:
        of: at [row], the machine; None where no Node is.
        accounts: at [row], the row whose Node grants what the machine has.
    """

    def __init__(self) -> None:
        self.of: list[Machine | None] = []
        self.accounts: list[int] = []
        self._nodes: dict[Machine, dict[int, tuple[bool, str, int]]] = {}

    def put(self, row: int, node: NodeFacts | None, number: int) -> frozenset[int]:
        """
        Take a Node as it is now, None for none.

        Returns:
            Its row and those of all Nodes of its machine, before and now.

        Args:
            number: what breaks ties between Nodes that registered at once.
        """
        if row == len(self.of):
            self.of.append(None)
            self.accounts.append(row)
        before, after = self.of[row], None if node is None else machine_of(node)
        touched = {row}
        if before is not None:
            touched.update(self._nodes[before])
            del self._nodes[before][row]
        self.of[row], self.accounts[row] = after, row
        if after is not None and node is not None:
            self._nodes.setdefault(after, {})[row] = (not node.lost, node.created, number)
            touched.update(self._nodes[after])
        for machine in {before, after} - {None}:
            assert machine is not None
            self._settle(machine)
        return frozenset(touched)

    def _settle(self, machine: Machine) -> None:
        nodes = self._nodes[machine]
        if not nodes:
            del self._nodes[machine]
            return
        account = max(nodes, key=nodes.__getitem__)
        for row in nodes:
            self.accounts[row] = account


class UniqueIds:
    """
    Who lists devices whose ids are unique in the world, and who holds one that he does not list.

    Rule: design section 4: a card is closed to grants while a live Node of another machine lists
    the same id, or somebody holds it there.

    Attributes:
        repeated: the ids that several Nodes list.
    """

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._listed: dict[str, dict[str, ListedCard]] = {}  # by type and id, the first of them
        self._also: dict[DeviceId, tuple[ListedCard, ...]] = {}  # of the ids that are repeated
        self.repeated: set[DeviceId] = set()
        self._lost: set[int] = set()
        self._unlisted: dict[DeviceId, Counter[int]] = {}

    def put(self, row: int, before: Iterable[DeviceRecord], after: NodeFacts) -> None:
        """Take what a Node lists now instead of what it listed before."""
        for key, device in _unique(before):
            cards = list(self.listed(key))
            cards.remove((row, device))
            self._list(key, cards)
        for key, device in _unique(after.devices):
            self._list(key, [*self.listed(key), (row, device)])
        self._lost.discard(row)
        if after.lost:
            self._lost.add(row)

    def listed(self, key: DeviceId) -> tuple[ListedCard, ...]:
        """Return the cards of an id, in the order in which they were listed."""
        first = self._listed.get(key[0], {}).get(key[1])
        return () if first is None else (first, *self._also.get(key, ()))

    def _list(self, key: DeviceId, cards: Sequence[ListedCard]) -> None:
        of_type = self._listed.setdefault(key[0], {})
        if cards:
            of_type[key[1]] = cards[0]
        else:
            del of_type[key[1]]
        if len(cards) > 1:
            self._also[key] = tuple(cards[1:])
            self.repeated.add(key)
        else:
            self._also.pop(key, None)
            self.repeated.discard(key)

    def hold(self, row: int, key: DeviceId, holders: int) -> None:
        """Count a holder of an id that its Node does not list, or forget it (-1)."""
        held = self._unlisted.setdefault(key, Counter())
        held[row] += holders
        if not held[row]:
            del held[row]
            if not held:
                del self._unlisted[key]

    def is_claimed_elsewhere(
        self, row: int, key: DeviceId, is_held: Callable[[ListedCard], bool]
    ) -> bool:
        """Tell whether another machine lists the card of a Node too, or somebody holds it there."""
        of = self._machines.of
        if any(of[other] != of[row] for other in self._unlisted.get(key, ())):
            return True
        return key in self.repeated and any(
            other not in self._lost or is_held((other, device))
            for other, device in self.listed(key)
            if of[other] != of[row]
        )


def _unique(devices: Iterable[DeviceRecord]) -> Iterator[tuple[DeviceId, DeviceRecord]]:
    for device in devices:
        if device.unique_id and device.device_id:
            yield (device.device_type, device.device_id), device
