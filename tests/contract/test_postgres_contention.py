"""
Two people with the writer's rights and a SQL prompt each, who want the same thing at once.

Rule: design section 4, "Double allocation is impossible by constraint".

The events of both orders are in the log, and no head is in the way: only the rules of the tables
themselves are. However the statements of the two transactions interleave, at most one of them gets
what both want, and the other one hears so, in words or as a conflict of transactions.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import psycopg
import pytest
from sqlalchemy import create_engine, make_url

from ledger.domain.log.events import LedgerEvent, encode_event
from tests.support.postgres import Server
from tests.support.postgres_roles import apply_roles
from tests.support.stores import Clock, PostgresStore, node, planned, reserved, share, start

Raw = psycopg.Connection[Any]

FUNCTION: Final = "0000:81:00.1"
SHARES: Final = tuple(share(minor, 50, vf_bus_ids=(FUNCTION,)) for minor in range(3))
# Events 4 to 7 are in the log without any row that follows from them: two Pods, two plans. Each
# Pod's names all that somebody takes below.
ORDERS: tuple[LedgerEvent, ...] = (
    reserved("a", *SHARES, cpus=(1,)),
    reserved("b", *SHARES, cpus=(1,)),
    planned("g", ("c", (1,))),
    planned("h", ("d", (1,))),
)
HELD: Final = reserved("x", share(0, 50))

RECORD: Final = (
    "INSERT INTO ledger_events SELECT position, %s, %s, %s, %s, 'me', epoch, NULL, 'c',"
    " 'mine:' || position, chain_hash, at_us, at_us, chain_hash, chain_hash FROM ledger_head"
)
MOVE: Final = (
    "UPDATE ledger_head SET position = position + 1, at_us = at_us + 1,"
    " chain_hash = sha256(chain_hash)"
)
RESERVE: Final = (
    "INSERT INTO ledger_reservations SELECT {position}, 'uid-{position}', 1, 'team-a', 'p', '', '',"
    " 0, '', 'koordinator', 'binpack', '', 1, 0, 0, 50, 1, 1, '1', 1, 'granted', 'reserved',"
    " {position}, 0, at_us, NULL, 'pod' FROM ledger_events WHERE position = {position}"
)
HOLD: Final = (
    "INSERT INTO ledger_holdings SELECT {position}, {device}, {device} - 1, {core}, 1, 0,"
    " {exclusive}, 1, 'granted', at_us FROM ledger_events WHERE position = {position}"
)
SLOT: Final = (
    f"INSERT INTO ledger_slot_holdings SELECT {{position}}, '{FUNCTION}', 1, {{device}}, 'granted',"
    " at_us FROM ledger_events WHERE position = {position}"
)
CPU: Final = (
    "INSERT INTO ledger_cpu_holdings SELECT {position}, 1, 1, 'granted', at_us"
    " FROM ledger_events WHERE position = {position}"
)
PLACE: Final = (
    "INSERT INTO ledger_planned_cards SELECT {position}, 2, 1, '{group}', '{pod}', at_us"
    " FROM ledger_events WHERE position = {position}"
)


def order(
    position: int, *takes: str, device: int = 1, core: int = 50, exclusive: int = 0
) -> list[str]:
    """Return the statements of one Pod's order: its reservation, and what it takes."""
    words = {"position": position, "device": device, "core": core, "exclusive": exclusive}
    return [each.format(**words) for each in (RESERVE, *takes)]


def place(position: int, group: str, pod: str) -> list[str]:
    """Return the statements of one group's plan for the card 1."""
    return ["SELECT 1", PLACE.format(position=position, group=group, pod=f"uid-{pod}")]


WANTED: Final = {
    "the last half of a card": (order(4, HOLD), order(5, HOLD)),
    "a whole card for one alone": (
        order(4, HOLD, device=2, core=1, exclusive=1),
        order(5, HOLD, device=2, core=1, exclusive=1),
    ),
    "a share of a card and the whole of it": (
        order(4, HOLD, device=2, core=1),
        order(5, HOLD, device=2, core=1, exclusive=1),
    ),
    "a virtual function": (order(4, HOLD, SLOT, core=10), order(5, HOLD, SLOT, core=10)),
    "a virtual function by way of two cards": (
        order(4, HOLD, SLOT, device=2, core=10),
        order(5, HOLD, SLOT, device=3, core=10),
    ),
    "a CPU": (order(4, CPU), order(5, CPU)),
    "a place for two groups": (place(6, "g", "c"), place(7, "h", "d")),
    "a place and a share of its card": (place(6, "g", "c"), order(4, HOLD, device=2)),
    "a share of a card and a place on it": (order(4, HOLD, device=2), place(6, "g", "c")),
}
"""What both want: the statements of each, the last ones of which can't both be granted."""

SCHEDULES: Final = {
    "one after the other": "first.open first.take first.end second.open second.take second.end",
    "both open": "first.open second.open first.take first.end second.take second.end",
    "both hold": "first.open second.open first.take second.take first.end second.end",
    "one holds": "first.open first.take second.open second.take first.end second.end",
}
"""Who does what next. Who must wait for the other goes on as soon as the other has ended."""
ENDS: Final = (("COMMIT", "COMMIT"), ("ROLLBACK", "COMMIT"))
LEVELS: Final = {
    "READ COMMITTED": tuple(SCHEDULES),
    "REPEATABLE READ": ("both hold", "one holds"),
    "SERIALIZABLE": ("both hold", "one holds"),
}
"""Transactions that see one moment alone wait for each other, or not at all."""

DOUBLE: Final = """
SELECT 'card ' || d.device_no FROM ledger_devices AS d JOIN ledger_holdings AS h USING (device_no)
WHERE h.closed_position IS NULL AND h.kind = 'granted' GROUP BY d.device_no, d.core_reported
HAVING sum(h.core_percent) > d.core_reported OR (max(h.exclusive) = 1 AND count(*) > 1)
UNION ALL SELECT 'slot ' || slot FROM ledger_slot_holdings
WHERE closed_position IS NULL AND kind = 'granted' GROUP BY machine_no, slot HAVING count(*) > 1
UNION ALL SELECT 'cpu ' || h.cpu FROM ledger_cpu_holdings AS h JOIN ledger_cpus AS c
  ON c.machine_no = h.machine_no AND c.cpu = h.cpu
WHERE h.closed_position IS NULL GROUP BY h.machine_no, h.cpu, c.ref_reported
HAVING count(*) > c.ref_reported
UNION ALL SELECT 'place ' || device_no FROM ledger_planned_cards
WHERE closed_position IS NULL GROUP BY device_no HAVING count(*) > 1
UNION ALL SELECT 'place and holding ' || p.device_no FROM ledger_planned_cards AS p
JOIN ledger_holdings AS h USING (device_no)
JOIN ledger_reservations AS r ON r.position = h.position AND r.pod_uid <> p.pod_uid
WHERE p.closed_position IS NULL AND h.closed_position IS NULL AND h.kind = 'granted'
"""
"""What two have at once: asked of the rows alone, not of the counters that the rules keep."""

GRANTED: Final = (
    "SELECT (SELECT count(*) FROM ledger_reservations WHERE position > 3 AND pod_name = 'p')"
    " + (SELECT count(*) FROM ledger_planned_cards)"
)
WAITS: Final = "SELECT %s = ANY (pg_blocking_pids(%s))"
REFUSED: Final = {"TL001", "23505", "23514", "40001"}
"""A rule of ours, a key or a condition of a table, and a conflict of transactions."""


@pytest.fixture(scope="module")
def wanted(postgres: Server, empty_postgres: PostgresStore) -> Iterator[PostgresStore]:
    """A ledger whose card 1 is half full, with four orders that nobody has carried out."""
    store = empty_postgres.copy()
    with store.open() as ledger:
        start(ledger).append(Clock().all(node(cpus=2), HELD))
    engine = create_engine(make_url(store.url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        apply_roles(connection)
    engine.dispose()
    with store.raw() as raw:
        # Nobody could commit these events: what a head leaves behind must have its rows.
        raw.execute("SET tenure.migration = 'on'")
        raw.execute("ALTER TABLE ledger_head DISABLE TRIGGER ledger_head_settled")
        for event in ORDERS:
            with raw.transaction():
                raw.execute(MOVE)
                stream = "sys" if event.event_type.startswith("group") else "node/uid-n-1"
                query = "SELECT version FROM ledger_streams WHERE stream = %s"
                (version,) = raw.execute(query, [stream]).fetchone() or (0,)
                words = (stream, version + 1, event.event_type, encode_event(event))
                raw.execute(RECORD.encode(), words)
        raw.execute("ALTER TABLE ledger_head ENABLE ALWAYS TRIGGER ledger_head_settled")
    yield store
    postgres.drop(store.database)


@dataclass(slots=True, kw_only=True)
class Person:
    """One session of the writer's role, whose statements run in a thread of its own."""

    raw: Raw
    thread: ThreadPoolExecutor
    steps: dict[str, list[str]]
    asked: list[Future[None]]

    def ask(self, step: str) -> None:
        """Send the statements of a step, behind those that still wait."""
        self.asked.append(self.thread.submit(self._run, self.steps[step]))

    def is_answered(self) -> bool:
        """Tell whether all that was asked has its answer."""
        return all(each.done() for each in self.asked)

    def refusals(self) -> list[psycopg.Error]:
        """Return what was refused, the first one of which ended the transaction's work."""
        errors = [each.exception(300) for each in self.asked]
        assert all(each is None or isinstance(each, psycopg.Error) for each in errors), errors
        return [each for each in errors if isinstance(each, psycopg.Error)]

    def _run(self, statements: list[str]) -> None:
        for statement in statements:
            self.raw.execute(statement.encode())


@contextmanager
def person(store: PostgresStore, level: str, statements: list[str], end: str) -> Iterator[Person]:
    """Yield somebody with the writer's rights who wants this."""
    with store.raw() as raw, ThreadPoolExecutor(1) as thread:
        raw.execute("SET SESSION AUTHORIZATION ledger_writer")
        raw.execute("SET lock_timeout = '300s'")
        opening = f"BEGIN ISOLATION LEVEL {level}"
        steps = {"open": [opening, statements[0]], "take": statements[1:], "end": [end]}
        yield Person(raw=raw, thread=thread, steps=steps, asked=[])
        raw.execute("ROLLBACK")


def carry_out(onlooker: Raw, first: Person, second: Person, schedule: str) -> None:
    """Let two people go on in this order; who waits for the other one is not waited for."""
    people = {"first": (first, second), "second": (second, first)}
    for move in schedule.split():
        who, step = move.split(".")
        one, other = people[who]
        one.ask(step)
        pids = [other.raw.info.backend_pid, one.raw.info.backend_pid]
        while not one.is_answered() and onlooker.execute(WAITS, pids).fetchone() != (True,):
            time.sleep(0.002)


CASES: Final = {
    f"{what}, {schedule}, {level}, {' then '.join(ends)}": (what, level, schedule, ends)
    for what, (level, schedules), ends in product(WANTED, LEVELS.items(), ENDS)
    for schedule in schedules
}


@pytest.mark.parametrize(("what", "level", "schedule", "ends"), CASES.values(), ids=CASES)
def test_never_do_two_have_it(
    wanted: PostgresStore, what: str, level: str, schedule: str, ends: tuple[str, str]
) -> None:
    """Who comes first has it if they commit, the other one hears why not; nobody has half of it."""
    store = wanted.copy()
    with (
        person(store, level, WANTED[what][0], ends[0]) as first,
        person(store, level, WANTED[what][1], ends[1]) as second,
    ):
        with store.raw() as onlooker:
            carry_out(onlooker, first, second, SCHEDULES[schedule])
        refusals = [first.refusals(), second.refusals()]
    with store.raw() as raw:
        double = raw.execute(DOUBLE.encode()).fetchall()
        granted = raw.execute(GRANTED.encode()).fetchone()
    wanted.server.drop(store.database)

    assert double == []
    assert {each.sqlstate for each in (*refusals[0], *refusals[1])} <= REFUSED, refusals
    have = [end == "COMMIT" and not each for end, each in zip(ends, refusals, strict=True)]
    assert have == [ends[0] == "COMMIT", ends[0] == "ROLLBACK"], refusals
    assert granted == (1,)
