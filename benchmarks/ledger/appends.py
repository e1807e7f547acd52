"""
Durable appends against bare durable inserts of the same database, in turns.

What is to be recorded is made before the clock starts, on both sides. A bare insert begins and
commits as the ledger does; on SQLite it goes to the driver itself, as the ledger's appends do.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from benchmarks.ledger.measure import say
from benchmarks.ledger.work import CARDS, NODES, ORIGIN, Work
from ledger.domain.recorded import NewEvent
from ledger.store.open import Ledger
from ledger.store.profile import BEGIN_WRITING, driver_connection

Row = tuple[int, str]
Made = TypeVar("Made", NewEvent, Row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Events per second of one turn each."""

    ledger: float
    bare: float


def appends(name: str, ledger: Ledger, *, rounds: int, seconds: float) -> None:
    """Compare durable appends with bare durable inserts, singly and in batches."""
    work = Work()
    writer = ledger.start_epoch("benchmark", ORIGIN, "0")
    writer.append(work.inventories())
    writer.append(work.batch(2 * NODES * CARDS))  # every card has had a holder
    body = "x" * 600  # about what a reservation's body and its envelope are
    bare = Bare(ledger.connection, body)
    for batch in (1, 10, 100, 500):
        turns = [
            Turns(
                ledger=rate(partial(work.batch, batch), writer.append, seconds),
                bare=rate(partial(bare.rows, batch), bare.insert, seconds),
            )
            for _ in range(rounds)
        ]
        say(
            what="durable append",
            database=name,
            batch=batch,
            events_per_second=round(statistics.median(turn.ledger for turn in turns)),
            bare_per_second=round(statistics.median(turn.bare for turn in turns)),
            ratio=round(statistics.median(turn.ledger / turn.bare for turn in turns), 3),
        )


def rate(
    make: Callable[[], list[Made]], record: Callable[[list[Made]], object], seconds: float
) -> float:
    """Return how many a second are recorded of what `make` makes before the clock starts."""
    done, spent = 0, 0.0
    while spent < seconds:
        made = make()
        started = time.perf_counter()
        record(made)
        spent += time.perf_counter() - started
        done += len(made)
    return done / spent


class Bare:
    """Rows in a table with nothing but its key."""

    def __init__(self, connection: Connection, words: str) -> None:
        self._connection = connection
        self._words = words
        self._next = 0
        sqlite = connection.dialect.name == "sqlite"
        self._driver = driver_connection(connection) if sqlite else None
        key, mark = ("INTEGER", "?") if sqlite else ("BIGINT", "%s")
        with connection.begin():
            connection.exec_driver_sql(
                f"CREATE TABLE bare (position {key} PRIMARY KEY, words TEXT NOT NULL)"
            )
        self._text = f"INSERT INTO bare (position, words) VALUES ({mark}, {mark})"  # noqa: S608

    def rows(self, count: int) -> list[Row]:
        """Return the next `count` rows."""
        first, self._next = self._next, self._next + count
        return [(position, self._words) for position in range(first, self._next)]

    def insert(self, rows: list[Row]) -> None:
        """Insert and commit rows."""
        if self._driver is None:
            with self._connection.begin():
                self._connection.exec_driver_sql(self._text, rows if len(rows) > 1 else rows[0])
            return
        self._driver.execute(BEGIN_WRITING)
        if len(rows) == 1:
            self._driver.execute(self._text, rows[0])
        else:
            self._driver.executemany(self._text, rows)
        self._driver.commit()
