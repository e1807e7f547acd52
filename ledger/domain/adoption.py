"""
What running Pods hold that Tenure did not give them, read from whoever wrote it down.

Nothing here refuses a Pod: it runs, so it holds what it holds. Where no card can be named, the
device type is reported as held on an unknown card, and never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ledger.domain.annotations.checkpoints import DeviceCheckpoint
from ledger.domain.annotations.cpu import decode_resource_status
from ledger.domain.annotations.device_allocated import DeviceAllocation, decode_device_allocated
from ledger.domain.annotations.gpu_topology import decode_gpu_topology
from ledger.domain.annotations.gpushare import GpuShareAllocation, read_gpushare_allocation
from ledger.domain.annotations.mgpu import CardRef, read_mgpu_allocation
from ledger.domain.annotations.qos import read_qos_class
from ledger.domain.annotations.wire import a_decimal, annotation_path
from ledger.domain.cpuset import EMPTY, CpuSet
from ledger.domain.demands.gpushare import UNIT_BYTES
from ledger.domain.devices import (
    WHOLE_PERCENT,
    ContainerShare,
    DeviceRecord,
    DeviceShare,
    bytes_to_ratio,
    ratio_to_bytes,
)
from ledger.domain.errors import InputError
from ledger.domain.node_objects import NO_WITNESSES, Witnesses
from ledger.domain.nodes import NodeFacts
from ledger.domain.normalise import DEFAULT_SETTINGS, NormaliseSettings, gpu_demands, snapshot_of
from ledger.domain.pod_spec import APP, ContainerSpec, PodSpec, pod_total, read_pod
from ledger.domain.requests import DeviceDemand, PodSnapshot
from ledger.domain.resources import (
    ANNOTATION_DEVICE_ALLOCATED,
    ANNOTATION_GPU_TOPOLOGY,
    ANNOTATION_GPUSHARE_POD,
    ANNOTATION_RESOURCE_STATUS,
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPUSHARE_MEMORY,
    MGPU_CORE,
    MGPU_MEMORY,
    TYPE_GPU,
    device_type_of,
)

DEVICE_ALLOCATED: Final = "device-allocated"
GPU_INDEX_CONTAINER: Final = "gpu-index-container"
GPUSHARE_V2: Final = "gpushare-v2"
GPUSHARE_V1: Final = "gpushare-v1"
TOPOLOGY: Final = "topology"
DEVICES_CHECKPOINTS: Final = "devices-checkpoints"
NO_SOURCE: Final = ""

SOURCES: Final = (
    DEVICE_ALLOCATED,
    GPU_INDEX_CONTAINER,
    GPUSHARE_V2,
    GPUSHARE_V1,
    TOPOLOGY,
    DEVICES_CHECKPOINTS,
)
"""Where a holding may be read from, in the order asked (cli.md, Running Pods)."""

_MIB: Final = 2**20
_REPLICA_SEPARATORS: Final = ("-_-", "::")
"""Fake device ids end in one of these and a number (GPU-sharing contract D.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """
    What one running Pod holds on its node.

    Attributes:
        source: one of `SOURCES`; empty when nobody wrote down a card.
        shares: ordered by (device_type, minor).
        unknown_types: device types it holds on a card that can't be named.
        dialect: the GPU dialect it asked in, empty when it asks for no GPU.
    """

    uid: str
    namespace: str
    name: str
    node_name: str
    cpu_milli: int
    memory_bytes: int
    source: str = NO_SOURCE
    shares: tuple[DeviceShare, ...] = ()
    cpuset: CpuSet = EMPTY
    unknown_types: tuple[str, ...] = ()
    dialect: str = ""
    snapshot: PodSnapshot = field(default_factory=PodSnapshot)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Shares that a source names, and device types whose cards it names but the node lacks."""

    source: str
    shares: tuple[DeviceShare, ...]
    lost_types: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asker:
    """A running Pod on its node, with all that a source may need to put numbers on a card."""

    spec: PodSpec
    node: NodeFacts
    demands: tuple[DeviceDemand, ...]
    gpushare_unit: str
    checkpoints: tuple[DeviceCheckpoint, ...]

    def card(
        self, device_type: str, *, minor: int = -1, device_id: str = ""
    ) -> DeviceRecord | None:
        """
        Return the node's device of this id, or of this minor where either side has no id.

        Rule: design section 8: a device is its id; another one at the same minor is not it.
        """
        of_type = [item for item in self.node.devices if item.device_type == device_type]
        if device_id:
            for item in of_type:
                if item.device_id == device_id:
                    return item
        for item in of_type:
            if item.minor == minor and not (device_id and item.device_id):
                return item
        return None

    def apps(self) -> list[ContainerSpec]:
        """Return the entries of `spec.containers`, which annotations count from 0."""
        return [container for container in self.spec.containers if container.kind == APP]


def adopt(
    pod: Mapping[str, object],
    node: NodeFacts,
    settings: NormaliseSettings = DEFAULT_SETTINGS,
    witnesses: Witnesses = NO_WITNESSES,
) -> Adopted:
    """
    Return what a running Pod holds; the first source that exists counts.

    Rule: cli.md, Running Pods: `device-allocated`; `gpu-index-container-*`; GPU share v2, then v1;
    the topology annotation; the Device's checkpoints. CPUs: `resource-status`, else kubelet's. CPU,
    memory and the Pod itself always count. Plain text that can't be read leaves the card unknown.

    Args:
        witnesses: what the node's Device and NodeResourceTopology say (`decode_witnesses`).

    Raises:
        InputError: the Pod can't be read, or JSON in an allocation annotation does not parse.
    """
    spec = read_pod(pod)
    gpu = gpu_demands(spec, settings)
    asker = _Asker(
        spec=spec,
        node=node,
        demands=gpu.asked.demands,
        gpushare_unit=settings.gpushare_unit,
        checkpoints=witnesses.checkpoints.get(spec.uid, ()),
    )
    found = _first(asker)
    known = {share.device_type for share in found.shares}
    unknown = (_asked_types(spec) - known) | found.lost_types
    return Adopted(
        uid=spec.uid,
        namespace=spec.namespace,
        name=spec.name,
        node_name=spec.node_name,
        cpu_milli=spec.cpu_milli,
        memory_bytes=spec.memory_bytes,
        source=found.source,
        shares=found.shares,
        cpuset=_cpuset(spec, witnesses),
        unknown_types=tuple(sorted(unknown)),
        dialect="" if gpu.dialect is None else str(gpu.dialect),
        snapshot=snapshot_of(
            spec, qos=str(read_qos_class(spec.labels)), priority=spec.priority or 0
        ),
    )


def _first(asker: _Asker) -> _Found:
    readers: tuple[Callable[[_Asker], _Found | None], ...] = (
        _from_device_allocated,
        _from_gpu_index,
        _from_gpushare,
        _from_topology,
        _from_checkpoints,
    )
    for read in readers:
        found = read(asker)
        if found is not None:
            return found
    return _Found(source=NO_SOURCE, shares=())


def _asked_types(spec: PodSpec) -> frozenset[str]:
    return frozenset(
        device_type
        for container in spec.containers
        for name, quantity in container.requests.items()
        if quantity and (device_type := device_type_of(name)) is not None
    )


def _cpuset(spec: PodSpec, witnesses: Witnesses) -> CpuSet:
    text = spec.annotations.get(ANNOTATION_RESOURCE_STATUS)
    own = EMPTY if text is None else decode_resource_status(text).cpuset
    return own or witnesses.cpus.get(spec.uid, EMPTY)


def _collect(source: str, pairs: Iterator[tuple[str, DeviceShare | None]]) -> _Found:
    """Merge shares of one device, several containers' or several lines'; None is a lost card."""
    merged: dict[tuple[str, int], DeviceShare] = {}
    lost = set[str]()
    for device_type, share in pairs:
        if share is None:
            lost.add(device_type)
        elif share.key in merged:
            merged[share.key] = _merge(merged[share.key], share)
        else:
            merged[share.key] = share
    shares = tuple(merged[key] for key in sorted(merged))
    return _Found(source=source, shares=shares, lost_types=frozenset(lost))


def _unreadable(source: str) -> _Found:
    """Say that a source exists but names no card: a GPU is held, nobody can tell which."""
    return _Found(source=source, shares=(), lost_types=frozenset({TYPE_GPU}))


def _merge(one: DeviceShare, other: DeviceShare) -> DeviceShare:
    return replace(
        one,
        core_percent=one.core_percent + other.core_percent,
        memory_bytes=one.memory_bytes + other.memory_bytes,
        memory_ratio_percent=one.memory_ratio_percent + other.memory_ratio_percent,
        exclusive=one.exclusive or other.exclusive,
        instances=one.instances + other.instances,
        vf_bus_ids=(*one.vf_bus_ids, *other.vf_bus_ids),
        containers=(*one.containers, *other.containers),
    )


def _from_device_allocated(asker: _Asker) -> _Found | None:
    text = asker.spec.annotations.get(ANNOTATION_DEVICE_ALLOCATED)
    if text is None:
        return None
    allocated = decode_device_allocated(text)

    def pairs() -> Iterator[tuple[str, DeviceShare | None]]:
        for device_type, entries in allocated.items():
            for entry in entries:
                card = asker.card(device_type, minor=entry.minor, device_id=entry.id)
                yield device_type, _share_of_entry(asker, card, entry) if card else None

    return _collect(DEVICE_ALLOCATED, pairs())


def _share_of_entry(asker: _Asker, card: DeviceRecord, entry: DeviceAllocation) -> DeviceShare:
    """Take the annotation's numbers; a missing memory unit follows from the other one."""
    base = _empty_share(card)
    if card.device_type != TYPE_GPU:
        own = (q.ceil() for name, q in entry.resources if device_type_of(name) == card.device_type)
        vf_bus_ids = tuple(vf.bus_id for vf in entry.vfs)
        return replace(base, core_percent=next(own, 0), vf_bus_ids=vf_bus_ids)
    memory = entry.quantity(GPU_MEMORY).ceil()
    ratio = entry.quantity(GPU_MEMORY_RATIO).ceil()
    memory = memory or ratio_to_bytes(ratio, card.memory_bytes)
    exclusive = any(demand.exclusive for demand in asker.demands)
    return replace(
        base,
        core_percent=entry.quantity(GPU_CORE).ceil(),
        memory_bytes=memory,
        memory_ratio_percent=ratio or bytes_to_ratio(memory, card.memory_bytes),
        exclusive=exclusive if asker.demands else ratio >= WHOLE_PERCENT,
    )


def _from_gpu_index(asker: _Asker) -> _Found | None:
    """mGPU: the annotation names the cards, the container's request what it takes of each."""
    containers = asker.apps()
    names = [container.name for container in containers]
    try:
        allocation = read_mgpu_allocation(asker.spec.annotations, names)
    except InputError:  # plain text that names no card
        return _unreadable(GPU_INDEX_CONTAINER)
    if allocation is None:
        return None
    by_name = {container.name: container for container in containers}

    def pairs() -> Iterator[tuple[str, DeviceShare | None]]:
        for name, cards in allocation.cards:
            for ref in cards:
                card = _card_of_ref(asker, ref)
                share = _mgpu_share(card, by_name[name], len(cards)) if card else None
                yield TYPE_GPU, share

    return _collect(GPU_INDEX_CONTAINER, pairs())


def _card_of_ref(asker: _Asker, ref: CardRef) -> DeviceRecord | None:
    if isinstance(ref, int):
        return asker.card(TYPE_GPU, minor=ref)
    return asker.card(TYPE_GPU, device_id=ref)


def _mgpu_share(card: DeviceRecord, container: ContainerSpec, cards: int) -> DeviceShare:
    """Return the container's part of one of its cards; a request beyond a card is all of it."""
    core = container.units(MGPU_CORE) // cards
    memory = container.units(MGPU_MEMORY) * _MIB // cards
    if core >= WHOLE_PERCENT:
        return _whole_share(card, (container,))
    return _part_share(card, core, memory, (container,))


def _from_gpushare(asker: _Asker) -> _Found | None:
    try:
        return _gpushare(asker, read_gpushare_allocation(asker.spec.annotations))
    except InputError:  # plain text that names no card or no amount
        return _unreadable(GPUSHARE_V1)


def _gpushare(asker: _Asker, allocation: GpuShareAllocation | None) -> _Found | None:
    if allocation is None:
        return None
    if allocation.card is None:
        return _collect(GPUSHARE_V2, _gpushare_v2(asker, allocation))
    card = asker.card(TYPE_GPU, minor=allocation.card)
    memory = _gpushare_units(asker) * UNIT_BYTES[asker.gpushare_unit]
    share = _part_share(card, 0, memory, ()) if card else None
    return _collect(GPUSHARE_V1, iter([(TYPE_GPU, share)]))


def _gpushare_v2(
    asker: _Asker, allocation: GpuShareAllocation
) -> Iterator[tuple[str, DeviceShare | None]]:
    containers = asker.apps()
    for item in allocation.shares:
        card = asker.card(TYPE_GPU, minor=item.card)
        named = tuple(containers[item.container : item.container + 1])
        memory = item.units * UNIT_BYTES[asker.gpushare_unit]
        yield TYPE_GPU, _part_share(card, 0, memory, named) if card else None


def _gpushare_units(asker: _Asker) -> int:
    """Return what the Pod asks for; without a request, what its annotation says it got."""
    parts = (
        (container.kind, {GPUSHARE_MEMORY: container.units(GPUSHARE_MEMORY)})
        for container in asker.spec.containers
    )
    units = pod_total(parts)[GPUSHARE_MEMORY]
    text = asker.spec.annotations.get(ANNOTATION_GPUSHARE_POD)
    if units or text is None:
        return units
    return a_decimal(text, annotation_path(ANNOTATION_GPUSHARE_POD), least=0)


def _from_topology(asker: _Asker) -> _Found | None:
    """GPU topology groups: whole cards, unless the Pod's own request says less of each."""
    text = asker.spec.annotations.get(ANNOTATION_GPU_TOPOLOGY)
    if text is None:
        return None
    allocation = decode_gpu_topology(text)
    containers = asker.apps()
    demand = next(iter(asker.demands), None)

    def pairs() -> Iterator[tuple[str, DeviceShare | None]]:
        for number, minors in allocation.allocated:
            named = tuple(containers[number : number + 1])
            for minor in minors:
                card = asker.card(TYPE_GPU, minor=minor)
                yield TYPE_GPU, _demand_share(card, demand, named) if card else None

    return _collect(TOPOLOGY, pairs())


def _demand_share(
    card: DeviceRecord, demand: DeviceDemand | None, containers: Sequence[ContainerSpec]
) -> DeviceShare:
    if demand is None or demand.exclusive:
        return _whole_share(card, containers)
    memory = demand.memory_bytes_on(card.memory_bytes)
    return _part_share(card, demand.core_percent, memory, containers)


def _from_checkpoints(asker: _Asker) -> _Found | None:
    """Kubelet's own allocations: whole cards, unless an id is one unit of GPU share memory."""
    entries = [
        (device_type, entry)
        for entry in asker.checkpoints
        if (device_type := device_type_of(entry.resource_name)) is not None
    ]
    if not entries:
        return None
    by_name = {container.name: container for container in asker.spec.containers}

    def pairs() -> Iterator[tuple[str, DeviceShare | None]]:
        for device_type, entry in entries:
            named = tuple(filter(None, [by_name.get(entry.container_name)]))
            units: dict[str, int] = {}
            for device_id in entry.device_ids:
                real = _real_id(device_id)
                units[real] = units.get(real, 0) + 1
            for real, count in units.items():
                card = asker.card(device_type, device_id=real)
                if card and entry.resource_name == GPUSHARE_MEMORY:
                    memory = count * UNIT_BYTES[asker.gpushare_unit]
                    yield device_type, _part_share(card, 0, memory, named)
                else:
                    yield device_type, _whole_share(card, named) if card else None

    return _collect(DEVICES_CHECKPOINTS, pairs())


def _real_id(device_id: str) -> str:
    """Return the device behind a replica's id, `<id>::3` or `<id>-_-3`; other ids as they are."""
    for separator in _REPLICA_SEPARATORS:
        head, found, tail = device_id.rpartition(separator)
        if found and tail.isascii() and tail.isdigit():
            return head
    return device_id


def _empty_share(card: DeviceRecord) -> DeviceShare:
    return DeviceShare(device_type=card.device_type, minor=card.minor, device_id=card.device_id)


def _whole_share(card: DeviceRecord, containers: Sequence[ContainerSpec]) -> DeviceShare:
    return replace(
        _empty_share(card),
        core_percent=card.core_percent,
        memory_bytes=card.memory_bytes,
        memory_ratio_percent=WHOLE_PERCENT if card.device_type == TYPE_GPU else 0,
        exclusive=True,
        containers=_named(containers, card.core_percent, card.memory_bytes),
    )


def _part_share(
    card: DeviceRecord, core: int, memory: int, containers: Sequence[ContainerSpec]
) -> DeviceShare:
    return replace(
        _empty_share(card),
        core_percent=core,
        memory_bytes=memory,
        memory_ratio_percent=bytes_to_ratio(memory, card.memory_bytes),
        containers=_named(containers, core, memory),
    )


def _named(
    containers: Sequence[ContainerSpec], core: int, memory: int
) -> tuple[ContainerShare, ...]:
    return tuple(
        ContainerShare(
            container=container.name,
            place=container.place,
            core_percent=core,
            memory_bytes=memory,
        )
        for container in containers
    )
