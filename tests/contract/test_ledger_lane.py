"""The lane: many callers, one transaction, each its own answer; a deposed lane ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from sqlalchemy.event import listen

from ledger.domain.errors import (
    CapacityError,
    FencedError,
    IdempotencyError,
    LedgerError,
    NotAfterError,
    OverloadedError,
    StaleStreamError,
)
from ledger.domain.log.recorded import NewEvent
from ledger.store.proving.verify import verify
from ledger.store.service import open_service
from ledger.store.writing.commands import Command, Outcome, Recorded, Refused
from ledger.store.writing.lane import COMMANDS_PER_COMMIT, Turn, open_lane
from tests.support.stores import (
    MONDAY_US,
    ORIGIN,
    Clock,
    Store,
    node,
    released,
    reserved,
    share,
    start,
)

TURN = Turn(holder="lane", origin=ORIGIN, version="0.1.0", wall_us=MONDAY_US)
STREAM = "node/uid-n-1"


def one(new: NewEvent, expected: Mapping[str, int] | None = None) -> Command:
    """Return the command that records one event."""
    return Command(events=(new,), expected=expected or {})


def error_of(outcome: Outcome) -> LedgerError:
    """Return why a command was refused."""
    assert isinstance(outcome, Refused), outcome
    return outcome.error


def test_each_command_of_a_batch_has_its_own_answer(store: Store) -> None:
    """The one that breaks a rule is refused; the others are recorded at dense positions."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node()))
        outcomes = writer.record(
            [
                one(clock.new(reserved("a", share(0, 60)))),
                one(clock.new(reserved("b", share(0, 60)))),
                Command(events=tuple(clock.all(reserved("c", share(1)), released("c")))),
                one(clock.new(reserved("d", share(0, 40)))),
            ]
        )

        assert outcomes[0] == Recorded(first=3, last=3)
        assert isinstance(error_of(outcomes[1]), CapacityError)
        assert outcomes[2:] == [Recorded(first=4, last=5), Recorded(first=6, last=6)]
        assert writer.head == ledger.head()
        assert verify(ledger).ok


def test_a_batch_without_an_offender_is_one_commit(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred commands that break no rule cost one commit."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        commits = []
        dialect = ledger.connection.dialect
        commit = dialect.do_commit

        def counted(connection: object) -> None:
            commits.append(connection)
            commit(connection)  # type: ignore[arg-type]

        monkeypatch.setattr(dialect, "do_commit", counted)
        outcomes = writer.record([one(clock.new(node(f"n-{i}", gpus=1))) for i in range(100)])

        assert outcomes == [Recorded(first=i, last=i) for i in range(2, 102)]
        assert len(commits) == 1


def test_the_same_command_twice_has_the_same_answer(store: Store) -> None:
    """In one batch, in the next one and after a restart: the positions of the first time."""
    clock = Clock()
    command = Command(
        events=(
            clock.new(reserved("a", share()), key="a:1"),
            clock.new(released("a"), key="a:2"),
        ),
        expected={STREAM: 1},
    )
    answer = Recorded(first=3, last=4)
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node()))
        assert writer.record([command, command]) == [answer, answer]
        assert writer.record([command]) == [answer]
    with store.open() as ledger:
        writer = start(ledger, holder="again")
        mixed = [one(clock.new(node("n-2"), key="n-2")), command]

        assert writer.record(mixed) == [Recorded(first=6, last=6), answer]
        assert ledger.head().position == 6
        assert verify(ledger).ok


def test_a_key_with_other_arguments_is_refused_alone(store: Store) -> None:
    """Against the ledger and inside one batch, whole commands and parts of them."""
    clock = Clock()
    first, second = clock.new(node(), key="k1"), clock.new(node("n-2"), key="k2")
    with store.open() as ledger:
        writer = start(ledger)
        outcomes = writer.record([one(first), one(clock.new(node("n-3"), key="k1"))])
        assert outcomes[0] == Recorded(first=2, last=2)
        assert isinstance(error_of(outcomes[1]), IdempotencyError)
        outcomes = writer.record(
            [
                one(clock.new(node("n-4"), key="k1")),
                Command(events=(first, second)),
                Command(events=(second, second)),
                one(second),
            ]
        )

        assert [isinstance(error_of(each), IdempotencyError) for each in outcomes[:3]] == [True] * 3
        assert outcomes[3] == Recorded(first=3, last=3)


def test_expected_versions_count_the_commands_before(store: Store) -> None:
    """A decision is compared with what the batch itself has recorded so far."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        outcomes = writer.record(
            [
                one(clock.new(node()), {STREAM: 0}),
                one(clock.new(reserved("a", share(0))), {STREAM: 1}),
                one(clock.new(reserved("b", share(1))), {STREAM: 1}),
                one(clock.new(reserved("c", share(2))), {STREAM: 2}),
            ]
        )

        assert [type(each) for each in outcomes] == [Recorded, Recorded, Refused, Recorded]
        assert isinstance(error_of(outcomes[2]), StaleStreamError)


def test_a_command_comes_after_what_it_counted(store: Store) -> None:
    """In its batch or before it; where that was refused, it is refused with it."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node()))
        first, full, second, third, fourth = (
            clock.new(reserved(name, share(minor, 100)), key=name)
            for name, minor in (("a", 0), ("full", 0), ("b", 1), ("c", 2), ("d", 3))
        )
        outcomes = writer.record(
            [
                one(first),
                Command(events=(second,), after=("a",)),
                one(full),
                Command(events=(third,), after=("full",)),
            ]
        )
        later = writer.record([Command(events=(fourth,), after=("a", "b"))])

        assert [type(each) for each in outcomes] == [Recorded, Recorded, Refused, Refused]
        assert isinstance(error_of(outcomes[2]), CapacityError)
        assert isinstance(error_of(outcomes[3]), NotAfterError)
        assert [type(each) for each in later] == [Recorded]
        assert verify(ledger).ok


def test_only_another_writer_asks_the_ledger_for_what_was_counted(store: Store) -> None:
    """A bind after a bind is the rule: it costs no read of what was recorded just now."""
    clock = Clock()
    with store.open() as ledger:
        said: list[str] = []
        listen(ledger.connection, "before_cursor_execute", lambda *words: said.append(words[2]))
        writer = start(ledger)
        writer.append(clock.all(node()))
        for number, after in enumerate(((), ("0",), ("0", "1"), ("1", "2"))):
            if number == 3:
                assert not any("FROM ledger_archived" in words for words in said)
                writer = start(ledger)
            event = clock.new(reserved(str(number), share(number, 100)), key=str(number))
            outcomes = writer.record([Command(events=(event,), after=after)])
            assert [type(each) for each in outcomes] == [Recorded]
        assert any("FROM ledger_archived" in words for words in said)


def test_a_command_that_no_column_can_hold_is_refused_alone(store: Store) -> None:
    """A number beyond 64 bits fails its own command and no other."""
    clock = Clock()
    with store.open() as ledger:
        writer = start(ledger)
        writer.append(clock.all(node()))
        outcomes = writer.record(
            [
                one(clock.new(reserved("a", share(0)))),
                one(clock.new(reserved("b", share(1, memory_bytes=2**63)))),
                one(clock.new(reserved("c", share(2)))),
            ]
        )

        assert [type(each) for each in outcomes] == [Recorded, Refused, Recorded]
        assert verify(ledger).ok


def test_concurrent_callers_share_transactions(store: Store) -> None:
    """Hundreds of callers at once are all answered, in far fewer commits."""
    clock = Clock()

    async def run() -> int:
        async with open_service(store.url, write=True) as service:
            async with open_lane(service, TURN) as lane:
                commands = [one(clock.new(node(f"n-{i}", gpus=1))) for i in range(300)]
                outcomes = await asyncio.gather(*map(lane.record, commands))
                assert outcomes == [Recorded(first=i, last=i) for i in range(2, 302)]
            return service.moves

    moves = asyncio.run(run())
    assert moves <= 1 + 3 + 300 // COMMANDS_PER_COMMIT
    with store.open("read") as ledger:
        assert ledger.head().position == 301
        assert verify(ledger).ok


def test_a_deposed_lane_ends_and_says_so_to_everyone(store: Store) -> None:
    """Its callers, waiting and later ones, get FencedError; it changes nothing any more."""
    clock = Clock()

    async def run() -> None:
        async with (
            open_service(store.url, write=True) as service,
            open_lane(service, TURN) as old,
        ):
            await old.record(one(clock.new(node())))
            async with open_lane(service, TURN) as new:
                assert new.epoch == old.epoch + 1
                late = [one(clock.new(reserved(f"p{i}", share(i)))) for i in range(3)]
                answers = await asyncio.gather(*map(old.record, late), return_exceptions=True)
                assert [type(each) for each in answers] == [FencedError] * 3
                with pytest.raises(FencedError, match="another writer took over"):
                    await old.record(late[0])
                assert await new.record(late[0]) == Recorded(first=4, last=4)

    asyncio.run(run())
    with store.open("read") as ledger:
        assert verify(ledger).ok


def test_too_many_waiting_commands_are_told_at_once(store: Store) -> None:
    """Beyond the bound the answer is an error now, not a timeout later."""
    clock = Clock()

    async def run() -> None:
        async with (
            open_service(store.url, write=True) as service,
            open_lane(service, TURN, waiting_max=5) as lane,
        ):
            commands = [one(clock.new(node(f"n-{i}", gpus=1))) for i in range(20)]
            answers = await asyncio.gather(*map(lane.record, commands), return_exceptions=True)
            kinds = [type(each) for each in answers]

            assert kinds == [Recorded] * 5 + [OverloadedError] * 15

    asyncio.run(run())


def test_closing_records_what_waits(store: Store) -> None:
    """A clean end answers everyone who asked before it, and nobody after."""
    clock = Clock()

    async def run() -> None:
        async with open_service(store.url, write=True) as service:
            async with open_lane(service, TURN) as lane:
                commands = [one(clock.new(node(f"n-{i}", gpus=1))) for i in range(10)]
                tasks = [asyncio.create_task(lane.record(command)) for command in commands]
                await asyncio.sleep(0)
            assert [type(each) for each in await asyncio.gather(*tasks)] == [Recorded] * 10
            with pytest.raises(LedgerError, match="closed for writing"):
                await lane.record(commands[0])

    asyncio.run(run())


@pytest.mark.parametrize("durable", [True, False], ids=["after the commit", "before the commit"])
def test_a_lost_answer_to_a_commit_is_asked_for_again(
    store: Store, monkeypatch: pytest.MonkeyPatch, *, durable: bool
) -> None:
    """Whether or not the commit had reached the disk: the command is answered, recorded once."""
    clock = Clock()

    async def run() -> None:
        async with open_service(store.url, write=True) as service:
            dialect = service.engine.dialect
            commit, rollback = dialect.do_commit, dialect.do_rollback

            def lose_the_connection(connection: object) -> None:
                if durable:
                    commit(connection)  # type: ignore[arg-type]
                else:
                    rollback(connection)  # type: ignore[arg-type]
                connection.dbapi_connection.close()  # type: ignore[attr-defined]
                monkeypatch.undo()
                raise dialect.loaded_dbapi.OperationalError("the connection was lost")

            async with open_lane(service, TURN) as lane:
                monkeypatch.setattr(dialect, "do_commit", lose_the_connection)
                assert await lane.record(one(clock.new(node()))) == Recorded(first=2, last=2)
                assert await lane.record(one(clock.new(node("n-2")))) == Recorded(first=3, last=3)

    asyncio.run(run())
    with store.open("read") as ledger:
        assert ledger.head().position == 3
        assert verify(ledger).ok
