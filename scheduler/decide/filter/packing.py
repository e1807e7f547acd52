"""Whether several parts of cards go on the cards of a node together, over many nodes at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from ledger.domain.request.requests import DeviceDemand
from scheduler.decide.nodes.arrays import BoolArray, IntArray

PARTS_MAX: Final = 4
"""More parts have too many groupings to try them all; a search on the node decides those."""

CARDS_MAX: Final = 16
"""The cards of a node are the bits of one number."""

_BYTES: Final = 8
_GATHER: Final = np.uint64(0x0102040810204080)
_TOP_BYTE: Final = np.uint64(56)

Bits = npt.NDArray[np.uint16]
Group = tuple[int, ...]
"""Places in the list of parts that share one card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardColumns:
    """
    What packing reads of the cards of some nodes, row = node, column = card.

    Attributes:
        shareable: open, and nobody has it alone.
        untouched: open and without any tenant.
        room: containers that the card may still take.
    """

    shareable: BoolArray
    untouched: BoolArray
    core_free: IntArray
    memory_free: IntArray
    room: IntArray


def can_pack(parts: Sequence[DeviceDemand], width: int) -> bool:
    """Tell whether `packs` is for these parts on nodes of so many cards."""
    few = 2 <= len(parts) <= PARTS_MAX and width <= CARDS_MAX
    alike = len({part.device_type for part in parts}) == 1
    return few and alike and all(part.count == 1 for part in parts)


def packs(
    cards: CardColumns,
    parts: Sequence[DeviceDemand],
    sizes: Sequence[IntArray | int],
    models: Sequence[BoolArray | None],
) -> BoolArray:
    """
    Return the nodes whose cards take all parts at once.

    Every way to group the parts is tried: groups go on different cards, and by Hall's theorem they
    can when any m of the groups have at least m cards between them.

    Args:
        sizes: the bytes that each part takes of each card.
        models: the cards of a model that each part allows; None = all.
    """
    open_cards = _Cards(cards, parts, sizes, models)
    alone = [open_cards.bits(group) for group in groupings(len(parts))[0]]
    found = _apart(alone)
    undecided = np.flatnonzero(~found & np.logical_and.reduce([mask > 0 for mask in alone]))
    if not len(undecided):
        return found
    rest = open_cards.only(undecided)
    late: BoolArray = np.zeros(len(undecided), dtype=np.bool_)
    for grouping in groupings(len(parts))[1:]:
        late |= _apart([rest.bits(group) for group in grouping])
    found[undecided] = late
    return found


@cache
def groupings(count: int) -> tuple[tuple[Group, ...], ...]:
    """Return every way to split `count` parts into groups, the most groups first."""
    return tuple(sorted(_splits(tuple(range(count))), key=lambda groups: -len(groups)))


def _splits(parts: Group) -> Iterator[tuple[Group, ...]]:
    if not parts:
        yield ()
        return
    first, rest = parts[0], parts[1:]
    for size in range(len(rest) + 1):
        for others in combinations(rest, size):
            left = tuple(part for part in rest if part not in others)
            for groups in _splits(left):
                yield ((first, *others), *groups)


class _Cards:
    """The cards of some nodes, and which of them take each group of parts."""

    def __init__(
        self,
        cards: CardColumns,
        parts: Sequence[DeviceDemand],
        sizes: Sequence[IntArray | int],
        models: Sequence[BoolArray | None],
    ) -> None:
        self._cards = cards
        self._parts = parts
        self._sizes = sizes
        self._models = models
        self._bits: dict[Group, Bits] = {}

    def only(self, rows: IntArray) -> _Cards:
        """Return the same for some of the nodes; what is known of single parts is kept."""
        cards = self._cards
        less = _Cards(
            CardColumns(
                shareable=cards.shareable.take(rows, axis=0),
                untouched=cards.untouched.take(rows, axis=0),
                core_free=cards.core_free.take(rows, axis=0),
                memory_free=cards.memory_free.take(rows, axis=0),
                room=cards.room.take(rows, axis=0),
            ),
            self._parts,
            [size if isinstance(size, int) else size.take(rows, axis=0) for size in self._sizes],
            [None if allowed is None else allowed.take(rows, axis=0) for allowed in self._models],
        )
        less._bits = {group: bits.take(rows) for group, bits in self._bits.items()}
        return less

    def bits(self, group: Group) -> Bits:
        """Return one number per node whose bits are the cards that take the whole group."""
        known = self._bits.get(group)
        if known is None:
            known = self._bits[group] = _as_bits(self._fitting(group))
        return known

    def _fitting(self, group: Group) -> BoolArray:
        cards, parts = self._cards, [self._parts[place] for place in group]
        alone = any(part.exclusive for part in parts)
        if alone and len(parts) > 1:
            return np.zeros(cards.core_free.shape, dtype=np.bool_)
        fit: BoolArray = cards.room >= len(parts)
        fit &= cards.untouched if alone else cards.shareable
        fit &= cards.core_free >= sum(part.core_percent for part in parts)
        fit &= cards.memory_free >= sum(self._sizes[place] for place in group)
        for place in group:
            allowed = self._models[place]
            if allowed is not None:
                fit &= allowed
        return fit


def _as_bits(cards: BoolArray) -> Bits:
    """Return one number per node whose bits are the cards, one bit for each."""
    if cards.shape[1] == _BYTES:
        # Eight bytes of 0 or 1 are one word; the product moves each to a bit of the top byte.
        words = np.ascontiguousarray(cards).view(np.uint64)[:, 0]
        return ((words * _GATHER) >> _TOP_BYTE).astype(np.uint16)
    bits: Bits = np.zeros(len(cards), dtype=np.uint16)
    for column in range(cards.shape[1]):
        bits |= cards[:, column].astype(np.uint16) << column
    return bits


def _apart(masks: Sequence[Bits]) -> BoolArray:
    """Return where every mask can have a bit of its own."""
    able: BoolArray = np.ones(len(masks[0]), dtype=np.bool_)
    unions: list[tuple[int, Bits]] = []
    for mask in masks:
        grown = [(1, mask), *((size + 1, union | mask) for size, union in unions)]
        for size, union in grown:
            able &= _bit_counts().take(union) >= size
        unions += grown
    return able


@cache
def _bit_counts() -> npt.NDArray[np.uint8]:
    return np.array([number.bit_count() for number in range(1 << CARDS_MAX)], dtype=np.uint8)
