"""
The messages of kubelet's device plugin API, v1beta1, as protobuf classes made from their tables.

Rule: GPU-sharing contract D.1. The numbers are the wire's; names are those of the API, so that
protobuf's own JSON of a message reads as kubelet's documentation does. At the end: what whoever
serves a resource answers, whichever resource it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError

from agent.protobuf import MAP, Tables, classes
from ledger.domain.errors import InputError, TenureError

VERSION: Final = "v1beta1"
_TABLES: Final[Tables] = {
    "Empty": (),
    "DevicePluginOptions": (
        (1, "pre_start_required", "bool"),
        (2, "get_preferred_allocation_available", "bool"),
    ),
    "RegisterRequest": (
        (1, "version", "string"),
        (2, "endpoint", "string"),
        (3, "resource_name", "string"),
        (4, "options", "DevicePluginOptions"),
    ),
    "NUMANode": ((1, "ID", "int64"),),
    "TopologyInfo": ((1, "nodes", "every NUMANode"),),
    "Device": ((1, "ID", "string"), (2, "health", "string"), (3, "topology", "TopologyInfo")),
    "ListAndWatchResponse": ((1, "devices", "every Device"),),
    "ContainerAllocateRequest": ((1, "devices_ids", "every string"),),
    "AllocateRequest": ((1, "container_requests", "every ContainerAllocateRequest"),),
    "Mount": (
        (1, "container_path", "string"),
        (2, "host_path", "string"),
        (3, "read_only", "bool"),
    ),
    "DeviceSpec": (
        (1, "container_path", "string"),
        (2, "host_path", "string"),
        (3, "permissions", "string"),
    ),
    "CDIDevice": ((1, "name", "string"),),
    "ContainerAllocateResponse": (
        (1, "envs", MAP),
        (2, "mounts", "every Mount"),
        (3, "devices", "every DeviceSpec"),
        (4, "annotations", MAP),
        (5, "cdi_devices", "every CDIDevice"),
    ),
    "AllocateResponse": ((1, "container_responses", "every ContainerAllocateResponse"),),
    "ContainerPreferredAllocationRequest": (
        (1, "available_deviceIDs", "every string"),
        (2, "must_include_deviceIDs", "every string"),
        (3, "allocation_size", "int32"),
    ),
    "PreferredAllocationRequest": (
        (1, "container_requests", "every ContainerPreferredAllocationRequest"),
    ),
    "ContainerPreferredAllocationResponse": ((1, "deviceIDs", "every string"),),
    "PreferredAllocationResponse": (
        (1, "container_responses", "every ContainerPreferredAllocationResponse"),
    ),
    "PreStartContainerRequest": ((1, "devices_ids", "every string"),),
    "PreStartContainerResponse": (),
}


_class: Final = classes(VERSION, _TABLES)

Empty: Final = _class("Empty")
DevicePluginOptions: Final = _class("DevicePluginOptions")
RegisterRequest: Final = _class("RegisterRequest")
ListAndWatchResponse: Final = _class("ListAndWatchResponse")
AllocateRequest: Final = _class("AllocateRequest")
AllocateResponse: Final = _class("AllocateResponse")
ContainerAllocateResponse: Final = _class("ContainerAllocateResponse")
PreferredAllocationRequest: Final = _class("PreferredAllocationRequest")
PreferredAllocationResponse: Final = _class("PreferredAllocationResponse")
PreStartContainerRequest: Final = _class("PreStartContainerRequest")
PreStartContainerResponse: Final = _class("PreStartContainerResponse")
MESSAGE_MAX: Final = 4 * 2**20
"""Kubelet takes no longer message, such as the list of all ids."""


def devices_in(response: bytes) -> Iterable[str]:
    """Return an answer's CDI devices, in its order. Raises InputError: it is no such answer."""
    return tuple(device.name for device in _answer(response).cdi_devices)


def envs_in(response: bytes) -> Mapping[str, str]:
    """Return an answer's environment. Raises InputError: it is no such answer."""
    return dict(_answer(response).envs)


def _answer(response: bytes) -> Any:  # noqa: ANN401 - a message
    try:
        return ContainerAllocateResponse.FromString(response)
    except DecodeError as error:
        raise InputError(f"no answer of a device plugin: {error}") from error


class NotYetError(TenureError):
    """What is needed is not known yet; kubelet's record or the ledger's may still come. Retry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocated:
    """The fields of a ContainerAllocateResponse, and what is logged of it."""

    answer: Mapping[str, Any]
    told: Mapping[str, object]
