"""
What Postgres says of the tables, rules and views that our code makes: asked of this very server.

The server words conditions and views in its own way, which differs between its versions. So they
are made once more, among the temporary tables of a transaction that is rolled back, and the words
of the copies are what those of the ledger are compared with.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ledger.store import schema
from ledger.store.ddl import postgres
from ledger.store.failures import fact_of

Key = tuple[str, str]
"""Table and name."""
Words = Mapping[Key, str]
"""What the server says of things of one kind, without the schema's name."""
EVENTS: Final = "ledger_events"
OUT_OF_USE: Final = " OUT OF USE"
"""What stands behind the words of an index that no query or check can lean on."""
TRIGGER: Final = re.compile(
    r"\s*CREATE (?:CONSTRAINT )?TRIGGER (\w+) .*? ON (?:public\.)?(\w+) ", re.DOTALL
)
_FUNCTION: Final = re.compile(r"\s*CREATE (?:OR REPLACE )?FUNCTION ")
VIEW: Final = re.compile(r"\s*CREATE (?:OR REPLACE )?VIEW (?:public\.)?(\w+)")

_PUBLIC: Final = "'public'::regnamespace"
_SCRATCH: Final = "pg_my_temp_schema()"
_CALLS: Final = re.compile(r"EXECUTE FUNCTION (\w+)\(\)\s*$")
_PLACE: Final = re.compile(r"\b(?:public|pg_temp(?:_\d+)?)\.")
_NO_RULE: Final = "tenure_no_rule"
_MAKE_NO_RULE: Final = (
    f"CREATE FUNCTION pg_temp.{_NO_RULE}() RETURNS trigger LANGUAGE plpgsql"
    " AS 'BEGIN RETURN NULL; END'"
)

_COLUMNS: Final = """
SELECT t.relname, a.attname, concat_ws(' ', format_type(a.atttypid, a.atttypmod),
  CASE WHEN a.attnotnull THEN 'NOT NULL' END, 'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid),
  'COLLATE ' || (SELECT collname FROM pg_collation WHERE oid = a.attcollation),
  nullif(a.attgenerated::text || a.attidentity::text, ''))
FROM pg_attribute AS a JOIN pg_class AS t ON t.oid = a.attrelid
LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE t.relnamespace = {space} AND t.relkind IN ('r', 'p') AND a.attnum > 0
  AND NOT a.attisdropped
"""
_CONSTRAINTS: Final = """
SELECT t.relname, c.conname, pg_get_constraintdef(c.oid)
FROM pg_constraint AS c JOIN pg_class AS t ON t.oid = c.conrelid
WHERE t.relnamespace = {space} AND c.contype IN ('c', 'f', 'p', 'u', 'x')
"""
_INDEXES: Final = f"""
SELECT t.relname, c.relname, pg_get_indexdef(c.oid)
  || CASE WHEN i.indisvalid AND i.indisready AND i.indislive THEN '' ELSE '{OUT_OF_USE}' END
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_class AS t ON t.oid = i.indrelid
WHERE t.relnamespace = {{space}} AND t.relkind IN ('r', 'p')
"""
_TRIGGERS: Final = """
SELECT t.relname, g.tgname, pg_get_triggerdef(g.oid)
FROM pg_trigger AS g JOIN pg_class AS t ON t.oid = g.tgrelid
WHERE t.relnamespace = {space} AND NOT g.tgisinternal
"""
_VIEWS: Final = """
SELECT t.relname, '', pg_get_viewdef(t.oid)
  || coalesce(' WITH ' || array_to_string(t.reloptions, ', '), '')
FROM pg_class AS t WHERE t.relnamespace = {space} AND t.relkind = 'v'
"""


_FUNCTIONS: Final = """
SELECT '', p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ')',
  pg_get_functiondef(p.oid)
FROM pg_proc AS p
WHERE p.pronamespace = {space} AND starts_with(p.proname, 'ledger_') AND p.prokind = 'f'
"""
_QUERIES: Final = {
    "function": _FUNCTIONS,
    "column": _COLUMNS,
    "constraint": _CONSTRAINTS,
    "index": _INDEXES,
    "trigger": _TRIGGERS,
    "view": _VIEWS,
}


def definitions(connection: Connection) -> Mapping[str, Words]:
    """Return what the server says of the ledger's schema, by kind."""
    return _definitions(connection, _PUBLIC)


def texts() -> tuple[str, ...]:
    """Return the statements that make a ledger's rules and views."""
    return postgres.RULES


class NoScratchError(Exception):
    """The server lets us make no temporary tables: what it would say of them is not known."""


_known: Final[dict[object, Mapping[str, Words]]] = {}


def expected(connection: Connection) -> Mapping[str, Words]:
    """
    Return what this server says of the schema that our code makes, asked once per version of it.

    Opens a connection of its own, for only a transaction that may write can make a temporary table.

    Raises:
        NoScratchError: the server can't be written, or this role may not.
    """
    version = connection.dialect.server_version_info
    if version not in _known:
        try:
            with connection.engine.connect() as other, other.begin() as transaction:
                _run(other, "SET TRANSACTION READ WRITE")
                _make(other)
                _known[version] = _definitions(other, _SCRATCH)
                transaction.rollback()
        except DBAPIError as error:
            raise NoScratchError(fact_of(error)) from error
    return _known[version]


def _run(connection: Connection, statement: str) -> None:
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _make(connection: Connection) -> None:
    """Make tables, functions, views and triggers, all of them temporary."""
    _run(connection, "SET LOCAL search_path = pg_temp, public")
    schema.METADATA.create_all(connection, checkfirst=False)
    _run(connection, _MAKE_NO_RULE)
    for text in texts():
        if VIEW.match(text) or _FUNCTION.match(text):
            _run(connection, text)
    for text in triggers().values():
        _run(connection, _CALLS.sub(f"EXECUTE FUNCTION pg_temp.{_NO_RULE}()", text))


def triggers() -> dict[Key, str]:
    """Return the statement that makes each trigger, by table and name."""
    found = (TRIGGER.match(text) for text in texts())
    return {(match[2], match[1]): match.string for match in found if match}


def _definitions(connection: Connection, space: str) -> dict[str, Words]:
    found: dict[str, Words] = {}
    for kind, query in _QUERIES.items():
        text = query.replace("{space}", space)
        rows = connection.exec_driver_sql(text, execution_options={"no_parameters": True})
        found[kind] = {(table, name): _without_schema(text) for table, name, text in rows}
    found["trigger"] = _calling(found["trigger"])
    return found


def _without_schema(text: str) -> str:
    return _PLACE.sub("", text).replace(" ON ONLY ", " ON ")


def _calling(found: Words) -> Words:
    """Put back what a trigger of ours calls."""
    calls = {key: _CALLS.search(text) for key, text in triggers().items()}
    return {
        key: text.replace(_NO_RULE, match[1]) if (match := calls.get(key)) else text
        for key, text in found.items()
    }
