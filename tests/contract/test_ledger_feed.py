"""The feed: every position once and in order, woken early, checked link by link."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from ledger.domain.errors import CorruptLedgerError
from ledger.domain.log.recorded import RecordedEvent
from ledger.store.reading.feed import follow
from ledger.store.service import Service, open_service
from ledger.store.writing.commands import Command
from ledger.store.writing.lane import Turn, open_lane
from tests.support.loops import SkippingLoop, run_with_skips, until
from tests.support.stores import MONDAY_US, ORIGIN, Clock, SqliteStore, Store, node, start

TURN = Turn(holder="lane", origin=ORIGIN, version="0.1.0", wall_us=MONDAY_US)
TEST_SECONDS = 120.0
GATHER_SECONDS = 1_000.0
LONG_SECONDS = 10 * TEST_SECONDS
"""A poll that is too late for the test: only a wake-up can be in time."""


async def take_into(
    taken: list[RecordedEvent],
    service: Service,
    count: int,
    *,
    after: int = 0,
    page: int = 500,
    poll: float = 0.02,
) -> None:
    """Take the next events of the feed."""
    events = follow(service, after=after, page_events=page, poll_seconds=poll)
    async with asyncio.timeout(TEST_SECONDS), aclosing(events):
        async for each in events:
            taken.append(each)
            if len(taken) == count:
                break


async def take(
    service: Service, count: int, *, after: int = 0, page: int = 500
) -> list[RecordedEvent]:
    """Return the next events of the feed."""
    taken: list[RecordedEvent] = []
    await take_into(taken, service, count, after=after, page=page)
    return taken


def test_a_reader_sees_what_is_there_page_by_page(store: Store) -> None:
    """From any position on, the same events as reading gives, whatever the page."""
    with store.open() as ledger:
        start(ledger).append(Clock().all(*(node(f"n-{i}", gpus=1) for i in range(20))))
        everything = list(ledger.read_events())

    async def run() -> None:
        async with open_service(store.url) as service:
            assert await take(service, 21, page=4) == everything
            assert await take(service, 6, after=15, page=3) == everything[15:]

    asyncio.run(run())


def test_a_reader_is_woken_by_a_commit(store: Store) -> None:
    """What is recorded in the same service, or in any process on Postgres, is seen at once."""
    clock = Clock()

    async def run() -> None:
        async with (
            open_service(store.url, write=True) as service,
            open_lane(service, TURN) as lane,
        ):
            taken: list[RecordedEvent] = []
            reading = asyncio.create_task(take_into(taken, service, 4, poll=LONG_SECONDS))
            for i in range(3):
                await until(lambda: len(taken) > i or reading.done())  # noqa: B023 - done at once
                await lane.record(Command(events=(clock.new(node(f"n-{i}", gpus=1)),)))
            await reading

            assert [each.envelope.position for each in taken] == [1, 2, 3, 4]

    asyncio.run(run())


def test_what_another_process_records_is_seen_by_polling(store: Store) -> None:
    """Without a wake-up, as on SQLite from another connection, the next look finds it."""
    with store.open() as ledger:
        writer = start(ledger)

        async def run() -> None:
            async with open_service(store.url) as service:
                taken: list[RecordedEvent] = []
                reading = asyncio.create_task(take_into(taken, service, 2))
                await until(lambda: len(taken) == 1 or reading.done())
                writer.append(Clock().all(node()))
                await reading
                assert len(taken) == 2

        asyncio.run(run())


def test_a_ledger_that_went_back_is_not_followed(store: Store) -> None:
    """A reader that has seen more than the ledger holds stops: an older copy was put in place."""
    with store.open() as ledger:
        start(ledger)

    async def run(after: int) -> None:
        async with open_service(store.url) as service:
            await take(service, 1, after=after)

    with pytest.raises(CorruptLedgerError, match="no such event"):
        asyncio.run(run(7))


def test_an_altered_event_stops_the_feed(sqlite_store: SqliteStore) -> None:
    """The chain is checked before an event is handed on; those before the bad one are."""
    with sqlite_store.open() as ledger:
        start(ledger).append(Clock().all(node("n-1", gpus=1), node("n-2", gpus=1)))
    with sqlite_store.raw() as raw:
        raw.execute("DROP TRIGGER ledger_events_no_update")
        raw.execute("UPDATE ledger_events SET actor = 'me' WHERE position = 3")
    seen: list[int] = []

    async def run() -> None:
        async with open_service(sqlite_store.url) as service:
            async for each in follow(service, poll_seconds=0.02):
                position = each.envelope.position
                seen.append(position)

    with pytest.raises(CorruptLedgerError, match="position=3"):
        asyncio.run(run())
    assert seen == [1, 2]


def test_events_that_gather_come_together_and_each_once(sqlite_store: SqliteStore) -> None:
    """Who is in no hurry reads a page for many commits, and misses none."""
    clock, seen = Clock(), list[int]()

    async def run(loop: SkippingLoop) -> None:
        async with (
            open_service(sqlite_store.url, write=True) as service,
            open_lane(service, TURN) as lane,
        ):

            async def read() -> None:
                async for each in follow(service, gather_seconds=lambda: GATHER_SECONDS):
                    seen.append(each.envelope.position)

            reading = asyncio.create_task(read())
            await until(lambda: seen == [1])
            for number in range(3):
                await lane.record(Command(events=(clock.new(node(f"n-{number}", gpus=1)),)))
            assert seen == [1]
            while len(seen) < 4:
                loop.skip(GATHER_SECONDS)
                await asyncio.sleep(0.01)
            reading.cancel()

    run_with_skips(run)
    assert seen == [1, 2, 3, 4]
