"""
Clients at once who share the writer's transactions, against inserts that nobody shares.

Every client waits for the answer to its command before it gives the next one. The limit on Postgres
is a table with nothing but its key, into which connections insert in turn, each under an advisory
lock: what an order without gaps costs whoever does not share. On SQLite it is one connection.

    .venv/bin/python -m benchmarks.ledger.lane [--postgres URL_OF_AN_EMPTY_DATABASE]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from benchmarks.ledger.appends import LETTERS, Bare, turn
from benchmarks.ledger.work import CARDS, NODES, ORIGIN, Work
from benchmarks.measure import say, say_machine
from ledger.domain.log.recorded import NewEvent
from ledger.store.open import open_ledger
from ledger.store.place import is_postgres
from ledger.store.service import Service, open_service
from ledger.store.writing.commands import Command, Recorded
from ledger.store.writing.lane import Lane, Turn, open_lane

CLIENTS: Final = 64
CONNECTIONS: Final = 16
Got = TypeVar("Got")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """One turn: commands and bare inserts per second, and how long each command took."""

    commands: float
    bare: float
    seconds: list[float]


def main() -> None:
    """Measure a lane on SQLite, and on Postgres if asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ledger.lane")
    parser.add_argument("--postgres", help="URL of an empty database", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn")
    options = parser.parse_args()
    say_machine()
    with tempfile.TemporaryDirectory() as folder:
        file = f"sqlite:///{Path(folder) / 'lane.db'}"
        measure("sqlite", file, rounds=options.rounds, seconds=options.seconds)
    if options.postgres:
        measure("postgres", options.postgres, rounds=options.rounds, seconds=options.seconds)


def measure(name: str, url: str, *, rounds: int, seconds: float, clients: int = CLIENTS) -> None:
    """Measure clients of one lane on the empty ledger at `url` and print one line."""
    work = Work()
    with open_ledger(url, mode="create") as ledger:
        writer = ledger.start_epoch("benchmark", ORIGIN, "0")
        writer.append(work.inventories())
        writer.append(work.batch(2 * NODES * CARDS))  # every card has had a holder
        bare = Bare.of_letters(ledger.connection)
        one = None if is_postgres(url) else partial(_one_by_one, bare, seconds)
        turns = [
            asyncio.run(_turn(url, partial(_commands, work, clients), one, seconds))
            for _ in range(rounds)
        ]
    spent = [each for turn in turns for each in turn.seconds]
    say(
        what="commands that share transactions",
        database=name,
        clients=clients,
        commands_per_second=round(statistics.median(turn.commands for turn in turns)),
        p50_ms=round(1_000 * statistics.median(spent), 2),
        p99_ms=round(1_000 * statistics.quantiles(spent, n=100)[-1], 2),
        limit=(
            f"bare inserts of {CONNECTIONS} connections under an advisory lock"
            if is_postgres(url)
            else "bare durable inserts of one connection"
        ),
        limit_per_second=round(statistics.median(turn.bare for turn in turns)),
        ratio=round(statistics.median(turn.commands / turn.bare for turn in turns), 2),
    )


def _one_by_one(bare: Bare, seconds: float) -> float:
    return turn(partial(bare.rows, 1), bare.insert, seconds).per_second


async def _turn(
    url: str,
    commands: Callable[[Lane, float], Awaitable[list[float]]],
    one: Callable[[], float] | None,
    seconds: float,
) -> Turns:
    async with open_service(url, write=True) as service:
        async with open_lane(service, Turn(holder="lane", origin=ORIGIN, version="0")) as lane:
            await commands(lane, seconds / 4)  # once, to be at speed
            started = time.perf_counter()
            spent = await commands(lane, seconds)
            per_second = len(spent) / (time.perf_counter() - started)
        bare = one() if one else await _under_a_lock(service, lane.position, seconds)
    return Turns(commands=per_second, bare=bare, seconds=spent)


async def _commands(work: Work, clients: int, lane: Lane, seconds: float) -> list[float]:
    """Return how long every command of this many clients at once took."""
    end = time.perf_counter() + seconds

    async def client() -> list[float]:
        spent: list[float] = []
        while (started := time.perf_counter()) < end:
            new: NewEvent = work.batch(1)[0]
            outcome = await lane.record(Command(events=(new,)))
            spent.append(time.perf_counter() - started)
            assert isinstance(outcome, Recorded), outcome
        return spent

    return [each for some in await _at_once(client, clients) for each in some]


async def _under_a_lock(service: Service, turn: int, seconds: float) -> float:
    """Return how many rows a second several connections insert, one transaction each."""
    connections: list[Any] = [await service.connect() for _ in range(CONNECTIONS)]
    free = list(connections)
    first = 1_000_000 * turn  # behind the rows of every turn before
    end = time.perf_counter() + seconds
    made = iter(range(first, first + 1_000_000))

    async def client() -> int:
        driver = (await free.pop().get_raw_connection()).driver_connection
        lock = await driver.prepare("SELECT pg_advisory_xact_lock(1)")
        insert = await driver.prepare("INSERT INTO bare (position, words) VALUES ($1, $2)")
        done = 0
        while time.perf_counter() < end:
            async with driver.transaction():
                await lock.fetch()
                await insert.fetch(next(made), LETTERS)
            done += 1
        return done

    started = time.perf_counter()
    done = sum(await _at_once(client, CONNECTIONS))
    spent = time.perf_counter() - started
    for connection in connections:
        await connection.close()
    return done / spent


async def _at_once(client: Callable[[], Awaitable[Got]], count: int) -> list[Got]:
    return list(await asyncio.gather(*(client() for _ in range(count))))


if __name__ == "__main__":
    main()
