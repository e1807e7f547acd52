"""Whether a node's accounts take what a claim is given, and else who has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from ledger.domain.amounts import format_bytes
from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.log.events import CLAIM, Opening
from ledger.domain.log.state import LOST, NodeState

HOLDERS_MAX: Final = 3
"""How many holders of a device are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """
    Who has a part of a device.

    Attributes:
        words: as people read it.
        uid: of the Pod or of the claim.
    """

    uid: str
    words: str
    share: DeviceShare


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoom:
    """
    Why a device is not to be had.

    Attributes:
        taken: by holders, so that it is to be had once they end.
    """

    message: str
    taken: bool = False


def no_room(
    node: NodeState,
    shares: Sequence[DeviceShare],
    *,
    claim_uid: str,
    on_their_way: Iterable[Opening] = (),
) -> NoRoom | None:
    """
    Return why these shares can't be had on a node, None where they can.

    What the claim has already is not counted against it.

    Args:
        on_their_way: what is being recorded, and is not in the node's state yet.
    """
    devices = {(each.device_type, each.device_id): each for each in node.devices}
    held = _held(node, claim_uid, on_their_way)
    for share in shares:
        device = devices.get((share.device_type, share.device_id))
        if device is None:
            return NoRoom(message=f"{_named(share)} is no device of node {node.name}")
        if not device.healthy:
            return NoRoom(message=f"{_named(share)} of node {node.name} is closed")
        others = held.get((share.device_type, share.device_id), [])
        lacking = _lacking(device, share, others)
        if lacking:
            return NoRoom(
                message=f"{_named(share)} of node {node.name} {lacking}: {_words(others)}",
                taken=bool(others),
            )
    return None


def _held(
    node: NodeState, claim_uid: str, on_their_way: Iterable[Opening]
) -> dict[tuple[str, str], list[Holder]]:
    found: dict[tuple[str, str], list[Holder]] = {}

    def hold(uid: str, words: str, shares: Iterable[DeviceShare]) -> None:
        if uid == claim_uid:
            return
        for share in shares:
            holder = Holder(uid=uid, words=words, share=share)
            found.setdefault((share.device_type, share.device_id), []).append(holder)

    for _, one in sorted({**node.holdings, **node.claims}.items()):
        words = f"{_kind(one.holder)} {one.namespace}/{one.pod_name}"
        if one.consumers:
            words += f" of Pod {', '.join(each.name for each in one.consumers[:HOLDERS_MAX])}"
        if one.phase == LOST:
            words += " (on a node that was lost)"
        hold(one.pod_uid, words, one.shares)
    for event in on_their_way:
        if event.node_uid == node.uid:
            words = f"{_kind(event.holder)} {event.namespace}/{event.pod_name}"
            hold(event.pod_uid, words, event.shares)
    return found


def _kind(holder: str) -> str:
    return "claim" if holder == CLAIM else "Pod"


def _lacking(device: DeviceRecord, share: DeviceShare, others: Sequence[Holder]) -> str:
    """Return what a device lacks for one more share, empty where it has it."""
    if any(each.share.exclusive for each in others):
        return "is held whole"
    if share.exclusive and others:
        return "is held in part"
    core = device.core_percent - sum(each.share.core_percent for each in others)
    if share.core_percent > core:
        return f"has {max(core, 0)} % core left of {share.core_percent} % asked"
    memory = device.memory_bytes - sum(each.share.memory_bytes for each in others)
    if share.memory_bytes > memory:
        left, asked = format_bytes(max(memory, 0)), format_bytes(share.memory_bytes)
        return f"has {left} left of {asked} asked"
    return ""


def _named(share: DeviceShare) -> str:
    return f"{share.device_type} {share.device_id or share.minor}"


def _words(others: Sequence[Holder]) -> str:
    if not others:
        return "nobody holds it"
    words = list(dict.fromkeys(each.words for each in others))
    more = f" and {len(words) - HOLDERS_MAX} more" if len(words) > HOLDERS_MAX else ""
    return f"held by {', '.join(words[:HOLDERS_MAX])}{more}"
