"""
Statements of one transaction on their way to the database: as many together as it takes.

They go past SQLAlchemy, with the errors that it would make: on Postgres as one call, with rows
turned into columns in its own words, and on SQLite in a transaction of the driver.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import chain
from typing import Any, Final

from sqlalchemy import Connection, RootTransaction
from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import LedgerError
from ledger.store.ddl.postgres_append import NOT_TOUCHED, STEPS, AppendStatement
from ledger.store.failures import sqlstate_of
from ledger.store.profile import BEGIN_WRITING, driver_connection
from ledger.store.writing.statements import EVENT, Row, Statement

Otherwise = Callable[[], LedgerError]
"""Makes the error for a row that touched nothing: an append that succeeds makes none."""
_Waiting = tuple[Statement, list[Row], Otherwise]
_STEP: Final = re.compile(r"step=(\d+)")
_OF_EVENTS: Final = "INSERT INTO public.ledger_events "
TEXT: Final = "SELECT ledger_append($1, $2, $3, $4, $5, $6)"
TEXT_DOLLAR: Final = TEXT.encode()
OIDS: Final = (1007, 1007, 1016, 1016, 1009, 1001)
"""The types of the parameters: two integer[], two bigint[], a text[], a bytea[]."""
_INTEGER, _BIGINT, _TEXT, _BYTEA = 23, 20, 25, 17
_NULL: Final = struct.pack(">i", -1)
_SHORT: Final = 1_024
_LENGTHS: Final = [length.to_bytes(4) for length in range(_SHORT)]
_NUMBER: Final = struct.Struct(">iq")
_DRIVER: Final = "pysqlite"
_COMMIT: Final = "COMMIT"
_ROLLBACK: Final = "ROLLBACK"


class Outbox:
    """
    Collects statements and sends them in their order, once it is told to.

    SQLite's driver gets them all at once; Postgres a whole transaction as one call (docs/adr/0007),
    and one that is read in between statement by statement.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: list[_Waiting] = []
        self.committing = False

    def add(self, statement: Statement, rows: list[Row], otherwise: Otherwise) -> None:
        """Let rows wait; what `otherwise` makes is raised if one does not touch its one row."""
        self._waiting.append((statement, rows, otherwise))

    def send(self, *, last: bool = False) -> None:
        """
        Execute what waits, then hold nothing.

        With `last` nothing else belongs to the transaction: where the database takes all of it in
        one call, and nothing was sent before, that call commits. `committing` is true from then on.

        Raises:
            LedgerError: the first one whose rows were not all touched.
            DBAPIError: the database refused; no statement before that one went unnoticed.
        """
        waiting, self._waiting = self._waiting, []
        if last and is_callable(self._connection):
            given = call_of([(statement, rows) for statement, rows, _ in waiting])
            if given is not None:
                self.committing = True
                self._call(given, waiting)
                self.committing = False
                return
        if self._connection.dialect.name == "sqlite":
            self._send_directly(driver_connection(self._connection), waiting)
            return
        for statement, rows, otherwise in waiting:
            if statement.run(self._connection, rows) != len(rows):
                raise otherwise()

    def _send_directly(self, driver: Any, waiting: list[_Waiting]) -> None:  # noqa: ANN401
        connection = self._connection
        errors = connection.dialect.loaded_dbapi.Error
        cursor = driver.cursor()
        try:
            for statement, rows, otherwise in waiting:
                text = statement.text(connection)
                try:
                    if len(rows) == 1:
                        cursor.execute(text, rows[0])
                    else:
                        cursor.executemany(text, rows)
                except errors as error:
                    raise refused(connection, text, error) from error
                if cursor.rowcount != len(rows):
                    raise otherwise()
        finally:
            cursor.close()

    def _call(self, given: Call, waiting: list[_Waiting]) -> None:
        try:
            call(self._connection, given)
        except DBAPIError as error:
            if sqlstate_of(error) == NOT_TOUCHED:
                step = int(_STEP.findall(str(error.orig))[0])
                otherwise = waiting[given.owners[step - 1]][2]
                raise otherwise() from error
            if _OF_EVENTS in _context(error):
                error.statement = EVENT.text(self._connection)
            raise


def _context(error: DBAPIError) -> str:
    diagnosis = getattr(error.orig, "diag", None)  # psycopg's; asyncpg's own error is the cause
    cause = error.orig.__cause__ if error.orig else None
    words = getattr(diagnosis or cause, "context", None)
    return str(words or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """
    What the function `ledger_append` is called with.

    The columns of all steps by their type; a maybe is a number or None. `owners` says which of the
    given statements each step belongs to.
    """

    steps: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    numbers: list[Sequence[int]] = field(default_factory=list)
    maybes: list[Sequence[int | None]] = field(default_factory=list)
    texts: list[Sequence[str]] = field(default_factory=list)
    blobs: list[Sequence[bytes]] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)


def call_of(waiting: Sequence[tuple[Statement, list[Row]]]) -> Call | None:
    """Return statements with their rows, in their order, as a call; None if one has no step."""
    call = Call()
    by_kind: dict[str, list[Any]] = {
        "bigint": call.numbers,
        "maybe": call.maybes,
        "text": call.texts,
        "bytea": call.blobs,
    }
    for owner, (statement, rows) in enumerate(waiting):
        number = _number(statement)
        if number is None:
            return None
        step = STEPS[number - 1]
        for some in _apart(step, rows):
            call.steps.append(number)
            call.counts.append(len(some))
            call.owners.append(owner)
            columns = zip(*some, strict=True)
            for (_, kind), column in zip(step.columns, columns, strict=True):
                by_kind[kind].append(column)
    return call


def call(connection: Connection, given: Call) -> None:
    """
    Call `ledger_append` as a transaction of its own: one message there and its answer back.

    Raises:
        DBAPIError: as `Connection.exec_driver_sql`; nothing was recorded if the server says so.
    """
    driver = driver_connection(connection)
    try:
        if is_blocking(connection):
            _call_blocking(driver, given)
        else:
            _call_waiting(connection.connection.dbapi_connection, given)
    except connection.dialect.loaded_dbapi.Error as error:
        raise refused(connection, TEXT, error) from error


def _call_blocking(driver: Any, given: Call) -> None:  # noqa: ANN401 - the driver's own
    """
    Call with the bytes that go on the wire: the driver's own way takes longer than the call.

    Not prepared: the driver forgets prepared statements with a ROLLBACK, without a word.
    """
    from psycopg import errors  # noqa: PLC0415 - SQLite needs none of it
    from psycopg.pq import ExecStatus, Format  # noqa: PLC0415 - likewise

    words = (
        integers_sent(tuple(given.steps)),
        integers_sent(tuple(given.counts)),
        numbers_sent(given.numbers),
        maybes_sent(given.maybes),
        texts_sent(given.texts),
        blobs_sent(given.blobs),
    )
    result = driver.pgconn.exec_params(TEXT_DOLLAR, words, OIDS, (Format.BINARY,) * len(OIDS))
    if result.status != ExecStatus.TUPLES_OK:
        raise errors.error_from_result(result, encoding="utf-8")


def _call_waiting(adapted: Any, given: Call) -> None:  # noqa: ANN401 - SQLAlchemy's own
    """Call through what SQLAlchemy makes of a driver for asyncio, without its transaction."""
    adapted.autocommit = True
    cursor = adapted.cursor()
    try:
        columns = (given.numbers, given.maybes, given.texts, given.blobs)
        flat = [list(chain.from_iterable(some)) for some in columns]
        cursor.execute(TEXT, (given.steps, given.counts, *flat))
    finally:
        cursor.close()
        adapted.autocommit = False


@cache
def _number(statement: Statement) -> int | None:
    table, width = str(statement.construct.table), len(statement.parameters)
    found = [
        number
        for number, step in enumerate(STEPS, 1)
        if (step.table, len(step.columns)) == (table, width)
    ]
    assert len(found) <= 1, (table, width)
    return found[0] if found else None


def _apart(step: AppendStatement, rows: list[Row]) -> Sequence[list[Row]]:
    """Return the rows such that none of a list touches what another one of it touches."""
    if not step.alone or len(rows) == 1:
        return (rows,)
    names = [name for name, _ in step.columns]
    places = [names.index(name) for name in step.alone]
    seen: dict[tuple[Any, ...], int] = {}
    lists: list[list[Row]] = []
    for row in rows:
        key = tuple([row[place] for place in places])
        turn = seen.get(key, 0)
        seen[key] = turn + 1
        if turn == len(lists):
            lists.append([])
        lists[turn].append(row)
    return lists


@lru_cache(256)
def integers_sent(numbers: tuple[int, ...]) -> bytes:
    """Return an integer[] as Postgres reads it in binary; most appends have the same ones."""
    parts = [part for number in numbers for part in (4, number)]
    return _header(_INTEGER, len(numbers)) + struct.pack(f">{len(parts)}i", *parts)


def numbers_sent(columns: Sequence[Sequence[int]]) -> bytes:
    """
    Return the numbers of these columns as Postgres reads a bigint[] in binary.

    Raises:
        OverflowError: one is beyond 64 bits, as the driver of SQLite says it.
    """
    numbers = [*chain.from_iterable(columns)]
    pairs = [8] * (2 * len(numbers))
    pairs[1::2] = numbers
    try:
        packed = struct.pack(f">{'iq' * len(numbers)}", *pairs)
    except struct.error as error:
        raise OverflowError(f"a number is beyond 64 bits: {error}") from error
    return _header(_BIGINT, len(numbers)) + packed


def maybes_sent(columns: Sequence[Sequence[int | None]]) -> bytes:
    """Return numbers, some of which may be NULL, as Postgres reads a bigint[] in binary."""
    numbers = [*chain.from_iterable(columns)]
    parts = [_NULL if each is None else _NUMBER.pack(8, each) for each in numbers]
    return _header(_BIGINT, len(numbers), nulls=None in numbers) + b"".join(parts)


def texts_sent(columns: Sequence[Sequence[str]]) -> bytes:
    """Return the texts of these columns as Postgres reads a text[] in binary."""
    return _bytes_sent(_TEXT, [each.encode() for column in columns for each in column])


def blobs_sent(columns: Sequence[Sequence[bytes]]) -> bytes:
    """Return the bytes of these columns as Postgres reads a bytea[] in binary."""
    return _bytes_sent(_BYTEA, [each for column in columns for each in column])


def _bytes_sent(element: int, values: list[bytes]) -> bytes:
    parts = [b""] * (2 * len(values))
    parts[::2] = [_LENGTHS[n] if (n := len(each)) < _SHORT else n.to_bytes(4) for each in values]
    parts[1::2] = values
    return _header(element, len(values)) + b"".join(parts)


def _header(element: int, count: int, *, nulls: bool = False) -> bytes:
    dimensions, first = 1, 1
    return struct.pack(">5i", dimensions, nulls, element, count, first)


def is_blocking(connection: Connection) -> bool:
    """Tell whether the driver of Postgres below is the synchronous one."""
    return connection.dialect.driver == "psycopg"


def is_callable(connection: Connection) -> bool:
    """Tell whether the database takes a transaction as one call, and none has begun there."""
    if connection.dialect.name != "postgresql":
        return False
    driver = driver_connection(connection)
    if is_blocking(connection):
        from psycopg.pq import TransactionStatus  # noqa: PLC0415 - SQLite needs none of it

        return bool(driver.pgconn.transaction_status == TransactionStatus.IDLE)
    return not driver.is_in_transaction()


def refused(connection: Connection, text: str | None, error: Exception) -> DBAPIError:
    """Return SQLAlchemy's error for the driver's; lets go of a connection that is gone."""
    dialect = connection.dialect
    gone = dialect.is_disconnect(error, driver_connection(connection), None)  # type: ignore[arg-type]
    made = DBAPIError.instance(
        text,
        (),
        error,
        dialect.loaded_dbapi.Error,
        hide_parameters=True,
        connection_invalidated=gone,
        dialect=dialect,
    )
    if gone:
        connection.invalidate(error)
    assert isinstance(made, DBAPIError), made
    return made


class DirectTransaction:
    """What `Connection.begin` gives, as far as an append needs it: statements go to the driver."""

    def __init__(self, connection: Connection) -> None:
        """
        Take the write lock.

        Raises:
            DBAPIError: the database is locked, can't be read, or is another file's by now.
        """
        self._connection = connection
        driver = driver_connection(connection)
        try:
            driver.expect_in_place()
            driver.execute(BEGIN_WRITING).close()
        except connection.dialect.loaded_dbapi.Error as error:
            raise refused(connection, BEGIN_WRITING, error) from error

    def commit(self) -> None:
        """
        Make it durable.

        Raises:
            DBAPIError: whether it is durable is not known.
        """
        connection = self._connection
        try:
            connection.dialect.do_commit(connection.connection)
        except connection.dialect.loaded_dbapi.Error as error:
            raise refused(connection, _COMMIT, error) from error

    def rollback(self) -> None:
        """
        Undo what was done; nothing is left to undo where the database has done it itself.

        Raises:
            DBAPIError: the database failed at that too.
        """
        connection = self._connection
        if connection.invalidated:
            return
        try:
            connection.connection.rollback()
        except connection.dialect.loaded_dbapi.Error as error:
            raise refused(connection, _ROLLBACK, error) from error

    close = rollback


def begin(connection: Connection, *, driver_only: bool) -> RootTransaction | DirectTransaction:
    """Begin to write; with `driver_only` nothing in it asks through SQLAlchemy."""
    if driver_only and connection.dialect.driver == _DRIVER:
        return DirectTransaction(connection)
    return connection.begin()
