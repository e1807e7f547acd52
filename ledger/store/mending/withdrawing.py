"""The way out for a checkpoint that the ledger keeps and that its events do not bear out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ledger.domain.errors import InputError
from ledger.domain.log.events import CheckpointWithdrawn
from ledger.signing import Note, PublicKey
from ledger.store.mending.acts import record_act
from ledger.store.mending.withdrawals import Withdrawal, kept_notes, note_hash
from ledger.store.open import Ledger
from ledger.store.proving.tree_proof import NOT_WITHDRAWN, OWN
from ledger.store.proving.trusted_keys import trusted_keys
from ledger.store.proving.verify import Finding, verify
from ledger.store.writing.append import Writer


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
        FencedError: another writer took over.
        LedgerError: the database failed; nothing is recorded.
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
