"""Anyone's SQL on Postgres: one query in a transaction of its own that can't write or act."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import InputError
from ledger.store.failures import fact_of, words_of
from ledger.store.profile import driver_connection
from ledger.store.writing.statements import Row

ROLE: Final = "ledger_auditor"
"""Who asks, where the role that connects may act for it."""

_ASKED: Final = "DECLARE tenure_asked NO SCROLL CURSOR FOR "
_ANSWERED: Final = "FETCH ALL FROM tenure_asked"
_LIMITS: Final = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
    "SET LOCAL statement_timeout = {milliseconds}",
    "SET LOCAL lock_timeout = {milliseconds}",
)
_NOT_A_QUERY: Final = ("25006", "42601", "0A000")
"""A read-only transaction, the wrong syntax, and what a cursor does not take."""
_TOO_LONG: Final = ("57014", "55P03")

_MAY_ASK_AS: Final = """
SELECT count(*) FROM pg_roles AS r WHERE r.rolname = %s AND r.rolname <> current_user
  AND pg_has_role(r.oid, 'MEMBER')
  AND has_table_privilege(r.oid, to_regclass('public.ledger_head'), 'SELECT')
"""
# A read-only transaction keeps tables as they are. What else a query could reach (files, other
# sessions, locks, its own limits, the role) it reaches by calling a function, and none of those is
# promised to have no effect. `xml` ones run the text that they are given as a query of its own.
_ACTING: Final = """
SELECT DISTINCT proname FROM pg_proc
WHERE (provolatile = 'v' OR proname LIKE '%%\\_to\\_xml%%') AND proname = ANY (%s)
"""
HARMLESS: Final = frozenset(
    {
        *("bernoulli", "system"),  # of TABLESAMPLE; the latter is also the end of `kube-system`
        *("clock_timestamp", "gen_random_uuid", "pg_sleep", "random", "timeofday"),
        *("pg_database_size", "pg_indexes_size", "pg_relation_size", "pg_table_size"),
        *("pg_partition_tree", "pg_total_relation_size"),
    }
)
"""What a query may call though the answer is another one each time: it only looks, or waits."""
_WORD: Final = re.compile(r"[A-Za-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*")
_HIDDEN: Final = re.compile(r'(?<![\w$])u&"', re.IGNORECASE)


def run_sql_on_postgres(
    engine: Engine, text: str, *, seconds: float
) -> tuple[tuple[str, ...], list[Row]]:
    """
    Run one SELECT on a connection of its own and return (column names, rows).

    Only a query can be the text of a cursor; a prepared statement is one statement. It runs as
    `ledger_auditor` where the role that connects may, in a transaction that is read-only and is
    stopped after `seconds`, and calls no function that acts.

    Raises:
        InputError: not one query, it names a function that acts, the database can't make sense of
            it, or it runs too long.
    """
    try:
        with engine.connect() as connection, connection.begin():
            driver: Any = driver_connection(connection)
            with driver.cursor() as cursor, _explained(seconds):
                _confine(cursor, seconds)
                _expect_no_action(cursor, text)
                cursor.execute(_ASKED + text, prepare=True)
                cursor.execute(_ANSWERED)
                columns = tuple(column.name for column in cursor.description or ())
                return columns, cursor.fetchall()
    except DBAPIError as error:
        raise InputError(f"the query failed: {fact_of(error)}") from error


def _confine(cursor: psycopg.Cursor[Any], seconds: float) -> None:
    """Set the limits of the transaction, and give away what rights it does not need."""
    for limit in _LIMITS:
        cursor.execute(limit.format(milliseconds=max(1, round(seconds * 1000))).encode())
    (may,) = cursor.execute(_MAY_ASK_AS, (ROLE,)).fetchone() or (0,)
    if may:
        cursor.execute(f"SET LOCAL ROLE {ROLE}".encode())


def _expect_no_action(cursor: psycopg.Cursor[Any], text: str) -> None:
    """
    Refuse a text that has the name of a function that acts, wherever in it: even as a mere word.

    The words of the server's own catalog are asked for, so that an extension's functions count too.
    """
    if _HIDDEN.search(text):
        raise InputError("the query is not run: it hides names behind Unicode escapes")
    words = {word.lower() for word in _WORD.findall(text)} - HARMLESS
    found = cursor.execute(_ACTING, (sorted(words),)).fetchall()
    if found:
        names = ", ".join(sorted(name for (name,) in found))
        raise InputError(
            "only one SELECT is run, the ledger is read-only here:"
            f" it names functions that act: functions={names}"
        )


@contextmanager
def _explained(seconds: float) -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        fact = words_of(error)
        if error.sqlstate in _TOO_LONG:
            raise InputError(
                f"the query ran too long and was stopped: limit={seconds:g} s"
            ) from error
        if error.sqlstate in _NOT_A_QUERY:
            raise InputError(
                f"only one SELECT is run, the ledger is read-only here: {fact}"
            ) from error
        raise InputError(f"the query failed: {fact}") from error
