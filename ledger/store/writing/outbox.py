"""Statements of one transaction on their way to the database: as many together as it takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import LedgerError
from ledger.store.ddl.postgres_append import NOT_TOUCHED
from ledger.store.failures import sqlstate_of
from ledger.store.profile import driver_connection
from ledger.store.writing.calls import Call, call, call_of
from ledger.store.writing.direct import (
    in_thread,
    is_callable,
    is_direct,
    is_pipelined,
    is_threaded,
    refused,
    touched,
)
from ledger.store.writing.statements import EVENT, Row, Statement

Otherwise = Callable[[], LedgerError]
"""Makes the error for a row that touched nothing: an append that succeeds makes none."""
_Waiting = tuple[Statement, list[Row], Otherwise]
_STEP: Final = re.compile(r"step=(\d+)")
_OF_EVENTS: Final = "INSERT INTO public.ledger_events "


class Outbox:
    """
    Collects statements and sends them in the order in which they came, once it is told to.

    A driver with a pipeline gets all of them in one round trip, so a row that is not touched is
    noticed only after the statements behind it have run. The transaction is rolled back then.
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
        if len(waiting) > 1 and is_pipelined(self._connection):
            self._send_together(waiting)
            return
        if is_direct(self._connection):
            self._send_directly(driver_connection(self._connection), waiting)
            return
        if is_threaded(self._connection):
            in_thread(self._connection, lambda driver: self._send_directly(driver, waiting))
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

    def _send_together(self, waiting: list[_Waiting]) -> None:
        connection = self._connection
        driver: Any = driver_connection(connection)
        cursors = [driver.cursor() for _ in waiting]
        errors = connection.dialect.loaded_dbapi.Error
        failed: Exception | None = None
        try:
            with driver.pipeline():
                try:
                    for cursor, (statement, rows, _) in zip(cursors, waiting, strict=True):
                        text = statement.text(connection)
                        if len(rows) == 1:
                            cursor.execute(text, rows[0])
                        else:
                            cursor.executemany(text, rows)
                except errors as error:  # not let through the pipeline's end, which would log it
                    failed = error
        except errors as error:
            failed = failed or error
        for cursor, (statement, rows, otherwise) in zip(cursors, waiting, strict=True):
            count = touched(cursor)
            if count == len(rows):
                continue
            if failed is not None and (count is None or len(rows) > 1):
                raise refused(connection, statement.text(connection), failed) from failed
            raise otherwise()
        if failed is not None:
            raise refused(connection, None, failed) from failed


def _context(error: DBAPIError) -> str:
    """Return where in its functions Postgres was when it refused."""
    diagnosis = getattr(error.orig, "diag", None)  # psycopg's; asyncpg's own error is the cause
    cause = error.orig.__cause__ if error.orig else None
    words = getattr(diagnosis or cause, "context", None)
    return str(words or "")
