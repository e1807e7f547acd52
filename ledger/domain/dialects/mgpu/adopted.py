"""
What running mGPU Pods hold, by that system's annotations.

An amount that does not divide is rounded up, and what contradicts the Pod's request is named: a
card must never look emptier than it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from msgspec import structs

from ledger.domain.adopted.cards import (
    Asker,
    Found,
    Part,
    collect,
    part_share,
    unreadable,
    whole_share,
)
from ledger.domain.annotations.wire import TRUE, annotation_path
from ledger.domain.devices import WHOLE_PERCENT, DeviceRecord, DeviceShare
from ledger.domain.dialects.mgpu.annotations import (
    CardRef,
    MgpuAllocation,
    decode_card_counts,
    read_mgpu_allocation,
)
from ledger.domain.dialects.mgpu.demands import MIB
from ledger.domain.dialects.mgpu.words import (
    ANNOTATION_MGPU_ASSUMED,
    ANNOTATION_MGPU_CONTAINER_MULTIPLE,
    MGPU_CORE,
    MGPU_MEMORY,
)
from ledger.domain.errors import InputError
from ledger.domain.kube.pod_spec import ContainerSpec
from ledger.domain.quantity import divide_up
from ledger.domain.resources import TYPE_GPU

GPU_INDEX_CONTAINER: Final = "gpu-index-container"


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


def unread_words(asker: Asker) -> tuple[str, ...]:
    """Return what the annotations say although they name no card."""
    if asker.spec.annotations.get(ANNOTATION_MGPU_ASSUMED) != TRUE:
        return ()
    path = annotation_path(ANNOTATION_MGPU_ASSUMED)
    return (f"{path}: no annotation names a card of any container: value={TRUE!r}",)


def with_containers(found: Found, asker: Asker) -> Found:
    """
    Return the shares of a source that knows only Pods, with the containers that are on each card.

    Rule: GPU-sharing contract A.5: the instances on a card are limited, one per container, and a
    whole card is held alone. The amounts stay those of the source.
    """
    detail = from_gpu_index(asker)
    if detail is None:
        return found
    by_key = {share.key: share for share in detail.shares}
    return replace(
        found,
        shares=tuple(_with_detail(share, by_key.get(share.key)) for share in found.shares),
    )


def _with_detail(share: DeviceShare, detail: DeviceShare | None) -> DeviceShare:
    if detail is None:
        return share
    return structs.replace(
        share,
        exclusive=detail.exclusive,
        instances=detail.instances,
        containers=detail.containers,
    )


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
    core = divide_up(container.units(MGPU_CORE), cards)
    memory = divide_up(container.units(MGPU_MEMORY) * MIB, cards)
    if core >= WHOLE_PERCENT:
        return whole_share(card, (container,))
    return part_share(card, core, memory, (container,))


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
