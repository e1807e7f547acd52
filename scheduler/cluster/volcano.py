"""Volcano's vGPUs, as annotations of Nodes and Pods tell them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from ledger.domain.annotations.wire import annotation_path
from scheduler.cluster.documents import Document, Documents, is_ended, section
from scheduler.usage.claims import NO_VGPUS, VgpuCard, VgpuPart, Vgpus

REGISTER: Final = "volcano.sh/node-vgpu-register"
GIVEN: Final = "volcano.sh/vgpu-ids-new"
GIVEN_NODE: Final = "volcano.sh/vgpu-node"

_FIELDS_MIN: Final = 5
_CARDS_MAX: Final = 1024


def vgpus_of(objects: Documents) -> Vgpus:
    """
    Return the cards that nodes register and what running Pods were given of them.

    Rule: docs/contracts/volcano-vgpu.md. What can't be read is named, and tells nothing.
    """
    cards: dict[str, tuple[VgpuCard, ...]] = {}
    unread: dict[str, str] = {}
    for node in objects.of_kind("Node"):
        text = _annotations(node).get(REGISTER)
        if text is not None:
            found = _registered(text)
            cards[node.name] = found or ()
            if found is None:
                unread[node.title] = f"{annotation_path(REGISTER)}: not as the plugin writes it"
    if not cards:
        return NO_VGPUS
    parts: dict[str, list[VgpuPart]] = {}
    for pod in objects.of_kind("Pod"):
        text = _annotations(pod).get(GIVEN)
        if text is None or is_ended(pod.body):
            continue
        bound = section(pod.body, "spec").get("nodeName")
        name = bound if isinstance(bound, str) and bound else _annotations(pod).get(GIVEN_NODE)
        given = _given(text)
        if given is None:
            unread[pod.title] = f"{annotation_path(GIVEN)}: not as the scheduler writes it"
        elif name in cards:
            parts.setdefault(name, []).extend(
                VgpuPart(
                    namespace=pod.namespace,
                    name=pod.name,
                    uid=pod.uid,
                    card=card,
                    core_percent=core,
                    memory_mib=memory,
                )
                for card, (memory, core) in given.items()
            )
    return Vgpus(cards=cards, parts=parts, unread=unread)


def _registered(text: str) -> tuple[VgpuCard, ...] | None:
    """Return the cards of a register: `:` parts them, `,` their fields; None for another text."""
    cards = []
    for place, entry in enumerate(filter(None, text.split(":"))):
        fields = entry.split(",")
        if len(fields) < _FIELDS_MIN or not _is_number(fields[2]) or place >= _CARDS_MAX:
            return None
        cards.append(
            VgpuCard(
                id=fields[0],
                minor=place,
                memory_mib=int(fields[2]),
                model=fields[3].removeprefix("NVIDIA-"),
                healthy=fields[4].strip().lower() in {"1", "t", "true"},
                in_slices=len(fields) > _FIELDS_MIN and fields[_FIELDS_MIN] == "mig",
            )
        )
    return tuple(cards)


def _given(text: str) -> Mapping[str, tuple[int, int]] | None:
    """
    Return card -> MiB and core percent of all containers; None for a text of another form.

    `;` parts containers, `:` their cards, `,` the fields: id, kind, MiB, core percent.
    """
    found: dict[str, tuple[int, int]] = {}
    for card, memory, core in _entries(text):
        if not (_is_number(memory) and _is_number(core)):
            return None
        before = found.get(card, (0, 0))
        found[card] = (before[0] + int(memory), before[1] + int(core))
    return found


def _entries(text: str) -> Iterator[tuple[str, str, str]]:
    for container in text.split(";"):
        for entry in filter(None, container.split(":")):
            fields = [*entry.split(","), "", "", "", ""]
            yield fields[0].partition("[")[0], fields[2], fields[3]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _annotations(document: Document) -> Mapping[str, str]:
    found = section(section(document.body, "metadata"), "annotations")
    return {key: value for key, value in found.items() if isinstance(value, str)}
