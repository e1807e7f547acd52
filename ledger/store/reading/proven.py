"""
Whole pages of events proved at once, column by column: the fast path of everyone who reads.

A page that is not sound in any way is only told apart here; whoever reads looks at its rows one by
one then, and names the first bad position and what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from ledger.domain.proofs.hashing import Leaf, hashes_of
from ledger.store import schema
from ledger.store.reading.tables import are_typed
from ledger.store.writing.statements import Row


def proven_chain(rows: Sequence[Row], after: int, previous: bytes) -> bytes | None:
    """
    Return the chain value behind `rows`, the rows of `ledger_events` that follow `after`.

    None if they are not that: a gap, a value that is not of its column, words that do not give
    their hash, or a link that does not follow from `previous` and those before it.
    """
    if not rows:
        return previous
    columns = list(zip(*rows, strict=True))
    if not are_typed(schema.ledger_events, columns):
        return None
    leaves, chains = columns[13:15]
    if columns[0] != tuple(range(after + 1, after + 1 + len(rows))):
        return None
    if leaf_hashes(columns) != [*leaves]:
        return None
    before = (previous, *chains[:-1])
    links = [
        sha256(b"\x02" + one + leaf).digest() for one, leaf in zip(before, leaves, strict=True)
    ]
    return chains[-1] if links == [*chains] else None


def leaf_hashes(columns: Sequence[Sequence[Any]]) -> list[bytes]:
    """
    Return the leaf hash of every row, given the columns of `ledger_events`.

    Byte for byte what `ledger.domain.proofs.hashing.row_leaf` gives; a test holds them together.
    """
    position, stream, version, event_type, body, actor, epoch = columns[:7]
    causation, correlation, key, args_hash, at_us, wall_us = columns[7:13]
    leaves = map(
        Leaf,
        actor,
        map(bytes.hex, args_hash),
        at_us,
        [sha256(words.encode()).hexdigest() for words in body],
        causation,
        correlation,
        epoch,
        event_type,
        key,
        position,
        stream,
        version,
        wall_us,
    )
    return hashes_of(leaves)
