"""
The ledger: events, projections, the rules of the database and the audit views.

Runs before the first code that it serves. Revisions 0001 and 0002 were never released.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from ledger.store.ddl import audit_views, postgres, sqlite_triggers

revision = "0003"
down_revision = None
branch_labels = None
depends_on = None

_ANY = (0, 9007199254740991)
_POSITION = (1, 9007199254740991)
_AT = (0, 253402300799999999)
_WALL = (0, 253402214399999999)
_SUM = (0, 4611686018427387903)
_AMOUNT = (0, 8000000)
_INDEX = (-1, 2147483647)
_PRODUCT = (0, 100000000)

BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Make the tables, the first head, the rules and the views."""
    _tables()
    _seldom()
    _proof()
    _life()
    _places()
    op.execute(
        sa.text(
            "INSERT INTO ledger_head (id, origin, epoch, holder, position, at_us, chain_hash)"
            " VALUES (1, '', 0, '', 0, 0, :genesis)"
        ).bindparams(sa.bindparam("genesis", bytes(32), sa.LargeBinary))
    )
    op.execute(
        sa.text("INSERT INTO ledger_tree (id, size, range) VALUES (1, 0, :none)").bindparams(
            sa.bindparam("none", b"", sa.LargeBinary)
        )
    )
    sqlite = (*sqlite_triggers.TRIGGERS, *audit_views.create_views("sqlite"))
    for text in sqlite if _on_sqlite() else postgres.RULES:
        op.get_bind().exec_driver_sql(text, execution_options={"no_parameters": True})


def _on_sqlite() -> bool:
    return op.get_bind().dialect.name == "sqlite"


def _one_per_key() -> tuple[sa.UniqueConstraint, ...]:
    """On Postgres every partition has its own; the rules look into all of them."""
    if not _on_sqlite():
        return ()
    name = op.f("uq_ledger_events_idempotency_key")
    return (sa.UniqueConstraint("idempotency_key", name=name),)


def _within(table: str, **bounds: tuple[int, int]) -> tuple[sa.CheckConstraint, ...]:
    """Return a constraint per column."""
    return tuple(
        sa.CheckConstraint(
            f"{column} BETWEEN {low} AND {high}", name=op.f(f"ck_{table}_{column}_bounds")
        )
        for column, (low, high) in bounds.items()
    )


def _tables() -> None:
    op.create_table(
        "ledger_events",
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("stream_version", BIG, nullable=False),
        sa.Column("event_type", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("epoch", BIG, nullable=False),
        sa.Column("causation_position", BIG, nullable=True),
        sa.Column("correlation_id", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("args_hash", sa.LargeBinary(), nullable=False),
        sa.Column("at_us", BIG, nullable=False),
        sa.Column("wall_us", BIG, nullable=False),
        sa.Column("leaf_hash", sa.LargeBinary(), nullable=False),
        sa.Column("chain_hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_ledger_events")),
        *_one_per_key(),
        sa.CheckConstraint(
            "length(args_hash) = 32", name=op.f("ck_ledger_events_args_hash_length")
        ),
        sa.CheckConstraint(
            "length(leaf_hash) = 32", name=op.f("ck_ledger_events_leaf_hash_length")
        ),
        sa.CheckConstraint(
            "length(chain_hash) = 32", name=op.f("ck_ledger_events_chain_hash_length")
        ),
        *_within(
            "ledger_events",
            stream_version=_POSITION,
            epoch=_POSITION,
            causation_position=_POSITION,
            at_us=_AT,
            wall_us=_WALL,
        ),
        sqlite_strict=True,
        postgresql_partition_by="RANGE (position)",
    )
    op.create_table(
        "ledger_head",
        sa.Column("id", BIG, autoincrement=False, nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("epoch", BIG, nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("position", BIG, nullable=False),
        sa.Column("at_us", BIG, nullable=False),
        sa.Column("chain_hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_ledger_head")),
        sa.CheckConstraint("id = 1", name=op.f("ck_ledger_head_one_row")),
        sa.CheckConstraint(
            "length(chain_hash) = 32", name=op.f("ck_ledger_head_chain_hash_length")
        ),
        *_within("ledger_head", at_us=_AT),
        sqlite_strict=True,
    )
    op.create_table(
        "ledger_machines",
        sa.Column("machine_no", BIG, autoincrement=False, nullable=False),
        sa.Column("system_uuid", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("fact_position", BIG, nullable=False),
        sa.PrimaryKeyConstraint("machine_no", name=op.f("pk_ledger_machines")),
        sa.CheckConstraint(
            "(system_uuid = '') = (machine_id = '')", name=op.f("ck_ledger_machines_identity")
        ),
        sqlite_strict=True,
    )
    op.create_index(
        op.f("uq_ledger_machines_identity"),
        "ledger_machines",
        ["system_uuid", "machine_id"],
        unique=True,
        sqlite_where=sa.text("system_uuid != ''"),
        postgresql_where=sa.text("system_uuid != ''"),
    )
    op.create_table(
        "ledger_nodes",
        sa.Column("node_no", BIG, autoincrement=False, nullable=False),
        sa.Column("node_uid", sa.Text(), nullable=False),
        sa.Column("node_name", sa.Text(), nullable=False),
        sa.Column("machine_no", BIG, nullable=False),
        sa.Column("system_uuid", sa.Text(), nullable=False),
        sa.Column("machine_id", sa.Text(), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("cpu_milli", BIG, nullable=False),
        sa.Column("memory_bytes", BIG, nullable=False),
        sa.Column("cpu_ref_max", BIG, nullable=False),
        sa.Column("moved_position", BIG, nullable=True),
        sa.Column("lost_position", BIG, nullable=True),
        sa.Column("fact_position", BIG, nullable=False),
        sa.PrimaryKeyConstraint("node_no", name=op.f("pk_ledger_nodes")),
        sa.UniqueConstraint("node_uid", name=op.f("uq_ledger_nodes_node_uid")),
        *_within("ledger_nodes", cpu_milli=_PRODUCT, memory_bytes=_ANY, cpu_ref_max=_AMOUNT),
        sa.ForeignKeyConstraint(
            ["machine_no"],
            ["ledger_machines.machine_no"],
            name=op.f("fk_ledger_nodes_machine_no"),
        ),
        sqlite_strict=True,
    )
    op.create_index(op.f("ix_ledger_nodes_machine_no"), "ledger_nodes", ["machine_no"])
    op.create_index(op.f("ix_ledger_nodes_node_name"), "ledger_nodes", ["node_name"])
    op.create_table(
        "ledger_stands",
        sa.Column("node_no", BIG, nullable=False),
        sa.Column("machine_no", BIG, nullable=False),
        sa.Column("boot_id", sa.Text(), nullable=False),
        sa.Column("by_agent", BIG, nullable=False),
        sa.Column("fact_position", BIG, nullable=False),
        sa.PrimaryKeyConstraint("node_no", "machine_no", name=op.f("pk_ledger_stands")),
        sa.ForeignKeyConstraint(
            ["node_no"], ["ledger_nodes.node_no"], name=op.f("fk_ledger_stands_node_no")
        ),
        sa.ForeignKeyConstraint(
            ["machine_no"],
            ["ledger_machines.machine_no"],
            name=op.f("fk_ledger_stands_machine_no"),
        ),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_index(
        op.f("ix_ledger_stands_machine_no_fact_position"),
        "ledger_stands",
        ["machine_no", "fact_position"],
    )
    op.create_table(
        "ledger_refusals",
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("at_us", BIG, nullable=False),
        sa.Column("pod_uid", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("pod_name", sa.Text(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("shape", sa.Text(), nullable=False),
        sa.Column("gpu_core_percent", BIG, nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_ledger_refusals")),
        *_within("ledger_refusals", gpu_core_percent=(0, 1000000000)),
        sqlite_strict=True,
    )
    op.create_index(
        op.f("ix_ledger_refusals_namespace_pod_name"), "ledger_refusals", ["namespace", "pod_name"]
    )
    op.create_index(op.f("ix_ledger_refusals_pod_uid"), "ledger_refusals", ["pod_uid"])
    op.create_table(
        "ledger_streams",
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("version", BIG, nullable=False),
        sa.PrimaryKeyConstraint("stream", name=op.f("pk_ledger_streams")),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_table(
        "ledger_cpus",
        sa.Column("machine_no", BIG, nullable=False),
        sa.Column("cpu", BIG, autoincrement=False, nullable=False),
        sa.Column("node_no", BIG, nullable=False),
        sa.Column("core", BIG, nullable=False),
        sa.Column("socket", BIG, nullable=False),
        sa.Column("numa", BIG, nullable=False),
        sa.Column("present", BIG, nullable=False),
        sa.Column("ref_reported", BIG, nullable=False),
        sa.Column("ref_max", BIG, nullable=False),
        sa.Column("ref_used", BIG, nullable=False),
        sa.Column("ref_observed", BIG, nullable=False),
        sa.Column("fact_position", BIG, nullable=False),
        sa.PrimaryKeyConstraint("machine_no", "cpu", name=op.f("pk_ledger_cpus")),
        sa.CheckConstraint(
            "ref_used BETWEEN 0 AND ref_max", name=op.f("ck_ledger_cpus_refs_within_max")
        ),
        sa.CheckConstraint(
            "ref_reported <= ref_max", name=op.f("ck_ledger_cpus_reported_within_max")
        ),
        sa.CheckConstraint("ref_observed >= 0", name=op.f("ck_ledger_cpus_observed")),
        *_within(
            "ledger_cpus",
            cpu=(0, 4096),
            core=_INDEX,
            socket=_INDEX,
            numa=_INDEX,
            ref_reported=_AMOUNT,
        ),
        sa.ForeignKeyConstraint(
            ["machine_no"], ["ledger_machines.machine_no"], name=op.f("fk_ledger_cpus_machine_no")
        ),
        sa.ForeignKeyConstraint(
            ["node_no"], ["ledger_nodes.node_no"], name=op.f("fk_ledger_cpus_node_no")
        ),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_table(
        "ledger_devices",
        sa.Column("device_no", BIG, autoincrement=False, nullable=False),
        sa.Column("machine_no", BIG, nullable=False),
        sa.Column("node_no", BIG, nullable=False),
        sa.Column("device_type", sa.Text(), nullable=False),
        sa.Column("minor", BIG, nullable=False),
        sa.Column("device_id", sa.Text(), nullable=False),
        sa.Column("unique_id", BIG, nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("present", BIG, nullable=False),
        sa.Column("healthy", BIG, nullable=False),
        sa.Column("core_reported", BIG, nullable=False),
        sa.Column("memory_reported", BIG, nullable=False),
        sa.Column("core_cap", BIG, nullable=False),
        sa.Column("memory_cap", BIG, nullable=False),
        sa.Column("core_used", BIG, nullable=False),
        sa.Column("memory_used", BIG, nullable=False),
        sa.Column("tenants", BIG, nullable=False),
        sa.Column("exclusive_holders", BIG, nullable=False),
        sa.Column("core_observed", BIG, nullable=False),
        sa.Column("memory_observed", BIG, nullable=False),
        sa.Column("observed_holders", BIG, nullable=False),
        sa.Column("fact_position", BIG, nullable=False),
        sa.PrimaryKeyConstraint("device_no", name=op.f("pk_ledger_devices")),
        sa.CheckConstraint(
            "core_used BETWEEN 0 AND core_cap", name=op.f("ck_ledger_devices_core_within_cap")
        ),
        sa.CheckConstraint(
            "memory_used BETWEEN 0 AND memory_cap", name=op.f("ck_ledger_devices_memory_within_cap")
        ),
        sa.CheckConstraint(
            "core_reported <= core_cap AND memory_reported <= memory_cap",
            name=op.f("ck_ledger_devices_reported_within_cap"),
        ),
        sa.CheckConstraint(
            "exclusive_holders = 0 OR tenants = 1", name=op.f("ck_ledger_devices_exclusive_alone")
        ),
        sa.CheckConstraint(
            "tenants >= 0 AND exclusive_holders >= 0 AND observed_holders >= 0",
            name=op.f("ck_ledger_devices_counts"),
        ),
        *_within(
            "ledger_devices",
            minor=_INDEX,
            core_reported=_AMOUNT,
            memory_reported=_ANY,
            core_observed=_SUM,
            memory_observed=_SUM,
        ),
        sa.ForeignKeyConstraint(
            ["machine_no"],
            ["ledger_machines.machine_no"],
            name=op.f("fk_ledger_devices_machine_no"),
        ),
        sa.ForeignKeyConstraint(
            ["node_no"], ["ledger_nodes.node_no"], name=op.f("fk_ledger_devices_node_no")
        ),
        sqlite_strict=True,
    )
    op.create_index(
        op.f("ix_ledger_devices_machine_no_device_type_minor"),
        "ledger_devices",
        ["machine_no", "device_type", "minor"],
    )
    op.create_index(
        op.f("uq_ledger_devices_id"),
        "ledger_devices",
        ["device_type", "device_id", "machine_no"],
        unique=True,
        sqlite_where=sa.text("device_id != ''"),
        postgresql_where=sa.text("device_id != ''"),
    )
    op.create_index(
        op.f("uq_ledger_devices_minor"),
        "ledger_devices",
        ["node_no", "device_type", "minor"],
        unique=True,
        sqlite_where=sa.text("device_id = ''"),
        postgresql_where=sa.text("device_id = ''"),
    )
    op.create_table(
        "ledger_reservations",
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("pod_uid", sa.Text(), nullable=False),
        sa.Column("attempt", BIG, nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("pod_name", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("labels", sa.Text(), nullable=False),
        sa.Column("priority", BIG, nullable=False),
        sa.Column("qos", sa.Text(), nullable=False),
        sa.Column("dialect", sa.Text(), nullable=False),
        sa.Column("policy", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("node_no", BIG, nullable=False),
        sa.Column("cpu_milli", BIG, nullable=False),
        sa.Column("memory_bytes", BIG, nullable=False),
        sa.Column("gpu_core_percent", BIG, nullable=False),
        sa.Column("gpu_count", BIG, nullable=False),
        sa.Column("device_count", BIG, nullable=False),
        sa.Column("cpuset", sa.Text(), nullable=False),
        sa.Column("cpu_count", BIG, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("phase", sa.Text(), nullable=False),
        sa.Column("phase_position", BIG, nullable=False),
        sa.Column("created_at_us", BIG, nullable=False),
        sa.Column("opened_at_us", BIG, nullable=False),
        sa.Column("decided_on", BIG, nullable=True),
        sa.Column("lost_position", BIG, nullable=True),
        sa.Column("counted_until_us", BIG, nullable=True),
        sa.Column("lost_boot_id", sa.Text(), nullable=True),
        sa.Column("closed_at_us", BIG, nullable=True),
        sa.Column("closed_position", BIG, nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("position", name=op.f("pk_ledger_reservations")),
        sa.CheckConstraint(
            "kind IN ('granted', 'observed')", name=op.f("ck_ledger_reservations_kind")
        ),
        sa.CheckConstraint(
            "(closed_at_us IS NULL) = (closed_position IS NULL)",
            name=op.f("ck_ledger_reservations_closed"),
        ),
        sa.CheckConstraint(
            "closed_position IS NOT NULL"
            " OR (end_reason IS NULL AND phase NOT IN ('released', 'voided'))",
            name=op.f("ck_ledger_reservations_open"),
        ),
        *_within(
            "ledger_reservations",
            attempt=(0, 2147483647),
            priority=(-2147483648, 2147483647),
            cpu_milli=_PRODUCT,
            memory_bytes=_ANY,
            gpu_core_percent=_PRODUCT,
            created_at_us=_ANY,
        ),
        sa.CheckConstraint(
            "decided_on IS NULL OR (kind = 'granted' AND decided_on BETWEEN 1 AND position - 1)",
            name=op.f("ck_ledger_reservations_decided_on"),
        ),
        sa.CheckConstraint(
            "(lost_position IS NULL) = (counted_until_us IS NULL)"
            " AND (lost_position IS NULL) = (lost_boot_id IS NULL)",
            name=op.f("ck_ledger_reservations_lost"),
        ),
        sa.ForeignKeyConstraint(
            ["node_no"], ["ledger_nodes.node_no"], name=op.f("fk_ledger_reservations_node_no")
        ),
        sqlite_strict=True,
    )
    op.create_index(
        op.f("ix_ledger_reservations_namespace_pod_name"),
        "ledger_reservations",
        ["namespace", "pod_name"],
    )
    op.create_index(
        op.f("ix_ledger_reservations_closed_position"),
        "ledger_reservations",
        ["closed_position"],
    )
    op.create_index(
        op.f("ix_ledger_reservations_open"),
        "ledger_reservations",
        ["position"],
        sqlite_where=sa.text("closed_position IS NULL"),
        postgresql_where=sa.text("closed_position IS NULL"),
    )
    op.create_table(
        "ledger_cpu_holdings",
        sa.Column("position", BIG, nullable=False),
        sa.Column("cpu", BIG, autoincrement=False, nullable=False),
        sa.Column("machine_no", BIG, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("opened_at_us", BIG, nullable=False),
        sa.Column("closed_at_us", BIG, nullable=True),
        sa.Column("closed_position", BIG, nullable=True),
        sa.PrimaryKeyConstraint("position", "cpu", name=op.f("pk_ledger_cpu_holdings")),
        sa.CheckConstraint(
            "kind IN ('granted', 'observed')", name=op.f("ck_ledger_cpu_holdings_kind")
        ),
        sa.ForeignKeyConstraint(
            ["position"],
            ["ledger_reservations.position"],
            name=op.f("fk_ledger_cpu_holdings_position"),
        ),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_index(
        op.f("ix_ledger_cpu_holdings_machine_no_cpu_closed_at_us"),
        "ledger_cpu_holdings",
        ["machine_no", "cpu", "closed_at_us"],
    )
    op.create_table(
        "ledger_device_health",
        sa.Column("position", BIG, autoincrement=False, nullable=False),
        sa.Column("device_no", BIG, nullable=False),
        sa.Column("at_us", BIG, nullable=False),
        sa.Column("healthy", BIG, nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("position", "device_no", name=op.f("pk_ledger_device_health")),
        sa.ForeignKeyConstraint(
            ["device_no"],
            ["ledger_devices.device_no"],
            name=op.f("fk_ledger_device_health_device_no"),
        ),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_index(
        op.f("ix_ledger_device_health_device_no_at_us"),
        "ledger_device_health",
        ["device_no", "at_us"],
    )
    op.create_table(
        "ledger_holdings",
        sa.Column("position", BIG, nullable=False),
        sa.Column("device_no", BIG, nullable=False),
        sa.Column("minor", BIG, nullable=False),
        sa.Column("core_percent", BIG, nullable=False),
        sa.Column("memory_bytes", BIG, nullable=False),
        sa.Column("memory_ratio_percent", BIG, nullable=False),
        sa.Column("exclusive", BIG, nullable=False),
        sa.Column("instances", BIG, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("opened_at_us", BIG, nullable=False),
        sa.Column("closed_at_us", BIG, nullable=True),
        sa.Column("closed_position", BIG, nullable=True),
        sa.PrimaryKeyConstraint("position", "device_no", name=op.f("pk_ledger_holdings")),
        sa.CheckConstraint("kind IN ('granted', 'observed')", name=op.f("ck_ledger_holdings_kind")),
        sa.CheckConstraint("exclusive IN (0, 1)", name=op.f("ck_ledger_holdings_exclusive")),
        *_within(
            "ledger_holdings",
            minor=_INDEX,
            core_percent=_AMOUNT,
            memory_bytes=_ANY,
            memory_ratio_percent=_AMOUNT,
            instances=_AMOUNT,
        ),
        sa.ForeignKeyConstraint(
            ["position"], ["ledger_reservations.position"], name=op.f("fk_ledger_holdings_position")
        ),
        sa.ForeignKeyConstraint(
            ["device_no"], ["ledger_devices.device_no"], name=op.f("fk_ledger_holdings_device_no")
        ),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_index(
        op.f("ix_ledger_holdings_device_no_closed_at_us_opened_at_us_minor"),
        "ledger_holdings",
        ["device_no", "closed_at_us", "opened_at_us", "minor"],
    )
    op.create_table(
        "ledger_slot_holdings",
        sa.Column("position", BIG, nullable=False),
        sa.Column("slot", sa.Text(), nullable=False),
        sa.Column("machine_no", BIG, nullable=False),
        sa.Column("device_no", BIG, nullable=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("opened_at_us", BIG, nullable=False),
        sa.Column("closed_at_us", BIG, nullable=True),
        sa.Column("closed_position", BIG, nullable=True),
        sa.PrimaryKeyConstraint("position", "slot", name=op.f("pk_ledger_slot_holdings")),
        sa.CheckConstraint(
            "kind IN ('granted', 'observed')", name=op.f("ck_ledger_slot_holdings_kind")
        ),
        sa.ForeignKeyConstraint(
            ["position"],
            ["ledger_reservations.position"],
            name=op.f("fk_ledger_slot_holdings_position"),
        ),
        sqlite_with_rowid=False,
        sqlite_strict=True,
    )
    op.create_index(
        op.f("ix_ledger_slot_holdings_open"),
        "ledger_slot_holdings",
        ["machine_no", "slot"],
        sqlite_where=sa.text("closed_position IS NULL"),
        postgresql_where=sa.text("closed_position IS NULL"),
    )
    op.create_index(
        op.f("uq_ledger_slot_holdings_granted"),
        "ledger_slot_holdings",
        ["machine_no", "slot"],
        unique=True,
        sqlite_where=sa.text("closed_position IS NULL AND kind = 'granted'"),
        postgresql_where=sa.text("closed_position IS NULL AND kind = 'granted'"),
    )


def _seldom() -> None:
    types = (
        "checkpoint.withdrawn.v1",
        "drift.found.v1",
        "drift.resolved.v1",
        "epoch.started.v1",
        "group.plan_dropped.v1",
        "group.planned.v1",
        "ledger.recovered.v1",
        "node.described.v1",
        "node.inventoried.v1",
        "position.voided.v1",
        "request.described.v1",
        "settings.changed.v1",
        "time.corrected.v1",
    )
    condition = " OR ".join(f"event_type = '{name}'" for name in types)
    op.create_index(
        op.f("ix_ledger_events_seldom"),
        "ledger_events",
        ["event_type", "position"],
        sqlite_where=sa.text(condition),
        postgresql_where=sa.text(condition),
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
        sa.Column("node_no", BIG, nullable=False),
        sa.Column("group_name", sa.Text(), nullable=False),
        sa.Column("pod_uid", sa.Text(), nullable=False),
        sa.Column("opened_at_us", BIG, nullable=False),
        sa.Column("closed_at_us", BIG, nullable=True),
        sa.Column("closed_position", BIG, nullable=True),
        sa.ForeignKeyConstraint(
            ["device_no"], ["ledger_devices.device_no"], name=op.f("fk_ledger_places_device_no")
        ),
        sa.ForeignKeyConstraint(
            ["node_no"], ["ledger_nodes.node_no"], name=op.f("fk_ledger_places_node_no")
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
