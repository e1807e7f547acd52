"""Proved by two processes a ledger says what it says proved by one, whatever was done to it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from typing import Any

import pytest

from ledger.domain.errors import InputError
from ledger.store.proving.second import SecondProver, Vouched, second_prover, vouch_for_rows
from ledger.store.proving.verify import VerifyReport, verify
from tests.support.process import environment
from tests.support.stores import (
    Clock,
    PostgresStore,
    SqliteStore,
    Store,
    bound,
    node,
    observed,
    refused,
    released,
    reserved,
    share,
    start,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

SEEN = "seen"


def tell(store: Store) -> None:
    """Record holders, one that left and one that others have."""
    with store.open() as ledger:
        start(ledger).append(
            Clock().all(
                node(gpus=2, cpus=4),
                reserved("a", share(0, 60), cpus=(0, 1)),  # position 3
                reserved("b", share(1, 40)),
                bound("a"),
                refused("c"),
                observed("x", share(0, 10)),
                released("b"),
            )
        )


@pytest.fixture
def told(store: Store) -> Store:
    """A ledger with events of the usual kinds."""
    tell(store)
    return store


def tamper(store: Store, statement: str) -> None:
    """Run SQL without the triggers of the database; Postgres is left without them."""
    if isinstance(store, PostgresStore):
        with store.raw() as raw:
            raw.execute("SET tenure.migration = 'on'")
            tables = raw.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            for (table,) in tables.fetchall():
                raw.execute(f"ALTER TABLE {table} DISABLE TRIGGER USER".encode())
            raw.execute(statement.encode())
        return
    with store.raw() as file:
        rules = file.execute(
            "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall()
        for name, _ in rules:
            file.execute(f"DROP TRIGGER {name}")
        file.execute("PRAGMA ignore_check_constraints = ON")
        file.execute(statement)
        for _, sql in rules:
            file.execute(sql)


def one(store: Store) -> VerifyReport:
    """Prove it in one process."""
    with store.open("read") as ledger:
        return replace(verify(ledger), seconds=0.0)


def two(store: Store) -> VerifyReport:
    """Prove it in two."""
    with second_prover(store.url, events_min=1) as second, store.open("read") as ledger:
        return replace(verify(ledger, second=second), seconds=0.0)


def vouched(store: Store) -> Vouched | None:
    """Return what the second process would say."""
    with suppress(InputError), store.open("read") as ledger, ledger.connection.begin():
        return vouch_for_rows(ledger.connection, lambda: None)
    return None


def test_two_processes_report_what_one_does(told: Store) -> None:
    """Word for word, but for how long it took."""
    report = two(told)

    assert report == one(told)
    assert report.ok


ROW = "UPDATE ledger_holdings SET core_percent = 61 WHERE position = 3"
WORDS = "UPDATE ledger_events SET actor = 'other' WHERE position = 4"


@pytest.mark.parametrize(
    ("statement", "rows_fit"),
    [
        pytest.param("DELETE FROM ledger_refusals", False, id="a row that is gone"),
        pytest.param("UPDATE ledger_reservations SET phase = 'reserved'", False, id="a phase"),
        pytest.param("UPDATE ledger_devices SET tenants = 0", False, id="a counter"),
        pytest.param(
            "UPDATE ledger_events SET body = '{' WHERE position = 4", False, id="no event"
        ),
        pytest.param(WORDS, True, id="words"),
        pytest.param("UPDATE ledger_tree SET size = 3", True, id="the tree"),
    ],
)
def test_what_was_changed_two_find_as_one_does(
    sqlite_store: SqliteStore, statement: str, *, rows_fit: bool
) -> None:
    """The same findings in the same order: the first process proves everything once more."""
    tell(sqlite_store)
    tamper(sqlite_store, statement)
    report = two(sqlite_store)

    assert (vouched(sqlite_store) is not None) is rows_fit
    assert report == one(sqlite_store)
    assert not report.ok


def test_postgres_finds_by_two_what_it_finds_by_one(postgres_store: PostgresStore) -> None:
    """The same there, of a row and of an event."""
    tell(postgres_store)
    tamper(postgres_store, ROW)
    tamper(postgres_store, WORDS)
    report = two(postgres_store)

    assert vouched(postgres_store) is None
    assert report == one(postgres_store)
    assert not report.ok


def test_both_see_the_same_while_others_append(told: Store) -> None:
    """What is committed behind their common beginning, neither of them reads."""
    with second_prover(told.url, events_min=1) as second, told.open("read") as ledger:
        snapshot = second.begin(ledger)
        assert snapshot is not None
        with told.open() as other:
            start(other, "other")

        seen = second.answer(ledger.connection)
        snapshot.rollback()

    assert seen is not None
    assert seen.position == 8


class Answering:
    """The other end of a pipe that does something each time it is asked to see."""

    def __init__(self, does: Callable[[], None]) -> None:
        self.asked: list[str] = []
        self._does = does

    def send(self, message: str, /) -> None:
        """Take a word."""
        self.asked.append(message)

    def recv(self) -> Any:  # noqa: ANN401 - the port's
        """Answer, once something was done."""
        self._does()
        return SEEN

    def poll(self, _seconds: float, /) -> bool:
        """Never be late."""
        return True


def test_a_commit_between_the_two_beginnings_makes_both_begin_again(
    sqlite_store: SqliteStore,
) -> None:
    """On SQLite nobody hands a snapshot on: one that another commit parts is not used."""
    clock, commits = Clock(), iter(["x", "y"])
    with sqlite_store.open() as writing:
        writer = start(writing)

        def commit() -> None:
            for pod in commits:
                writer.append(clock.all(refused(pod)))
                return

        other = Answering(commit)
        with sqlite_store.open("read") as ledger:
            snapshot = SecondProver(other, 0, 1).begin(ledger)

    assert snapshot is not None
    assert other.asked == ["see", "see", "see", "prove"]


def test_where_every_beginning_is_parted_one_process_proves(sqlite_store: SqliteStore) -> None:
    """A busy writer keeps nobody waiting for long, and the report is whole."""
    clock, numbers = Clock(), iter(range(1_000))
    with sqlite_store.open() as writing:
        writer = start(writing)

        def commit() -> None:
            writer.append(clock.all(refused(f"p{next(numbers)}")))

        other = Answering(commit)
        with sqlite_store.open("read") as ledger:
            report = verify(ledger, second=SecondProver(other, 0, 1))

    assert report.ok
    assert "prove" not in other.asked


@pytest.mark.parametrize("events", [8, 9])
def test_a_short_ledger_and_one_that_is_written_are_proved_by_one(told: Store, events: int) -> None:
    """The bound is on events; a writer's transaction would lock the other out."""
    with second_prover(told.url, events_min=events) as second:
        with told.open("read") as ledger:
            snapshot = second.begin(ledger)
            assert (snapshot is not None) is (events == 8)
        with told.open("write") as ledger:
            assert second.begin(ledger) is None


def test_where_the_second_process_is_killed_the_first_proves_alone(told: Store) -> None:
    """Before it began: who is short of memory still learns whether the ledger is sound."""
    with second_prover(told.url, events_min=1) as second, told.open("read") as ledger:
        os.kill(second.pid, signal.SIGKILL)
        report = replace(verify(ledger, second=second), seconds=0.0)

    assert report == one(told)
    assert report.ok


def test_where_the_second_process_ends_before_its_answer_the_first_proves_alone(
    told: Store,
) -> None:
    """Later on, too: it began, and never said anything. A finding is found."""
    tamper(told, ROW)
    with told.open("read") as ledger:
        ours, theirs = Pipe()
        theirs.send(SEEN)
        theirs.close()
        report = replace(verify(ledger, second=SecondProver(ours, 0, 1)), seconds=0.0)

    assert report == one(told)
    assert not report.ok


def test_a_second_process_that_is_killed_while_it_proves_vouches_for_nothing(told: Store) -> None:
    """Nothing is called proved for want of an answer."""
    with second_prover(told.url, events_min=1) as second, told.open("read") as ledger:
        os.kill(second.pid, signal.SIGSTOP)
        os.kill(second.pid, signal.SIGKILL)

        assert second.answer(ledger.connection) is None


def test_where_the_second_process_hangs_before_it_began_the_first_proves_alone(
    told: Store,
) -> None:
    """It is stopped, not ended: nobody waits for it for ever, and the report is whole."""
    beside = second_prover(told.url, events_min=1, patience_seconds=0.2)
    with beside as second, told.open("read") as ledger:
        os.kill(second.pid, signal.SIGSTOP)
        report = replace(verify(ledger, second=second), seconds=0.0)

    assert report == one(told)
    assert report.ok


class Silent:
    """The other end of a pipe that begins, and never says a word again."""

    def __init__(self) -> None:
        self.waited = 0.0
        self._seen = [SEEN]

    def send(self, message: str, /) -> None:
        """Take a word."""

    def recv(self) -> Any:  # noqa: ANN401 - the port's
        """Answer once."""
        return self._seen.pop()

    def poll(self, seconds: float, /) -> bool:
        """Be there for the beginning, and let all the time pass in no time."""
        if self._seen:
            return True
        self.waited += seconds
        return False


def test_where_the_second_process_hangs_while_it_proves_the_first_proves_alone(
    told: Store,
) -> None:
    """A finding is found; who waits does so for the time that it was given, and no longer."""
    tamper(told, ROW)
    other = Silent()
    with told.open("read") as ledger:
        report = replace(verify(ledger, second=SecondProver(other, 0, 1, 25.0)), seconds=0.0)

    assert report == one(told)
    assert not report.ok
    assert other.waited >= 25.0


def test_a_file_that_breaks_between_the_two_beginnings_is_a_finding(
    sqlite_store: SqliteStore,
) -> None:
    """What the driver itself says of it ends no proof: the first process names the damage."""
    tell(sqlite_store)

    def overwrite() -> None:
        with sqlite_store.raw() as other:  # whoever reads looks again, and into the file
            other.execute("PRAGMA user_version = 1")
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with sqlite_store.path.open("r+b") as file:
            file.write(b"no database" * 10)

    with sqlite_store.open("read") as ledger:
        report = verify(ledger, second=SecondProver(Answering(overwrite), 0, 1))

    assert any("damaged" in finding.text for finding in report.findings)


def test_nobody_is_left_behind(told: Store) -> None:
    """Whoever interrupts the first process ends the second one too."""

    def interrupted() -> Iterator[int]:
        with second_prover(told.url, events_min=1) as second, told.open("read") as ledger:
            yield second.pid
            assert second.begin(ledger) is not None
            raise KeyboardInterrupt

    steps = interrupted()
    pid = next(steps)
    with pytest.raises(KeyboardInterrupt):
        next(steps)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_one_core_is_one_process(sqlite_store: SqliteStore) -> None:
    """Where there is no core for it, nothing is forked."""
    with sqlite_store.open() as ledger:
        start(ledger)
    code = (
        "import os\n"
        "from tenure.admin.verify import _second_prover\n"
        "there = os.sched_getaffinity(0)\n"
        "for cores in ({min(there)}, there):\n"
        "    os.sched_setaffinity(0, cores)\n"
        f"    with _second_prover({sqlite_store.url!r}) as second:\n"
        "        print(second is not None)"
    )
    asked = [sys.executable, "-c", code]
    told = subprocess.run(
        asked, env=environment(), capture_output=True, text=True, timeout=60, check=True
    )

    assert told.stdout == f"False\n{len(os.sched_getaffinity(0)) > 1}\n"
