"""What a node's sources say, made by hand: cards, containers, and what they were made with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from agent.checkpoint import DeviceCheckpoint, DeviceEntry
from agent.discover.machine import Card, CardProcess, MigInstance, Place
from agent.witness.said import (
    INFO,
    RUNNING,
    ContainerStatusResponse,
    Given,
    Inside,
    Listed,
    inside,
)
from agent.witness.seen import Read, Seen, seen

NVIDIA: Final = "nvidia.com/gpu"
LABELS: Final = "io.kubernetes"


def card(number: int, *pids: int, bus: str = "", instances: tuple[str, ...] = ()) -> Card:
    """Return a card whose minor is not its place in the order of PCI addresses."""
    return Card(
        uuid=f"GPU-{number}",
        minor=7 - number,
        memory_bytes=80 << 30,
        place=Place(bus_id=bus or f"0000:{number:02x}:00.0"),
        instances=tuple(MigInstance(uuid=uuid) for uuid in instances),
        processes=tuple(CardProcess(pid=pid) for pid in pids),
    )


def listed(pod: str, name: str = "main", state: int = RUNNING, *, again: str = "") -> Listed:
    """Return a container of a Pod; `again` tells it from the one before its restart."""
    return Listed(
        container_id=f"{pod}-{name}{again}",
        state=state,
        pod_uid=f"uid-{pod}",
        namespace="ml",
        pod_name=pod,
        name=name,
    )


def kept(pod: str, *ids: str, name: str = "main", resource: str = NVIDIA) -> DeviceEntry:
    """Return an entry of kubelet's file."""
    return DeviceEntry(
        pod_uid=f"uid-{pod}",
        container=name,
        resource=resource,
        device_ids={-1: ids},
        response=b"",
    )


def given(pod: str, *ids: str, name: str = "main", resource: str = NVIDIA) -> Given:
    """Return a part of kubelet's answer."""
    return Given(pod=("ml", pod), container=name, resource=resource, ids=frozenset(ids))


def read(
    *entries: DeviceEntry,
    answer: Iterable[Given] = (),
    containers: Iterable[Listed] = (),
    made: Mapping[str, Inside] | None = None,
    **changes: Any,  # noqa: ANN401 - fields of Read
) -> Read:
    """Return what was read of all sources; containers were made with nothing unless it is said."""
    there = tuple(containers)
    facts: dict[str, Any] = {
        "checkpoint": DeviceCheckpoint(entries=entries),
        "given": tuple(answer),
        "containers": there,
        "inside": {one.container_id: Inside() for one in there} | dict(made or {}),
        **changes,
    }
    return Read(**facts)


def look(cards: Iterable[Card], said: Read) -> Seen:
    """Look at cards that are NVIDIA's."""
    return seen(tuple(cards), said, is_card=lambda resource: resource == NVIDIA)


def status(info: object, **fields: Any) -> Any:  # noqa: ANN401 - a message
    """Return a runtime's verbose answer."""
    text = info if isinstance(info, str) else json.dumps(info)
    return ContainerStatusResponse(status={"id": "c", **fields}, info={INFO: text})


def made_with(**env: str) -> Inside:
    """Return a container with this environment."""
    spec = {"process": {"env": [f"{key}={value}" for key, value in env.items()]}}
    return inside(status({"runtimeSpec": spec}))


def cards_with(seen: Seen, pod_uid: str) -> frozenset[str]:
    """Return the cards that a Pod is on."""
    return frozenset(
        card.uuid
        for card in seen.cards
        if any(whose.pod_uid == pod_uid for whose, _ in card.holders)
    )
