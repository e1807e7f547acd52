"""
What the ledger costs, as ratios to what the same database does without it, in the same run.

    .venv/bin/python benchmarks/ledger                              # SQLite
    .venv/bin/python benchmarks/ledger --postgres postgresql:///empty_database?host=/socket/dir
    .venv/bin/python benchmarks/ledger --sizes 10000 100000 1000000 --holdings 10000000

Appends and bare inserts take turns over several rounds and the median counts. A bare insert is one
row with the words of one event in a table with nothing but its key, committed as durably. Half the
events are reservations of one whole GPU, half releases, over 800 cards.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, text

from ledger.domain.devices import DeviceRecord, DeviceShare
from ledger.domain.events import LedgerEvent, NodeInventoried, PodReleased, PodReserved
from ledger.domain.recorded import NewEvent
from ledger.store.append import Writer
from ledger.store.open import Ledger, open_ledger
from ledger.store.rebuild import rebuild
from ledger.store.verify import verify

NODES: Final = 100
CARDS: Final = 8
MEMORY_BYTES: Final = 80 << 30
ORIGIN: Final = "simulation/benchmark"
WHO_HELD: Final = text(
    "SELECT namespace, pod_name, core_percent FROM audit_holdings WHERE node_name = :node"
    " AND device_type = 'gpu' AND minor = :minor AND opened_at_us <= :at"
    " AND (closed_at_us IS NULL OR closed_at_us > :at)"
)


def main() -> None:
    """Measure what was asked for and print one JSON object per line."""
    options = _options()
    say(machine=platform.processor() or platform.machine(), python=platform.python_version())
    say(sqlite=sqlite3.sqlite_version)
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        databases = [("sqlite", f"sqlite:///{where / 'append.db'}")]
        if options.postgres:
            databases.append(("postgres", options.postgres))
        for name, url in databases:
            with open_ledger(url, mode="create") as ledger:
                appends(name, ledger, rounds=options.rounds, seconds=options.seconds)
        for size in options.sizes:
            growth(where / f"{size}.db", size)
        if options.holdings:
            who_held(where / "holdings.db", options.holdings)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 2)[1])
    parser.add_argument("--postgres", help="URL of an empty database", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each turn")
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--holdings", type=int, default=0, help="rows for `who held it then`")
    return parser.parse_args()


def say(**figures: object) -> None:
    """Print figures as one line of JSON."""
    print(json.dumps(figures), flush=True)


class Work:
    """Events without end: every card gets a new Pod in turn, the one before leaves first."""

    def __init__(self) -> None:
        self.made = 0
        self._events = self._forever()

    def batch(self, count: int) -> list[NewEvent]:
        """Return the next `count` events."""
        return [next(self._events) for _ in range(count)]

    def inventories(self) -> list[NewEvent]:
        """Return what the nodes have, to be recorded first."""
        return [self._new(f"n-{number}", _inventory(number)) for number in range(NODES)]

    def _forever(self) -> Iterator[NewEvent]:
        pod = 0
        while True:
            card, turn = pod % (NODES * CARDS), pod // (NODES * CARDS)
            node = card % NODES
            if turn > 0:
                yield self._new(f"n-{node}", _released(pod - NODES * CARDS, node))
            yield self._new(f"n-{node}", _reserved(pod, node, card // NODES))
            pod += 1

    def _new(self, node: str, event: LedgerEvent) -> NewEvent:
        self.made += 1
        return NewEvent(
            stream=f"node/{node}",
            event=event,
            actor="benchmark",
            idempotency_key=f"benchmark:{self.made}",
            wall_us=1_772_409_600_000_000 + self.made * 1_000,
        )


def _inventory(number: int) -> NodeInventoried:
    devices = tuple(
        DeviceRecord(
            device_type="gpu",
            minor=minor,
            device_id=f"GPU-{number}-{minor}",
            model="A100",
            memory_bytes=MEMORY_BYTES,
        )
        for minor in range(CARDS)
    )
    return NodeInventoried(node_uid=f"n-{number}", node_name=f"node-{number}", devices=devices)


def _reserved(pod: int, node: int, minor: int) -> PodReserved:
    share = DeviceShare(
        device_type="gpu",
        minor=minor,
        device_id=f"GPU-{node}-{minor}",
        core_percent=100,
        memory_bytes=MEMORY_BYTES,
        memory_ratio_percent=100,
    )
    return PodReserved(
        pod_uid=f"pod-{pod}",
        attempt=1,
        namespace="team-a",
        pod_name=f"train-{pod}",
        node_uid=f"n-{node}",
        node_name=f"node-{node}",
        cpu_milli=4_000,
        memory_bytes=16 << 30,
        shares=(share,),
        device_models=("A100",),
        dialect="koordinator",
        policy="binpack",
    )


def _released(pod: int, node: int) -> PodReleased:
    return PodReleased(pod_uid=f"pod-{pod}", attempt=1, node_uid=f"n-{node}", reason="completed")


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
    with ledger.connection.begin():
        ledger.connection.exec_driver_sql(
            "CREATE TABLE bare (position BIGINT PRIMARY KEY, words TEXT NOT NULL)"
        )
    bare = Bare(ledger.connection, body)
    for batch in (1, 10, 100, 500):
        turns = [
            Turns(
                ledger=_rate(partial(_append, writer, work, batch), batch, seconds),
                bare=_rate(partial(bare.insert, batch), batch, seconds),
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


def _append(writer: Writer, work: Work, size: int) -> None:
    writer.append(work.batch(size))


class Bare:
    """Rows in a table with nothing but its key."""

    def __init__(self, connection: Connection, words: str) -> None:
        self._connection = connection
        self._words = words
        self._next = 0
        mark = "?" if connection.dialect.name == "sqlite" else "%s"
        self._text = f"INSERT INTO bare (position, words) VALUES ({mark}, {mark})"  # noqa: S608

    def insert(self, count: int) -> None:
        """Insert and commit `count` rows."""
        rows = [(self._next + i, self._words) for i in range(count)]
        self._next += count
        with self._connection.begin():
            self._connection.exec_driver_sql(self._text, rows if count > 1 else rows[0])


def _rate(act: Callable[[], None], batch: int, seconds: float) -> float:
    done, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < seconds:
        act()
        done += batch
    return done / spent


def growth(path: Path, size: int) -> None:
    """Measure reading, proving and rebuilding a ledger of `size` events."""
    work = Work()
    with open_ledger(str(path), mode="create") as ledger:
        writer = ledger.start_epoch("benchmark", ORIGIN, "0")
        writer.append(work.inventories())
        started = time.perf_counter()
        left = size
        while left > 0:
            writer.append(work.batch(min(500, left)))
            left -= 500
        spent = time.perf_counter() - started
        say(what="append by 500", events=size, per_second=round(size / spent))
    with open_ledger(str(path), mode="read") as ledger:
        _timed("replay (read, check, decode)", size, lambda: sum(1 for _ in ledger.read_events()))
        _timed("verify", size, lambda: _expect(ok=verify(ledger).ok))
    with open_ledger(str(path), mode="write") as ledger:
        _timed("rebuild", size, lambda: _expect(ok=rebuild(ledger).equal))
        _timed("take over and append", size, lambda: _take_over(ledger, work))


def _timed(what: str, events: int, act: Callable[[], object]) -> None:
    started = time.perf_counter()
    act()
    spent = time.perf_counter() - started
    say(what=what, events=events, seconds=round(spent, 3), per_second=round(events / spent))


def _expect(*, ok: bool) -> None:
    assert ok, "the benchmark's own ledger does not prove itself"


def _take_over(ledger: Ledger, work: Work) -> None:
    ledger.start_epoch("benchmark-2", ORIGIN, "0").append(work.batch(1))


def who_held(path: Path, holdings: int) -> None:
    """Ask who held a card at a moment, with many past holdings loaded past the rules."""
    with open_ledger(str(path), mode="create") as ledger:
        ledger.start_epoch("benchmark", ORIGIN, "0").append(Work().inventories())
    _load(path, holdings)
    rng = random.Random(42)
    spent: list[float] = []
    with open_ledger(str(path), mode="read") as ledger:
        turns = holdings // (NODES * CARDS)
        for _ in range(2_000):
            node, minor = rng.randrange(NODES), rng.randrange(CARDS)
            values = {
                "node": f"node-{node}",
                "minor": minor,
                "at": 1_000_000 * rng.randrange(1, turns),
            }
            started = time.perf_counter()
            with ledger.connection.begin():
                found = ledger.connection.execute(WHO_HELD, values).all()
            spent.append(time.perf_counter() - started)
            assert len(found) == 1, found
    say(
        what="who held it then",
        holdings=holdings,
        p50_ms=round(1_000 * statistics.median(spent), 3),
        p99_ms=round(1_000 * statistics.quantiles(spent, n=100)[-1], 3),
    )


def _load(path: Path, holdings: int) -> None:
    """Bulk-load closed holdings, one after the other on every card, with the rules taken off."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    rules = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for (name,) in rules:
        connection.execute(f"DROP TRIGGER {name}")
    columns = [row[1] for row in connection.execute("PRAGMA table_info(ledger_reservations)")]
    cards = NODES * CARDS
    connection.execute("BEGIN")
    connection.executemany(
        f"INSERT INTO ledger_reservations ({', '.join(columns)})"  # noqa: S608
        f" VALUES ({', '.join('?' for _ in columns)})",
        (_past(columns, 1_000 + i, i // cards, i % cards) for i in range(holdings)),
    )
    connection.executemany(
        "INSERT INTO ledger_holdings (position, device_no, minor, core_percent, memory_bytes,"
        " memory_ratio_percent, exclusive, instances, kind, opened_at_us, closed_at_us,"
        " closed_position) VALUES (?, ?, ?, 100, 0, 100, 1, 0, 'granted', ?, ?, ?)",
        (
            (
                1_000 + i,
                1 + i % cards,
                i % CARDS,
                1_000_000 * (i // cards),
                1_000_000 * (i // cards + 1),
                1_000 + i + cards,
            )
            for i in range(holdings)
        ),
    )
    connection.execute("COMMIT")
    connection.close()


def _past(columns: list[str], position: int, turn: int, card: int) -> tuple[object, ...]:
    known: dict[str, object] = {
        "position": position,
        "pod_uid": f"pod-{position}",
        "namespace": f"team-{card % 7}",
        "pod_name": f"train-{position}",
        "labels": "{}",
        "node_no": 1 + card // CARDS,
        "kind": "granted",
        "phase": "released",
        "opened_at_us": 1_000_000 * turn,
        "closed_at_us": 1_000_000 * (turn + 1),
        "closed_position": position + NODES * CARDS,
        "end_reason": "completed",
    }
    texts = {"owner", "qos", "dialect", "policy", "source", "cpuset"}
    return tuple(known.get(name, "" if name in texts else 0) for name in columns)


if __name__ == "__main__":
    main()
