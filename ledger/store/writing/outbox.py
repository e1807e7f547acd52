"""
Statements of one transaction on their way to the database: as many together as it takes.

On Postgres they go past SQLAlchemy as one call, with rows turned into columns and the errors that
it would make.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import LedgerError
from ledger.store.ddl.postgres_append import NOT_TOUCHED, STEPS, AppendStatement
from ledger.store.failures import sqlstate_of
from ledger.store.profile import driver_connection
from ledger.store.writing.statements import EVENT, Row, Statement

Otherwise = Callable[[], LedgerError]
"""Makes the error for a row that touched nothing: an append that succeeds makes none."""
_Waiting = tuple[Statement, list[Row], Otherwise]
_STEP: Final = re.compile(r"step=(\d+)")
_OF_EVENTS: Final = "INSERT INTO public.ledger_events "
_TEXTS: Final = {
    "asyncpg": "SELECT ledger_append($1, $2, $3, $4, $5, $6)",
    "psycopg": "SELECT ledger_append(%s::integer[], %s::integer[], %s::bigint[], %s::bigint[],"
    " %s::text[], %s::bytea[])",
}
"""By driver: the one asks the server for the types, the other is given arrays as texts."""


class Outbox:
    """
    Collects statements and sends them in their order, once it is told to.

    Postgres gets a whole transaction as one call (docs/adr/0007). A transaction that is read in
    between, and any of SQLite's, goes statement by statement.
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
        for statement, rows, otherwise in waiting:
            if statement.run(self._connection, rows) != len(rows):
                raise otherwise()

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
    adapted: Any = connection.connection.dbapi_connection
    columns = (given.numbers, given.maybes, given.texts, given.blobs)
    flat: list[Any] = [given.steps, given.counts]
    flat += [list(chain.from_iterable(some)) for some in columns]
    text = _TEXTS[connection.dialect.driver]
    if connection.dialect.driver == "psycopg":
        flat = [array_text(values) for values in flat]
    try:
        adapted.autocommit = True
        with closing(adapted.cursor()) as cursor:
            cursor.execute(text, flat)
    except connection.dialect.loaded_dbapi.Error as error:
        raise refused(connection, text, error) from error
    finally:
        if not connection.invalidated:
            adapted.autocommit = False


def array_text(values: Sequence[int | str | bytes | None]) -> str:
    """Return values as Postgres reads an array: the driver's own way takes longer than the call."""
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: int | str | bytes | None) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes):
        return rf'"\\x{value.hex()}"'
    escaped = value.replace("\\", r"\\").replace('"', r"\"")
    return f'"{escaped}"'


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


def is_callable(connection: Connection) -> bool:
    """Tell whether the database takes a transaction as one call, and none has begun there."""
    if connection.dialect.name != "postgresql":
        return False
    driver = driver_connection(connection)
    if connection.dialect.driver == "psycopg":
        return bool(driver.info.transaction_status == driver.info.transaction_status.IDLE)
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
