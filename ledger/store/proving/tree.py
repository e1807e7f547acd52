"""
The Merkle tree in the database: it grows in the commit that appends, and gives back its nodes.

Rule: design section 4; RFC 6962 section 2.1. Tiles of 256 hashes as in C2SP tlog-tiles, so that a
proof reads a few rows, whatever the size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import Final

from sqlalchemy import Connection, bindparam, literal_column, select, update

from ledger.domain.errors import CorruptLedgerError
from ledger.domain.proofs import merkle
from ledger.store import schema
from ledger.store.writing.outbox import Outbox
from ledger.store.writing.statements import TILE, Row, Statement

TILE_LEVELS: Final = 8
TILE_HASHES: Final = 1 << TILE_LEVELS
_CATCH_UP_EVENTS: Final = 10_000
_events, _tree, _tiles = schema.ledger_events.c, schema.ledger_tree.c, schema.ledger_tiles.c

_GROW: Final = Statement(
    update(schema.ledger_tree)
    .where(_tree.id == literal_column("1"), _tree.size == bindparam("before"))
    .values({"size": bindparam("to_size"), "range": bindparam("to_range")}),
    *("to_size", "to_range", "before"),
)


Tile = tuple[int, int, bytes]
"""A full tile: its level, its number there, its hashes one behind the other."""


class TileGrower:
    """
    The right edge of the tree: hashes of tiles that are not full yet, per level.

    Above the lowest level an entry that was read is the tile below it, 8192 bytes, and hashed only
    when its own tile is full: a writer that takes over may never come so far.
    """

    def __init__(
        self, tree: merkle.CompactRange | None = None, pending: Iterable[list[bytes]] = ()
    ) -> None:
        """Stand at the edge of a tree whose unfinished tiles have these, lowest level first."""
        self.tree = merkle.CompactRange(0) if tree is None else tree
        self._pending = list(pending)

    def append(self, leaf: bytes) -> list[Tile]:
        """Add a leaf; return the tiles that it fills, as (level, number, hashes)."""
        self.tree.append(leaf)
        return self._fill(0, leaf)

    def extend(self, leaves: Sequence[bytes]) -> list[Tile]:
        """Add leaves; return the tiles that they fill. A whole tile's are hashed once."""
        full: list[Tile] = []
        at = 0
        while at < len(leaves):
            tile = leaves[at : at + TILE_HASHES]
            if self.tree.size % TILE_HASHES or len(tile) < TILE_HASHES:
                full += self.append(leaves[at])
                at += 1
                continue
            root = merkle.perfect_root(tile)
            self.tree.append(root, TILE_LEVELS)
            full.append((0, (self.tree.size >> TILE_LEVELS) - 1, b"".join(tile)))
            full += self._fill(1, root)
            at += TILE_HASHES
        return full

    def _fill(self, level: int, value: bytes) -> list[Tile]:
        full: list[Tile] = []
        while True:
            while level >= len(self._pending):
                self._pending.append([])
            row = self._pending[level]
            row.append(value)
            if len(row) < TILE_HASHES:
                return full
            number = (self.tree.size >> TILE_LEVELS * (level + 1)) - 1
            hashes = [
                entry
                if len(entry) == merkle.HASH_BYTES
                else merkle.perfect_root(merkle.split_hashes(entry))
                for entry in row
            ]
            full.append((level, number, b"".join(hashes)))
            value = merkle.perfect_root(hashes)
            row.clear()
            level += 1


class Tree:
    """
    The writer's tree. After an error it is dropped and read again, as the rows may not be there.

    Made for the position that the ledger had before the writer's own events: what a writer of an
    earlier release appended without the tree is filled in from its leaf hashes.
    """

    def __init__(self, connection: Connection, position: int, outbox: Outbox) -> None:
        """
        Read the tree and bring it to `position`.

        Raises:
            CorruptLedgerError: the tree goes further, or hashes that it needs are missing.
        """
        self._outbox = outbox
        tree = stored_range(connection)
        if tree.size > position:
            raise CorruptLedgerError(
                f"the tree is beyond the head: size={tree.size}", position=position
            )
        self._edge = TileGrower(tree, _pending(connection, tree.size))
        while self._edge.tree.size < position:
            first = self._edge.tree.size + 1
            last = min(position, self._edge.tree.size + _CATCH_UP_EVENTS)
            self.grow(_leaves(connection, first, last))
            outbox.send()

    def grow(self, leaves: Iterable[bytes]) -> None:
        """
        Add the leaf hashes of the next positions; the tree and every tile they fill go out.

        The outbox raises CorruptLedgerError if the stored tree is not the one that was read.
        """
        before = self._edge.tree.size
        append = self._edge.append
        tiles: list[Row] = [tile for leaf in leaves for tile in append(leaf)]
        tree = self._edge.tree
        row = (tree.size, tree.to_bytes(), before)
        changed = partial(CorruptLedgerError, "the tree is not what it was", position=before)
        self._outbox.add(_GROW, [row], changed)
        if tiles:
            lost = partial(CorruptLedgerError, "a tile was not written", position=before)
            self._outbox.add(TILE, tiles, lost)


def stored_range(connection: Connection) -> merkle.CompactRange:
    """
    Return the tree as the database has it.

    Raises:
        CorruptLedgerError: there is none, or its hashes are not those of its size.
    """
    rows = connection.execute(select(_tree.size, _tree.range)).all()
    if len(rows) != 1:
        raise CorruptLedgerError("the tree is missing", position=0)
    size, hashes = rows[0]
    try:
        return merkle.CompactRange(size, bytes(hashes))
    except ValueError as error:
        raise CorruptLedgerError(str(error), position=0) from error


def node_reader(connection: Connection) -> merkle.NodeReader:
    """
    Return a reader of the tree's nodes: from tiles where they are full, else from the events.

    It reads each once, so it is for one transaction: proofs of several sizes share most of them.
    Reading raises CorruptLedgerError for a hash that is not there.
    """
    tile = cache(partial(_tile, connection))

    @cache
    def read(level: int, index: int) -> bytes:
        tile_level, row = divmod(level, TILE_LEVELS)
        first = index << row  # among the hashes of the tile's level
        hashes = tile(tile_level, first // TILE_HASHES)
        if hashes is not None:
            at = first % TILE_HASHES
            return merkle.perfect_root(merkle.split_hashes(hashes)[at : at + (1 << row)])
        if level == 0:
            return _leaves(connection, index + 1, index + 1)[0]
        if tile_level == 0:
            return merkle.perfect_root(_leaves(connection, first + 1, first + (1 << row)))
        return merkle.node_hash(read(level - 1, index * 2), read(level - 1, index * 2 + 1))

    return read


def _pending(connection: Connection, size: int) -> list[list[bytes]]:
    """Return what the tiles that a tree of this size has begun are made of, lowest level first."""
    tiles = size >> TILE_LEVELS
    pending = [_leaves(connection, (tiles << TILE_LEVELS) + 1, size)]
    level = 0
    while tiles:
        begun = tiles >> TILE_LEVELS
        pending.append(_full_tiles(connection, level, begun << TILE_LEVELS, tiles))
        level, tiles = level + 1, begun
    return pending


def _full_tiles(connection: Connection, level: int, first: int, end: int) -> list[bytes]:
    query = (
        select(_tiles.number, _tiles.hashes)
        .where(_tiles.level == level, _tiles.number >= first, _tiles.number < end)
        .order_by(_tiles.number)
    )
    found = {number: bytes(hashes) for number, hashes in connection.execute(query)}
    for number in range(first, end):
        if number not in found:
            position = (number << TILE_LEVELS * (level + 1)) + 1
            raise CorruptLedgerError(
                f"a tile is missing: level={level}, number={number}", position=position
            )
    return list(found.values())


def _tile(connection: Connection, level: int, number: int) -> bytes | None:
    query = select(_tiles.hashes).where(_tiles.level == level, _tiles.number == number)
    hashes = connection.execute(query).scalar()
    return None if hashes is None else bytes(hashes)


def _leaves(connection: Connection, first: int, last: int) -> list[bytes]:
    if first > last:
        return []
    query = (
        select(_events.position, _events.leaf_hash)
        .where(_events.position.between(first, last))
        .order_by(_events.position)
    )
    leaves: list[bytes] = []
    for position, leaf in connection.execute(query):
        if position != first + len(leaves):
            break
        leaves.append(bytes(leaf))
    if len(leaves) != last - first + 1:
        raise CorruptLedgerError("an event is missing", position=first + len(leaves))
    return leaves
