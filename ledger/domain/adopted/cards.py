"""
A running Pod on its node, and shares of cards made out of what somebody wrote down about it.

The readers of single annotations, in `pods` and in the dialects, return what they found; None where
their annotation is absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from msgspec import structs

from ledger.domain import devices
from ledger.domain.annotations.checkpoints import DeviceCheckpoint
from ledger.domain.dialects.names import Dialect
from ledger.domain.kube.pod_spec import APP, ContainerSpec, PodSpec
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import DeviceDemand
from ledger.domain.resources import TYPE_GPU

UNITS_MAX: Final = 8_000_000
"""The most percent of a device that one Pod is said to hold, as of a request."""

BYTES_MAX: Final = 1 << 50
"""The most bytes of a device that one Pod is said to hold: a thousand times what cards have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """
    What one source says of a Pod.

    Attributes:
        shares: one per device, ordered by (device_type, minor).
        lost_types: device types whose cards it names but the node lacks, or names none of.
        doubtful: devices of `shares` that are only held in case: the source names another one too.
        unlisted_types: device types of which it names devices by ids that are none of the node's.
        faults: what it says wrongly, or against the Pod's own request; for people.
    """

    source: str
    shares: tuple[devices.DeviceShare, ...] = ()
    doubtful: frozenset[tuple[str, int]] = frozenset()
    lost_types: frozenset[str] = frozenset()
    unlisted_types: frozenset[str] = frozenset()
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asker:
    """A running Pod on its node, with all that a source may need to put numbers on a card."""

    spec: PodSpec
    node: NodeFacts
    demands: tuple[DeviceDemand, ...]
    dialect: Dialect | None
    checkpoints: tuple[DeviceCheckpoint, ...]

    def card(
        self, device_type: str, *, minor: int = -1, device_id: str = ""
    ) -> devices.DeviceRecord | None:
        """Return the node's device as `device_in` finds it."""
        return devices.device_in(self.node.devices, device_type, minor=minor, device_id=device_id)

    def apps(self) -> list[ContainerSpec]:
        """Return the entries of `spec.containers`, which annotations count from 0."""
        return [container for container in self.spec.containers if container.kind == APP]


Part: TypeAlias = tuple[str, devices.DeviceShare | None]
"""Device type and one container's or one line's share of a device; None is a lost card."""


def collect(source: str, parts: Iterable[Part], faults: Sequence[str] = ()) -> Found:
    """Merge shares of one device, several containers' or several lines'."""
    merged: dict[tuple[str, int], devices.DeviceShare] = {}
    lost = set[str]()
    for device_type, share in parts:
        if share is None:
            lost.add(device_type)
        elif share.key in merged:
            merged[share.key] = _merge(merged[share.key], share)
        else:
            merged[share.key] = share
    shares = [merged[key] for key in sorted(merged)]
    counted = [_counted(share) for share in shares]
    absurd = [
        f"more of {share.device_type} {share.minor} than can be counted"
        for share, kept in zip(shares, counted, strict=True)
        if share != kept
    ]
    return Found(
        source=source,
        shares=tuple(counted),
        lost_types=frozenset(lost),
        faults=(*faults, *absurd),
    )


def unreadable(source: str, fault: str) -> Found:
    """Say that a source exists but names no card: a GPU is held, nobody can tell which."""
    return Found(source=source, lost_types=frozenset({TYPE_GPU}), faults=(fault,))


def empty_share(card: devices.DeviceRecord) -> devices.DeviceShare:
    """Return a share of nothing of this card."""
    return devices.DeviceShare(
        device_type=card.device_type, minor=card.minor, device_id=card.device_id
    )


def whole_share(
    card: devices.DeviceRecord, containers: Sequence[ContainerSpec]
) -> devices.DeviceShare:
    """Return all of the card."""
    return structs.replace(
        empty_share(card),
        core_percent=card.core_percent,
        memory_bytes=card.memory_bytes,
        memory_ratio_percent=devices.WHOLE_PERCENT if card.device_type == TYPE_GPU else 0,
        exclusive=True,
        containers=_named(containers, card.core_percent, card.memory_bytes),
    )


def part_share(
    card: devices.DeviceRecord, core: int, memory: int, containers: Sequence[ContainerSpec]
) -> devices.DeviceShare:
    """Return so much of the card; `memory` in bytes."""
    return structs.replace(
        empty_share(card),
        core_percent=core,
        memory_bytes=memory,
        memory_ratio_percent=devices.bytes_to_ratio(memory, card.memory_bytes),
        containers=_named(containers, core, memory),
    )


def _counted(share: devices.DeviceShare) -> devices.DeviceShare:
    """
    Return the share with amounts that a sum over many Pods can still hold.

    An amount that is cut here over-fills every card, so the card is closed all the same.
    """
    return structs.replace(
        share,
        core_percent=min(share.core_percent, UNITS_MAX),
        memory_bytes=min(share.memory_bytes, BYTES_MAX),
        memory_ratio_percent=min(share.memory_ratio_percent, UNITS_MAX),
        containers=tuple(
            structs.replace(
                each,
                core_percent=min(each.core_percent, UNITS_MAX),
                memory_bytes=min(each.memory_bytes, BYTES_MAX),
            )
            for each in share.containers
        ),
    )


def _merge(one: devices.DeviceShare, other: devices.DeviceShare) -> devices.DeviceShare:
    return structs.replace(
        one,
        core_percent=one.core_percent + other.core_percent,
        memory_bytes=one.memory_bytes + other.memory_bytes,
        memory_ratio_percent=one.memory_ratio_percent + other.memory_ratio_percent,
        exclusive=one.exclusive or other.exclusive,
        instances=one.instances + other.instances,
        vf_bus_ids=(*one.vf_bus_ids, *other.vf_bus_ids),
        containers=(*one.containers, *other.containers),
    )


def _named(
    containers: Sequence[ContainerSpec], core: int, memory: int
) -> tuple[devices.ContainerShare, ...]:
    return tuple(
        devices.ContainerShare(
            container=container.name,
            index=container.index,
            core_percent=core,
            memory_bytes=memory,
        )
        for container in containers
    )
