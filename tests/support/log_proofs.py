"""Hashes of events as the RFCs have them, and kept checkpoints."""

from __future__ import annotations

from msgspec import structs
from sqlalchemy import Connection

from ledger.domain.log.recorded import Envelope
from ledger.domain.proofs.hashing import row_leaf
from ledger.store.mending.acts import kept_notes, note_hash, voids_of, withdrawals_of


def leaf_hash(envelope: Envelope) -> bytes:
    """Return the leaf hash of an event's envelope."""
    row = structs.asdict(envelope) | {"args_hash": bytes.fromhex(envelope.args_hash)}
    return row_leaf([*row.values()])


def kept_checkpoint(connection: Connection) -> str | None:
    """Return the last checkpoint that the ledger keeps and does not withdraw, as a signed note."""
    withdrawn = withdrawals_of(connection, voids_of(connection))
    for size, note in reversed(tuple(kept_notes(connection))):
        if (size, note_hash(note)) not in withdrawn:
            return note.decode()
    return None
