"""
Who is on which card by KAI-Scheduler's fractions, out of the Pods that keep a card's place.

Rule: docs/contracts/kai.md. A reservation Pod has the card by its plugin, and holds nothing beside
those who are on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from msgspec import structs

from ledger.domain.adopted.cards import Found, Part, collect, part_share, whole_share
from ledger.domain.annotations.kai import (
    RESERVED,
    PartAsked,
    groups_of,
    keeps_a_place,
    memory_of,
    part_asked,
)
from ledger.domain.annotations.wire import is_number
from ledger.domain.devices import WHOLE_PERCENT, DeviceRecord, DeviceShare, device_in
from ledger.domain.kube.object_fields import section, text_in
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.resources import TYPE_GPU
from scheduler.cluster.documents import Document

_KAI: Final = "kai"


def part_of(body: Mapping[str, object]) -> PartAsked | None:
    """Return what a Pod asks of cards by KAI's annotations; None for nothing."""
    scheduler = text_in(body, "spec", "schedulerName")
    return part_asked(_texts(body, "annotations"), _texts(body, "labels"), scheduler)


def _texts(body: Mapping[str, object], name: str) -> dict[str, str]:
    given = section(body, "metadata", name).items()
    return {key: value for key, value in given if isinstance(value, str)}


def with_kai_cards(
    node: NodeFacts, pods: Sequence[Document]
) -> tuple[NodeFacts, Mapping[str, Found]]:
    """
    Return a node whose cards have the ids that reservation Pods tell, and what its Pods hold so.

    A card that no id tells is the next of those without one: their numbers were made up anyway.
    """
    users: dict[str, list[Document]] = {}
    keepers: dict[str, Document] = {}
    for pod in pods:
        for group in groups_of(_texts(pod.body, "labels")):
            users.setdefault(group, [])
            if keeps_a_place(pod.name):
                keepers[group] = pod
            else:
                users[group].append(pod)
    ids = {
        group: _texts(pod.body, "annotations").get(RESERVED, "") for group, pod in keepers.items()
    }
    taken: set[int] = set()
    held: dict[str, list[Part]] = {}
    faults: dict[str, list[str]] = {}
    for group in sorted(users, key=lambda one: (not ids.get(one), one)):
        node, card = _card_of(node, ids.get(group, ""), taken)
        taken.add(-1 if card is None else card.minor)
        for pod in users[group]:
            share = (
                None if card is None else _share(card, part_of(pod.body), memory_of(node.labels))
            )
            held.setdefault(pod.uid, []).append((TYPE_GPU, share))
            if group not in keepers:
                faults.setdefault(pod.uid, []).append(f"no reservation Pod of group {group}")
        if card is not None and group in keepers:
            alone = [] if users[group] else [(TYPE_GPU, whole_share(card, ()))]
            held[keepers[group].uid] = [*alone]
    return node, {uid: collect(_KAI, each, faults.get(uid, ())) for uid, each in held.items()}


def _card_of(
    node: NodeFacts, told: str, taken: AbstractSet[int]
) -> tuple[NodeFacts, DeviceRecord | None]:
    minor = int(told) if is_number(told) else -1
    told = "" if minor >= 0 else told
    card = device_in(node.devices, TYPE_GPU, minor=minor, device_id=told)
    if card is not None:
        return node, card
    gpus = (each for each in node.devices if each.device_type == TYPE_GPU and not each.device_id)
    card = next((each for each in gpus if each.minor not in taken), None)
    if card is None or not told:
        return node, card
    named = replace(card, device_id=told, unique_id=True)
    return replace(node, devices=tuple(named if d is card else d for d in node.devices)), named


def _share(card: DeviceRecord, asked: PartAsked | None, by_label: int) -> DeviceShare:
    """Return what a Pod has of a card; all of it where nobody can say how much."""
    card = replace(card, memory_bytes=card.memory_bytes or by_label)
    if asked is None or not (asked.fraction or asked.memory_mib):
        return structs.replace(whole_share(card, ()), core_percent=0, exclusive=False)
    share = part_share(card, 0, asked.memory_bytes(card.memory_bytes), ())
    ratio = int(asked.fraction * WHOLE_PERCENT)
    return structs.replace(share, memory_ratio_percent=share.memory_ratio_percent or ratio)


def held_by_kai(event: PodObserved, found: Mapping[str, Found], node: NodeFacts) -> PodObserved:
    """Return what a running Pod holds; what KAI gave it in place of what its words say."""
    one = found.get(event.pod_uid)
    if one is None:
        return event
    models = {device.key: device.model for device in node.devices}
    return structs.replace(
        event,
        source=_KAI,
        shares=one.shares,
        device_models=tuple(models[share.key] for share in one.shares),
        unknown_types=tuple(sorted(one.lost_types)),
        counted={},
        faults=(*event.faults, *one.faults),
    )
