"""HAMi's texts: the cards that a Pod got, and the cards that a Node has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ledger.domain.annotations import wire
from ledger.domain.dialects.hami.words import ALLOCATED, REGISTER
from ledger.domain.errors import InputError

CORE_MODE: Final = "hami-core"
MIG_MODE: Final = "mig"

NUMBER_MAX: Final = 2**31 - 1
_CARD_FIELDS: Final = 4
_SHORT, _LONG = 7, 9
"""Fields of a card in the register's older text: with index and mode since v2.5.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenCard:
    """Part of one card that one container got; `kind` is HAMi's word for the vendor."""

    device_id: str
    kind: str
    memory_mib: int
    core_percent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredCard:
    """
    A card as HAMi's device plugin reports it; what is 0 when unknown is not read.

    Attributes:
        memory_mib, core_percent: as much as HAMi gives, which may be more than the card has.
        index: NVML's; None where the text does not tell it.
        mode: `hami-core`, `mig` or `mps`.
    """

    device_id: str
    index: int | None
    model: str
    memory_mib: int
    core_percent: int = 100
    mode: str = CORE_MODE
    healthy: bool = True


# hami.io/vgpu-devices-allocated:
#   "GPU-0fc3eda5-...,NVIDIA,3000,0:;GPU-0fc3eda5-...,NVIDIA,5000,30:GPU-8dcd427f-...,NVIDIA,1,0:;;"


def decode_allocated(text: str) -> tuple[tuple[GivenCard, ...], ...]:
    """
    Return the cards of each container, in the order of the text.

    Rule: docs/contracts/hami.md 3. A legacy MIG suffix of the id is cut off.

    Raises:
        InputError: a card with fewer than four fields, without an id, with a number that is none.
    """
    path = wire.annotation_path(ALLOCATED)
    containers = text.split(";")
    if not containers[-1]:
        del containers[-1]
    return tuple(
        tuple(
            _given(card, f"{path}[{number}][{place}]")
            for place, card in enumerate(filter(None, container.split(":")))
        )
        for number, container in enumerate(containers)
    )


def _given(text: str, path: str) -> GivenCard:
    fields = text.split(",")
    if len(fields) < _CARD_FIELDS:
        raise InputError(f"not uuid,type,memory,cores: value={text!r}", field=path)
    device_id, kind, memory, cores = fields[:_CARD_FIELDS]
    if device_id.endswith("]"):  # a MIG instance as releases before v2.10.0 name it, `<uuid>[2-0]`
        device_id = device_id.partition("[")[0]
    if not device_id:
        raise InputError(f"no uuid: value={text!r}", field=path)
    return GivenCard(
        device_id=device_id,
        kind=kind,
        memory_mib=_number(memory, f"{path}.memory"),
        core_percent=_number(cores, f"{path}.cores"),
    )


# hami.io/node-nvidia-register:
#   [{"id":"GPU-0055...","index":1,"count":10,"devmem":32768,"devcore":100,
#     "type":"NVIDIA-Tesla V100-PCIE-32GB","mode":"hami-core","health":true}]
# until v2.7.0, without index and mode until v2.4:
#   "GPU-0055...,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true,1,hami-core:"


def decode_register(text: str, key: str = REGISTER) -> tuple[RegisteredCard, ...]:
    """
    Return the cards of a Node, in the order of the text (docs/contracts/hami.md 4).

    Raises:
        InputError: neither form, a number that is none, a card without an id or with another's.
    """
    path = wire.annotation_path(key)
    if text.lstrip().startswith(("[", "null")):
        cards = wire.each(wire.load(text, path), path, _of_json)
    else:
        texts = [card for card in text.split(":") if card.strip()]
        cards = tuple(_of_text(card, f"{path}[{number}]") for number, card in enumerate(texts))
    seen: set[str] = set()
    for number, card in enumerate(cards):
        if not card.device_id or card.device_id in seen:
            fact = "another card has this id" if card.device_id else "no id"
            raise InputError(f"{fact}: value={card.device_id!r}", field=f"{path}[{number}].id")
        seen.add(card.device_id)
    return cards


def _of_json(value: object, path: str) -> RegisteredCard:
    """Read one object; Go leaves out a field that is 0, empty or false."""
    card = wire.an_object(value, path)

    def number(name: str) -> int:
        return _bounded(
            wire.an_integer(card.get(name, 0), f"{path}.{name}", least=0), f"{path}.{name}"
        )

    return RegisteredCard(
        device_id=wire.a_text(card.get("id"), f"{path}.id"),
        index=number("index"),
        model=wire.a_text(card.get("type"), f"{path}.type"),
        memory_mib=number("devmem"),
        core_percent=number("devcore"),
        mode=wire.a_text(card.get("mode"), f"{path}.mode"),
        healthy=wire.a_flag(card.get("health"), f"{path}.health", default=False),
    )


def _of_text(text: str, path: str) -> RegisteredCard:
    fields = text.strip().split(",")
    if len(fields) not in {_SHORT, _LONG}:
        raise InputError(f"{len(fields)} fields, not {_SHORT} or {_LONG}", field=path)
    device_id, _, memory, core, model, _, health = fields[:_SHORT]
    return RegisteredCard(
        device_id=device_id,
        index=_number(fields[_SHORT], f"{path}.index") if len(fields) == _LONG else None,
        model=model,
        memory_mib=_number(memory, f"{path}.devmem"),
        core_percent=_number(core, f"{path}.devcore"),
        mode=fields[-1] if len(fields) == _LONG else CORE_MODE,
        healthy=wire.a_boolean_text(health, f"{path}.health"),
    )


def _number(text: str, path: str) -> int:
    return _bounded(wire.a_decimal(text, path, least=0), path)


def _bounded(number: int, path: str) -> int:
    if number > NUMBER_MAX:
        raise InputError(f"more than {NUMBER_MAX}: value={number}", field=path)
    return number


def words_of(text: str) -> tuple[str, ...]:
    """Return the words of a list with commas, without the blanks around them; empty ones not."""
    return tuple(word for part in text.split(",") if (word := part.strip()))
