"""Rules for the Merkle tree, its tiles and the signed checkpoints: they grow and never change."""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.rules.rule import ALWAYS, Case, event_is, no_event, rule, said

_HEAD: Final = "(SELECT position FROM ledger_head)"
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
)
"""These rules in the order in which they are made."""
