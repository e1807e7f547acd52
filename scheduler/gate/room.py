"""Whether a node's accounts take what a claim is given, and else who has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ledger.domain.annotations.tenure import cards_in
from ledger.domain.devices import DeviceShare
from ledger.domain.dialects.dra.shares import first_taken
from ledger.domain.log.events import CLAIM, ClaimObserved, ClaimReserved
from ledger.domain.log.state import LOST, Holding, NodeState, open_holding

HOLDERS_MAX: Final = 3
"""How many holders of a device are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoom:
    """
    Why a device is not to be had.

    Attributes:
        taken: by holders, so that it is to be had once they end.
    """

    message: str
    taken: bool = False


def expecting(
    node: NodeState, on_their_way: Iterable[ClaimReserved | ClaimObserved], *, without: str
) -> NodeState:
    """
    Return a node with what is being recorded, and without what one claim has of it.

    Args:
        without: the claim's UID: what it has already is not counted against it.
    """
    coming = {
        held.key: held
        for held in (open_holding(event) for event in on_their_way if event.node_uid == node.uid)
    }
    claims = {**coming, **node.claims}
    return replace(
        node, claims={key: held for key, held in claims.items() if held.pod_uid != without}
    )


def no_room(node: NodeState, shares: Sequence[DeviceShare]) -> NoRoom | None:
    """Return why these shares can't be had on a node, None where they can."""
    taken = first_taken(node, shares)
    if taken is None:
        return _shown(node, shares)
    device = taken.device
    named = f"{device.device_type} {device.device_id or device.minor} of node {node.name}"
    return NoRoom(
        message=f"{named} {taken.fact}: {held_by(taken.holders)}", taken=bool(taken.holders)
    )


def _shown(node: NodeState, shares: Sequence[DeviceShare]) -> NoRoom | None:
    """Return who is shown one of these devices: it is closed to others until they end."""
    for share in shares:
        by = [one for one in node.holdings.values() if share.device_id in cards_in(one.shown)]
        if by:
            named = f"{share.device_type} {share.device_id} of node {node.name}"
            return NoRoom(message=f"{named} is shown to containers: {held_by(by)}", taken=True)
    return None


def held_by(holders: Sequence[Holding]) -> str:
    """Return in words who holds something; of many the first."""
    if not holders:
        return "nobody holds it"
    words = list(dict.fromkeys(map(_word, holders)))
    more = f" and {len(words) - HOLDERS_MAX} more" if len(words) > HOLDERS_MAX else ""
    return f"held by {', '.join(words[:HOLDERS_MAX])}{more}"


def _word(one: Holding) -> str:
    words = f"{'claim' if one.holder == CLAIM else 'Pod'} {one.namespace}/{one.pod_name}"
    if one.consumers:
        words += f" of Pod {', '.join(each.name for each in one.consumers[:HOLDERS_MAX])}"
    return f"{words} (on a node that was lost)" if one.phase == LOST else words
