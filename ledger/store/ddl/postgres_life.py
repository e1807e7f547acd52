"""
Rules for snapshots and archived segments on Postgres, as on SQLite: rows never change.

A snapshot may always be deleted, a segment never, an event once its segment and its key are there.
"""

from __future__ import annotations

from typing import Final

from ledger.store import schema
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
    "'tenure ledger: segments follow one another up to the head, in whole tiles: position '"
    " || NEW.first",
    "segments follow one another up to the head",
)
_UNSEALED: Final = fail(
    "'tenure ledger: the event at position ' || NEW.position || ' does not archive this segment'",
    "no event archives this segment",
)


def _hex(column: str) -> str:
    return f"j.b->>'{column}' = encode(NEW.{column}, 'hex')"


_SEGMENT: Final = f"""
  IF NEW.first <> (SELECT coalesce(max(last), 0) + 1 FROM ledger_segments)
    OR NEW.last < NEW.first OR NEW.last % 256 <> 0
    OR NEW.last > (SELECT position FROM ledger_head)
  THEN
    {_APART}
  ELSIF NEW.position <= NEW.last OR NEW.position <> (SELECT position FROM ledger_head)
    OR NOT EXISTS (
      SELECT 1 FROM ledger_events AS e
      JOIN ledger_events AS l ON l.position = NEW.last
      {BODY}
      WHERE e.position = NEW.position AND e.event_type = 'segment.archived.v1'
        AND {says("j.b", "first", "NEW.first")} AND {says("j.b", "last", "NEW.last")}
        AND {_hex("digest")} AND {_hex("root")} AND {_hex("chain_hash")}
        AND {_hex("state_digest")}
        AND l.chain_hash = NEW.chain_hash AND l.at_us = NEW.at_us
    )
  THEN
    {_UNSEALED}
  END IF;"""
_NOT_HELD: Final = fail(
    "'tenure ledger: no segment holds the event at position ' || NEW.position",
    "no segment holds the event",
)
_KEPT: Final = ", ".join(f"'{name}'" for name in schema.KEPT)
_ARCHIVED: Final = f"""
  IF EXISTS (
      SELECT 1 FROM ledger_archived
      WHERE position = NEW.position OR idempotency_key = NEW.idempotency_key
    )
    OR NOT EXISTS (
      SELECT 1 FROM ledger_events AS e JOIN ledger_segments AS s
      ON e.position BETWEEN s.first AND s.last
      WHERE e.position = NEW.position AND e.event_type NOT IN ({_KEPT})
        AND (NEW.idempotency_key, NEW.stream, NEW.event_type, NEW.args_hash, NEW.at_us)
          = (e.idempotency_key, e.stream, e.event_type, e.args_hash, e.at_us)
    )
  THEN
    {_NOT_HELD}
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
    *rule("ledger_archived_insert", "ledger_archived", "INSERT", _ARCHIVED),
    *never_changes("ledger_archived", "an archived key"),
    *refuse_delete("ledger_archived", "archived keys"),
    *refuse_truncate("ledger_archived", "archived keys"),
)
"""Functions and triggers of these rules, in the order in which they are made."""
