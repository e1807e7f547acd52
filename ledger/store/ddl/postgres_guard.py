"""
Rules on Postgres about whole tables: none is emptied, none is altered or dropped in passing.

Only a superuser can make an event trigger; a ledger migrated by another role has none. It guards
against habit, not against the owner of the database, who can say `SET tenure.migration = 'on'` as
our migrations do. `verify` finds what an owner did.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.postgres_text import SEARCH_PATH, fail
from ledger.store.ddl.rules.rule import said

ALLOW: Final = "SET LOCAL tenure.migration = 'on'"
"""What a migration says first: until its transaction ends it may alter tables of the ledger."""

_REFUSAL: Final = fail(
    said("tables of the ledger are altered only by its migrations: {lower(tg_tag)} {found}")
)
_DDL: Final = (
    *("ALTER TABLE", "ALTER TRIGGER", "ALTER FUNCTION", "ALTER POLICY"),
    *("CREATE RULE", "CREATE TRIGGER", "CREATE FUNCTION", "CREATE POLICY"),
)
_TAGS: Final = ", ".join(f"'{each}'" for each in _DDL)

EVENT_TRIGGERS: Final = {
    "ledger_no_ddl": ("ddl_command_end", "ledger_no_ddl", ", ".join(_DDL)),
    "ledger_no_drop": ("sql_drop", "ledger_no_drop", ""),
}
"""When each event trigger fires, what it calls, and for which commands alone."""
MADE_BY_SUPERUSER: Final = "called by the event trigger of this name"
"""What the comment on `ledger_no_ddl` says where a superuser made the ledger."""


def _guard(name: str, query: str) -> str:
    return f"""CREATE FUNCTION {name}() RETURNS event_trigger
LANGUAGE plpgsql SET search_path = {SEARCH_PATH} AS $rule$
DECLARE
  found text;
BEGIN
  IF current_setting('tenure.migration', true) = 'on' THEN
    RETURN;
  END IF;
  {query}
  IF found IS NOT NULL THEN
    {_REFUSAL}
  END IF;
END
$rule$"""


def _where_superuser(statement: str) -> str:
    return f"""DO $rule$
BEGIN
  IF (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN
    {statement};
  END IF;
END
$rule$"""


RULES: Final = (
    _guard(
        "ledger_no_ddl",
        """SELECT c.object_identity INTO found FROM pg_event_trigger_ddl_commands() AS c
  WHERE strpos(c.object_identity, 'public.ledger_') > 0
    OR EXISTS (
      SELECT 1 FROM pg_trigger AS t JOIN pg_proc AS p ON p.oid = t.tgfoid
      WHERE t.tgrelid = c.objid AND starts_with(p.proname, 'ledger_')
    ) LIMIT 1;""",
    ),
    _guard(
        "ledger_no_drop",
        """SELECT object_identity INTO found FROM pg_event_trigger_dropped_objects()
  WHERE NOT is_temporary AND strpos(object_identity, 'public.ledger_') > 0 LIMIT 1;""",
    ),
    "REVOKE ALL ON FUNCTION ledger_no_ddl() FROM PUBLIC",
    "REVOKE ALL ON FUNCTION ledger_no_drop() FROM PUBLIC",
    _where_superuser(
        f"CREATE EVENT TRIGGER ledger_no_ddl ON ddl_command_end WHEN TAG IN ({_TAGS})"
        " EXECUTE FUNCTION ledger_no_ddl();"
        " ALTER EVENT TRIGGER ledger_no_ddl ENABLE ALWAYS;"
        f" COMMENT ON FUNCTION ledger_no_ddl() IS '{MADE_BY_SUPERUSER}'"
    ),
    _where_superuser(
        "CREATE EVENT TRIGGER ledger_no_drop ON sql_drop EXECUTE FUNCTION ledger_no_drop();"
        " ALTER EVENT TRIGGER ledger_no_drop ENABLE ALWAYS"
    ),
)
"""These rules in the order in which they are made, last of all."""
