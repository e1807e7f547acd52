"""Hashes of events as the RFCs have them, proofs followed to the root, and kept checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs
from sqlalchemy import Connection, insert

from ledger.domain.log.recorded import Envelope
from ledger.domain.proofs.hashing import row_leaf
from ledger.domain.proofs.merkle import node_hash
from ledger.signing import Checkpoint
from ledger.store import schema
from ledger.store.mending.voids import voids_of
from ledger.store.mending.withdrawals import kept_notes, note_hash, withdrawals_of


def leaf_hash(envelope: Envelope) -> bytes:
    """Return the leaf hash of an event's envelope."""
    row = structs.asdict(envelope) | {"args_hash": bytes.fromhex(envelope.args_hash)}
    return row_leaf([*row.values()])


def includes(*, leaf: bytes, index: int, size: int, root: bytes, proof: Sequence[bytes]) -> bool:
    """
    Tell whether `proof` shows that `leaf` is the leaf `index` of the tree with this size and root.

    Rule: RFC 9162 section 2.1.3.2.
    """
    if not 0 <= index < size:
        return False
    node, last, value = index, size - 1, leaf
    for each in proof:
        if last == 0:
            return False
        if node & 1 or node == last:
            value = node_hash(each, value)
            node, last = _to_odd(node, last)
        else:
            value = node_hash(value, each)
        node, last = node >> 1, last >> 1
    return last == 0 and value == root


def _to_odd(node: int, last: int) -> tuple[int, int]:
    while node and not node & 1:
        node, last = node >> 1, last >> 1
    return node, last


def keep_checkpoint(connection: Connection, checkpoint: Checkpoint, note: str) -> None:
    """Keep a signed checkpoint with the ledger, in the caller's transaction; it never changes."""
    connection.execute(insert(schema.ledger_checkpoints).values(size=checkpoint.size, note=note))


def kept_checkpoint(connection: Connection) -> str | None:
    """Return the last checkpoint that the ledger keeps and does not withdraw, as a signed note."""
    withdrawn = withdrawals_of(connection, voids_of(connection))
    for size, note in reversed(tuple(kept_notes(connection))):
        if (size, note_hash(note)) not in withdrawn:
            return note.decode()
    return None
