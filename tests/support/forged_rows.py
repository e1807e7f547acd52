"""What an append writes, by hand: every row of it, with each value in turn changed."""

# ruff: noqa: ANN401 - a value of any column, a connection of either driver

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import Column, Table

from ledger.store import schema
from ledger.store.ddl.postgres_roles import KEPT_FROM_WRITER, UPDATES
from ledger.store.projections.project import WAVE
from tests.support.stores import PostgresStore, Store

Row = tuple[Any, ...]
Tables = Mapping[str, Mapping[Row, Row]]
"""The rows of every table that a writer writes, by key."""

FIRST: Final = ("ledger_head", "ledger_events")
LAST: Final = ("ledger_tree",)
_WAVE: Final = tuple((str(each.construct.table), each.construct.is_insert) for each in WAVE)
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "kind": ("granted", "observed"),
    "holder": ("pod", "claim"),
    "phase": ("reserved", "observed", "bound", "assigned", "lost", "released", "voided"),
    "labels": ("{}", '{"team":"b"}'),
}
"""The other words of columns that do not take any."""
_NAMES_A_ROW: Final = ("machine_no", "node_no", "device_no", "cpu")
"""Columns that name a row of another table: the other values are those of other rows."""

_COUNTERS: Final = (
    *("core_used", "memory_used", "tenants", "exclusive_holders", "core_observed"),
    *("memory_observed", "observed_holders", "ref_used", "ref_observed"),
)
"""What is counted of cards and CPUs by rules: nothing of a new one."""
_PARTS: Final = 2
"""How many rows of a holder are tried with other values."""
_OTHERS: Final = 3
"""How many other values are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """
    One row that an append writes.

    Attributes:
        key: of the row that it changes; None of a new one.
        values: what it writes, by column.
    """

    table: str
    key: Mapping[str, Any] | None
    values: Mapping[str, Any]

    def sql(self, *, postgres: bool) -> str:
        """Return the statement that writes it."""
        texts = {name: _literal(value, postgres=postgres) for name, value in self.values.items()}
        if self.key is None:
            names, values = ", ".join(texts), ", ".join(texts.values())
            return f"INSERT INTO {self.table} ({names}) VALUES ({values})"
        pairs = ", ".join(f"{name} = {text}" for name, text in texts.items())
        where = " AND ".join(
            f"{name} = {_literal(value, postgres=postgres)}" for name, value in self.key.items()
        )
        return f"UPDATE {self.table} SET {pairs} WHERE {where}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Variant:
    """
    What an append would write, but for one thing.

    Attributes:
        about: the table, with the column whose value is another one.
        name: what is different, in words.
    """

    about: str
    name: str
    changes: Sequence[Change]


def _literal(value: Any, *, postgres: bool) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"decode('{value.hex()}', 'hex')" if postgres else f"x'{value.hex()}'"
    return f"'{value.replace(chr(39), chr(39) * 2)}'" if isinstance(value, str) else str(value)


def tables_of(store: Store) -> Tables:
    """Return every row that a writer may have written."""
    with store.raw() as raw:
        return {
            table.name: {
                tuple(row[table.columns.keys().index(key.name)] for key in table.primary_key): row
                for row in map(_plain, raw.execute(f"SELECT * FROM {table.name}").fetchall())
            }
            for table in schema.METADATA.tables.values()
            if table.name not in KEPT_FROM_WRITER
        }


def _plain(row: Sequence[Any]) -> Row:
    return tuple(bytes(value) if isinstance(value, memoryview) else value for value in row)


def changes_of(before: Tables, after: Tables) -> list[Change]:
    """Return what a writer wrote between two states, in its order; rules did the rest."""
    found = [
        change
        for name, rows in after.items()
        for key, row in rows.items()
        if (change := _change(schema.METADATA.tables[name], key, before[name].get(key), row))
    ]
    return sorted(found, key=_place)


def _change(table: Table, key: Row, old: Row | None, new: Row) -> Change | None:
    names = table.columns.keys()
    if old is None:
        values = dict(zip(names, new, strict=True))
        counters: dict[str, Any] = {name: 0 for name in _COUNTERS if name in values}
        return Change(table=table.name, key=None, values={**values, **counters})
    values = {
        name: value
        for name, before, value in zip(names, old, new, strict=True)
        if before != value and name in UPDATES.get(table.name, ())
    }
    if "fact_position" in names and "fact_position" not in values and "lost_position" not in values:
        return None  # a rule moved what is held of it
    keys = [each.name for each in table.primary_key]
    named = dict(zip(keys, key, strict=True))
    return Change(table=table.name, key=named, values=values) if values else None


def _place(change: Change) -> tuple[int, int]:
    if change.table in FIRST:
        return 0, FIRST.index(change.table)
    kind = (change.table, change.key is None)
    return (1, _WAVE.index(kind)) if kind in _WAVE else (2, 0)


def variants(changes: Sequence[Change], known: Tables) -> Iterator[Variant]:
    """
    Yield every way to write other rows than those of an event: one value, one row.

    Of rows that are alike, such as a node's cards, the first ones are enough.
    """
    alike: Counter[tuple[str, bool]] = Counter()
    for place, change in enumerate(changes):
        if change.table in (*FIRST, *LAST):
            continue
        yield _with(changes, place, [], change.table, "lacks")
        kind = (change.table, change.key is None)
        alike[kind] += 1
        if alike[kind] > (_PARTS if change.table.endswith("holdings") else 1):
            continue
        if change.key is None:
            yield _with(changes, place, [change, change], change.table, "doubled")
        for column in change.values:
            about = f"{change.table}.{column}"
            for value in _others(change, column, known):
                other = replace(change, values={**change.values, column: value})
                was = change.values[column]
                yield _with(changes, place, [other], about, f"{was!r} -> {value!r}")
                if column in _keys(change) and change.key is None:
                    yield _with(changes, place, [change, other], about, f"{value!r} too many")


def _keys(change: Change) -> list[str]:
    return [each.name for each in schema.METADATA.tables[change.table].primary_key]


def _with(
    changes: Sequence[Change], place: int, instead: list[Change], about: str, what: str
) -> Variant:
    taken = [*changes[:place], *instead, *changes[place + 1 :]]
    return Variant(about=about, name=f"{about}: {what}", changes=taken)


def _others(change: Change, name: str, known: Tables) -> Iterator[Any]:
    """Yield other values that the column takes."""
    column, value = schema.METADATA.tables[change.table].columns[name], change.values[name]
    if column.nullable and value is not None:
        yield None
    found = dict.fromkeys(each for each in _possible(change, column, known) if each != value)
    yield from list(found)[:_OTHERS]


def _possible(change: Change, column: Column[Any], known: Tables) -> Iterator[Any]:
    value = change.values[column.name]
    if column.name in _WORDS:
        yield from _WORDS[column.name]
    elif column.name in _NAMES_A_ROW and change.table != f"ledger_{column.name[:-3]}s":
        table = "ledger_cpus" if column.name == "cpu" else f"ledger_{column.name[:-3]}s"
        at = schema.METADATA.tables[table].columns.keys().index(column.name)
        yield from sorted(row[at] for row in known[table].values())
    elif str(column.type) == "TEXT":
        yield f"{value or ''}x"
    elif value in (0, 1) and column.name in ("exclusive", "present", "healthy", "unique_id"):
        yield 1 - value
    else:
        near = [value + 1, value - 1] if value else [1]
        yield from near if column.primary_key else near[-1:]


class Forger:
    """Writes rows by hand, each time in a transaction that is undone."""

    def __init__(self, store: Store, raw: Any) -> None:
        self._postgres = isinstance(store, PostgresStore)
        self._raw = raw

    def refusal(self, changes: Sequence[Change]) -> str:
        """Return what a database says of these rows at the latest at the commit; else nothing."""
        statements = [change.sql(postgres=self._postgres) for change in changes]
        if self._postgres:  # in one message
            statements = ["; ".join(("BEGIN", *statements, "SET CONSTRAINTS ALL IMMEDIATE"))]
        else:
            self._raw.execute("BEGIN")
        try:
            for statement in statements:
                self._raw.execute(statement)
        except Exception as error:  # noqa: BLE001 - either driver's own
            return str(error)
        else:
            return ""
        finally:
            self._raw.execute("ROLLBACK")
