"""Bring a database to the schema of this release, with Alembic."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, StaticPool, create_engine

from ledger.store.profile_postgres import take_your_time

_INSTALLED: Final = "_migrations"
_ONE_AT_A_TIME: Final = 0x7E4E_5E00


def migrations_path() -> Path:
    """Return the folder of the migrations: inside an installed `ledger`, or in the checkout."""
    package = Path(str(files("ledger")))
    installed = package / _INSTALLED
    return installed if installed.is_dir() else package.parent / "migrations"


def configuration(connection: Connection) -> Config:
    """Return Alembic's configuration for this connection."""
    config = Config()
    config.set_main_option("script_location", str(migrations_path()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def make(connection: Connection) -> None:
    """
    Make a ledger without events of an empty database, or of one that is a ledger already.

    A file repeats what the migrations made before in this process: Alembic takes longer for one of
    the many ledgers of a simulation than all else.
    """
    if connection.dialect.name == "sqlite":
        with connection.begin():  # nobody makes it meanwhile
            if connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar_one() == 0:
                for statement in _made_of():
                    connection.exec_driver_sql(statement).close()
                return
    upgrade(connection)


@cache
def _made_of() -> tuple[str, ...]:
    """Return the statements that make what the migrations make, in the order of SQLite's own."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
        engine = create_engine("sqlite+pysqlite://", creator=lambda: memory, poolclass=StaticPool)
        with engine.connect() as connection:
            upgrade(connection)
        statements = tuple(memory.iterdump())
    assert statements[0] == "BEGIN TRANSACTION;", statements[0]
    assert statements[-1] == "COMMIT;", statements[-1]
    return statements[1:-1]


def upgrade(connection: Connection) -> None:
    """
    Run every migration that the database lacks, in one transaction: all or none.

    On Postgres a second one waits for the first, and then finds that it has nothing to do.
    """
    with connection.begin():
        if connection.dialect.name == "postgresql":
            take_your_time(connection)
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ONE_AT_A_TIME})")
        command.upgrade(configuration(connection), "head")
