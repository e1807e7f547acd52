"""Open a ledger: to read it, to write it, or to make a new one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from sqlalchemy import URL, Connection, Engine, inspect, text
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from ledger.domain.errors import BusyError, InputError, LedgerError, TenureError
from ledger.domain.log.recorded import RecordedEvent
from ledger.store import schema
from ledger.store.failures import DAMAGE, advised, fact_of, is_locked, refused_by_rule, unavailable
from ledger.store.mending.acts import true_time
from ledger.store.place import expect_file, is_postgres, sqlite_path
from ledger.store.profile import create_file, sqlite_engine
from ledger.store.profile_postgres import CONNECT_SECONDS, postgres_engine, postgres_url, shown
from ledger.store.reading.read import checked_head, read_events
from ledger.store.reading.views import ROWS_MAX
from ledger.store.writing.append import Head, Writer, start_epoch

Mode = Literal["read", "write", "create", "upgrade"]

SIMULATION: Final = "simulation/"
"""What the origin of a simulation's ledger begins with; services refuse such a ledger."""
_Connect = Callable[[Literal["reading", "writing"]], "Ledger"]


class Ledger:
    """
    An open ledger. Close it, or use it in a `with` statement.

    What a damaged or busy database says inside of that statement leaves it as a LedgerError.
    `began` is of a ledger of a cluster's objects: Pod UID -> since when it holds or waits, "" ->
    their moment.
    """

    def __init__(self, *, url: str, engine: Engine, connection: Connection, writable: bool) -> None:
        self.url = url
        self.began: Mapping[str, int] | None = None
        self.writable = writable
        self.connection = connection
        self.engine = engine

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
        if isinstance(error, DAMAGE) and not isinstance(error, IntegrityError):
            if isinstance(error, DBAPIError) and refused_by_rule(error):
                return
            raise unreadable(error) from error

    def close(self) -> None:
        """Give the connection back; a second call does nothing."""
        with suppress(DBAPIError):  # what was read to its end needs no goodbye
            self.connection.close()
        self.engine.dispose()

    def head(self) -> Head:
        """
        Return the head as it is now.

        Raises:
            CorruptLedgerError: it is not the one row that it always is.
            LedgerError: the database can't be read now.
        """
        try:
            with self.connection.begin():
                return checked_head(self.connection)
        except DAMAGE as error:
            raise unreadable(error) from error

    def now_us(self) -> int:
        """Return the true time of the last event."""
        with self.connection.begin():
            head = checked_head(self.connection)
            return true_time(self.connection, head.position, head.at_us)

    def bound(self, rows_max: int) -> None:
        """Let no question of this ledger's reports have more rows: it raises InputError then."""
        self.connection = self.connection.execution_options(**{ROWS_MAX: rows_max})

    def cancel(self) -> None:
        """
        End the question that another thread waits for: it gets a LedgerError.

        May wait for the database itself, and does nothing once the ledger is closed.
        """
        with suppress(SQLAlchemyError, self.engine.dialect.loaded_dbapi.Error):
            raw: Any = self.connection.connection.driver_connection
            if self.engine.dialect.name == "sqlite":
                raw.interrupt()
            else:
                raw.cancel_safe(timeout=CONNECT_SECONDS)

    @property
    def is_simulation(self) -> bool:
        """Whether a simulation wrote this ledger."""
        return self.head().origin.startswith(SIMULATION)

    def read_events(self, after: int = 0, limit: int | None = None) -> Iterator[RecordedEvent]:
        """Yield events in the order of their positions; see `ledger.store.reading.read`."""
        return read_events(self.connection, after=after, limit=limit)

    def start_epoch(self, holder: str, origin: str, version: str, *, wall_us: int = 0) -> Writer:
        """
        Take the ledger over and return its writer; every earlier writer is fenced from now on.

        Rule: design section 4, "One fenced writer"; section 8, "a foreign database is refused".

        Args:
            holder: who writes, such as a Pod name or `simulation`.
            origin: whose ledger this is: `ledger/<cluster uid>` or `simulation/<input hash>`.
            version: Tenure's own.
            wall_us: the clock of the caller; 0 follows the last event.

        Raises:
            InputError: the ledger has another origin.
            LedgerError: it was opened to be read, or can't be written.
        """
        if not self.writable:
            raise LedgerError(f"the ledger is open to be read: ledger={self.url}")
        return start_epoch(
            self.connection,
            holder=holder,
            origin=origin,
            version=version,
            wall_us=wall_us,
            place=self.url,
        )


def open_ledger(url: str, *, mode: Mode) -> Ledger:
    """
    Open the ledger at `url`: `sqlite:///path`, a plain path, or `postgresql://user@host/database`.

    `create` makes the file, or takes an empty one or a ledger without events; a database of
    Postgres must be there. `upgrade` also opens, for writing, what has an older schema.

    Raises:
        InputError: no such file or database, not a ledger, a ledger of another version, or, with
            `create`, a ledger that has events.
        LedgerError: the server can't be reached, or went away meanwhile.
    """
    try:
        return _opened(url, mode)
    except DBAPIError as error:
        raise unreadable(error) from error


def _opened(url: str, mode: Mode) -> Ledger:
    connect, place = _server(url) if is_postgres(url) else _file(url, mode)
    if mode != "read":
        # Looked at before it is opened for writing, which alone would change a foreign file.
        with connect("reading") as ledger:
            if mode != "create":
                _expect_ledger(ledger, place)
                _expect_revision(ledger, place)
            if mode == "write":
                _expect_newest(ledger, place)
            if mode == "create" and _is_ledger(ledger, place) and ledger.head().epoch > 0:
                raise InputError("the ledger is not empty", place=place)
    ledger = connect("reading" if mode == "read" else "writing")
    try:
        if mode == "read":
            _expect_ledger(ledger, place)
            _expect_newest(ledger, place)
        if mode == "create":
            from ledger.store.migrate import make  # noqa: PLC0415 - Alembic is slow to import

            make(ledger.connection)
    except BaseException:
        ledger.close()
        raise
    return ledger


def unreadable(error: DBAPIError | UnicodeDecodeError) -> LedgerError:
    """Return the error for a database that did not answer a question, with what to do next."""
    fact = fact_of(error)
    if is_locked(error):
        return BusyError(f"another process writes this ledger: {fact}")
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return unavailable(error)
    found = LedgerError(f"the ledger can't be read: {fact}")
    return advised(found, "run `tenure verify` for every finding")


def _file(url: str, mode: Mode) -> tuple[_Connect, str]:
    path = sqlite_path(url)
    if mode == "create":
        _make_file(path)
    else:
        expect_file(url)
    return partial(_connected, path), str(path)


def _server(url: str) -> tuple[_Connect, str]:
    parsed = postgres_url(url)
    return partial(_connected_to_server, parsed), shown(parsed)


def _connected_to_server(url: URL, purpose: Literal["reading", "writing"]) -> Ledger:
    writable, place = purpose == "writing", shown(url)
    engine = postgres_engine(url, write=writable)
    try:
        connection = engine.connect()
    except DBAPIError as error:
        fact = " ".join(fact_of(error).split())
        if 'database "' in fact and "does not exist" in fact:
            missing = "no such ledger: the server has no such database"
            step = "make the database with `createdb`, then the ledger in it"
            raise advised(InputError(missing, place=place), step) from error
        failed = LedgerError(f"can't connect to the database: ledger={place}, {fact}")
        step = "check that the server runs and that the URL, role and password are right"
        raise advised(failed, step) from error
    return Ledger(url=place, engine=engine, connection=connection, writable=writable)


def _make_file(path: Path) -> None:
    if not path.parent.is_dir():
        raise InputError("no such directory", place=str(path.parent))
    try:
        create_file(path)
    except OSError as error:
        raise InputError(f"can't be made: {error.strerror}", place=str(path)) from error


def _connected(path: Path, purpose: Literal["reading", "writing"]) -> Ledger:
    writable = purpose == "writing"
    engine = sqlite_engine(path, write=writable)
    try:
        connection = engine.connect()
    except (*DAMAGE, sqlite3.Error) as error:
        raise _not_opened(path, error) from error
    return Ledger(url=f"sqlite:///{path}", engine=engine, connection=connection, writable=writable)


def _not_opened(path: Path, error: Exception) -> TenureError:
    """Return the error for a file that SQLite would not open: it may be a ledger all the same."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    match getattr(cause, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return BusyError(f"another process writes this ledger: ledger={path}, {cause}")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_PERM:
            fact = f"the file or its folder is protected: {cause}"
            step = "let this user read and write both, or copy the ledger"
            return advised(InputError(fact, place=str(path)), step)
        case _:
            return InputError(f"not a ledger: {cause}", place=str(path))


def _expect_ledger(ledger: Ledger, place: str) -> None:
    if not _is_ledger(ledger, place):
        raise InputError("not a ledger: it is empty", place=place)


def _expect_revision(ledger: Ledger, place: str) -> None:
    """Nothing is written to a ledger that does not say which schema it has."""
    revisions = _revisions(ledger)
    if len(revisions) != 1:
        raise InputError(f"the schema's revision must be one: revisions={revisions}", place=place)


def _expect_newest(ledger: Ledger, place: str) -> None:
    """Refuse an older schema; what else is wrong with the record of it is a finding of `verify`."""
    newest = schema.REVISIONS[-1]
    older = [revision for revision in _revisions(ledger) if revision != newest]
    if older:
        fact = (
            f"written by an older version of tenure: schema={older[0]}, this version needs {newest}"
        )
        raise advised(
            InputError(fact, place=place),
            "copy it, then run `tenure ledger upgrade --ledger LEDGER`",
        )


def _revisions(ledger: Ledger) -> list[str]:
    query = text("SELECT version_num FROM alembic_version")
    with ledger.connection.begin():
        return list(ledger.connection.execute(query).scalars())


def _is_ledger(ledger: Ledger, place: str) -> bool:
    """
    Tell whether there is a ledger of a version that we know; False for a database without tables.

    Raises:
        InputError: something else is in the file.
        LedgerError: the server went away meanwhile.
    """
    try:
        with ledger.connection.begin():
            tables = set(inspect(ledger.connection).get_table_names())
            if not tables:
                return False
            if "alembic_version" not in tables or not tables & set(schema.METADATA.tables):
                raise InputError("not a ledger: its tables are missing", place=place)
        revisions = _revisions(ledger)
    except DAMAGE as error:
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            raise unavailable(error) from error
        raise InputError(f"not a ledger: {fact_of(error)}", place=place) from error
    reads = f"this version reads {schema.REVISIONS[-1]}"
    for revision in revisions:
        if revision in schema.UNRELEASED:
            fact = f"written before the first release of tenure: schema={revision}, {reads}"
            step = "run the simulation again into a new file"
            raise advised(InputError(f"{fact} and does not upgrade it", place=place), step)
        if revision not in schema.REVISIONS:
            fact = f"written by a newer version of tenure: schema={revision}, {reads}"
            step = "this version neither reads it nor changes it"
            raise advised(
                InputError(fact, place=place),
                f"use the tenure that wrote it, or a newer one: {step}",
            )
    return True
