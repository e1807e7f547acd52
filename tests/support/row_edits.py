"""
Single edits of a ledger's rows, made past every rule of the database, which stand again afterwards.

They follow from the rows and the schema alone, so that a new table or column has edits by itself.
"""

from __future__ import annotations

import random
import re
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import psycopg
from sqlalchemy import Index, UniqueConstraint

from ledger.store import schema
from tests.support.stores import PostgresStore, SqliteStore

Row = tuple[Any, ...]
Kind = Literal["value", "row deleted", "row doubled", "row invented"]
_LARGEST: Final = (1 << 63) - 1
_ROWS_BETWEEN: Final = 4
"""So many rows of a table are edited beside the first one and the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A table as it stands, and which of its columns are the key."""

    table: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    types: tuple[type, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns by which a row is named."""
        known = schema.METADATA.tables.get(self.table)
        return tuple(each.name for each in known.primary_key) if known is not None else self.columns

    @property
    def unique(self) -> frozenset[str]:
        """The columns that a unique index or constraint is over."""
        known = schema.METADATA.tables.get(self.table)
        if known is None:
            return frozenset()
        parts: list[Index | UniqueConstraint] = [each for each in known.indexes if each.unique]
        parts += [each for each in known.constraints if isinstance(each, UniqueConstraint)]
        return frozenset(column.name for part in parts for column in part.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """
    One change of one row.

    Attributes:
        old: the row that is changed or deleted, None for one that is added.
        new: what stands there then, None for nothing.
        column: whose value is another; empty where the row comes or goes.
    """

    table: str
    kind: Kind
    old: Row | None
    new: Row | None
    column: str = ""

    def __str__(self) -> str:
        if self.old is not None and self.new is not None:
            pairs = zip(self.old, self.new, strict=True)
            before, after = next(pair for pair in pairs if _differ(*pair))
            what = f"{self.column} from {before!r:.60} to {after!r:.60}"
            return f"{self.table} {self.old[:2]}: {what}"
        return f"{self.table}, {self.kind}: {(self.old or self.new or ())[:4]}"


def _differ(one: object, other: object) -> bool:
    return type(one) is not type(other) or one != other


def edits_of(
    tables: Sequence[Rows], rng: random.Random, *, every_row: bool = False
) -> dict[tuple[str, str], list[Edit]]:
    """
    Return edits of every table, by table and kind or column, in any order.

    Those of some rows are all there are. Those of every row are one per value, and one of each
    other kind.
    """
    found: dict[tuple[str, str], list[Edit]] = {}
    for rows in tables:
        made = _edits_of_every_row(rows, rng) if every_row else _edits_of_some_rows(rows, rng)
        for edit in made:
            found.setdefault((rows.table, edit.column or edit.kind), []).append(edit)
    for edits in found.values():
        rng.shuffle(edits)
    return found


def _edits_of_some_rows(rows: Rows, rng: random.Random) -> Iterator[Edit]:
    between = rng.sample(rows.rows, min(_ROWS_BETWEEN, len(rows.rows)))
    for row in dict.fromkeys((rows.rows[0], rows.rows[-1], *between)):
        yield from _edits(rows, row, rng)


def _edits_of_every_row(rows: Rows, rng: random.Random) -> Iterator[Edit]:
    for row in rows.rows:
        alike: dict[str, list[Edit]] = {}
        for edit in _edits(rows, row, rng):
            alike.setdefault(edit.column or edit.kind, []).append(edit)
        yield from map(rng.choice, alike.values())


def _edits(rows: Rows, row: Row, rng: random.Random) -> Iterator[Edit]:
    table = rows.table
    yield Edit(table=table, kind="row deleted", old=row, new=None)
    for new in _doubles(rows, row):
        yield Edit(table=table, kind="row doubled", old=None, new=new)
    yield Edit(table=table, kind="row invented", old=None, new=_invented(rows, row, rng))
    for at, column in enumerate(rows.columns):
        others = [each[at] for each in rng.sample(rows.rows, min(3, len(rows.rows)))]
        values = [*_values(row[at], rows.types[at]), *others]
        for value in _distinct(values, row[at]):
            new = (*row[:at], value, *row[at + 1 :])
            yield Edit(table=table, kind="value", old=row, new=new, column=column)


def _distinct(values: Sequence[Any], old: object) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if _differ(value, old) and all(_differ(value, each) for each in found):
            found.append(value)
    return found


def _values(old: Any, kind: type) -> Sequence[Any]:  # noqa: ANN401 - of any column
    """Return other values for a column; bounds, NULL and another type among them."""
    near: tuple[Any, ...] = ()
    if kind is int:
        near = (old + 1, old - 1) if old is not None and abs(old) < _LARGEST else ()
        return *near, 0, 1, -1, _LARGEST, None, "x"
    if kind is str:
        near = (f"{old}x", f" {old}", old.swapcase(), old[:-1]) if old else ()
        return *near, "", "x", None
    near = (bytes([old[0] ^ 1]) + old[1:], old[:-1] + bytes([old[-1] ^ 128])) if old else ()
    return *near, b"", (old or b"")[:-1], (old or b"") + b"\0", bytes(32), None


def _doubles(rows: Rows, row: Row) -> Iterator[Row]:
    """Yield the row again, under keys that no other has."""
    for key in rows.keys:
        at = rows.columns.index(key)
        for value in _free(rows, at):
            yield _apart(rows, (*row[:at], value, *row[at + 1 :]))


def _free(rows: Rows, at: int) -> list[Any]:
    """Return values that the column at this place has in no row."""
    there = {row[at] for row in rows.rows}
    if rows.types[at] is int:
        gap = next(each for each in range(1, len(there) + 2) if each not in there)
        return [gap, max(there) + 1, min(there) - 1]
    return [f"{max(there)}z"] if rows.types[at] is str else [max(there) + b"z"]


def _apart(rows: Rows, row: Row) -> Row:
    """Return the row with other texts where the database lets none come twice."""
    return tuple(
        f"{value}-2" if name in rows.unique and name not in rows.keys and value and kind is str
        else value
        for name, value, kind in zip(rows.columns, row, rows.types, strict=True)
    )  # fmt: skip


def _invented(rows: Rows, row: Row, rng: random.Random) -> Row:
    """Return a row that never was, its values taken from here and there."""
    mixed = [rng.choice(rows.rows)[at] for at in range(len(rows.columns))]
    for key in rows.keys:
        at = rows.columns.index(key)
        mixed[at] = rng.choice(_free(rows, at))
    return _apart(rows, tuple(mixed)) if len(rows.rows) > 1 else next(_doubles(rows, row))


def _typed(columns: Sequence[str], table: str) -> tuple[type, ...]:
    known = schema.METADATA.tables.get(table)
    if known is None:
        return tuple(str for _ in columns)
    return tuple(known.columns[name].type.python_type for name in columns)


def _read(cursor: Any, table: str) -> Rows:  # noqa: ANN401 - of either driver
    cursor.execute(f"SELECT * FROM {table}")
    columns = tuple(each[0] for each in cursor.description)
    found = Rows(
        table=table,
        columns=columns,
        rows=tuple(map(tuple, cursor.fetchall())),
        types=_typed(columns, table),
    )
    order = [columns.index(key) for key in found.keys]
    rows = tuple(sorted(found.rows, key=lambda row: tuple(row[at] for at in order)))
    return Rows(table=table, columns=columns, rows=rows, types=found.types)


def _where(rows: Rows, sign: str) -> str:
    return " AND ".join(f"{key} = {sign}" for key in rows.keys)


def _statement(edit: Edit, rows: Rows, sign: str) -> tuple[str, Row]:
    """Return the SQL of an edit, with its parameters."""
    if edit.old is None:
        assert edit.new is not None, edit
        return f"INSERT INTO {edit.table} VALUES ({', '.join(sign for _ in edit.new)})", edit.new
    key = tuple(edit.old[rows.columns.index(each)] for each in rows.keys)
    if edit.new is None:
        return f"DELETE FROM {edit.table} WHERE {_where(rows, sign)}", key
    text = f"UPDATE {edit.table} SET {edit.column} = {sign} WHERE {_where(rows, sign)}"
    return text, (edit.new[rows.columns.index(edit.column)], *key)


@dataclass(slots=True)
class SqliteEdits:
    """A file whose copies are edited: without triggers, types and NOT NULL until that is done."""

    store: SqliteStore
    folder: Path
    tables: dict[str, Rows] = field(default_factory=dict)
    _made: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._bare.parent.mkdir(parents=True, exist_ok=True)
        self.store.copy(self._bare)
        with closing(sqlite3.connect(self._bare, isolation_level=None)) as raw:
            cursor = raw.cursor()
            cursor.execute("SELECT rowid, * FROM sqlite_master")
            self._made = list(map(tuple, cursor.fetchall()))
            names = [row[2] for row in self._made if row[1] == "table"]
            self.tables = {
                name: _read(cursor, name) for name in names if not name.startswith("sqlite_")
            }
            raw.execute("PRAGMA writable_schema = ON")
            raw.execute("DELETE FROM sqlite_master WHERE type = 'trigger'")
            for row in self._made:
                if row[1] == "table":
                    text = re.sub(r"(?<!IS) NOT NULL|,?\s*STRICT\s*$", "", row[5])
                    raw.execute("UPDATE sqlite_master SET sql = ? WHERE rowid = ?", (text, row[0]))

    @property
    def _bare(self) -> Path:
        return self.folder / "bare" / self.store.path.name

    @contextmanager
    def edited(self, edit: Edit) -> Iterator[SqliteStore | None]:
        """Give a copy with this edit and every rule in its place; None where SQLite refuses it."""
        path = self.folder / self.store.path.name
        shutil.copy(self._bare, path)
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            raw.execute("PRAGMA ignore_check_constraints = ON")
            raw.execute("PRAGMA synchronous = OFF")
            try:
                done = raw.execute(*_statement(edit, self.tables[edit.table], "?"))
            except (sqlite3.IntegrityError, sqlite3.OperationalError):
                yield None
                return
            assert done.rowcount == 1, edit
            raw.execute("PRAGMA writable_schema = ON")
            raw.execute("BEGIN")
            raw.execute("DELETE FROM sqlite_master")
            raw.executemany(
                "INSERT INTO sqlite_master (rowid, type, name, tbl_name, rootpage, sql)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                self._made,
            )
            raw.execute("COMMIT")
            raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        yield SqliteStore(path=path)


_TABLES: Final = """
SELECT c.oid, c.relname, c.relhastriggers, c.relchecks, c.relispartition
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p')"""
_REQUIRED: Final = """
SELECT attrelid, attnum FROM pg_attribute
WHERE attnotnull AND attnum > 0 AND attrelid = ANY(%s)"""

_SET_REQUIRED: Final = """
UPDATE pg_attribute AS a SET attnotnull = %s
FROM unnest(%s::oid[], %s::int[]) AS r(relation, number)
WHERE a.attrelid = r.relation AND a.attnum = r.number"""


@dataclass(slots=True)
class PostgresEdits:
    """A database that a superuser edits; its catalog knows no rule meanwhile."""

    store: PostgresStore
    raw: psycopg.Connection[Any]
    tables: dict[str, Rows] = field(default_factory=dict)
    _rules: list[Row] = field(default_factory=list)
    _required: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        with self.raw.cursor() as cursor:
            self._rules = cursor.execute(_TABLES).fetchall()
            oids = [row[0] for row in self._rules]
            self._required = cursor.execute(_REQUIRED, [oids]).fetchall()
            names = [row[1] for row in self._rules if not row[4]]
            self.tables = {name: _read(cursor, name) for name in names}

    @contextmanager
    def edited(self, edit: Edit) -> Iterator[PostgresStore | None]:
        """Make this edit, and undo it in the end; None where Postgres refuses it."""
        text, values = _statement(edit, self.tables[edit.table], "%s")
        try:
            with self._without_rules(edit.table):
                row = self.raw.execute(f"{text} RETURNING tableoid, ctid", values).fetchone()
        except (psycopg.IntegrityError, psycopg.DataError):
            yield None
            return
        assert row is not None, edit
        try:
            yield self.store
        finally:
            with self._without_rules(edit.table):
                if edit.new is not None:
                    gone = f"DELETE FROM {edit.table} WHERE tableoid = %s AND ctid = %s"
                    self.raw.execute(gone, row)
                if edit.old is not None:
                    signs = ", ".join("%s" for _ in edit.old)
                    self.raw.execute(f"INSERT INTO {edit.table} VALUES ({signs})", edit.old)

    @contextmanager
    def _without_rules(self, table: str) -> Iterator[None]:
        """Let the catalog say that a table and its partitions have no rule, and then again all."""
        parts = [row for row in self._rules if row[1] == table or (row[4] and table in row[1])]
        oids = [row[0] for row in parts]
        required = [row for row in self._required if row[0] in oids]
        with self.raw.transaction():
            self.raw.execute(
                "UPDATE pg_class SET relhastriggers = false, relchecks = 0 WHERE oid = ANY(%s)",
                [oids],
            )
            self.raw.execute(_SET_REQUIRED, [False, *map(list, zip(*required, strict=True))])
            yield
            for oid, _, triggers, checks, _ in parts:
                self.raw.execute(
                    "UPDATE pg_class SET relhastriggers = %s, relchecks = %s WHERE oid = %s",
                    [triggers, checks, oid],
                )
            self.raw.execute(_SET_REQUIRED, [True, *map(list, zip(*required, strict=True))])


Edits = SqliteEdits | PostgresEdits


def chosen(
    edits: Mapping[tuple[str, str], list[Edit]],
    each: int | None,
    some: int | None,
    rng: random.Random,
) -> list[Edit]:
    """
    Return edits in any order.

    Args:
        each: so many of every table's kinds and columns at most, None for all.
        some: so many of all of them at most.
    """
    found = [edit for group in edits.values() for edit in group[:each]]
    rng.shuffle(found)
    return found if some is None else found[:some]
