"""The hash chain over recorded events: what is hashed, and in which order."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from ledger.domain.proofs.canonical import canonical_json

if TYPE_CHECKING:
    from ledger.domain.log.recorded import Envelope

GENESIS: Final = bytes(32)
"""The chain value before the first event."""

_LEAF: Final = b"\x00"
_CHAIN: Final = b"\x02"


def body_hash(body: str) -> bytes:
    """Return the SHA-256 of an event body, over the very bytes that are stored."""
    return hashlib.sha256(body.encode()).digest()


def leaf_hash(envelope: Envelope) -> bytes:
    """
    Return SHA-256(0x00 || canonical envelope), the body replaced by its own hash.

    Rule: RFC 6962 section 2.1 leaf hashing; the body enters as a hash so that it can be archived
    while proofs hold (design section 4, append-only).
    """
    text = canonical_json(envelope.hashed_fields(body_hash(envelope.body).hex()))
    return hashlib.sha256(_LEAF + text.encode()).digest()


def chain_hash(previous: bytes, leaf: bytes) -> bytes:
    """Return SHA-256(0x02 || previous chain value || leaf): one link of the chain."""
    return hashlib.sha256(_CHAIN + previous + leaf).digest()
