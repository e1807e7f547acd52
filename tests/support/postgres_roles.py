"""The roles of a ledger on Postgres."""

from __future__ import annotations

from sqlalchemy import Connection

from ledger.store.ddl.postgres_roles import ROLES


def apply_roles(connection: Connection) -> None:
    """
    Make the four roles, where they lack, and give each what it needs of this ledger, no more.

    Rule: design section 4, "Append-only by the database, not by habit". One transaction; the
    connection is a superuser's, or of a role that owns the ledger and may make roles.
    """
    with connection.begin():
        for statement in ROLES:
            connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
