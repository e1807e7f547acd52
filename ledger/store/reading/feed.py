"""The change feed: every event once, in order, as soon as it is durable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from sqlalchemy import Connection, select
from sqlalchemy.exc import SQLAlchemyError

from ledger.domain.errors import CorruptLedgerError
from ledger.domain.log.recorded import RecordedEvent
from ledger.store import schema
from ledger.store.archives.segments import archived_up_to, in_archive
from ledger.store.ddl.postgres_log import CHANNEL
from ledger.store.failures import unreachable
from ledger.store.mending.acts import NO_VOIDS, Voids, voids_of
from ledger.store.reading.read import recorded_event
from ledger.store.service import Service, let_go
from ledger.store.threaded import Connected
from ledger.store.writing.append import read_head

PAGE_EVENTS: Final = 500
POLL_SECONDS: Final = 1.0
PATIENCE_SECONDS: Final = 300.0
"""A restart or a failover of the database takes seconds to minutes; a reader sits it out."""
_GOODBYE_SECONDS: Final = 5.0
_events = schema.ledger_events.c
_COLUMNS: Final = tuple(schema.ledger_events.columns)


async def follow(
    service: Service,
    *,
    after: int = 0,
    page_events: int = PAGE_EVENTS,
    poll_seconds: float = POLL_SECONDS,
    patience_seconds: float = PATIENCE_SECONDS,
    gather_seconds: Callable[[], float] = float,
) -> AsyncGenerator[RecordedEvent]:
    """
    Yield the events after position `after`, oldest first, and wait for more for ever.

    Rule: design section 4, "Readers assert density and the chain link".

    Each event is checked against the one before it; a gap is corruption, never concurrency. A
    wake-up only makes the reader look sooner than in `poll_seconds`. A page is a transaction of its
    own, so a slow reader holds nothing up, and no more than a page is in memory. Close it
    (`contextlib.aclosing`) when leaving early.

    Args:
        patience_seconds: how long the database may be away, whatever the poll, and how long one
            look may take; a connection that is silent for so long is given up like a lost one.
        gather_seconds: for how long events gather from the first that is there, asked each time.

    Raises:
        CorruptLedgerError: an event is missing or altered, or the ledger is behind what was read.
        InputError: the event behind `after` is in an archive.
        UnknownEventError: an event of a newer version.
        LedgerError: the database was away for `patience_seconds`.
    """
    clock = asyncio.get_running_loop()
    position, previous, away_since = after, None, None
    while True:
        try:
            async with _connected(service, patience_seconds) as (connection, woken):
                if previous is None:
                    async with asyncio.timeout(patience_seconds):
                        previous = await connection.run_sync(_chain_at, position)
                while True:
                    woken.clear()
                    seen = service.moves
                    async with asyncio.timeout(patience_seconds):
                        rows, voids = await connection.run_sync(_page, position, page_events)
                    away_since = None
                    for row in rows:
                        recorded = recorded_event(row, position + 1, previous, voids)
                        position, previous = position + 1, recorded.chain_hash
                        yield recorded
                    if len(rows) < page_events:
                        await _wait(service, seen, woken, poll_seconds)
                        await asyncio.sleep(gather_seconds())
        except (SQLAlchemyError, OSError) as error:  # TimeoutError is an OSError
            away_since = clock.time() if away_since is None else away_since
            if clock.time() - away_since >= patience_seconds:
                raise unreachable(error) from error
        await asyncio.sleep(min(poll_seconds, patience_seconds))


@asynccontextmanager
async def _connected(
    service: Service, seconds: float
) -> AsyncIterator[tuple[Connected, asyncio.Event]]:
    """Yield a connection, and what is set when Postgres says on it that the head moved."""
    async with asyncio.timeout(seconds):
        connection = await service.connect(reads=True)
    woken = asyncio.Event()
    try:
        if service.is_postgres:
            asked: Any = connection  # SQLAlchemy's own
            async with asyncio.timeout(seconds):
                driver = (await asked.get_raw_connection()).driver_connection
                await driver.add_listener(CHANNEL, lambda *_: woken.set())
        yield connection, woken
    finally:  # for good, with its listener: there is no pool, and nobody need say good-bye
        await let_go(connection, _GOODBYE_SECONDS, broken=service.is_postgres)


async def _wait(service: Service, seen: int, woken: asyncio.Event, seconds: float) -> None:
    """Return when there may be more to read: told by Postgres, by our own lane, or by the clock."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            if service.is_postgres:
                await woken.wait()
                return
            async with service.moved:
                await service.moved.wait_for(lambda: service.moves != seen)


def _page(connection: Connection, after: int, size: int) -> tuple[Sequence[Sequence[Any]], Voids]:
    """Return the next rows, and what is void; the head is read first, so that the rows reach it."""
    query = select(*_COLUMNS).where(_events.position > after).order_by(_events.position).limit(size)
    with connection.begin():
        head = read_head(connection).position
        rows = connection.execute(query).all()
        voids = voids_of(connection) if rows else NO_VOIDS
    if head < after:
        raise CorruptLedgerError(f"the ledger is behind what was read: head={head}", position=after)
    if len(rows) < size and after + len(rows) < head:
        raise CorruptLedgerError(
            f"an event is missing: head={head}", position=after + len(rows) + 1
        )
    return rows, voids


def _chain_at(connection: Connection, position: int) -> bytes:
    query = select(_events.chain_hash).where(_events.position == position)
    with connection.begin():
        last, chain = archived_up_to(connection)
        if position < last:
            raise in_archive(connection, position + 1)
        found = chain if position == last else connection.execute(query).scalar()
    if found is None:
        raise CorruptLedgerError("no such event", position=position)
    return bytes(found)
