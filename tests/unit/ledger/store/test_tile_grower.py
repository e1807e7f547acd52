"""The right edge of the Merkle tree, as a writer that takes over reads it."""

from __future__ import annotations

import hashlib
from functools import cache

import pytest

from ledger.domain.proofs.merkle import CompactRange
from ledger.store.proving.tree import TILE_HASHES, TileGrower

EVENTS = TILE_HASHES * TILE_HASHES + TILE_HASHES


def leaf(number: int) -> bytes:
    """Return the leaf hash of the event at index `number`."""
    return hashlib.sha256(number.to_bytes(8, "big")).digest()


@cache
def grown() -> tuple[dict[tuple[int, int], bytes], bytes]:
    """Return every tile of a tree that one writer grew, and its root."""
    grower = TileGrower()
    full = [tile for number in range(EVENTS) for tile in grower.append(leaf(number))]
    return {(level, number): hashes for level, number, hashes in full}, grower.tree.root()


@pytest.mark.parametrize("size", [TILE_HASHES**2 - 700, TILE_HASHES**2 - 1, TILE_HASHES**2])
def test_a_writer_that_takes_over_fills_the_same_tiles(size: int) -> None:
    """Whether the tiles below were hashed already or are only read: same tiles, same root."""
    tiles, root = grown()
    tree = CompactRange()
    for number in range(size):
        tree.append(leaf(number))
    full = size // TILE_HASHES
    begun = full // TILE_HASHES
    pending = [
        [leaf(number) for number in range(full * TILE_HASHES, size)],
        [tiles[0, number] for number in range(begun * TILE_HASHES, full)],
        [tiles[1, number] for number in range(begun)],
    ]

    grower = TileGrower(tree, pending)
    later = [tile for number in range(size, EVENTS) for tile in grower.append(leaf(number))]

    assert later == [(level, number, tiles[level, number]) for level, number, _ in later]
    assert {level for level, _, _ in later} == ({0} if begun else {0, 1})
    assert grower.tree.root() == root


@pytest.mark.parametrize("some", [1, 255, 700, 2_048, EVENTS])
def test_leaves_that_are_added_together_fill_the_same_tiles(some: int) -> None:
    """However many at once, and wherever in a tile they begin: same tiles, same root."""
    tiles, root = grown()
    grower = TileGrower()
    added = [leaf(number) for number in range(EVENTS)]

    full = [tile for at in range(0, EVENTS, some) for tile in grower.extend(added[at : at + some])]

    assert {(level, number): hashes for level, number, hashes in full} == tiles
    assert len(full) == len(tiles)
    assert grower.tree.root() == root
