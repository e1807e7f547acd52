"""
The messages of kubelet's device plugin API, v1beta1, as protobuf classes made from their tables.

Rule: GPU-sharing contract D.1. The numbers are the wire's; names are those of the API, so that
protobuf's own JSON of a message reads as kubelet's documentation does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from ledger.domain.errors import InputError

VERSION: Final = "v1beta1"
_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "string": _FIELD.TYPE_STRING,
    "bool": _FIELD.TYPE_BOOL,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
}
_MAP: Final = "map"
"""The type of a field that maps strings to strings."""
_EVERY: Final = "every "
"""What a repeated field's type begins with."""

_TABLES: Final[Mapping[str, tuple[tuple[int, str, str], ...]]] = {
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
        (1, "envs", _MAP),
        (2, "mounts", "every Mount"),
        (3, "devices", "every DeviceSpec"),
        (4, "annotations", _MAP),
        (5, "cdi_devices", "every CDIDevice"),
    ),
    "AllocateResponse": ((1, "container_responses", "every ContainerAllocateResponse"),),
    "PreStartContainerRequest": ((1, "devices_ids", "every string"),),
    "PreStartContainerResponse": (),
}


def _described() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="tenure/deviceplugin.proto", package=VERSION, syntax="proto3"
    )
    for name, fields in _TABLES.items():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            _describe(message, number, field, kind)
    return file


def _describe(message: descriptor_pb2.DescriptorProto, number: int, field: str, kind: str) -> None:
    added = message.field.add(name=field, number=number, label=_FIELD.LABEL_OPTIONAL)
    if kind.startswith(_EVERY) or kind == _MAP:
        added.label = _FIELD.LABEL_REPEATED
    of = kind.removeprefix(_EVERY)
    if kind == _MAP:
        of = f"{message.name}.{field.title()}Entry"
        entry = message.nested_type.add(name=f"{field.title()}Entry")
        entry.options.map_entry = True
        _describe(entry, 1, "key", "string")
        _describe(entry, 2, "value", "string")
    if of in _SCALARS:
        added.type = _SCALARS[of]
    else:
        added.type, added.type_name = _FIELD.TYPE_MESSAGE, f".{VERSION}.{of}"


_POOL: Final = descriptor_pool.DescriptorPool()
_POOL.Add(_described())


def _class(name: str) -> Any:  # noqa: ANN401 - its fields are known when it is made
    described = _POOL.FindMessageTypeByName(f"{VERSION}.{name}")
    return message_factory.GetMessageClass(described)


Empty: Final = _class("Empty")
DevicePluginOptions: Final = _class("DevicePluginOptions")
RegisterRequest: Final = _class("RegisterRequest")
ListAndWatchResponse: Final = _class("ListAndWatchResponse")
AllocateRequest: Final = _class("AllocateRequest")
AllocateResponse: Final = _class("AllocateResponse")
ContainerAllocateResponse: Final = _class("ContainerAllocateResponse")
PreStartContainerRequest: Final = _class("PreStartContainerRequest")
PreStartContainerResponse: Final = _class("PreStartContainerResponse")


def devices_in(response: bytes) -> Iterable[str]:
    """
    Return the CDI devices that an answer of a plugin names, in its order.

    Raises:
        InputError: it is no such answer.
    """
    try:
        answer = ContainerAllocateResponse.FromString(response)
    except DecodeError as error:
        raise InputError(f"no answer of a device plugin: {error}") from error
    return tuple(device.name for device in answer.cdi_devices)
