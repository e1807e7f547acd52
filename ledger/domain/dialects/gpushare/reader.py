"""GPU share, as Pods and Nodes are read in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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
from ledger.domain.annotations.wire import annotation_path
from ledger.domain.dialects.gpushare.annotations import (
    CardUnits,
    GpuShareAllocation,
    decode_core_percentages,
    decode_pod_units,
    read_gpushare_allocation,
    unread_v2_allocation,
)
from ledger.domain.dialects.gpushare.demands import UNIT_BYTES, gpushare_demands
from ledger.domain.dialects.gpushare.words import (
    ANNOTATION_GPUSHARE_CORE_PERCENTAGE,
    ANNOTATION_GPUSHARE_POD,
    ANNOTATION_GPUSHARE_V3_MEMORY,
    GPUSHARE_CORE,
    GPUSHARE_COUNT,
    GPUSHARE_MEMORY,
    WORDS,
)
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.protocol import Adverts, CardLeft, DialectReader, GpuAsked, Uncounted
from ledger.domain.errors import InputError
from ledger.domain.kube.pod_spec import INIT, PodSpec, pod_total
from ledger.domain.quantity import divide_up
from ledger.domain.resources import TYPE_GPU
from ledger.domain.vocabulary import Vocabulary

GPUSHARE_V2: Final = "gpushare-v2"
GPUSHARE_V1: Final = "gpushare-v1"
_MIB: Final = "MiB"
_GIB: Final = "GiB"
_MIB_LEAST: Final = 500


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
        if allocation.card is None:
            faults += _v2_faults(asker, allocation)
            return collect(GPUSHARE_V2, _gpushare_v2(asker, allocation), faults)
        faults += _v1_faults(asker, allocation.card)
        return collect(GPUSHARE_V1, [_gpushare_v1(asker, allocation.card)], faults)
    except InputError as error:  # plain text that names no card or no amount
        return unreadable(GPUSHARE_V1, "; ".join([*faults, str(error)]))


def unread_words(asker: Asker) -> tuple[str, ...]:
    """Return what the annotations say although they name no card."""
    annotations = asker.spec.annotations
    faults = []
    broken = unread_v2_allocation(annotations)
    if broken is not None:
        faults.append(str(broken))
    if ANNOTATION_GPUSHARE_V3_MEMORY in annotations:
        path = annotation_path(ANNOTATION_GPUSHARE_V3_MEMORY)
        faults.append(f"{path}: the format is not known, not read")
    return tuple(faults)


def with_containers(found: Found, asker: Asker) -> Found:
    """
    Return the shares of a source that knows only Pods, with how many containers are on the card.

    Rule: GPU-sharing contract A.5: the instances on a card are limited, one per container.
    """
    instances = _gpushare_instances(asker)
    shares = tuple(
        structs.replace(share, instances=instances) if share.device_type == TYPE_GPU else share
        for share in found.shares
    )
    return replace(found, shares=shares)


def _gpushare_v1(asker: Asker, minor: int) -> Part:
    """Return the Pod's part of its one card, all of it where nobody says how much."""
    card = asker.card(TYPE_GPU, minor=minor)
    if card is None:
        return TYPE_GPU, None
    units = _v1_units(asker)
    if not units:
        return TYPE_GPU, whole_share(card, ())
    share = part_share(card, _asked(asker, GPUSHARE_CORE), units * _bytes_of_unit(asker), ())
    return TYPE_GPU, structs.replace(share, instances=_gpushare_instances(asker))


def _v1_units(asker: Asker) -> int:
    written = asker.spec.annotations.get(ANNOTATION_GPUSHARE_POD, "0")
    return _asked(asker, GPUSHARE_MEMORY) or decode_pod_units(written)


def _gpushare_v2(asker: Asker, allocation: GpuShareAllocation) -> Iterator[Part]:
    containers = asker.apps()
    core_of, _ = _core_percentages(asker)
    for item in allocation.shares:
        card = asker.card(TYPE_GPU, minor=item.card)
        named = tuple(containers[item.container : item.container + 1])
        memory = item.units * _bytes_of_unit(asker)
        core = core_of.get((item.container, item.card))
        if core is None:
            cards = sum(other.container == item.container for other in allocation.shares)
            core = sum(divide_up(one.units(GPUSHARE_CORE), cards) for one in named)
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
    return pod_total(
        (container.kind, {resource: container.units(resource)})
        for container in asker.spec.containers
    )[resource]


def _gpushare_instances(asker: Asker) -> int:
    running = [
        container
        for container in asker.spec.containers
        if container.kind != INIT and container.units(GPUSHARE_MEMORY)
    ]
    return max(1, len(running))


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


def _demands(spec: PodSpec) -> GpuAsked:
    share = gpushare_demands(spec)
    own = {"gpushare_units": share.units}
    return GpuAsked(dialect=Dialect.GPUSHARE, asked=share.asked, own=own)


def _adverts(units: Callable[[str], int], vocabulary: Vocabulary) -> Adverts | None:
    count = units(GPUSHARE_COUNT)
    each = units(GPUSHARE_MEMORY) // max(1, count)
    unit = vocabulary.gpushare_unit or _unit_on({GPUSHARE_MEMORY: each})
    return Adverts(name=GPUSHARE_COUNT, count=count, memory_bytes=each * UNIT_BYTES[unit])


def _unit_on(offers: Mapping[str, int]) -> str:
    """Return the unit that a node's numbers tell: no card has so few MiB, none so many GiB."""
    each = offers.get(GPUSHARE_MEMORY, 0) // max(1, offers.get(GPUSHARE_COUNT, 0))
    return (_GIB if each < _MIB_LEAST else _MIB) if each else ""


def _bytes_of_unit(asker: Asker) -> int:
    unit = asker.spec.vocabulary.gpushare_unit
    return UNIT_BYTES[unit or _unit_on(dict(asker.node.systems.offers))]


def _fitted(vocabulary: Vocabulary, nodes: Iterable[Mapping[str, int]]) -> Vocabulary:
    """Return the vocabulary with the unit that the nodes tell, an empty one where two do."""
    units = set(map(_unit_on, nodes)) - {""} or {vocabulary.gpushare_unit}
    return replace(vocabulary, gpushare_unit=units.pop() if len(units) == 1 else "")


def _offers(card: CardLeft, vocabulary: Vocabulary) -> Mapping[str, int]:
    """Return MiB and the card; GiB are a device plugin's, an id for each (contract B.5, ours)."""
    count = {GPUSHARE_COUNT: int(card.is_open)}
    if vocabulary.gpushare_unit != _MIB:
        return count
    return {**count, GPUSHARE_MEMORY: card.memory_bytes // UNIT_BYTES[_MIB]}


def _unit_bytes(resource: str, vocabulary: Vocabulary) -> int:
    """Return the memory behind one id of the daemon's (GPU-sharing contract B.5)."""
    return UNIT_BYTES[vocabulary.gpushare_unit] if resource == GPUSHARE_MEMORY else 0


READER: Final = DialectReader(
    dialect=Dialect.GPUSHARE,
    words=WORDS,
    demands=_demands,
    takes_wishes=False,
    adopted=from_gpushare,
    unread=unread_words,
    with_containers=with_containers,
    unit_bytes=_unit_bytes,
    adverts=_adverts,
    fitted=_fitted,
    offers=_offers,
    uncounted=(Uncounted(memory=GPUSHARE_MEMORY, cards=GPUSHARE_COUNT, least=1),),
)
