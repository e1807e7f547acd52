"""
The head of a ledger on Postgres: it stops where the events stop, in every transaction.

The writer's role may move the head, for every append does. What it may not do is leave it where no
event is, or begin an epoch that no event starts: the next writer could never go on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, make_url

from ledger.store.proving.verify import verify
from tests.support.postgres import Server
from tests.support.postgres_roles import apply_roles
from tests.support.stores import Clock, PostgresStore, node, reserved, share, start

Raw = psycopg.Connection[Any]

WHO = ["ledger_writer", "ledger_owner", "postgres"]
NO_EVENT = "the head is where the events end: position {} is not the last event"
NO_EPOCH = "an epoch begins with its event: no event starts epoch {}"

MOVE = "UPDATE ledger_head SET position = position + 1, at_us = at_us + 9, chain_hash = {hash}"
OTHER = "decode(repeat('ab', 32), 'hex')"
SAME = "(SELECT chain_hash FROM ledger_events WHERE position = 3)"
EPOCH = "UPDATE ledger_head SET epoch = epoch + 1, holder = 'me'"
EVENT = (
    "INSERT INTO ledger_events SELECT h.position, e.stream, s.version + 1, e.event_type, {body},"
    " e.actor, {epoch}, NULL, e.correlation_id, 'mine', e.args_hash, h.at_us + {later}, e.wall_us,"
    " e.leaf_hash, {hash} FROM ledger_events AS e JOIN ledger_streams AS s ON s.stream = e.stream,"
    " ledger_head AS h WHERE e.position = 1"
)
STARTED = "replace(replace(e.body, '\"epoch\":1', '\"epoch\":2'), '\"holder\":\"test\"', '{}')"
MINE = STARTED.format('"holder":"me"')
RECORDED = EVENT.format(body=MINE, epoch=2, later=0, hash=OTHER)


@pytest.fixture(scope="module")
def told(postgres: Server, empty_postgres: PostgresStore) -> Iterator[PostgresStore]:
    """A ledger whose head is at 3, in epoch 1, with its roles."""
    store = empty_postgres.copy()
    with store.open() as ledger:
        start(ledger).append(Clock().all(node(), reserved("a", share(0, 60))))
    give_roles(store)
    yield store
    postgres.drop(store.database)


def give_roles(store: PostgresStore) -> None:
    """Make the four roles, and give each its rights on this ledger."""
    engine = create_engine(make_url(store.url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        apply_roles(connection)
    engine.dispose()


@contextmanager
def acting_as(store: PostgresStore, role: str) -> Iterator[Raw]:
    """Connect with the rights of a role."""
    with store.raw() as raw:
        raw.execute(f"SET SESSION AUTHORIZATION {role}".encode())
        yield raw


def head(raw: Raw) -> tuple[Any, ...] | None:
    """Return the head row."""
    return raw.execute("SELECT * FROM ledger_head").fetchone()


LEFT_BEHIND = {
    "the position alone": (["UPDATE ledger_head SET position = position + 1"], NO_EVENT.format(4)),
    "the position far ahead": (
        ["UPDATE ledger_head SET position = position + 10"],
        NO_EVENT.format(13),
    ),
    "position, time and chain": ([MOVE.format(hash=OTHER)], NO_EVENT.format(4)),
    "a chain value of an earlier event": ([MOVE.format(hash=SAME)], NO_EVENT.format(4)),
    "an event with another chain value": (
        [MOVE.format(hash=SAME), EVENT.format(body="e.body", epoch=1, later=0, hash=OTHER)],
        NO_EVENT.format(4),
    ),
    "an event of another time": (
        [MOVE.format(hash=OTHER), EVENT.format(body="e.body", epoch=1, later=1, hash=OTHER)],
        NO_EVENT.format(4),
    ),
    "an event, and on behind it": (
        [
            MOVE.format(hash=OTHER),
            EVENT.format(body="e.body", epoch=1, later=0, hash=OTHER),
            "UPDATE ledger_head SET position = position + 1",
        ],
        NO_EVENT.format(5),
    ),
    "the epoch alone": (["UPDATE ledger_head SET epoch = epoch + 1"], NO_EPOCH.format(2)),
    "the epoch with a holder": ([EPOCH], NO_EPOCH.format(2)),
    "an epoch and an event of the one before": (
        [EPOCH, MOVE.format(hash=OTHER), EVENT.format(body=MINE, epoch=1, later=0, hash=OTHER)],
        NO_EPOCH.format(2),
    ),
    "an epoch and the event of another one": (
        [EPOCH, MOVE.format(hash=OTHER), EVENT.format(body="e.body", epoch=2, later=0, hash=OTHER)],
        NO_EPOCH.format(2),
    ),
    "an epoch and the event of another holder": (
        [
            "UPDATE ledger_head SET epoch = epoch + 1, holder = 'you'",
            MOVE.format(hash=OTHER),
            RECORDED,
        ],
        NO_EPOCH.format(2),
    ),
    "two epochs with one event": (
        [EPOCH, MOVE.format(hash=OTHER), RECORDED, "UPDATE ledger_head SET epoch = epoch + 1"],
        NO_EPOCH.format(3),
    ),
}


@pytest.mark.parametrize("role", WHO)
@pytest.mark.parametrize(("moves", "words"), LEFT_BEHIND.values(), ids=LEFT_BEHIND)
def test_a_head_without_its_event_does_not_commit(
    told: PostgresStore, moves: list[str], words: str, role: str
) -> None:
    """Whoever moves the head and leaves it there hears it at the commit, and nothing is left."""
    with acting_as(told, role) as raw:
        before = head(raw)
        raw.execute("BEGIN")
        for move in moves:
            raw.execute(move.encode())
        with pytest.raises(psycopg.Error) as refusal:
            raw.execute("COMMIT")
        assert refusal.value.diag.message_primary == f"tenure ledger: {words}"
        assert refusal.value.sqlstate == "TL001"
        assert head(raw) == before


EARLY = {
    "an epoch without its event": (["SET CONSTRAINTS ALL IMMEDIATE", EPOCH], NO_EPOCH.format(2)),
    "a move behind one that was asked": (
        [
            MOVE.format(hash=OTHER),
            EVENT.format(body="e.body", epoch=1, later=0, hash=OTHER),
            "SET CONSTRAINTS ALL IMMEDIATE",
            "SET CONSTRAINTS ALL DEFERRED",
            "UPDATE ledger_head SET position = position + 1",
            "COMMIT",
        ],
        NO_EVENT.format(5),
    ),
}


@pytest.mark.parametrize("role", WHO)
@pytest.mark.parametrize(("moves", "words"), EARLY.values(), ids=EARLY)
def test_asking_early_opens_no_way_around(
    told: PostgresStore, moves: list[str], words: str, role: str
) -> None:
    """Constraints that are made immediate are asked at once, and again for every later move."""
    with acting_as(told, role) as raw:
        before = head(raw)
        raw.execute("BEGIN")
        for move in moves[:-1]:
            raw.execute(move.encode())
        with pytest.raises(psycopg.Error, match=words):
            raw.execute(moves[-1].encode())
        raw.execute("ROLLBACK")
        assert head(raw) == before


def test_a_replica_is_asked_too(told: PostgresStore) -> None:
    """The role of replication does not silence it."""
    with told.raw() as raw:
        raw.execute("SET session_replication_role = replica")
        with pytest.raises(psycopg.Error, match="position 4 is not the last event"):
            raw.execute("UPDATE ledger_head SET position = position + 1")


@pytest.mark.parametrize("role", ["ledger_writer", "postgres"])
def test_a_head_with_its_event_commits(told: PostgresStore, postgres: Server, role: str) -> None:
    """An epoch with its event by hand is as good as one of ours, and a move to nowhere is none."""
    copy = told.copy()
    give_roles(copy)
    with acting_as(copy, role) as raw:
        raw.execute("UPDATE ledger_head SET position = position, epoch = epoch")
        with raw.transaction():
            raw.execute(EPOCH)
            raw.execute(MOVE.format(hash=OTHER).encode())
            raw.execute(RECORDED.encode())
        found = head(raw)
    assert found is not None
    assert found[2:5] == (2, "me", 4)
    postgres.drop(copy.database)


def test_after_all_of_it_the_ledger_goes_on(told: PostgresStore) -> None:
    """What was refused left nothing behind: it verifies, and the next epoch begins."""
    with told.open() as ledger:
        assert verify(ledger).findings == ()
        assert start(ledger, "next").head.epoch == ledger.head().epoch
