"""
The ledger: events, projections, the rules of the database and the audit views.

Runs before the first code that it serves. Revisions 0001 and 0002 were never released.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import SchemaItem

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

_SELDOM = " OR ".join(
    f"event_type = '{name}'"
    for name in (
        "checkpoint.stored.v1",
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
)
_NAMES = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}
_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "number": sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
    "text": sa.Text(),
    "bytes": sa.LargeBinary(),
}


def upgrade() -> None:
    """Make the tables, the first head, the rules and the views."""
    _tables().create_all(op.get_bind())
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
    return (sa.UniqueConstraint("idempotency_key"),)


def _check(name: str, condition: str) -> sa.CheckConstraint:
    return sa.CheckConstraint(condition, name=name)


def _within(**bounds: tuple[int, int]) -> tuple[sa.CheckConstraint, ...]:
    return tuple(
        _check(f"{column}_bounds", f"{column} BETWEEN {low} AND {high}")
        for column, (low, high) in bounds.items()
    )


def _index(
    columns: str, *, name: str | None = None, unique: bool = False, where: str | None = None
) -> sa.Index:
    only = None if where is None else sa.text(where)
    return sa.Index(name, *columns.split(), unique=unique, sqlite_where=only, postgresql_where=only)


def _table(
    metadata: sa.MetaData,
    name: str,
    columns: str,
    *parts: SchemaItem,
    key: str,
    of: Mapping[str, str] = MappingProxyType({}),
    rowid: bool = True,
    partition_by: str | None = None,
) -> None:
    """
    Describe a table.

    Args:
        columns: with their types; one that may be null has a question mark.
        key: the columns of its primary key.
        of: the columns that name a row of another table, which it has for itself.
    """
    described: list[SchemaItem] = []
    for column, kind in (each.split() for each in columns.split(", ")):
        names = [sa.ForeignKey(f"{of[column]}.{column}")] if column in of else []
        described.append(
            sa.Column(
                column,
                _TYPES[kind.removesuffix("?")],
                *names,
                nullable=kind.endswith("?"),
                primary_key=column in key.split(),
                autoincrement=False,
            )
        )
    sa.Table(
        name,
        metadata,
        *described,
        *parts,
        sqlite_strict=True,
        sqlite_with_rowid=rowid,
        postgresql_partition_by=partition_by,
    )


def _tables() -> sa.MetaData:
    metadata = sa.MetaData(naming_convention=_NAMES)
    _table(
        metadata,
        "ledger_head",
        "id number, origin text, epoch number, holder text, position number, at_us number, "
        "chain_hash bytes",
        _check("one_row", "id = 1"),
        _check("chain_hash_length", "length(chain_hash) = 32"),
        *_within(at_us=_AT),
        key="id",
    )
    _table(
        metadata,
        "ledger_events",
        "position number, stream text, stream_version number, event_type text, body text, "
        "actor text, epoch number, causation_position number?, correlation_id text, "
        "idempotency_key text, args_hash bytes, at_us number, wall_us number, leaf_hash bytes, "
        "chain_hash bytes",
        *_one_per_key(),
        _check("args_hash_length", "length(args_hash) = 32"),
        _check("leaf_hash_length", "length(leaf_hash) = 32"),
        _check("chain_hash_length", "length(chain_hash) = 32"),
        *_within(
            stream_version=_POSITION,
            epoch=_POSITION,
            causation_position=_POSITION,
            at_us=_AT,
            wall_us=_WALL,
        ),
        _index("event_type position", name="ix_ledger_events_seldom", where=_SELDOM),
        key="position",
        partition_by="RANGE (position)",
    )
    _table(
        metadata,
        "ledger_streams",
        "stream text, version number",
        key="stream",
        rowid=False,
    )
    _table(
        metadata,
        "ledger_machines",
        "machine_no number, system_uuid text, machine_id text, fact_position number",
        _check("identity", "(system_uuid = '') = (machine_id = '')"),
        _index(
            "system_uuid machine_id",
            name="uq_ledger_machines_identity",
            unique=True,
            where="system_uuid != ''",
        ),
        key="machine_no",
    )
    _table(
        metadata,
        "ledger_nodes",
        "node_no number, node_uid text, node_name text, machine_no number, system_uuid text, "
        "machine_id text, labels text, cpu_milli number, memory_bytes number, "
        "cpu_ref_max number, moved_position number?, lost_position number?, "
        "fact_position number",
        sa.UniqueConstraint("node_uid"),
        *_within(cpu_milli=_PRODUCT, memory_bytes=_ANY, cpu_ref_max=_AMOUNT),
        _index("machine_no"),
        _index("node_name"),
        key="node_no",
        of={"machine_no": "ledger_machines"},
    )
    _table(
        metadata,
        "ledger_stands",
        "node_no number, machine_no number, boot_id text, by_agent number, fact_position number",
        _index("machine_no fact_position"),
        key="node_no machine_no",
        of={"node_no": "ledger_nodes", "machine_no": "ledger_machines"},
        rowid=False,
    )
    _table(
        metadata,
        "ledger_devices",
        "device_no number, machine_no number, node_no number, device_type text, minor number, "
        "device_id text, unique_id number, model text, present number, healthy number, "
        "core_reported number, memory_reported number, core_cap number, memory_cap number, "
        "core_used number, memory_used number, tenants number, exclusive_holders number, "
        "core_observed number, memory_observed number, observed_holders number, "
        "fact_position number",
        _check("core_within_cap", "core_used BETWEEN 0 AND core_cap"),
        _check("memory_within_cap", "memory_used BETWEEN 0 AND memory_cap"),
        _check(
            "reported_within_cap",
            "core_reported <= core_cap AND memory_reported <= memory_cap",
        ),
        _check("exclusive_alone", "exclusive_holders = 0 OR tenants = 1"),
        _check("counts", "tenants >= 0 AND exclusive_holders >= 0 AND observed_holders >= 0"),
        *_within(
            minor=_INDEX,
            core_reported=_AMOUNT,
            memory_reported=_ANY,
            core_observed=_SUM,
            memory_observed=_SUM,
        ),
        _index("machine_no device_type minor"),
        _index(
            "device_type device_id machine_no",
            name="uq_ledger_devices_id",
            unique=True,
            where="device_id != ''",
        ),
        _index(
            "node_no device_type minor",
            name="uq_ledger_devices_minor",
            unique=True,
            where="device_id = ''",
        ),
        key="device_no",
        of={"machine_no": "ledger_machines", "node_no": "ledger_nodes"},
    )
    _table(
        metadata,
        "ledger_cpus",
        "machine_no number, cpu number, node_no number, core number, socket number, "
        "numa number, present number, ref_reported number, ref_max number, ref_used number, "
        "ref_observed number, fact_position number",
        _check("refs_within_max", "ref_used BETWEEN 0 AND ref_max"),
        _check("reported_within_max", "ref_reported <= ref_max"),
        _check("observed", "ref_observed >= 0"),
        *_within(cpu=(0, 4096), core=_INDEX, socket=_INDEX, numa=_INDEX, ref_reported=_AMOUNT),
        key="machine_no cpu",
        of={"machine_no": "ledger_machines", "node_no": "ledger_nodes"},
        rowid=False,
    )
    _table(
        metadata,
        "ledger_reservations",
        "position number, pod_uid text, attempt number, namespace text, pod_name text, "
        "owner text, labels text, priority number, qos text, dialect text, policy text, "
        "source text, node_no number, cpu_milli number, memory_bytes number, "
        "gpu_core_percent number, gpu_count number, device_count number, cpuset text, "
        "cpu_count number, kind text, phase text, phase_position number, created_at_us number, "
        "opened_at_us number, decided_on number?, holder text, lost_position number?, "
        "counted_until_us number?, lost_boot_id text?, closed_at_us number?, "
        "closed_position number?, end_reason text?",
        _check("holder", "holder IN ('pod', 'claim')"),
        _check("kind", "kind IN ('granted', 'observed')"),
        _check("closed", "(closed_at_us IS NULL) = (closed_position IS NULL)"),
        _check(
            "open",
            "closed_position IS NOT NULL OR (end_reason IS NULL"
            " AND phase NOT IN ('released', 'voided'))",
        ),
        *_within(
            attempt=(0, 2147483647),
            priority=(-2147483648, 2147483647),
            cpu_milli=_PRODUCT,
            memory_bytes=_ANY,
            gpu_core_percent=_PRODUCT,
            created_at_us=_ANY,
        ),
        _check(
            "decided_on",
            "decided_on IS NULL OR (kind = 'granted' AND decided_on BETWEEN 1 AND position - 1)",
        ),
        _check(
            "lost",
            "(lost_position IS NULL) = (counted_until_us IS NULL)"
            " AND (lost_position IS NULL) = (lost_boot_id IS NULL)",
        ),
        _index("closed_position", where="closed_position IS NOT NULL"),
        _index("namespace pod_name"),
        _index("position", name="ix_ledger_reservations_open", where="closed_position IS NULL"),
        _index("pod_uid attempt", name="ix_ledger_reservations_voided", where="phase = 'voided'"),
        key="position",
        of={"node_no": "ledger_nodes"},
    )
    _table(
        metadata,
        "ledger_holdings",
        "position number, device_no number, minor number, core_percent number, "
        "memory_bytes number, memory_ratio_percent number, exclusive number, instances number, "
        "kind text, opened_at_us number, closed_at_us number?, closed_position number?",
        _check("kind", "kind IN ('granted', 'observed')"),
        _check("exclusive", "exclusive IN (0, 1)"),
        *_within(
            minor=_INDEX,
            core_percent=_AMOUNT,
            memory_bytes=_ANY,
            memory_ratio_percent=_AMOUNT,
            instances=_AMOUNT,
        ),
        _index("device_no closed_at_us opened_at_us minor"),
        key="position device_no",
        of={"position": "ledger_reservations", "device_no": "ledger_devices"},
        rowid=False,
    )
    _table(
        metadata,
        "ledger_cpu_holdings",
        "position number, cpu number, machine_no number, kind text, opened_at_us number, "
        "closed_at_us number?, closed_position number?",
        _check("kind", "kind IN ('granted', 'observed')"),
        _index("machine_no cpu closed_at_us"),
        key="position cpu",
        of={"position": "ledger_reservations"},
        rowid=False,
    )
    _table(
        metadata,
        "ledger_slot_holdings",
        "position number, slot text, machine_no number, device_no number?, kind text, "
        "opened_at_us number, closed_at_us number?, closed_position number?",
        _check("kind", "kind IN ('granted', 'observed')"),
        _index(
            "machine_no slot", name="ix_ledger_slot_holdings_open", where="closed_position IS NULL"
        ),
        _index(
            "machine_no slot",
            name="uq_ledger_slot_holdings_granted",
            unique=True,
            where="closed_position IS NULL AND kind = 'granted'",
        ),
        key="position slot",
        of={"position": "ledger_reservations"},
        rowid=False,
    )
    _table(
        metadata,
        "ledger_device_health",
        "position number, device_no number, at_us number, healthy number, reason text",
        _index("device_no at_us"),
        key="position device_no",
        of={"device_no": "ledger_devices"},
        rowid=False,
    )
    _table(
        metadata,
        "ledger_refusals",
        "position number, at_us number, pod_uid text, namespace text, pod_name text, "
        "stage text, message text, shape text, gpu_core_percent number, policy text, owner text",
        *_within(gpu_core_percent=(0, 1000000000)),
        _index("namespace pod_name"),
        _index("pod_uid"),
        key="position",
    )
    _table(
        metadata,
        "ledger_tree",
        "id number, size number, range bytes",
        _check("one_row", "id = 1"),
        _check("range_hashes", "length(range) % 32 = 0"),
        key="id",
    )
    _table(
        metadata,
        "ledger_tiles",
        "level number, number number, hashes bytes",
        _check("full", "length(hashes) = 8192"),
        key="level number",
        rowid=False,
    )
    _table(
        metadata,
        "ledger_checkpoints",
        "size number, note text",
        key="size",
    )
    _table(
        metadata,
        "ledger_snapshots",
        "position number, format text, body bytes, digest bytes",
        _check("digest_length", "length(digest) = 32"),
        key="position",
    )
    _table(
        metadata,
        "ledger_segments",
        "last number, first number, position number, file_name text, digest bytes, root bytes, "
        "chain_hash bytes, state_digest bytes, state bytes, at_us number",
        _check("digest_length", "length(digest) = 32"),
        _check("root_length", "length(root) = 32"),
        _check("chain_hash_length", "length(chain_hash) = 32"),
        _check("state_digest_length", "length(state_digest) = 32"),
        key="last",
    )
    _table(
        metadata,
        "ledger_archived",
        "position number, idempotency_key text, stream text, event_type text, args_hash bytes, "
        "at_us number",
        sa.UniqueConstraint("idempotency_key"),
        _check("args_hash_length", "length(args_hash) = 32"),
        key="position",
    )
    _table(
        metadata,
        "ledger_planned_cards",
        "position number, device_no number, node_no number, group_name text, pod_uid text, "
        "opened_at_us number, closed_at_us number?, closed_position number?",
        _index(
            "device_no",
            name="uq_ledger_planned_cards_open",
            unique=True,
            where="closed_position IS NULL",
        ),
        key="position device_no",
        of={"device_no": "ledger_devices", "node_no": "ledger_nodes"},
        rowid=False,
    )
    return metadata
