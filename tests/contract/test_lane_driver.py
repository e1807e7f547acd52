"""The lane on SQLite: what it asks of the driver that the driver does not promise."""

from __future__ import annotations

import asyncio

from ledger.domain.errors import CapacityError
from ledger.store.proving.verify import verify
from ledger.store.service import open_service
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


def test_a_lane_acts_in_the_thread_of_its_driver(sqlite_store: SqliteStore) -> None:
    """By words that aiosqlite has and does not promise: a release without them fails here."""
    first, second, third = answers(sqlite_store)

    assert [first, second] == [Recorded(first=2, last=2), Recorded(first=3, last=3)]
    assert isinstance(third, Refused)
    assert isinstance(third.error, CapacityError)
    with sqlite_store.open("read") as ledger:
        assert verify(ledger).findings == ()
