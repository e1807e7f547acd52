"""The way out for an event that is in the log and can't be: another one declares it void."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, delete, select

from ledger.domain.errors import InputError, UnknownEventError
from ledger.domain.log.events import PositionVoided, decode_event
from ledger.store import schema
from ledger.store.mending.acts import record_act
from ledger.store.open import Ledger
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
    Record that the event is void, and return the position of that.

    Snapshots behind the event go: it is part of their state.

    Raises:
        FencedError: another writer took over.
        LedgerError: the database failed; nothing is recorded.
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
