"""Whole tables as plain tuples, straight from the driver: for those who read everything."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from itertools import count, islice, product
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Dialect, Select, Table, select
from sqlalchemy.sql.compiler import SQLCompiler

from ledger.domain.errors import LedgerError
from ledger.store.profile import driver_connection
from ledger.store.writing.statements import Row

_Value = TypeVar("_Value", int, str, tuple[str, str])
PAGE_ROWS: Final = 2_048
_PART_VALUES: Final = 500
_TEXTS_MAX: Final = 128
_COLLECT_EVERY: Final = 500_000
"""So many objects that may refer to others are made between two looks for cycles among them."""
_numbers: Final = count(1)
CONTRADICTION: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a replay may raise over words that no writer of ours recorded: they are the finding."""


Report = Callable[[int | None, str], None]
"""Takes a finding: the first position that it concerns, if any, and its words."""


class UnreadableError(LedgerError):
    """The database can't read its own pages. Stop reading this table; say how far it came."""


def rows_of(connection: Connection, query: Select[Any]) -> Generator[Row, None, None]:
    """
    Yield the rows of a query without literals, as the driver's tuples. Close what is not read up.

    Raises:
        UnreadableError: a page or a value is damaged; every row before it has been yielded.
    """
    with _answering(connection, query) as cursor:
        for row in cursor:  # noqa: UP028 - it would close the cursor when the reader leaves
            yield row


def row_pages(connection: Connection, query: Select[Any]) -> Generator[list[Row], None, None]:
    """
    Yield the same rows in pages, as fast as the driver gives them. Close what is not read up.

    Raises:
        UnreadableError: as `rows_of`.
    """
    page: list[Row] = []
    with _answering(connection, query) as cursor:
        source = iter(cursor)
        try:
            while True:
                page.extend(islice(source, PAGE_ROWS))  # one that fails keeps what came before
                if not page:
                    return
                yield page
                page = []
        except _failures(connection):
            yield page
            raise


def typed_pages(table: Table, pages: Iterable[list[Row]], report: Report) -> Iterator[list[Row]]:
    """
    Yield the rows whose values are of their columns; report the others.

    Raises:
        UnreadableError: as `row_pages`.
    """
    for page in pages:
        sound = are_typed(table, list(zip(*page, strict=True)))
        for row in () if sound else page:
            if not is_typed(table, row):
                report(row[0] if type(row[0]) is int else None, other_types(table, row))
        yield page if sound else [row for row in page if is_typed(table, row)]


def pages_of(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield rows in pages; those read before a damaged one come before its UnreadableError."""
    source, page = iter(rows), list[Row]()
    try:
        while True:
            page.extend(islice(source, PAGE_ROWS))  # one that fails keeps what came before
            yield page
            if len(page) < PAGE_ROWS:
                return
            page = []
    except UnreadableError:
        yield page
        raise


def in_parts(values: Iterable[_Value]) -> Iterator[list[_Value]]:
    """Yield the values in order, as many at a time as one query asks for."""
    ordered = sorted(values)
    for start in range(0, len(ordered), _PART_VALUES):
        yield ordered[start : start + _PART_VALUES]


@contextmanager
def few_collections() -> Iterator[None]:
    """
    Let the collector of garbage look for cycles once in many pages of rows, not some times in each.

    What is read, decoded and folded has no cycles; looking for them is a tenth of what `verify`
    takes.
    """
    usual = gc.get_threshold()
    if usual[0]:  # at 0 somebody has turned it off
        gc.set_threshold(max(usual[0], _COLLECT_EVERY), *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def fetched(connection: Connection, query: Select[Any], values: Mapping[str, object]) -> list[Row]:
    """
    Return the rows of a query with named parameters, as the driver's tuples.

    Raises:
        UnreadableError: a page or a value is damaged.
    """
    compiled = _compiled(query, _Writing(connection.dialect))
    order = compiled.positiontup
    every = {**compiled.params, **values}
    given = every if order is None else [every[name] for name in order]
    cursor = connection.connection.cursor()
    try:
        cursor.execute(str(compiled), given)
        return list(cursor.fetchall())
    except _failures(connection) as error:
        raise UnreadableError(str(error)) from error
    finally:
        cursor.close()


class _Writing:
    """How a dialect writes queries; that of another engine of its kind is equal."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._kind = (type(dialect), dialect.paramstyle, dialect.server_version_info)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Writing) and self._kind == other._kind

    def __hash__(self) -> int:
        return hash(self._kind)


@lru_cache(_TEXTS_MAX)
def _compiled(query: Select[Any], writing: _Writing) -> SQLCompiler:
    """Compile once what is asked again and again, of any ledger: a query is told as itself."""
    compiled = query.compile(dialect=writing.dialect)
    assert isinstance(compiled, SQLCompiler), query
    return compiled


def _failures(connection: Connection) -> tuple[type[Exception], ...]:
    return (
        connection.dialect.loaded_dbapi.Error,
        UnicodeDecodeError,  # a broken text in the database's own words
        MemoryError,  # a length that no value has
        OverflowError,
    )


@contextmanager
def _answering(connection: Connection, query: Select[Any]) -> Iterator[Any]:
    text = str(_compiled(query, _Writing(connection.dialect)))
    failures = _failures(connection)
    cursor = _cursor(connection)
    try:
        cursor.execute(text)
        yield cursor
    except failures as error:
        raise UnreadableError(str(error)) from error
    finally:
        with suppress(*failures):  # a reader that left early may outlive the connection
            cursor.close()


def _cursor(connection: Connection) -> Any:  # noqa: ANN401 - the protocol has no iteration
    """Return a cursor of the driver that holds a page of rows at a time, not all of them."""
    if connection.dialect.driver != "psycopg":
        return connection.connection.cursor()
    cursor: Any = driver_connection(connection).cursor(name=f"tenure_{next(_numbers)}")
    cursor.itersize = PAGE_ROWS
    return cursor


@cache
def in_key_order(table: Table) -> Select[Any]:
    """Return the query for all columns of a table, ordered by its key."""
    return select(*table.columns).order_by(*table.primary_key.columns)


@cache
def kinds_of(table: Table) -> frozenset[tuple[type, ...]]:
    """Return which types the driver may give for the columns of a whole row of `table`."""
    return frozenset(product(*kinds_by_column(table)))


@cache
def kinds_by_column(table: Table) -> tuple[frozenset[type], ...]:
    """Return which types the driver may give for each column of `table`."""
    return tuple(
        frozenset({column.type.python_type, *([type(None)] if column.nullable else [])})
        for column in table.columns
    )


def is_typed(table: Table, row: Iterable[object]) -> bool:
    """Tell whether every value has its column's type; in a damaged file it may not."""
    return tuple(map(type, row)) in kinds_of(table)


def are_typed(table: Table, columns: Sequence[Sequence[object]]) -> bool:
    """Tell the same of many rows at once, given the columns of `table`; none for no rows."""
    pairs = zip(columns, kinds_by_column(table), strict=False)
    return all(kinds.issuperset(map(type, column)) for column, kinds in pairs)


def other_types(table: Table, row: Iterable[object]) -> str:
    """Return the finding about a row that is not typed, with the columns that it is about."""
    wrong = [
        f"{column.name} is {type(value).__name__}"
        for column, value in zip(table.columns, row, strict=False)
        if type(value) is not column.type.python_type and not (value is None and column.nullable)
    ]
    return f"{table.name}: a column has another type: {', '.join(wrong)}"
