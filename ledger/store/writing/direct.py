"""Hot statements straight to the driver, with the errors that SQLAlchemy would make of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from psycopg.pq import TransactionStatus
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.util import await_only

from ledger.store.profile import driver_connection

_DIRECT: Final = frozenset({"pysqlite", "psycopg"})
"""Drivers that are called as they are; what SQLAlchemy adapts for asyncio goes through it."""


def is_direct(connection: Connection) -> bool:
    """Tell whether the driver below is synchronous, one that we can call ourselves."""
    return connection.dialect.driver in _DIRECT


def is_pipelined(connection: Connection) -> bool:
    """Tell whether the driver can send many statements before it reads an answer."""
    return connection.dialect.driver == "psycopg"


THREADED: Final = ("_execute", "_conn")
"""How aiosqlite does something in its thread, and what with: it has no public word for either."""


def is_threaded(connection: Connection) -> bool:
    """
    Tell whether the driver below is a synchronous one in a thread of its own, where we can act.

    Where we can't, each statement goes through the driver's public way, which takes longer.
    """
    if connection.dialect.driver != "aiosqlite":
        return False
    return all(hasattr(type(driver_connection(connection)), name) for name in THREADED)


def in_thread(connection: Connection, act: Callable[[Any], None]) -> None:
    """
    Do something with the synchronous connection in its own thread: one hop there and back.

    Statement by statement each would be two hops, which cost more than what they carry.
    """
    driver = driver_connection(connection)
    await_only(driver._execute(act, driver._conn))  # noqa: SLF001 - asked for in `is_threaded`


def is_callable(connection: Connection) -> bool:
    """Tell whether the database takes a transaction as one call, and none has begun there."""
    if connection.dialect.name != "postgresql":
        return False
    driver = driver_connection(connection)
    if is_pipelined(connection):
        return bool(driver.pgconn.transaction_status == TransactionStatus.IDLE)
    return not driver.is_in_transaction()


def execute(connection: Connection, text: str, rows: Sequence[tuple[Any, ...]]) -> int:
    """
    Execute a statement for every row in order; return how many rows of the table were touched.

    Raises:
        DBAPIError: as `Connection.exec_driver_sql`, without the rows.
    """
    cursor = driver_connection(connection).cursor()
    try:
        if len(rows) == 1:
            cursor.execute(text, rows[0])
        else:
            cursor.executemany(text, rows)
        return int(cursor.rowcount)
    except connection.dialect.loaded_dbapi.Error as error:
        raise refused(connection, text, error) from error
    finally:
        cursor.close()


def touched(cursor: Any) -> int | None:  # noqa: ANN401 - the driver's own
    """Return how many rows a cursor's statement touched; None if it was not carried out."""
    return None if cursor.statusmessage is None else int(cursor.rowcount)


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
