"""
Pieces of the texts of the rules.

RAISE takes only a literal before SQLite 3.47, so a message with the card or the position in it is
raised as the error of a JSON path, and a literal RAISE stands behind it.
"""

from __future__ import annotations

from typing import Final

from ledger.domain.log.events import EVENT_TYPES
from ledger.domain.log.upcasts import UPCASTS


def fail(message: str, literal: str) -> str:
    """Return an expression that fails with the text of the SQL expression `message`."""
    return f"coalesce(json_extract('{{}}', {message}), RAISE(ABORT, '{literal}'))"


_BODY: Final = r"replace(NEW.body, '\\', '')"


def _count(word: str) -> str:
    return f"(length({_BODY}) - length(replace({_BODY}, '{word}', ''))) / {len(word)}"


ESCAPED: Final = " <> ".join((_count(r"\u"), _count(r"\u000") + " + " + _count(r"\u001")))
"""The condition that the body of NEW has an escape of what needs none: a name in other letters."""
TYPES: Final = f" {' '.join(sorted({*EVENT_TYPES, *UPCASTS}))} "
"""The types of every event that this release reads, between spaces."""
ASKED: Final = ("devices", "members")
"""The arrays of objects in a body that views look into."""


def refuse_delete(table: str, what: str) -> str:
    """Return the trigger that lets no row of `table` go."""
    name = f"{table}_no_delete"
    body = fail(f"'tenure ledger: {what} are never deleted'", f"{what} are never deleted")
    return f"CREATE TRIGGER {name} BEFORE DELETE ON {table} BEGIN SELECT {body}; END"


def never_changes(table: str, what: str) -> str:
    """Return the trigger that lets no row of `table` change."""
    no_change = fail(
        f"'tenure ledger: {what} does not change: position ' || OLD.position",
        f"tenure ledger: {what} does not change",
    )
    return f"""
CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table}
BEGIN
  SELECT {no_change};
END
"""


def same(columns: list[str]) -> str:
    """Return the condition that an UPDATE leaves these columns as they are."""
    new = ", ".join(f"NEW.{column}" for column in columns)
    old = ", ".join(f"OLD.{column}" for column in columns)
    return f"({new}) IS ({old})"


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


def only_closes(table: str, columns: list[str], what: str) -> str:
    """Return the trigger that lets a holding end with its reservation, and change no more."""
    refusal = fail(
        f"'tenure ledger: {what} only ends with its reservation: position ' || OLD.position",
        f"tenure ledger: {what} only ends with its reservation",
    )
    return f"""
CREATE TRIGGER {table}_update BEFORE UPDATE ON {table}
WHEN OLD.closed_position IS NOT NULL OR NOT {same(columns)}
  OR NOT EXISTS (
    SELECT 1 FROM ledger_reservations AS r
    WHERE r.position = OLD.position AND r.closed_position = NEW.closed_position
      AND r.closed_at_us = NEW.closed_at_us
  )
BEGIN
  SELECT {refusal};
END
"""
