"""The shares of the chosen devices, with what each container gets of them."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from ledger.domain.devices import GPU, WHOLE_PERCENT, ContainerShare, DeviceShare, bytes_to_ratio
from ledger.domain.kube.pod_spec import INIT
from ledger.domain.request.asked import containers_on
from ledger.domain.request.requests import ContainerNeed, DeviceDemand, PodRequest
from scheduler.decide.cards.fit import asked_bytes, core_percent_on
from scheduler.decide.outcome import CardView


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
