"""
Rules of revision 0001 again: the same ones in fewer steps, and one that has no way around it.

SQLite makes a table for the keys of an UPDATE that may touch several rows, and for the rows of an
INSERT from a query. So each statement here names one whole key where it can, or is not begun.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl import facts, holdings
from ledger.store.ddl.texts import fail, same

EVENTS_COUNT: Final = """
CREATE TRIGGER ledger_events_count AFTER INSERT ON ledger_events
WHEN NEW.stream_version > 1
BEGIN
  UPDATE ledger_streams SET version = NEW.stream_version WHERE stream = NEW.stream;
END
"""
EVENTS_FIRST: Final = """
CREATE TRIGGER ledger_events_first AFTER INSERT ON ledger_events
WHEN NEW.stream_version = 1
BEGIN
  INSERT INTO ledger_streams (stream, version) VALUES (NEW.stream, 1);
END
"""


_ENDED: Final = "closed_at_us = NEW.closed_at_us, closed_position = NEW.closed_position"
CLOSE_CARD: Final = f"""
CREATE TRIGGER ledger_reservations_close AFTER UPDATE OF closed_position ON ledger_reservations
WHEN NEW.closed_position IS NOT NULL AND NEW.device_count = 1
BEGIN
  UPDATE ledger_holdings SET {_ENDED}
  WHERE position = NEW.position
    AND device_no = (SELECT device_no FROM ledger_holdings WHERE position = NEW.position);
END
"""
CLOSE_MORE: Final = f"""
CREATE TRIGGER ledger_reservations_close_more AFTER UPDATE OF closed_position
ON ledger_reservations
WHEN NEW.closed_position IS NOT NULL AND (NEW.device_count <> 1 OR NEW.cpu_count > 0
  OR EXISTS (SELECT 1 FROM ledger_slot_holdings WHERE position = NEW.position))
BEGIN
  UPDATE ledger_holdings SET {_ENDED}
  WHERE NEW.device_count <> 1 AND position = NEW.position;
  UPDATE ledger_cpu_holdings SET {_ENDED}
  WHERE NEW.cpu_count > 0 AND position = NEW.position;
  UPDATE ledger_slot_holdings SET {_ENDED}
  WHERE position = NEW.position;
END
"""

_SAME: Final = f" OR NOT {same(holdings.FIXED_RESERVATION)}"
RESERVATIONS_UPDATE: Final = holdings.RESERVATIONS_UPDATE.replace(_SAME, "")
RESERVATIONS_FIXED: Final = f"""
CREATE TRIGGER ledger_reservations_fixed BEFORE UPDATE OF rowid, _rowid_, oid,
  {", ".join(holdings.FIXED_RESERVATION)}
ON ledger_reservations
WHEN NOT {same(holdings.FIXED_RESERVATION)}
BEGIN
  SELECT {
    fail(
        "'tenure ledger: a reservation only ends, it does not change: position '"
        " || OLD.position || ', pod ' || OLD.namespace || '/' || OLD.pod_name",
        "tenure ledger: a reservation only ends, it does not change",
    )
};
END
"""
"""Apart from the rule for endings, which name none of these columns."""

_COLUMNS: Final = "BEFORE UPDATE OF device_no,"
DEVICES_FACTS: Final = facts.DEVICES_FACTS.replace(_COLUMNS, f"{_COLUMNS} rowid, _rowid_, oid,")
"""A key that is the rowid has these names too, and UPDATE OF goes by the name that was written."""

_AGAIN: Final = (EVENTS_COUNT, RESERVATIONS_UPDATE, CLOSE_CARD, DEVICES_FACTS)
_NEW: Final = (EVENTS_FIRST, RESERVATIONS_FIXED, CLOSE_MORE)
V2: Final[tuple[str, ...]] = (
    *(f"DROP TRIGGER {text.split(maxsplit=3)[2]}" for text in _AGAIN),
    *(text.strip() for text in (*_AGAIN, *_NEW)),
)
"""Statements that put these rules in place of those of revision 0001, in order."""
