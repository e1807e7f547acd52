"""A disk that is full and a file that can only be read: one clear error, and nothing is lost."""

from __future__ import annotations

import pytest

from ledger.domain.errors import CapacityError, LedgerError
from ledger.domain.log.events import LedgerEvent
from ledger.domain.log.recorded import NewEvent
from ledger.store.open import Ledger
from ledger.store.profile import driver_connection
from ledger.store.projections.rebuild import rebuild
from tests.support.recorded import Recorded
from tests.support.stores import SqliteStore, node, planned, refused, released, reserved, share

UNLIMITED = 1 << 30
BATCH = 20


def limit_pages(ledger: Ledger, spare: int) -> None:
    """Leave room for so many more pages, as a disk that is nearly full does."""
    run = ledger.connection.exec_driver_sql
    with ledger.connection.begin():
        pages = run("PRAGMA page_count").scalar_one()
        run(f"PRAGMA max_page_count = {pages + spare}").close()


def read_only(ledger: Ledger, *, on: bool) -> None:
    """Let the connection write nothing, as a file does that can only be read."""
    driver_connection(ledger.connection).execute(f"PRAGMA query_only = {int(on)}").close()


def batch_of(it: Recorded) -> list[NewEvent]:
    """Return a batch that takes a few pages."""
    return it.clock.all(*(refused("w", "x" * 400) for _ in range(BATCH)))


def append_all(it: Recorded, batches: list[list[NewEvent]]) -> None:
    """Append batch after batch."""
    for batch in batches:
        it.writer.append(batch)


@pytest.mark.parametrize("spare", [0, 1, 2, 3, 5, 8])
def test_a_full_disk_refuses_the_batch_and_loses_nothing(
    sqlite_store: SqliteStore, spare: int
) -> None:
    """Wherever the pages run out; with room again the same batch is recorded by the same writer."""
    with sqlite_store.open() as ledger:
        it = Recorded(ledger, node(), planned("g", ("a", (0,))), reserved("a", share(0, 100)))
        limit_pages(ledger, spare)
        batches = [batch_of(it) for _ in range(100)]
        with pytest.raises(LedgerError, match=r"^nothing was recorded, the disk is full: "):
            append_all(it, batches)
        before = it.writer.head
        batch = batches[(before.position - 4) // BATCH]
        assert before == ledger.head()
        assert (before.position - 4) % BATCH == 0
        limit_pages(ledger, UNLIMITED)
        it.writer.append(batch)

        assert it.writer.head.position == before.position + BATCH
        assert it.proved()
        assert rebuild(ledger).equal


def test_a_reservation_that_the_disk_refused_holds_nothing(sqlite_store: SqliteStore) -> None:
    """The card is free as before, by the tables and by what the writer remembers."""
    many: list[LedgerEvent] = [
        each
        for i in range(400)
        for each in (reserved(f"p{i}", share(i % 8, 100)), released(f"p{i}"))
    ]
    with sqlite_store.open() as ledger:
        it = Recorded(ledger, node())
        limit_pages(ledger, 2)
        with pytest.raises(LedgerError, match="the disk is full"):
            it.writer.append(it.clock.all(*many, reserved("a", share(0, 100))))
        limit_pages(ledger, UNLIMITED)
        assert it.used() == (0, 0, 0, 0)
        it.add(reserved("a", share(0, 100)))

        assert it.proved()


def test_a_full_disk_does_not_take_the_ledger_over(sqlite_store: SqliteStore) -> None:
    """An epoch that could not be recorded has not begun: the writer before it goes on."""
    with sqlite_store.open() as ledger, sqlite_store.open() as other:
        it = Recorded(ledger, node())
        limit_pages(other, 0)
        with pytest.raises(LedgerError, match="the disk is full"):
            other.start_epoch("x" * 20_000, "simulation/test", "0.1.0")
        it.add(reserved("a", share(0, 10)))

        assert it.proved()


def test_a_file_that_can_only_be_read_refuses_and_loses_nothing(sqlite_store: SqliteStore) -> None:
    """The same writer goes on when the file can be written again."""
    with sqlite_store.open() as ledger:
        it = Recorded(ledger, node(), reserved("a", share(0, 60)))
        read_only(ledger, on=True)
        before = it.writer.head
        new = it.clock.new(reserved("b", share(0, 40)))
        with pytest.raises(
            LedgerError, match=r"^nothing was recorded, the ledger can only be read"
        ):
            it.writer.append([new])
        assert it.writer.head == before
        read_only(ledger, on=False)
        assert ledger.head() == before
        it.writer.append([new])
        with pytest.raises(CapacityError, match="has 0 of 100 percent core left"):
            it.writer.append([it.clock.new(reserved("c", share(0, 1)))])

        assert it.proved()


def test_a_ledger_opened_to_be_read_has_no_writer(sqlite_store: SqliteStore) -> None:
    """The refusal names the ledger."""
    with sqlite_store.open("read") as ledger, pytest.raises(LedgerError, match="open to be read"):
        ledger.start_epoch("test", "simulation/test", "0.1.0")
