"""
One call for what a transaction of the writer sends to Postgres: statements, many rows each.

Rows come as columns, one behind the other in an array of their type. What one call does, its
statements would do one by one: the function has the rights of who calls it and is no rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Column, LargeBinary, Text

from ledger.store import schema
from ledger.store.ddl.postgres_text import SEARCH_PATH
from ledger.store.writing import statements
from ledger.store.writing.statements import Statement

NOT_TOUCHED: Final = "TL002"
"""The SQLSTATE of a step that did not touch all of its rows; the message ends with its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendStatement:
    """
    One statement of the call.

    Attributes:
        columns: name and type of every value of a row, in the order of the store's statement.
        text: the statement; `r` has the rows.
        alone: columns whose values two rows of one statement may not share.
    """

    table: str
    columns: tuple[tuple[str, str], ...]
    text: str
    alone: tuple[str, ...] = ()


def _columns(words: str) -> tuple[tuple[str, str], ...]:
    pairs = (each.strip().rsplit(" ", 1) for each in words.split(","))
    return tuple((name, kind) for name, kind in pairs)


def _kind(column: Column[Any]) -> str:
    if isinstance(column.type, LargeBinary):
        return "bytea"
    if isinstance(column.type, Text):
        return "text"
    return "maybe" if column.nullable else "bigint"


def _insert(statement: Statement, *, alone: Sequence[str] = ()) -> AppendStatement:
    table = schema.METADATA.tables[str(statement.construct.table)]
    columns = tuple((name, _kind(table.c[name])) for name in statement.parameters)
    names = ", ".join(f'"{name}"' for name, _ in columns)
    return AppendStatement(
        table=table.name,
        columns=columns,
        text=f"INSERT INTO public.{table.name} ({names}) SELECT * FROM {{rows}} AS r",
        alone=tuple(alone),
    )


def _update(table: str, columns: str, text: str, *, alone: Sequence[str] = ()) -> AppendStatement:
    pairs = _columns(columns)
    names = ", ".join(name for name, _ in pairs)
    return AppendStatement(
        table=table,
        columns=pairs,
        text=text.replace("{from}", f"FROM {{rows}} AS r ({names})"),
        alone=tuple(alone),
    )


STEPS: Final = (
    _update(
        "ledger_head",
        "position bigint, at_us bigint, hash bytea, e bigint, p bigint",
        "UPDATE public.ledger_head AS t SET position = r.position, at_us = r.at_us,"
        " chain_hash = r.hash {from} WHERE t.epoch = r.e AND t.position = r.p",
    ),
    _insert(statements.EVENT),
    _update(
        "ledger_tree",
        "to_size bigint, to_range bytea, before bigint",
        "UPDATE public.ledger_tree AS t SET size = r.to_size, range = r.to_range {from}"
        " WHERE t.size = r.before",
    ),
    _insert(statements.RESERVATION),
    _insert(statements.HOLDING, alone=("device_no",)),
    _update(
        "ledger_reservations",
        "phase text, at bigint, end_position bigint, reason text, p bigint",
        "UPDATE public.ledger_reservations AS t SET phase = r.phase, closed_at_us = r.at,"
        " closed_position = r.end_position, end_reason = r.reason {from} WHERE t.position = r.p",
        alone=("p",),
    ),
    _update(
        "ledger_reservations",
        "phase text, phase_position bigint, p bigint",
        "UPDATE public.ledger_reservations AS t SET phase = r.phase,"
        " phase_position = r.phase_position {from} WHERE t.position = r.p",
        alone=("p",),
    ),
    _insert(statements.TILE),
    _insert(statements.CPU_HOLDING, alone=("machine_no", "cpu")),
    _insert(statements.SLOT_HOLDING),
    _insert(statements.REFUSAL),
)
"""What a call can do, by number from 1; the first ones are the hottest."""


_PLACES: Final = {
    "bigint": ("numbers", "number"),
    "maybe": ("maybes", "maybe"),
    "text": ("texts", "letter"),
    "bytea": ("blobs", "blob"),
}
"""
The array that has the values of a type, and where in it the step's first one is.

A `maybe` is a bigint that can be NULL: only an array without any is read at a place, not up to it.
"""


def _places(step: AppendStatement) -> list[tuple[str, str, int]]:
    """Return, for every column, its array, its step's place there, and how many are before it."""
    before = dict.fromkeys(_PLACES, 0)
    places = []
    for _, kind in step.columns:
        places.append((*_PLACES[kind], before[kind]))
        before[kind] += 1
    return places


def _one(step: AppendStatement) -> str:
    values = [f"{array}[{place} + {i}]" for array, place, i in _places(step)]
    return f"(VALUES ({', '.join(values)}))"


def _many(step: AppendStatement) -> str:
    slices = [
        f"{array}[{place} + {i} * many : {place} + {i + 1} * many - 1]"
        for array, place, i in _places(step)
    ]
    return f"unnest({', '.join(slices)})"


def _branches(rows: Callable[[AppendStatement], str]) -> str:
    return "\n".join(
        f"""      WHEN {number} THEN
        {step.text.format(rows=rows(step))};
        GET DIAGNOSTICS done = ROW_COUNT;{_onward(step)}"""
        for number, step in enumerate(STEPS, 1)
    )


def _onward(step: AppendStatement) -> str:
    kinds = [kind for _, kind in step.columns]
    return "".join(
        f"\n        {place} := {place} + {kinds.count(kind)} * many;"
        for kind, (_, place) in _PLACES.items()
        if kind in kinds
    )


APPEND: Final = (
    f"""CREATE FUNCTION ledger_append(
  steps integer[], counts integer[], numbers bigint[], maybes bigint[], texts text[], blobs bytea[]
)
RETURNS void LANGUAGE plpgsql
SET search_path = {SEARCH_PATH} AS $rule$
DECLARE
  number integer := 1;
  maybe integer := 1;
  letter integer := 1;
  blob integer := 1;
  many integer;
  done bigint;
BEGIN
  FOR i IN 1 .. cardinality(steps) LOOP
    many := counts[i];
    IF many = 1 THEN
      CASE steps[i]
{_branches(_one)}
      END CASE;
    ELSE
      CASE steps[i]
{_branches(_many)}
      END CASE;
    END IF;
    IF done <> many THEN
      RAISE EXCEPTION USING ERRCODE = '{NOT_TOUCHED}',
        MESSAGE = 'tenure ledger: a row was not touched: step=' || i;
    END IF;
  END LOOP;
END
$rule$""",
)
"""
The call: which steps, how many rows each has, and their columns one after the other, by type.

One row is sent as VALUES, which is faster to begin. The call raises what a step raises, or that a
step did not touch as many rows as it was given.
"""
