"""A ledger that another process holds says so in our words, wherever in an append it happens."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from ledger.domain.errors import BusyError, LedgerError
from ledger.store.open import Ledger
from ledger.store.profile import BEGIN_WRITING, driver_connection
from ledger.store.proving.verify import verify
from ledger.store.writing.append import Writer
from ledger.store.writing.commands import Command, Recorded
from tests.support.stores import Clock, PostgresStore, SqliteStore, Store, node, start


@contextmanager
def held_from(store: SqliteStore, ledger: Ledger, begin: int) -> Iterator[None]:
    """Another process takes the file just when the writer begins its so-manieth transaction."""
    driver: sqlite3.Connection = driver_connection(ledger.connection)
    driver.execute("PRAGMA busy_timeout = 0").close()
    ledger.connection.rollback()
    begun = 0
    with ExitStack() as held:
        other = held.enter_context(store.raw())

        def look(text: str) -> None:
            nonlocal begun
            if text == BEGIN_WRITING:
                begun += 1
                if begun == begin:
                    other.execute(BEGIN_WRITING)

        driver.set_trace_callback(look)
        yield
        driver.set_trace_callback(None)
        assert begun >= begin, "the writer never began so often"


def _repeated(writer: Writer, clock: Clock) -> int:
    first, second = clock.new(node(), key="one"), clock.new(node("n-2"), key="two")
    writer.append([first])
    return writer.append([first, second], expected={"node/uid-n-2": 0})


@pytest.mark.parametrize("begin", [1, 2, 3, 4])
def test_an_append_that_finds_the_file_held_can_be_made_again(
    sqlite_store: SqliteStore, begin: int
) -> None:
    """Reading versions, the commit, looking for repeats and the rest: nothing is recorded twice."""
    with sqlite_store.open() as ledger:
        writer = start(ledger)
        with (
            held_from(sqlite_store, ledger, begin),
            pytest.raises(BusyError, match="another process writes this ledger: database is lock"),
        ):
            _repeated(writer, Clock())
        assert _repeated(writer, Clock()) == 3
        assert verify(ledger).ok


def test_a_version_can_be_asked_again_too(sqlite_store: SqliteStore) -> None:
    """The first question of a writer reads the versions of all streams."""
    with sqlite_store.open() as ledger:
        writer = start(ledger)
        with ledger.connection.begin():
            pass
        writer._versions = None
        with held_from(sqlite_store, ledger, 1), pytest.raises(BusyError):
            writer.stream_version("sys")
        assert writer.stream_version("sys") == 1


def test_commands_hear_the_same_words(sqlite_store: SqliteStore) -> None:
    """A batch is tried again by whoever asked."""
    clock = Clock()
    command = Command(events=(clock.new(node(), key="one"),))
    with sqlite_store.open() as ledger:
        writer = start(ledger)
        with held_from(sqlite_store, ledger, 1), pytest.raises(BusyError):
            writer.record([command])
        assert writer.record([command]) == [Recorded(first=2, last=2)]


def test_a_lock_on_the_server_is_said_in_the_same_words(postgres_store: PostgresStore) -> None:
    """Whoever waits too long for the head's row hears that it is held."""
    with postgres_store.open() as ledger, postgres_store.raw() as other:
        writer = start(ledger)
        ledger.connection.exec_driver_sql("SET lock_timeout = '50ms'")
        ledger.connection.commit()
        with other.transaction():
            other.execute("SELECT 1 FROM ledger_head FOR UPDATE")
            with pytest.raises(BusyError, match="another process writes this ledger"):
                writer.append(Clock().all(node()))
        assert writer.append(Clock().all(node())) == 2


@pytest.mark.parametrize("at", range(12))
def test_nothing_but_our_own_errors_leaves_a_writer(
    store: Store, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever question of an append the driver fails at, and the next append is sound."""
    with store.open() as ledger:
        writer = start(ledger)
        left = at

        def fail(*_: object) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise ledger.connection.dialect.loaded_dbapi.OperationalError("disk I/O error")

        execute = ledger.connection.dialect.do_execute

        def failing(*given: object, **named: object) -> None:
            fail()
            execute(*given, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(ledger.connection.dialect, "do_execute", failing)
        writer._versions = None
        with suppress(LedgerError):
            _repeated(writer, Clock())
        monkeypatch.undo()
        assert _repeated(writer, Clock()) == 3
        assert verify(ledger).ok
