"""Anyone's SQL on Postgres: one query in a transaction of its own that can't write."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import InputError
from ledger.store.failures import fact_of, words_of
from ledger.store.profile import driver_connection
from ledger.store.profile_postgres import postgres_engine
from ledger.store.statements import Row

_ASKED: Final = "DECLARE tenure_asked NO SCROLL CURSOR FOR "
_ANSWERED: Final = "FETCH ALL FROM tenure_asked"
_NOT_A_QUERY: Final = ("25006", "42601", "0A000")
"""A read-only transaction, the wrong syntax, and what a cursor does not take."""


def run_sql_on_postgres(url: URL, text: str) -> tuple[tuple[str, ...], list[Row]]:
    """
    Run one SELECT and return (column names, rows).

    Only a query can be the text of a cursor; a prepared statement is one statement. What its
    functions may reach is the role's affair.

    Raises:
        InputError: not one query, or the database can't make sense of it.
    """
    engine = postgres_engine(url, write=False)
    try:
        with engine.connect() as connection, connection.begin():
            driver: Any = driver_connection(connection)
            with driver.cursor() as cursor:
                cursor.execute(_ASKED + text, prepare=True)
                cursor.execute(_ANSWERED)
                columns = tuple(column.name for column in cursor.description or ())
                return columns, cursor.fetchall()
    except DBAPIError as error:
        raise InputError(f"the query failed: {fact_of(error)}") from error
    except psycopg.Error as error:
        fact = words_of(error)
        if error.sqlstate in _NOT_A_QUERY:
            raise InputError(
                f"only one SELECT is run, the ledger is read-only here: {fact}"
            ) from error
        raise InputError(f"the query failed: {fact}") from error
    finally:
        engine.dispose()
