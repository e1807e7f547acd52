"""
The ledger: events, projections, the rules of the database and the audit views.

Runs before the first code that it serves. Revisions 0001 and 0002 were never released.
"""

from __future__ import annotations

from functools import partial

import sqlalchemy as sa
from alembic import op

from ledger.store.ddl import audit_views, postgres, sqlite_triggers
from ledger.store.ddl.tables import NAMES, check, describe_table, index, within

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
        "preemption.decided.v1",
        "request.described.v1",
        "settings.changed.v1",
        "time.corrected.v1",
    )
)


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


def _tables() -> sa.MetaData:
    metadata = sa.MetaData(naming_convention=NAMES)
    table = partial(describe_table, metadata)
    table(
        "ledger_head",
        "id number, origin text, epoch number, holder text, position number, at_us number, "
        "chain_hash bytes",
        check("one_row", "id = 1"),
        check("chain_hash_length", "length(chain_hash) = 32"),
        *within(at_us=_AT),
        key="id",
    )
    table(
        "ledger_events",
        "position number, stream text, stream_version number, event_type text, body text, "
        "actor text, epoch number, causation_position number?, correlation_id text, "
        "idempotency_key text, args_hash bytes, at_us number, wall_us number, leaf_hash bytes, "
        "chain_hash bytes",
        # On Postgres every partition has its own; the rules look into all of them.
        *([sa.UniqueConstraint("idempotency_key")] if _on_sqlite() else []),
        check("args_hash_length", "length(args_hash) = 32"),
        check("leaf_hash_length", "length(leaf_hash) = 32"),
        check("chain_hash_length", "length(chain_hash) = 32"),
        *within(
            stream_version=_POSITION,
            epoch=_POSITION,
            causation_position=_POSITION,
            at_us=_AT,
            wall_us=_WALL,
        ),
        index("event_type position", name="ix_ledger_events_seldom", where=_SELDOM),
        key="position",
        partition_by="RANGE (position)",
    )
    table(
        "ledger_streams",
        "stream text, version number",
        key="stream",
        rowid=False,
    )
    table(
        "ledger_machines",
        "machine_no number, system_uuid text, machine_id text, fact_position number",
        check("identity", "(system_uuid = '') = (machine_id = '')"),
        index(
            "system_uuid machine_id",
            name="uq_ledger_machines_identity",
            unique=True,
            where="system_uuid != ''",
        ),
        key="machine_no",
    )
    table(
        "ledger_nodes",
        "node_no number, node_uid text, node_name text, machine_no number, system_uuid text, "
        "machine_id text, labels text, cpu_milli number, memory_bytes number, "
        "cpu_ref_max number, moved_position number?, lost_position number?, "
        "fact_position number",
        sa.UniqueConstraint("node_uid"),
        *within(cpu_milli=_PRODUCT, memory_bytes=_ANY, cpu_ref_max=_AMOUNT),
        index("machine_no"),
        index("node_name"),
        key="node_no",
        of={"machine_no": "ledger_machines"},
    )
    table(
        "ledger_stands",
        "node_no number, machine_no number, boot_id text, by_agent number, fact_position number",
        index("machine_no fact_position"),
        key="node_no machine_no",
        of={"node_no": "ledger_nodes", "machine_no": "ledger_machines"},
        rowid=False,
    )
    table(
        "ledger_devices",
        "device_no number, machine_no number, node_no number, device_type text, minor number, "
        "device_id text, unique_id number, model text, present number, healthy number, "
        "core_reported number, memory_reported number, core_cap number, memory_cap number, "
        "core_used number, memory_used number, tenants number, exclusive_holders number, "
        "core_observed number, memory_observed number, observed_holders number, "
        "fact_position number",
        check("core_within_cap", "core_used BETWEEN 0 AND core_cap"),
        check("memory_within_cap", "memory_used BETWEEN 0 AND memory_cap"),
        check(
            "reported_within_cap",
            "core_reported <= core_cap AND memory_reported <= memory_cap",
        ),
        check("exclusive_alone", "exclusive_holders = 0 OR tenants = 1"),
        check("counts", "tenants >= 0 AND exclusive_holders >= 0 AND observed_holders >= 0"),
        *within(
            minor=_INDEX,
            core_reported=_AMOUNT,
            memory_reported=_ANY,
            core_observed=_SUM,
            memory_observed=_SUM,
        ),
        index("machine_no device_type minor"),
        index(
            "device_type device_id machine_no",
            name="uq_ledger_devices_id",
            unique=True,
            where="device_id != ''",
        ),
        index(
            "node_no device_type minor",
            name="uq_ledger_devices_minor",
            unique=True,
            where="device_id = ''",
        ),
        key="device_no",
        of={"machine_no": "ledger_machines", "node_no": "ledger_nodes"},
    )
    table(
        "ledger_cpus",
        "machine_no number, cpu number, node_no number, core number, socket number, "
        "numa number, present number, ref_reported number, ref_max number, ref_used number, "
        "ref_observed number, fact_position number",
        check("refs_within_max", "ref_used BETWEEN 0 AND ref_max"),
        check("reported_within_max", "ref_reported <= ref_max"),
        check("observed", "ref_observed >= 0"),
        *within(cpu=(0, 4096), core=_INDEX, socket=_INDEX, numa=_INDEX, ref_reported=_AMOUNT),
        key="machine_no cpu",
        of={"machine_no": "ledger_machines", "node_no": "ledger_nodes"},
        rowid=False,
    )
    table(
        "ledger_reservations",
        "position number, pod_uid text, attempt number, namespace text, pod_name text, "
        "owner text, labels text, priority number, qos text, dialect text, policy text, "
        "source text, node_no number, cpu_milli number, memory_bytes number, "
        "gpu_core_percent number, gpu_count number, device_count number, cpuset text, "
        "cpu_count number, kind text, phase text, phase_position number, created_at_us number, "
        "opened_at_us number, decided_on number?, holder text, lost_position number?, "
        "counted_until_us number?, lost_boot_id text?, closed_at_us number?, "
        "closed_position number?, end_reason text?",
        check("holder", "holder IN ('pod', 'claim')"),
        check("kind", "kind IN ('granted', 'observed')"),
        check("closed", "(closed_at_us IS NULL) = (closed_position IS NULL)"),
        check(
            "open",
            "closed_position IS NOT NULL OR (end_reason IS NULL"
            " AND phase NOT IN ('released', 'voided'))",
        ),
        *within(
            attempt=(0, 2147483647),
            priority=(-2147483648, 2147483647),
            cpu_milli=_PRODUCT,
            memory_bytes=_ANY,
            gpu_core_percent=_PRODUCT,
            created_at_us=_ANY,
        ),
        check(
            "decided_on",
            "decided_on IS NULL OR (kind = 'granted' AND decided_on BETWEEN 1 AND position - 1)",
        ),
        check(
            "lost",
            "(lost_position IS NULL) = (counted_until_us IS NULL)"
            " AND (lost_position IS NULL) = (lost_boot_id IS NULL)",
        ),
        index("closed_position", where="closed_position IS NOT NULL"),
        index("namespace pod_name"),
        index("position", name="ix_ledger_reservations_open", where="closed_position IS NULL"),
        index("pod_uid attempt", name="ix_ledger_reservations_voided", where="phase = 'voided'"),
        key="position",
        of={"node_no": "ledger_nodes"},
    )
    table(
        "ledger_holdings",
        "position number, device_no number, minor number, core_percent number, "
        "memory_bytes number, memory_ratio_percent number, exclusive number, instances number, "
        "kind text, opened_at_us number, closed_at_us number?, closed_position number?",
        check("kind", "kind IN ('granted', 'observed')"),
        check("exclusive", "exclusive IN (0, 1)"),
        *within(
            minor=_INDEX,
            core_percent=_AMOUNT,
            memory_bytes=_ANY,
            memory_ratio_percent=_AMOUNT,
            instances=_AMOUNT,
        ),
        index("device_no closed_at_us opened_at_us minor"),
        key="position device_no",
        of={"position": "ledger_reservations", "device_no": "ledger_devices"},
        rowid=False,
    )
    table(
        "ledger_cpu_holdings",
        "position number, cpu number, machine_no number, kind text, opened_at_us number, "
        "closed_at_us number?, closed_position number?",
        check("kind", "kind IN ('granted', 'observed')"),
        index("machine_no cpu closed_at_us"),
        key="position cpu",
        of={"position": "ledger_reservations"},
        rowid=False,
    )
    table(
        "ledger_slot_holdings",
        "position number, slot text, machine_no number, device_no number?, kind text, "
        "opened_at_us number, closed_at_us number?, closed_position number?",
        check("kind", "kind IN ('granted', 'observed')"),
        index(
            "machine_no slot", name="ix_ledger_slot_holdings_open", where="closed_position IS NULL"
        ),
        index(
            "machine_no slot",
            name="uq_ledger_slot_holdings_granted",
            unique=True,
            where="closed_position IS NULL AND kind = 'granted'",
        ),
        key="position slot",
        of={"position": "ledger_reservations"},
        rowid=False,
    )
    table(
        "ledger_device_health",
        "position number, device_no number, at_us number, healthy number, reason text",
        index("device_no at_us"),
        key="position device_no",
        of={"device_no": "ledger_devices"},
        rowid=False,
    )
    table(
        "ledger_refusals",
        "position number, at_us number, pod_uid text, namespace text, pod_name text, "
        "stage text, message text, shape text, gpu_core_percent number, policy text, owner text",
        *within(gpu_core_percent=(0, 1000000000)),
        index("namespace pod_name"),
        index("pod_uid"),
        key="position",
    )
    table(
        "ledger_tree",
        "id number, size number, range bytes",
        check("one_row", "id = 1"),
        check("range_hashes", "length(range) % 32 = 0"),
        key="id",
    )
    table(
        "ledger_tiles",
        "level number, number number, hashes bytes",
        check("full", "length(hashes) = 8192"),
        key="level number",
        rowid=False,
    )
    table(
        "ledger_checkpoints",
        "size number, note text",
        key="size",
    )
    table(
        "ledger_snapshots",
        "position number, format text, body bytes, digest bytes",
        check("digest_length", "length(digest) = 32"),
        key="position",
    )
    table(
        "ledger_segments",
        "last number, first number, position number, file_name text, digest bytes, root bytes, "
        "chain_hash bytes, state_digest bytes, state bytes, at_us number",
        check("digest_length", "length(digest) = 32"),
        check("root_length", "length(root) = 32"),
        check("chain_hash_length", "length(chain_hash) = 32"),
        check("state_digest_length", "length(state_digest) = 32"),
        key="last",
    )
    table(
        "ledger_archived",
        "position number, idempotency_key text, stream text, event_type text, args_hash bytes, "
        "at_us number",
        sa.UniqueConstraint("idempotency_key"),
        check("args_hash_length", "length(args_hash) = 32"),
        key="position",
    )
    table(
        "ledger_planned_cards",
        "position number, device_no number, node_no number, group_name text, pod_uid text, "
        "opened_at_us number, closed_at_us number?, closed_position number?",
        index(
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
