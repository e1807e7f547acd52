"""The lane when the database or its answers go away: what is told is what is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from signal import SIGQUIT

import pytest

from ledger.domain.errors import LedgerError, OverloadedError, UnknownOutcomeError
from ledger.store.proving.verify import verify
from ledger.store.reading.feed import follow
from ledger.store.service import Service, open_service
from ledger.store.writing.commands import Command, Recorded
from ledger.store.writing.lane import Turn, open_lane
from tests.support.cut_wire import Cut, Wire, wire_to
from tests.support.loops import SkippingLoop, run_with_skips, until
from tests.support.postgres import OwnServer, own_server
from tests.support.stores import MONDAY_US, ORIGIN, Clock, PostgresStore, node, start

TURN = Turn(holder="lane", origin=ORIGIN, version="0.1.0", wall_us=MONDAY_US)
PATIENCE_SECONDS = 60.0
"""More than anything here takes, on however busy a machine: tests skip it."""
TEST_SECONDS = 10 * PATIENCE_SECONDS


def commands(count: int) -> list[Command]:
    """Return so many commands, each the inventory of another node."""
    clock = Clock()
    made = range(count)
    return [Command(events=(clock.new(node(f"n-{i}", gpus=1), key=f"key-{i:03}"),)) for i in made]


def through_a_wire(
    store: PostgresStore, work: Callable[[Wire, SkippingLoop], Awaitable[None]]
) -> None:
    """Do `work` with a wire to the store; it may not hang."""

    async def run(loop: SkippingLoop) -> None:
        async with asyncio.timeout(TEST_SECONDS):
            await work(wire, loop)

    with wire_to(store.url) as wire:
        run_with_skips(run)


def expect_positions(store: PostgresStore, last: int) -> None:
    """The ledger ends there and proves itself."""
    with store.open("read") as ledger:
        assert ledger.head().position == last
        assert verify(ledger).ok


@pytest.mark.parametrize("first", [True, False], ids=["the first commit", "a later commit"])
@pytest.mark.parametrize(
    "cut", [Cut.BEFORE_COMMIT, Cut.AFTER_COMMIT, Cut.SILENCE_AFTER_COMMIT], ids=lambda cut: cut.name
)
def test_a_connection_that_is_cut_at_commit_is_read_again_and_answered(
    postgres_store: PostgresStore, cut: Cut, *, first: bool
) -> None:
    """Whatever became of the commit: every caller hears its position, and it is there once."""
    asked = commands(7)

    async def work(wire: Wire, loop: SkippingLoop) -> None:
        async with (
            open_service(wire.url, write=True) as service,
            open_lane(service, TURN, patience_seconds=PATIENCE_SECONDS) as lane,
        ):
            done = 0 if first else 2
            for each in asked[:done]:
                await lane.record(each)
            wire.cut, wire.key = cut, f"key-{done:03}"
            waiting = [asyncio.create_task(lane.record(each)) for each in asked[done:6]]
            await until(lambda: wire.cuts == 1)
            if cut is Cut.SILENCE_AFTER_COMMIT:
                loop.skip(PATIENCE_SECONDS)
            answers = await asyncio.gather(*waiting)
            assert answers == [Recorded(first=i, last=i) for i in range(2 + done, 8)]
            assert wire.cuts == 1
            assert await lane.record(asked[6]) == Recorded(first=8, last=8)

    through_a_wire(postgres_store, work)
    expect_positions(postgres_store, 8)


@pytest.mark.parametrize("cut", [Cut.BEFORE_COMMIT, Cut.AFTER_COMMIT], ids=lambda cut: cut.name)
def test_a_commit_whose_outcome_cannot_be_read_again_is_told_as_unknown(
    postgres_store: PostgresStore, cut: Cut
) -> None:
    """Never as "nothing was recorded"; the same command tells once the server is back."""
    asked = commands(2)

    async def work(wire: Wire, _: SkippingLoop) -> None:
        async with (
            open_service(wire.url, write=True) as service,
            open_lane(service, TURN, patience_seconds=PATIENCE_SECONDS) as lane,
        ):
            assert await lane.record(asked[0]) == Recorded(first=2, last=2)
            wire.cut, wire.key, wire.then_refuse = cut, "key-001", True
            with pytest.raises(UnknownOutcomeError):
                await lane.record(asked[1])
            assert wire.cuts == 1
            wire.refusing = False
            assert await lane.record(asked[1]) == Recorded(first=3, last=3)

    through_a_wire(postgres_store, work)
    expect_positions(postgres_store, 3)


def test_a_silent_database_is_an_unknown_outcome_in_time(postgres_store: PostgresStore) -> None:
    """The caller hears so within two patiences and a connection's; then all goes on."""
    asked = commands(2)

    async def work(wire: Wire, loop: SkippingLoop) -> None:
        async with (
            open_service(wire.url, write=True) as service,
            open_lane(service, TURN, patience_seconds=PATIENCE_SECONDS) as lane,
        ):
            assert await lane.record(asked[0]) == Recorded(first=2, last=2)
            wire.cut, began = Cut.SILENCE, loop.time()
            told = asyncio.create_task(lane.record(asked[1]))
            for attempt in (1, 2):
                await until(lambda: wire.silenced == attempt)  # noqa: B023 - done before the next
                assert not told.done()
                loop.skip(PATIENCE_SECONDS)
            with pytest.raises(UnknownOutcomeError, match="no answer from the database"):
                await told
            assert loop.time() - began < 3 * PATIENCE_SECONDS
            wire.cut = Cut.NOTHING
            assert await lane.record(asked[1]) == Recorded(first=3, last=3)

    through_a_wire(postgres_store, work)
    expect_positions(postgres_store, 3)


def test_a_ledger_that_cannot_be_taken_over_in_time_is_an_error(
    postgres_store: PostgresStore,
) -> None:
    """A server that takes connections and then says nothing does not keep anyone waiting."""

    async def open_and_close(service: Service) -> None:
        async with open_lane(service, TURN, patience_seconds=PATIENCE_SECONDS):
            pass

    async def work(wire: Wire, loop: SkippingLoop) -> None:
        async with open_service(wire.url, write=True) as service:
            await open_and_close(service)
            wire.cut, began = Cut.SILENCE_AFTER_COMMIT, loop.time()
            taken_over = asyncio.create_task(open_and_close(service))
            await until(lambda: wire.cuts == 1)
            assert not taken_over.done()
            loop.skip(PATIENCE_SECONDS)
            with pytest.raises(LedgerError, match="can't be reached"):
                await taken_over
            assert loop.time() - began < 2 * PATIENCE_SECONDS
            async with open_lane(service, TURN, patience_seconds=PATIENCE_SECONDS) as lane:
                assert isinstance(await lane.record(commands(1)[0]), Recorded)

    through_a_wire(postgres_store, work)
    with postgres_store.open("read") as ledger:
        assert verify(ledger).ok


def test_a_queue_that_is_full_while_the_database_is_silent_says_so_at_once(
    postgres_store: PostgresStore,
) -> None:
    """Who waits already is answered when it speaks again; who came too late was told."""
    asked = commands(12)

    async def work(wire: Wire, loop: SkippingLoop) -> None:
        async with (
            open_service(wire.url, write=True) as service,
            open_lane(service, TURN, waiting_max=5, patience_seconds=PATIENCE_SECONDS) as lane,
        ):
            wire.cut, wire.key = Cut.SILENCE_AFTER_COMMIT, "key-000"
            first = asyncio.create_task(lane.record(asked[0]))
            await until(lambda: wire.cuts == 1)  # it is on its way; the next ones wait
            waiting = [asyncio.create_task(lane.record(each)) for each in asked[1:6]]
            await asyncio.sleep(0)
            for each in asked[6:]:
                with pytest.raises(OverloadedError, match="waiting=5"):
                    await lane.record(each)
            assert not first.done()
            loop.skip(PATIENCE_SECONDS)
            answers = await asyncio.gather(first, *waiting)
            assert answers == [Recorded(first=i, last=i) for i in range(2, 8)]

    through_a_wire(postgres_store, work)
    expect_positions(postgres_store, 7)


def test_a_caller_who_leaves_takes_nobody_along(postgres_store: PostgresStore) -> None:
    """While it waits it is not recorded; on its way it is, and the same command tells so."""
    asked = commands(4)

    async def work(wire: Wire, loop: SkippingLoop) -> None:
        async with (
            open_service(wire.url, write=True) as service,
            open_lane(service, TURN, patience_seconds=PATIENCE_SECONDS) as lane,
        ):
            wire.cut, wire.key = Cut.SILENCE_AFTER_COMMIT, "key-000"
            tasks = [asyncio.create_task(lane.record(asked[0]))]
            await until(lambda: wire.cuts == 1)  # on its way
            tasks += [asyncio.create_task(lane.record(each)) for each in asked[1:3]]
            await asyncio.sleep(0)
            for left in tasks[:2]:
                left.cancel()
            loop.skip(PATIENCE_SECONDS)
            assert await tasks[2] == Recorded(first=3, last=3)
            for left in tasks[:2]:
                with pytest.raises(asyncio.CancelledError):
                    await left
            assert await lane.record(asked[0]) == Recorded(first=2, last=2)
            assert await lane.record(asked[3]) == Recorded(first=4, last=4)

    through_a_wire(postgres_store, work)
    expect_positions(postgres_store, 4)


async def read_into(seen: list[int], service: Service, count: int, poll: float) -> None:
    """Read the feed until so many positions are seen."""
    events = follow(service, poll_seconds=poll, patience_seconds=PATIENCE_SECONDS)
    async with aclosing(events):
        async for each in events:
            seen.append(each.envelope.position)
            if len(seen) == count:
                break


def test_a_reader_sits_an_outage_out_by_the_clock(postgres_store: PostgresStore) -> None:
    """However often it looked in vain, it goes on where it was once the database is back."""
    with postgres_store.open() as ledger:
        writer = start(ledger)

        async def work(wire: Wire, loop: SkippingLoop) -> None:
            async with open_service(wire.url) as service:
                seen: list[int] = []
                reader = asyncio.create_task(read_into(seen, service, 2, 0.005))
                await until(lambda: seen == [1])
                wire.cut, wire.then_refuse = Cut.BEFORE_COMMIT, True
                await until(lambda: wire.refused >= 20)
                loop.skip(PATIENCE_SECONDS / 2)
                await until(lambda: wire.refused >= 40)
                assert wire.cuts == 1
                assert not reader.done()
                writer.append(commands(1)[0].events)
                wire.refusing = False
                await reader
                assert seen == [1, 2]

        through_a_wire(postgres_store, work)


def test_a_reader_gives_up_when_its_patience_is_over(postgres_store: PostgresStore) -> None:
    """It says that the database is away, neither at once nor never."""
    with postgres_store.open() as ledger:
        start(ledger)

    async def work(wire: Wire, loop: SkippingLoop) -> None:
        async with open_service(wire.url) as service:
            wire.refusing, began = True, loop.time()
            reader = asyncio.create_task(read_into([], service, 1, 0.01))
            await until(lambda: wire.refused >= 10)
            assert not reader.done()
            loop.skip(PATIENCE_SECONDS)
            with pytest.raises(LedgerError, match=r"can't be reached|went away|failed"):
                await reader
            assert loop.time() - began < 2 * PATIENCE_SECONDS

    through_a_wire(postgres_store, work)


def test_a_reader_whose_server_says_nothing_looks_on_another_connection(
    postgres_store: PostgresStore,
) -> None:
    """A connection that is neither closed nor answered does not hold it for ever."""
    with postgres_store.open() as ledger:
        writer = start(ledger)

        async def work(wire: Wire, loop: SkippingLoop) -> None:
            async with open_service(wire.url) as service:
                seen: list[int] = []
                reader = asyncio.create_task(read_into(seen, service, 2, 0.05))
                await until(lambda: seen == [1])
                wire.cut = Cut.SILENCE
                await until(lambda: wire.silenced == 1)
                writer.append(commands(1)[0].events)
                wire.cut = Cut.NOTHING
                assert not reader.done()
                loop.skip(PATIENCE_SECONDS)
                await reader
                assert seen == [1, 2]

        through_a_wire(postgres_store, work)


@pytest.fixture(scope="module")
def own() -> Iterator[OwnServer]:
    """A server that a test may crash."""
    with own_server() as server:
        yield server


def test_lane_and_feed_outlive_a_crash_of_the_server(own: OwnServer) -> None:
    """Meanwhile callers hear so; after it, the same commands are there once, with no gap."""
    store = PostgresStore(server=own.server, database=own.server.new_database())
    store.open("create").close()
    asked = commands(12)
    seen: list[int] = []

    async def read() -> None:
        async with (
            open_service(store.url) as service,
            aclosing(follow(service, page_events=3, poll_seconds=1.0)) as events,
        ):
            async for each in events:
                seen.append(each.envelope.position)
                if len(seen) == 1 + len(asked):
                    break

    async def run() -> None:
        async with (
            asyncio.timeout(TEST_SECONDS),
            open_service(store.url, write=True) as service,
            open_lane(service, TURN, patience_seconds=PATIENCE_SECONDS) as lane,
        ):
            reader = asyncio.create_task(read())
            await until(lambda: seen == [1])
            for each in asked[:4]:
                await lane.record(each)
            await asyncio.to_thread(own.stop, SIGQUIT)
            with pytest.raises(LedgerError):
                await lane.record(asked[4])
            await asyncio.to_thread(own.start)
            for each in asked[4:]:
                with suppress(UnknownOutcomeError):
                    await lane.record(each)
            answers = [await lane.record(each) for each in asked]
            assert answers == [Recorded(first=i, last=i) for i in range(2, 14)]
            await reader

    asyncio.run(run())
    assert seen == [*range(1, 14)]
    expect_positions(store, 13)
