"""What the Pods of this node hold, device by device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from agent.decide.node_holdings import HeldByPod
from ledger.domain.annotations.proof import EVERY

_INIT = "init-"

Amounts = tuple[int, int]
"""Core percent and bytes."""
DeviceKey = tuple[str, str]
"""Type and id."""


class HeldHere(Protocol):
    """Who holds what on this node, as the ledger says; both are quick."""

    def pods(self) -> Sequence[HeldByPod] | None:
        """Return what every Pod holds; None where nobody knows. Raises InputError likewise."""
        ...

    def version(self) -> object:
        """Return what differs from before once `pods` may say something else."""
        ...


def held_of(pods: Iterable[HeldByPod]) -> Mapping[DeviceKey, Amounts]:
    """
    Return what is held of each device.

    Rule: design section 3: app containers hold beside one another, init containers reuse what those
    hold; what has no container is the whole Pod's.
    """
    held: dict[DeviceKey, Amounts] = {}
    for pod in pods:
        for device in pod.devices:
            key = (device.device_type, device.device_id)
            core, size = held.get(key, (0, 0))
            own_core, own_size = _of_pod(pod, key)
            held[key] = (core + own_core, size + own_size)
    return held


def _of_pod(pod: HeldByPod, key: DeviceKey) -> Amounts:
    apps, first = (0, 0), (0, 0)
    whole = (0, 0)
    for container in pod.containers:
        for device in container.devices:
            if (device.device_type, device.device_id) != key:
                continue
            amounts = (device.core_percent, device.memory_bytes)
            if container.index == EVERY:
                whole = _sum(whole, amounts)
            elif container.index.startswith(_INIT):
                first = (max(first[0], amounts[0]), max(first[1], amounts[1]))
            else:
                apps = _sum(apps, amounts)
    return _sum(whole, (max(apps[0], first[0]), max(apps[1], first[1])))


def _sum(a: Amounts, b: Amounts) -> Amounts:
    return (a[0] + b[0], a[1] + b[1])
