"""The cards of a Node as HAMi's device plugin registers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ledger.domain.annotations.wire import annotation_path
from ledger.domain.devices import DeviceRecord
from ledger.domain.dialects.hami.annotations import (
    MIG_MODE,
    RegisteredCard,
    decode_register,
    words_of,
)
from ledger.domain.dialects.hami.words import CARDS, CORDON, REGISTER
from ledger.domain.dialects.names import Dialect
from ledger.domain.dialects.protocol import Listed
from ledger.domain.errors import InputError
from ledger.domain.resources import TYPE_GPU

_MIB: Final = 2**20
_MINOR_MAX: Final = 1023


def registered(annotations: Mapping[str, str]) -> Listed | None:
    """
    Return the cards that a Node's annotation lists, None without one.

    Rule: docs/contracts/hami.md 4, as "ours". A card that is not healthy, in MIG mode or cordoned
    is closed. A text that can't be read lists none: it is another system's, and stops nobody.
    """
    text = annotations.get(REGISTER)
    if text is None:
        return None
    cordoned = frozenset(words_of(annotations.get(CORDON, "")))
    warnings: tuple[str, ...] = ()
    try:
        cards = decode_register(text)
    except InputError as error:
        cards, warnings = (), (f"{error}; no card of it is offered",)
    records = [
        DeviceRecord(
            device_type=TYPE_GPU,
            minor=minor,
            device_id=card.device_id,
            model=card.model,
            memory_bytes=card.memory_mib * _MIB,
            healthy=card.healthy and card.mode != MIG_MODE and card.device_id not in cordoned,
            unique_id=True,
        )
        for minor, card in _numbered(cards)
    ]
    return Listed(
        name=annotation_path(REGISTER),
        cards=tuple(sorted(records, key=lambda record: record.minor)),
        serves=frozenset({Dialect.HAMI, Dialect.NVIDIA}),
        instead_of=frozenset({CARDS}),
        warnings=warnings,
    )


def _numbered(cards: Sequence[RegisteredCard]) -> Sequence[tuple[int, RegisteredCard]]:
    """Return the cards with minors: their indexes, else their places in the order of the ids."""
    indexes = [card.index for card in cards if card.index is not None]
    if len(set(indexes)) == len(cards) and max(indexes, default=0) <= _MINOR_MAX:
        return list(zip(indexes, cards, strict=True))
    return list(enumerate(sorted(cards, key=lambda card: card.device_id)))
