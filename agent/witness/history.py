"""
Whether the ledger that is shown now grew out of the one that was shown before.

Rule: docs/proof.md, "What agents keep". A checkpoint that is not signed by a trusted key says
nothing; one that is, and does not follow, is another ledger, and what was kept stays. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ledger.domain.errors import InputError
from ledger.domain.proofs.merkle import HASH_BYTES, is_prefix
from ledger.signing import Checkpoint, Note, PublicKey, is_lost

AGAIN_SECONDS_MAX: Final = 80
"""What a service asks for that has 8,000 agents, the most; no longer is waited for any."""


class Verdict(StrEnum):
    """What a ledger is beside the one that was kept."""

    FIRST = "first"
    """Nothing was kept yet."""
    GROWN = "grown"
    """All that was there is there."""
    RECOVERED = "recovered"
    """What was kept is lost, and whoever has the key says so."""
    RESTORED = "restored"
    """It is shorter than it was: an older copy was put back."""
    REWRITTEN = "rewritten"
    """It is another history."""
    FOREIGN = "foreign"
    """It is another ledger."""
    UNSIGNED = "unsigned"
    """No key that is trusted vouches for it, or it can't be read."""


BAD: frozenset[Verdict] = frozenset(
    {Verdict.RESTORED, Verdict.REWRITTEN, Verdict.FOREIGN, Verdict.UNSIGNED}
)
"""What is kept stays then: the next answer is compared with it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the service answered; `consistency`: hashes in hex, None = no proof."""

    checkpoint: str
    consistency: Sequence[str] | None = None
    again_seconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What is known of the ledger now, the note to keep, and the fact for people."""

    verdict: Verdict
    keep: str
    words: str


def judged(kept: str, shown: Shown, keys: Sequence[PublicKey]) -> Judged:
    """Judge what was shown by what was kept; `kept` is empty where nothing was."""
    try:
        text, now = _trusted(shown.checkpoint, keys)
    except InputError as error:
        return Judged(verdict=Verdict.UNSIGNED, keep=kept, words=str(error))
    if not kept:
        words = f"the first that is seen: size={now.size}"
        return Judged(verdict=Verdict.FIRST, keep=shown.checkpoint, words=words)
    before = Checkpoint.parse(Note.parse(kept).text)
    verdict = _verdict(before, now, text, shown.consistency)
    words = f"{verdict}: kept={before.size} of {before.origin}, shown={now.size} of {now.origin}"
    return Judged(verdict=verdict, keep=kept if verdict in BAD else shown.checkpoint, words=words)


def readable(note: str) -> bool:
    """Tell whether a text is a checkpoint, so that it may be kept."""
    try:
        Checkpoint.parse(Note.parse(note).text)
    except InputError:
        return False
    return True


def _trusted(note: str, keys: Sequence[PublicKey]) -> tuple[str, Checkpoint]:
    signed = Note.parse(note)
    if not any(signed.is_signed_by(key) for key in keys):
        raise InputError("a checkpoint that no trusted key signed")
    return signed.text, Checkpoint.parse(signed.text)


def _verdict(
    before: Checkpoint, now: Checkpoint, text: str, consistency: Sequence[str] | None
) -> Verdict:
    if before.origin != now.origin:
        return Verdict.FOREIGN
    proof = _hashes(consistency)
    if proof is not None and is_prefix(
        first=before.size,
        first_root=before.root,
        second=now.size,
        second_root=now.root,
        proof=proof,
    ):
        return Verdict.GROWN
    if is_lost(text, before.size):
        return Verdict.RECOVERED
    return Verdict.RESTORED if now.size < before.size else Verdict.REWRITTEN


def _hashes(words: Sequence[str] | None) -> list[bytes] | None:
    try:
        found = None if words is None else [bytes.fromhex(each) for each in words]
    except ValueError:
        return None
    return found if found is None or all(len(each) == HASH_BYTES for each in found) else None
