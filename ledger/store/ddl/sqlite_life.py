"""
Rules for snapshots and archived segments: rows never change.

A snapshot may always be deleted, for the events say the same; a segment never, for it is where old
events went.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.texts import fail, never_changes, refuse_delete

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
SEGMENTS_INSERT: Final = f"""
CREATE TRIGGER ledger_segments_insert BEFORE INSERT ON ledger_segments
WHEN NEW.first <> (SELECT coalesce(max(last), 0) + 1 FROM ledger_segments)
  OR NEW.last < NEW.first OR NEW.last > (SELECT position FROM ledger_head)
  OR length(NEW.digest) <> 32 OR length(NEW.chain_hash) <> 32
BEGIN
  SELECT {
    fail(
        "'tenure ledger: segments follow one another up to the head: position ' || NEW.first",
        "tenure ledger: segments follow one another up to the head",
    )
};
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

LIFE: Final = tuple(
    text.strip()
    for text in (
        SNAPSHOTS_INSERT,
        never_changes("ledger_snapshots", "a snapshot"),
        SEGMENTS_INSERT,
        SEGMENTS_NO_UPDATE,
        refuse_delete("ledger_segments", "segments"),
    )
)
"""These rules in the order in which they are made."""
