"""What a Postgres catalog says of its rules and roles, beside what the migrations make and give."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any, Final

from sqlalchemy import Connection

from ledger.store import schema
from ledger.store.ddl import postgres
from ledger.store.ddl.postgres_guard import EVENT_TRIGGERS, MADE_BY_SUPERUSER
from ledger.store.ddl.postgres_log import PARTITION_EVENTS
from ledger.store.ddl.postgres_roles import DELETES, KEPT_FROM_WRITER, UPDATES
from ledger.store.failures import DAMAGE, fact_of
from ledger.store.proving.damage_postgres_scratch import (
    EVENTS,
    OUT_OF_USE,
    VIEW,
    Key,
    NoScratchError,
    Words,
    definitions,
    expected,
    mean_the_same,
    triggers,
)

_PARTITION: Final = re.compile(rf"{EVENTS}_(\d+)")
_INDEX: Final = re.compile(r"^(CREATE (?:UNIQUE )?INDEX) \S+ ON")
_KEY_OF_A_PARTITION: Final = "UNIQUE (idempotency_key) DEFERRABLE INITIALLY DEFERRED"
_ONE_KEY: Final = "uq_ledger_events_idempotency_key"

_ENABLED: Final = """
SELECT t.relname, g.tgname, g.tgisinternal, g.tgenabled::text
FROM pg_trigger AS g JOIN pg_class AS t ON t.oid = g.tgrelid
WHERE t.relnamespace = 'public'::regnamespace
"""
_RULES: Final = """
SELECT t.relname, r.rulename FROM pg_rewrite AS r JOIN pg_class AS t ON t.oid = r.ev_class
WHERE t.relnamespace = 'public'::regnamespace AND (t.relkind <> 'v' OR r.rulename <> '_RETURN')
"""
_POLICIES: Final = """
SELECT t.relname, p.polname FROM pg_policy AS p JOIN pg_class AS t ON t.oid = p.polrelid
WHERE t.relnamespace = 'public'::regnamespace
"""
_CHILDREN: Final = """
SELECT p.relname, c.relname, coalesce(pg_get_expr(c.relpartbound, c.oid), '')
FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
JOIN pg_class AS p ON p.oid = i.inhparent
WHERE p.relnamespace = 'public'::regnamespace AND p.relkind IN ('r', 'p')
"""
_RELATIONS: Final = """
SELECT relname, relkind::text, relpersistence = 'p', relrowsecurity OR relforcerowsecurity
FROM pg_class WHERE relnamespace = 'public'::regnamespace
"""
_EVENT_TRIGGERS: Final = """
SELECT evtname, evtenabled::text, evtevent, evtfoid::regproc::text,
  coalesce(array_to_string(evttags, ', '), '')
FROM pg_event_trigger
"""
_OWN_TRIGGERS: Final = (
    "SELECT tgname FROM pg_trigger WHERE tgrelid = '{}'::regclass AND NOT tgisinternal"
    " ORDER BY tgname"
)
_ORDER: Final = """
SELECT pg_encoding_to_char(encoding),
  coalesce(to_jsonb(d)->>'datlocale', to_jsonb(d)->>'daticulocale', datcollate),
  'B' < 'a' AND 'a b' < 'aB' AND 'z' < U&'\\00E9' AND U&'\\FFFD' < U&'\\+01F600'
FROM pg_database AS d WHERE datname = current_database()
"""
_MADE: Final = f"""
SELECT coalesce(obj_description(to_regprocedure('ledger_no_ddl()')), '') = '{MADE_BY_SUPERUSER}'
"""
_LAST: Final = "SELECT coalesce(max(position), 0) FROM ledger_head"
_WRITER: Final = "ledger_writer"

_IN_USE: Final = """
SELECT EXISTS (
  SELECT 1 FROM pg_class AS c LEFT JOIN LATERAL aclexplode(c.relacl) AS a ON true
  WHERE c.oid = to_regclass('public.ledger_events')
    AND (pg_get_userbyid(c.relowner) = 'ledger_owner'
      OR pg_get_userbyid(a.grantee) IN ('ledger_writer', 'ledger_auditor')))
"""
_OURS: Final = """c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v')
  AND (starts_with(c.relname, 'ledger_') OR starts_with(c.relname, 'audit_')
    OR c.relname = 'alembic_version')"""
_NAME: Final = "CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(a.grantee)::text END"
_GRANTS: Final = f"""
SELECT {_NAME} AS role, a.privilege_type AS may, c.relname, ''
FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
WHERE {_OURS} AND a.grantee <> c.relowner
UNION ALL SELECT {_NAME}, a.privilege_type, c.relname, t.attname
FROM pg_class AS c JOIN pg_attribute AS t ON t.attrelid = c.oid
CROSS JOIN LATERAL aclexplode(t.attacl) AS a
WHERE {_OURS} AND a.grantee <> c.relowner
ORDER BY 1, 2, 3, 4
"""
_CALLS: Final = f"""
SELECT {_NAME} AS role, p.proname
FROM pg_proc AS p
CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS a
WHERE p.pronamespace = 'public'::regnamespace AND starts_with(p.proname, 'ledger_')
  AND p.prosecdef AND a.grantee <> p.proowner
ORDER BY 1, 2
"""
_OWNERS: Final = f"""
SELECT pg_get_userbyid(o.owner)::text, o.name
FROM (
  SELECT c.relowner AS owner, c.relname AS name FROM pg_class AS c WHERE {_OURS}
  UNION ALL SELECT p.proowner, p.proname FROM pg_proc AS p
  WHERE p.pronamespace = 'public'::regnamespace AND starts_with(p.proname, 'ledger_')
) AS o JOIN pg_roles AS r ON r.oid = o.owner
WHERE NOT r.rolsuper AND r.rolname <> 'ledger_owner'
  AND o.owner <> (SELECT relowner FROM pg_class WHERE oid = to_regclass('public.ledger_head'))
ORDER BY 1, 2
"""
_POWERS: Final = """
SELECT r.rolname::text, concat_ws(', ', CASE WHEN r.rolsuper THEN 'SUPERUSER' END,
  CASE WHEN r.rolcreaterole THEN 'CREATEROLE' END, CASE WHEN r.rolcreatedb THEN 'CREATEDB' END,
  CASE WHEN r.rolreplication THEN 'REPLICATION' END,
  CASE WHEN r.rolbypassrls THEN 'BYPASSRLS' END,
  CASE WHEN has_schema_privilege(r.oid, 'public', 'CREATE') THEN 'CREATE in the schema' END,
  (SELECT string_agg('member of ' || m.rolname, ', ' ORDER BY m.rolname) FROM pg_roles AS m
    WHERE m.oid <> r.oid AND pg_has_role(r.oid, m.oid, 'MEMBER')
      AND (m.rolsuper OR m.rolname IN ('ledger_owner', 'ledger_migrator', 'ledger_writer',
        'pg_write_all_data', 'pg_write_server_files', 'pg_execute_server_program'))))
FROM pg_roles AS r WHERE r.rolname IN ('ledger_writer', 'ledger_auditor') ORDER BY 1
"""


def rules_on(connection: Connection, table: str) -> list[str]:
    """Return the names of the triggers on a table, without those of its foreign keys."""
    return [name for (name,) in _rows(connection, _OWN_TRIGGERS.format(table))]


def changed_rules(connection: Connection) -> Iterator[str]:
    """
    Yield every function, trigger, constraint, index, column and view that is not as we make it.

    Also what is around them: partitions, policies, event triggers, and the rights of the roles.
    What someone added under names of their own is left alone, unless it can change, hide or refuse
    what is in a table of ours.
    """
    try:
        for look in (_order, _relations, _partitions, _definitions, _enabled, _rules, _events):
            yield from look(connection)
        yield from rights_beyond(connection)
    except DAMAGE as error:
        yield f"the schema is unreadable: {fact_of(error)}"


def _rows(connection: Connection, query: str) -> list[Any]:
    options = {"no_parameters": True}
    return list(connection.exec_driver_sql(query, execution_options=options))


def _missing(kind: str, name: str) -> str:
    return f"a rule of the database is missing: {kind}={name}"


def _changed(kind: str, name: str) -> str:
    return f"a rule of the database was changed: {kind}={name}"


def _added_as(kind: str, name: str) -> str:
    return f"{kind} was added to the database: {kind}={name}"


def _added(kind: str, name: str, table: str) -> str:
    article = "an" if kind[0] in "aeio" else "a"
    return f"{article} {_added_as(kind, name)}, table={table}"


def _shown(key: Key) -> str:
    return "/".join(filter(None, key))


@cache
def _views() -> tuple[str, ...]:
    return tuple(dict.fromkeys(match[1] for text in postgres.RULES if (match := VIEW.match(text))))


def _order(connection: Connection) -> Iterator[str]:
    """Text is UTF-8 and ordered by its bytes, as on SQLite, whatever the server's libraries say."""
    ((encoding, locale, by_bytes),) = _rows(connection, _ORDER)
    if encoding != "UTF8" or not by_bytes:
        yield f"text is not ordered by its bytes: encoding={encoding}, locale={locale}"


def _relations(connection: Connection) -> Iterator[str]:
    found = {name: rest for name, *rest in _rows(connection, _RELATIONS)}
    for table in sorted(schema.METADATA.tables):
        kind, kept, hides = found.get(table, ("", True, False))
        if kind != ("p" if table == EVENTS else "r"):
            yield _missing("table", table)
        elif not kept or hides:
            yield _changed("table", table)
    for view in _views():
        if found.get(view, ("",))[0] != "v":
            yield _missing("view", view)
    for name, (kind, kept, hides) in sorted(found.items()):
        if _PARTITION.fullmatch(name) and (kind != "r" or not kept or hides):
            yield _changed("table", name)


def _parts(connection: Connection) -> dict[str, str]:
    return {child: bound for table, child, bound in _rows(connection, _CHILDREN) if table == EVENTS}


def _partitions(connection: Connection) -> Iterator[str]:
    """Yield what is wrong with how the events are parted; other tables have no children."""
    parts = _parts(connection)
    ((last,),) = _rows(connection, _LAST)
    for number in range(last // PARTITION_EVENTS + 1):
        if f"{EVENTS}_{number}" not in parts:
            yield _missing("partition", f"{EVENTS}_{number}")
    for name, bound in sorted(parts.items()):
        match = _PARTITION.fullmatch(name)
        first = int(match[1]) * PARTITION_EVENTS if match else 0
        if bound != f"FOR VALUES FROM ('{first}') TO ('{first + PARTITION_EVENTS}')" or not match:
            yield _changed("partition", name)
    for table, child, _ in sorted(_rows(connection, _CHILDREN)):
        if table in schema.METADATA.tables and table != EVENTS:
            yield _added("child table", child, table)


def _definitions(connection: Connection) -> Iterator[str]:
    """Compare what the server says of all that our code makes, kind by kind."""
    try:
        yield from _compared(connection, expected(connection))
    except NoScratchError as error:
        yield f"the rules of the database can't be compared with ours: {error}"


def _compared(connection: Connection, ours: Mapping[str, Words]) -> Iterator[str]:
    parts = _parts(connection)
    tables = {*schema.METADATA.tables, *parts, *_views()}
    for kind, words in definitions(connection).items():
        made = dict(ours[kind])
        if kind == "constraint":
            made[EVENTS, _ONE_KEY] = _KEY_OF_A_PARTITION
        wanted = _in_partitions(made, parts)
        found = _as_of_the_log(words, made, parts)
        changed = _other_meaning(connection, kind, wanted, found, parts)
        for key in sorted(wanted):
            if key in changed:
                yield _changed(kind, _shown(key))
            elif key not in found and kind != "view":  # a view was looked for by name
                yield _missing(kind, _shown(key))
        for table, name in sorted(found.keys() - wanted.keys()):
            if kind == "function":
                yield f"under a name of ours, a {_added_as(kind, name)}"
            elif table in tables:
                yield _added(kind, name, table)


def _other_meaning(
    connection: Connection, kind: str, wanted: Words, found: Words, parts: Collection[str]
) -> set[Key]:
    """Return the keys of what was found in other words that mean something else, too."""
    pairs = {
        (table, name): ((EVENTS if table in parts else table, name), text, found[table, name])
        for (table, name), text in wanted.items()
        if found.get((table, name), text) != text
    }
    same = mean_the_same(connection, kind, set(pairs.values()))
    return {key for key, pair in pairs.items() if pair not in same}


def _in_partitions(ours: Words, parts: Mapping[str, str]) -> Words:
    """Return what a log in partitions is made of: each has all of it, and its own keys."""
    whole = {key: text for key, text in ours.items() if key != (EVENTS, _ONE_KEY)}
    for part in parts:
        for (table, name), text in ours.items():
            if table == EVENTS:
                whole[part, name] = _without_place(text, part)
    return whole


def _as_of_the_log(found: Words, ours: Words, parts: Mapping[str, str]) -> Words:
    """Return what was found, that of a partition by the names that the whole log has for it."""
    log = {name: text for (table, name), text in ours.items() if table == EVENTS}
    names = {_without_place(text, EVENTS): name for name, text in log.items()}
    named = {}
    for (table, name), text in found.items():
        if table in parts:
            words = _without_place(text, table)
            named[
                table, name if name in log else names.get(words.removesuffix(OUT_OF_USE), name)
            ] = words
        else:
            named[table, name] = text
    return named


def _without_place(text: str, table: str) -> str:
    """Return words about a partition without its name and the names that the server made up."""
    return _INDEX.sub(r"\1 ON", text.replace(f" ON {table} ", f" ON {EVENTS} "))


def _enabled(connection: Connection) -> Iterator[str]:
    """Yield every rule that sleeps, always or on a replica, and every foreign key that does."""
    parts = _parts(connection)
    ours = {
        *triggers(),
        *((part, name) for part in parts for table, name in triggers() if table == EVENTS),
    }
    for table, name, internal, enabled in _rows(connection, _ENABLED):
        if internal and enabled != "O" and table in schema.METADATA.tables:
            yield _changed("foreign key", f"{table}/{name}")
        elif not internal and enabled != "A" and (table, name) in ours:
            yield _changed("trigger", f"{table}/{name}")


def _rules(connection: Connection) -> Iterator[str]:
    """Yield what rewrites or hides rows on their way in or out."""
    tables = {*schema.METADATA.tables, *_parts(connection), *_views()}
    for kind, query in (("rule", _RULES), ("policy", _POLICIES)):
        for table, name in _rows(connection, query):
            if table in tables:
                yield _added(kind, name, table)


def _events(connection: Connection) -> Iterator[str]:
    """A ledger that no superuser made has none of these; one that has them keeps them in force."""
    found = {name: tuple(rest) for name, *rest in _rows(connection, _EVENT_TRIGGERS)}
    ((made,),) = _rows(connection, _MADE)
    for name, wanted in EVENT_TRIGGERS.items():
        if name not in found and (made or found.keys() & EVENT_TRIGGERS.keys()):
            yield _missing("event trigger", name)
        elif found.get(name, ("A", *wanted)) != ("A", *wanted):
            yield _changed("event trigger", name)


def rights_beyond(connection: Connection) -> Iterator[str]:
    """
    Yield every right that someone has beyond those of the documented roles, where these are used.

    Rule: design section 4, "Append-only by the database, not by habit". That a right is missing is
    no finding: who lacks it hears so.
    """
    if not _rows(connection, _IN_USE)[0][0]:
        return
    for role, may, table, column in _rows(connection, _GRANTS):
        if not _is_given(role, may, table, column):
            where = f"{table}/{column}" if column else table
            yield f"a role may do what it was not given: role={role}, may={may}, table={where}"
    for role, name in _rows(connection, _CALLS):
        yield f"a role may do what it was not given: role={role}, may=EXECUTE, function={name}"
    for role, powers in _rows(connection, _POWERS):
        for power in filter(None, powers.split(", ")):
            yield f"a role may do what it was not given: role={role}, may={power}"
    for role, name in _rows(connection, _OWNERS):
        yield f"a part of the ledger has another owner: role={role}, name={name}"


def _is_given(role: str, may: str, table: str, column: str) -> bool:
    """Tell whether the roles' own statements give this; anyone may be let read."""
    if may == "SELECT":
        return True
    if role != _WRITER or table not in schema.METADATA.tables:
        return False
    given = {
        "INSERT": table not in KEPT_FROM_WRITER and not column,
        "UPDATE": column in UPDATES.get(table, ()),
        "DELETE": table in DELETES,
    }
    return given.get(may, False)
