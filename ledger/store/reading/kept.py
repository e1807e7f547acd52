"""Events that are read by what they are: those that stay in the log, and what opened holdings."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Final, TypeVar

from msgspec import Struct, json
from sqlalchemy import ColumnElement, Connection, literal_column, or_, select

from ledger.domain.log import events
from ledger.domain.log.state import GRANTED
from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.domain.systems import Claimant
from ledger.store.mending.acts import void_event, voids_of
from ledger.store.reading.tables import in_parts
from ledger.store.schema import ledger_events, ledger_reservations

_Kind = TypeVar("_Kind")


def each_of(connection: Connection, kind: type[_Kind], until: int = INTEGER_MAX) -> Iterator[_Kind]:
    """
    Yield the events of a type up to a position, in order; without what is declared void.

    Of the types that an archive leaves in the log these are all there ever were. One at a time,
    so that a reader keeps what it needs of each.

    Raises:
        InputError: a body that nobody can read.
    """
    (event_type,) = (name for name, each in events.EVENT_TYPES.items() if each is kind)
    for _, _, _, body in rows_of_types(connection, event_type, until=until):
        event = events.decode_event(event_type, body)
        if isinstance(event, kind):
            yield event


def rows_of_types(
    connection: Connection, *types: str, until: int = INTEGER_MAX, streams: bool = False
) -> Iterator[tuple[int, str, str, str]]:
    """
    Yield position, stream, type and body of events of these types, in order; no void ones.

    Args:
        streams: read them; else they are empty, and one may be damaged.
    """
    e, voids = ledger_events.c, voids_of(connection)
    literals: list[ColumnElement[str]] = [literal_column(f"'{name}'") for name in types]
    of_types = or_(*(e.event_type == each for each in literals))  # a value would hide the index
    query = (
        select(
            e.position,
            e.stream if streams else literal_column("''"),
            e.event_type,
            e.body,
            e.leaf_hash,
        )
        .where(of_types, e.position <= until)
        .order_by(e.position)
    )
    for *row, leaf in connection.execute(query):
        position, stream, event_type, body = row
        if void_event(voids, position, bytes(leaf)) is None:
            yield position, stream, event_type, body


class _Labelled(Struct):
    """What of an inventory is read for its labels alone: most of one is CPUs."""

    node_uid: str
    labels: dict[str, str] = {}


def labels_of(
    connection: Connection, nodes: Container[str], until: int = INTEGER_MAX
) -> dict[str, dict[str, str]]:
    """Return the labels that these nodes, by UID, had last up to a position."""
    rows = rows_of_types(connection, events.NodeInventoried.event_type, until=until)
    inventories = (_read_labels(body) for _, _, _, body in rows)
    return {each.node_uid: each.labels for each in inventories if each.node_uid in nodes}


def events_of(connection: Connection, kind: type[_Kind], until: int = INTEGER_MAX) -> list[_Kind]:
    """Return all that `each_of` yields."""
    return list(each_of(connection, kind, until))


def seldom_of(
    connection: Connection, *kinds: type[events.LedgerEvent]
) -> list[tuple[int, events.LedgerEvent]]:
    """Return the events of these types, that are in the log as long as it is, with positions."""
    names = [name for name, each in events.EVENT_TYPES.items() if each in kinds]
    rows = rows_of_types(connection, *names)
    return [
        (position, events.decode_event(event_type, body)) for position, _, event_type, body in rows
    ]


def times_of(connection: Connection, positions: Iterable[int]) -> dict[int, int]:
    """Return the wall clock's time of these events, as far as they are not in an archive."""
    e = ledger_events.c
    found: dict[int, int] = {}
    for part in in_parts(positions):
        query = select(e.position, e.wall_us).where(e.position.in_(part))
        found.update(map(tuple, connection.execute(query)))
    return found


def events_at(connection: Connection, positions: Iterable[int]) -> dict[int, events.LedgerEvent]:
    """Return the events at these positions, as far as they are not in an archive."""
    return dict(each_at(connection, positions))


def each_at(
    connection: Connection, positions: Iterable[int]
) -> Iterator[tuple[int, events.LedgerEvent]]:
    """Yield them with their positions, in order, one part after the other."""
    e = ledger_events.c
    for part in in_parts(positions):
        query = (
            select(e.position, e.event_type, e.body)
            .where(e.position.in_(part))
            .order_by(e.position)
        )
        for position, event_type, body in connection.execute(query):
            yield position, events.decode_event(event_type, body)


def consumers_of(
    connection: Connection, positions: Iterable[int], until: int = INTEGER_MAX
) -> dict[int, tuple[Claimant, ...]]:
    """Return who used the claims, at a position, that events at these positions gave something."""
    found: dict[int, tuple[Claimant, ...]] = {}
    holdings: dict[str, dict[tuple[str, int], int]] = {}  # stream -> claim, attempt -> position
    for position, event in each_at(connection, positions):
        if isinstance(event, events.ClaimReserved | events.ClaimObserved):
            found[position] = event.consumers
            of_node = holdings.setdefault(f"node/{event.node_uid}", {})
            of_node[event.claim_uid, event.attempt] = position
    e = ledger_events.c
    for stream, keys in holdings.items():
        query = (
            select(e.position, e.body)
            .where(
                e.stream == stream,
                e.event_type == events.ClaimConsumed.event_type,
                e.position > min(keys.values()),
                e.position <= until,
            )
            .order_by(e.position)
        )
        for _, body in connection.execute(query):
            said = events.decode_event(events.ClaimConsumed.event_type, body)
            assert isinstance(said, events.ClaimConsumed), stream
            if (said.claim_uid, said.attempt) in keys:
                found[keys[said.claim_uid, said.attempt]] = said.consumers
    return found


_read_labels: Final = json.Decoder(_Labelled).decode


def newest_granted(connection: Connection, since: int, many: int) -> list[events.PodReserved]:
    """Return the newest reservations from a position on, at most so many, newest first."""
    r = ledger_reservations.c
    query = (
        select(r.position)
        .where(r.kind == GRANTED, r.position >= since)
        .order_by(r.position.desc())
        .limit(many)
    )
    there = events_at(connection, connection.execute(query).scalars())
    newest = sorted(there.items(), reverse=True)
    return [event for _, event in newest if isinstance(event, events.PodReserved)]
