"""The database's errors in the ledger's words: translated once, here."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from ledger.domain.errors import BusyError, LedgerError, TenureError, UnknownOutcomeError

DAMAGE: Final = (DBAPIError, UnicodeDecodeError)
"""What reading a damaged database may raise: a broken text comes from below the driver."""

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")
_Error = TypeVar("_Error", bound=TenureError)
_CHECK: Final = re.compile(r"CHECK constraint failed: (\w+)|violates check constraint \"(\w+)\"")
_MESSAGE: Final = re.compile(r"tenure ledger: (.*?)'?$", re.DOTALL)
_RULE_STATES: Final = ("23", "P0001", "TL")
"""How the SQLSTATE of a refusal begins: a constraint, or a rule of ours."""
_LOCK_STATES: Final = frozenset({"55P03", "40001", "40P01"})
"""Waited too long for a lock, or lost against another transaction."""


def advised(error: _Error, step: str) -> _Error:
    """Return the error with what to do next as its note."""
    error.add_note(step)
    return error


def fact_of(error: DBAPIError | UnicodeDecodeError) -> str:
    """Return what the database said, without its own wrapping and in the same words on both."""
    text = words_of(error.orig) if isinstance(error, DBAPIError) else str(error)
    check = _CHECK.search(text)
    if check:
        return f"a constraint is not met: {check[1] or check[2]}"
    found = _MESSAGE.search(text)
    return found[1].replace("''", "'") if found else text


def sqlstate_of(error: DBAPIError) -> str:
    """Return the five letters that say what failed; empty on a database that has none."""
    return str(getattr(error.orig, "sqlstate", None) or "")


def refused_by_rule(error: DBAPIError) -> bool:
    """Tell whether a rule of the ledger or a constraint refused, not the disk or a lock."""
    state = sqlstate_of(error)
    if state:
        return state.startswith(_RULE_STATES)
    text = str(error.orig)
    return "tenure ledger: " in text or "constraint" in text


def is_locked(error: DBAPIError | UnicodeDecodeError) -> bool:
    """Tell whether another process is in the way."""
    if isinstance(error, DBAPIError) and sqlstate_of(error):
        return sqlstate_of(error) in _LOCK_STATES
    fact = fact_of(error)
    return "locked" in fact or "busy" in fact


def unavailable(error: DBAPIError) -> LedgerError:
    """Return the error for a database that can't be written or read now."""
    text, state = words_of(error.orig), sqlstate_of(error)
    if is_locked(error):
        return BusyError(f"another process writes this ledger: {text}")
    if "full" in text or state == "53100":
        return LedgerError(f"nothing was recorded, the disk is full: {text}")
    if "readonly" in text or state == "25006":
        return LedgerError(f"nothing was recorded, the ledger can only be read: {text}")
    if state == "42501":
        return LedgerError(f"nothing was recorded, this role may not do it: {text}")
    if error.connection_invalidated or state.startswith(("08", "57P")):
        return LedgerError(f"the database went away: {text}")
    if state == "57014":
        return LedgerError(f"the database took too long: {text}")
    return LedgerError(f"the database failed: {text}")


def unreachable(error: SQLAlchemyError | OSError) -> LedgerError:
    """Return the error for a database that does not answer a service."""
    if isinstance(error, DBAPIError):
        return unavailable(error)
    return LedgerError(f"the database can't be reached: {error or type(error).__name__}")


def in_our_words(asked: Callable[_Given, _Answer]) -> Callable[_Given, _Answer]:
    """
    Let no error of the database leave what is asked of a writer but as a LedgerError.

    What the driver did not say itself leaves open what became of a commit.
    """

    @wraps(asked)
    def answered(*given: _Given.args, **named: _Given.kwargs) -> _Answer:
        try:
            return asked(*given, **named)
        except DBAPIError as error:
            raise unavailable(error) from error
        except (SQLAlchemyError, UnicodeDecodeError) as error:
            fact = f"{type(error).__name__}: {error}"
            raise UnknownOutcomeError(f"the database failed: {fact}") from error

    return answered


def words_of(error: BaseException | None) -> str:
    """Return the message alone: Postgres adds where in its functions it was."""
    primary = getattr(getattr(error, "diag", None), "message_primary", None)
    return str(primary or error)
