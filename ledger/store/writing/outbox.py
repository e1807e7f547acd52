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
from ledger.store.writing.direct import is_callable, refused
from ledger.store.writing.statements import EVENT, Row, Statement

Otherwise = Callable[[], LedgerError]
"""Makes the error for a row that touched nothing: an append that succeeds makes none."""
_Waiting = tuple[Statement, list[Row], Otherwise]
_STEP: Final = re.compile(r"step=(\d+)")
_OF_EVENTS: Final = "INSERT INTO public.ledger_events "


class Outbox:
    """
    Collects statements and sends them in the order in which they came, once it is told to.

    SQLite's driver gets them all at once. Postgres gets a transaction that is whole in one call
    (docs/adr/0007), and one that is read in between statement by statement.
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
    """Return where in its functions Postgres was when it refused."""
    diagnosis = getattr(error.orig, "diag", None)  # psycopg's; asyncpg's own error is the cause
    cause = error.orig.__cause__ if error.orig else None
    words = getattr(diagnosis or cause, "context", None)
    return str(words or "")
