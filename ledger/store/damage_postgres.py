"""What a Postgres ledger says about its own rules: its catalog, beside what the migrations make."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection

from ledger.store import schema
from ledger.store.ddl import postgres
from ledger.store.failures import DAMAGE, fact_of

_EVENTS: Final = "ledger_events"
_FUNCTION: Final = re.compile(
    r"\s*CREATE (?:OR REPLACE )?FUNCTION (?:public\.)?(\w+)(.*?) AS \$(\w*)\$(.*)\$\3\$", re.DOTALL
)
_TRIGGER: Final = re.compile(r"\s*CREATE TRIGGER (\w+) .*? ON (?:public\.)?(\w+) ", re.DOTALL)
_VIEW: Final = re.compile(r"\s*CREATE (?:OR REPLACE )?VIEW (?:public\.)?(\w+)")

_FUNCTIONS: Final = """
SELECT proname, prosrc, prosecdef, coalesce(array_to_string(proconfig, ','), '')
FROM pg_proc WHERE pronamespace = 'public'::regnamespace
"""
_TRIGGERS: Final = """
SELECT t.relname, g.tgname, g.tgisinternal, g.tgenabled::text, pg_get_triggerdef(g.oid)
FROM pg_trigger AS g JOIN pg_class AS t ON t.oid = g.tgrelid
WHERE t.relnamespace = 'public'::regnamespace
"""
_RULES: Final = """
SELECT t.relname, r.rulename FROM pg_rewrite AS r JOIN pg_class AS t ON t.oid = r.ev_class
WHERE t.relnamespace = 'public'::regnamespace AND t.relkind <> 'v'
"""
_CONSTRAINTS: Final = """
SELECT t.relname, c.conname, c.convalidated
FROM pg_constraint AS c JOIN pg_class AS t ON t.oid = c.conrelid
WHERE t.relnamespace = 'public'::regnamespace AND c.contype IN ('c', 'f', 'p', 'u', 'x')
"""
_INDEXES: Final = """
SELECT t.relname, c.relname, i.indisvalid AND i.indisready, pg_get_indexdef(c.oid)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_class AS t ON t.oid = i.indrelid
WHERE t.relnamespace = 'public'::regnamespace
"""
_PARTITIONS: Final = """
SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
WHERE i.inhparent = to_regclass('public.ledger_events') ORDER BY c.relname
"""
_RELATIONS: Final = """
SELECT relname, relkind::text FROM pg_class WHERE relnamespace = 'public'::regnamespace
"""
_EVENT_TRIGGERS: Final = "SELECT evtname, evtenabled::text FROM pg_event_trigger"
_OWN_TRIGGERS: Final = (
    "SELECT tgname FROM pg_trigger WHERE tgrelid = '{}'::regclass AND NOT tgisinternal"
    " ORDER BY tgname"
)


def rules_on(connection: Connection, table: str) -> list[str]:
    """Return the names of the triggers on a table, without those of its foreign keys."""
    return [name for (name,) in _rows(connection, _OWN_TRIGGERS.format(table))]


def changed_rules(connection: Connection) -> Iterator[str]:
    """
    Yield every function, trigger, constraint, index, table and view that is not as we make it.

    Functions and triggers are compared by their words, the others by name and by whether they are
    in force. What someone added under names of their own is left alone, unless it can change or
    refuse what is written to a table of ours.
    """
    try:
        for look in (_relations, _functions, _triggers, _constraints, _indexes, _events):
            yield from look(connection)
    except DAMAGE as error:
        yield f"the schema is unreadable: {fact_of(error)}"


def _rows(connection: Connection, query: str) -> list[Any]:
    options = {"no_parameters": True}
    return list(connection.exec_driver_sql(query, execution_options=options))


def _missing(kind: str, name: str) -> str:
    return f"a rule of the database is missing: {kind}={name}"


def _changed(kind: str, name: str) -> str:
    return f"a rule of the database was changed: {kind}={name}"


def _added(kind: str, name: str, table: str) -> str:
    article = "an" if kind[0] in "aeio" else "a"
    return f"{article} {kind} was added to the database: {kind}={name}, table={table}"


def _partitions(connection: Connection) -> list[str]:
    return [name for (name,) in _rows(connection, _PARTITIONS)]


@cache
def _texts() -> tuple[str, ...]:
    return (*postgres.V1, *postgres.V2)


def _named(pattern: re.Pattern[str]) -> dict[str, re.Match[str]]:
    found = (pattern.match(text) for text in _texts())
    return {match[1]: match for match in found if match}


def _relations(connection: Connection) -> Iterator[str]:
    found = dict(_rows(connection, _RELATIONS))
    for table in sorted(schema.METADATA.tables):
        if found.get(table) != ("p" if table == _EVENTS else "r"):
            yield _missing("table", table)
    for view in _named(_VIEW):
        if found.get(view) != "v":
            yield _missing("view", view)


def _functions(connection: Connection) -> Iterator[str]:
    found = {name: rest for name, *rest in _rows(connection, _FUNCTIONS)}
    for name, match in _named(_FUNCTION).items():
        if name not in found:
            yield _missing("function", name)
            continue
        source, definer, settings = found[name]
        pinned = "search_path" not in match[2] or "search_path" in settings
        if source != match[4] or definer != ("SECURITY DEFINER" in match[2]) or not pinned:
            yield _changed("function", name)


def _triggers(connection: Connection) -> Iterator[str]:
    expected = {
        (match[2], match[1]): _plain(match.string)
        for match in map(_TRIGGER.match, _texts())
        if match
    }
    ours = set(schema.METADATA.tables)
    for part in _partitions(connection):
        ours.add(part)
        for (table, name), text in tuple(expected.items()):
            if table == _EVENTS:
                expected[part, name] = text.replace(f" ON {_EVENTS} ", f" ON {part} ")
    found: dict[tuple[str, str], tuple[str, str]] = {}
    for table, name, internal, enabled, text in _rows(connection, _TRIGGERS):
        if not internal:
            found[table, name] = (enabled, _plain(text))
        elif enabled != "O" and table in ours:
            yield _changed("foreign key", f"{table}/{name}")
    for key, text in expected.items():
        if key not in found:
            yield _missing("trigger", f"{key[0]}/{key[1]}")
        elif found[key] != ("A", text):
            yield _changed("trigger", f"{key[0]}/{key[1]}")
    for table, name in sorted(found.keys() - expected.keys()):
        if table in ours:
            yield _added("trigger", name, table)
    for table, name in _rows(connection, _RULES):
        if table in ours:
            yield _added("rule", name, table)


def _plain(text: str) -> str:
    """Return a trigger's words up to its condition, which the server words in its own way."""
    words = " ".join(text.replace("public.", "").replace('"', "").split())
    return words.split(" WHEN (", 1)[0]


def _constraints(connection: Connection) -> Iterator[str]:
    found = {(table, name): valid for table, name, valid in _rows(connection, _CONSTRAINTS)}
    expected = {
        (table.name, str(each.name))
        for table in schema.METADATA.tables.values()
        for each in table.constraints
    } - {(_EVENTS, f"uq_{_EVENTS}_idempotency_key")}  # every partition has its own
    for table, name in sorted(expected):
        if not found.get((table, name)):
            yield _missing("constraint", f"{table}/{name}")
    for table, name in sorted(found.keys() - expected):
        if table in schema.METADATA.tables:
            yield _added("constraint", name, table)


def _indexes(connection: Connection) -> Iterator[str]:
    rows = _rows(connection, _INDEXES)
    found = {(table, name): usable for table, name, usable, _ in rows}
    expected = {
        (table.name, str(each.name))
        for table in schema.METADATA.tables.values()
        for each in table.indexes
    }
    keys = {(table.name, str(table.primary_key.name)) for table in schema.METADATA.tables.values()}
    keys |= {
        (table.name, str(each.name))
        for table in schema.METADATA.tables.values()
        for each in table.constraints
    }
    for table, name in sorted(expected):
        if not found.get((table, name)):
            yield _missing("index", f"{table}/{name}")
    for table, name in sorted(found.keys() - expected - keys):
        if table in schema.METADATA.tables:
            yield _added("index", name, table)
    unique = {
        table
        for table, _, usable, text in rows
        if usable and "UNIQUE" in text and text.endswith("(idempotency_key)")
    }
    for part in _partitions(connection):
        if part not in unique:
            yield _missing("index", f"{part}/idempotency_key")


def _events(connection: Connection) -> Iterator[str]:
    """A ledger that no superuser made has none of these; one that has them keeps them in force."""
    for name, enabled in _rows(connection, _EVENT_TRIGGERS):
        if name.startswith("ledger_") and enabled != "A":
            yield _changed("event trigger", name)
