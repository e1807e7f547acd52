"""The writer's statements as one call of Postgres: rows turned into columns in its own words."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import chain
from typing import Any, Final

from sqlalchemy import Connection

from ledger.store.ddl.postgres_append import STEPS, AppendStatement
from ledger.store.profile import driver_connection
from ledger.store.writing.direct import is_blocking, refused
from ledger.store.writing.statements import Row, Statement

TEXT: Final = "SELECT ledger_append($1, $2, $3, $4, $5, $6)"
TEXT_DOLLAR: Final = TEXT.encode()
OIDS: Final = (1007, 1007, 1016, 1016, 1009, 1001)
"""The types of the parameters: two integer[], two bigint[], a text[], a bytea[]."""
_INTEGER, _BIGINT, _TEXT, _BYTEA = 23, 20, 25, 17
_NULL: Final = struct.pack(">i", -1)
_SHORT: Final = 1_024
_LENGTHS: Final = [length.to_bytes(4) for length in range(_SHORT)]
_NUMBER: Final = struct.Struct(">iq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """
    What the function `ledger_append` is called with.

    Attributes:
        numbers: the columns of numbers of all steps; so maybes (numbers or None), texts and blobs.
        owners: for every step, which of the given statements it belongs to.
    """

    steps: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    numbers: list[Sequence[int]] = field(default_factory=list)
    maybes: list[Sequence[int | None]] = field(default_factory=list)
    texts: list[Sequence[str]] = field(default_factory=list)
    blobs: list[Sequence[bytes]] = field(default_factory=list)
    owners: list[int] = field(default_factory=list)


def call_of(waiting: Sequence[tuple[Statement, list[Row]]]) -> Call | None:
    """Return statements with their rows, in their order, as a call; None if one has no step."""
    call = Call()
    by_kind: dict[str, list[Any]] = {
        "bigint": call.numbers,
        "maybe": call.maybes,
        "text": call.texts,
        "bytea": call.blobs,
    }
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
                by_kind[kind].append(column)
    return call


def call(connection: Connection, given: Call) -> None:
    """
    Call `ledger_append` as a transaction of its own: one message there and its answer back.

    Raises:
        DBAPIError: as `Connection.exec_driver_sql`; nothing was recorded if the server says so.
    """
    driver = driver_connection(connection)
    try:
        if is_blocking(connection):
            _call_blocking(driver, given)
        else:
            _call_waiting(connection.connection.dbapi_connection, given)
    except connection.dialect.loaded_dbapi.Error as error:
        raise refused(connection, TEXT, error) from error


def _call_blocking(driver: Any, given: Call) -> None:  # noqa: ANN401 - the driver's own
    """
    Call with the bytes that go on the wire: the driver's own way takes longer than the call.

    Not prepared: the driver forgets all prepared statements with a ROLLBACK, and tells nobody.
    """
    from psycopg import errors  # noqa: PLC0415 - SQLite needs none of it
    from psycopg.pq import ExecStatus, Format  # noqa: PLC0415 - likewise

    words = (
        integers_sent(tuple(given.steps)),
        integers_sent(tuple(given.counts)),
        numbers_sent(given.numbers),
        maybes_sent(given.maybes),
        texts_sent(given.texts),
        blobs_sent(given.blobs),
    )
    result = driver.pgconn.exec_params(TEXT_DOLLAR, words, OIDS, (Format.BINARY,) * len(OIDS))
    if result.status != ExecStatus.TUPLES_OK:
        raise errors.error_from_result(result, encoding="utf-8")


def _call_waiting(adapted: Any, given: Call) -> None:  # noqa: ANN401 - SQLAlchemy's own
    """Call through what SQLAlchemy makes of a driver for asyncio, without its transaction."""
    adapted.autocommit = True
    cursor = adapted.cursor()
    try:
        columns = (given.numbers, given.maybes, given.texts, given.blobs)
        flat = [list(chain.from_iterable(some)) for some in columns]
        cursor.execute(TEXT, (given.steps, given.counts, *flat))
    finally:
        cursor.close()
        adapted.autocommit = False


@cache
def _number(statement: Statement) -> int | None:
    table, width = str(statement.construct.table), len(statement.parameters)
    found = [
        number
        for number, step in enumerate(STEPS, 1)
        if (step.table, len(step.columns)) == (table, width)
    ]
    assert len(found) <= 1, (table, width)
    return found[0] if found else None


def _apart(step: AppendStatement, rows: list[Row]) -> Sequence[list[Row]]:
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


@lru_cache(256)
def integers_sent(numbers: tuple[int, ...]) -> bytes:
    """Return an integer[] as Postgres reads it in binary; most appends have the same ones."""
    parts = [part for number in numbers for part in (4, number)]
    return _header(_INTEGER, len(numbers)) + struct.pack(f">{len(parts)}i", *parts)


def numbers_sent(columns: Sequence[Sequence[int]]) -> bytes:
    """
    Return the numbers of these columns as Postgres reads a bigint[] in binary.

    Raises:
        OverflowError: one is beyond 64 bits, as the driver of SQLite says it.
    """
    numbers = [*chain.from_iterable(columns)]
    pairs = [8] * (2 * len(numbers))
    pairs[1::2] = numbers
    try:
        packed = struct.pack(f">{'iq' * len(numbers)}", *pairs)
    except struct.error as error:
        raise OverflowError(f"a number is beyond 64 bits: {error}") from error
    return _header(_BIGINT, len(numbers)) + packed


def maybes_sent(columns: Sequence[Sequence[int | None]]) -> bytes:
    """Return numbers, some of which may be NULL, as Postgres reads a bigint[] in binary."""
    numbers = [*chain.from_iterable(columns)]
    parts = [_NULL if each is None else _NUMBER.pack(8, each) for each in numbers]
    return _header(_BIGINT, len(numbers), nulls=None in numbers) + b"".join(parts)


def texts_sent(columns: Sequence[Sequence[str]]) -> bytes:
    """Return the texts of these columns as Postgres reads a text[] in binary."""
    return _bytes_sent(_TEXT, [each.encode() for column in columns for each in column])


def blobs_sent(columns: Sequence[Sequence[bytes]]) -> bytes:
    """Return the bytes of these columns as Postgres reads a bytea[] in binary."""
    return _bytes_sent(_BYTEA, [each for column in columns for each in column])


def _bytes_sent(element: int, values: list[bytes]) -> bytes:
    parts = [b""] * (2 * len(values))
    parts[::2] = [_LENGTHS[n] if (n := len(each)) < _SHORT else n.to_bytes(4) for each in values]
    parts[1::2] = values
    return _header(element, len(values)) + b"".join(parts)


def _header(element: int, count: int, *, nulls: bool = False) -> bytes:
    dimensions, first = 1, 1
    return struct.pack(">5i", dimensions, nulls, element, count, first)
