"""
Who may do what on Postgres: the owner who never logs in, the migrator, the writer, the auditor.

Applied once by a superuser, and again after every migration, for objects that it made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.store.ddl.postgres_guard import ALLOW

UPDATES: Final[Mapping[str, tuple[str, ...]]] = {
    "ledger_head": ("origin", "epoch", "holder", "position", "at_us", "chain_hash"),
    "ledger_machines": ("system_uuid", "machine_id", "fact_position"),
    "ledger_nodes": (
        *("node_name", "machine_no", "system_uuid", "machine_id", "labels", "cpu_milli"),
        *("memory_bytes", "cpu_ref_max", "moved_position", "lost_position", "fact_position"),
    ),
    "ledger_stands": ("boot_id", "by_agent", "fact_position"),
    "ledger_devices": (
        *("node_no", "minor", "device_id", "unique_id", "model", "present", "healthy"),
        *("core_reported", "memory_reported", "core_cap", "memory_cap", "fact_position"),
    ),
    "ledger_cpus": (
        *("node_no", "core", "socket", "numa", "present", "ref_reported", "ref_max"),
        "fact_position",
    ),
    "ledger_reservations": (
        *("phase", "phase_position", "lost_position", "counted_until_us", "lost_boot_id"),
        *("closed_at_us", "closed_position", "end_reason"),
    ),
    "ledger_planned_cards": ("closed_at_us", "closed_position"),
    "ledger_tree": ("size", "range"),
}
"""The columns that an append changes by itself; every counter moves through the rules alone."""

KEPT_FROM_WRITER: Final = ("ledger_streams", "ledger_segments", "ledger_archived")
"""The tables that an append adds no row to: rules do, or the owner."""
DELETES: Final = ("ledger_snapshots",)
"""The tables that an append takes rows from."""

_NOT_THE_WRITERS: Final = f"({', '.join(repr(name) for name in KEPT_FROM_WRITER)})"
_RELATIONS: Final = """SELECT quote_ident(c.relname) AS name, c.relkind AS kind, c.relispartition
    FROM pg_catalog.pg_class AS c
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'p', 'v')
      AND (starts_with(c.relname, 'ledger_') OR starts_with(c.relname, 'audit_')
        OR c.relname = 'alembic_version')"""


def _role(name: str, options: str) -> str:
    return f"""DO $rule$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = '{name}') THEN
    CREATE ROLE {name} {options};
  END IF;
END
$rule$"""


_OWNED: Final = f"""DO $rule$
DECLARE
  found record;
BEGIN
  FOR found IN {_RELATIONS} LOOP
    EXECUTE CASE found.kind WHEN 'v' THEN 'ALTER VIEW public.' ELSE 'ALTER TABLE public.' END
      || found.name || ' OWNER TO ledger_owner';
  END LOOP;
  FOR found IN
    SELECT p.oid::regprocedure::text AS name FROM pg_catalog.pg_proc AS p
    WHERE p.pronamespace = 'public'::regnamespace AND starts_with(p.proname, 'ledger_')
  LOOP
    EXECUTE 'ALTER FUNCTION ' || found.name || ' OWNER TO ledger_owner';
    EXECUTE 'REVOKE ALL ON FUNCTION ' || found.name || ' FROM PUBLIC';
  END LOOP;
END
$rule$"""
_READ_AND_INSERT: Final = f"""DO $rule$
DECLARE
  found record;
BEGIN
  FOR found IN {_RELATIONS} LOOP
    EXECUTE 'REVOKE ALL ON public.' || found.name || ' FROM PUBLIC, ledger_writer, ledger_auditor';
    CONTINUE WHEN found.relispartition;
    EXECUTE 'GRANT SELECT ON public.' || found.name || ' TO ledger_writer, ledger_auditor';
    IF found.kind <> 'v' AND starts_with(found.name, 'ledger_')
      AND found.name NOT IN {_NOT_THE_WRITERS}
    THEN
      EXECUTE 'GRANT INSERT ON public.' || found.name || ' TO ledger_writer';
    END IF;
  END LOOP;
END
$rule$"""

_FROM_EVERYBODY: Final = """DO $rule$
DECLARE
  found text;
BEGIN
  IF NOT (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN
    RETURN;
  END IF;
  FOR found IN
    SELECT p.oid::regprocedure::text FROM pg_catalog.pg_proc AS p
    WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.proname ~ '^(lo_|lowrite$|loread$'
      '|pg_(try_)?advisory_|pg_(notify|cancel_backend|terminate_backend)$)'
  LOOP
    EXECUTE 'REVOKE ALL ON FUNCTION ' || found || ' FROM PUBLIC';
  END LOOP;
  GRANT EXECUTE ON FUNCTION pg_catalog.pg_notify TO ledger_owner, ledger_writer;
  GRANT EXECUTE ON FUNCTION pg_catalog.pg_advisory_xact_lock(bigint) TO ledger_owner;
END
$rule$"""
"""
What the server lets everybody do that a reader needs not: large objects, locks, others' sessions.

A session may let its transactions write, so that its rights alone count. A dump names what is
revoked, by its arguments: only functions that newer servers have, too, restore there.
"""

ROLES: Final = (
    ALLOW,
    _role("ledger_owner", "NOLOGIN"),
    _role("ledger_migrator", "LOGIN"),
    _role("ledger_writer", "LOGIN"),
    _role("ledger_auditor", "LOGIN"),
    "GRANT ledger_owner TO ledger_migrator",
    "ALTER ROLE ledger_migrator SET role = 'ledger_owner'",
    "ALTER ROLE ledger_auditor SET default_transaction_read_only = on",
    "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
    "GRANT USAGE, CREATE ON SCHEMA public TO ledger_owner",
    "GRANT USAGE ON SCHEMA public TO ledger_writer, ledger_auditor",
    _OWNED,
    _READ_AND_INSERT,
    _FROM_EVERYBODY,
    *(
        f"GRANT UPDATE ({', '.join(columns)}) ON {table} TO ledger_writer"
        for table, columns in UPDATES.items()
    ),
    *(f"GRANT DELETE ON {table} TO ledger_writer" for table in DELETES),
    "GRANT EXECUTE ON FUNCTION ledger_append TO ledger_writer",
)
"""Every statement, in order. Nothing in them is a secret: passwords are set by hand."""
