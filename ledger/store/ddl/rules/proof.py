"""
Rules for the tree, checkpoints, snapshots and archived segments: they grow, and no row changes.

A snapshot may always be deleted, for the events say the same; a segment never, for it is where old
events went. An event goes only after its segment and its key are written down, and the segment only
with the event that tells of it.
"""

from __future__ import annotations

from typing import Final

from ledger.store import schema
from ledger.store.ddl.rules.rule import ALWAYS, Case, event_is, never_changes, no_event, rule, said

_HEAD: Final = "(SELECT position FROM ledger_head)"
_KEPT: Final = ", ".join(f"'{name}'" for name in schema.KEPT)
_DIGESTS: Final = ("digest", "root", "chain_hash", "state_digest")
_SEALED: Final = " AND ".join(f"$text(e.body, {each}) = $hex(NEW.{each})" for each in _DIGESTS)
_UNEVEN: Final = " OR ".join(f"length(NEW.{each}) <> 32" for each in _DIGESTS)

RULES: Final = (
    rule(
        "ledger_tree_forward",
        "ledger_tree",
        "UPDATE",
        Case(
            "NEW.id <> OLD.id OR NEW.size < OLD.size"
            " OR (NEW.size = OLD.size AND $differ(NEW.range, OLD.range))",
            said("the tree only grows: it has size {OLD.size}"),
        ),
        Case(
            f"NEW.size > {_HEAD}",
            said("the tree ends at the head, not at {NEW.size}", "the tree ends at the head"),
        ),
    ),
    rule(
        "ledger_tree_one",
        "ledger_tree",
        "INSERT",
        Case("EXISTS (SELECT 1 FROM ledger_tree)", said("there is one tree")),
    ),
    rule(
        "ledger_tiles_append",
        "ledger_tiles",
        "INSERT",
        Case(
            """NEW.level NOT BETWEEN 0 AND 6 OR length(NEW.hashes) <> 8192
  OR NEW.number <> (
    SELECT coalesce(max(number), -1) + 1 FROM ledger_tiles WHERE level = NEW.level
  )
  OR ((NEW.number + 1) << CAST(8 * (NEW.level + 1) AS integer)) > (SELECT size FROM ledger_tree)""",
            said("not the next full tile: level {NEW.level}, number {NEW.number}"),
        ),
    ),
    rule(
        "ledger_tiles_no_update",
        "ledger_tiles",
        "UPDATE",
        Case(ALWAYS, said("a tile does not change: level {OLD.level}, number {OLD.number}")),
    ),
    rule(
        "ledger_checkpoints_append",
        "ledger_checkpoints",
        "INSERT",
        Case(
            "NEW.size <= (SELECT coalesce(max(size), -1) FROM ledger_checkpoints)"
            f" OR NEW.size > {_HEAD}",
            said(
                "a checkpoint is of a larger tree than the last one, up to the head:"
                " size {NEW.size}",
                "a checkpoint is of a larger tree than the last one",
            ),
        ),
        Case(
            f"""NOT EXISTS (
    SELECT 1 FROM ledger_events AS e $body(e)
    WHERE e.position = {_HEAD} AND {event_is("checkpoint.stored")}
      AND $says(e.body, size, NEW.size) AND $says(e.body, note, NEW.note)
  )""",
            no_event("stores this checkpoint", at=_HEAD),
        ),
    ),
    rule(
        "ledger_checkpoints_no_update",
        "ledger_checkpoints",
        "UPDATE",
        Case(ALWAYS, said("a checkpoint does not change: size {OLD.size}")),
    ),
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
