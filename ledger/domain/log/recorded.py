"""The envelope around an event: what the ledger knows about it beside its own words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from ledger.domain.log.events import LedgerEvent


RECOVERY: Final = "recover/"
"""What the idempotency keys of a recovery begin with."""


class NewEvent(Struct, frozen=True, kw_only=True, gc=False):
    """
    An event on its way into the ledger. The writer adds position, version, time and hashes.

    Attributes:
        stream: `node/<uid>` or `sys`.
        idempotency_key: made by the caller; the same key is recorded once.
        wall_us: the raw wall clock, microseconds since the epoch; a simulation's virtual time.
        correlation_id: what ties the events of one attempt together, such as `<pod uid>/<attempt>`.
        causation_position: the event that made this one necessary, if there is one.
    """

    stream: str
    event: LedgerEvent
    actor: str
    idempotency_key: str
    wall_us: int
    correlation_id: str = ""
    causation_position: int | None = None


class Envelope(Struct, frozen=True, kw_only=True, gc=False):
    """
    One row of the event table, without its two hashes.

    Attributes:
        position: dense from 1 over the whole ledger.
        stream_version: dense from 1 inside the stream.
        body: canonical JSON text, hashed as stored.
        args_hash: SHA-256 of the body that the command asked for, hex; tells a repeated
            idempotency key with other arguments apart.
        at_us: monotonic over positions, microseconds since the epoch; order, never decisions.
    """

    position: int
    stream: str
    stream_version: int
    event_type: str
    body: str
    actor: str
    epoch: int
    causation_position: int | None
    correlation_id: str
    idempotency_key: str
    args_hash: str
    at_us: int
    wall_us: int


def is_recovered(envelope: Envelope) -> bool:
    """Tell whether a recovery recorded the event again, off what a cluster still said."""
    return envelope.idempotency_key.startswith(RECOVERY)


class RecordedEvent(Struct, frozen=True, kw_only=True, gc=False):
    """An event as the ledger holds it: envelope, hashes, and the decoded words."""

    envelope: Envelope
    leaf_hash: bytes
    chain_hash: bytes
    event: LedgerEvent
