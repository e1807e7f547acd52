"""The shares of the chosen devices, with what each container gets of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from ledger.domain.devices import (
    GPU,
    WHOLE_PERCENT,
    ContainerShare,
    DeviceShare,
    bytes_to_ratio,
)
from ledger.domain.request.requests import ContainerNeed, DeviceDemand, PodRequest
from scheduler.decide.cards.fit import asked_bytes, core_percent_on
from scheduler.decide.outcome import CardView

INIT: Final = "init"
SIDECAR: Final = "sidecar"


def shares_of(
    request: PodRequest, device_type: str, chosen: Sequence[tuple[CardView, DeviceDemand]]
) -> list[DeviceShare]:
    """
    Return one share per chosen device, both memory numbers filled.

    Rule: Koordinator contract 4.5 and 4.1 "ours"; design section 3 (containers).

    Containers take the devices in the order given here.
    """
    users = containers_on(request.containers, device_type, len(chosen))
    return [
        _share(card, demand, needs) for (card, demand), needs in zip(chosen, users, strict=True)
    ]


def containers_on(
    needs: Sequence[ContainerNeed], device_type: str, count: int
) -> list[list[ContainerNeed]]:
    """
    Return which containers use the first, second, ... of the Pod's `count` devices.

    Rule: design section 3: app containers and sidecars take disjoint devices in spec order; an
    init container reuses the first ones that no sidecar started before it holds.

    Where the containers' numbers don't add up to devices of their own (two that ask for parts of
    one NIC) nobody is named: the whole Pod shares.
    """
    users: list[list[ContainerNeed]] = [[] for _ in range(count)]
    asked = [(need, dict(need.device_counts).get(device_type, 0)) for need in needs]
    if sum(number for need, number in asked if need.kind != INIT) > count:
        return users
    place, kept = 0, set[int]()
    for need, number in asked:
        if need.kind == INIT:
            free = [position for position in range(count) if position not in kept]
            taken: Sequence[int] = free[:number]
        else:
            taken, place = range(place, place + number), place + number
            if need.kind == SIDECAR:
                kept.update(taken)
        for position in taken:
            users[position].append(need)
    return users


def whole_pod_share(request: PodRequest, card: CardView, demand: DeviceDemand) -> DeviceShare:
    """
    Return the share of a device that all containers of the Pod use together.

    It names no container; those that run side by side all count as instances.
    """
    running = [
        need
        for need in request.containers
        if need.kind != INIT and dict(need.device_counts).get(demand.device_type, 0)
    ]
    return structs.replace(_share(card, demand, ()), instances=max(1, len(running)))


def held_by(need: ContainerNeed, gpus: Sequence[DeviceShare]) -> list[DeviceShare]:
    """
    Return the shares one container uses, by minor.

    A share that names no container belongs to every container that asks for GPUs.
    """
    asks = any(count for device_type, count in need.device_counts if device_type == GPU)
    return [
        share
        for share in gpus
        if any(part.index == need.index for part in share.containers)
        or (asks and not share.containers)
    ]


def _share(card: CardView, demand: DeviceDemand, needs: Sequence[ContainerNeed]) -> DeviceShare:
    record = card.record
    total = record.memory_bytes
    memory_bytes = asked_bytes(demand, total)
    core_percent = core_percent_on(card, demand)
    return DeviceShare(
        device_type=record.device_type,
        minor=record.minor,
        device_id=record.device_id,
        core_percent=core_percent,
        memory_bytes=memory_bytes,
        memory_ratio_percent=_ratio(demand, memory_bytes, total),
        exclusive=demand.exclusive,
        containers=tuple(
            ContainerShare(
                container=need.name,
                index=need.index,
                core_percent=core_percent,
                memory_bytes=memory_bytes,
            )
            for need in needs
        ),
    )


def _ratio(demand: DeviceDemand, memory_bytes: int, total_bytes: int) -> int:
    """Return the ratio shown for a share: as asked, else from the bytes, at least 1."""
    if demand.memory_ratio_percent:
        return demand.memory_ratio_percent
    if demand.exclusive and not demand.memory_bytes:
        return WHOLE_PERCENT if demand.device_type == GPU else 0
    return bytes_to_ratio(memory_bytes, total_bytes)
