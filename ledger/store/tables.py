"""Whole tables as plain tuples, straight from the driver: for those who read everything."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any

from sqlalchemy import Connection, Select, Table, select

from ledger.domain.errors import LedgerError
from ledger.store.statements import Row


class UnreadableError(LedgerError):
    """The database can't read its own pages. Stop reading this table; say how far it came."""


def rows_of(connection: Connection, query: Select[Any]) -> Generator[Row, None, None]:
    """
    Yield the rows of a query without literals, as the driver's tuples. Close what is not read up.

    Raises:
        UnreadableError: a page or a value is damaged; every row before it has been yielded.
    """
    text = str(query.compile(dialect=connection.dialect))
    failures: tuple[type[Exception], ...] = (connection.dialect.loaded_dbapi.Error,)
    cursor: Any = connection.connection.cursor()  # the protocol has fetchone, the driver iterates
    try:
        cursor.execute(text)
        for row in cursor:  # noqa: UP028 - it would close the cursor when the reader leaves
            yield row
    except failures as error:
        raise UnreadableError(str(error)) from error
    finally:
        with suppress(*failures):  # a reader that left early may outlive the connection
            cursor.close()


def in_key_order(table: Table) -> Select[Any]:
    """Return the query for all columns of a table, ordered by its key."""
    return select(*table.columns).order_by(*table.primary_key.columns)
