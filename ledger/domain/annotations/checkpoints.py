"""Devices that kubelet gave away before us: `devices-checkpoints` on the Device object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from ledger.domain.annotations.wire import a_name, dump, present
from ledger.domain.resources import (
    ANNOTATION_DEVICES_CHECKPOINTS,
    ANNOTATION_DEVICES_CHECKPOINTS_PROPOSAL,
)
from ledger.domain.typed import read_json


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCheckpoint:
    """
    Devices of one resource that kubelet gave to one container. Order of ids says nothing.

    Attributes:
        alloc_resp: kubelet's answer as written, base64 or not: nothing is read out of it.
    """

    pod_uid: Annotated[str, partial(a_name, what="a Pod UID")]
    container_name: str = ""
    resource_name: str = ""
    device_ids: tuple[str, ...] = ()
    alloc_resp: str = ""


# [{"podUID": "fa8ef004-52b1-4c54-9a0e-1b7f1f0c9a77", "containerName": "trainer",
#   "resourceName": "nvidia.com/gpu",
#   "deviceIDs": ["GPU-5d0f6c1e-0b7a-4f0e-9b1e-2f5b7c1d9a44"], "allocResp": "base64…"}]


def read_devices_checkpoints(annotations: Mapping[str, str]) -> tuple[DeviceCheckpoint, ...]:
    """
    Return the entries of a Device object, none without the annotation.

    Rule: Koordinator contract 2.7: both keys are read, `devices-checkpoints` wins. Raises
    InputError: broken JSON or an entry without `podUID`.
    """
    for key in (ANNOTATION_DEVICES_CHECKPOINTS, ANNOTATION_DEVICES_CHECKPOINTS_PROPOSAL):
        if key in annotations:
            return decode_devices_checkpoints(annotations[key], key)
    return ()


def decode_devices_checkpoints(
    text: str, key: str = ANNOTATION_DEVICES_CHECKPOINTS
) -> tuple[DeviceCheckpoint, ...]:
    """Read the entries of one key, in the order written; see `read_devices_checkpoints`."""
    return read_json(tuple[DeviceCheckpoint, ...], text, key)


def encode_devices_checkpoints(entries: tuple[DeviceCheckpoint, ...]) -> str:
    """Write the entries; empty fields are left out."""
    return dump(
        [
            present(
                {
                    "podUID": entry.pod_uid,
                    "containerName": entry.container_name,
                    "resourceName": entry.resource_name,
                    "deviceIDs": list(entry.device_ids),
                    "allocResp": entry.alloc_resp,
                }
            )
            for entry in entries
        ]
    )
