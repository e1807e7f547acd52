"""
How Postgres writes the rules: a function in plpgsql, its trigger, and that it fires ALWAYS.

ALWAYS is whatever `session_replication_role` says. No text holds a percent sign: drivers would read
it as a parameter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from ledger.store.ddl.rules.rule import (
    ALWAYS,
    PREFIX,
    Case,
    RefusalWords,
    TableRule,
    said,
    unchanged,
    words,
)
from ledger.store.ddl.words import OF_RULES, written

SEARCH_PATH: Final = "pg_catalog, public, pg_temp"
"""Where the functions look for names: never first in a schema that a caller may write."""
REFUSED: Final = "TL001"
"""The SQLSTATE of a refusal."""

HINT: Final = "tenure.next"
"""
The setting by which the rule of the head says which positions are new in its transaction.

Their rows need not be looked up then; keys refuse a repeat in their own words. Nothing else may
rest on it: anybody can set it.
"""
NOT_NEW: Final = (
    f"NEW.position < coalesce(nullif(current_setting('{HINT}', true), '')::bigint,"
    " NEW.position + 1)"
)
"""The condition that no head moved before the position of NEW in the transaction."""
_ROW: Final = re.compile(r"\b(NEW|OLD)\.")

When = Literal["BEFORE", "AFTER"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """
    What the server needs beside a rule, to ask it in less time or to do more with its answer.

    Attributes:
        only_if: the rows of which this is true are asked; a condition without a query.
        reads: the statements in the place of the one that finds what the rule reads.
        first, last: statements before and behind the questions.
        more: cases behind the others.
        definer: asked with the rights of the owner.
    """

    only_if: str = ""
    variables: str = ""
    reads: str = ""
    first: str = ""
    last: str = ""
    more: tuple[Case, ...] = ()
    definer: bool = False


def fail(refusal: RefusalWords | None) -> str:
    """Return the statement that refuses with these words; that lets a row through for none."""
    if refusal is None:
        return "RETURN NEW;"
    short = f"{PREFIX}{refusal.short}".replace("'", "''")
    return (
        f"RAISE EXCEPTION USING ERRCODE = '{REFUSED}',"
        f" MESSAGE = coalesce({words(PREFIX + refusal.text)}, '{short}');"
    )


def questions(cases: tuple[Case, ...]) -> str:
    """Return the statement that asks cases in turn."""
    if cases[0].condition == ALWAYS:
        return f"  {fail(cases[0].refusal)}"
    lines = (f"IF ({condition}) THEN\n    {fail(refusal)}\n  " for condition, refusal in cases)
    return f"  {'ELS'.join(lines)}END IF;"


def function(name: str, body: str, *, variables: str = "", definer: bool = False) -> str:
    """Return the text of a trigger function; a `definer` may move counters as the owner may."""
    security = " SECURITY DEFINER" if definer else ""
    declare = f"DECLARE\n  {variables}\n" if variables else ""
    return (
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql{security}"
        f" SET search_path = {SEARCH_PATH} AS $rule$\n"
        f"{declare}BEGIN\n{body.strip()}\nEND\n$rule$"
    )


def fires(
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
    left = "OLD" if event == "DELETE" else "NEW"
    leave = f"RETURN {left if (when, level) == ('BEFORE', 'ROW') else 'NULL'};"
    texts = (
        function(name, f"{body.rstrip()}\n  {leave}", variables=variables, definer=definer),
        f"REVOKE ALL ON FUNCTION {name}() FROM PUBLIC",
        f"CREATE TRIGGER {name} {when} {event} ON {table} {calls}",
        f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}",
    )
    return tuple(written(each, OF_RULES, "postgresql") for each in texts)


follows: Final = partial(fires, when="AFTER", level="STATEMENT")
"""As `fires`, once behind a whole statement."""
_PLAIN: Final = Tuned()


def rows_of(rule: TableRule, tuned: Tuned = _PLAIN) -> tuple[str, ...]:
    """
    Return the statements of a rule that is asked of each row before it is written.

    What lets rows through at once is the trigger's own condition, and so is a single case without a
    query: there the function is only called to refuse. What a rule asks besides, a rule of its own
    asks of all rows of a statement together (`of_changed`).
    """
    cases, only_if = (*rule.cases, *tuned.more), tuned.only_if
    variables = tuned.variables
    reads = tuned.reads
    if cases[0].refusal is None:
        only_if, cases = f"NOT ({cases[0].condition})", cases[1:]
    if len(cases) == 1 and not only_if and "SELECT" not in cases[0].condition:
        ((only_if, refusal),) = cases
        cases = (Case(ALWAYS, refusal),)
    if rule.reads is not None:
        table, alias, keys = rule.reads
        variables = f"{alias} {table}; {variables}".strip()
        condition = " AND ".join(f"{key} = NEW.{key}" for key in keys)
        reads = reads or f"SELECT * INTO {alias} FROM {table} WHERE {condition};"
    body = [f"  {reads}"] if reads else []
    body += [tuned.first] if tuned.first else []
    body += [questions(cases)]
    body += [tuned.last] if tuned.last else []
    return fires(
        rule.name,
        rule.table,
        f"UPDATE OF {', '.join(rule.columns)}" if rule.columns else rule.event,
        "\n".join(body),
        variables=variables,
        definer=tuned.definer,
        only_if=only_if,
    )


def at_changed(condition: str) -> str:
    """Return the condition of NEW and OLD for the row `c` that a statement left."""
    return _ROW.sub("c.", condition)


def of_changed(*cases: Case, join: str = "") -> str:
    """
    Return the statements that ask cases of all rows that a statement left, in one query.

    NEW and OLD in them are the row `c`; and in their words `wrong`, the first one that is met.
    """
    conditions = [at_changed(condition) for condition, _ in cases]
    find = f"SELECT c.* INTO wrong FROM changed AS c {join}".rstrip() + " WHERE {} LIMIT 1;"
    told = "".join(
        f"""
    {find.format(condition)}
    IF FOUND THEN
      {_ROW.sub("wrong.", fail(refusal))}
    END IF;"""
        for condition, (_, refusal) in zip(conditions, cases, strict=True)
    )
    if len(cases) == 1:
        return told
    either = " OR ".join(f"({condition})" for condition in conditions)
    return f"\n  {find.format(either)}\n  IF FOUND THEN{told}\n  END IF;"


def never_emptied(table: str, what: str) -> tuple[str, ...]:
    """Return the rule that lets no one empty `table` at a stroke."""
    refusal = questions((Case(ALWAYS, said(f"{what} are never deleted")),))
    return fires(f"{table}_no_truncate", table, "TRUNCATE", refusal, level="STATEMENT")


def only_ends(
    table: str, columns: tuple[str, ...], refusal: RefusalWords | None
) -> tuple[str, ...]:
    """
    Return the rule that an open row may end, and nothing else of it may change.

    Two triggers: the server reads a condition anew with each statement, and the long one is asked
    only where a statement names one of the columns.
    """
    name = f"{table}_update"
    event = f"UPDATE OF {', '.join(columns)}"
    ended = "FOR EACH ROW WHEN (OLD.closed_position IS NOT NULL)"
    return (
        *fires(name, table, event, f"  {fail(refusal)}", only_if=f"NOT {unchanged(columns)}"),
        f"CREATE TRIGGER {table}_ended BEFORE UPDATE ON {table} {ended} EXECUTE FUNCTION {name}()",
        f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_ended",
    )
