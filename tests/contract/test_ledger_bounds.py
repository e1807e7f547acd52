"""Who answers strangers bounds a question: in rows, and in time by ending it from outside."""

from __future__ import annotations

import threading

import pytest

from ledger.domain.errors import InputError, LedgerError
from ledger.store.open import Ledger
from ledger.store.reading import report_queries as queries
from ledger.store.reading.report_queries import When
from tests.support.stores import Clock, Store, node, reserved, share, start

_COUNTING = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
LONG = {"sqlite": f"{_COUNTING} SELECT max(x) FROM n", "postgresql": "SELECT pg_sleep(3600)"}


def test_a_question_has_no_more_rows_than_it_is_allowed(store: Store) -> None:
    """As many as that are answered, one more is refused, without a bound all are."""
    with store.open("write") as ledger:
        told = Clock().all(node(), *(reserved(f"p-{n}", share(0, 10)) for n in range(3)))
        start(ledger).append(told)
    with store.open("read") as ledger:
        ledger.bound(3)
        with ledger.connection.begin():
            assert len(queries.device_holders(ledger.connection, When(ever=True))) == 3
            assert len(list(queries.holding_rows(ledger.connection))) == 3
        ledger.bound(2)
        with ledger.connection.begin():
            with pytest.raises(InputError, match="too many rows: most=2"):
                queries.device_holders(ledger.connection)
            with pytest.raises(InputError, match="too many rows: most=2"):
                list(queries.claim_rows(ledger.connection))
    with store.open("read") as ledger, ledger.connection.begin():
        assert len(queries.device_holders(ledger.connection)) == 3


def test_a_question_is_ended_by_another_thread(store: Store) -> None:
    """It gets a LedgerError, however long it would have taken."""
    over = threading.Event()

    def cancel(ledger: Ledger) -> None:
        while not over.wait(0.02):  # until it has begun to be answered
            ledger.cancel()

    def ask() -> None:
        with store.open("read") as ledger:
            thread = threading.Thread(target=cancel, args=(ledger,))
            thread.start()
            try:
                with ledger.connection.begin():
                    ledger.connection.exec_driver_sql(LONG[ledger.engine.dialect.name])
            finally:
                over.set()
                thread.join()

    with pytest.raises(LedgerError):
        ask()


def test_who_ends_a_question_that_is_over_ends_nothing(store: Store) -> None:
    """It comes from another thread, so it may come late."""
    with store.open("read") as ledger:
        ledger.cancel()
        assert ledger.head().position == 0
    ledger.cancel()
