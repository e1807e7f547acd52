"""
What running Pods hold that Tenure did not give them, read from whoever wrote it down.

Nothing here refuses a Pod: it runs, so it holds what it holds. Where no card can be named, the
device type is reported as held on an unknown card, and never guessed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from msgspec import structs

from ledger.domain import resources
from ledger.domain.adopted.cards import (
    Asker,
    Found,
    Part,
    collect,
    empty_share,
    part_share,
    whole_share,
)
from ledger.domain.adopted.checkpoints import DEVICES_CHECKPOINTS, from_checkpoints, gpu_ids
from ledger.domain.annotations import cpu
from ledger.domain.annotations.device_allocated import (
    DeviceAllocation,
    decode_device_allocated,
    encode_device_allocated,
)
from ledger.domain.annotations.gpu_topology import decode_gpu_topology
from ledger.domain.annotations.qos import read_qos_class
from ledger.domain.annotations.tenure import encode_shown, read_shown
from ledger.domain.annotations.volcano_vgpu import VGPU_GIVEN, decode_vgpu_given
from ledger.domain.annotations.wire import annotation_path
from ledger.domain.bounds import NAME_MAX
from ledger.domain.cpuset import EMPTY, CpuSet
from ledger.domain.device_types import Unit
from ledger.domain.devices import (
    WHOLE_PERCENT,
    DeviceRecord,
    DeviceShare,
    bytes_to_ratio,
    cores_to_percent,
    ratio_to_bytes,
)
from ledger.domain.dialects.registry import READERS, reader_of
from ledger.domain.errors import InputError
from ledger.domain.kube.node_objects import NO_WITNESSES, KubeletReports
from ledger.domain.kube.pod_spec import ContainerSpec, PodSpec, read_pod
from ledger.domain.log.events import PodObserved
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.extended import PLAIN_CARDS
from ledger.domain.request.normalise import gpu_demands, snapshot_of
from ledger.domain.request.requests import DeviceDemand, is_whole
from ledger.domain.systems import VOLCANO, SystemPart
from ledger.domain.vocabulary import DEFAULT_VOCABULARY, Vocabulary

DEVICE_ALLOCATED: Final = "device-allocated"
TOPOLOGY: Final = "topology"
RESOURCE_STATUS: Final = "resource-status"
POD_CPU_ALLOCS: Final = "pod-cpu-allocs"
NO_SOURCE: Final = ""

_WITHOUT_CONTAINERS: Final = (DEVICE_ALLOCATED, TOPOLOGY, DEVICES_CHECKPOINTS)
"""Sources that are not compared with what each container asks."""

_MEMORY_FIGURES: Final = (resources.GPU, resources.GPU_MEMORY, resources.GPU_MEMORY_RATIO)
_FAULTS_MAX: Final = 5
_TEMPLATE: Final = "gpuSharedResourceTemplate"
_FAULT_MAX: Final = 237


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cpus:
    source: str = NO_SOURCE
    cpuset: CpuSet = EMPTY
    annotations: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


def adopt(
    pod: Mapping[str, object],
    node: NodeFacts,
    vocabulary: Vocabulary = DEFAULT_VOCABULARY,
    witnesses: KubeletReports = NO_WITNESSES,
) -> PodObserved:
    """
    Return what a running Pod holds, as its first attempt; the first source that exists counts.

    Rule: cli.md, Running Pods: `device-allocated`; `gpu-index-container-*`; GPU share v2, then v1;
    the topology annotation; the Device's checkpoints. CPUs: `resource-status`, else kubelet's. CPU,
    memory and the Pod itself always count. Plain text that can't be read leaves the card unknown.
    A Pod without devices has the source of its CPUs, an empty one where nobody wrote any down.

    Args:
        witnesses: what the node's Device and NodeResourceTopology say (`decode_witnesses`).

    Raises:
        InputError: the Pod can't be read, or JSON in an allocation annotation does not parse.
    """
    spec = read_pod(pod, vocabulary)
    gpu = gpu_demands(spec)
    asker = Asker(
        spec=spec,
        node=node,
        demands=gpu.asked.demands,
        dialect=gpu.dialect,
        checkpoints=witnesses.checkpoints.get(spec.uid, ()),
    )
    found = _whole_answer(_first(asker), asker)
    cpus = _cpus(spec, witnesses)
    parts, of_parts = _vgpus(spec, node)
    known = {share.device_type for share in found.shares}
    unknown = (_asked_types(spec, node) - known - found.unlisted_types) | found.lost_types
    models = {device.key: device.model for device in node.devices}
    return PodObserved(
        pod_uid=spec.uid,
        attempt=1,
        namespace=spec.namespace,
        pod_name=spec.name,
        node_uid=node.uid,
        node_name=node.name,
        cpu_milli=spec.cpu_milli,
        memory_bytes=spec.memory_bytes,
        source=found.source or ("" if unknown else cpus.source),
        shares=found.shares,
        cpuset=cpus.cpuset,
        device_models=tuple(models.get(share.key, "") for share in found.shares),
        unknown_types=tuple(sorted(map(_short, unknown))),
        counted=_counted(found, asker) if resources.TYPE_GPU in unknown else {},
        dialect="" if gpu.dialect is None else str(gpu.dialect),
        annotations={
            **cpus.annotations,
            **_card_words(spec),
            **encode_shown(read_shown(spec.annotations)),
        },
        faults=_few((*found.faults, *cpus.faults, *of_parts)),
        parts=parts,
        snapshot=snapshot_of(
            spec, qos=str(read_qos_class(spec.labels)), priority=spec.priority or 0
        ),
    )


def _vgpus(spec: PodSpec, node: NodeFacts) -> tuple[tuple[SystemPart, ...], list[str]]:
    others = [part for one in READERS for part in one.given(spec.annotations, node.systems)]
    text = spec.annotations.get(VGPU_GIVEN)
    systems = {card.system for card in node.systems.cards} | {one for one, _ in node.systems.unread}
    if text is None or VOLCANO not in systems:
        return tuple(others), []
    parts = decode_vgpu_given(text)
    fault = f"{annotation_path(VGPU_GIVEN)} can't be read: not as the scheduler writes it"
    return (*others, *(parts or ())), [fault] if parts is None else []


def _counted(found: Found, asker: Asker) -> dict[str, int]:
    """
    Return how many whole GPUs a device plugin gave a Pod beside those that are named.

    Nothing is known of other dialects: whom nobody gave a card may use any.
    """
    by_plugin = asker.dialect is not None and reader_of(asker.dialect).by_plugin
    if not (by_plugin and all(map(is_whole, asker.demands))):
        return {}
    named = sum(share.device_type == resources.TYPE_GPU for share in found.shares)
    left = sum(demand.count for demand in asker.demands) - named
    return {resources.TYPE_GPU: left} if left > 0 else {}


def _card_words(spec: PodSpec) -> dict[str, str]:
    """
    Return `device-allocated` where shares can't say all of it: templates and AI cores.

    Rule: Koordinator contract 2.2 and 8.7.
    """
    text = spec.annotations.get(resources.ANNOTATION_DEVICE_ALLOCATED, "")
    if not any(word in text for word in (_TEMPLATE, *resources.CARD_AMOUNT_NAMES)):
        return {}
    allocated = decode_device_allocated(text, spec.vocabulary)
    gpus = allocated.get(resources.TYPE_GPU, ())
    more = any(
        entry.template or any(name in resources.CARD_AMOUNT_NAMES for name, _ in entry.resources)
        for entry in gpus
    )
    return (
        {resources.ANNOTATION_DEVICE_ALLOCATED: encode_device_allocated(allocated, spec.vocabulary)}
        if more
        else {}
    )


def _short(name: str) -> str:
    if len(name) <= NAME_MAX:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    return f"{name[: NAME_MAX - 17]}~{digest}"


def _few(faults: Sequence[str]) -> tuple[str, ...]:
    """Return the first faults, cut short where a value is absurd, and how many more there are."""
    shown = [fault if len(fault) <= _FAULT_MAX else f"{fault[:_FAULT_MAX]}..." for fault in faults]
    if len(shown) <= _FAULTS_MAX:
        return tuple(shown)
    return (*shown[: _FAULTS_MAX - 1], f"and {len(shown) - _FAULTS_MAX + 1} more")


def _first(asker: Asker) -> Found:
    readers = iter(_WRITTEN)
    found = next((one for read in readers if (one := read(asker)) is not None), None)
    if found is not None:
        return replace(found, faults=(*found.faults, *_against(found, readers, asker)))
    by_kubelet = from_checkpoints(asker)
    if by_kubelet is not None:
        return by_kubelet
    faults = [fault for reader in READERS for fault in reader.unread(asker)]
    return Found(source=NO_SOURCE, faults=tuple(faults))


def _against(
    found: Found, later: Iterator[Callable[[Asker], Found | None]], asker: Asker
) -> Iterator[str]:
    """
    Yield where a later source names other GPUs than the one that counts.

    Kubelet's file is not asked: it has the ids that kubelet chose, not the cards that were given.
    """
    cards = _gpus(found)
    for read in later:
        try:
            other = read(asker)
        except InputError as error:
            yield str(error)
            continue
        if other is None:
            continue
        yield from other.faults
        named = _gpus(other)
        lost = other.lost_types | other.unlisted_types
        if resources.TYPE_GPU in lost and resources.TYPE_GPU not in found.lost_types:
            named = (*named, "unknown")
        if named and named != cards:
            texts = [",".join(map(str, minors)) or "none" for minors in (cards, named)]
            yield f"{found.source} names cards {texts[0]}, {other.source} names {texts[1]}"


def _gpus(found: Found) -> tuple[int | str, ...]:
    certain = (share for share in found.shares if share.key not in found.doubtful)
    return tuple(share.minor for share in certain if share.device_type == resources.TYPE_GPU)


def _whole_answer(found: Found, asker: Asker) -> Found:
    """
    Return the answer; where it names fewer GPUs than the Pod asks for, the others are unknown.

    Rule: cli.md, Running Pods: a card that nobody can name closes the node for its type.
    """
    if found.source not in _WITHOUT_CONTAINERS:
        return found
    asked = max(
        max((demand.count for demand in asker.demands), default=0),
        sum(demand.count for demand in asker.demands if demand.exclusive),
    )
    certain = [share for share in found.shares if share.key not in found.doubtful]
    named = sum(share.device_type == resources.TYPE_GPU for share in certain)
    if found.source == DEVICES_CHECKPOINTS:
        named = len(gpu_ids(asker))
    if not named or named >= asked or resources.TYPE_GPU in found.lost_types:
        return found
    fault = f"{found.source} names fewer GPUs than the pod asks for: asked={asked}, named={named}"
    return replace(
        found, lost_types=found.lost_types | {resources.TYPE_GPU}, faults=(*found.faults, fault)
    )


def _asked_types(spec: PodSpec, node: NodeFacts) -> frozenset[str]:
    """Return the types of what a Pod asks for, but of cards that another vendor's plugin counts."""
    apart = PLAIN_CARDS if node.dialects is not None else ()
    return frozenset(
        device_type
        for container in spec.containers
        for name, quantity in container.requests.items()
        if quantity and name not in apart
        if (device_type := spec.vocabulary.device_type_of(name)) is not None
    )


def _cpus(spec: PodSpec, witnesses: KubeletReports) -> _Cpus:
    """
    Return the Pod's CPUs: `resource-status`, else kubelet's; where both say, they must agree.

    A `resource-spec` that does not parse is this Pod's fault and no later one's.
    """
    if resources.ANNOTATION_RESOURCE_SPEC in spec.annotations:
        cpu.decode_resource_spec(spec.annotations[resources.ANNOTATION_RESOURCE_SPEC])
    pinned = witnesses.cpus.get(spec.uid, EMPTY)
    by_kubelet = _Cpus(source=POD_CPU_ALLOCS, cpuset=pinned) if pinned else _Cpus()
    text = spec.annotations.get(resources.ANNOTATION_RESOURCE_STATUS)
    if text is None:
        return by_kubelet
    status = cpu.decode_resource_status(text)
    annotations = {resources.ANNOTATION_RESOURCE_STATUS: cpu.encode_resource_status(status)}
    if not status.cpuset:
        return replace(
            by_kubelet, source=by_kubelet.source or RESOURCE_STATUS, annotations=annotations
        )
    faults: tuple[str, ...] = ()
    if pinned and pinned != status.cpuset:
        faults = (
            f"{resources.ANNOTATION_RESOURCE_STATUS} says {status.cpuset}, kubelet pins {pinned}",
        )
    return _Cpus(
        source=RESOURCE_STATUS, cpuset=status.cpuset, annotations=annotations, faults=faults
    )


def _from_device_allocated(asker: Asker) -> Found | None:
    text = asker.spec.annotations.get(resources.ANNOTATION_DEVICE_ALLOCATED)
    if text is None:
        return None
    allocated = decode_device_allocated(text, asker.spec.vocabulary)

    def pairs() -> Iterator[Part]:
        for device_type, entries in allocated.items():
            for entry in entries:
                card = asker.card(device_type, minor=entry.minor, device_id=entry.id)
                yield device_type, _share_of_entry(asker, card, entry) if card else None

    found = collect(DEVICE_ALLOCATED, pairs(), [*_unsaid(allocated, asker.spec.vocabulary)])
    found = _with_doubtful(found, allocated, asker)
    if asker.dialect is None:
        return found
    return reader_of(asker.dialect).with_containers(found, asker)


def _with_doubtful(
    found: Found, allocated: Mapping[str, Sequence[DeviceAllocation]], asker: Asker
) -> Found:
    """
    Return the answer, and held too each card whose minor an entry gives with another one's id.

    Rule: design section 4: a share's minor and id agree. Which of the two the Pod is on nobody can
    say: the id counts, and neither is given to anyone else.
    """
    shares = {share.key: share for share in found.shares}
    doubtful: dict[tuple[str, int], DeviceShare] = {}
    faults = []
    for device_type, entries in allocated.items():
        for entry in entries:
            card = asker.card(device_type, minor=entry.minor, device_id=entry.id)
            if card is None or card.minor == entry.minor:
                continue
            faults.append(
                f"{DEVICE_ALLOCATED} names {device_type} {entry.minor} by the id of"
                f" {device_type} {card.minor}, which counts; both are held: id={entry.id}"
            )
            other = asker.card(device_type, minor=entry.minor)
            if other is not None and other.key not in shares:
                share = structs.replace(_share_of_entry(asker, other, entry), vf_bus_ids=())
                doubtful[other.key] = share
    every = [*found.shares, *doubtful.values()]
    return replace(
        found,
        shares=tuple(sorted(every, key=lambda share: share.key)),
        doubtful=frozenset(doubtful),
        faults=(*found.faults, *faults),
    )


def _unsaid(
    allocated: Mapping[str, Sequence[DeviceAllocation]], vocabulary: Vocabulary
) -> Iterator[str]:
    """Yield amounts that entries lack: a GPU's has memory or ratio (Koordinator contract 2.2)."""
    for device_type, entries in allocated.items():
        for entry in entries:
            name = f"{device_type} {entry.minor}"
            if _is_bare(device_type, entry, vocabulary):
                yield f"{DEVICE_ALLOCATED} names no amount of {name}"
            elif device_type == resources.TYPE_GPU and not any(
                map(entry.quantity, _MEMORY_FIGURES)
            ):
                yield f"{DEVICE_ALLOCATED} names no memory of {name}"


def _is_bare(device_type: str, entry: DeviceAllocation, vocabulary: Vocabulary) -> bool:
    if device_type == resources.TYPE_GPU:
        return not entry.resources
    kind = vocabulary.type_named(device_type)
    return not (entry.vfs or entry.quantity(kind.resource) or entry.quantity(kind.memory))


def _unit_share(
    base: DeviceShare, entry: DeviceAllocation, card: DeviceRecord, vocabulary: Vocabulary
) -> DeviceShare:
    """Return the share of a device that is no GPU; memory that is not named goes by percent."""
    kind = vocabulary.type_named(card.device_type)
    counted = kind.unit is Unit.COUNT
    units = entry.quantity(kind.resource).ceil()
    percent = units * WHOLE_PERCENT if counted else units
    if _is_bare(card.device_type, entry, vocabulary):
        percent = WHOLE_PERCENT
    memory = entry.quantity(kind.memory).ceil() if kind.memory else 0
    memory = memory or (ratio_to_bytes(percent, card.memory_bytes) if kind.memory else 0)
    return structs.replace(
        base,
        core_percent=percent,
        memory_bytes=memory,
        memory_ratio_percent=bytes_to_ratio(memory, card.memory_bytes),
        exclusive=counted,
        vf_bus_ids=tuple(_short(vf.bus_id) for vf in entry.vfs),
    )


def _share_of_entry(asker: Asker, card: DeviceRecord, entry: DeviceAllocation) -> DeviceShare:
    """
    Take the annotation's numbers; a missing memory unit follows from the other one.

    Where neither is named, the Pod's request says the memory, and without one all of it is held.
    """
    base = empty_share(card)
    if card.device_type != resources.TYPE_GPU:
        return _unit_share(base, entry, card, asker.spec.vocabulary)
    percent = entry.quantity(resources.GPU).ceil()
    core = entry.quantity(resources.GPU_CORE).ceil() or percent or _percent_of_cores(asker, entry)
    memory = entry.quantity(resources.GPU_MEMORY).ceil()
    ratio = entry.quantity(resources.GPU_MEMORY_RATIO).ceil() or (0 if memory else percent)
    if not (memory or ratio):
        return _share_without_memory(asker, card, core)
    memory = memory or ratio_to_bytes(ratio, card.memory_bytes)
    ratio = ratio or bytes_to_ratio(memory, card.memory_bytes)
    wholes = {demand.exclusive for demand in asker.demands}
    return structs.replace(
        base,
        core_percent=core,
        memory_bytes=memory,
        memory_ratio_percent=ratio,
        exclusive=wholes.pop() if len(wholes) == 1 else ratio >= WHOLE_PERCENT,
    )


def _percent_of_cores(asker: Asker, entry: DeviceAllocation) -> int:
    total = asker.node.card_amounts.get(entry.minor, {}).get(resources.HUAWEI_NPU_CORE, 0)
    return cores_to_percent(entry.quantity(resources.HUAWEI_NPU_CORE).ceil(), total)


def _share_without_memory(asker: Asker, card: DeviceRecord, core: int) -> DeviceShare:
    """Return the request's share of the card, and all of the card where there are none or many."""
    only = asker.demands[0] if len(asker.demands) == 1 else None
    share = _demand_share(card, only, ())
    ratio = (only.memory_ratio_percent if only else 0) or share.memory_ratio_percent
    return structs.replace(
        share, core_percent=max(core, share.core_percent), memory_ratio_percent=ratio
    )


def _from_topology(asker: Asker) -> Found | None:
    """GPU topology groups: whole cards, unless the Pod's own request says less of each."""
    text = asker.spec.annotations.get(resources.ANNOTATION_GPU_TOPOLOGY)
    if text is None:
        return None
    allocation = decode_gpu_topology(text)
    containers = asker.apps()
    demand = next(iter(asker.demands), None)

    def pairs() -> Iterator[Part]:
        for number, minors in allocation.allocated:
            named = tuple(containers[number : number + 1])
            for minor in minors:
                card = asker.card(resources.TYPE_GPU, minor=minor)
                yield resources.TYPE_GPU, _demand_share(card, demand, named) if card else None

    return collect(TOPOLOGY, pairs())


def _demand_share(
    card: DeviceRecord, demand: DeviceDemand | None, containers: Sequence[ContainerSpec]
) -> DeviceShare:
    if demand is None or demand.exclusive:
        return whole_share(card, containers)
    memory = demand.memory_bytes_on(card.memory_bytes)
    return part_share(card, demand.core_percent, memory, containers)


_WRITTEN: Final[tuple[Callable[[Asker], Found | None], ...]] = (
    _from_device_allocated,
    *(reader.adopted for reader in READERS),
    _from_topology,
)
"""What reads annotations, in the order of `SOURCES`."""
