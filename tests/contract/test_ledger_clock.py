"""A clock that moves in a process falsifies nothing: no grant, and ends follow what was before."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import pytest

from ledger.domain.errors import ClockSkewError
from ledger.domain.log.clock import Reading, SteadyClock, ahead_us
from ledger.store.open import Ledger
from ledger.store.proving.verify import verify
from ledger.store.service import open_service
from ledger.store.writing.append import Writer, start_epoch
from ledger.store.writing.commands import Command, Recorded, Refused
from ledger.store.writing.lane import Turn, open_lane
from tests.support.cli import CommandLine
from tests.support.stores import (
    HOUR_US,
    MONDAY_US,
    ORIGIN,
    Clock,
    SqliteStore,
    Store,
    bound,
    health,
    node,
    observed,
    planned,
    released,
    reserved,
    share,
)

SECOND_US = 1_000_000
YEAR_US = 365 * 24 * HOUR_US


@dataclass(slots=True)
class Machine:
    """Both clocks of a machine; somebody may set the wall clock."""

    wall_us: int = MONDAY_US
    monotonic_us: int = 77

    def read(self) -> Reading:
        """Return what both say."""
        return Reading(wall_us=self.wall_us, monotonic_us=self.monotonic_us)

    def pass_time(self, us: int) -> None:
        """Let time pass, on both clocks."""
        self.wall_us += us
        self.monotonic_us += us


def started(ledger: Ledger, machine: Machine) -> Writer:
    """Take the ledger over as a service does, whose clock was just compared."""
    clock = SteadyClock(machine.read)
    return start_epoch(
        ledger.connection,
        holder="lead",
        origin=ORIGIN,
        version="1",
        wall_us=machine.wall_us,
        place="",
        clock=clock,
    )


@pytest.mark.parametrize("moved_us", [-YEAR_US, -5 * SECOND_US - 1, 5 * SECOND_US + 1, YEAR_US])
def test_a_clock_that_moved_grants_nothing(store: Store, moved_us: int) -> None:
    """Grants are refused by name; all that has happened is recorded 1 us after what was before."""
    machine, events = Machine(), Clock()
    with store.open() as ledger:
        writer = started(ledger, machine)
        granted = events.new(reserved("a", share(0, 50)), at_us=MONDAY_US + 2)
        writer.append([events.new(node(), at_us=MONDAY_US + 1), granted])
        machine.pass_time(HOUR_US)
        machine.wall_us += moved_us
        before, wall = writer.head, machine.wall_us
        for grant in (reserved("b", share(1, 50)), planned("g", ("m", (2,)))):
            with pytest.raises(ClockSkewError, match=rf"^ClockSkew: .* wall_us={wall}"):
                writer.append([events.new(grant, at_us=wall)])
        again = [events.new(reserved("c", share(1, 50)), at_us=wall) for _ in range(2)]
        happened = (
            bound("a"),
            released("a"),
            observed("o", share(3, 10)),
            health(4, healthy=False),
        )
        facts = [events.new(event, at_us=wall) for event in happened]
        outcomes = writer.record(
            [Command(events=(again[0],)), *(Command(events=(fact,)) for fact in facts)]
        )
        assert isinstance(outcomes[0], Refused)
        assert isinstance(outcomes[0].error, ClockSkewError)
        first = before.position + 1
        assert outcomes[1:] == [Recorded(first=at, last=at) for at in range(first, first + 4)]
        recorded = [each.envelope for each in ledger.read_events(after=before.position)]
        assert [each.at_us for each in recorded] == [before.at_us + i for i in range(1, 5)]
        assert {each.wall_us for each in recorded} == {wall}
        assert writer.append([granted]) == before.position + 4, "a repeat has its answer"
        assert writer.record([Command(events=(granted,))]) == [Recorded(first=3, last=3)]
        assert verify(ledger).ok


@pytest.mark.parametrize("moved_us", [-5 * SECOND_US, 0, 5 * SECOND_US])
def test_a_clock_that_is_set_a_little_is_believed(store: Store, moved_us: int) -> None:
    """Five seconds are what time synchronisation may do to a running process."""
    machine, events = Machine(), Clock()
    with store.open() as ledger:
        writer = started(ledger, machine)
        machine.pass_time(HOUR_US)
        machine.wall_us += moved_us
        writer.append([events.new(node(), at_us=machine.wall_us)])
        assert ledger.head().at_us == machine.wall_us
        writer.append([events.new(reserved("a", share(0, 50)), at_us=machine.wall_us + 1)])


def test_an_event_from_the_future_moves_nothing(store: Store) -> None:
    """The clock is right, and what a caller says of its own is a year ahead."""
    machine, events = Machine(), Clock()
    with store.open() as ledger:
        writer = started(ledger, machine)
        before = ledger.head().at_us
        writer.append([events.new(node(), at_us=MONDAY_US + YEAR_US)])
        assert ledger.head().at_us == before + 1
        with pytest.raises(ClockSkewError):
            writer.append([events.new(reserved("a", share(0, 50)), at_us=MONDAY_US + YEAR_US)])


def test_the_lane_keeps_its_clock(store: Store) -> None:
    """Each of its writers, also the one on a new connection, is of one process."""
    machine, events = Machine(), Clock()

    async def run() -> None:
        async with open_service(store.url, write=True) as service:
            turn = Turn(
                holder="lane",
                origin=ORIGIN,
                version="1",
                wall_us=MONDAY_US,
                clock=SteadyClock(machine.read),
            )
            async with open_lane(service, turn) as lane:
                first = events.new(node(), at_us=MONDAY_US + 1)
                assert isinstance(await lane.record(Command(events=(first,))), Recorded)
                machine.wall_us += YEAR_US
                for _ in range(2):
                    grant = events.new(reserved("a", share(0, 50)), at_us=machine.wall_us)
                    outcome = await lane.record(Command(events=(grant,)))
                    assert isinstance(outcome, Refused)
                    assert isinstance(outcome.error, ClockSkewError)
                    await lane._disconnect()

    asyncio.run(run())


def test_how_far_time_is_ahead_of_the_clock_is_shown(
    sqlite_store: SqliteStore, capsys: pytest.CaptureFixture[str]
) -> None:
    """By status for the last event, by verify for the one that is most so."""
    events = Clock()
    with sqlite_store.open() as ledger:
        writer = ledger.start_epoch("offline", ORIGIN, "1", wall_us=MONDAY_US)
        writer.append([events.new(node(), at_us=MONDAY_US + YEAR_US)])
        writer.append([events.new(health(0, healthy=False), at_us=MONDAY_US + HOUR_US)])
        writer.append([events.new(health(0, healthy=True), at_us=MONDAY_US + 2 * HOUR_US)])
    cli = CommandLine(sqlite_store.path, capsys)
    status = json.loads(cli.ask("status", "-o", "json").out)
    proof = json.loads(cli.ask("verify", "-o", "json").out)
    assert status["ahead_of_clock_us"] == YEAR_US - 2 * HOUR_US + 2
    assert (proof["ahead_of_clock_us"], proof["ahead_at_position"]) == (YEAR_US - HOUR_US + 1, 3)
    assert "ahead of the recorded clock, at position 3" in cli.ask("verify").out


def test_a_clock_is_measured_against_the_monotonic_one() -> None:
    """However long ago the start was."""
    start = Reading(wall_us=1_000, monotonic_us=50)
    assert ahead_us(start, Reading(wall_us=2_000, monotonic_us=1_050)) == 0
    assert ahead_us(start, Reading(wall_us=2_007, monotonic_us=1_050)) == 7
    assert ahead_us(start, Reading(wall_us=0, monotonic_us=50)) == -1_000
