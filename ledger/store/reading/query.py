"""Anyone's SQL, read-only: the views are the interface, this is the door."""

from __future__ import annotations

import sqlite3
import time
from decimal import Decimal
from typing import Any, Final

from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import InputError
from ledger.store.open import Ledger
from ledger.store.place import sqlite_path
from ledger.store.profile import driver_connection, sqlite_engine
from ledger.store.writing.statements import Row

_READING: Final = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE, sqlite3.SQLITE_FUNCTION}
)
_DESCRIBING: Final = frozenset(
    {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"}
)
_REACHING_OUT: Final = frozenset({"load_extension", "fts3_tokenizer", "edit", "readfile"})
VIEWS: Final = {
    "sqlite": "SELECT name, sql FROM sqlite_schema WHERE type = 'view'",
    "postgresql": (
        "SELECT viewname AS name, definition AS sql FROM pg_views WHERE schemaname = 'public'"
    ),
}
"""What names the views of a ledger, by dialect."""

SECONDS: Final = 60.0
"""How long a query may run."""
_STEPS: Final = 10_000
"""Instructions of SQLite's between two looks at the clock; a look costs little beside them."""


def run_sql(
    ledger: Ledger, text: str, *, seconds: float = SECONDS
) -> tuple[tuple[str, ...], list[Row]]:
    """
    Run one SELECT and return (column names, rows).

    It runs on a connection of its own that is opened read-only, refuses every statement that is
    not a query, and reaches no other file. It is stopped after `seconds`.

    Raises:
        InputError: not one query, the database can't make sense of it, or it runs too long.
    """
    if ledger.connection.dialect.name == "postgresql":
        from ledger.store.reading.query_postgres import run_sql_on_postgres  # noqa: PLC0415 - SQLite needs none of it

        columns, rows = run_sql_on_postgres(ledger.engine, text, seconds=seconds)
        return columns, [tuple(map(_plain, row)) for row in rows]
    engine = sqlite_engine(sqlite_path(ledger.url), write=False)
    try:
        with engine.connect() as connection, connection.begin():
            driver_connection(connection).set_authorizer(_authorize)
            end = time.monotonic() + seconds
            driver_connection(connection).set_progress_handler(
                lambda: time.monotonic() > end, _STEPS
            )
            try:
                result = connection.exec_driver_sql(text)
                if not result.returns_rows:
                    raise InputError("not a query: only SELECT is run")
                return tuple(result.keys()), [tuple(row) for row in result]
            finally:
                driver_connection(connection).set_progress_handler(None, 0)
                driver_connection(connection).set_authorizer(None)
    except DBAPIError as error:
        raise InputError(_explain(str(error.orig), seconds)) from error
    except sqlite3.Error as error:
        raise InputError(_explain(str(error), seconds)) from error
    finally:
        engine.dispose()


def _authorize(action: int, first: Any, second: Any, *_: Any) -> int:  # noqa: ANN401 - SQLite's
    if action == sqlite3.SQLITE_FUNCTION and second in _REACHING_OUT:
        return sqlite3.SQLITE_DENY
    if action in _READING or (action == sqlite3.SQLITE_PRAGMA and first in _DESCRIBING):
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _plain(value: object) -> object:
    """Return a number of Postgres's `numeric`, such as a sum, as SQLite would give it."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def _explain(fact: str, seconds: float) -> str:
    if fact == "interrupted":
        return f"the query ran too long and was stopped: limit={seconds:g} s"
    if "not authorized" in fact or "prohibited" in fact:
        return f"only one SELECT is run, the ledger is read-only here: {fact}"
    return f"the query failed: {fact}"
