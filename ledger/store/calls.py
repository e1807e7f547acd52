"""The writer's statements as one call of Postgres: rows turned into columns in its own words."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from psycopg import errors
from psycopg.pq import ExecStatus, Format
from sqlalchemy import Connection

from ledger.store.ddl.postgres_append import STEPS, Step
from ledger.store.direct import is_pipelined, refused
from ledger.store.profile import driver_connection
from ledger.store.statements import Row, Statement

TEXT: Final = "SELECT ledger_append($1, $2, $3)"
TEXT_DOLLAR: Final = TEXT.encode()
OIDS: Final = (1007, 1007, 1009)
"""The types of the three parameters: two integer[], one text[]."""
_INTEGER_ARRAY: Final = 23
_TEXT_ARRAY: Final = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """
    What the function `ledger_append` is called with.

    Attributes:
        owners: for every step, which of the given statements it belongs to.
    """

    steps: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)


def call_of(waiting: Sequence[tuple[Statement, list[Row]]]) -> Call | None:
    """Return statements with their rows, in their order, as a call; None if one has no step."""
    call = Call()
    for owner, (statement, rows) in enumerate(waiting):
        number = _number(statement)
        if number is None:
            return None
        step = STEPS[number - 1]
        for some in _apart(step, rows):
            call.steps.append(number)
            call.counts.append(len(some))
            call.owners.append(owner)
            columns = zip(*some, strict=True)
            for (_, kind), column in zip(step.columns, columns, strict=True):
                call.words.append(_ARRAYS[kind](column))
    return call


def call(connection: Connection, given: Call) -> None:
    """
    Call `ledger_append` as a transaction of its own: one message there and its answer back.

    Raises:
        DBAPIError: as `Connection.exec_driver_sql`; nothing was recorded if the server says so.
    """
    driver = driver_connection(connection)
    try:
        if is_pipelined(connection):
            _call_blocking(driver, given)
        else:
            _call_waiting(connection.connection.dbapi_connection, given)
    except connection.dialect.loaded_dbapi.Error as error:
        raise refused(connection, TEXT, error) from error


def _call_blocking(driver: Any, given: Call) -> None:  # noqa: ANN401 - the driver's own
    """Call with the bytes that go on the wire: the driver's own way takes longer than the call."""
    words = [
        integers_sent(given.steps),
        integers_sent(given.counts),
        texts_sent(given.words),
    ]
    result = driver.pgconn.exec_params(TEXT_DOLLAR, words, OIDS, [Format.BINARY] * 3)
    if result.status != ExecStatus.TUPLES_OK:
        raise errors.error_from_result(result, encoding="utf-8")


def _call_waiting(adapted: Any, given: Call) -> None:  # noqa: ANN401 - SQLAlchemy's own
    """Call through what SQLAlchemy makes of a driver for asyncio, without its transaction."""
    adapted.autocommit = True
    cursor = adapted.cursor()
    try:
        cursor.execute(TEXT_DOLLAR.decode(), (given.steps, given.counts, given.words))
    finally:
        cursor.close()
        adapted.autocommit = False


_numbers: dict[Statement, int | None] = {}


def _number(statement: Statement) -> int | None:
    if statement not in _numbers:
        table, width = str(statement.construct.table), len(statement.parameters)
        found = [
            number
            for number, step in enumerate(STEPS, 1)
            if (step.table, len(step.columns)) == (table, width)
        ]
        assert len(found) <= 1, (table, width)
        _numbers[statement] = found[0] if found else None
    return _numbers[statement]


def _apart(step: Step, rows: list[Row]) -> Sequence[list[Row]]:
    """Return the rows such that none of a list touches what another one of it touches."""
    if not step.alone or len(rows) == 1:
        return (rows,)
    names = [name for name, _ in step.columns]
    places = [names.index(name) for name in step.alone]
    seen: dict[tuple[Any, ...], int] = {}
    lists: list[list[Row]] = []
    for row in rows:
        key = tuple([row[place] for place in places])
        turn = seen.get(key, 0)
        seen[key] = turn + 1
        if turn == len(lists):
            lists.append([])
        lists[turn].append(row)
    return lists


def _integers(column: Sequence[int | None]) -> str:
    return f"{{{','.join(['NULL' if each is None else str(each) for each in column])}}}"


def _texts(column: Sequence[str]) -> str:
    quoted = [each.replace("\\", "\\\\").replace('"', '\\"') for each in column]
    return '{"' + '","'.join(quoted) + '"}'


def _bytes(column: Sequence[bytes]) -> str:
    return '{"\\\\x' + '","\\\\x'.join([each.hex() for each in column]) + '"}'


_ARRAYS: Final[Mapping[str, Callable[[Any], str]]] = {
    "bigint": _integers,
    "text": _texts,
    "bytea": _bytes,
}


def integers_sent(numbers: Sequence[int]) -> bytes:
    """Return an integer[] as Postgres reads it in binary."""
    parts = [part for number in numbers for part in (4, number)]
    return _header(_INTEGER_ARRAY, len(numbers)) + struct.pack(f">{len(parts)}i", *parts)


def texts_sent(texts: Sequence[str]) -> bytes:
    """Return a text[] as Postgres reads it in binary."""
    parts = [_header(_TEXT_ARRAY, len(texts))]
    for each in texts:
        encoded = each.encode()
        parts += (len(encoded).to_bytes(4), encoded)
    return b"".join(parts)


def _header(element: int, count: int) -> bytes:
    dimensions, no_nulls, first = 1, 0, 1
    return struct.pack(">5i", dimensions, no_nulls, element, count, first)
