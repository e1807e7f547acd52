"""What revision 0002 adds on SQLite: rules for the new tables, views in place of the old ones."""

from __future__ import annotations

from typing import Final

from ledger.store.ddl import sqlite_lean, sqlite_life, sqlite_places, sqlite_proof, sqlite_views2

V2: Final[tuple[str, ...]] = (
    *sqlite_proof.PROOF,
    *sqlite_life.LIFE,
    *sqlite_lean.V2,
    *sqlite_places.V2,
    *sqlite_views2.V2,
)
"""Statements of revision 0002, in order."""
