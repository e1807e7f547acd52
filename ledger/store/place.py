"""Where a ledger is, by its URL: told without the drivers, which take a second to import."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ledger.domain.errors import InputError

_POSTGRES: Final = ("postgresql://", "postgres://")
_SQLITE: Final = "sqlite:///"
_CREDENTIALS: Final = re.compile("//.*@", re.DOTALL)


def is_postgres(url: str) -> bool:
    """Tell whether a ledger URL names a database of Postgres."""
    return url.startswith(_POSTGRES)


def sqlite_path(url: str) -> Path:
    """
    Return the file that a ledger URL names.

    Raises:
        InputError: another database than SQLite.
    """
    if url.startswith(_SQLITE):
        return Path(url.removeprefix(_SQLITE))
    if "://" in url:
        raise InputError(
            "not a ledger URL: use sqlite:///PATH, a path or postgresql://user@host/database",
            place=without_password(url),
        )
    return Path(url)


def expect_file(url: str) -> None:
    """
    Look whether the file is there that a ledger URL names; a server is asked when it is opened.

    Raises:
        InputError: there is none, or it is no URL of a ledger.
    """
    if not is_postgres(url) and not (path := sqlite_path(url)).is_file():
        raise InputError("no such ledger", place=str(path))


def without_password(url: str) -> str:
    """Return a URL that we can't read, for messages: without whatever may be a credential."""
    return _CREDENTIALS.sub("//", url).split("?")[0]
