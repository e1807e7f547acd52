"""The way out for an event that can't be, or a checkpoint that is false: an event takes it back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, delete, select

from ledger.domain.errors import InputError, UnknownEventError
from ledger.domain.log.events import CheckpointWithdrawn, PositionVoided, decode_event
from ledger.signing import Note, PublicKey
from ledger.store import schema
from ledger.store.mending.acts import Withdrawal, kept_notes, note_hash, record_act
from ledger.store.open import Ledger
from ledger.store.proving.checkpoints import trusted_keys
from ledger.store.proving.tree_proof import NOT_WITHDRAWN, OWN
from ledger.store.proving.verify import Finding, verify
from ledger.store.writing.append import Writer

_events = schema.ledger_events.c
_SNAPSHOT: Final = "the snapshot at position "
"""How a finding begins about what goes with the event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """An event that `verify` names, and that it no longer names once it is void."""

    position: int
    event_type: str
    leaf_hash: str
    findings: tuple[Finding, ...]


def impossible_event(ledger: Ledger, position: int) -> Impossible:
    """
    Return the event at `position`, which may be declared void.

    Rule: an event that nobody can read may be; another one only if the ledger proves itself without
    it as far as before and at its position, so that no table holds what it says.

    Raises:
        InputError: there is no such event in the log, or it is a good one.
    """
    query = select(_events.event_type, _events.body, _events.leaf_hash)
    with ledger.connection.begin():
        row = ledger.connection.execute(query.where(_events.position == position)).one_or_none()
    if row is None:
        raise InputError(f"no such event in the log: position={position}")
    before = verify(ledger).findings
    named = tuple(each for each in before if each.position == position)
    if not named:
        raise InputError(f"verify finds nothing wrong with the event: position={position}")
    leaf = bytes(row.leaf_hash).hex()
    after = verify(ledger, also_void={position: {leaf}}).findings
    more = [each for each in after if each not in before and not each.text.startswith(_SNAPSHOT)]
    if any(each.position == position for each in after) or (
        more and _reads(row.event_type, row.body)
    ):
        fact = next((str(each) for each in (*more, *after)), "")
        raise InputError(f"the ledger would not prove itself without the event: {fact}")
    return Impossible(position=position, event_type=row.event_type, leaf_hash=leaf, findings=named)


def declare_void(writer: Writer, event: Impossible, reason: str, *, wall_us: int) -> int:
    """
    Record that the event is void, delete the snapshots behind it, and return the act's position.

    Raises:
        FencedError, LedgerError: as `record_act`.
    """
    void = PositionVoided(position=event.position, leaf_hash=event.leaf_hash, reason=reason)

    def forget(connection: Connection) -> None:
        snapshots = schema.ledger_snapshots
        connection.execute(delete(snapshots).where(snapshots.c.position >= event.position))

    return record_act(writer, void, f"void:{event.position}", wall_us=wall_us, beside=forget)


def _reads(event_type: str, body: str) -> bool:
    try:
        decode_event(event_type, body)
    except (InputError, UnknownEventError):
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseCheckpoint:
    """A kept checkpoint that `verify` names, and no longer names once it is withdrawn."""

    size: int
    note_hash: str
    keys: tuple[str, ...]
    findings: tuple[Finding, ...]


def false_checkpoint(ledger: Ledger, size: int, trusted: Sequence[PublicKey]) -> FalseCheckpoint:
    """
    Return the checkpoint of that size, which may be withdrawn.

    Rule: docs/proof.md, "A checkpoint that is false". The rest of the ledger proves itself, the
    events do not bear the checkpoint out, and no trusted key signed it.

    Args:
        trusted: who may have signed it, with the keys that rotations join to them.

    Raises:
        InputError: there is no such checkpoint, it is right, a trusted key signed it, or it has
            signatures and nobody is trusted.
    """
    with ledger.connection.begin():
        notes = dict(kept_notes(ledger.connection))
    if size not in notes:
        raise InputError(f"the ledger keeps no such checkpoint: size={size}")
    if not trusted and _is_note(notes[size]):
        raise InputError(f"the checkpoint has signatures, and no key is trusted: size={size}")
    joined = trusted_keys(ledger, trusted).keys.values()
    event = CheckpointWithdrawn(
        size=size,
        note_hash=note_hash(notes[size]),
        keys=tuple(sorted(str(key) for key in joined)),
        reason="",
    )
    withdrawal = Withdrawal(position=ledger.head().position + 1, actor="", event=event)
    before = verify(ledger).findings
    report = verify(ledger, also_withdrawn={(size, event.note_hash): withdrawal})
    for finding in report.findings:
        if finding.text.startswith(NOT_WITHDRAWN):
            fact = finding.text.removeprefix(NOT_WITHDRAWN).strip()
            raise InputError(f"it is a checkpoint {fact}")
        if OWN not in finding.text:  # another one may be false too
            raise InputError(f"the ledger does not prove itself: {finding}")
    gone = tuple(each for each in before if each not in report.findings)
    return FalseCheckpoint(size=size, note_hash=event.note_hash, keys=event.keys, findings=gone)


def withdraw(writer: Writer, checkpoint: FalseCheckpoint, reason: str, *, wall_us: int) -> int:
    """
    Record that the checkpoint is withdrawn, and return the position of that.

    Raises:
        FencedError, LedgerError: as `record_act`.
    """
    event = CheckpointWithdrawn(
        size=checkpoint.size, note_hash=checkpoint.note_hash, keys=checkpoint.keys, reason=reason
    )
    return record_act(writer, event, f"withdraw:{checkpoint.size}", wall_us=wall_us)


def _is_note(raw: bytes) -> bool:
    try:
        return bool(Note.parse(raw.decode()).signatures)
    except (UnicodeDecodeError, InputError):
        return False
