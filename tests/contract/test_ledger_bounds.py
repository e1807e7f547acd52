"""Who answers strangers bounds a question: in rows, and in time by ending it from outside."""

from __future__ import annotations

import threading

import pytest

from ledger.domain.cpuset import parse_cpuset
from ledger.domain.devices import DeviceTopology
from ledger.domain.errors import InputError, LedgerError
from ledger.store.open import Ledger
from ledger.store.reading import pod_queries
from ledger.store.reading import report_queries as queries
from ledger.store.reading.views import When
from tests.support.stores import Clock, Store, gpu, node, reserved, share, start

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
                list(queries.holding_rows(ledger.connection))
    with store.open("read") as ledger, ledger.connection.begin():
        assert len(queries.device_holders(ledger.connection)) == 3


def test_cpus_cards_and_pods_are_found_by_lists_ids_and_bare_names(store: Store) -> None:
    """A list of CPUs names each holder once; an id and a PCI address name the card that has it."""
    bus = DeviceTopology(bus_id="0000:3B:00.0")
    there = node(devices=(gpu(0), gpu(1, topology=bus)), cpus=8)
    events = there, reserved("p-0", share(0, 10), cpus=(1, 2)), reserved("p-1", cpus=(4, 5))
    with store.open("write") as ledger:
        start(ledger).append(Clock().all(*events))
    with store.open("read") as ledger, ledger.connection.begin():
        asked = ledger.connection
        held = queries.cpu_holders(asked, When(), node="n-1", cpus=parse_cpuset("1-4"))
        assert [holder.pod_name for holder in held] == ["p-0", "p-1"]
        assert queries.has_cpus(asked, node="n-1", cpus=parse_cpuset("0-7"))
        assert not queries.has_cpus(asked, node="n-1", cpus=parse_cpuset("0-8"))
        for known in ("GPU-n-1-1", "0000:3b:00.0"):
            (card,) = queries.devices_at(asked, known, node="n-1")
            assert card.minor == 1
        assert queries.devices_at(asked, "0000:3b:00.0", node="n-2") == []
        assert queries.devices_at(asked, "0000:5e:00.0") == []
        assert [pod.namespace for pod in pod_queries.pods(asked, name="p-1")] == ["team-a"]
        assert queries.lost_ranges(asked) == []


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
