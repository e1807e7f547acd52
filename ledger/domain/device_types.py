"""
The types of devices beside GPUs, as data: what a Pod asks for, in which unit, and what else counts.

RDMA and FPGA are built in; settings add others (an NPU, an encoder, a quantum card) without any
code that knows them. The ledger needs none of this to be read: it holds types by name, with core
percent and bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ledger.domain import resources as words
from ledger.domain.annotations.wire import a_flag, a_list, a_text, an_object
from ledger.domain.dialects.names import REFUSED_RESOURCES
from ledger.domain.errors import InputError

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_RESOURCE: Final = re.compile(
    r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_FIELDS: Final = frozenset(
    {"resource", "aliases", "unit", "memory", "virtualFunctions", "modelLabel", "uniqueIds"}
)


class Unit(StrEnum):
    """What one of a type's resource is."""

    PERCENT = "percent"
    """A hundredth of a device; up to 100 is a part of one, above it whole ones."""
    COUNT = "count"
    """A whole device, which nobody shares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceType:
    """
    One type of device.

    Attributes:
        name: as the Device object says it (`type: rdma`).
        resource: what Pods ask for and Device objects report.
        memory: the resource that counts bytes of the device's memory; empty = it has none.
        aliases: other spellings of `resource` that are read.
        virtual_functions: whether its virtual functions can be handed out.
        model_label: the label of the Device object, or of one device, that names the model.
        unique_ids: whether the id of a device is its own in the whole world, as a GPU's UUID is.
    """

    name: str
    resource: str
    unit: Unit = Unit.PERCENT
    memory: str = ""
    aliases: tuple[str, ...] = ()
    virtual_functions: bool = True
    model_label: str = ""
    unique_ids: bool = False

    @property
    def resources(self) -> tuple[str, ...]:
        """Return the resources of the type, without aliases."""
        return (self.resource, self.memory) if self.memory else (self.resource,)


BUILT_IN: Final = (
    DeviceType(name=words.TYPE_FPGA, resource=words.FPGA, aliases=(words.FPGA_PROPOSAL,)),
    DeviceType(name=words.TYPE_RDMA, resource=words.RDMA, aliases=(words.RDMA_PROPOSAL,)),
)

# deviceTypes:
#   npu: {resource: example.com/npu, unit: count}
#   xpu: {resource: koordinator.sh/xpu, memory: koordinator.sh/xpu-memory,
#         aliases: [kubernetes.io/xpu], virtualFunctions: false,
#         modelLabel: node.koordinator.sh/xpu-model}


def read_device_types(section: object) -> tuple[DeviceType, ...]:
    """
    Read the `deviceTypes` section of a settings file, by name.

    Rule: docs, Device types.

    Raises:
        InputError: an unknown field, a name or resource that is no such name, a resource of two
            types or of GPUs; with its path inside the section.
    """
    types = tuple(
        _read_type(name, an_object(item, str(name)))
        for name, item in sorted(an_object(section, "").items(), key=lambda pair: str(pair[0]))
    )
    _check_distinct(types)
    return types


def _read_type(name: object, item: Mapping[str, object]) -> DeviceType:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(f"not the name of a type, such as npu: value={name!r}", field=str(name))
    if name == words.TYPE_GPU:
        raise InputError("GPUs have dialects of their own and can't be described", field=name)
    for field in item:
        if field not in _FIELDS:
            raise InputError("unknown setting", field=f"{name}.{field}")
    resource = _resource(item.get("resource"), f"{name}.resource")
    memory = item.get("memory")
    unit = _unit(item.get("unit"), f"{name}.unit")
    if memory is not None and unit is Unit.COUNT:
        fact = "a device that is only handed out whole has no memory to ask for"
        raise InputError(fact, field=f"{name}.memory")
    path = f"{name}.aliases"
    return DeviceType(
        name=name,
        resource=resource,
        unit=unit,
        memory="" if memory is None else _resource(memory, f"{name}.memory"),
        aliases=tuple(
            _resource(alias, f"{path}[{number}]")
            for number, alias in enumerate(a_list(item.get("aliases"), path))
        ),
        virtual_functions=a_flag(
            item.get("virtualFunctions"), f"{name}.virtualFunctions", default=True
        ),
        model_label=a_text(item.get("modelLabel"), f"{name}.modelLabel"),
        unique_ids=a_flag(item.get("uniqueIds"), f"{name}.uniqueIds", default=False),
    )


def _unit(value: object, path: str) -> Unit:
    text = a_text(value, path) or Unit.PERCENT
    if text not in set(Unit):
        raise InputError(f"must be percent or count: value={text!r}", field=path)
    return Unit(text)


def _resource(value: object, path: str) -> str:
    name = a_text(value, path)
    if not _RESOURCE.fullmatch(name):
        fact = f"not the name of an extended resource, such as example.com/npu: value={name!r}"
        raise InputError(fact, field=path)
    return name


def _check_distinct(types: Iterable[DeviceType]) -> None:
    mine = {kind.name for kind in types}
    taken = {
        name
        for kind in BUILT_IN
        if kind.name not in mine
        for name in (*kind.resources, *kind.aliases)
    }
    owners: dict[str, str] = {}
    for kind in types:
        for name in (*kind.resources, *kind.aliases):
            refused = name in REFUSED_RESOURCES or name.startswith(words.MIG_PREFIX)
            if name == words.SLOT or name in taken or name in words.GPU_SPELLINGS or refused:
                raise InputError(f"means something already: value={name!r}", field=kind.name)
            if name in owners:
                fact = f"named twice, here and for {owners[name]}: value={name!r}"
                raise InputError(fact, field=kind.name)
            owners[name] = kind.name
        if words.is_native(kind.resource):
            fact = f"a resource of Kubernetes itself; only an alias: value={kind.resource!r}"
            raise InputError(fact, field=f"{kind.name}.resource")
