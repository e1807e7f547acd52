"""
How SQLite writes the rules: one trigger each.

RAISE takes only a literal before SQLite 3.47, so a message with the card or the position in it is
raised as the error of a JSON path, and a literal RAISE stands behind it.
"""

from __future__ import annotations

from typing import Final

from ledger.store import schema
from ledger.store.ddl.rules.rule import ALWAYS, PREFIX, Case, RefusalWords, TableRule, words
from ledger.store.ddl.words import OF_RULES, written

_ROW_ID: Final = ("rowid", "_rowid_", "oid")
"""A key that is one number has these names too, and UPDATE OF goes by the name that was written."""


def fail(refusal: RefusalWords | None) -> str:
    """Return an expression that fails with these words; NULL for none."""
    return "NULL" if refusal is None else _fail(words(PREFIX + refusal.text), refusal.short)


def _fail(message: str, short: str) -> str:
    literal = f"{PREFIX}{short}".replace("'", "''")
    return f"coalesce(json_extract('{{}}', {message}), RAISE(ABORT, '{literal}'))"


def trigger(rule: TableRule, *, does: str = "") -> str:
    """
    Return the trigger of a rule.

    One that `does` something does it first, once the row is there.
    """
    cases, when = rule.cases, ""
    if cases[0].refusal is None and not rule.besides:
        when = f"WHEN NOT ({cases[0].condition})\n"
        cases = cases[1:]
    elif len(cases) == 1 and rule.reads is None and not does:
        ((condition, refusal),) = cases
        when = f"WHEN {condition}\n" if condition else ""
        cases = (Case(ALWAYS, refusal),)
    where = ""
    if rule.reads is not None:
        table, alias, keys = rule.reads
        condition = " AND ".join(f"{alias}.{key} = NEW.{key}" for key in keys)
        where = f"\n  FROM (SELECT 1) LEFT JOIN {table} AS {alias} ON {condition}"
    asked = f"  SELECT {_choice(cases)}{where};\n"
    if rule.besides:
        asked += f"  SELECT {_choice((rule.besides,))};\n"
    event = " OF ".join((rule.event, ", ".join(_names(rule)))) if rule.columns else rule.event
    text = (
        f"CREATE TRIGGER {rule.name} {'AFTER' if does else 'BEFORE'} {event} ON {rule.table}\n"
        f"{when}BEGIN\n{does}{asked}END"
    )
    return written(text, OF_RULES, "sqlite")


def _choice(cases: tuple[Case, ...]) -> str:
    if cases[0].condition == ALWAYS:
        return fail(cases[0].refusal)
    subjects = {(_subject(refusal), refusal.short) for _, refusal in cases if refusal}
    if len(cases) > 1 and len(subjects) == 1:
        ((subject, short),) = subjects
        if subject:
            return _choice_of_facts(cases, subject, short)
    lines = (f"    WHEN {condition}\n    THEN {fail(refusal)}\n" for condition, refusal in cases)
    return f"CASE\n{''.join(lines)}  END"


def _subject(refusal: RefusalWords) -> str:
    """Return the expression that the words begin with, in its braces; nothing if with words."""
    before, brace, _ = refusal.text.partition("}")
    return before + brace if before.startswith("{") else ""


def _choice_of_facts(cases: tuple[Case, ...], subject: str, short: str) -> str:
    """
    Return the choice of cases that state facts of one subject, which is put into words once.

    Whenever a trigger starts, SQLite makes room for all that it might say, and clears it.
    """
    conditions, facts = "", ""
    for number, (condition, refusal) in enumerate(cases):
        conditions += f"    WHEN {condition}\n    THEN {number if refusal else 'NULL'}\n"
        if refusal:
            facts += f"    WHEN {number} THEN {words(refusal.text.removeprefix(subject))}\n"
    failed = _fail(f"{words(PREFIX + subject)} || CASE met.number\n{facts}    END", short)
    return (
        f"CASE WHEN met.number IS NOT NULL THEN {failed} END\n"
        f"  FROM (SELECT CASE\n{conditions}  END AS number) AS met"
    )


def _names(rule: TableRule) -> tuple[str, ...]:
    """Return the columns that are asked, with the other names of the row's number."""
    keys = [each.name for each in schema.METADATA.tables[rule.table].primary_key]
    known = len(keys) == 1 and keys[0] in rule.columns
    return (*_ROW_ID, *rule.columns) if known else rule.columns
