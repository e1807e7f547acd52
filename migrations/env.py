"""Alembic's environment: migrations run on the connection that the ledger's store hands over."""

from __future__ import annotations

from alembic import context

from ledger.store.schema import METADATA


def run() -> None:
    """Run the migrations inside the transaction that is open on the connection."""
    connection = context.config.attributes.get("connection")
    assert connection is not None, "migrations are run by ledger.store.migrate"
    context.configure(connection=connection, target_metadata=METADATA, transactional_ddl=True)
    context.run_migrations()


run()
