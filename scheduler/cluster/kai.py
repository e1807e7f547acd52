"""
Who is on which card by KAI-Scheduler's fractions, out of the Pods that keep a card's place.

Rule: docs/contracts/kai.md. A reservation Pod has the card by its plugin, and holds nothing beside
those who are on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from msgspec import structs

from ledger.domain import devices
from ledger.domain.adopted.cards import Found, Part, collect, empty_share, whole_share
from ledger.domain.annotations import kai
from ledger.domain.annotations.wire import is_number
from ledger.domain.kube.object_fields import section, text_in
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.card_names import MEMORY_LABEL, number_in
from ledger.domain.resources import TYPE_GPU
from scheduler.cluster.documents import Document


def part_of(body: Mapping[str, object]) -> kai.PartAsked | None:
    """Return what a Pod asks of cards by KAI's annotations; None for nothing."""
    scheduler = text_in(body, "spec", "schedulerName")
    return kai.part_asked(_texts(body, "annotations"), _texts(body, "labels"), scheduler)


def _texts(body: Mapping[str, object], name: str) -> dict[str, str]:
    given = section(body, "metadata", name).items()
    return {key: value for key, value in given if isinstance(value, str)}


def held_by_kai(
    nodes: Mapping[str, NodeFacts], placed: Sequence[tuple[Document, str]]
) -> tuple[dict[str, NodeFacts], dict[str, Found]]:
    """
    Return nodes whose cards have the ids that reservation Pods tell, and what Pods hold so, by UID.

    A card that no id tells is the next of those without one: their numbers were made up anyway.
    """
    groups: dict[tuple[str, str], list[Document]] = {}
    told: dict[tuple[str, str], str] = {}
    for pod, name in placed:
        for group in kai.groups_of(_texts(pod.body, "labels")) if name in nodes else ():
            groups.setdefault((name, group), []).append(pod)
            if kai.keeps_a_place(pod.name):
                told[name, group] = _texts(pod.body, "annotations").get(kai.RESERVED, "")
    known, taken = dict(nodes), set[tuple[str, int]]()
    held: dict[str, list[Part]] = {}
    for key in sorted(groups, key=lambda one: (not told.get(one), one)):
        name = key[0]
        known[name], card = _card_of(known[name], told.get(key, ""), taken)
        taken.add((name, -1 if card is None else card.minor))
        users = [pod for pod in groups[key] if not kai.keeps_a_place(pod.name)]
        for pod in groups[key]:
            parts = held.setdefault(pod.uid, [])
            if pod in users or not users:
                parts.append((TYPE_GPU, _share(card, pod, known[name].labels)))
    return known, {uid: collect(kai.SOURCE, parts) for uid, parts in held.items()}


def _card_of(
    node: NodeFacts, told: str, taken: AbstractSet[tuple[str, int]]
) -> tuple[NodeFacts, devices.DeviceRecord | None]:
    minor = int(told) if is_number(told) else -1
    card = devices.device_in(
        node.devices, TYPE_GPU, minor=minor, device_id="" if minor >= 0 else told
    )
    if card is not None:
        return node, card
    gpus = (each for each in node.devices if each.device_type == TYPE_GPU and not each.device_id)
    card = next((each for each in gpus if (node.name, each.minor) not in taken), None)
    if card is None or not told or minor >= 0:
        return node, card
    named = replace(card, device_id=told, unique_id=True)
    return replace(node, devices=tuple(named if d is card else d for d in node.devices)), named


def _share(
    card: devices.DeviceRecord | None, pod: Document, labels: Mapping[str, str]
) -> devices.DeviceShare | None:
    """Return what a Pod has of a card; all of it where nobody can say how much."""
    if card is None or kai.keeps_a_place(pod.name):
        return None if card is None else whole_share(card, ())
    asked = part_of(pod.body)
    total = card.memory_bytes or number_in(labels, MEMORY_LABEL) << 20
    memory, ratio = total, devices.WHOLE_PERCENT
    if asked is not None and (asked.fraction or asked.memory_mib):
        memory = asked.memory_mib << 20 or int(asked.fraction * total)
        ratio = devices.bytes_to_ratio(memory, total) or int(asked.fraction * devices.WHOLE_PERCENT)
    return structs.replace(empty_share(card), memory_bytes=memory, memory_ratio_percent=ratio)
