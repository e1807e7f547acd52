"""
Pieces of the texts of the rules on Postgres.

A rule is a function, its trigger, and that the trigger fires ALWAYS, whatever
`session_replication_role` says. No text holds a percent sign: drivers would read it as a parameter.
"""

from __future__ import annotations

from typing import Final, Literal

SEARCH_PATH: Final = "pg_catalog, public, pg_temp"
"""Where the functions look for names: never first in a schema that a caller may write."""
REFUSED: Final = "TL001"
"""The SQLSTATE of a refusal."""

HINT: Final = "tenure.next"
"""
The setting by which the rule of the head says which positions are new in its transaction.

It spares their rows the question whether they are there already, which keys answer too, in their
own words. Nothing else may rest on it: anybody can set it.
"""

When = Literal["BEFORE", "AFTER"]
BODY: Final = "CROSS JOIN LATERAL (SELECT e.body::jsonb AS b OFFSET 0) AS j"
"""The body of the event `e` as `j.b`, parsed once."""


def fail(message: str, literal: str) -> str:
    """Return the statement that refuses with the text of the SQL expression `message`."""
    return (
        f"RAISE EXCEPTION USING ERRCODE = '{REFUSED}',"
        f" MESSAGE = coalesce({message}, 'tenure ledger: {literal}');"
    )


def function(name: str, body: str, *, variables: str = "", definer: bool = False) -> str:
    """
    Return the text that makes a trigger function.

    A `definer` moves counters that the role which appends may not update by itself.
    """
    security = " SECURITY DEFINER" if definer else ""
    declare = f"DECLARE\n  {variables}\n" if variables else ""
    return (
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql{security}"
        f" SET search_path = {SEARCH_PATH} AS $rule$\n"
        f"{declare}BEGIN\n{body.strip()}\nEND\n$rule$"
    )


def rule(
    name: str,
    table: str,
    event: str,
    body: str,
    *,
    when: When = "BEFORE",
    variables: str = "",
    definer: bool = False,
    level: Literal["ROW", "STATEMENT"] = "ROW",
    only_if: str = "",
) -> tuple[str, ...]:
    """
    Return the statements that make one rule: function, trigger, and that it always fires.

    The function is called for rows of which `only_if` is true. A rule AFTER a whole statement
    finds the rows that the statement left in the table `changed`.
    """
    condition = f" WHEN ({only_if})" if only_if else ""
    rows = " REFERENCING NEW TABLE AS changed" if (when, level) == ("AFTER", "STATEMENT") else ""
    calls = f"{rows} FOR EACH {level}{condition} EXECUTE FUNCTION {name}()".strip()
    leave = "RETURN NEW;" if when == "BEFORE" and level == "ROW" else "RETURN NULL;"
    return (
        function(name, f"{body.rstrip()}\n  {leave}", variables=variables, definer=definer),
        f"REVOKE ALL ON FUNCTION {name}() FROM PUBLIC",
        f"CREATE TRIGGER {name} {when} {event} ON {table} {calls}",
        f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}",
    )


def refuse(name: str, table: str, event: str, message: str, literal: str) -> tuple[str, ...]:
    """Return the statements of a rule that lets no such row through."""
    return rule(name, table, event, f"  {fail(message, literal)}")


def refuse_delete(table: str, what: str) -> tuple[str, ...]:
    """Return the rule that lets no row of `table` go."""
    text = f"{what} are never deleted"
    return refuse(f"{table}_no_delete", table, "DELETE", f"'tenure ledger: {text}'", text)


def refuse_truncate(table: str, what: str) -> tuple[str, ...]:
    """Return the rule that lets no one empty `table` at a stroke."""
    text = f"{what} are never deleted"
    refusal = fail(f"'tenure ledger: {text}'", text)
    return rule(f"{table}_no_truncate", table, "TRUNCATE", f"  {refusal}", level="STATEMENT")


def never_changes(table: str, what: str) -> tuple[str, ...]:
    """Return the rule that lets no row of `table` change."""
    return refuse(
        f"{table}_no_update",
        table,
        "UPDATE",
        f"'tenure ledger: {what} does not change: position ' || OLD.position",
        f"{what} does not change",
    )


def not_new() -> str:
    """Return the condition that no head moved before the position of NEW in the transaction."""
    hint = f"nullif(current_setting('{HINT}', true), '')::bigint"
    return f"NEW.position < coalesce({hint}, NEW.position + 1)"


def equal(left: list[str], right: list[str]) -> str:
    """Return the condition that these values are the same, NULL for NULL."""
    return f"(({', '.join(left)}) IS NOT DISTINCT FROM ({', '.join(right)}))"


def same(columns: list[str]) -> str:
    """Return the condition that an UPDATE leaves these columns as they are."""
    return equal([f"NEW.{each}" for each in columns], [f"OLD.{each}" for each in columns])


def says(value: str, path: str, column: str) -> str:
    """Return the condition that a field of the JSON `value` is what the column has."""
    return f"{value}->'{path}' = to_jsonb({column})"


def says_whether(value: str, path: str, column: str) -> str:
    """Return the condition that a truth of the JSON `value` is what the column has as 1 or 0."""
    return f"{column} IN (0, 1) AND {value}->'{path}' = to_jsonb({column} = 1)"


def event_is(kind: str) -> str:
    """Return the condition that the event `e` is of this type, in any version."""
    return f"starts_with(e.event_type, '{kind}.v')"


def node_name(row: str) -> str:
    """Return the name of the node of NEW or OLD."""
    return f"(SELECT node_name FROM ledger_nodes WHERE node_no = {row}.node_no)"


def card_of(row: str) -> str:
    """Return the words for the card that NEW or OLD is."""
    return f"""(
      SELECT 'card ' || n.node_name || '/' || {row}.device_type || '/' || {row}.minor
        || CASE {row}.device_id WHEN '' THEN '' ELSE ' (' || {row}.device_id || ')' END
      FROM ledger_nodes AS n WHERE n.node_no = {row}.node_no
    )"""


def also(name: str, calls: str, table: str, event: str, only_if: str) -> tuple[str, ...]:
    """Return the statements that hang the function of another rule on rows before they change."""
    when = f"FOR EACH ROW WHEN ({only_if})"
    return (
        f"CREATE TRIGGER {name} BEFORE {event} ON {table} {when} EXECUTE FUNCTION {calls}()",
        f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}",
    )


def only_ends(table: str, columns: list[str], refusal: str) -> tuple[str, ...]:
    """
    Return the rule that an open row may end, and nothing else of it may change.

    Two triggers, for the server reads a condition anew with each statement, and the long one is
    asked only where a statement names one of the columns.
    """
    name = f"{table}_update"
    event = f"UPDATE OF {', '.join(columns)}"
    return (
        *rule(name, table, event, f"  {refusal}", only_if=f"NOT {same(columns)}"),
        *also(f"{table}_ended", name, table, "UPDATE", "OLD.closed_position IS NOT NULL"),
    )


def only_closes(table: str, columns: list[str], what: str) -> tuple[str, ...]:
    """Return the rule that lets an open holding end, and change no more; with `ends_with`."""
    text = f"{what} only ends with its reservation"
    refusal = fail(f"'tenure ledger: {text}: position ' || OLD.position", text)
    return only_ends(table, columns, refusal)


def ends_with(what: str) -> str:
    """Return the check that every holding that a statement `changed` ends as its reservation."""
    text = f"{what} only ends with its reservation"
    refusal = fail(f"'tenure ledger: {text}: position ' || wrong", text)
    return f"""
  SELECT c.position INTO wrong FROM changed AS c
  WHERE NOT EXISTS (
    SELECT 1 FROM ledger_reservations AS r
    WHERE r.position = c.position AND r.closed_position = c.closed_position
      AND r.closed_at_us = c.closed_at_us
  ) LIMIT 1;
  IF FOUND THEN
    {refusal}
  END IF;"""
