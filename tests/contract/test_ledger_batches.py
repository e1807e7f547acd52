"""
Many rows in one statement: what holds from row to row holds for all of them together.

Rule: design section 4, "Double allocation impossible by constraint". An append sends the rows of
many events at once, so the rules look at statements; nobody may gain by that.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from ledger.domain.errors import CapacityError, FencedError
from ledger.store.proving.verify import verify
from tests.support.stores import (
    Clock,
    PostgresStore,
    Store,
    bound,
    node,
    observed,
    released,
    reserved,
    share,
    start,
)


def test_holders_of_one_card_and_cpu_come_and_go_in_one_batch(store: Store) -> None:
    """Several shares of a card, taken and given back together, leave the counters at their sums."""
    with store.open() as ledger:
        writer, clock = start(ledger), Clock()
        writer.append(clock.all(node(cpus=2, refs=3)))
        pods = [reserved(each, share(0, 30), cpus=(0, 1)) for each in "abc"]
        writer.append(clock.all(*pods, observed("x", share(1, 10), cpus=())))
        writer.append(clock.all(*(released(each) for each in "ab"), released("x")))
        writer.append(clock.all(released("c"), reserved("d", share(0, 100), cpus=(1,))))

        assert verify(ledger).findings == ()


def test_what_is_not_free_yet_is_not_given_out_in_a_batch(store: Store) -> None:
    """A reservation in front of the release that makes room for it is refused, behind it not."""
    with store.open() as ledger:
        writer, clock = start(ledger), Clock()
        writer.append(clock.all(node(), reserved("a", share(0, 100))))
        with pytest.raises(CapacityError, match="has 0 of 100 percent core left, 60 asked"):
            writer.append(clock.all(reserved("b", share(0, 60)), released("a")))
        writer.append(clock.all(released("a"), reserved("b", share(0, 60))))

        assert verify(ledger).findings == ()


def test_a_pod_on_an_unknown_card_closes_the_node_for_the_events_behind_it(store: Store) -> None:
    """In one batch as in several: refused behind it, kept in front of it, free again after it."""
    with store.open() as ledger:
        writer, clock = start(ledger), Clock()
        writer.append(clock.all(node()))
        stranger = observed("x", unknown_types=("gpu",))
        with pytest.raises(CapacityError, match="unknown card"):
            writer.append(clock.all(stranger, reserved("a", share(0, 10))))
        writer.append(clock.all(reserved("a", share(0, 10)), stranger))
        writer.append(clock.all(released("x"), reserved("b", share(0, 10))))

        assert verify(ledger).findings == ()


def test_a_whole_life_fits_in_a_batch(store: Store) -> None:
    """Reserved, bound and released, again and again on one card, in a single transaction."""
    with store.open() as ledger:
        writer, clock = start(ledger), Clock()
        writer.append(clock.all(node()))
        lives = [
            event
            for pod in map(str, range(5))
            for event in (reserved(pod, share(0, 100)), bound(pod), released(pod))
        ]
        writer.append(clock.all(*lives))

        assert verify(ledger).findings == ()


def test_a_deposed_writer_is_told_so_whatever_it_sends(store: Store) -> None:
    """The head is asked first: not even a reservation that is refused anyway hides the fence."""
    with store.open() as first, store.open() as second:
        writer, clock = start(first), Clock()
        writer.append(clock.all(node(), reserved("a", share(0, 100))))
        start(second, "other")
        for event in (reserved("b", share(1, 10)), reserved("c", share(0, 10))):
            with pytest.raises(FencedError):
                writer.append(clock.all(event))
        assert verify(first).findings == ()


@pytest.fixture
def recorded(postgres_store: PostgresStore) -> PostgresStore:
    """A ledger of four events: two of them on the stream of n-1 at versions 1 and 2."""
    with postgres_store.open() as ledger:
        start(ledger).append(Clock().all(node(), reserved("a", share(0, 10)), node("n-2")))
    return postgres_store


ROWS = (
    "INSERT INTO {table} SELECT position + {by}, stream, {version}, event_type, body, actor, epoch,"
    " NULL, correlation_id, {key}, args_hash, at_us, wall_us, leaf_hash, chain_hash"
    " FROM ledger_events WHERE position IN ({positions})"
)
MOVE = (
    "UPDATE ledger_head SET position = 9, at_us = at_us + 9,"
    " chain_hash = decode(repeat('ab', 32), 'hex')"
)


def rows(
    *,
    positions: str = "3",
    by: str = "2",
    version: str = "3",
    key: str = "'k' || position",
    table: str = "ledger_events",
) -> str:
    """Return the SQL that appends copies of the events at `positions`."""
    return ROWS.format(table=table, by=by, version=version, key=key, positions=positions)


CHEATS = {
    "a version that is taken": (rows(version="2"), "stream node/uid-n-1 is not at version 1"),
    "a version left out": (rows(version="4"), "stream node/uid-n-1 is not at version 3"),
    "a first version again": (rows(version="1"), "stream node/uid-n-1 is not at version 0"),
    "versions in another order": (
        rows(positions="2, 3", by="3", version="6 - position"),
        "stream node/uid-n-1 is not at version 2",
    ),
    "one version twice": (
        rows(positions="2, 3", by="3", version="3"),
        "stream node/uid-n-1 is not at version 2",
    ),
    "a key again": (rows(key="idempotency_key"), "already recorded: test:2"),
    "one key twice": (
        rows(positions="2, 3", by="3", version="position + 1", key="'twice'"),
        "already recorded: twice",
    ),
    "a place of an event": (rows(by="0"), "the next position is 5, not 3"),
    "beyond the head": (rows(), "position 5 is beyond the head"),
    "a gap, past the table of the partitions": (
        rows(by="4", table="ledger_events_0"),
        "the next position is 5, not 7",
    ),
    "a version, past the table of the partitions": (
        rows(version="9", table="ledger_events_0"),
        "stream node/uid-n-1 is not at version 8",
    ),
}


@pytest.fixture
def undone(recorded: PostgresStore) -> Iterator[psycopg.Connection]:
    """A connection whose work is rolled back."""
    with recorded.raw() as raw, raw.transaction(force_rollback=True):
        yield raw


@pytest.mark.parametrize("hint", ["", "SET LOCAL tenure.next = '1'"], ids=["", "misled"])
@pytest.mark.parametrize(("sql", "message"), CHEATS.values(), ids=CHEATS)
def test_rows_of_one_statement_are_refused_together(
    undone: psycopg.Connection, sql: str, message: str, hint: str
) -> None:
    """A superuser who moved the head first is told which row was wrong; a false hint is no help."""
    if "beyond" not in message:
        undone.execute(MOVE.encode())
    if hint:
        undone.execute(hint.encode())
    with pytest.raises(psycopg.Error) as refusal:
        undone.execute(sql.encode())
    words = str(refusal.value.diag.message_primary)
    assert message in words or (hint and "ledger_events_0_pkey" in words)


def test_one_statement_cannot_end_what_no_event_ends(undone: psycopg.Connection) -> None:
    """Ending a reservation and its holding in one query is ending it without its event."""
    sql = (
        "WITH r AS (UPDATE ledger_reservations SET closed_position = 4, closed_at_us = ("
        "SELECT at_us FROM ledger_events WHERE position = 4) RETURNING position, closed_at_us)"
        " UPDATE ledger_holdings AS h SET closed_position = 4, closed_at_us = r.closed_at_us"
        " FROM r WHERE r.position = h.position"
    )
    with pytest.raises(psycopg.Error, match="tenure ledger: "):
        undone.execute(sql.encode())
