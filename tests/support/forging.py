"""An event that no writer of ours appends, put into the log with all that plain SQL can write."""

from __future__ import annotations

from hashlib import sha256

from ledger.domain.errors import LedgerError
from ledger.domain.log.events import CheckpointStored, encode_event
from ledger.domain.log.recorded import Envelope
from ledger.domain.proofs.hashing import chain_hash
from ledger.store.open import Ledger
from ledger.store.proving.tree import Tree
from ledger.store.writing import statements
from ledger.store.writing.append import read_head
from ledger.store.writing.outbox import Outbox
from tests.support.log_proofs import leaf_hash
from tests.support.stores import Store


def forge(store: Store, event_type: str, body: str, *, stream: str = "forged") -> int:
    """Append an event of these words and no rows of its own; hashes, head and tree are right."""
    with store.open() as ledger:
        return _forge(ledger, event_type, body, stream)


def put_in_checkpoint(store: Store, size: int, note: str) -> int:
    """Put a checkpoint of any words in, by an event and a row of plain SQL."""
    event = CheckpointStored(size=size, note=note)
    at = forge(store, event.event_type, encode_event(event))
    words = note.replace("'", "''")
    with store.raw() as raw:
        raw.execute(f"INSERT INTO ledger_checkpoints VALUES ({size}, '{words}')")
    return at


def _forge(ledger: Ledger, event_type: str, body: str, stream: str) -> int:
    connection, outbox = ledger.connection, Outbox(ledger.connection)
    with connection.begin():
        head = read_head(connection)
        found = connection.exec_driver_sql(
            f"SELECT coalesce(max(stream_version), 0) + 1 FROM ledger_events"
            f" WHERE stream = '{stream}'"
        )
        envelope = Envelope(
            position=head.position + 1,
            stream=stream,
            stream_version=int(found.scalar_one()),
            event_type=event_type,
            body=body,
            actor="forger",
            epoch=head.epoch,
            causation_position=None,
            correlation_id="",
            idempotency_key=f"forged:{head.position + 1}",
            args_hash=sha256(body.encode()).hexdigest(),
            at_us=head.at_us + 1,
            wall_us=head.at_us + 1,
        )
        leaf = leaf_hash(envelope)
        chain = chain_hash(head.chain_hash, leaf)
        words = {name: getattr(envelope, name) for name in _NAMES}
        row = (*words.values(), bytes.fromhex(envelope.args_hash), *_times(envelope), leaf, chain)
        moved = (envelope.position, envelope.at_us, chain, head.epoch, head.position)
        outbox.add(statements.MOVE_HEAD, [moved], _refused)
        outbox.add(statements.EVENT, [row], _refused)
        outbox.send()
        Tree(connection, head.position, outbox).grow([leaf])
        outbox.send()
    return envelope.position


def _refused() -> LedgerError:
    return LedgerError("the database took nothing")


_NAMES = (
    "position",
    "stream",
    "stream_version",
    "event_type",
    "body",
    "actor",
    "epoch",
    "causation_position",
    "correlation_id",
    "idempotency_key",
)


def _times(envelope: Envelope) -> tuple[int, int]:
    return envelope.at_us, envelope.wall_us
