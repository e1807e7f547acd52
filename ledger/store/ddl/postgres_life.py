"""
Rules for snapshots and archived segments on Postgres, as on SQLite: rows never change.

A snapshot may always be deleted, a segment never.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.postgres_texts import (
    BODY,
    event_is,
    fail,
    never_changes,
    refuse,
    refuse_delete,
    refuse_truncate,
    rule,
    says,
)

_UNCOMMITTED: Final = fail(
    "'tenure ledger: the event after position ' || NEW.position"
    " || ' does not commit to this snapshot'",
    "no event commits to this snapshot",
)
_SNAPSHOT: Final = f"""
  IF EXISTS (SELECT 1 FROM ledger_snapshots WHERE position = NEW.position)
    OR NOT EXISTS (
      SELECT 1 FROM ledger_events AS e
      {BODY}
      WHERE e.position = NEW.position + 1 AND {event_is("snapshot.taken")}
        AND {says("j.b", "at_position", "NEW.position")}
        AND j.b->>'digest' = encode(NEW.digest, 'hex')
    )
  THEN
    {_UNCOMMITTED}
  END IF;"""
_APART: Final = fail(
    "'tenure ledger: segments follow one another up to the head: position ' || NEW.first",
    "segments follow one another up to the head",
)
_SEGMENT: Final = f"""
  IF NEW.first <> (SELECT coalesce(max(last), 0) + 1 FROM ledger_segments)
    OR NEW.last < NEW.first OR NEW.last > (SELECT position FROM ledger_head)
  THEN
    {_APART}
  END IF;"""

LIFE: Final = (
    *rule("ledger_snapshots_insert", "ledger_snapshots", "INSERT", _SNAPSHOT),
    *never_changes("ledger_snapshots", "a snapshot"),
    *rule("ledger_segments_insert", "ledger_segments", "INSERT", _SEGMENT),
    *refuse(
        "ledger_segments_no_update",
        "ledger_segments",
        "UPDATE",
        "'tenure ledger: a segment does not change: position ' || OLD.last",
        "a segment does not change",
    ),
    *refuse_delete("ledger_segments", "segments"),
    *refuse_truncate("ledger_segments", "segments"),
)
"""Functions and triggers of these rules, in the order in which they are made."""
