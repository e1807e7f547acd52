"""The database's errors in the ledger's words: translated once, here."""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy.exc import DBAPIError

from ledger.domain.errors import LedgerError

DAMAGE: Final = (DBAPIError, UnicodeDecodeError)
"""What reading a damaged database may raise: a broken text comes from below the driver."""

_MESSAGE: Final = re.compile(r"tenure ledger: (.*?)'?$", re.DOTALL)


def fact_of(error: DBAPIError | UnicodeDecodeError) -> str:
    """Return what the database said, without its own wrapping."""
    text = str(error.orig if isinstance(error, DBAPIError) else error)
    found = _MESSAGE.search(text)
    return found[1].replace("''", "'") if found else text


def refused_by_rule(error: DBAPIError) -> bool:
    """Tell whether a rule of the ledger or a constraint refused, not the disk or a lock."""
    text = str(error.orig)
    return "tenure ledger: " in text or "constraint" in text


def unavailable(error: DBAPIError) -> LedgerError:
    """Return the error for a database that can't be written or read now."""
    text = str(error.orig)
    if "locked" in text or "busy" in text:
        return LedgerError(f"another process writes this ledger: {text}")
    if "full" in text:
        return LedgerError(f"nothing was recorded, the disk is full: {text}")
    if "readonly" in text:
        return LedgerError(f"nothing was recorded, the ledger can only be read: {text}")
    return LedgerError(f"the database failed: {text}")
