"""Checkpoints that the ledger keeps, and those of them that an event of the log withdraws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy import Connection, LargeBinary, Select, cast, literal_column, select

from ledger.domain.errors import InputError
from ledger.domain.log.events import CheckpointWithdrawn, decode_event
from ledger.store import schema
from ledger.store.mending.voids import Voids, void_event
from ledger.store.reading.tables import rows_of

_checkpoints: Final = schema.ledger_checkpoints.c
_events: Final = schema.ledger_events.c
_NOTES: Final[Mapping[str, Select[Any]]] = {
    dialect: select(_checkpoints.size, as_bytes).order_by(_checkpoints.size)
    for dialect, as_bytes in (
        ("sqlite", cast(_checkpoints.note, LargeBinary)),
        ("postgresql", literal_column("convert_to(note, 'UTF8')")),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawal:
    """What an event says of one kept checkpoint, and who recorded it; `verify` judges it."""

    position: int
    actor: str
    event: CheckpointWithdrawn


Withdrawals = Mapping[tuple[int, str], Withdrawal]
"""The first withdrawal of each checkpoint, by its size and the hash of its note, hex."""
NO_WITHDRAWALS: Final[Withdrawals] = MappingProxyType({})


def withdrawals_of(connection: Connection, voids: Voids) -> Withdrawals:
    """Return what the log withdraws, in the transaction that is open."""
    query = (
        select(_events.position, _events.actor, _events.body, _events.leaf_hash)
        .where(_events.event_type == CheckpointWithdrawn.event_type)
        .order_by(_events.position)
    )
    found: dict[tuple[int, str], Withdrawal] = {}
    for position, actor, body, leaf in connection.execute(query):
        if void_event(voids, position, bytes(leaf)):
            continue
        try:
            event = decode_event(CheckpointWithdrawn.event_type, body)
        except InputError:
            continue  # it withdraws nothing, and `verify` names it
        assert isinstance(event, CheckpointWithdrawn), event
        withdrawal = Withdrawal(position=position, actor=actor, event=event)
        found.setdefault((event.size, event.note_hash), withdrawal)
    return found


def kept_notes(connection: Connection) -> Iterator[tuple[int, bytes]]:
    """
    Yield what the ledger keeps as checkpoints, by size: notes as bytes, whatever they are.

    Raises:
        UnreadableError: a page is damaged.
    """
    yield from rows_of(connection, _NOTES[connection.dialect.name])


def note_hash(note: bytes) -> str:
    """Return by which hash an event names a note."""
    return sha256(note).hexdigest()
