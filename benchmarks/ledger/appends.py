"""
Durable appends against bare durable inserts of the same database, in turns.

What is to be recorded is made before the clock starts, on both sides. A bare insert goes to the
driver itself and commits as the ledger does: on SQLite BEGIN, INSERT, COMMIT; on Postgres, through
a connection of its own, one message for a row and one pipeline for many, which commit as they end.

The limit is the event's own row, all of its columns with values that were really recorded, in a
table with nothing but its key: what is recorded must at least be written. One text of 600 letters,
as many bytes in one column, is measured beside it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from sqlalchemy import Column, Connection, MetaData, Table, Text, select

from benchmarks.ledger.work import CARDS, NODES, ORIGIN, Work
from benchmarks.measure import say
from ledger.domain.log.recorded import NewEvent
from ledger.store import schema
from ledger.store.open import Ledger
from ledger.store.profile import BEGIN_WRITING, driver_connection

LETTERS: Final = "x" * 600
"""About as many bytes as the row of an event has."""
SAMPLES: Final = 2 * NODES * CARDS
Row = tuple[Any, ...]
Made = TypeVar("Made", NewEvent, Row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One turn: events per second, and microseconds of the processor for each of them."""

    per_second: float
    cpu_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """One turn each."""

    ledger: Turn
    bare: Turn
    letters: Turn


def appends(name: str, ledger: Ledger, *, rounds: int, seconds: float) -> None:
    """Compare durable appends with bare durable inserts, singly and in batches."""
    work = Work()
    writer = ledger.start_epoch("benchmark", ORIGIN, "0")
    writer.append(work.inventories())
    for _ in range(2):  # every card has had a holder, and then another one
        writer.append(work.batch(SAMPLES))
    bare, letters = Bare.of_events(ledger.connection), Bare.of_letters(ledger.connection)
    for batch in (1, 10, 100, 500):
        turns = [
            Turns(
                ledger=turn(partial(work.batch, batch), writer.append, seconds),
                bare=turn(partial(bare.rows, batch), bare.insert, seconds),
                letters=turn(partial(letters.rows, batch), letters.insert, seconds),
            )
            for _ in range(rounds)
        ]
        say(
            what="durable append",
            database=name,
            batch=batch,
            events_per_second=round(statistics.median(t.ledger.per_second for t in turns)),
            bare_per_second=round(statistics.median(t.bare.per_second for t in turns)),
            ratio=_median(turns, lambda t: t.ledger.per_second / t.bare.per_second),
            ratio_to_letters=_median(turns, lambda t: t.ledger.per_second / t.letters.per_second),
            cpu_us=_median(turns, lambda t: t.ledger.cpu_us, digits=1),
            bare_cpu_us=_median(turns, lambda t: t.bare.cpu_us, digits=1),
        )


def _median(turns: Sequence[Turns], of: Callable[[Turns], float], *, digits: int = 3) -> float:
    return round(statistics.median(map(of, turns)), digits)


def turn(
    make: Callable[[], list[Made]], record: Callable[[list[Made]], object], seconds: float
) -> Turn:
    """Record what `make` makes before the clock starts, for so long."""
    done, spent, cpu = 0, 0.0, 0.0
    while spent < seconds:
        made = make()
        started, cpu_started = time.perf_counter(), time.process_time()
        record(made)
        spent += time.perf_counter() - started
        cpu += time.process_time() - cpu_started
        done += len(made)
    return Turn(per_second=done / spent, cpu_us=cpu / done * 1e6)


class Bare:
    """Rows in a table with nothing but its key."""

    def __init__(
        self,
        connection: Connection,
        name: str,
        columns: Sequence[Column[Any]],
        samples: Sequence[Row],
    ) -> None:
        """Make the table; the rows to come have these samples in turn behind their key."""
        self._samples = samples
        self._next = 0
        sqlite = connection.dialect.name == "sqlite"
        self._own = None if sqlite else connection.engine.raw_connection()
        if self._own is None:
            self._driver: Any = driver_connection(connection)
        else:
            self._driver = self._own.driver_connection
            self._driver.autocommit = True
        key = Column(
            "position", schema.ledger_events.c.position.type, primary_key=True, autoincrement=False
        )
        table = Table(name, MetaData(), key, *columns, sqlite_strict=True)
        with connection.begin():
            table.create(connection)
        marks = ", ".join(("?" if sqlite else "%s",) * len(table.columns))
        names = ", ".join(column.name for column in table.columns)
        self._text = f"INSERT INTO {name} ({names}) VALUES ({marks})"  # noqa: S608

    @classmethod
    def of_letters(cls, connection: Connection) -> Bare:
        """Return rows of one text."""
        return cls(connection, "bare", [Column("words", Text, nullable=False)], [(LETTERS,)])

    @classmethod
    def of_events(cls, connection: Connection) -> Bare:
        """Return rows with the columns of an event and the values of those recorded last."""
        log = schema.ledger_events
        columns = [Column(c.name, c.type, nullable=c.nullable) for c in log.columns][1:]
        with connection.begin():
            newest = select(log).order_by(log.c.position.desc()).limit(SAMPLES)
            samples = [tuple(row)[1:] for row in connection.execute(newest)]
        return cls(connection, "bare_events", columns, samples)

    def rows(self, count: int) -> list[Row]:
        """Return the next `count` rows."""
        first, self._next = self._next, self._next + count
        samples = self._samples
        return [(at, *samples[at % len(samples)]) for at in range(first, self._next)]

    def insert(self, rows: list[Row]) -> None:
        """Insert and commit rows."""
        if self._own is None:
            self._driver.execute(BEGIN_WRITING)
        with closing(self._driver.cursor()) as cursor:
            if len(rows) == 1:
                cursor.execute(self._text, rows[0])
            else:
                cursor.executemany(self._text, rows)
        if self._own is None:
            self._driver.commit()
