"""Statements of one transaction on their way to the database: as many together as it takes."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from ledger.domain.errors import LedgerError
from ledger.store.direct import is_pipelined, refused, touched
from ledger.store.profile import driver_connection
from ledger.store.statements import Row, Statement


class Outbox:
    """
    Collects statements and sends them in the order in which they came, once it is told to.

    A driver with a pipeline gets all of them in one round trip, so a row that is not touched is
    noticed only after the statements behind it have run. The transaction is rolled back then.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: list[tuple[Statement, list[Row], LedgerError]] = []

    def add(self, statement: Statement, rows: list[Row], otherwise: LedgerError) -> None:
        """Let rows wait; `otherwise` is raised if one of them does not touch its one row."""
        self._waiting.append((statement, rows, otherwise))

    def send(self) -> None:
        """
        Execute what waits, then hold nothing.

        Raises:
            LedgerError: the first one whose rows were not all touched.
            DBAPIError: the database refused; no statement before that one went unnoticed.
        """
        waiting, self._waiting = self._waiting, []
        if len(waiting) > 1 and is_pipelined(self._connection):
            self._send_together(waiting)
            return
        for statement, rows, otherwise in waiting:
            if statement.run(self._connection, rows) != len(rows):
                raise otherwise

    def _send_together(self, waiting: list[tuple[Statement, list[Row], LedgerError]]) -> None:
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
            raise otherwise
        if failed is not None:
            raise refused(connection, None, failed) from failed
