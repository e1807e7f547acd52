"""The hash chain over recorded events: what is hashed, and in which order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

GENESIS: Final = bytes(32)
"""The chain value before the first event."""

_LEAF: Final = b"\x00"
_CHAIN: Final = b"\x02"


class Leaf(msgspec.Struct, frozen=True):
    """
    What the ledger knows of an event, in the order of its canonical JSON.

    Attributes:
        args_hash, body_sha256: in hex. The body enters as its hash.
    """

    actor: str
    args_hash: str
    at_us: int
    body_sha256: str
    causation_position: int | None
    correlation_id: str
    epoch: int
    event_type: str
    idempotency_key: str
    position: int
    stream: str
    stream_version: int
    wall_us: int


_encode: Final = msgspec.json.Encoder().encode


def row_leaf(row: Sequence[Any], body_sha256: str = "") -> bytes:
    """
    Return SHA-256(0x00 || canonical envelope) of a row's words, the body replaced by its own hash.

    Rule: RFC 6962 section 2.1 leaf hashing; the body enters as a hash so that it can be archived
    while proofs hold (design section 4, append-only). It is not hashed again where that is known.
    """
    position, stream, version, event_type, body, actor, epoch = row[:7]
    causation, correlation, key, args_hash, at_us, wall_us = row[7:13]
    return hash_of(
        Leaf(
            actor,
            args_hash.hex(),
            at_us,
            body_sha256 or sha256(body.encode()).hexdigest(),
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
    )


def hash_of(leaf: Leaf) -> bytes:
    """Return the hash of a leaf."""
    return sha256(_LEAF + _encode(leaf)).digest()


def hashes_of(leaves: Iterable[Leaf]) -> list[bytes]:
    """Return the hash of each leaf."""
    return [sha256(_LEAF + words).digest() for words in map(_encode, leaves)]


def chain_hash(previous: bytes, leaf: bytes) -> bytes:
    """Return SHA-256(0x02 || previous chain value || leaf): one link of the chain."""
    return sha256(_CHAIN + previous + leaf).digest()
