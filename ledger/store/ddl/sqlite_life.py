"""
Rules for snapshots, archived segments and what stays of the events that moved: rows never change.

A snapshot may always be deleted, for the events say the same; a segment never, for it is where old
events went. An event goes only after its segment and its key are written down, and the segment only
with the event that tells of it.
"""

from __future__ import annotations

from typing import Final

from ledger.store import schema
from ledger.store.ddl.texts import fail, never_changes, refuse_delete

_KEPT: Final = ", ".join(f"'{name}'" for name in schema.KEPT)
SNAPSHOTS_INSERT: Final = f"""
CREATE TRIGGER ledger_snapshots_insert BEFORE INSERT ON ledger_snapshots
WHEN EXISTS (SELECT 1 FROM ledger_snapshots WHERE position = NEW.position)
  OR length(NEW.digest) <> 32
  OR NOT EXISTS (
    SELECT 1 FROM ledger_events AS e
    WHERE e.position = NEW.position + 1 AND e.event_type LIKE 'snapshot.taken.v%'
      AND json_extract(e.body, '$.at_position') = NEW.position
      AND json_extract(e.body, '$.digest') = lower(hex(NEW.digest))
  )
BEGIN
  SELECT {
    fail(
        "'tenure ledger: the event after position ' || NEW.position"
        " || ' does not commit to this snapshot'",
        "tenure ledger: no event commits to this snapshot",
    )
};
END
"""


def _hex(column: str) -> str:
    return f"json_extract(e.body, '$.{column}') = lower(hex(NEW.{column}))"


SEGMENTS_INSERT: Final = f"""
CREATE TRIGGER ledger_segments_insert BEFORE INSERT ON ledger_segments
BEGIN
  SELECT CASE
    WHEN NEW.first <> (SELECT coalesce(max(last), 0) + 1 FROM ledger_segments)
      OR NEW.last < NEW.first OR NEW.last % 256 <> 0
      OR NEW.last > (SELECT position FROM ledger_head)
    THEN {
    fail(
        "'tenure ledger: segments follow one another up to the head, in whole tiles: position '"
        " || NEW.first",
        "tenure ledger: segments follow one another up to the head",
    )
}
    WHEN NEW.position <= NEW.last OR NEW.position <> (SELECT position FROM ledger_head)
      OR length(NEW.digest) <> 32 OR length(NEW.root) <> 32 OR length(NEW.chain_hash) <> 32
      OR length(NEW.state_digest) <> 32
      OR NOT EXISTS (
        SELECT 1 FROM ledger_events AS e JOIN ledger_events AS l ON l.position = NEW.last
        WHERE e.position = NEW.position AND e.event_type = 'segment.archived.v1'
          AND json_extract(e.body, '$.first') = NEW.first
          AND json_extract(e.body, '$.last') = NEW.last
          AND {_hex("digest")} AND {_hex("root")} AND {_hex("chain_hash")}
          AND {_hex("state_digest")}
          AND l.chain_hash = NEW.chain_hash AND l.at_us = NEW.at_us
      )
    THEN {
    fail(
        "'tenure ledger: the event at position ' || NEW.position"
        " || ' does not archive this segment'",
        "tenure ledger: no event archives this segment",
    )
}
  END;
END
"""
SEGMENTS_NO_UPDATE: Final = f"""
CREATE TRIGGER ledger_segments_no_update BEFORE UPDATE ON ledger_segments
BEGIN
  SELECT {
    fail(
        "'tenure ledger: a segment does not change: position ' || OLD.last",
        "tenure ledger: a segment does not change",
    )
};
END
"""
ARCHIVED_INSERT: Final = f"""
CREATE TRIGGER ledger_archived_insert BEFORE INSERT ON ledger_archived
WHEN EXISTS (
    SELECT 1 FROM ledger_archived
    WHERE position = NEW.position OR idempotency_key = NEW.idempotency_key
  )
  OR NOT EXISTS (
    SELECT 1 FROM ledger_events AS e JOIN ledger_segments AS s
    ON e.position BETWEEN s.first AND s.last
    WHERE e.position = NEW.position AND e.event_type NOT IN ({_KEPT})
      AND (NEW.idempotency_key, NEW.stream, NEW.event_type, NEW.args_hash, NEW.at_us)
        IS (e.idempotency_key, e.stream, e.event_type, e.args_hash, e.at_us)
  )
BEGIN
  SELECT {
    fail(
        "'tenure ledger: no segment holds the event at position ' || NEW.position",
        "tenure ledger: no segment holds the event",
    )
};
END
"""
LIFE: Final = tuple(
    text.strip()
    for text in (
        SNAPSHOTS_INSERT,
        never_changes("ledger_snapshots", "a snapshot"),
        SEGMENTS_INSERT,
        SEGMENTS_NO_UPDATE,
        refuse_delete("ledger_segments", "segments"),
        ARCHIVED_INSERT,
        never_changes("ledger_archived", "an archived key"),
        refuse_delete("ledger_archived", "archived keys"),
    )
)
"""These rules in the order in which they are made."""
