"""
A second process that proves the rows while the first proves the events: `verify` on two cores.

Rule: docs/adr/0020. Both see one snapshot of the ledger. The second vouches for all rows or for
none; then the first proves everything by itself, so the report is the same. SQLite's locks are a
process's own, so it is forked before the first opens the ledger.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from typing import Any, Final, Protocol

from sqlalchemy import Connection, RootTransaction, bindparam, literal_column, select
from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import LedgerError
from ledger.domain.log.events import skim_event
from ledger.store import schema
from ledger.store.archives.segments import START, end_of, last_segment
from ledger.store.mending.acts import void_event, voids_of
from ledger.store.open import Ledger, open_ledger
from ledger.store.profile import driver_connection
from ledger.store.profile_postgres import one_snapshot
from ledger.store.proving.resumed import ResumedProof
from ledger.store.reading.read import checked_head
from ledger.store.reading.tables import few_collections, row_pages

EVENTS_MIN: Final = 5_000
"""A ledger of fewer is proved before a second process would have opened it."""
_TRIES: Final = 20
"""So often a writer may commit between the two beginnings, before one process does it all."""
_IDLE_SECONDS: Final = 10.0
_BEGIN_SECONDS: Final = 30.0
"""So long it may take to open the ledger, and to begin."""
PATIENCE_SECONDS: Final = 60.0
"""So long the second is waited for at least, once the first has done its own part."""
_PATIENCE_TIMES: Final = 5.0
"""So many times as long as the first took for its own part the second may take besides."""
_PROVE: Final = "prove"
_SEEN: Final = "seen"
_events: Final = schema.ledger_events.c
_READ: Final = (
    _events.position,
    _events.event_type,
    _events.body,
    _events.at_us,
    _events.leaf_hash,
)
_CHAIN: Final = select(_events.chain_hash).where(_events.position == bindparam("position"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouched:
    """No row is wrong up to this event, which must be the last one of the first process."""

    position: int
    chain_hash: bytes


class Port(Protocol):
    """This end of the pipe to the second process."""

    def send(self, message: str, /) -> None:
        """Send a word; OSError where nobody takes it."""

    def recv(self) -> Any:  # noqa: ANN401 - whatever the second process sends
        """Wait for an answer; EOFError where none will come."""

    def poll(self, seconds: float, /) -> bool:
        """Wait so long at most, and tell whether there is an answer."""


class SecondProver:
    """
    The second process as the first one sees it.

    If it ends or hangs, the first process proves the rows itself, which is only slower.
    """

    def __init__(
        self,
        pipe: Port,
        pid: int,
        events_min: int = EVENTS_MIN,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._pipe = pipe
        self.pid = pid
        self._events_min = events_min
        self._patience_seconds = patience_seconds
        self._began = 0.0
        self._hangs = False

    def begin(self, ledger: Ledger) -> RootTransaction | None:
        """
        Begin a transaction that sees what the second process sees, and let that one start.

        None, with nothing begun, where it is not worth it or can't be done.
        """
        connection = ledger.connection
        if self._hangs or ledger.writable or not self._is_long(connection):
            return None
        meet = self._exported if connection.dialect.name == "postgresql" else self._unchanged
        # Whatever it is, the first process meets it by itself and says so.
        with suppress(DBAPIError, sqlite3.Error, EOFError, OSError):
            if meet(connection):
                self._pipe.send(_PROVE)
                self._began = time.monotonic()
                return connection.get_transaction()
        with suppress(DBAPIError):
            connection.rollback()
        return None

    def answer(self, connection: Connection) -> Vouched | None:
        """
        Wait for its word, None if it does not vouch; the transaction is kept from ending.

        Patience grows with what the first process took: both read the same events.
        """
        own = time.monotonic() - self._began
        left = max(self._patience_seconds, own * _PATIENCE_TIMES)
        with suppress(EOFError, OSError):  # it was ended
            while left > 0:
                if self._pipe.poll(min(left, _IDLE_SECONDS)):
                    vouched: Vouched | None = self._pipe.recv()
                    return vouched
                left -= _IDLE_SECONDS
                connection.exec_driver_sql("SELECT 1")
        return None

    def _is_long(self, connection: Connection) -> bool:
        with suppress(LedgerError, DBAPIError), connection.begin():
            return checked_head(connection).position >= self._events_min
        return False

    def _unchanged(self, connection: Connection) -> bool:
        """
        Begin on SQLite: the second process begins between two looks at the file's version.

        If they are the same, nobody committed in between, and both see the same.
        """
        for _ in range(_TRIES):
            before = _version(connection)
            self._pipe.send("see")
            if not self._is_seen():
                return False
            transaction = connection.begin()
            if _version(connection) == before:
                return True
            transaction.rollback()
        return False

    def _exported(self, connection: Connection) -> bool:
        connection.begin()
        one_snapshot(connection)
        self._pipe.send(connection.exec_driver_sql("SELECT pg_export_snapshot()").scalar_one())
        return self._is_seen()

    def _is_seen(self) -> bool:
        if not self._pipe.poll(min(self._patience_seconds, _BEGIN_SECONDS)):
            self._hangs = True  # what it says later would be of another beginning
            return False
        return bool(self._pipe.recv() == _SEEN)


@contextmanager
def second_prover(
    url: str, events_min: int = EVENTS_MIN, patience_seconds: float = PATIENCE_SECONDS
) -> Iterator[SecondProver]:
    """
    Fork a process that can prove the rows of the ledger at `url`, and end it in the end.

    A ledger of fewer events than `events_min` does not need it; it is waited for at least
    `patience_seconds`.
    """
    context = get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(url, theirs, ours, os.getpid()), daemon=True)
    process.start()
    theirs.close()
    try:
        yield SecondProver(ours, process.pid or 0, events_min, patience_seconds)
    finally:
        ours.close()
        process.kill()
        process.join()


def vouch_for_rows(connection: Connection, still: Callable[[], object]) -> Vouched | None:
    """
    Return what the rows are vouched for with, None if anything is wrong with them.

    Runs in the transaction that is open. Events that can't be read are errors of many kinds.

    Args:
        still: called now and then; may raise to end it.
    """
    findings: list[str] = []
    segment = last_segment(connection)
    start = end_of(segment) if segment is not None else START
    voids = voids_of(connection)
    position, chain = start.position, start.chain_hash
    query = (
        select(*_READ)
        .where(_events.position > literal_column(str(int(start.position))))
        .order_by(_events.position)
    )
    proof = ResumedProof(connection, lambda _position, text: findings.append(text), start)
    with closing(proof):
        for page in row_pages(connection, query):
            for position, event_type, body, at_us, leaf in page:
                void = void_event(voids, position, leaf) if position in voids else None
                proof.add(position, at_us, void or skim_event(event_type, body))
            still()
            if findings:
                return None
        proof.finish()
    if position > start.position:
        chain = connection.execute(_CHAIN, {"position": position}).scalar_one()
    return None if findings else Vouched(position=position, chain_hash=chain)


def _serve(url: str, pipe: Pipe, other: Pipe, first: int) -> None:
    """Be the second process: begin as often as it is asked, then prove once."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the first says that it was interrupted
    other.close()

    def still() -> None:
        if os.getppid() != first:
            raise EOFError

    with suppress(EOFError, BrokenPipeError), few_collections():
        message = pipe.recv()
        try:
            with open_ledger(url, mode="read") as ledger:
                while message != _PROVE:
                    _see(ledger.connection, message)
                    pipe.send(_SEEN)
                    message = pipe.recv()
                vouched = vouch_for_rows(ledger.connection, still)
        except (EOFError, BrokenPipeError):
            raise
        except Exception:  # noqa: BLE001 - whatever it is: the first process meets it, and says so
            vouched = None
        pipe.send(vouched)


def _see(connection: Connection, snapshot: str) -> None:
    """Begin a transaction, which sees one state of the ledger from now on: that of `snapshot`."""
    if connection.in_transaction():
        connection.rollback()
    connection.begin()
    one_snapshot(connection)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
    checked_head(connection)


def _version(connection: Connection) -> int:
    """Return SQLite's own number for the state that this connection sees."""
    row = driver_connection(connection).execute("PRAGMA data_version").fetchone()
    return int(row[0])
