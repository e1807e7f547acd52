"""What the database can say about itself: broken pages, and rules that are no longer in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final

from sqlalchemy import CheckConstraint, Connection, create_engine

from ledger.store import schema
from ledger.store.ddl.audit_views import corrected_views
from ledger.store.failures import DAMAGE, fact_of
from ledger.store.mending.acts import is_corrected
from ledger.store.proving import damage_postgres

# Only tables and indexes of the database's own begin so, with the underscore itself.
_SCHEMA: Final = (
    "SELECT type, name, tbl_name, sql FROM sqlite_master"
    r" WHERE NOT (type IN ('table', 'index') AND name LIKE 'sqlite\_%' ESCAPE '\')"
)
_MAGIC: Final = b"CREATE TABLE ledger_"
MADE: Final = "176e44369c111766f7c92dbe8dd6eb80ba6b41658cd18e716dfedd7afeaff9dd"
"""
The digest of what the migrations make, which `digest_of` gives of a ledger that has that.

Only for another ledger is it made again, to say what differs: that takes as long as some thousand
events. A new migration has a new digest.
"""
Name = tuple[str, str]
"""Type and name: a trigger may be called like a table."""
Definition = tuple[str, str]
"""The table it is about, and its SQL."""


def damaged_pages(connection: Connection) -> Iterator[str]:
    """Yield what is wrong with SQLite's pages and references; Postgres checks pages as it reads."""
    if connection.dialect.name != "sqlite":
        return
    for pragma in ("integrity_check(20)", "foreign_key_check"):
        try:
            for row in connection.exec_driver_sql(f"PRAGMA {pragma}"):
                if row[0] != "ok":
                    yield f"{pragma.split('(')[0]}: {' '.join(map(str, row))}"
        except DAMAGE as error:
            yield f"the database is damaged: {fact_of(error)}"
            return


def broken_checks(connection: Connection) -> Iterator[str]:
    """
    Yield every row that a CHECK of the schema does not allow; of the log, each value is hashed.

    SQLite knows none in a file that is only read. Postgres asks none of a row that is there.
    """
    for table in schema.METADATA.sorted_tables:
        parts = table.constraints
        checks = sorted(str(each.sqltext) for each in parts if isinstance(each, CheckConstraint))
        if not checks or table is schema.ledger_events:
            continue
        keys = ", ".join(table.primary_key.columns.keys())
        cases = " ".join(f"WHEN ({each}) IS NOT TRUE THEN {at}" for at, each in enumerate(checks))
        asked = f"SELECT CASE {cases} END AS broken, {keys} FROM {table.name}"
        query = f"SELECT * FROM ({asked}) AS c WHERE broken IS NOT NULL LIMIT 20"
        try:
            options = {"no_parameters": True}
            for broken, *key in connection.exec_driver_sql(query, execution_options=options):
                yield f"{table.name}: key={tuple(key)}, it breaks the rule {checks[broken]}"
        except DAMAGE as error:
            yield f"{table.name} is unreadable: {fact_of(error)}"


def changed_rules(connection: Connection) -> Iterator[str]:
    """
    Yield every table, index, trigger and view that is not as the migrations make it.

    Tables and views that someone added under names of their own are left alone. A trigger is not,
    for it can change what is written; nor is an index on a table of ours, for it can refuse it.
    """
    if connection.dialect.name != "sqlite":
        yield from damage_postgres.changed_rules(connection)
        return
    try:
        found = _definitions(connection)
    except DAMAGE as error:
        yield f"the schema is unreadable: {fact_of(error)}"
        return
    views = _views_of_true_times(connection)
    if not views and digest_of(found) == MADE:
        return
    expected = {**made_by_migrations(), **views}
    for key, definition in expected.items():
        kind, name = key
        if key not in found:
            yield f"a rule of the database is missing: {kind}={name}"
        elif found[key] != definition:
            yield f"a rule of the database was changed: {kind}={name}"
    ours = {name.lower() for _, name in expected}
    for kind, name in found.keys() - expected.keys():
        table = found[kind, name][0]
        text = f"{kind} was added to the database: {kind}={name}, table={table}"
        if kind == "trigger":
            yield f"a {text}"
        elif kind == "index" and str(table).lower() in ours:
            yield f"an {text}"
        elif kind not in {"table", "view", "index"} or str(name).lower() in ours:
            yield f"under a name of ours, a {text}"


def other_revision(connection: Connection) -> Iterator[str]:
    """Yield what is wrong with the record of the schema's revision, which is one row."""
    try:
        rows = connection.exec_driver_sql("SELECT version_num FROM alembic_version").all()
    except DAMAGE as error:
        yield f"the schema's revision is unreadable: {fact_of(error)}"
        return
    revisions = [row[0] for row in rows]
    if len(revisions) != 1 or revisions[0] not in schema.REVISIONS:
        yield f"the schema's revision is not one that we know: revisions={revisions}"


def was_a_ledger(path: Path) -> bool:
    """Tell whether the file has the words of a ledger's schema, readable or not."""
    try:
        return _MAGIC in path.read_bytes()
    except OSError:
        return False


def _views_of_true_times(connection: Connection) -> Mapping[Name, Definition]:
    try:
        corrected = is_corrected(connection)
    except DAMAGE:
        corrected = False  # and whoever reads the log says so
    views = corrected_views("sqlite") if corrected else {}
    return {("view", name): (name, text) for name, text in views.items()}


def digest_of(definitions: Mapping[Name, Definition]) -> str:
    """Return the digest of definitions, in whatever order they are."""
    return sha256("\n".join(sorted(map(repr, definitions.items()))).encode()).hexdigest()


@cache
def made_by_migrations() -> dict[Name, Definition]:
    """Return (table, SQL) of everything in a new ledger, by type and name."""
    from ledger.store.migrate import upgrade  # noqa: PLC0415 - Alembic is slow to import

    engine = create_engine("sqlite+pysqlite://")
    try:
        with engine.connect() as connection:
            upgrade(connection)
            return _definitions(connection)
    finally:
        engine.dispose()


def _definitions(connection: Connection) -> dict[Name, Definition]:
    rows = connection.exec_driver_sql(_SCHEMA)
    return {(kind, name): (table, sql) for kind, name, table, sql in rows if sql}
