"""
What running Pods hold by kubelet's own file, as the Device object repeats it.

Kubelet keeps what an init container had until the Pod ends, and gives it to the containers after
it: what a Pod holds of a device is every id of it once, however many containers have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from ledger.domain.adopted.cards import Asker, Found, Part, collect, part_share, whole_share
from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.dialects.registry import READERS
from ledger.domain.kube.pod_spec import INIT, ContainerSpec
from ledger.domain.resources import TYPE_GPU

DEVICES_CHECKPOINTS: Final = "devices-checkpoints"

_REPLICA_SEPARATORS: Final = ("-_-", "::")
"""Fake device ids end in one of these and a number (GPU-sharing contract D.2)."""

_Ids = dict[str, set[str]]
"""Container name -> the ids of one device that it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Device:
    """A device that kubelet names; `unit_bytes` where every id is so much of its memory."""

    device_type: str
    device_id: str
    unit_bytes: int


def from_checkpoints(asker: Asker) -> Found | None:
    """
    Return what kubelet gave: whole cards, unless an id is one unit of a card's memory.

    Rule: Koordinator contract 2.7; GPU-sharing contract B.5, D.2; design section 3.
    """
    given = _given(asker)
    if given is None:
        return None

    def pairs() -> Iterator[Part]:
        for device, ids in given.items():
            card = asker.card(device.device_type, device_id=device.device_id)
            named = [one for one in asker.spec.containers if one.name in ids]
            if card is None:
                yield device.device_type, None
            elif device.unit_bytes:
                yield device.device_type, _memory_share(card, ids, named, device.unit_bytes)
            else:
                yield device.device_type, whole_share(card, named)

    return collect(DEVICES_CHECKPOINTS, pairs())


def gpu_ids(asker: Asker) -> frozenset[str]:
    """Return the ids of GPUs that kubelet gave; two of them may be replicas of one card."""
    return frozenset(
        device_id
        for entry in asker.checkpoints
        if asker.spec.vocabulary.device_type_of(entry.resource_name) == TYPE_GPU
        for device_id in entry.device_ids
    )


def _given(asker: Asker) -> Mapping[_Device, _Ids] | None:
    """Return the ids by device and container; None where no entry is for a device of ours."""
    given: dict[_Device, _Ids] = {}
    exists = False
    for entry in asker.checkpoints:
        device_type = asker.spec.vocabulary.device_type_of(entry.resource_name)
        if device_type is None:
            continue
        exists = True
        units = (
            reader.unit_bytes(entry.resource_name, asker.spec.vocabulary) for reader in READERS
        )
        unit_bytes = max(units)
        for text in entry.device_ids:
            device = _Device(
                device_type=device_type, device_id=real_id(text), unit_bytes=unit_bytes
            )
            given.setdefault(device, {}).setdefault(entry.container_name, set()).add(text)
    return given if exists else None


def _memory_share(
    card: DeviceRecord, ids: _Ids, named: Iterable[ContainerSpec], unit_bytes: int
) -> DeviceShare:
    containers = list(named)
    parts = [part_share(card, 0, len(ids[one.name]) * unit_bytes, (one,)) for one in containers]
    share = part_share(card, 0, len(set().union(*ids.values())) * unit_bytes, ())
    return structs.replace(
        share,
        instances=max(1, sum(one.kind != INIT for one in containers)),
        containers=tuple(named for part in parts for named in part.containers),
    )


def real_id(device_id: str) -> str:
    """Return the device behind a replica's id, `<id>::3` or `<id>-_-3`; other ids as they are."""
    for separator in _REPLICA_SEPARATORS:
        head, found, tail = device_id.rpartition(separator)
        if found and tail.isascii() and tail.isdigit():
            return head
    return device_id
