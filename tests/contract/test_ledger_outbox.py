"""The outbox: statements in their order, each row counted, errors of the statement that failed."""

from __future__ import annotations

import logging
from functools import partial

import pytest
from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import LedgerError
from ledger.store.open import Ledger
from ledger.store.writing import statements
from ledger.store.writing.append import read_head
from ledger.store.writing.outbox import Otherwise, Outbox
from ledger.store.writing.statements import Row, Statement
from tests.support.stores import MONDAY_US, Store, start

NOT_MOVED = partial(LedgerError, "not moved")
NOT_THERE = partial(LedgerError, "not there")
Waiting = tuple[Statement, Row, Otherwise]


def move(to: int, before: int) -> Waiting:
    """Return the statement that moves the head of epoch 1."""
    row = (to, 2 * MONDAY_US + to, bytes(32), 1, before)
    return statements.MOVE_HEAD, row, NOT_MOVED


def sent(ledger: Ledger, *waiting: Waiting) -> int:
    """Send statements in a transaction that is rolled back; return where the head was in it."""
    outbox = Outbox(ledger.connection)
    with ledger.connection.begin() as transaction:
        for statement, row, otherwise in waiting:
            outbox.add(statement, [row], otherwise)
        outbox.send()
        outbox.send()  # holds nothing any more
        position = read_head(ledger.connection).position
        transaction.rollback()
    return position


def test_what_waits_is_sent_in_order_and_once(store: Store) -> None:
    """The second move counts on the first."""
    with store.open() as ledger:
        start(ledger)
        assert sent(ledger, move(7, 1)) == 7
        assert sent(ledger, move(7, 1), move(9, 7)) == 9
        assert ledger.head().position == 1


@pytest.mark.parametrize("company", [(), (move(7, 1),)], ids=["alone", "behind another"])
def test_a_row_that_is_not_touched_raises_its_own_error(
    store: Store, company: tuple[Waiting, ...]
) -> None:
    """Even beside statements that touched theirs."""
    nothing = (statements.CLOSE, ("released", 1, 1, "gone", 999), NOT_THERE)
    with store.open() as ledger:
        start(ledger)
        with pytest.raises(LedgerError, match="not there"):
            sent(ledger, *company, nothing)
        with pytest.raises(LedgerError, match="not moved"):
            sent(ledger, *company, move(9, 3))
        assert ledger.head().position == 1


def test_what_the_database_refuses_is_an_error_of_the_driver(store: Store) -> None:
    """The transaction is spent, the connection is not."""
    event = (statements.EVENT, tuple(None for _ in statements.EVENT.parameters), NOT_THERE)
    with store.open() as ledger:
        start(ledger)
        with pytest.raises(DBAPIError):
            sent(ledger, move(7, 1), event)
        assert sent(ledger, move(7, 1)) == 7


def test_nothing_is_said_beside_the_refusal_of_many_rows(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver of Postgres has sent rows behind the refused one; that they are not is no news."""
    with store.open() as ledger:
        start(ledger)
        outbox = Outbox(ledger.connection)
        with caplog.at_level(logging.WARNING), ledger.connection.begin() as transaction:
            outbox.add(statements.TILE, [(0, 0, bytes(8192))] * 2_000, NOT_THERE)
            with pytest.raises(DBAPIError):
                outbox.send()
            transaction.rollback()

    assert caplog.messages == []
