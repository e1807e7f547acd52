"""The lane on SQLite: a connection with a thread of its own."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection

from ledger.domain.errors import (
    CapacityError,
    CorruptLedgerError,
    LedgerError,
    UnknownOutcomeError,
)
from ledger.store import profile
from ledger.store.place import sqlite_path
from ledger.store.proving.verify import verify
from ledger.store.service import open_service
from ledger.store.threaded import connect
from ledger.store.writing.commands import Command, Outcome, Recorded, Refused
from ledger.store.writing.lane import Turn, open_lane
from tests.support.stores import MONDAY_US, ORIGIN, Clock, SqliteStore, node, reserved, share

TURN = Turn(holder="lane", origin=ORIGIN, version="0.1.0", wall_us=MONDAY_US)


def answers(store: SqliteStore) -> list[Outcome]:
    """Record a node, a Pod, and one that finds no room; return what the lane says of each."""
    clock = Clock()
    events = (node(), reserved("a", share(0, 100)), reserved("b", share(0, 10)))
    asked = [Command(events=(clock.new(each),)) for each in events]

    async def run() -> list[Outcome]:
        async with (
            open_service(store.url, write=True) as service,
            open_lane(service, TURN) as lane,
        ):
            return [await lane.record(each) for each in asked]

    return asyncio.run(run())


def test_a_lane_in_a_thread_tells_what_was_recorded_and_what_was_refused(
    sqlite_store: SqliteStore,
) -> None:
    """One that finds no room is a refusal, not a failure of the database."""
    first, second, third = answers(sqlite_store)

    assert [first, second] == [Recorded(first=2, last=2), Recorded(first=3, last=3)]
    assert isinstance(third, Refused)
    assert isinstance(third.error, CapacityError)
    with sqlite_store.open("read") as ledger:
        assert verify(ledger).findings == ()


def _move(path: Path, to: Path) -> None:
    for more in ("", "-wal", "-shm"):
        if (there := path.with_name(path.name + more)).exists():
            there.rename(to.with_name(to.name + more))


def test_nothing_is_recorded_in_a_file_that_was_taken_away(sqlite_store: SqliteStore) -> None:
    """Who removed or moved it has what was recorded; once it is there again the lane goes on."""
    clock, path = Clock(), sqlite_path(sqlite_store.url)
    first, second, third = (
        Command(events=(clock.new(each),)) for each in (node(), node("n-2"), node("n-3"))
    )

    async def run() -> None:
        async with (
            open_service(sqlite_store.url, write=True) as service,
            open_lane(service, TURN) as lane,
        ):
            for command in (first, second):
                await lane.record(command)
            _move(path, path.with_name("away.db"))
            with pytest.raises(LedgerError) as failed:
                await lane.record(third)
            assert not isinstance(failed.value, UnknownOutcomeError | CorruptLedgerError)
            _move(path.with_name("away.db"), path)
            assert await lane.record(third) == Recorded(first=4, last=4)

    asyncio.run(run())
    with sqlite_store.open("read") as ledger:
        assert verify(ledger).findings == ()


def test_a_copy_that_was_put_in_its_place_ends_the_lane(sqlite_store: SqliteStore) -> None:
    """It lacks what was recorded since, which a start hears of from who has seen it."""
    clock, path = Clock(), sqlite_path(sqlite_store.url)
    first, second, third = (
        Command(events=(clock.new(each),)) for each in (node(), node("n-2"), node("n-3"))
    )

    async def run() -> None:
        async with (
            open_service(sqlite_store.url, write=True) as service,
            open_lane(service, TURN) as lane,
        ):
            await lane.record(first)
            copy = path.with_name("copy.db")
            with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
            await lane.record(second)
            _move(path, path.with_name("away.db"))
            copy.rename(path)
            with pytest.raises(CorruptLedgerError, match="put back: position=3"):
                await lane.record(third)
            with pytest.raises(CorruptLedgerError):
                await lane.watch()

    asyncio.run(run())
    with sqlite_store.open("read") as ledger:
        assert ledger.head().position == 2


def test_what_nobody_waits_for_any_more_ends_before_its_connection_is_closed(
    tmp_path: Path,
) -> None:
    """So a second attempt, on a connection of its own, never meets the first one half done."""
    began, may_end, did = threading.Event(), threading.Event(), list[str]()

    def act(connection: Connection) -> None:
        began.set()
        may_end.wait()
        did.append("closed" if connection.closed else "done")

    async def run() -> None:
        engine = profile.sqlite_engine(made(tmp_path), write=True)
        connection = await connect(engine)
        waiting = asyncio.create_task(connection.run_sync(act))
        await asyncio.to_thread(began.wait)
        waiting.cancel()
        closing = asyncio.create_task(connection.close())
        await asyncio.sleep(0)
        assert not closing.done()
        may_end.set()
        await closing
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(run())
    assert did == ["done"]


def test_a_connection_that_reads_keeps_no_writer_waiting(sqlite_store: SqliteStore) -> None:
    """A reader's transaction takes no lock that the one writer of the ledger needs."""
    with sqlite_store.open("write"):
        pass

    async def run() -> None:
        async with open_service(sqlite_store.url, write=True) as service:
            reader = await service.connect(reads=True)
            await reader.run_sync(lambda connection: connection.begin())
            async with open_lane(service, TURN) as lane:
                assert lane.position == 1
            await reader.close()

    asyncio.run(run())


def made(folder: Path) -> Path:
    """Make an empty file."""
    path = folder / "some.db"
    profile.create_file(path)
    return path
