"""
One call for what a transaction of the writer sends to Postgres: statements, many rows each.

Rows come as columns, each an array in Postgres's own words for arrays. What one call does, its
statements would do one by one: the function has the rights of who calls it and is no rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ledger.store.ddl.postgres_texts import SEARCH_PATH

NOT_TOUCHED: Final = "TL002"
"""The SQLSTATE of a step that did not touch all of its rows; the message ends with its place."""

_COLUMNS: Final = {
    "ledger_events": (
        "position bigint, stream text, stream_version bigint, event_type text, body text,"
        " actor text, epoch bigint, causation_position bigint, correlation_id text,"
        " idempotency_key text, args_hash bytea, at_us bigint, wall_us bigint, leaf_hash bytea,"
        " chain_hash bytea"
    ),
    "ledger_reservations": (
        "position bigint, pod_uid text, attempt bigint, namespace text, pod_name text, owner text,"
        " labels text, priority bigint, qos text, dialect text, policy text, source text,"
        " node_no bigint, cpu_milli bigint, memory_bytes bigint, gpu_core_percent bigint,"
        " gpu_count bigint, device_count bigint, cpuset text, cpu_count bigint, kind text,"
        " phase text, created_at_us bigint, opened_at_us bigint"
    ),
    "ledger_holdings": (
        "position bigint, device_no bigint, minor bigint, core_percent bigint,"
        " memory_bytes bigint, memory_ratio_percent bigint, exclusive bigint, instances bigint,"
        " kind text, opened_at_us bigint"
    ),
    "ledger_cpu_holdings": (
        "position bigint, cpu bigint, node_no bigint, kind text, opened_at_us bigint"
    ),
    "ledger_slot_holdings": (
        "position bigint, slot text, node_no bigint, device_no bigint, kind text,"
        " opened_at_us bigint"
    ),
    "ledger_refusals": (
        "position bigint, at_us bigint, pod_uid text, namespace text, pod_name text, stage text,"
        " message text, shape text, gpu_core_percent bigint, policy text, owner text"
    ),
    "ledger_tiles": "level bigint, number bigint, hashes bytea",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """
    One statement of the call.

    Attributes:
        table: what it writes.
        columns: name and type of every value of a row, in the order of the store's statement.
        text: the statement; `r` has the rows.
        alone: the values that tell rows apart which must not share a statement.
    """

    table: str
    columns: tuple[tuple[str, str], ...]
    text: str
    alone: tuple[str, ...] = ()


def _columns(words: str) -> tuple[tuple[str, str], ...]:
    pairs = (each.strip().rsplit(" ", 1) for each in words.split(","))
    return tuple((name, kind) for name, kind in pairs)


def _insert(table: str, *, alone: Sequence[str] = ()) -> Step:
    columns = _columns(_COLUMNS[table])
    names = ", ".join(f'"{name}"' for name, _ in columns)
    return Step(
        table=table,
        columns=columns,
        text=f"INSERT INTO public.{table} ({names}) SELECT * FROM {{rows}} AS r",
        alone=tuple(alone),
    )


def _update(table: str, columns: str, text: str, *, alone: Sequence[str] = ()) -> Step:
    pairs = _columns(columns)
    names = ", ".join(name for name, _ in pairs)
    return Step(
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
    _insert("ledger_events"),
    _update(
        "ledger_tree",
        "to_size bigint, to_range bytea, before bigint",
        "UPDATE public.ledger_tree AS t SET size = r.to_size, range = r.to_range {from}"
        " WHERE t.size = r.before",
    ),
    _insert("ledger_reservations"),
    _insert("ledger_holdings", alone=("device_no",)),
    _update(
        "ledger_reservations",
        "phase text, at bigint, end_position bigint, reason text, p bigint",
        "UPDATE public.ledger_reservations AS t SET phase = r.phase, closed_at_us = r.at,"
        " closed_position = r.end_position, end_reason = r.reason {from} WHERE t.position = r.p",
        alone=("p",),
    ),
    _update(
        "ledger_reservations",
        "phase text, p bigint",
        "UPDATE public.ledger_reservations AS t SET phase = r.phase {from} WHERE t.position = r.p",
        alone=("p",),
    ),
    _insert("ledger_tiles"),
    _insert("ledger_cpu_holdings", alone=("node_no", "cpu")),
    _insert("ledger_slot_holdings"),
    _insert("ledger_refusals"),
)
"""What a call can do, by number from 1; the first ones are the hottest."""


def _branch(number: int, step: Step) -> str:
    arrays = ", ".join(
        f"words[at + {i}]::{kind}[]" if i else f"words[at]::{kind}[]"
        for i, (_, kind) in enumerate(step.columns)
    )
    text = step.text.format(rows=f"unnest({arrays})")
    return f"""    WHEN {number} THEN
      {text};
      GET DIAGNOSTICS done = ROW_COUNT;
      at := at + {len(step.columns)};"""


_BRANCHES: Final = "\n".join(_branch(i, step) for i, step in enumerate(STEPS, 1))
APPEND: Final = (
    f"""CREATE FUNCTION ledger_append(steps integer[], counts integer[], words text[])
RETURNS void LANGUAGE plpgsql
SET search_path = {SEARCH_PATH} AS $rule$
DECLARE
  at integer := 1;
  done bigint;
BEGIN
  FOR i IN 1 .. cardinality(steps) LOOP
    CASE steps[i]
{_BRANCHES}
    END CASE;
    IF done <> counts[i] THEN
      RAISE EXCEPTION USING ERRCODE = '{NOT_TOUCHED}',
        MESSAGE = 'tenure ledger: a row was not touched: step=' || i;
    END IF;
  END LOOP;
END
$rule$""",
)
"""
The call: which steps, how many rows each has, and their columns one after the other.

It raises what a step raises, or that a step did not touch as many rows as it was given.
"""
