"""Volcano Engine mGPU: the list of card counts, the compute policy, the cards of each container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ledger.domain.annotations import wire
from ledger.domain.dialects.mgpu import words
from ledger.domain.errors import InputError

_COUNTS_PATH: Final = wire.annotation_path(words.ANNOTATION_MGPU_CONTAINER_MULTIPLE)

CONTAINER_NAME_LENGTH_MAX: Final = 63 - len(
    words.ANNOTATION_MGPU_INDEX_PREFIX.removeprefix(words.DOMAIN_MGPU)
)  # 43: an annotation's name part has at most 63 characters

CardRef = int | str
"""A card as a reader finds it: an index (digits) or a device UUID (GPU-sharing contract A.6)."""


class MgpuPolicy(StrEnum):
    """How compute is shared out inside one card."""

    FIXED_SHARE = "fixed-share"
    GUARANTEED_BURST_SHARE = "guaranteed-burst-share"
    NATIVE_BURST_SHARE = "native-burst-share"


class MgpuNodeKind(StrEnum):
    """What the node label says about mGPU."""

    MGPU = "mgpu"
    OTHER = "other"
    INVALID = "invalid"


MGPU_NODE_VALUES: Final[Mapping[str, MgpuNodeKind]] = {
    "mgpu": MgpuNodeKind.MGPU,
    "nvidia": MgpuNodeKind.OTHER,
}
"""The values of the node label that mean something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MgpuAllocation:
    """The cards of a Pod's containers. `cards` pairs container name and cards, in spec order."""

    assumed: bool
    cards: tuple[tuple[str, tuple[CardRef, ...]], ...]


# vke.volcengine.com/container-multiple-gpu: "2,1,3"


def decode_card_counts(text: str) -> tuple[int, ...]:
    """
    Read how many cards each container spreads over, in spec order.

    Rule: GPU-sharing contract A.3, M0. Negative counts parse here; M2 refuses them.

    Raises:
        InputError: not comma-separated integers: blanks, empty parts, decimals, an empty text.
    """
    return tuple(wire.a_decimal(part, _COUNTS_PATH) for part in text.split(","))


# vke.volcengine.com/mgpu-compute-policy: "native-burst-share"


def read_compute_policy(annotations: Mapping[str, str]) -> MgpuPolicy:
    """Return a Pod's policy, `fixed-share` when absent (A.1). Raises InputError: it is none."""
    text = annotations.get(words.ANNOTATION_MGPU_COMPUTE_POLICY, MgpuPolicy.FIXED_SHARE)
    return wire.a_choice(
        text, MgpuPolicy, wire.annotation_path(words.ANNOTATION_MGPU_COMPUTE_POLICY)
    )


def read_node_compute_policy(labels: Mapping[str, str]) -> MgpuPolicy | None:
    """Return a node's policy, `fixed-share` when absent, None for a text that is none (A.1)."""
    text = labels.get(words.LABEL_MGPU_COMPUTE_POLICY, MgpuPolicy.FIXED_SHARE)
    return MgpuPolicy(text) if text in set(MgpuPolicy) else None


def read_mgpu_node_kind(labels: Mapping[str, str]) -> MgpuNodeKind:
    """
    Tell whether the label makes the node an mGPU node.

    Rule: GPU-sharing contract A.1: `mgpu` is one, absent or `nvidia` is not, any other value is
    invalid and the node has no mGPU cards.
    """
    text = labels.get(words.LABEL_MGPU_NODE)
    if text is None:
        return MgpuNodeKind.OTHER
    return MGPU_NODE_VALUES.get(text, MgpuNodeKind.INVALID)


# vke.volcengine.com/assumed: "true"
# vke.volcengine.com/gpu-index-container-c1: "1"
# vke.volcengine.com/gpu-index-container-c2: "2,3"


def read_mgpu_allocation(
    annotations: Mapping[str, str], container_names: Sequence[str]
) -> MgpuAllocation | None:
    """
    Return the cards written for the containers of a Pod, None when there are none.

    Rule: GPU-sharing contract A.1 and A.6: the suffix is the container's name; an ordinal is read
    when no container has that name; digits are an index, anything else is a UUID.

    Raises:
        InputError: an empty or repeated card, or a suffix that names no container.
    """
    found: dict[str, tuple[CardRef, ...]] = {}
    for key in sorted(annotations):
        if key.startswith(words.ANNOTATION_MGPU_INDEX_PREFIX):
            name = _container_of(key, container_names)
            by_name = key == f"{words.ANNOTATION_MGPU_INDEX_PREFIX}{name}"
            if by_name or name not in found:
                found[name] = _decode_cards(annotations[key], wire.annotation_path(key))
    if not found:
        return None
    assumed = annotations.get(words.ANNOTATION_MGPU_ASSUMED, wire.FALSE)
    return MgpuAllocation(
        assumed=wire.a_boolean_text(assumed, wire.annotation_path(words.ANNOTATION_MGPU_ASSUMED)),
        cards=tuple((name, found[name]) for name in container_names if name in found),
    )


def encode_mgpu_allocation(allocation: MgpuAllocation) -> dict[str, str]:
    """Write a placed Pod's annotations: cards in the order chosen (GPU-sharing contract A.5)."""
    result = {words.ANNOTATION_MGPU_ASSUMED: wire.TRUE if allocation.assumed else wire.FALSE}
    for name, cards in allocation.cards:
        assert len(name) <= CONTAINER_NAME_LENGTH_MAX, name
        if cards:
            result[f"{words.ANNOTATION_MGPU_INDEX_PREFIX}{name}"] = ",".join(map(str, cards))
    return result


def _container_of(key: str, container_names: Sequence[str]) -> str:
    suffix = key.removeprefix(words.ANNOTATION_MGPU_INDEX_PREFIX)
    if suffix in container_names:
        return suffix
    number = _index(suffix)
    if number is not None and number < len(container_names):
        return container_names[number]
    raise InputError(f"names no container: value={suffix!r}", field=wire.annotation_path(key))


def _decode_cards(text: str, path: str) -> tuple[CardRef, ...]:
    indexes = ((_index(part), part) for part in text.split(","))
    cards = tuple(part if index is None else index for index, part in indexes)
    if any(isinstance(card, str) and (not card or card != card.strip()) for card in cards):
        raise InputError(f"not a list of cards: value={text!r}", field=path)
    if len(set(cards)) != len(cards):
        raise InputError(f"a card is repeated: value={text!r}", field=path)
    return cards


def _index(text: str) -> int | None:
    """Return the number that a text of digits means; None for other texts, and for absurd ones."""
    return int(text) if wire.is_number(text) else None
