"""
The tables of the ledger, for every database alike.

`ledger_events` and `ledger_head` are the ground state. All other tables are projections: the same
transaction that appends an event writes them, and `rebuild` makes them again from the events. What
the database itself refuses (changing an event, a second holder of a full card) is in `ddl.rules`.

A projected row names its event by position without a foreign key, so that old events can move to
an archive; that the event is there is checked when the row is written. Numbers such as `node_no`
and `device_no` are given out in the order of the events, so that a replay gives out the same ones.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    ColumnElement,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    or_,
)
from sqlalchemy.schema import SchemaItem

from ledger.domain.bounds import AT, POSITION, PRODUCT, SUM, WALL, Bounds, bounds_of

REVISIONS: Final = ("0003",)
"""Every schema revision that this release can read, oldest first; the last one is written."""
UNRELEASED: Final = ("0001", "0002")
"""Revisions from before the first release. A ledger of one is told apart and refused."""

METADATA: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

SELDOM: Final = (
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
"""Event types that views and readers look for in the log itself, through an index of their own."""

KEPT: Final = (
    *SELDOM,
    "device.health_changed.v1",
    "key.rotated.v1",
    "segment.archived.v1",
    "workload.described.v1",
)
"""Event types that stay in the log when the events around them move to an archive."""

BIG: Final = BigInteger().with_variant(Integer(), "sqlite")
"""64 bits. A STRICT table of SQLite knows no BIGINT; its INTEGER has 64 bits."""


def _number(name: str, *, null: bool = False) -> Column[int]:
    return Column(name, BIG, nullable=null)


def _text(name: str, *, null: bool = False) -> Column[str]:
    return Column(name, Text, nullable=null)


def _bytes(name: str) -> Column[bytes]:
    return Column(name, LargeBinary, nullable=False)


def _of(table: Table, name: str, *, key: bool = False) -> Column[int]:
    """Return the column that names a row of another table as that table does."""
    return Column(name, BIG, ForeignKey(f"{table.name}.{name}"), nullable=False, primary_key=key)


def _key(name: str) -> Column[int]:
    return Column(name, BIG, primary_key=True, autoincrement=False)


def _table(name: str, *parts: SchemaItem, rowid: bool = True) -> Table:
    """Return a table whose columns take their own type only, on SQLite too."""
    return Table(name, METADATA, *parts, sqlite_strict=True, sqlite_with_rowid=rowid)


def _where(condition: ColumnElement[bool]) -> dict[str, Any]:
    """Return what makes an index one of those rows alone."""
    return {"sqlite_where": condition, "postgresql_where": condition}


def _check(name: str, condition: str) -> CheckConstraint:
    return CheckConstraint(condition, name=name)


def _within(**bounds: Bounds) -> tuple[CheckConstraint, ...]:
    return tuple(
        _check(f"{column}_bounds", f"{column} BETWEEN {low} AND {high}")
        for column, (low, high) in bounds.items()
    )


def _like(*columns: str) -> dict[str, Bounds]:
    """Return the bounds of columns that are called like the field of an event that they have."""
    return {column: bounds_of(column) for column in columns}


ledger_head: Final = _table(
    "ledger_head",
    _key("id"),
    _text("origin"),
    _number("epoch"),
    _text("holder"),
    _number("position"),
    _number("at_us"),
    _bytes("chain_hash"),
    _check("one_row", "id = 1"),
    _check("chain_hash_length", "length(chain_hash) = 32"),
    *_within(at_us=AT),
)
"""One row: the last position, its chain value, and who may write (the epoch)."""

ledger_events: Final = _table(
    "ledger_events",
    _key("position"),
    _text("stream"),
    _number("stream_version"),
    _text("event_type"),
    _text("body"),
    _text("actor"),
    _number("epoch"),
    _number("causation_position", null=True),
    _text("correlation_id"),
    _text("idempotency_key"),
    _bytes("args_hash"),
    _number("at_us"),
    _number("wall_us"),
    _bytes("leaf_hash"),
    _bytes("chain_hash"),
    UniqueConstraint("idempotency_key"),
    Index(
        "ix_ledger_events_seldom",
        "event_type",
        "position",
        **_where(or_(*(Column("event_type") == name for name in SELDOM))),
    ),
    _check("args_hash_length", "length(args_hash) = 32"),
    _check("leaf_hash_length", "length(leaf_hash) = 32"),
    _check("chain_hash_length", "length(chain_hash) = 32"),
    *_within(
        stream_version=POSITION,
        epoch=POSITION,
        causation_position=POSITION,
        at_us=AT,
        wall_us=WALL,
    ),
)
"""
The log. Columns as `ledger.domain.log.recorded.Envelope`, hashes as 32 bytes. No index on a hash:
one over random keys would be the dearest part of an append.
"""

ledger_streams: Final = _table(
    "ledger_streams",
    Column("stream", Text, primary_key=True),
    _number("version"),
    rowid=False,
)
"""
The last version of every stream, moved by trigger with each event. It makes (stream, version)
unique without an index over every event, whose random leaves would cost a page write per event.
"""

ledger_machines: Final = _table(
    "ledger_machines",
    _key("machine_no"),
    _text("system_uuid"),
    _text("machine_id"),
    _number("fact_position"),
    Index(
        "uq_ledger_machines_identity",
        "system_uuid",
        "machine_id",
        unique=True,
        **_where(Column("system_uuid") != ""),
    ),
    _check("identity", "(system_uuid = '') = (machine_id = '')"),
)
"""
Machines, by (systemUUID, machineID): the metal of which accounts are kept, whatever Node is on it.

A Node that does not tell both is a machine of its own, equal to no other, until it tells them.
"""

ledger_nodes: Final = _table(
    "ledger_nodes",
    _key("node_no"),
    _text("node_uid"),
    _text("node_name"),
    _of(ledger_machines, "machine_no"),
    _text("system_uuid"),
    _text("machine_id"),
    _text("labels"),
    _number("cpu_milli"),
    _number("memory_bytes"),
    _number("cpu_ref_max"),
    _number("moved_position", null=True),
    _number("lost_position", null=True),
    _number("fact_position"),
    UniqueConstraint("node_uid"),
    Index(None, "node_name"),
    *_within(**_like("cpu_milli", "memory_bytes"), cpu_ref_max=bounds_of("cpu_ref_count_max")),
    Index(None, "machine_no"),
)
"""
Nodes as last inventoried. A node made again under the same name is another row.

`moved_position` is where it was last found on another machine than before, `lost_position` where it
was lost, until it is inventoried again.
"""

ledger_stands: Final = _table(
    "ledger_stands",
    _of(ledger_nodes, "node_no", key=True),
    _of(ledger_machines, "machine_no", key=True),
    _text("boot_id"),
    _number("by_agent"),
    _number("fact_position"),
    Index(None, "machine_no", "fact_position"),
    rowid=False,
)
"""
Which Node stood on which machine, ever, and what it told last while it did.

`by_agent` stays 1 once the machine's agent has reported through the Node. What is known of a
machine is what all of them told, wherever they stand now.
"""

ledger_devices: Final = _table(
    "ledger_devices",
    _key("device_no"),
    _of(ledger_machines, "machine_no"),
    _of(ledger_nodes, "node_no"),
    _text("device_type"),
    _number("minor"),
    _text("device_id"),
    _number("unique_id"),
    _text("model"),
    _number("present"),
    _number("healthy"),
    _number("core_reported"),
    _number("memory_reported"),
    _number("core_cap"),
    _number("memory_cap"),
    _number("core_used"),
    _number("memory_used"),
    _number("tenants"),
    _number("exclusive_holders"),
    _number("core_observed"),
    _number("memory_observed"),
    _number("observed_holders"),
    _number("fact_position"),
    Index(None, "machine_no", "device_type", "minor"),
    Index(
        "uq_ledger_devices_id",
        "device_type",
        "device_id",
        "machine_no",
        unique=True,
        **_where(Column("device_id") != ""),
    ),
    Index(
        "uq_ledger_devices_minor",
        "node_no",
        "device_type",
        "minor",
        unique=True,
        **_where(Column("device_id") == ""),
    ),
    _check("core_within_cap", "core_used BETWEEN 0 AND core_cap"),
    _check("memory_within_cap", "memory_used BETWEEN 0 AND memory_cap"),
    _check("reported_within_cap", "core_reported <= core_cap AND memory_reported <= memory_cap"),
    _check("exclusive_alone", "exclusive_holders = 0 OR tenants = 1"),
    _check("counts", "tenants >= 0 AND exclusive_holders >= 0 AND observed_holders >= 0"),
    *_within(
        **_like("minor"),
        core_reported=bounds_of("core_percent"),
        memory_reported=bounds_of("memory_bytes"),
        core_observed=SUM,
        memory_observed=SUM,
    ),
)
"""
Devices, by (machine, UUID), or by (node, minor) where the inventory knows no UUID.

A device is an attribute of no Node: `node_no` is the one whose inventory named it last.

`*_reported` is what the inventory says now, `*_cap` the greater of that and what is still held:
a device that shrank under its holders takes no grants, and its cap falls as they leave. `*_used`,
`tenants` and `exclusive_holders` count what was granted, `*_observed` what others hold.
"""

ledger_cpus: Final = _table(
    "ledger_cpus",
    _of(ledger_machines, "machine_no", key=True),
    _key("cpu"),
    _of(ledger_nodes, "node_no"),
    _number("core"),
    _number("socket"),
    _number("numa"),
    _number("present"),
    _number("ref_reported"),
    _number("ref_max"),
    _number("ref_used"),
    _number("ref_observed"),
    _number("fact_position"),
    _check("refs_within_max", "ref_used BETWEEN 0 AND ref_max"),
    _check("reported_within_max", "ref_reported <= ref_max"),
    _check("observed", "ref_observed >= 0"),
    *_within(
        cpu=bounds_of("id"),
        **_like("core", "socket", "numa"),
        ref_reported=bounds_of("cpu_ref_count_max"),
    ),
    rowid=False,
)
"""Logical CPUs of machines and their holders; `ref_max` is to `ref_reported` as cap above."""

ledger_reservations: Final = _table(
    "ledger_reservations",
    _key("position"),
    _text("pod_uid"),
    _number("attempt"),
    _text("namespace"),
    _text("pod_name"),
    _text("owner"),
    _text("labels"),
    _number("priority"),
    _text("qos"),
    _text("dialect"),
    _text("policy"),
    _text("source"),
    _of(ledger_nodes, "node_no"),
    _number("cpu_milli"),
    _number("memory_bytes"),
    _number("gpu_core_percent"),
    _number("gpu_count"),
    _number("device_count"),
    _text("cpuset"),
    _number("cpu_count"),
    _text("kind"),
    _text("phase"),
    _number("phase_position"),
    _number("created_at_us"),
    _number("opened_at_us"),
    _number("decided_on", null=True),
    _text("holder"),
    _number("lost_position", null=True),
    _number("counted_until_us", null=True),
    _text("lost_boot_id", null=True),
    _number("closed_at_us", null=True),
    _number("closed_position", null=True),
    _text("end_reason", null=True),
    Index(
        "ix_ledger_reservations_open",
        "position",
        **_where(Column("closed_position").is_(None)),
    ),
    Index(None, "namespace", "pod_name"),
    Index(
        "ix_ledger_reservations_voided", "pod_uid", "attempt", **_where(Column("phase") == "voided")
    ),
    # Of what ended alone, so that a reservation enters it once, behind all others.
    Index(None, "closed_position", **_where(Column("closed_position").is_not(None))),
    _check("holder", "holder IN ('pod', 'claim')"),
    _check("kind", "kind IN ('granted', 'observed')"),
    _check("closed", "(closed_at_us IS NULL) = (closed_position IS NULL)"),
    _check(
        "open",
        "closed_position IS NOT NULL"
        " OR (end_reason IS NULL AND phase NOT IN ('released', 'voided'))",
    ),
    *_within(
        **_like("attempt", "priority", "cpu_milli", "memory_bytes"),
        gpu_core_percent=PRODUCT,
        **_like("created_at_us"),
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
)
"""
One row per reservation or observed holding of a Pod, with its interval; position = event.

Where `holder` is `claim`, the row is of a claim, and `pod_uid` and `pod_name` are the claim's.

`phase_position` is the event that said `reserved`, `observed`, `bound` or `assigned` last.
A lost one (`lost_position`: its node was lost there) still holds, and is counted to that moment;
`lost_boot_id` is the machine's newest boot id then.

No index has the random Pod UID in front: its leaves would cost an append a page write each. A Pod
is found by namespace and name, and the writer knows what is open by heart.
"""

ledger_holdings: Final = _table(
    "ledger_holdings",
    _of(ledger_reservations, "position", key=True),
    _of(ledger_devices, "device_no", key=True),
    _number("minor"),
    _number("core_percent"),
    _number("memory_bytes"),
    _number("memory_ratio_percent"),
    _number("exclusive"),
    _number("instances"),
    _text("kind"),
    _number("opened_at_us"),
    _number("closed_at_us", null=True),
    _number("closed_position", null=True),
    # The first two are for the rule that adds up what is open on a card, with every grant; all four
    # let `audit_holdings` look for a moment in the index alone, however long a card's history is.
    Index(None, "device_no", "closed_at_us", "opened_at_us", "minor"),
    _check("kind", "kind IN ('granted', 'observed')"),
    _check("exclusive", "exclusive IN (0, 1)"),
    *_within(**_like("minor", "core_percent", "memory_bytes", "memory_ratio_percent", "instances")),
    rowid=False,
)
"""One row per reservation and device. Inserting it takes from the device, closing gives back."""

ledger_cpu_holdings: Final = _table(
    "ledger_cpu_holdings",
    _of(ledger_reservations, "position", key=True),
    _key("cpu"),
    _number("machine_no"),
    _text("kind"),
    _number("opened_at_us"),
    _number("closed_at_us", null=True),
    _number("closed_position", null=True),
    Index(None, "machine_no", "cpu", "closed_at_us"),
    _check("kind", "kind IN ('granted', 'observed')"),
    rowid=False,
)
"""One row per reservation and logical CPU."""

ledger_slot_holdings: Final = _table(
    "ledger_slot_holdings",
    _of(ledger_reservations, "position", key=True),
    Column("slot", Text, primary_key=True),
    _number("machine_no"),
    _number("device_no", null=True),
    _text("kind"),
    _number("opened_at_us"),
    _number("closed_at_us", null=True),
    _number("closed_position", null=True),
    Index(
        "uq_ledger_slot_holdings_granted",
        "machine_no",
        "slot",
        unique=True,
        **_where((Column("closed_position").is_(None)) & (Column("kind") == "granted")),
    ),
    Index(
        "ix_ledger_slot_holdings_open",
        "machine_no",
        "slot",
        **_where(Column("closed_position").is_(None)),
    ),
    _check("kind", "kind IN ('granted', 'observed')"),
    rowid=False,
)
"""
Indivisible parts, one granted holder each: virtual functions by bus id, unique in their machine.

An observed holder of cards that nobody can name has the slot `unknown/<device type>`: while it is
open, the machine grants nothing of that type.
"""

ledger_device_health: Final = _table(
    "ledger_device_health",
    _key("position"),
    _of(ledger_devices, "device_no", key=True),
    _number("at_us"),
    _number("healthy"),
    _text("reason"),
    Index(None, "device_no", "at_us"),
    rowid=False,
)
"""When a device was closed to grants or opened again, by an event of its own or an inventory."""

ledger_refusals: Final = _table(
    "ledger_refusals",
    _key("position"),
    _number("at_us"),
    _text("pod_uid"),
    _text("namespace"),
    _text("pod_name"),
    _text("stage"),
    _text("message"),
    _text("shape"),
    _number("gpu_core_percent"),
    _text("policy"),
    _text("owner"),
    Index(None, "namespace", "pod_name"),
    Index(None, "pod_uid"),
    *_within(**_like("gpu_core_percent")),
)
"""Pods that were refused, and in which words; the reasons as values are in the event body."""

ledger_tree: Final = _table(
    "ledger_tree",
    _key("id"),
    _number("size"),
    _bytes("range"),
    _check("one_row", "id = 1"),
    _check("range_hashes", "length(range) % 32 = 0"),
)
"""
One row: the Merkle tree over the leaf hashes of positions 1..size, as its compact range: the roots
of its perfect subtrees, largest first, 32 bytes each. Moves in the commit that appends.
"""

ledger_tiles: Final = _table(
    "ledger_tiles",
    _key("level"),
    _key("number"),
    _bytes("hashes"),
    _check("full", "length(hashes) = 8192"),
    rowid=False,
)
"""
Full tiles of the Merkle tree: 256 hashes of level `8 * level`, the `number`th from the left. They
stay when events move to an archive, so that a proof about an archived event still works.
"""

ledger_checkpoints: Final = _table(
    "ledger_checkpoints",
    _key("size"),
    _text("note"),
)
"""Signed checkpoints (C2SP signed notes) by the size of their tree, as the log says them."""

ledger_snapshots: Final = _table(
    "ledger_snapshots",
    _key("position"),
    _text("format"),
    _bytes("body"),
    _bytes("digest"),
    _check("digest_length", "length(digest) = 32"),
)
"""The folded state after `position`, compressed; the log commits to its digest (snapshot.taken)."""

ledger_segments: Final = _table(
    "ledger_segments",
    _key("last"),
    _number("first"),
    _number("position"),
    _text("file_name"),
    _bytes("digest"),
    _bytes("root"),
    _bytes("chain_hash"),
    _bytes("state_digest"),
    _bytes("state"),
    _number("at_us"),
    _check("digest_length", "length(digest) = 32"),
    _check("root_length", "length(root) = 32"),
    _check("chain_hash_length", "length(chain_hash) = 32"),
    _check("state_digest_length", "length(state_digest) = 32"),
)
"""
Events `first`..`last` that moved to an archive file, as the event at `position` says.

`digest` is of the file, `root` of the tree of size `last`; `chain_hash` and `at_us` are those of
the last event. `state` is what a reader that starts behind it must know, compressed.
"""

ledger_archived: Final = _table(
    "ledger_archived",
    _key("position"),
    _text("idempotency_key"),
    _text("stream"),
    _text("event_type"),
    _bytes("args_hash"),
    _number("at_us"),
    UniqueConstraint("idempotency_key"),
    _check("args_hash_length", "length(args_hash) = 32"),
)
"""What stays of an event that moved: enough to know its command when it comes again."""

ledger_planned_cards: Final = _table(
    "ledger_planned_cards",
    _key("position"),
    _of(ledger_devices, "device_no", key=True),
    _of(ledger_nodes, "node_no"),
    _text("group_name"),
    _text("pod_uid"),
    _number("opened_at_us"),
    _number("closed_at_us", null=True),
    _number("closed_position", null=True),
    Index(
        "uq_ledger_planned_cards_open",
        "device_no",
        unique=True,
        **_where(Column("closed_position").is_(None)),
    ),
    rowid=False,
)
"""Whole devices that wait for one member of a planned group; one open place per device."""

PROJECTIONS: Final = (
    ledger_machines,
    ledger_nodes,
    ledger_stands,
    ledger_devices,
    ledger_cpus,
    ledger_reservations,
    ledger_holdings,
    ledger_cpu_holdings,
    ledger_slot_holdings,
    ledger_device_health,
    ledger_refusals,
    ledger_planned_cards,
)
"""Every table that `rebuild` makes again, parents first."""
