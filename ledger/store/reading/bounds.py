"""How many rows a question may have, for whoever answers strangers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection, Executable, Row, Select

from ledger.domain.errors import InputError

ROWS_MAX: Final = "tenure_rows_max"
"""The option of a connection that says how many; without it there is no bound."""


def rows_of(connection: Connection, query: Executable) -> Iterator[Row[Any]]:
    """
    Yield the rows of a query.

    Raises:
        InputError: there are more than the connection allows.
    """
    assert isinstance(query, Select), query
    most = connection.get_execution_options().get(ROWS_MAX)
    found = connection.execute(query if most is None else query.limit(most + 1))
    for number, row in enumerate(found, start=1):
        if most is not None and number > most:
            error = InputError(f"the answer takes too many rows: most={most}")
            error.add_note("ask for less, such as a shorter window, or a copy of the ledger")
            raise error
        yield row
