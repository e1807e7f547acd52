"""Devices out of a Device object, or out of the quantities of a Node that has none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ledger.domain.annotations.gpu_topology import decode_gpu_links
from ledger.domain.annotations.wire import (
    Amounts,
    a_flag,
    a_list,
    a_text,
    amounts,
    an_integer,
    an_object,
    each,
)
from ledger.domain.canonical import INTEGER_MAX
from ledger.domain.demands.gpushare import UNIT_BYTES
from ledger.domain.devices import WHOLE_PERCENT, DevicePlace, DeviceRecord, VirtualFunction
from ledger.domain.errors import InputError
from ledger.domain.object_fields import named, text_map
from ledger.domain.quantity import ZERO, Quantity
from ledger.domain.resources import (
    GPU_CORE,
    GPU_MEMORY,
    GPUSHARE_COUNT,
    GPUSHARE_MEMORY,
    MGPU_CORE,
    MGPU_MEMORY,
    NVIDIA_GPU,
    TYPE_GPU,
    Dialect,
    device_type_of,
)
from ledger.domain.topology import LinkMatrix

CARDS_MAX: Final = 1024
"""More cards on one node than any machine has: the quantity has the wrong unit."""

_MIB: Final = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """
    The devices of one node.

    Attributes:
        devices: ordered by (device_type, minor).
        dialects: GPU dialects the cards serve; None = every one.
    """

    devices: tuple[DeviceRecord, ...] = ()
    dialects: frozenset[Dialect] | None = None
    links: LinkMatrix | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cards:
    """What one dialect's quantities say of a node: how many cards, how much memory on each."""

    dialect: Dialect
    name: str
    count: int
    memory_bytes: int


def inventory_of_device(device: Mapping[str, object], model: str) -> Inventory:
    """
    Read the inventory of a Device object, in the release's spelling or the proposal's.

    Rule: Koordinator contract 3.1: `deviceType` for `type`, `resource` for `resources`, a missing
    minor is 0, a missing health is false, a missing resource counts 0 (quirk Q3, ours).

    Args:
        model: the card model, for GPUs.

    Raises:
        InputError: a wrong type, a bad quantity, two devices with one minor or one id.
    """
    spec = an_object(device.get("spec"), "spec")
    records = each(
        spec.get("devices"), "spec.devices", lambda item, path: _record(item, path, model)
    )
    _check_unique(records)
    links = decode_gpu_links(spec.get("topologies"))
    gpus = [record.minor for record in records if record.device_type == TYPE_GPU]
    warnings = []
    if links is not None and len(links) <= max(gpus, default=-1):
        warnings.append(
            f"link matrix ignored: it has {len(links)} rows for GPU minors up to {max(gpus)}"
        )
        links = None
    return Inventory(
        devices=tuple(sorted(records, key=lambda record: record.key)),
        links=links,
        warnings=tuple(warnings),
    )


def device_faults(device: Mapping[str, object]) -> Iterator[InputError]:
    """
    Yield everything that `inventory_of_device` would stop at, each with its field path.

    Rule: Koordinator contract 3.1, and there: a PCIe root belongs to one NUMA node.
    """
    try:
        spec = an_object(device.get("spec"), "spec")
        items = a_list(spec.get("devices"), "spec.devices")
    except InputError as error:
        yield error
        return
    records = []
    for number, item in enumerate(items):
        try:
            records.append((number, _record(item, f"spec.devices[{number}]", "")))
        except InputError as error:
            yield error
    yield from _repeated(records)
    yield from _torn_roots(records)
    try:
        decode_gpu_links(spec.get("topologies"))
    except InputError as error:
        yield error


def inventory_of_quantities(
    quantities: Mapping[str, Quantity], *, model: str, gpushare_unit: str
) -> Inventory:
    """
    Make up the cards that a Node's quantities describe.

    Rule: cli.md, Inventory without a Device object: each dialect's quantities serve that dialect
    only; several describe the same cards and the smallest count wins, with a warning; minors from
    0, no ids. Memory is divided evenly, rounded down; where none is given it is 0 (unknown).

    Raises:
        InputError: more cards than `CARDS_MAX`.
    """
    found = [cards for cards in _described(quantities, gpushare_unit) if cards.count]
    if not found:
        return Inventory(dialects=frozenset())
    least = min(found, key=lambda cards: cards.count)
    if least.count > CARDS_MAX:
        raise InputError(f"more cards than a node can have: value={least.count}", field=least.name)
    sizes = {cards.memory_bytes for cards in found if cards.memory_bytes}
    return Inventory(
        devices=tuple(
            DeviceRecord(
                device_type=TYPE_GPU,
                minor=minor,
                device_id="",
                model=model,
                memory_bytes=min(sizes, default=0),
            )
            for minor in range(least.count)
        ),
        dialects=frozenset(cards.dialect for cards in found),
        warnings=tuple(_disagreements(found, least.count, sizes)),
    )


def _disagreements(found: list[_Cards], count: int, sizes: set[int]) -> Iterator[str]:
    if any(cards.count != count for cards in found):
        listed = ", ".join(f"{cards.name} {cards.count}" for cards in found)
        yield f"resources describe different numbers of cards, the smallest counts: {listed}"
    if len(sizes) > 1:
        listed = ", ".join(f"{cards.name} {cards.memory_bytes}" for cards in found)
        yield f"resources describe different bytes per card, the smallest counts: {listed}"


def _described(quantities: Mapping[str, Quantity], gpushare_unit: str) -> Iterator[_Cards]:
    def units(name: str) -> int:
        return max(0, quantities.get(name, ZERO).ceil())

    mgpu = units(MGPU_CORE) // WHOLE_PERCENT
    yield _Cards(
        dialect=Dialect.MGPU,
        name=MGPU_CORE,
        count=mgpu,
        memory_bytes=units(MGPU_MEMORY) // max(1, mgpu) * _MIB,
    )
    shared = units(GPUSHARE_COUNT)
    yield _Cards(
        dialect=Dialect.GPUSHARE,
        name=GPUSHARE_COUNT,
        count=shared,
        memory_bytes=units(GPUSHARE_MEMORY) // max(1, shared) * UNIT_BYTES[gpushare_unit],
    )
    koordinator = units(GPU_CORE) // WHOLE_PERCENT
    yield _Cards(
        dialect=Dialect.KOORDINATOR,
        name=GPU_CORE,
        count=koordinator,
        memory_bytes=units(GPU_MEMORY) // max(1, koordinator),
    )
    yield _Cards(dialect=Dialect.NVIDIA, name=NVIDIA_GPU, count=units(NVIDIA_GPU), memory_bytes=0)


def _record(value: object, path: str, model: str) -> DeviceRecord:
    item = an_object(value, path)
    device_type = a_text(item.get("type", item.get("deviceType")), f"{path}.type")
    if not device_type:
        raise InputError("missing; expected gpu, rdma, fpga or another type", field=f"{path}.type")
    minor = item.get("minor")
    key = "resources" if item.get("resources") is not None else "resource"
    resources = amounts(named(item.get(key), f"{path}.{key}"), f"{path}.{key}")
    gpu = device_type == TYPE_GPU
    return DeviceRecord(
        device_type=device_type,
        minor=0 if minor is None else an_integer(minor, f"{path}.minor", least=0),
        device_id=a_text(item.get("id"), f"{path}.id"),
        model=model if gpu else "",
        core_percent=_capacity(resources, device_type, path),
        memory_bytes=_whole(dict(resources).get(GPU_MEMORY, ZERO), path) if gpu else 0,
        healthy=a_flag(item.get("health"), f"{path}.health", default=False),
        labels=text_map(item.get("labels"), f"{path}.labels"),
        place=_place(item.get("topology"), f"{path}.topology"),
        vfs=tuple(_functions(item.get("vfGroups"), f"{path}.vfGroups")),
    )


def _capacity(resources: Amounts, device_type: str, path: str) -> int:
    """Return a GPU's core percent, or the units of the one resource that another type counts in."""
    if device_type == TYPE_GPU:
        return _whole(dict(resources).get(GPU_CORE, ZERO), path)
    own = (quantity for name, quantity in resources if device_type_of(name) == device_type)
    return _whole(next(own, ZERO), path)


def _whole(quantity: Quantity, path: str) -> int:
    units = quantity.ceil()
    if units > INTEGER_MAX:
        raise InputError(
            f"beyond what can be counted exactly: value={quantity}", field=f"{path}.resources"
        )
    return units


def _place(value: object, path: str) -> DevicePlace | None:
    if value is None:
        return None
    place = an_object(value, path)
    return DevicePlace(
        socket=_index(place, "socketID", path),
        numa_node=_index(place, "nodeID", path),
        pcie_id=a_text(place.get("pcieID"), f"{path}.pcieID"),
        bus_id=a_text(place.get("busID"), f"{path}.busID"),
    )


def _index(place: Mapping[str, object], key: str, path: str) -> int:
    value = place.get(key)
    return -1 if value is None else an_integer(value, f"{path}.{key}", least=-1)


def _functions(value: object, path: str) -> Iterator[VirtualFunction]:
    for number, group in enumerate(each(value, path, an_object)):
        group_path = f"{path}[{number}]"
        labels = text_map(group.get("labels"), f"{group_path}.labels")
        for index, vf in enumerate(each(group.get("vfs"), f"{group_path}.vfs", an_object)):
            vf_path = f"{group_path}.vfs[{index}]"
            minor = vf.get("minor")
            yield VirtualFunction(
                minor=0 if minor is None else an_integer(minor, f"{vf_path}.minor", least=-1),
                bus_id=a_text(vf.get("busID"), f"{vf_path}.busID"),
                labels=labels,
            )


def _check_unique(records: tuple[DeviceRecord, ...]) -> None:
    for error in _repeated(enumerate(records)):
        raise error


def _repeated(records: Iterable[tuple[int, DeviceRecord]]) -> Iterator[InputError]:
    """Yield every device that has another one's minor or id; records with their place."""
    minors: set[tuple[str, int]] = set()
    ids: set[tuple[str, str]] = set()
    for number, record in records:
        path = f"spec.devices[{number}]"
        identity = (record.device_type, record.device_id)
        if record.key in minors:
            fact = f"two {record.device_type} devices have one minor: value={record.minor}"
            yield InputError(fact, field=f"{path}.minor")
        if record.device_id and identity in ids:
            fact = f"two {record.device_type} devices have one id: value={record.device_id!r}"
            yield InputError(fact, field=f"{path}.id")
        minors.add(record.key)
        ids.add(identity)


def _torn_roots(records: Iterable[tuple[int, DeviceRecord]]) -> Iterator[InputError]:
    """Yield every device whose PCIe root an earlier one has on another NUMA node."""
    nodes: dict[str, int] = {}
    for number, record in records:
        place = record.place
        if place is None or not place.pcie_id or place.numa_node < 0:
            continue
        node = nodes.setdefault(place.pcie_id, place.numa_node)
        if node != place.numa_node:
            fact = f"{place.pcie_id} is on NUMA node {node} above: value={place.numa_node}"
            yield InputError(fact, field=f"spec.devices[{number}].topology.nodeID")
