"""
The Merkle tree, checkpoints, snapshots, archived segments, group places and the wider audit views.

Runs before the code that it serves. Only adds, and widens one index: code of the revision before
reads and writes beside it. What such code appends meanwhile is missing in the tree until the next
writer of this revision starts, which fills the tree up from the leaf hashes.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ledger.store.ddl import postgres, sqlite_v2

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables, the empty tree, the rules and the views."""
    _proof()
    _life()
    _places()
    op.execute(
        sa.text("INSERT INTO ledger_tree (id, size, range) VALUES (1, 0, :none)").bindparams(
            sa.bindparam("none", b"", sa.LargeBinary)
        )
    )
    _seldom()
    _moments()
    sqlite = op.get_bind().dialect.name == "sqlite"
    for text in sqlite_v2.V2 if sqlite else postgres.V2:
        op.get_bind().exec_driver_sql(text, execution_options={"no_parameters": True})


def _seldom() -> None:
    types = (
        "drift.found.v1",
        "drift.resolved.v1",
        "epoch.started.v1",
        "group.plan_dropped.v1",
        "group.planned.v1",
        "ledger.recovered.v1",
        "ledger.recovered.v2",
        "node.inventoried.v1",
        "settings.changed.v1",
    )
    condition = " OR ".join(f"event_type = '{name}'" for name in types)
    op.create_index(
        op.f("ix_ledger_events_seldom"),
        "ledger_events",
        ["event_type", "position"],
        sqlite_where=sa.text(condition),
        postgresql_where=sa.text(condition),
    )


def _moments() -> None:
    """Widen the index of holdings by card, so that a moment is looked for in it alone."""
    op.drop_index(op.f("ix_ledger_holdings_device_no_closed_at_us"), "ledger_holdings")
    op.create_index(
        op.f("ix_ledger_holdings_device_no_closed_at_us_opened_at_us_minor"),
        "ledger_holdings",
        ["device_no", "closed_at_us", "opened_at_us", "minor"],
    )


def _proof() -> None:
    op.create_table(
        "ledger_tree",
        sa.Column("id", BIG, autoincrement=False, nullable=False),
        sa.Column("size", BIG, nullable=False),
        sa.Column("range", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_tree")),
        sa.CheckConstraint("id = 1", name=op.f("ck_ledger_tree_one_row")),
        sa.CheckConstraint("length(range) % 32 = 0", name=op.f("ck_ledger_tree_range_hashes")),
        sqlite_strict=True,
    )
    op.create_table(
        "ledger_tiles",
        sa.Column("level", BIG, autoincrement=False, nullable=False),
        sa.Column("number", BIG, autoincrement=False, nullable=False),
        sa.Column("hashes", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("level", "number", name=op.f("pk_ledger_tiles")),
        sa.CheckConstraint("length(hashes) = 8192", name=op.f("ck_ledger_tiles_full")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ledger_checkpoints",
        sa.Column("size", BIG, autoincrement=False, nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("size", name=op.f("pk_ledger_checkpoints")),
        sqlite_strict=True,
    )


def _life() -> None:
    op.create_table(
        "ledger_snapshots",
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("format", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_ledger_snapshots")),
        sa.CheckConstraint("length(digest) = 32", name=op.f("ck_ledger_snapshots_digest_length")),
        sqlite_strict=True,
    )
    op.create_table(
        "ledger_segments",
        sa.Column("last", BIG, autoincrement=False, nullable=False),
        sa.Column("first", BIG, nullable=False),
        sa.Column("position", BIG, nullable=False),
        sa.Column("file_name", sa.Text(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("root", sa.LargeBinary(), nullable=False),
        sa.Column("chain_hash", sa.LargeBinary(), nullable=False),
        sa.Column("state_digest", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.Column("at_us", BIG, nullable=False),
        sa.PrimaryKeyConstraint("last", name=op.f("pk_ledger_segments")),
        sa.CheckConstraint("length(digest) = 32", name=op.f("ck_ledger_segments_digest_length")),
        sa.CheckConstraint("length(root) = 32", name=op.f("ck_ledger_segments_root_length")),
        sa.CheckConstraint(
            "length(chain_hash) = 32", name=op.f("ck_ledger_segments_chain_hash_length")
        ),
        sa.CheckConstraint(
            "length(state_digest) = 32", name=op.f("ck_ledger_segments_state_digest_length")
        ),
        sqlite_strict=True,
    )
    op.create_table(
        "ledger_archived",
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("args_hash", sa.LargeBinary(), nullable=False),
        sa.Column("at_us", BIG, nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_ledger_archived")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_ledger_archived_idempotency_key")),
        sa.CheckConstraint(
            "length(args_hash) = 32", name=op.f("ck_ledger_archived_args_hash_length")
        ),
        sqlite_strict=True,
    )


def _places() -> None:
    op.create_table(
        "ledger_places",
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("device_no", BIG, nullable=False),
        sa.Column("group_name", sa.Text(), nullable=False),
        sa.Column("pod_uid", sa.Text(), nullable=False),
        sa.Column("opened_at_us", BIG, nullable=False),
        sa.Column("closed_at_us", BIG, nullable=True),
        sa.Column("closed_position", BIG, nullable=True),
        sa.ForeignKeyConstraint(
            ["device_no"], ["ledger_devices.device_no"], name=op.f("fk_ledger_places_device_no")
        ),
        sa.PrimaryKeyConstraint("position", "device_no", name=op.f("pk_ledger_places")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    op.create_index(
        op.f("uq_ledger_places_open"),
        "ledger_places",
        ["device_no"],
        unique=True,
        sqlite_where=sa.text("closed_position IS NULL"),
        postgresql_where=sa.text("closed_position IS NULL"),
    )
