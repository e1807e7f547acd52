"""The ledger: events, projections, the rules of the database and the audit views."""

from __future__ import annotations

from alembic import op

from ledger.store.ddl import sqlite_triggers, sqlite_views
from ledger.store.schema import GENESIS_ROW, METADATA, ledger_head

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make everything."""
    bind = op.get_bind()
    METADATA.create_all(bind, checkfirst=False)
    bind.execute(ledger_head.insert(), GENESIS_ROW)
    for text in (*sqlite_triggers.V1, *sqlite_views.V1):
        bind.exec_driver_sql(text)
