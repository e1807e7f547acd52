"""Protobuf classes made from tables of their fields, so that no compiler has to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_SCALARS: Final = {
    "string": _FIELD.TYPE_STRING,
    "bytes": _FIELD.TYPE_BYTES,
    "bool": _FIELD.TYPE_BOOL,
    "int32": _FIELD.TYPE_INT32,
    "int64": _FIELD.TYPE_INT64,
    "uint64": _FIELD.TYPE_UINT64,
}
MAP: Final = "map"
"""The type of a field that maps strings to strings."""
_EVERY: Final = "every "
"""What a repeated field's type begins with."""

Tables = Mapping[str, tuple[tuple[int, str, str], ...]]
"""Message -> number, name and type of each field; what is not named is not read."""


def classes(package: str, tables: Tables) -> Callable[[str], Any]:
    """Return what gives the class of a message of the package by its name."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"tenure/{package}.proto", package=package, syntax="proto3"
    )
    for name, fields in tables.items():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            _describe(package, message, number, field, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)

    def of(name: str) -> Any:  # noqa: ANN401 - its fields are known when it is made
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))

    return of


def _describe(
    package: str, message: descriptor_pb2.DescriptorProto, number: int, field: str, kind: str
) -> None:
    added = message.field.add(name=field, number=number, label=_FIELD.LABEL_OPTIONAL)
    if kind.startswith(_EVERY) or kind == MAP:
        added.label = _FIELD.LABEL_REPEATED
    of = kind.removeprefix(_EVERY)
    if kind == MAP:
        of = f"{message.name}.{field.title()}Entry"
        entry = message.nested_type.add(name=f"{field.title()}Entry")
        entry.options.map_entry = True
        _describe(package, entry, 1, "key", "string")
        _describe(package, entry, 2, "value", "string")
    if of in _SCALARS:
        added.type = _SCALARS[of]
    else:
        added.type, added.type_name = _FIELD.TYPE_MESSAGE, f".{package}.{of}"
