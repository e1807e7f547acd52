"""How SQLite is opened: for writing by one process, for reading by any."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

BUSY_MILLISECONDS: Final = 5_000
CACHE_KIB: Final = 65_536
"""Pages that a large append touches stay in memory until the commit."""
READING_CACHE_KIB: Final = 4_096
"""Who reads everything once pays more for room to keep it in than for reading a page again."""
CHECKPOINT_PAGES: Final = 8_192
"""The log is copied into the database every 32 MiB: a page changed often is copied once."""

SERVICE_CACHE_KIB: Final = 8_192
"""What a service keeps of the file: it asks for what has just been written, and for little else."""

BEGIN_WRITING: Final = "BEGIN IMMEDIATE"
"""A writer takes the write lock at once: two of them wait at the start, not in the middle."""

ALWAYS: Final = (
    f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}",
    "PRAGMA foreign_keys = ON",
    "PRAGMA recursive_triggers = ON",
    "PRAGMA cell_size_check = ON",
)
_WRITING: Final = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}",
    f"PRAGMA cache_size = -{CACHE_KIB}",
)
# Views may come from anyone's file. A writer's triggers word their refusals with JSON functions,
# which SQLite lets an untrusted schema call only in newer versions.
_READING: Final = (
    "PRAGMA query_only = ON",
    "PRAGMA trusted_schema = OFF",
    f"PRAGMA cache_size = -{READING_CACHE_KIB}",
)

# The driver asks a value of these types how it is written, which fails by way of an exception, and
# then takes it as it is. It takes it as it is at once where it is told that this is how.
sqlite3.register_adapter(bytes, bytes)
sqlite3.register_adapter(type(None), lambda none: none)


class LedgerConnection(sqlite3.Connection):
    """A connection to the file at `path`, which was `file` (device, inode) when it was opened."""

    path: Path
    file: tuple[int, int]

    def expect_in_place(self) -> None:
        """Raise OperationalError where the path is not that file's any more."""
        try:
            now = _file(self.path)
        except OSError:
            now = None
        if now != self.file:
            raise sqlite3.OperationalError("the file was moved, removed or replaced")


def _file(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def sqlite_engine(path: Path, *, write: bool, cache_kib: int = CACHE_KIB) -> Engine:
    """
    Return an engine on the file: one connection each time it is asked, no pool.

    A writer's transaction takes the write lock when it begins: two writers wait at the start and
    not in the middle. A reader's is one consistent snapshot.
    """
    engine = create_engine(
        "sqlite+pysqlite://",
        creator=lambda: connect(path, write=write, cache_kib=cache_kib),
        poolclass=NullPool,
        hide_parameters=True,  # rows are no part of an error's text
    )

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        try:
            if write:
                driver_connection(connection).expect_in_place()
        except sqlite3.OperationalError as error:
            raise OperationalError(BEGIN_WRITING, (), error) from error
        connection.exec_driver_sql(BEGIN_WRITING if write else "BEGIN")

    return engine


def create_file(path: Path) -> None:
    """Make an empty file that only its owner may read; an existing one is left as it is."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return


def connect(path: Path, *, write: bool, cache_kib: int = CACHE_KIB) -> sqlite3.Connection:
    """Return the driver's own connection, which never begins a transaction by itself."""
    try:
        uri = _uri(path, "mode=rw" if write else "mode=ro")
        connection = _opened(uri, write=write, cache_kib=cache_kib)
    except sqlite3.OperationalError:
        # A folder that can't be written has no room for the log's index. Without a log next to
        # it the file itself is complete, and nobody can change it under us.
        if write or path.with_name(f"{path.name}-wal").exists() or os.access(path.parent, os.W_OK):
            raise
        return _opened(_uri(path, "immutable=1"), write=False, cache_kib=cache_kib)
    if write:
        connection.path, connection.file = path, _file(path)
    return connection


def _opened(uri: str, *, write: bool, cache_kib: int) -> LedgerConnection:
    # isolation_level None: the driver never begins a transaction by itself, `begin` above does.
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, cached_statements=256, factory=LedgerConnection
    )
    try:
        sized = f"PRAGMA cache_size = -{cache_kib}"
        for pragma in (*ALWAYS, sized, *(_WRITING if write else _READING)):
            connection.execute(pragma).close()
        connection.execute("SELECT count(*) FROM sqlite_master").close()
    except (sqlite3.Error, UnicodeDecodeError):
        connection.close()
        raise
    return connection


def _uri(path: Path, mode: str) -> str:
    return f"file:{quote(str(path.absolute()))}?{mode}"


def driver_connection(connection: Connection) -> Any:  # noqa: ANN401 - whatever the driver has
    """Return the driver's own connection below SQLAlchemy's."""
    return connection.connection.driver_connection
