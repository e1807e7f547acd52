"""
Read events back: in order, without a gap, each linked to the one before.

Whole pages are proved at once, column by column. Where a page is not sound, its rows are looked at
one by one, which names the first bad position and what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

from sqlalchemy import Connection, Integer, bindparam, select

from ledger.domain.errors import CorruptLedgerError, InputError, LedgerError
from ledger.domain.log.events import LedgerEvent, decode_event
from ledger.domain.log.recorded import Envelope, RecordedEvent
from ledger.domain.proofs.hashing import Leaf, chain_hash, hashes_of, row_leaf
from ledger.store import schema
from ledger.store.archives.segments import archived_up_to, in_archive
from ledger.store.failures import DAMAGE, fact_of
from ledger.store.mending.acts import NO_VOIDS, Voids, void_event, voids_of
from ledger.store.reading import tables
from ledger.store.writing.append import Head
from ledger.store.writing.statements import Row

PAGE_EVENTS: Final = 1_000
_events = schema.ledger_events.c
_NEXT: Final = (
    select(*schema.ledger_events.columns)
    .where(_events.position > bindparam("after"))
    .order_by(_events.position)
    .limit(bindparam("size", type_=Integer()))
)


def read_events(
    connection: Connection, *, after: int = 0, limit: int | None = None
) -> Iterator[RecordedEvent]:
    """
    Yield the events after position `after`, at most `limit`, oldest first.

    Rule: design section 4, "a reader can assert that nothing is missing".

    Every page is a transaction of its own, so a slow reader holds nothing up. A gap is corruption,
    never concurrency: positions are given out by the one writer, in the order of its commits.

    Raises:
        CorruptLedgerError: a position is missing, or an event's hash does not follow from its
            words and the event before it.
        InputError: the event behind `after` is in an archive.
        UnknownEventError: an event of a newer version.
    """
    voids = _voids(connection)
    for rows in proven_pages(connection, after, limit):
        for row in rows:
            yield _recorded(row, voids)


def replay(
    connection: Connection, *, after: int = 0, limit: int | None = None
) -> Iterator[tuple[int, LedgerEvent]]:
    """
    Yield (position, event) for those who fold: proved as in `read_events`, without envelopes.

    Raises:
        CorruptLedgerError, UnknownEventError: as `read_events`.
    """
    voids = _voids(connection)
    for rows in proven_pages(connection, after, limit):
        for row in rows:
            yield row[0], decoded(row, voids)


def proven_pages(
    connection: Connection, after: int = 0, limit: int | None = None
) -> Iterator[Sequence[Row]]:
    """
    Yield the rows after `after` in pages, each proved before it is handed on.

    Raises:
        CorruptLedgerError: as `read_events`, once the sound rows before it are handed on.
    """
    previous = _chain_at(connection, after)
    position = after
    left = limit
    while left is None or left > 0:
        size = PAGE_EVENTS if left is None else min(left, PAGE_EVENTS)
        rows, end = _page(connection, position, size)
        page = checked(rows, position, previous)
        yield page.rows
        if page.error is not None:
            raise page.error
        position, previous = position + len(rows), page.chain_hash
        if len(rows) < size:
            if position < end:
                raise CorruptLedgerError(f"an event is missing: head={end}", position=position + 1)
            return
        if left is not None:
            left -= len(rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRows:
    """
    Rows of `ledger_events` that are what was recorded, and the chain value behind them.

    `error` is what is wrong with the row behind them, if there is one.
    """

    rows: Sequence[Row]
    chain_hash: bytes
    error: CorruptLedgerError | None


def checked(rows: Sequence[Row], after: int, previous: bytes) -> CheckedRows:
    """Check the rows behind position `after`, whose chain value is `previous`."""
    chain = proven_chain(rows, after, previous)
    if chain is not None:
        return CheckedRows(rows=rows, chain_hash=chain, error=None)
    for number, row in enumerate(rows):
        try:
            previous = _checked_row(row, after + number + 1, previous)
        except CorruptLedgerError as error:
            return CheckedRows(rows=rows[:number], chain_hash=previous, error=error)
    return CheckedRows(rows=rows, chain_hash=previous, error=None)


def checked_head(connection: Connection) -> Head:
    """
    Return the head, which must be the one row that it always is.

    Raises:
        CorruptLedgerError: it is missing, not alone, or holds something else.
        LedgerError: another process has locked the database.
    """
    try:
        rows = list(tables.rows_of(connection, tables.in_key_order(schema.ledger_head)))
    except tables.UnreadableError as error:
        if "locked" in str(error):
            raise LedgerError(f"another process writes this ledger: {error}") from error
        raise CorruptLedgerError(f"the head is unreadable: {error}", position=0) from error
    if len(rows) != 1:
        raise CorruptLedgerError(f"the head must be one row: rows={len(rows)}", position=0)
    if not tables.is_typed(schema.ledger_head, rows[0]):
        raise CorruptLedgerError(tables.other_types(schema.ledger_head, rows[0]), position=0)
    number, origin, epoch, holder, position, at_us, chain = rows[0]
    if number != 1 or position < 0:
        raise CorruptLedgerError(
            f"the head is not what it was: id={number}, head={position}", position=0
        )
    return Head(
        position=position,
        chain_hash=chain,
        epoch=epoch,
        holder=holder,
        origin=origin,
        at_us=at_us,
    )


def _voids(connection: Connection) -> Voids:
    try:
        with connection.begin():
            return voids_of(connection)
    except (*DAMAGE, *tables.CONTRADICTION) as error:
        raise CorruptLedgerError(f"events are unreadable: {error}", position=1) from error


def recorded_event(
    row: Sequence[Any], position: int, previous: bytes, voids: Voids = NO_VOIDS
) -> RecordedEvent:
    """
    Return the event of one row of `ledger_events`, which must be the one at `position`.

    Raises:
        CorruptLedgerError: it is not, or its hashes don't hold.
        UnknownEventError: an event of a newer version.
    """
    _checked_row(row, position, previous)
    return _recorded(row, voids)


def _checked_row(row: Sequence[Any], position: int, previous: bytes) -> bytes:
    if row[0] != position:
        raise CorruptLedgerError(f"an event is missing: next={row[0]}", position=position)
    if not tables.is_typed(schema.ledger_events, row):
        raise CorruptLedgerError(tables.other_types(schema.ledger_events, row), position=position)
    leaf, chain = bytes(row[13]), bytes(row[14])
    if row_leaf(row) != leaf:
        raise CorruptLedgerError(
            "the event was altered: its hash does not match", position=position
        )
    if chain_hash(previous, leaf) != chain:
        raise CorruptLedgerError("the chain is broken", position=position)
    return chain


def _recorded(row: Sequence[Any], voids: Voids) -> RecordedEvent:
    return RecordedEvent(
        envelope=envelope_of(row),
        leaf_hash=bytes(row[13]),
        chain_hash=bytes(row[14]),
        event=decoded(row, voids),
    )


def decoded(row: Sequence[Any], voids: Voids) -> LedgerEvent:
    """
    Return the event of a row that is proved, or what stands for it if its words are void.

    Raises:
        CorruptLedgerError: its body is not one of its type.
        UnknownEventError: an event of a newer version.
    """
    void = void_event(voids, row[0], bytes(row[13])) if row[0] in voids else None
    if void is not None:
        return void
    try:
        return decode_event(row[3], row[4])
    except InputError as error:
        raise CorruptLedgerError(f"the event is unreadable: {error}", position=row[0]) from error


def envelope_of(row: Sequence[Any]) -> Envelope:
    """Return the envelope of one row, columns in the order of the table."""
    return Envelope(
        position=row[0],
        stream=row[1],
        stream_version=row[2],
        event_type=row[3],
        body=row[4],
        actor=row[5],
        epoch=row[6],
        causation_position=row[7],
        correlation_id=row[8],
        idempotency_key=row[9],
        args_hash=bytes(row[10]).hex(),
        at_us=row[11],
        wall_us=row[12],
    )


def _page(connection: Connection, after: int, size: int) -> tuple[Sequence[Row], int]:
    """Return the next rows as the driver's tuples, and the head as of the same moment."""
    try:
        with connection.begin():
            head = checked_head(connection).position
            return tables.fetched(connection, _NEXT, {"after": after, "size": size}), head
    except (*DAMAGE, tables.UnreadableError) as error:
        fact = str(error) if isinstance(error, tables.UnreadableError) else fact_of(error)
        raise CorruptLedgerError(f"events are unreadable: {fact}", position=after + 1) from error
    except (MemoryError, *tables.CONTRADICTION) as error:  # a value that is not of its column
        raise CorruptLedgerError(
            f"events are unreadable: {type(error).__name__}: {error}", position=after + 1
        ) from error


def _chain_at(connection: Connection, position: int) -> bytes:
    query = select(_events.chain_hash).where(_events.position == position)
    try:
        with connection.begin():
            last, chain = archived_up_to(connection)
            if position < last:
                raise in_archive(connection, position + 1)
            found: object = chain if position == last else connection.execute(query).scalar()
    except DAMAGE as error:
        raise CorruptLedgerError(
            f"events are unreadable: {fact_of(error)}", position=position
        ) from error
    if not isinstance(found, bytes):
        raise CorruptLedgerError("no such event", position=position)
    return found


def proven_chain(rows: Sequence[Row], after: int, previous: bytes) -> bytes | None:
    """
    Return the chain value behind `rows`, the rows of `ledger_events` that follow `after`.

    None if they are not that: a gap, a value that is not of its column, words that do not give
    their hash, or a link that does not follow from `previous` and those before it.
    """
    if not rows:
        return previous
    columns = list(zip(*rows, strict=True))
    if not tables.are_typed(schema.ledger_events, columns):
        return None
    leaves, chains = columns[13:15]
    if columns[0] != tuple(range(after + 1, after + 1 + len(rows))):
        return None
    if leaf_hashes(columns) != [*leaves]:
        return None
    before = (previous, *chains[:-1])
    links = [
        sha256(b"\x02" + one + leaf).digest() for one, leaf in zip(before, leaves, strict=True)
    ]
    return chains[-1] if links == [*chains] else None


def leaf_hashes(columns: Sequence[Sequence[Any]]) -> list[bytes]:
    """
    Return the leaf hash of every row, given the columns of `ledger_events`.

    Byte for byte what `ledger.domain.proofs.hashing.row_leaf` gives; a test holds them together.
    """
    position, stream, version, event_type, body, actor, epoch = columns[:7]
    causation, correlation, key, args_hash, at_us, wall_us = columns[7:13]
    leaves = map(
        Leaf,
        actor,
        map(bytes.hex, args_hash),
        at_us,
        [sha256(words.encode()).hexdigest() for words in body],
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
    return hashes_of(leaves)
