"""What the database can say about itself: broken pages, and rules that are no longer in place."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from sqlalchemy import Connection, create_engine

from ledger.store.failures import DAMAGE, fact_of
from ledger.store.migrate import upgrade

_SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
Definition = tuple[str, str, str]


def damaged_pages(connection: Connection) -> Iterator[str]:
    """Yield what the database finds wrong with its own pages, constraints and references."""
    for pragma in ("integrity_check(20)", "foreign_key_check"):
        try:
            for row in connection.exec_driver_sql(f"PRAGMA {pragma}"):
                if row[0] != "ok":
                    yield f"{pragma.split('(')[0]}: {' '.join(map(str, row))}"
        except DAMAGE as error:
            yield f"the database is damaged: {fact_of(error)}"
            return


def changed_rules(connection: Connection) -> Iterator[str]:
    """
    Yield every table, index, trigger and view that is not as the migrations make it.

    Tables and views that someone added are left alone; a trigger that someone added is not, for
    it can change what is written.
    """
    try:
        found = _definitions(connection)
    except DAMAGE as error:
        yield f"the schema is unreadable: {fact_of(error)}"
        return
    expected = made_by_migrations()
    for name, definition in expected.items():
        if name not in found:
            yield f"a rule of the database is missing: {definition[0]}={name}"
        elif found[name] != definition:
            yield f"a rule of the database was changed: {definition[0]}={name}"
    for name, (kind, table, _) in found.items():
        if name not in expected and kind == "trigger":
            yield f"a trigger was added to the database: trigger={name}, table={table}"


@cache
def made_by_migrations() -> dict[str, Definition]:
    """Return (type, table, SQL) of everything in a new ledger, by name."""
    engine = create_engine("sqlite+pysqlite://")
    try:
        with engine.connect() as connection:
            upgrade(connection)
            return _definitions(connection)
    finally:
        engine.dispose()


def _definitions(connection: Connection) -> dict[str, Definition]:
    rows = connection.exec_driver_sql(_SCHEMA)
    return {name: (kind, table, sql) for kind, name, table, sql in rows if sql}
