"""
What running mGPU and GPU share Pods hold, by the annotations of those systems.

An amount that does not divide is rounded up, and what contradicts the Pod's request is named: a
card must never look emptier than it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from ledger.domain.adopted.cards import (
    Asker,
    Found,
    Part,
    collect,
    part_share,
    unreadable,
    whole_share,
)
from ledger.domain.annotations.gpushare import (
    CardUnits,
    GpuShareAllocation,
    decode_core_percentages,
    decode_pod_units,
    read_gpushare_allocation,
    unread_v2_allocation,
)
from ledger.domain.annotations.mgpu import (
    CardRef,
    MgpuAllocation,
    decode_card_counts,
    read_mgpu_allocation,
)
from ledger.domain.annotations.wire import TRUE, annotation_path
from ledger.domain.devices import WHOLE_PERCENT, DeviceRecord, DeviceShare
from ledger.domain.errors import InputError
from ledger.domain.kube.pod_spec import INIT, ContainerSpec, pod_total
from ledger.domain.request.gpushare import UNIT_BYTES
from ledger.domain.resources import (
    ANNOTATION_GPUSHARE_CORE_PERCENTAGE,
    ANNOTATION_GPUSHARE_POD,
    ANNOTATION_GPUSHARE_V3_MEMORY,
    ANNOTATION_MGPU_ASSUMED,
    ANNOTATION_MGPU_CONTAINER_MULTIPLE,
    GPUSHARE_CORE,
    GPUSHARE_MEMORY,
    MGPU_CORE,
    MGPU_MEMORY,
    TYPE_GPU,
    Dialect,
)

GPU_INDEX_CONTAINER: Final = "gpu-index-container"
GPUSHARE_V2: Final = "gpushare-v2"
GPUSHARE_V1: Final = "gpushare-v1"

_MIB: Final = 2**20


def from_gpu_index(asker: Asker) -> Found | None:
    """
    Return what the containers of an mGPU Pod hold.

    Rule: GPU-sharing contract A.1, A.5 and A.6: the annotation names the cards, the container's
    request what it takes of each. A container that asks and has no cards is on unknown ones.
    """
    names = [container.name for container in asker.apps()]
    try:
        allocation = read_mgpu_allocation(asker.spec.annotations, names)
    except InputError as error:  # plain text that names no card
        return unreadable(GPU_INDEX_CONTAINER, str(error))
    if allocation is None:
        return None
    faults = [*_mgpu_faults(asker, allocation)]
    return collect(GPU_INDEX_CONTAINER, _mgpu_parts(asker, allocation), faults)


def from_gpushare(asker: Asker) -> Found | None:
    """
    Return what a GPU share Pod holds, by the second or the first generation of annotations.

    Rule: GPU-sharing contract B.1, read order. Never card 0 by guess.
    """
    annotations = asker.spec.annotations
    broken = unread_v2_allocation(annotations)
    faults = [] if broken is None else [str(broken)]
    try:
        allocation = read_gpushare_allocation(annotations)
        if allocation is None:
            return None
        faults += _gpushare_faults(asker, allocation)
        if allocation.card is None:
            return collect(GPUSHARE_V2, _gpushare_v2(asker, allocation), faults)
        return collect(GPUSHARE_V1, [_gpushare_v1(asker, allocation.card)], faults)
    except InputError as error:  # plain text that names no card or no amount
        return unreadable(GPUSHARE_V1, "; ".join([*faults, str(error)]))


def unread_words(asker: Asker) -> tuple[str, ...]:
    """Return what the annotations of both systems say although they name no card."""
    annotations = asker.spec.annotations
    faults = []
    broken = unread_v2_allocation(annotations)
    if broken is not None:
        faults.append(str(broken))
    if ANNOTATION_GPUSHARE_V3_MEMORY in annotations:
        path = annotation_path(ANNOTATION_GPUSHARE_V3_MEMORY)
        faults.append(f"{path}: the format is not known, not read")
    if annotations.get(ANNOTATION_MGPU_ASSUMED) == TRUE:
        path = annotation_path(ANNOTATION_MGPU_ASSUMED)
        faults.append(f"{path}: no annotation names a card of any container: value={TRUE!r}")
    return tuple(faults)


def with_containers(found: Found, asker: Asker) -> Found:
    """
    Return the shares of a source that knows only Pods, with the containers that are on each card.

    Rule: GPU-sharing contract A.5: the instances on a card are limited, one per container, and a
    whole card is held alone. The amounts stay those of the source.
    """
    if asker.dialect is Dialect.GPUSHARE:
        instances = _gpushare_instances(asker)
        shares = tuple(
            replace(share, instances=instances) if share.device_type == TYPE_GPU else share
            for share in found.shares
        )
        return replace(found, shares=shares)
    detail = from_gpu_index(asker) if asker.dialect is Dialect.MGPU else None
    if detail is None:
        return found
    by_key = {share.key: share for share in detail.shares}
    cards = {share.key for share in found.shares if share.device_type == TYPE_GPU}
    faults = detail.faults
    if detail.shares and by_key.keys() != cards:
        named = [",".join(str(minor) for _, minor in sorted(keys)) for keys in (cards, by_key)]
        text = f"{found.source} names cards {named[0]}, {detail.source} names {named[1]}"
        faults = (*faults, text)
    return replace(
        found,
        shares=tuple(_with_detail(share, by_key.get(share.key)) for share in found.shares),
        faults=(*found.faults, *faults),
    )


def _with_detail(share: DeviceShare, detail: DeviceShare | None) -> DeviceShare:
    if detail is None:
        return share
    return replace(
        share,
        exclusive=detail.exclusive,
        instances=detail.instances,
        containers=detail.containers,
    )


# --- mGPU -------------------------------------------------------------------------------------


def _mgpu_parts(asker: Asker, allocation: MgpuAllocation) -> Iterator[Part]:
    cards_of = dict(allocation.cards)
    for container in asker.apps():
        if container.name not in cards_of:
            if _asks_mgpu(container):
                yield TYPE_GPU, None
            continue
        refs = cards_of[container.name]
        for ref in refs:
            card = _card_of_ref(asker, ref)
            yield TYPE_GPU, _mgpu_share(card, container, len(refs)) if card else None


def _asks_mgpu(container: ContainerSpec) -> bool:
    return bool(container.units(MGPU_CORE) or container.units(MGPU_MEMORY))


def _card_of_ref(asker: Asker, ref: CardRef) -> DeviceRecord | None:
    if isinstance(ref, int):
        return asker.card(TYPE_GPU, minor=ref)
    return asker.card(TYPE_GPU, device_id=ref)


def _mgpu_share(card: DeviceRecord, container: ContainerSpec, cards: int) -> DeviceShare:
    """Return the container's part of one of its cards; a request beyond a card is all of it."""
    core = _divided(container.units(MGPU_CORE), cards)
    memory = _divided(container.units(MGPU_MEMORY) * _MIB, cards)
    if core >= WHOLE_PERCENT:
        return whole_share(card, (container,))
    return part_share(card, core, memory, (container,))


def _divided(amount: int, parts: int) -> int:
    return -(-amount // parts)


def _mgpu_faults(asker: Asker, allocation: MgpuAllocation) -> Iterator[str]:
    cards_of = dict(allocation.cards)
    counts, fault = _counts(asker)
    if fault:
        yield fault
    for number, container in enumerate(asker.apps()):
        refs = cards_of.get(container.name)
        core = container.units(MGPU_CORE)
        if refs is None:
            if _asks_mgpu(container):
                yield f"container {container.name} asks for mGPU, and no annotation names its cards"
            continue
        if not _asks_mgpu(container):
            yield f"container {container.name} has cards and asks for no mGPU"
            continue
        due = max(1, core // WHOLE_PERCENT) if counts is None else counts.get(number, 0)
        if len(refs) != due:
            numbers = f"asked={due}, named={len(refs)}"
            yield f"container {container.name} has not the cards it asks for: {numbers}"
        for ref in refs:
            if _card_of_ref(asker, ref) is None:
                yield f"container {container.name} has card {ref}, which the node does not have"


def _counts(asker: Asker) -> tuple[Mapping[int, int] | None, str]:
    """Return the cards that the list gives each container, None without one, and what is wrong."""
    text = asker.spec.annotations.get(ANNOTATION_MGPU_CONTAINER_MULTIPLE)
    if text is None:
        return None, ""
    try:
        counts = decode_card_counts(text)
    except InputError as error:
        return None, str(error)
    return dict(enumerate(counts)), ""


# --- GPU share --------------------------------------------------------------------------------


def _gpushare_v1(asker: Asker, minor: int) -> Part:
    """Return the Pod's part of its one card, all of it where nobody says how much."""
    card = asker.card(TYPE_GPU, minor=minor)
    if card is None:
        return TYPE_GPU, None
    units = _v1_units(asker)
    if not units:
        return TYPE_GPU, whole_share(card, ())
    share = part_share(
        card, _asked(asker, GPUSHARE_CORE), units * UNIT_BYTES[asker.gpushare_unit], ()
    )
    return TYPE_GPU, replace(share, instances=_gpushare_instances(asker))


def _v1_units(asker: Asker) -> int:
    """Return the Pod's units of memory: what it asks for, else what was written."""
    return _asked(asker, GPUSHARE_MEMORY) or _written_units(asker)


def _gpushare_v2(asker: Asker, allocation: GpuShareAllocation) -> Iterator[Part]:
    containers = asker.apps()
    core_of, _ = _core_percentages(asker)
    for item in allocation.shares:
        card = asker.card(TYPE_GPU, minor=item.card)
        named = tuple(containers[item.container : item.container + 1])
        memory = item.units * UNIT_BYTES[asker.gpushare_unit]
        core = core_of.get((item.container, item.card))
        if core is None:
            cards = sum(other.container == item.container for other in allocation.shares)
            core = sum(_divided(one.units(GPUSHARE_CORE), cards) for one in named)
        yield TYPE_GPU, part_share(card, core, memory, named) if card else None


def _core_percentages(asker: Asker) -> tuple[Mapping[tuple[int, int], int], str]:
    """Return (container, card) -> percent of compute, and what is wrong with the annotation."""
    text = asker.spec.annotations.get(ANNOTATION_GPUSHARE_CORE_PERCENTAGE)
    if text is None:
        return {}, ""
    try:
        found: tuple[CardUnits, ...] = decode_core_percentages(text)
    except InputError as error:
        return {}, str(error)
    return {(item.container, item.card): item.units for item in found}, ""


def _asked(asker: Asker, resource: str) -> int:
    """Return the whole Pod's request of a resource."""
    return pod_total(
        (container.kind, {resource: container.units(resource)})
        for container in asker.spec.containers
    )[resource]


def _written_units(asker: Asker) -> int:
    """Return the units that the annotation says the Pod got, 0 without it."""
    return decode_pod_units(asker.spec.annotations.get(ANNOTATION_GPUSHARE_POD, "0"))


def _gpushare_instances(asker: Asker) -> int:
    """Return how many containers that run side by side are on the Pod's one card."""
    running = [
        container
        for container in asker.spec.containers
        if container.kind != INIT and container.units(GPUSHARE_MEMORY)
    ]
    return max(1, len(running))


def _gpushare_faults(asker: Asker, allocation: GpuShareAllocation) -> Iterator[str]:
    if allocation.card is not None:
        yield from _v1_faults(asker, allocation.card)
    else:
        yield from _v2_faults(asker, allocation)


def _v1_faults(asker: Asker, minor: int) -> Iterator[str]:
    if asker.card(TYPE_GPU, minor=minor) is None:
        yield f"the pod has card {minor}, which the node does not have"
    asked = _asked(asker, GPUSHARE_MEMORY)
    text = asker.spec.annotations.get(ANNOTATION_GPUSHARE_POD, str(asked))
    if asked and text != str(asked):
        path = annotation_path(ANNOTATION_GPUSHARE_POD)
        yield f"{path}: the pod asks for {asked} of {GPUSHARE_MEMORY}: value={text!r}"
    if not _v1_units(asker):
        yield f"{GPUSHARE_V1} names no amount of gpu {minor}"


def _v2_faults(asker: Asker, allocation: GpuShareAllocation) -> Iterator[str]:
    containers = asker.apps()
    units: dict[int, int] = {}
    for item in allocation.shares:
        units[item.container] = units.get(item.container, 0) + item.units
        if asker.card(TYPE_GPU, minor=item.card) is None:
            yield f"container {item.container} has card {item.card}, which the node does not have"
    for number, got in units.items():
        if number >= len(containers):
            yield f"container {number} has {got} of {GPUSHARE_MEMORY}, and the pod has no such one"
    for number, container in enumerate(containers):
        asked = container.units(GPUSHARE_MEMORY)
        if asked != units.get(number, 0):
            yield (
                f"container {container.name} asks for {asked} of {GPUSHARE_MEMORY} "
                f"and has {units.get(number, 0)}"
            )
    _, fault = _core_percentages(asker)
    if fault:
        yield fault
