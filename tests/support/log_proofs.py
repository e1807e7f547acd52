"""Hashes of events as the RFCs have them, and kept checkpoints."""

from __future__ import annotations

from msgspec import structs
from sqlalchemy import Connection, insert

from ledger.domain.log.recorded import Envelope
from ledger.domain.proofs.hashing import row_leaf
from ledger.signing import Checkpoint
from ledger.store import schema
from ledger.store.mending.acts import kept_notes, note_hash, voids_of, withdrawals_of


def leaf_hash(envelope: Envelope) -> bytes:
    """Return the leaf hash of an event's envelope."""
    row = structs.asdict(envelope) | {"args_hash": bytes.fromhex(envelope.args_hash)}
    return row_leaf([*row.values()])


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
