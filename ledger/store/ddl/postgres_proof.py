"""Rules for the Merkle tree, its tiles and the signed checkpoints on Postgres, as on SQLite."""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.postgres_texts import SEARCH_PATH


def _rule(name: str, event: str, table: str, body: str) -> tuple[str, ...]:
    """Return the function, the trigger and the order to fire always, for one rule."""
    scope = "STATEMENT" if event == "TRUNCATE" else "ROW"
    head = (
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql"
        f" SET search_path = {SEARCH_PATH} AS $rule$"
    )
    what = f"FOR EACH {scope} EXECUTE FUNCTION {name}()"
    return (
        f"{head}\nBEGIN\n{body}\n  RETURN NEW;\nEND\n$rule$",
        f"CREATE TRIGGER {name} BEFORE {event} ON {table} {what}",
        f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {name}",
    )


def _fail(message: str) -> str:
    """Return the statement that fails with the text of a SQL expression."""
    return f"RAISE EXCEPTION USING ERRCODE = 'integrity_constraint_violation', MESSAGE = {message};"


def _refuse(condition: str, message: str) -> str:
    return f"  IF {condition} THEN\n    {_fail(message)}\n  END IF;"


def _never_goes(table: str, what: str) -> tuple[str, ...]:
    """Return the rules that let no row of a table go, one by one or all at once."""
    body = "  " + _fail(f"'tenure ledger: {what} are never deleted'")
    return (
        *_rule(f"{table}_no_delete", "DELETE", table, body),
        *_rule(f"{table}_no_truncate", "TRUNCATE", table, body),
    )


PROOF: Final = (
    *_rule(
        "ledger_tree_forward",
        "UPDATE",
        "ledger_tree",
        _refuse(
            "NEW.id <> OLD.id OR NEW.size < OLD.size"
            " OR (NEW.size = OLD.size AND NEW.range IS DISTINCT FROM OLD.range)",
            "'tenure ledger: the tree only grows: it has size ' || OLD.size",
        )
        + "\n"
        + _refuse(
            "NEW.size > (SELECT position FROM ledger_head)",
            "'tenure ledger: the tree ends at the head, not at ' || NEW.size",
        ),
    ),
    *_rule(
        "ledger_tree_one",
        "INSERT",
        "ledger_tree",
        _refuse("EXISTS (SELECT 1 FROM ledger_tree)", "'tenure ledger: there is one tree'"),
    ),
    *_rule(
        "ledger_tiles_append",
        "INSERT",
        "ledger_tiles",
        _refuse(
            "NEW.level NOT BETWEEN 0 AND 6 OR length(NEW.hashes) <> 8192"
            " OR NEW.number <> ("
            "SELECT coalesce(max(number), -1) + 1 FROM ledger_tiles WHERE level = NEW.level)"
            " OR ((NEW.number + 1) << (8 * (NEW.level + 1))::int) > (SELECT size FROM ledger_tree)",
            "'tenure ledger: not the next full tile: level ' || NEW.level"
            " || ', number ' || NEW.number",
        ),
    ),
    *_rule(
        "ledger_tiles_no_update",
        "UPDATE",
        "ledger_tiles",
        "  "
        + _fail(
            "'tenure ledger: a tile does not change: level ' || OLD.level"
            " || ', number ' || OLD.number"
        ),
    ),
    *_rule(
        "ledger_checkpoints_append",
        "INSERT",
        "ledger_checkpoints",
        _refuse(
            "NEW.size <= (SELECT coalesce(max(size), -1) FROM ledger_checkpoints)"
            " OR NEW.size > (SELECT position FROM ledger_head)",
            "'tenure ledger: a checkpoint is of a larger tree than the last one, up to the head:"
            " size ' || NEW.size",
        ),
    ),
    *_rule(
        "ledger_checkpoints_no_update",
        "UPDATE",
        "ledger_checkpoints",
        "  " + _fail("'tenure ledger: a checkpoint does not change: size ' || OLD.size"),
    ),
    *_never_goes("ledger_tree", "trees"),
    *_never_goes("ledger_tiles", "tiles"),
    *_never_goes("ledger_checkpoints", "checkpoints"),
)
"""Functions and triggers of these rules, in the order in which they are made."""
