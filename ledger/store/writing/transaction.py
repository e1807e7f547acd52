"""A writer's transaction on SQLite past SQLAlchemy, which takes longer over it than SQLite."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, RootTransaction

from ledger.store.profile import BEGIN_WRITING, driver_connection
from ledger.store.writing.direct import refused

_DRIVER: Final = "pysqlite"
_COMMIT: Final = "COMMIT"
_ROLLBACK: Final = "ROLLBACK"


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
