"""Bring a database to the schema of this release, with Alembic."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

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
