"""
Rules for snapshots, archived segments and what stays of the events that moved: rows never change.

A snapshot may always be deleted, for the events say the same; a segment never, for it is where old
events went. An event goes only after its segment and its key are written down, and the segment only
with the event that tells of it.
"""

from __future__ import annotations

from typing import Final

from ledger.store import schema
from ledger.store.ddl.rules.rule import Case, event_is, never_changes, rule, said

_KEPT: Final = ", ".join(f"'{name}'" for name in schema.KEPT)
_HEAD: Final = "(SELECT position FROM ledger_head)"
_DIGESTS: Final = ("digest", "root", "chain_hash", "state_digest")
_SEALED: Final = " AND ".join(f"$text(e.body, {each}) = $hex(NEW.{each})" for each in _DIGESTS)
_UNEVEN: Final = " OR ".join(f"length(NEW.{each}) <> 32" for each in _DIGESTS)

RULES: Final = (
    rule(
        "ledger_snapshots_insert",
        "ledger_snapshots",
        "INSERT",
        Case(
            f"""EXISTS (SELECT 1 FROM ledger_snapshots WHERE position = NEW.position)
  OR length(NEW.digest) <> 32
  OR NOT EXISTS (
    SELECT 1 FROM ledger_events AS e $body(e)
    WHERE e.position = NEW.position + 1 AND {event_is("snapshot.taken")}
      AND $says(e.body, at_position, NEW.position) AND $text(e.body, digest) = $hex(NEW.digest)
  )""",
            said(
                "the event after position {NEW.position} does not commit to this snapshot",
                "no event commits to this snapshot",
            ),
        ),
    ),
    never_changes("ledger_snapshots", "a snapshot"),
    rule(
        "ledger_segments_insert",
        "ledger_segments",
        "INSERT",
        Case(
            f"""NEW.first <> (SELECT coalesce(max(last), 0) + 1 FROM ledger_segments)
      OR NEW.last < NEW.first OR NEW.last % 256 <> 0 OR NEW.last > {_HEAD}""",
            said(
                "segments follow one another up to the head, in whole tiles: position {NEW.first}",
                "segments follow one another up to the head",
            ),
        ),
        Case(
            f"""NEW.position <= NEW.last OR NEW.position <> {_HEAD} OR {_UNEVEN}
      OR NOT EXISTS (
        SELECT 1 FROM ledger_events AS e $body(e)
        JOIN ledger_events AS l ON l.position = NEW.last
        WHERE e.position = NEW.position AND e.event_type = 'segment.archived.v1'
          AND $says(e.body, first, NEW.first) AND $says(e.body, last, NEW.last) AND {_SEALED}
          AND l.chain_hash = NEW.chain_hash AND l.at_us = NEW.at_us
      )""",
            said(
                "the event at position {NEW.position} does not archive this segment",
                "no event archives this segment",
            ),
        ),
    ),
    never_changes("ledger_segments", "a segment", "last"),
    rule(
        "ledger_archived_insert",
        "ledger_archived",
        "INSERT",
        Case(
            f"""EXISTS (
    SELECT 1 FROM ledger_archived
    WHERE position = NEW.position OR idempotency_key = NEW.idempotency_key
  )
  OR NOT EXISTS (
    SELECT 1 FROM ledger_events AS e JOIN ledger_segments AS s
    ON e.position BETWEEN s.first AND s.last
    WHERE e.position = NEW.position AND e.event_type NOT IN ({_KEPT})
      AND (NEW.idempotency_key, NEW.stream, NEW.event_type, NEW.args_hash, NEW.at_us)
        = (e.idempotency_key, e.stream, e.event_type, e.args_hash, e.at_us)
  )""",
            said(
                "no segment holds the event at position {NEW.position}",
                "no segment holds the event",
            ),
        ),
    ),
    never_changes("ledger_archived", "an archived key"),
)
"""These rules in the order in which they are made."""
