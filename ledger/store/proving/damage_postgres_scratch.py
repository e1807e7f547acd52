"""
What Postgres says of the tables, rules and views that our code makes: asked of this very server.

The server words conditions and views in its own way, which differs between its versions. So they
are made once more, among the temporary tables of a transaction that is rolled back, and the words
of the copies are compared with those of the ledger.

A restored copy was made from such words, and the server words them anew: `a OR b OR c` for what it
called `(a OR b) OR c`. So the server reads words that differ again, ours and the ledger's, until it
says what it read; equal words then mean the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ledger.store import schema
from ledger.store.ddl import postgres
from ledger.store.failures import fact_of
from ledger.store.mending.acts import is_corrected, tell_true_times

Key = tuple[str, str]
"""Table and name."""
Words = Mapping[Key, str]
"""What the server says of things of one kind, without the schema's name."""
Pair = tuple[Key, str, str]
"""A thing that our code makes, and two wordings of it."""
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
_PLACES: Final = {
    _PUBLIC: re.compile(r"\bpublic\."),
    _SCRATCH: re.compile(r"\bpg_temp(?:_\d+)?\."),
}
_READINGS_MAX: Final = 5
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


class NoScratchError(Exception):
    """The server lets us make no temporary tables: what it would say of them is not known."""


_known: Final[dict[object, Mapping[str, Words]]] = {}
_same: Final[dict[object, set[Pair]]] = {}


def expected(connection: Connection) -> Mapping[str, Words]:
    """
    Return what this server says of the schema that our code makes, asked once per version of it.

    With true times in the views where the ledger's clock was corrected. Opens a connection of its
    own: only a transaction that may write can make a temporary table.

    Raises:
        NoScratchError: the server can't be written, or this role may not.
    """
    corrected = is_corrected(connection)
    known = connection.dialect.server_version_info, corrected
    if known not in _known:
        with _scratch(connection) as scratch:
            if corrected:
                tell_true_times(scratch)
            _known[known] = _definitions(scratch, _SCRATCH)
    return _known[known]


def mean_the_same(connection: Connection, kind: str, pairs: Collection[Pair]) -> set[Pair]:
    """
    Return the pairs whose two wordings are of one meaning, read once per version of the server.

    Raises:
        NoScratchError: the server can't be written, or this role may not.
    """
    same = _same.setdefault((connection.dialect.server_version_info, kind), set())
    readable = [pair for pair in pairs if pair not in same and _instead(kind, *pair[:2])]
    if readable:
        with _scratch(connection, kind) as scratch:
            same |= {
                (key, one, other)
                for key, one, other in readable
                if _settled(scratch, kind, key, one) == _settled(scratch, kind, key, other)
            }
    return same.intersection(pairs)


@contextmanager
def _scratch(connection: Connection, kind: str = "") -> Iterator[Connection]:
    """
    Yield a connection of its own on which what our code makes stands, until it is left.

    All of it, or what there has to be for one `kind` to be made.
    """
    try:
        with connection.engine.connect() as other, other.begin() as transaction:
            _run(other, "SET TRANSACTION READ WRITE")
            _make(other, kind)
            yield other
            transaction.rollback()
    except DBAPIError as error:
        raise NoScratchError(fact_of(error)) from error


def _settled(scratch: Connection, kind: str, key: Key, text: str) -> str:
    """Return the words for which the server has no others, or the last ones that it could read."""
    for _ in range(_READINGS_MAX):
        statements = _instead(kind, key, text)
        if not statements:
            return text
        try:
            with scratch.begin_nested() as point:
                for statement in statements:
                    _run(scratch, statement)
                said = _of_kind(scratch, kind, _SCRATCH).get(key, text)
                point.rollback()
        except DBAPIError:
            return text
        if said == text:
            return text
        text = said
    return text


def _instead(kind: str, key: Key, text: str) -> tuple[str, ...]:
    """Return the statements that put what these words say in the place of what is ours, if any."""
    table, name = key
    if kind == "view":
        return (f"DROP VIEW pg_temp.{table} CASCADE", f"CREATE VIEW pg_temp.{table} AS {text}")
    if kind == "constraint":
        change = f"DROP CONSTRAINT {name} CASCADE, ADD CONSTRAINT {name} {text}"
        return (f"ALTER TABLE pg_temp.{table} {change}",)
    if kind == "index":
        return (f"DROP INDEX pg_temp.{name}", text)
    if kind == "trigger":
        calls = text.replace(f"FUNCTION {_called(key)}()", f"FUNCTION pg_temp.{_NO_RULE}()")
        return (f"DROP TRIGGER {name} ON pg_temp.{table}", calls)
    return ()


def _run(connection: Connection, statement: str) -> None:
    connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def _make(connection: Connection, kind: str) -> None:
    """
    Make tables, functions, views and triggers, all of them temporary; for one kind, its own only.

    Bodies of functions are kept unread: they name the ledger's own tables, which may be locked.
    """
    _run(connection, "SET LOCAL search_path = pg_temp, public")
    _run(connection, "SET LOCAL check_function_bodies = off")
    schema.METADATA.create_all(connection, checkfirst=False)
    if kind in {"", "view"}:
        for text in postgres.RULES:
            if VIEW.match(text) or _FUNCTION.match(text):
                _run(connection, text)
    if kind in {"", "trigger"}:
        _run(connection, _MAKE_NO_RULE)
        for text in triggers().values():
            _run(connection, _CALLS.sub(f"EXECUTE FUNCTION pg_temp.{_NO_RULE}()", text))


def triggers() -> dict[Key, str]:
    """Return the statement that makes each trigger, by table and name."""
    found = (TRIGGER.match(text) for text in postgres.RULES)
    return {(match[2], match[1]): match.string for match in found if match}


def _called(trigger: Key) -> str:
    match = _CALLS.search(triggers()[trigger])
    assert match, trigger
    return match[1]


def _definitions(connection: Connection, space: str) -> dict[str, Words]:
    return {kind: _of_kind(connection, kind, space) for kind in _QUERIES}


def _of_kind(connection: Connection, kind: str, space: str) -> Words:
    text = _QUERIES[kind].replace("{space}", space)
    rows = connection.exec_driver_sql(text, execution_options={"no_parameters": True})
    # What stands in the body of a function are its own words, and the schema's name one of them.
    count = 1 if kind == "function" else 0
    found = {
        (table, name): _PLACES[space].sub("", text, count).replace(" ON ONLY ", " ON ")
        for table, name, text in rows
    }
    if kind == "trigger" and space == _SCRATCH:
        return {key: text.replace(_NO_RULE, _called(key)) for key, text in found.items()}
    return found
