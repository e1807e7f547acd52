"""Who holds cards that no inventory has, each by where its holding stands in the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ledger.domain.dialects.registry import reader_of
from ledger.domain.log.recorded_node import RecordedNode
from scheduler.usage.picture import CardGroup, DeviceNow, HolderNow, Picture, Unplaced, gpu_groups
from scheduler.usage.plugins import Plugged, is_cut

POSITION: Final = "@"
"""What stands before a position that is a UID."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfOthers:
    """
    One holding of cards that are not inventoried.

    Attributes:
        position: of the event that opened it.
        node: UID.
        group: whose cards they are; `number` is its place among the node's.
        device: None where nobody knows which.
    """

    position: int
    node: str
    number: int
    group: CardGroup
    device: DeviceNow | None
    holder: HolderNow | Unplaced


def has_others(facts: RecordedNode, labels: Mapping[str, str]) -> bool:
    """Tell whether a node has cards that no inventory has, or units that are no cards."""
    systems = facts.systems
    if systems.cards:
        return True
    if facts.dialects is None or not all(reader_of(each).by_plugin for each in facts.dialects):
        return False
    node = Plugged(
        is_open=False, labels=labels, offers=dict(systems.offers), capacity=systems.there()
    )
    return is_cut(node)


def others_of(picture: Picture) -> Iterator[OfOthers]:
    """Yield what is held of cards that are not inventoried, of Pods that have a position as UID."""
    for node in picture.nodes:
        for number, group in enumerate(gpu_groups(node)):
            if group.is_inventoried:
                continue
            held: list[tuple[DeviceNow | None, HolderNow | Unplaced]] = [
                (device, holder) for device in group.devices for holder in device.holders
            ]
            held += ((None, pod) for pod in group.unplaced)
            for device, holder in held:
                if holder.uid.startswith(POSITION):  # else a claim alone tells of it
                    yield OfOthers(
                        position=int(holder.uid.removeprefix(POSITION)),
                        node=node.uid,
                        number=number,
                        group=group,
                        device=device,
                        holder=holder,
                    )
