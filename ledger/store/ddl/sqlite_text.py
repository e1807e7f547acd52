"""
How SQLite writes the rules: one trigger each.

RAISE takes only a literal before SQLite 3.47, so a message with the card or the position in it is
raised as the error of a JSON path, and a literal RAISE stands behind it.
"""

from __future__ import annotations

from typing import Final

from ledger.domain.proofs.canonical import INTEGER_MAX
from ledger.store import schema
from ledger.store.ddl.rules.rule import ALWAYS, PREFIX, Case, Refusal, Rule, message, written

_ROW_ID: Final = ("rowid", "_rowid_", "oid")
"""A key that is one number has these names too, and UPDATE OF goes by the name that was written."""


class SqliteWords:
    """SQLite's words; see `rule.Dialect`."""

    def same(self, a: str, b: str) -> str:
        """Return that two values are the same."""
        return f"{a} IS {b}"

    def differ(self, a: str, b: str) -> str:
        """Return that two values are not the same."""
        return f"{a} IS NOT {b}"

    def max(self, a: str, b: str) -> str:
        """Return the greater number."""
        return f"max({a}, {b})"

    def find(self, text: str, part: str) -> str:
        """Return where a part begins."""
        return f"instr({text}, {part})"

    def begins(self, text: str, start: str) -> str:
        """Return that a text begins so."""
        return f"{text} LIKE {start.removesuffix(chr(39))}%'"

    def hex(self, column: str) -> str:
        """Return bytes as digits."""
        return f"lower(hex({column}))"

    def body(self, event: str) -> str:
        """Return nothing: SQLite keeps what it parsed."""
        del event
        return ""

    def each(self, value: str, field: str, alias: str) -> str:
        """Return the elements of an array."""
        return f"json_each({value}, '$.{field}') AS {alias}"

    def says(self, value: str, field: str, column: str) -> str:
        """Return that a field has a column's value."""
        return f"{self.text(value, field)} = {column}"

    def has(self, value: str, field: str, column: str) -> str:
        """Return that an array has a number."""
        return f"EXISTS (SELECT 1 FROM {self.each(value, field, 'w')} WHERE w.value = {column})"

    def text(self, value: str, field: str) -> str:
        """Return a field's value."""
        return f"json_extract({value}, '$.{field}')"

    tells = says
    flag = text
    json = text

    def no_object(self, text: str) -> str:
        """Return that a text is no object."""
        return f"(substr({text}, 1, 1) <> '{{' OR NOT json_valid({text}))"

    def unclear(self, text: str, arrays: str) -> str:
        """Return that an object says something twice, or not exactly."""
        inner = " UNION ALL ".join(
            f"SELECT e.key AS place, f.key AS name FROM json_each({text}, '$.{name}') AS e,"
            " json_each(CASE e.type WHEN 'object' THEN e.value ELSE '{}' END) AS f"
            for name in arrays.split()
        )
        inexact = f"max(type = 'real' OR type = 'integer' AND abs(value) > {INTEGER_MAX})"
        return f"""(EXISTS (
        SELECT 1 FROM json_each({text}) GROUP BY key HAVING count(*) > 1 OR {inexact}
      ) OR EXISTS (SELECT 1 FROM ({inner}) GROUP BY place, name HAVING count(*) > 1))"""


WORDS: Final = SqliteWords()


def fail(refusal: Refusal | None) -> str:
    """Return an expression that fails with these words; NULL for none."""
    if refusal is None:
        return "NULL"
    literal = f"{PREFIX}{refusal.short}".replace("'", "''")
    return f"coalesce(json_extract('{{}}', {message(refusal)}), RAISE(ABORT, '{literal}'))"


def trigger(rule: Rule, *, does: str = "") -> str:
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
    return written(text, WORDS)


def _choice(cases: tuple[Case, ...]) -> str:
    if cases[0].condition == ALWAYS:
        return fail(cases[0].refusal)
    lines = (f"    WHEN {condition}\n    THEN {fail(refusal)}\n" for condition, refusal in cases)
    return f"CASE\n{''.join(lines)}  END"


def _names(rule: Rule) -> tuple[str, ...]:
    """Return the columns that are asked, with the other names of the row's number."""
    keys = [each.name for each in schema.METADATA.tables[rule.table].primary_key]
    known = len(keys) == 1 and keys[0] in rule.columns
    return (*_ROW_ID, *rule.columns) if known else rule.columns
