"""Rules for the Merkle tree, its tiles and the signed checkpoints: they grow and never change."""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.texts import fail, refuse_delete

TREE_FORWARD: Final = f"""
CREATE TRIGGER ledger_tree_forward BEFORE UPDATE ON ledger_tree
BEGIN
  SELECT CASE
    WHEN NEW.id <> OLD.id OR NEW.size < OLD.size
      OR (NEW.size = OLD.size AND NEW.range IS NOT OLD.range)
    THEN {
    fail(
        "'tenure ledger: the tree only grows: it has size ' || OLD.size",
        "tenure ledger: the tree only grows",
    )
}
    WHEN NEW.size > (SELECT position FROM ledger_head)
    THEN {
    fail(
        "'tenure ledger: the tree ends at the head, not at ' || NEW.size",
        "tenure ledger: the tree ends at the head",
    )
}
  END;
END
"""
TREE_ONE: Final = f"""
CREATE TRIGGER ledger_tree_one BEFORE INSERT ON ledger_tree
WHEN EXISTS (SELECT 1 FROM ledger_tree)
BEGIN
  SELECT {fail("'tenure ledger: there is one tree'", "tenure ledger: there is one tree")};
END
"""
TILES_APPEND: Final = f"""
CREATE TRIGGER ledger_tiles_append BEFORE INSERT ON ledger_tiles
WHEN NEW.level NOT BETWEEN 0 AND 6 OR length(NEW.hashes) <> 8192
  OR NEW.number <> (
    SELECT coalesce(max(number), -1) + 1 FROM ledger_tiles WHERE level = NEW.level
  )
  OR ((NEW.number + 1) << (8 * (NEW.level + 1))) > (SELECT size FROM ledger_tree)
BEGIN
  SELECT {
    fail(
        "'tenure ledger: not the next full tile: level ' || NEW.level || ', number ' || NEW.number",
        "tenure ledger: not the next full tile",
    )
};
END
"""
TILES_NO_UPDATE: Final = f"""
CREATE TRIGGER ledger_tiles_no_update BEFORE UPDATE ON ledger_tiles
BEGIN
  SELECT {
    fail(
        "'tenure ledger: a tile does not change: level ' || OLD.level || ', number ' || OLD.number",
        "tenure ledger: a tile does not change",
    )
};
END
"""
CHECKPOINTS_APPEND: Final = f"""
CREATE TRIGGER ledger_checkpoints_append BEFORE INSERT ON ledger_checkpoints
WHEN NEW.size <= (SELECT coalesce(max(size), -1) FROM ledger_checkpoints)
  OR NEW.size > (SELECT position FROM ledger_head)
BEGIN
  SELECT {
    fail(
        "'tenure ledger: a checkpoint is of a larger tree than the last one, up to the head: size '"
        " || NEW.size",
        "tenure ledger: a checkpoint is of a larger tree than the last one",
    )
};
END
"""
CHECKPOINTS_NO_UPDATE: Final = f"""
CREATE TRIGGER ledger_checkpoints_no_update BEFORE UPDATE ON ledger_checkpoints
BEGIN
  SELECT {
    fail(
        "'tenure ledger: a checkpoint does not change: size ' || OLD.size",
        "tenure ledger: a checkpoint does not change",
    )
};
END
"""

PROOF: Final = tuple(
    text.strip()
    for text in (
        TREE_FORWARD,
        TREE_ONE,
        TILES_APPEND,
        TILES_NO_UPDATE,
        CHECKPOINTS_APPEND,
        CHECKPOINTS_NO_UPDATE,
        refuse_delete("ledger_tree", "trees"),
        refuse_delete("ledger_tiles", "tiles"),
        refuse_delete("ledger_checkpoints", "checkpoints"),
    )
)
"""These rules in the order in which they are made."""
