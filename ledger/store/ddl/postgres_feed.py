"""Postgres tells the readers of the feed when the head moves, in the append's own transaction."""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.postgres_life import in_place
from ledger.store.ddl.postgres_log import head_forward

CHANNEL: Final = "tenure_ledger"
"""Where it is told; the payload is the position. A wake-up only: readers poll as well."""

# An expression that calls the function takes less time than a query that does.
_TELL: Final = f"""
  IF pg_notify('{CHANNEL}', NEW.position::text) IS NULL THEN
    hint := '';
  END IF;"""

FEED: Final = (in_place(head_forward(_TELL)[0]),)
"""
In place of the rule of revision 0001: once the head may move, its move is told.

A rule, so that whoever appends tells, without one more statement on the way.
"""
