"""HAMi, as Pods and Nodes are read in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ledger.domain.annotations.wire import annotation_path
from ledger.domain.devices import WHOLE_PERCENT, DeviceRecord
from ledger.domain.dialects.hami.adopted import from_hami, with_containers
from ledger.domain.dialects.hami.annotations import (
    CORE_MODE,
    MIG_MODE,
    NUMBER_MAX,
    RegisteredCard,
    decode_register,
    words_of,
)
from ledger.domain.dialects.hami.demands import MIB, card_filter, hami_demands, part_of, policies_of
from ledger.domain.dialects.hami.words import (
    CARDS,
    CORDON,
    CORES,
    DELETED,
    HANDSHAKE,
    MEMORY,
    MEMORY_PERCENT,
    MODE,
    REGISTER,
    SCHEDULER,
    SIZE,
    WORDS,
)
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.protocol import DialectReader, GpuAsked, Listed, Quantities
from ledger.domain.errors import InputError
from ledger.domain.kube.pod_spec import PodSpec
from ledger.domain.request.card_names import NVIDIA_CARDS, number_in
from ledger.domain.resources import (
    GPU_CORE,
    GPU_MEMORY,
    GPU_MEMORY_RATIO,
    GPU_SHARED,
    HAMI_CORE,
    TYPE_GPU,
)

_CORDON: Final = annotation_path(CORDON)
_MINOR_MAX: Final = 1023
_WORDS: Final = WORDS.resources | WORDS.borrowed


def registered(
    annotations: Mapping[str, str], labels: Mapping[str, str], quantities: Quantities
) -> Listed | None:
    """
    Return the cards that a Node's annotation lists, None without one.

    Rule: docs/contracts/hami.md 4, as "ours". A card that is not healthy, in MIG mode or cordoned
    is closed, and all of them once the plugin is gone. A text that can't be read lists none: it is
    another system's, and stops nobody.
    """
    text = annotations.get(REGISTER)
    if text is None:
        return None
    cordoned, is_gone = _cordoned(annotations), _is_gone(annotations, quantities)
    cards: tuple[RegisteredCard, ...] = ()
    try:
        cards = decode_register(text)
        unsized = (card.device_id for card in cards if not card.memory_mib)
        path = annotation_path(REGISTER)
        warnings = [f"{path}: no memory is told of {one}; it takes no Pods" for one in unsized]
        known = {card.device_id for card in cards}
        warnings += [f"{_CORDON}: no such card: {one}" for one in sorted(cordoned - known)]
        if is_gone:
            warnings.append(f"{path}: HAMi's device plugin is gone; its cards take no Pods")
    except InputError as error:
        warnings = [f"{error}; no card of it is offered"]
    size = _size_mib(cards, labels)
    records = [
        DeviceRecord(
            device_type=TYPE_GPU,
            minor=minor,
            device_id=card.device_id,
            model=card.model,
            memory_bytes=min(card.memory_mib, size) * MIB,
            healthy=not is_gone and _takes_pods(card) and card.device_id not in cordoned,
            labels={MODE: card.mode or CORE_MODE},
            unique_id=True,
        )
        for minor, card in _numbered(cards)
    ]
    return Listed(
        name=annotation_path(REGISTER),
        cards=tuple(sorted(records, key=lambda record: record.minor)),
        serves=frozenset({Dialect.HAMI, Dialect.NVIDIA}),
        instead_of=frozenset({CARDS}),
        scheduler="" if is_gone else SCHEDULER,
        scaled=tuple(
            (card.device_id, card.core_percent, card.memory_mib * MIB)
            for card in cards
            if card.core_percent > WHOLE_PERCENT or card.memory_mib > size
        ),
        warnings=tuple(warnings),
    )


def beside_device(
    annotations: Mapping[str, str], devices: Sequence[DeviceRecord]
) -> tuple[frozenset[str], Sequence[str]]:
    """
    Return the cards of a Device object that HAMi closes, and where the two tell of other cards.

    Rule: docs/contracts/hami.md 4, as "ours": whoever says that a card takes no Pods is believed.
    """
    known = {one.device_id for one in devices if one.device_type == TYPE_GPU}
    cordoned = _cordoned(annotations)
    closed = dict.fromkeys(cordoned, _CORDON)
    warnings = [f"{_CORDON}: no such card: {one}" for one in sorted(cordoned - known)]
    path = annotation_path(REGISTER)
    try:
        cards = decode_register(annotations.get(REGISTER, ""))
    except InputError as error:
        cards, warnings = (), [*warnings, f"{error}; the Device object counts"]
    for card in cards:
        if card.device_id not in known:
            warnings.append(f"{path}: not in the Device object, which counts: {card.device_id}")
        elif card.memory_mib and not _takes_pods(card):
            closed[card.device_id] = path
    at_hand = sorted(closed.keys() & known)
    warnings += [f"{closed[one]}: takes no Pods: {one}" for one in at_hand]
    return frozenset(at_hand), warnings


def _size_mib(cards: Sequence[RegisteredCard], labels: Mapping[str, str]) -> int:
    """Return how large each card is by a node's label, which is of one model; else no bound."""
    is_told = len({card.model for card in cards}) == 1
    return (is_told and number_in(labels, SIZE)) or NUMBER_MAX


def _is_gone(annotations: Mapping[str, str], quantities: Quantities) -> bool:
    """
    Tell whether HAMi's device plugin is gone, and its register is left over.

    Rule: docs/contracts/hami.md 4, as "ours": the handshake says so, or kubelet by offering none.
    """
    offered = quantities.get(CARDS)
    return annotations.get(HANDSHAKE, "").startswith(DELETED) or (
        offered is not None and not offered
    )


def _cordoned(annotations: Mapping[str, str]) -> frozenset[str]:
    return frozenset(words_of(annotations.get(CORDON, "")))


def _takes_pods(card: RegisteredCard) -> bool:
    return card.healthy and card.mode != MIG_MODE and card.memory_mib > 0


def _numbered(cards: Sequence[RegisteredCard]) -> Sequence[tuple[int, RegisteredCard]]:
    """Return the cards with minors: their indexes, else their places in the order of the ids."""
    indexes = [card.index for card in cards if card.index is not None]
    if len(set(indexes)) == len(cards) and max(indexes, default=0) <= _MINOR_MAX:
        return list(zip(indexes, cards, strict=True))
    return list(enumerate(sorted(cards, key=lambda card: card.device_id)))


def _demands(spec: PodSpec) -> GpuAsked:
    asked = hami_demands(spec)
    vendors = NVIDIA_CARDS if asked.demands else ()
    own = {"card_filter": card_filter(spec.annotations), **policies_of(spec.annotations)}
    return GpuAsked(
        dialect=Dialect.HAMI, asked=asked, own=own, vendors=vendors, isolation=HAMI_CORE
    )


def _rewritten(amounts: Mapping[str, int]) -> dict[str, int]:
    """
    Return what is asked of each card as a sum over the cards, as Koordinator counts.

    Rule: docs/contracts/hami.md 1, fact 1; Koordinator contract 4.4.
    """
    cards, part = amounts.get(CARDS, 1), part_of(amounts)
    each = {
        GPU_CORE: part.core_percent,
        GPU_MEMORY: part.memory_bytes,
        GPU_MEMORY_RATIO: part.memory_ratio_percent,
    }
    kept = {name: amount for name, amount in amounts.items() if name not in _WORDS}
    sums = {name: amount * cards for name, amount in each.items() if amount}
    return {**kept, **sums, GPU_SHARED: cards}


READER: Final = DialectReader(
    dialect=Dialect.HAMI,
    words=WORDS,
    demands=_demands,
    rewritten=_rewritten,
    sums={MEMORY: (GPU_MEMORY, MIB), MEMORY_PERCENT: (GPU_MEMORY_RATIO, 1), CORES: (GPU_CORE, 1)},
    takes_wishes=False,
    adopted=from_hami,
    with_containers=with_containers,
    listed=registered,
    beside_device=beside_device,
)
