"""The live service takes snapshots beside its work, on either database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ledger.domain.errors import LedgerError
from ledger.store.proving.verify import verify
from ledger.store.reading.timetravel import load_state
from ledger.store.service import open_service
from ledger.store.writing.append import Writer
from ledger.store.writing.commands import Command, Recorded
from ledger.store.writing.lane import Act, Lane, Turn, open_lane
from tenure.serving.scheduling.snapshots import Snapshots
from tests.support.stores import MONDAY_US, ORIGIN, Clock, Store, node, released, reserved, share

TURN = Turn(holder="test", origin=ORIGIN, version="0.1.0", wall_us=MONDAY_US)


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Lane]:
    """Yield the lane of a ledger."""
    async with open_service(store.url, write=True) as service, open_lane(service, TURN) as lane:
        yield lane


async def record(lane: Lane, clock: Clock, number: int) -> Recorded:
    """Let a Pod come and go."""
    events = clock.all(reserved(f"p-{number}", share()), released(f"p-{number}"))
    outcome = await lane.record(Command(events=tuple(events)))
    assert isinstance(outcome, Recorded), outcome
    return outcome


def test_a_start_reads_the_newest_snapshot_and_what_came_since(store: Store) -> None:
    """One is taken once so many events have come, while others record; the log proves it."""
    clock = Clock()

    async def main() -> int:
        async with opened(store) as lane:
            await lane.record(Command(events=(clock.new(node()),)))
            snapshots = Snapshots(store.url, 0, events=10)
            await snapshots.look(lane, lambda: clock.now_us)
            assert lane.position == 2, "it is not time yet"
            for number in range(6):
                await record(lane, clock, number)
            others = [record(lane, clock, number) for number in range(6, 12)]
            await asyncio.gather(snapshots.look(lane, lambda: clock.now_us), *others)
            taken = lane.position
            await snapshots.look(lane, lambda: clock.now_us)
            assert lane.position == taken, "it is not time again"
            await record(lane, clock, 12)
            return lane.position

    end = asyncio.run(main())
    with store.open("read") as ledger:
        loaded = load_state(ledger)
        assert loaded.position == end
        assert loaded.snapshot_position >= 14
        assert loaded.findings == ()
        assert verify(ledger).findings == ()


def test_what_wants_to_be_alone_and_fails_keeps_nobody_from_recording(store: Store) -> None:
    """The head it was made for moved on, or there was nothing to do."""
    clock = Clock()

    async def nothing(position: int) -> Act | None:
        await asyncio.sleep(0)
        del position
        return None

    def fails(writer: Writer) -> object:
        raise LedgerError(f"not at {writer.head.position}")

    async def failing(position: int) -> Act | None:
        await asyncio.sleep(0)
        del position
        return fails

    async def main() -> None:
        async with opened(store) as lane:
            await lane.record(Command(events=(clock.new(node()),)))
            assert not await lane.alone(nothing)
            with pytest.raises(LedgerError, match="not at 2"):
                await lane.alone(failing)
            await record(lane, clock, 1)

    asyncio.run(main())
    with store.open("read") as ledger:
        assert verify(ledger).findings == ()


def test_a_ledger_that_can_t_be_folded_is_an_error_that_passes(store: Store) -> None:
    """The other process ends; whoever records goes on."""
    clock = Clock()

    async def main() -> None:
        async with opened(store) as lane:
            await lane.record(Command(events=(clock.new(node()),)))
            with pytest.raises(LedgerError, match="can't be folded"):
                await Snapshots("nowhere.db", 0, events=1).look(lane, lambda: clock.now_us)
            await record(lane, clock, 1)

    asyncio.run(main())
