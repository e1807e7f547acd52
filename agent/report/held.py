"""What the Pods of this node hold, device by device, and what they ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from agent.decide.node_holdings import CpuClaim, HeldByPod
from ledger.domain.annotations.proof import EVERY
from ledger.domain.kube.object_fields import text_in
from ledger.domain.kube.pod_spec import ENDED_PHASES, pod_total, read_pod
from ledger.domain.vocabulary import Vocabulary

_INIT: Final = "init-"

Amounts = tuple[int, int]
"""Core percent and bytes."""
DeviceKey = tuple[str, str]
"""Type and id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the Pods that live on this node ask for in sum, by resource, as kubelet counts it."""

    amounts: Mapping[str, int]
    pod_uids: frozenset[str]


class NodeWord(Protocol):
    """Who holds what on this node; no answer takes long."""

    def pods(self) -> Sequence[HeldByPod] | None:
        """Return what every Pod holds, as the ledger says; None where nobody knows."""

    def cpu_claims(self) -> Sequence[CpuClaim] | None:
        """Return which claims have CPUs; None where nobody knows."""

    def asked(self) -> Asked | None:
        """Return what kubelet's Pods ask for; None where nobody knows."""

    def version(self) -> object:
        """Return what differs from before once another answer may."""


def asked_by_living(pods: Iterable[Mapping[str, Any]], vocabulary: Vocabulary) -> Asked:
    """
    Return what living Pods ask for.

    Args:
        pods: objects, as kubelet tells them. One that has ended asks for nothing.

    Raises:
        InputError: one of them can't be read, so that nobody knows the sum.
    """
    amounts: dict[str, int] = {}
    uids = []
    for pod in pods:
        if text_in(pod, "status", "phase") in ENDED_PHASES:
            continue
        spec = read_pod(pod, vocabulary)
        uids.append(spec.uid)
        total = pod_total(
            (one.kind, {name: amount.ceil() for name, amount in one.requests.items()})
            for one in spec.containers
        )
        for name, amount in total.items():
            amounts[name] = amounts.get(name, 0) + amount
    return Asked(amounts=amounts, pod_uids=frozenset(uids))


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
