"""Hot statements straight to the driver, with the errors that SQLAlchemy would make of its own."""

from __future__ import annotations

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ledger.store.profile import driver_connection


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
