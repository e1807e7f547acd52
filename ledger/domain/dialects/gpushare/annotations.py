"""Aliyun GPU share: the card of a Pod, in the first and the second generation's annotations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ledger.domain.annotations import wire
from ledger.domain.dialects.gpushare import words
from ledger.domain.errors import InputError

UNITS_MAX: Final = 8_000_000
"""The most units of one card, as of a request: no card has more, and bytes of it stay exact."""

_NO_CARD: Final = "-1"
"""What upstream writes for a Pod without a card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUnits:
    """Units of one card that one container got; container and card are indexes."""

    container: int
    card: int
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShareAllocation:
    """
    The card (v1) or cards (v2) of a Pod.

    Attributes:
        version: 1 or 2, the generation of annotations it was read from.
        card: v1's one card for the whole Pod; None in v2.
        shares: v2's units by container and card, ascending; empty in v1, where the units are the
            sum of the containers' limits.
        assigned: the node daemon has confirmed it.
        assume_time_ns: Unix time in nanoseconds, None when absent.
    """

    version: int
    card: int | None = None
    shares: tuple[CardUnits, ...] = ()
    assigned: bool = False
    assume_time_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShareAnswer:
    """What a placed Pod's annotations say; units are those of the node daemon (MiB or GiB)."""

    card: int
    pod_units: int
    card_units: int
    assume_time_ns: int
    assigned: bool = False


# ALIYUN_COM_GPU_MEM_IDX: "1"                               ALIYUN_GPU_ID: "1"
# ALIYUN_COM_GPU_MEM_POD: "8138"                            ALIYUN_COM_GPU_MEM_DEV: "16276"
# ALIYUN_COM_GPU_MEM_ASSIGNED: "false"
# ALIYUN_COM_GPU_MEM_ASSUME_TIME: "1767225600000000000"
# scheduler.framework.gpushare.allocation: {"0": {"1": 1}, "1": {"1": 7}}


def read_gpushare_allocation(annotations: Mapping[str, str]) -> GpuShareAllocation | None:
    """
    Return the allocation a Pod carries, None when no card is known ("pending").

    Rule: GPU-sharing contract B.1, read order: v2 if its JSON parses, else the v1 index (or its
    alias), else pending. Never card 0 by guess; index -1 is pending too.

    Raises:
        InputError: a v1 index, time or flag that does not parse.
    """
    return _read_v2(annotations) or _read_v1(annotations)


def unread_v2_allocation(annotations: Mapping[str, str]) -> InputError | None:
    """Return why the second generation's annotation is passed over, None if it is not there."""
    text = annotations.get(words.ANNOTATION_GPUSHARE_V2_ALLOCATION)
    if text is None:
        return None
    try:
        shares = decode_card_units(text)
    except InputError as error:
        return error
    if shares:
        return None
    path = wire.annotation_path(words.ANNOTATION_GPUSHARE_V2_ALLOCATION)
    return InputError(f"names no card: value={text!r}", field=path)


def encode_gpushare_answer(answer: GpuShareAnswer) -> dict[str, str]:
    """Write a placed Pod's annotations; the proposal's name is the index, too (contract B.1)."""
    return {
        words.ANNOTATION_GPUSHARE_IDX: str(answer.card),
        words.ANNOTATION_GPUSHARE_ID_PROPOSAL: str(answer.card),
        words.ANNOTATION_GPUSHARE_POD: str(answer.pod_units),
        words.ANNOTATION_GPUSHARE_DEV: str(answer.card_units),
        words.ANNOTATION_GPUSHARE_ASSIGNED: wire.TRUE if answer.assigned else wire.FALSE,
        words.ANNOTATION_GPUSHARE_ASSUME_TIME: str(answer.assume_time_ns),
    }


def decode_card_units(
    text: str, key: str = words.ANNOTATION_GPUSHARE_V2_ALLOCATION
) -> tuple[CardUnits, ...]:
    """
    Read container index -> card index -> units, ascending by container and card.

    Rule: GPU-sharing contract B.1. Under `core-percentage` the units are percent.

    Raises:
        InputError: broken JSON, a key that is not a decimal index, units that are no integer.
    """
    path = wire.annotation_path(key)
    return tuple(
        sorted(
            (
                CardUnits(
                    container=wire.a_decimal(container, path, least=0),
                    card=wire.a_decimal(card, path, least=0),
                    units=_units(units, f"{path}[{container}][{card}]"),
                )
                for container, cards in wire.an_object(wire.load(text, path), path).items()
                for card, units in wire.an_object(cards, f"{path}[{container}]").items()
            ),
            key=lambda share: (share.container, share.card),
        )
    )


def decode_core_percentages(text: str) -> tuple[CardUnits, ...]:
    """Read the percent of each card's compute, in the shape of `decode_card_units`."""
    return decode_card_units(text, words.ANNOTATION_GPUSHARE_CORE_PERCENTAGE)


def _read_v2(annotations: Mapping[str, str]) -> GpuShareAllocation | None:
    text = annotations.get(words.ANNOTATION_GPUSHARE_V2_ALLOCATION)
    if text is None:
        return None
    try:
        shares = decode_card_units(text)
    except InputError:  # the contract falls back to v1, so this one value is no error
        return None
    if not shares:
        return None
    return GpuShareAllocation(
        version=2,
        shares=shares,
        assigned=_assigned(annotations, words.ANNOTATION_GPUSHARE_V2_ASSIGNED),
        assume_time_ns=_time(annotations, words.ANNOTATION_GPUSHARE_V2_ASSUME_TIME),
    )


def _read_v1(annotations: Mapping[str, str]) -> GpuShareAllocation | None:
    for key in (words.ANNOTATION_GPUSHARE_IDX, words.ANNOTATION_GPUSHARE_ID_PROPOSAL):
        text = annotations.get(key)
        if text is not None:
            break
    else:
        return None
    if text == _NO_CARD:
        return None
    return GpuShareAllocation(
        version=1,
        card=wire.a_decimal(text, wire.annotation_path(key), least=0),
        assigned=_assigned(annotations, words.ANNOTATION_GPUSHARE_ASSIGNED),
        assume_time_ns=_time(annotations, words.ANNOTATION_GPUSHARE_ASSUME_TIME),
    )


def _assigned(annotations: Mapping[str, str], key: str) -> bool:
    return wire.a_boolean_text(annotations.get(key, wire.FALSE), wire.annotation_path(key))


def _time(annotations: Mapping[str, str], key: str) -> int | None:
    text = annotations.get(key)
    return None if text is None else wire.a_decimal(text, wire.annotation_path(key), least=0)


def decode_pod_units(text: str) -> int:
    """Return a Pod's memory in the node daemon's unit. Raises InputError: no such number."""
    path = wire.annotation_path(words.ANNOTATION_GPUSHARE_POD)
    return _units(wire.a_decimal(text, path), path)


def _units(value: object, path: str) -> int:
    units = wire.an_integer(value, path, least=0)
    if units > UNITS_MAX:
        raise InputError(f"more than {UNITS_MAX}: value={units}", field=path)
    return units
