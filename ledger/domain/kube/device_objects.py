"""Devices out of a Device object, or out of the quantities of a Node that has none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Annotated, Final

import msgspec

from ledger.domain.annotations import wire
from ledger.domain.annotations.gpu_topology import decode_gpu_links
from ledger.domain.bounds import bounds_of
from ledger.domain.device_types import DeviceType, Unit
from ledger.domain.devices import WHOLE_PERCENT, DeviceRecord, DeviceTopology, VirtualFunction
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.protocol import Adverts, Listed
from ledger.domain.dialects.registry import READERS
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import labels_of, named, spec_of, text_map
from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.domain.quantity import ZERO, Quantity
from ledger.domain.resources import (
    CARD_AMOUNT_NAMES,
    GPU_CORE,
    GPU_MEMORY,
    HUAWEI_NPU_CORE,
    TYPE_GPU,
)
from ledger.domain.topology import LinkMatrix
from ledger.domain.typed import read
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary

CARDS_MAX: Final = 1024
"""More cards on one node than any machine has: the quantity has the wrong unit."""

_UNITS_MAX: Final = bounds_of("core_percent")[1]

_Described = tuple[Dialect, Adverts]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """
    The devices of one node.

    Attributes:
        devices: ordered by (device_type, minor).
        dialects: GPU dialects the cards serve; None = every one.
        card_amounts: as in `NodeFacts`.
    """

    devices: tuple[DeviceRecord, ...] = ()
    dialects: frozenset[Dialect] | None = None
    card_amounts: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    links: LinkMatrix | None = None
    warnings: tuple[str, ...] = ()


def inventory_of_device(
    device: Mapping[str, object], model: str, vocabulary: Vocabulary = DEFAULT_VOCABULARY
) -> Inventory:
    """
    Read the inventory of a Device object, in the release's spelling or the proposal's.

    Rule: Koordinator contract 3.1: `deviceType` for `type`, `resource` for `resources`, a missing
    minor is 0, a missing health is false, a missing resource counts 0 (quirk Q3, ours).

    Raises:
        InputError: a wrong type, a bad quantity, two devices with one minor or one id.
    """
    spec, labels = spec_of(device), labels_of(device)

    def record(item: object, path: str) -> DeviceRecord:
        like = _like(item, model, labels, vocabulary)
        return like or _record(item, path, model, labels, vocabulary)

    records = wire.each(spec.get("devices"), "spec.devices", record)
    for error in _repeated(enumerate(records)):
        raise error
    links = decode_gpu_links(spec.get("topologies"))
    gpus = [record.minor for record in records if record.device_type == TYPE_GPU]
    warnings = []
    if links is not None and len(links) <= max(gpus, default=-1):
        warnings.append(
            f"link matrix ignored: it has {len(links)} rows for GPU minors up to {max(gpus)}"
        )
        links = None
    strangers = dict.fromkeys(record.device_type for record in records)
    warnings += [
        f"devices of a type that no setting describes are not offered: type={name}"
        for name in strangers
        if not vocabulary.is_known_type(name)
    ]
    return Inventory(
        devices=tuple(sorted(records, key=lambda record: record.key)),
        card_amounts=_card_amounts(spec.get("devices")),
        links=links,
        warnings=tuple(warnings),
    )


def device_faults(
    device: Mapping[str, object], vocabulary: Vocabulary = DEFAULT_VOCABULARY
) -> Iterator[InputError]:
    """
    Yield everything that `inventory_of_device` would stop at, each with its field path.

    Rule: Koordinator contract 3.1, and there: a PCIe root belongs to one NUMA node.
    """
    try:
        labels, spec = labels_of(device), spec_of(device)
        items = wire.a_list(spec.get("devices"), "spec.devices")
    except InputError as error:
        yield error
        return
    records = []
    for number, item in enumerate(items):
        try:
            path = f"spec.devices[{number}]"
            records.append((number, _record(item, path, "", labels, vocabulary)))
        except InputError as error:
            yield error
    yield from _repeated(records)
    yield from _torn_roots(records)
    try:
        decode_gpu_links(spec.get("topologies"))
    except InputError as error:
        yield error


def inventory_of_quantities(
    quantities: Mapping[str, Quantity],
    *,
    model: str,
    vocabulary: Vocabulary,
) -> Inventory:
    """
    Make up the cards that a Node's quantities describe.

    Rule: cli.md, Inventory without a Device object: each dialect's quantities serve that dialect
    only; several describe the same cards and the smallest count wins, with a warning; minors from
    0, no ids. Memory is divided evenly, rounded down; where none is given it is 0 (unknown).
    Devices of the other types, RDMA and FPGA among them, are made up in the same way: 100 is one
    (device proposal, "Device resource dimensions"; docs, Device types).

    Raises:
        InputError: more cards than `CARDS_MAX`.
    """
    described = _described(quantities, vocabulary)
    found = [cards for _, cards in described]
    others = tuple(_counted(quantities, vocabulary.unit_types))
    if not found:
        return Inventory(devices=others, dialects=frozenset())
    least = min(found, key=lambda cards: cards.count)
    _check_count(least.count, least.name)
    sizes = {cards.memory_bytes for cards in found if cards.memory_bytes}
    return Inventory(
        devices=tuple(
            sorted(
                (*_made_up(TYPE_GPU, least.count, model, min(sizes, default=0)), *others),
                key=lambda record: record.key,
            )
        ),
        dialects=frozenset(dialect for dialect, _ in described),
        warnings=tuple(_disagreements(found, least.count, sizes)),
    )


def with_listed(inventory: Inventory, listed: Listed) -> Inventory:
    """
    Return what a Node's quantities describe with the GPUs that its annotation lists.

    Those are the cards of every dialect that the Node offers, whatever their quantities say.
    """
    made_up = [item for item in inventory.devices if item.device_type == TYPE_GPU]
    warnings = [*inventory.warnings, *listed.warnings]
    if not listed.cards:
        return replace(inventory, warnings=tuple(warnings))
    if made_up and len(made_up) != len(listed.cards):
        numbers = f"{listed.name} {len(listed.cards)}, resources {len(made_up)}"
        warnings.append(f"different numbers of cards, those that are listed count: {numbers}")
    others = [item for item in inventory.devices if item.device_type != TYPE_GPU]
    return replace(
        inventory,
        devices=tuple(sorted((*listed.cards, *others), key=lambda record: record.key)),
        dialects=(inventory.dialects or frozenset()) | listed.serves,
        warnings=tuple(warnings),
    )


def _counted(
    quantities: Mapping[str, Quantity], kinds: Iterable[DeviceType]
) -> Iterator[DeviceRecord]:
    for kind in kinds:
        units = max(0, quantities.get(kind.resource, ZERO).ceil())
        count = units if kind.unit is Unit.COUNT else units // WHOLE_PERCENT
        _check_count(count, kind.resource)
        memory = max(0, quantities.get(kind.memory, ZERO).ceil()) if kind.memory else 0
        yield from _made_up(kind.name, count, "", memory // max(1, count))


def _made_up(device_type: str, count: int, model: str, memory_bytes: int) -> Iterator[DeviceRecord]:
    for minor in range(count):
        yield DeviceRecord(
            device_type=device_type,
            minor=minor,
            device_id="",
            model=model,
            memory_bytes=memory_bytes,
        )


def _check_count(count: int, name: str) -> None:
    if count > CARDS_MAX:
        raise InputError(f"more cards than a node can have: value={count}", field=name)


def _disagreements(found: list[Adverts], count: int, sizes: set[int]) -> Iterator[str]:
    if any(cards.count != count for cards in found):
        listed = ", ".join(f"{cards.name} {cards.count}" for cards in found)
        yield f"resources describe different numbers of cards, the smallest counts: {listed}"
    if len(sizes) > 1:
        listed = ", ".join(f"{cards.name} {cards.memory_bytes}" for cards in found)
        yield f"resources describe different bytes per card, the smallest counts: {listed}"


def _described(quantities: Mapping[str, Quantity], vocabulary: Vocabulary) -> list[_Described]:
    def units(name: str) -> int:
        return max(0, quantities.get(name, ZERO).ceil())

    adverts = ((reader.dialect, reader.adverts(units, vocabulary)) for reader in READERS)
    return [(dialect, cards) for dialect, cards in adverts if cards is not None and cards.count]


def _record(
    value: object,
    path: str,
    model: str,
    object_labels: Mapping[str, str],
    vocabulary: Vocabulary,
) -> DeviceRecord:
    item = wire.an_object(value, path)
    device_type = wire.a_text(item.get("type", item.get("deviceType")), f"{path}.type")
    if not device_type:
        listed = ", ".join(vocabulary.known_types)
        raise InputError(f"missing; expected one of {listed}", field=f"{path}.type")
    minor = item.get("minor")
    key = "resources" if item.get("resources") is not None else "resource"
    resources = wire.amounts(named(item.get(key), f"{path}.{key}"), f"{path}.{key}", vocabulary)
    gpu, kind = device_type == TYPE_GPU, vocabulary.type_named(device_type)
    labels = text_map(item.get("labels"), f"{path}.labels")
    device_id = wire.a_text(item.get("id"), f"{path}.id")
    return DeviceRecord(
        device_type=device_type,
        minor=0 if minor is None else wire.an_integer(minor, f"{path}.minor", least=0),
        device_id=device_id,
        model=model if gpu else _model(kind, labels, object_labels),
        core_percent=_gpu_capacity(resources, path) if gpu else _capacity(resources, kind, path),
        memory_bytes=_whole(dict(resources).get(GPU_MEMORY if gpu else kind.memory, ZERO), path),
        healthy=wire.a_flag(item.get("health"), f"{path}.health", default=False),
        labels=labels,
        topology=_topology(item.get("topology"), f"{path}.topology"),
        vfs=tuple(_functions(item.get("vfGroups"), f"{path}.vfGroups")),
        unique_id=vocabulary.is_unique_id(device_type, device_id),
    )


def _like(
    item: object, model: str, object_labels: Mapping[str, str], vocabulary: Vocabulary
) -> DeviceRecord | None:
    """
    Return what `_record` does, out of another device that says the same but for its id.

    A large cluster has ten thousands of cards of a few kinds. None where it can't be read so.
    """
    if not isinstance(item, dict) or not isinstance(item.get("id"), str):
        return None
    device_id, rest = item["id"], {**item, "id": ""}
    try:
        text = msgspec.json.encode(rest)
        if msgspec.json.decode(text) != rest:
            return None  # a file's own dates and numbers are no JSON
        found = _of_kind(text, model, tuple(object_labels.items()), vocabulary)
    except (InputError, TypeError, ValueError, OverflowError, RecursionError):
        return None  # what is wrong with it is said of the device itself
    return DeviceRecord(
        device_type=found.device_type,
        minor=found.minor,
        device_id=device_id,
        model=found.model,
        core_percent=found.core_percent,
        memory_bytes=found.memory_bytes,
        healthy=found.healthy,
        labels=found.labels,
        topology=found.topology,
        vfs=found.vfs,
        unique_id=vocabulary.is_unique_id(found.device_type, device_id),
    )


@lru_cache(maxsize=4096)
def _of_kind(
    text: bytes, model: str, object_labels: tuple[tuple[str, str], ...], vocabulary: Vocabulary
) -> DeviceRecord:
    return _record(msgspec.json.decode(text), "", model, dict(object_labels), vocabulary)


def _card_amounts(devices: object) -> dict[int, dict[str, int]]:
    """Return GPU minor -> what the card has beside core percent and memory."""
    found: dict[int, dict[str, int]] = {}
    for number, value in enumerate(wire.a_list(devices, "spec.devices")):
        path = f"spec.devices[{number}]"
        item = wire.an_object(value, path)
        key = "resources" if item.get("resources") is not None else "resource"
        held = wire.an_object(item.get(key), f"{path}.{key}")
        kept: dict[str, int] = {
            name: _whole(wire.a_quantity(held[name], f"{path}.{key}[{name}]"), path)
            for name in CARD_AMOUNT_NAMES
            if name in held
        }
        if kept and item.get("type", item.get("deviceType")) == TYPE_GPU:
            minor = item.get("minor")
            found[0 if minor is None else wire.an_integer(minor, f"{path}.minor", least=0)] = kept
    return found


def _gpu_capacity(resources: wire.Amounts, path: str) -> int:
    """Return the percent of compute that a GPU reports, 100 where it counts AI cores."""
    amounts_by_name = dict(resources)
    if GPU_CORE not in amounts_by_name and amounts_by_name.get(HUAWEI_NPU_CORE):
        return WHOLE_PERCENT
    return _whole(amounts_by_name.get(GPU_CORE, ZERO), path, most=_UNITS_MAX)


def _capacity(resources: wire.Amounts, kind: DeviceType, path: str) -> int:
    """Return the percent that a device has to give: as it reports, 100 for one that is counted."""
    units = _whole(dict(resources).get(kind.resource, ZERO), path, most=_UNITS_MAX)
    return min(units, 1) * WHOLE_PERCENT if kind.unit is Unit.COUNT else units


def _model(kind: DeviceType, labels: Mapping[str, str], object_labels: Mapping[str, str]) -> str:
    label = kind.model_label
    return labels.get(label, object_labels.get(label, "")) if label else ""


def _whole(quantity: Quantity, path: str, *, most: int = INTEGER_MAX) -> int:
    units = quantity.ceil()
    if units > most:
        raise InputError(
            f"beyond what can be counted exactly: value={quantity}", field=f"{path}.resources"
        )
    return units


def _topology(value: object, path: str) -> DeviceTopology | None:
    return None if value is None else read(DeviceTopology, value, path)


class _VfGroup(msgspec.Struct):
    labels: Annotated[Mapping[str, str], text_map] = {}
    vfs: tuple[VirtualFunction, ...] = ()


def _functions(value: object, path: str) -> Iterator[VirtualFunction]:
    for group in read(tuple[_VfGroup, ...], value, path):
        yield from (replace(function, labels=group.labels) for function in group.vfs)


def _repeated(records: Iterable[tuple[int, DeviceRecord]]) -> Iterator[InputError]:
    """Yield every device with another one's minor, id or VF; records with their place."""
    minors: set[tuple[str, int]] = set()
    ids: set[tuple[str, str]] = set()
    functions: set[str] = set()
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
        for function in record.vfs:
            if function.bus_id and function.bus_id in functions:
                fact = f"two virtual functions have one bus id: value={function.bus_id!r}"
                yield InputError(fact, field=f"{path}.vfGroups")
            functions.add(function.bus_id)


def _torn_roots(records: Iterable[tuple[int, DeviceRecord]]) -> Iterator[InputError]:
    """Yield every device whose PCIe root an earlier one has on another NUMA node."""
    nodes: dict[str, int] = {}
    for number, record in records:
        place = record.topology
        if place is None or not place.pcie_id or place.numa_node < 0:
            continue
        node = nodes.setdefault(place.pcie_id, place.numa_node)
        if node != place.numa_node:
            fact = f"{place.pcie_id} is on NUMA node {node} above: value={place.numa_node}"
            yield InputError(fact, field=f"spec.devices[{number}].topology.nodeID")
