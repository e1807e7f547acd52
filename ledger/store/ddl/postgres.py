"""
The rules that Postgres itself enforces, whoever connects: one list per revision.

Every rule is the one of the same name on SQLite, with the same words in its refusal. Triggers are
ENABLE ALWAYS, so that `session_replication_role` does not silence them.
"""

from __future__ import annotations

from typing import Final

V1: Final[tuple[str, ...]] = ()
"""Functions and triggers of revision 0001, in the order in which they are made."""

V2: Final[tuple[str, ...]] = ()
"""Functions, triggers and views of revision 0002, in the order in which they are made."""
