"""
Which Node gives what a machine has, and which cards are closed because two machines claim them.

A machine that registered twice has two Node objects and one set of cards and CPUs. What is held
through either counts on the one that grants.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.log.machines import Machine, machine_of
from ledger.domain.nodes import NodeFacts

ListedCard = tuple[int, DeviceRecord]
"""The place of a node, and a device that it lists."""

_NOWHERE: Final[tuple[ListedCard, ...]] = ()


def in_order_of_registration(nodes: Sequence[NodeFacts]) -> list[int]:
    """Return the nodes' numbers in order of registration: by time of creation, then as given."""
    return sorted(range(len(nodes)), key=lambda number: nodes[number].created)


def granting_nodes(nodes: Sequence[NodeFacts]) -> list[int]:
    """
    Return for every node the one that its machine's grants and holdings are counted on.

    Rule: design section 4, "One account per physical device". Of a machine's live Nodes the one
    that registered last; of a machine whose Nodes are all lost the last one, which grants nothing.
    """
    chosen: dict[Machine, int] = {}
    for number in in_order_of_registration(nodes):
        machine = machine_of(nodes[number])
        before = chosen.get(machine)
        if before is None or not nodes[number].lost or nodes[before].lost:
            chosen[machine] = number
    return [chosen[machine_of(node)] for node in nodes]


def same_device(share: DeviceShare, devices: Iterable[DeviceRecord]) -> DeviceRecord | None:
    """Return the device of a share among those another Node of its machine lists."""
    listed = [device for device in devices if device.device_type == share.device_type]
    if share.device_id:
        for device in listed:
            if device.device_id == share.device_id:
                return device
    for device in listed:
        if device.minor == share.minor and not (share.device_id and device.device_id):
            return device
    return None


class UniqueIds:
    """
    Who lists devices whose ids are unique in the world.

    Rule: design section 4: a card is closed to grants while a live Node of another machine lists
    the same id, or somebody holds it there.
    """

    def __init__(self, nodes: Sequence[NodeFacts]) -> None:
        self._machines = [machine_of(node) for node in nodes]
        self._listed: dict[tuple[str, str], list[ListedCard]] = {}
        self._lost = [node.lost for node in nodes]
        for place, node in enumerate(nodes):
            for device in node.devices:
                if device.unique_id and device.device_id:
                    key = (device.device_type, device.device_id)
                    self._listed.setdefault(key, []).append((place, device))

    def cloned(self) -> Iterable[ListedCard]:
        """Yield every listed card that a live Node of another machine lists too."""
        for cards in self._listed.values():
            if len(cards) < 2:
                continue
            live = {self._machines[place] for place, _ in cards if not self._lost[place]}
            for place, device in cards:
                if live - {self._machines[place]}:
                    yield place, device

    def elsewhere(self, place: int, share: DeviceShare) -> Sequence[ListedCard]:
        """Return where other machines list the card that is held at this place."""
        cards = self._listed.get((share.device_type, share.device_id), _NOWHERE)
        return [card for card in cards if self._machines[card[0]] != self._machines[place]]
