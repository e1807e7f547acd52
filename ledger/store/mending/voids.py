"""Positions that a later event declares void: what readers take in the place of their events."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import Final

from sqlalchemy import Connection, select

from ledger.domain.errors import InputError
from ledger.domain.log.events import PositionVoided, decode_event
from ledger.store import schema

Voids = Mapping[int, AbstractSet[str]]
"""Position -> the leaf hash, hex, of what is void there; of several only one can be its event's."""
NO_VOIDS: Final[Voids] = MappingProxyType({})
_events: Final = schema.ledger_events.c


def voids_of(connection: Connection) -> Voids:
    """Return what the log declares void, in the transaction that is open; `verify` proves it."""
    query = (
        select(_events.body)
        .where(_events.event_type == PositionVoided.event_type)
        .order_by(_events.position)
    )
    found: dict[int, set[str]] = {}
    for body in connection.execute(query).scalars():
        try:
            event = decode_event(PositionVoided.event_type, body)
        except InputError:
            continue  # it voids nothing, and `verify` names it
        assert isinstance(event, PositionVoided), event
        found.setdefault(event.position, set()).add(event.leaf_hash)
    return found


def void_event(voids: Voids, position: int, leaf: bytes) -> PositionVoided | None:
    """Return what stands for the event at this position, if its words are void."""
    if position not in voids or leaf.hex() not in voids[position]:
        return None
    return PositionVoided(position=position, leaf_hash=leaf.hex(), reason="")
