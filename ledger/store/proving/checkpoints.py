"""Checkpoints of a ledger: what there is to sign, which keys may, and proofs for those who ask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, insert

from ledger.domain.errors import CorruptLedgerError, InputError
from ledger.domain.log.events import CheckpointStored, KeyRotated
from ledger.domain.proofs import merkle
from ledger.signing import Checkpoint, PublicKey, is_rotation
from ledger.store import schema
from ledger.store.mending.acts import readable, record_act
from ledger.store.open import Ledger
from ledger.store.proving.tree import node_reader, stored_range
from ledger.store.reading.read import checked_head
from ledger.store.writing.append import Writer


@dataclass(frozen=True, slots=True, kw_only=True)
class InclusionProof:
    """That one event is in a tree: what RFC 9162 section 2.1.3.2 takes."""

    position: int
    leaf_hash: bytes
    proof: Sequence[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsistencyProof:
    """That an older tree is a prefix of this one: what RFC 9162 section 2.1.4.2 takes."""

    size: int
    root: bytes
    proof: Sequence[bytes]


def checkpoint_at(ledger: Ledger, size: int | None = None) -> Checkpoint:
    """
    Return what there is to sign: the tree over the first `size` events, or all of them.

    Raises:
        InputError: no writer ever opened the ledger, or it has fewer events.
        CorruptLedgerError: the tree or an event that it needs is missing.
    """
    with ledger.connection.begin():
        head = checked_head(ledger.connection)
        if head.epoch == 0:
            raise InputError("the ledger has no origin yet: nobody wrote to it", place=ledger.url)
        size = head.position if size is None else size
        _expect_size(ledger, size, head.position)
        root = merkle.compact_range(reader_of(ledger.connection), size).root()
        return Checkpoint(origin=head.origin, size=size, root=root)


def store_checkpoint(writer: Writer, checkpoint: Checkpoint, note: str, *, wall_us: int) -> int:
    """
    Keep a signed checkpoint in the ledger, and return the position of its event.

    Raises:
        LedgerError: as `record_act`, or a larger one is there; nothing is recorded.
    """

    def store(connection: Connection) -> None:
        row = {"size": checkpoint.size, "note": note}
        connection.execute(insert(schema.ledger_checkpoints), row)

    event = CheckpointStored(size=checkpoint.size, note=note)
    name = f"checkpoint:{checkpoint.size}"
    return record_act(writer, event, name, wall_us=wall_us, beside=store)


def range_before(ledger: Ledger, position: int) -> bytes:
    """Return the compact range of the events before a position, as `CompactRange.to_bytes`."""
    with ledger.connection.begin():
        return merkle.compact_range(reader_of(ledger.connection), position - 1).to_bytes()


def prove_inclusion(ledger: Ledger, position: int, size: int) -> InclusionProof:
    """
    Return the proof that the event at `position` is in the tree of `size` events.

    Raises:
        InputError: there is no such event or size.
    """
    with ledger.connection.begin():
        _expect_size(ledger, size, checked_head(ledger.connection).position)
        if not 1 <= position <= size:
            raise InputError(f"no such event: position={position}, size={size}", place=ledger.url)
        read = reader_of(ledger.connection)
        return InclusionProof(
            position=position,
            leaf_hash=read(0, position - 1),
            proof=merkle.inclusion_proof(read, position - 1, size),
        )


def prove_consistency(ledger: Ledger, firsts: Iterable[int], size: int) -> list[ConsistencyProof]:
    """
    Return proofs that the trees of so many events are each a prefix of the one of `size`.

    Raises:
        InputError: there is no such size.
    """
    with ledger.connection.begin():
        _expect_size(ledger, size, checked_head(ledger.connection).position)
        read, found = reader_of(ledger.connection), []
        for first in firsts:
            _expect_size(ledger, first, size)
            root, proof = (
                merkle.range_root(read, 0, first),
                merkle.consistency_proof(read, first, size),
            )
            found.append(ConsistencyProof(size=first, root=root, proof=proof))
        return found


def reader_of(connection: Connection) -> merkle.NodeReader:
    """Return a reader of nodes, after a look at the tree that it belongs to."""
    size = stored_range(connection).size
    head = checked_head(connection).position
    if size > head:
        raise CorruptLedgerError(f"the tree is beyond the head: size={size}", position=head)
    return node_reader(connection)


def key_at(ledger: Ledger, key: PublicKey, origin: str, size: int) -> PublicKey:
    """
    Return the key that signs checkpoints of this size, for someone who trusts `key`.

    Follows the rotations up to that position that both keys signed; anyone who can write the ledger
    can record others.
    """
    for position, old, new in _rotations(ledger, origin):
        if position <= size and str(old) == str(key):
            key = new
    return key


def _expect_size(ledger: Ledger, size: int, last: int) -> None:
    if not 0 <= size <= last:
        raise InputError(f"no tree of this size: size={size}, events={last}", place=ledger.url)


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """Behind which position of the ledger a key signs, and up to which; None for no end."""

    after: int = 0
    until: int | None = None

    def covers(self, moment: int) -> bool:
        """Tell whether what was signed when the ledger stood there is of this period."""
        return self.after <= moment and (self.until is None or moment < self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustedKeys:
    """Keys by their id `name+hash`, each with the periods in which it is believed."""

    keys: Mapping[str, PublicKey]
    periods: Mapping[str, Sequence[Period]]

    def check(self, key_id: str, message: bytes, signature: bytes) -> bool:
        """Tell whether a trusted key of that id made the signature, whenever that was."""
        key = self.keys.get(key_id)
        return key is not None and key.accepts(message, signature)

    def doubt(self, key_id: str, moment: int) -> str:
        """Return why a key is not believed at a position of the ledger, empty if it is."""
        if any(period.covers(moment) for period in self.periods.get(key_id, ())):
            return ""
        return f"the key did not sign any more, or not yet: key={key_id}, position={moment}"


def trusted_keys(ledger: Ledger, given: Sequence[PublicKey]) -> TrustedKeys:
    """
    Return the keys that someone believes who was given these, with the ledger's rotations.

    A given key hands its trust on to the one that follows it, and has none from there on. The key
    before a trusted one is believed for the time before, for the later key signed that too; it
    hands nothing on. Rotations that do not check change nothing: whoever can write the ledger can
    record them.
    """
    rotations = _rotations(ledger, ledger.head().origin)
    keys = {key.key_id: key for key in given}
    signing = dict.fromkeys(keys, 0)  # key id -> behind which position
    periods: dict[str, list[Period]] = {}
    for position, old, new in rotations:
        after = signing.pop(old.key_id, None)
        if after is not None:
            periods.setdefault(old.key_id, []).append(Period(after=after, until=position))
            keys[new.key_id] = new
            signing.setdefault(new.key_id, position)
    for key_id, after in signing.items():
        periods.setdefault(key_id, []).append(Period(after=after))
    for position, old, new in reversed(rotations):
        if new.key_id in keys and old.key_id not in keys:
            keys[old.key_id] = old
            periods[old.key_id] = [Period(until=position)]
    return TrustedKeys(keys=keys, periods=periods)


def _rotations(ledger: Ledger, origin: str) -> list[tuple[int, PublicKey, PublicKey]]:
    with ledger.connection.begin():
        return [
            (row.position, PublicKey.parse(event.old_key), PublicKey.parse(event.new_key))
            for row, event in readable(
                ledger.connection, KeyRotated, schema.ledger_events.c.position
            )
            if is_rotation(event.note, origin=origin, old_key=event.old_key, new_key=event.new_key)
        ]
