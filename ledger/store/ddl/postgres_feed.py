"""Postgres tells the readers of the feed when the head moves, in the append's own transaction."""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.postgres_texts import rule

CHANNEL: Final = "tenure_ledger"
"""Where it is told; the payload is the position. A wake-up only: readers poll as well."""

FEED: Final = rule(
    "ledger_head_told",
    "ledger_head",
    "UPDATE",
    f"""
  PERFORM pg_notify('{CHANNEL}', NEW.position::text);""",
    when="AFTER",
)
"""A trigger, so that whoever appends tells, without one more statement on the way."""
