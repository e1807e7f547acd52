"""The lane on SQLite: what it asks of the driver that the driver does not promise."""

from __future__ import annotations

import asyncio

import pytest

from ledger.domain.errors import CapacityError
from ledger.store.proving.verify import verify
from ledger.store.service import open_service
from ledger.store.writing import direct
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


def test_the_driver_still_has_the_words_of_the_short_way(sqlite_store: SqliteStore) -> None:
    """A release without them would make appends slower without a word: here it is said."""

    async def run() -> bool:
        async with open_service(sqlite_store.url, write=True) as service:
            connection = await service.connect()
            try:
                return await connection.run_sync(direct.is_threaded)
            finally:
                await connection.close()

    assert asyncio.run(run()), f"aiosqlite.Connection lacks one of {direct.THREADED}"


@pytest.mark.parametrize("words", [direct.THREADED, ("gone",)], ids=["short way", "long way"])
def test_a_driver_without_the_short_way_is_only_slower(
    sqlite_store: SqliteStore, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    """The same answers, the same refusals, and a ledger that verifies."""
    monkeypatch.setattr(direct, "THREADED", words)

    first, second, third = answers(sqlite_store)

    assert [first, second] == [Recorded(first=2, last=2), Recorded(first=3, last=3)]
    assert isinstance(third, Refused)
    assert isinstance(third.error, CapacityError)
    with sqlite_store.open("read") as ledger:
        assert verify(ledger).findings == ()
