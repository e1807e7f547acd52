"""What the roles of a Postgres ledger may do beyond what `postgres_roles` gives them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from sqlalchemy import Connection

from ledger.store import schema
from ledger.store.ddl.postgres_roles import DELETES, KEPT_FROM_WRITER, UPDATES

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


def _rows(connection: Connection, query: str) -> list[Any]:
    options = {"no_parameters": True}
    return list(connection.exec_driver_sql(query, execution_options=options))
