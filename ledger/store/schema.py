"""
The tables of the ledger, for every database alike.

`ledger_events` and `ledger_head` are the ground state. All other tables are projections: the
transaction that appends an event writes them, and `rebuild` makes them again from the events. What
the database itself refuses (changing an event, a second holder of a full card) is in `ddl.rules`.

A projected row names its event by position without a foreign key, so that old events can move to an
archive; the row's rule checks that the event is there. Numbers such as `node_no` are given out in
the order of the events, so that a replay gives out the same ones.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from sqlalchemy import MetaData, UniqueConstraint

from ledger.domain.bounds import AT, POSITION, PRODUCT, SUM, WALL, Bounds, bounds_of
from ledger.store.ddl.tables import NAMES, check, describe_table, index, within

REVISIONS: Final = ("0003",)
"""Every schema revision that this release can read, oldest first; the last one is written."""
UNRELEASED: Final = ("0001", "0002")
"""Revisions from before the first release. A ledger of one is told apart and refused."""

METADATA: Final = MetaData(naming_convention=NAMES)

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
    "preemption.decided.v1",
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

_table: Final = partial(describe_table, METADATA)


def _like(*columns: str) -> dict[str, Bounds]:
    """Return the bounds of columns that are called like the field of an event that they have."""
    return {column: bounds_of(column) for column in columns}


ledger_head: Final = _table(
    "ledger_head",
    "id number, origin text, epoch number, holder text, position number, at_us number,"
    " chain_hash bytes",
    check("one_row", "id = 1"),
    check("chain_hash_length", "length(chain_hash) = 32"),
    *within(at_us=AT),
    key="id",
)
"""One row: the last position, its chain value, and who may write (the epoch)."""

ledger_events: Final = _table(
    "ledger_events",
    "position number, stream text, stream_version number, event_type text, body text, actor text,"
    " epoch number, causation_position number?, correlation_id text, idempotency_key text,"
    " args_hash bytes, at_us number, wall_us number, leaf_hash bytes, chain_hash bytes",
    UniqueConstraint("idempotency_key"),
    index(
        "event_type position",
        name="ix_ledger_events_seldom",
        where=" OR ".join(f"event_type = '{name}'" for name in SELDOM),
    ),
    check("args_hash_length", "length(args_hash) = 32"),
    check("leaf_hash_length", "length(leaf_hash) = 32"),
    check("chain_hash_length", "length(chain_hash) = 32"),
    *within(
        stream_version=POSITION,
        epoch=POSITION,
        causation_position=POSITION,
        at_us=AT,
        wall_us=WALL,
    ),
    key="position",
)
"""
The log. Columns as `ledger.domain.log.recorded.Envelope`, hashes as 32 bytes. No index on a hash:
one over random keys would be the dearest part of an append.
"""

ledger_streams: Final = _table(
    "ledger_streams",
    "stream text, version number",
    key="stream",
    rowid=False,
)
"""
The last version of every stream, moved by trigger with each event. It makes (stream, version)
unique without an index over every event, whose random leaves would cost a page write per event.
"""

ledger_machines: Final = _table(
    "ledger_machines",
    "machine_no number, system_uuid text, machine_id text, fact_position number",
    index(
        "system_uuid machine_id",
        name="uq_ledger_machines_identity",
        unique=True,
        where="system_uuid != ''",
    ),
    check("identity", "(system_uuid = '') = (machine_id = '')"),
    key="machine_no",
)
"""
Machines, by (systemUUID, machineID): the metal of which accounts are kept, whatever Node is on it.

A Node that does not tell both is a machine of its own, equal to no other, until it tells them.
"""

ledger_nodes: Final = _table(
    "ledger_nodes",
    "node_no number, node_uid text, node_name text, machine_no number, system_uuid text,"
    " machine_id text, labels text, cpu_milli number, memory_bytes number, cpu_ref_max number,"
    " moved_position number?, lost_position number?, fact_position number",
    UniqueConstraint("node_uid"),
    index("node_name"),
    *within(**_like("cpu_milli", "memory_bytes"), cpu_ref_max=bounds_of("cpu_ref_count_max")),
    index("machine_no"),
    key="node_no",
    of={"machine_no": "ledger_machines"},
)
"""
Nodes as last inventoried. A node made again under the same name is another row.

`moved_position` is where it was last found on another machine than before, `lost_position` where it
was lost, until it is inventoried again.
"""

ledger_stands: Final = _table(
    "ledger_stands",
    "node_no number, machine_no number, boot_id text, by_agent number, fact_position number",
    index("machine_no fact_position"),
    key="node_no machine_no",
    of={"node_no": "ledger_nodes", "machine_no": "ledger_machines"},
    rowid=False,
)
"""
Which Node stood on which machine, ever, and what it told last while it did.

`by_agent` stays 1 once the machine's agent has reported through the Node. What is known of a
machine is what all of them told, wherever they stand now.
"""

ledger_devices: Final = _table(
    "ledger_devices",
    "device_no number, machine_no number, node_no number, device_type text, minor number,"
    " device_id text, unique_id number, model text, present number, healthy number,"
    " core_reported number, memory_reported number, core_cap number, memory_cap number,"
    " core_used number, memory_used number, tenants number, exclusive_holders number,"
    " core_observed number, memory_observed number, observed_holders number, fact_position number",
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
    check("core_within_cap", "core_used BETWEEN 0 AND core_cap"),
    check("memory_within_cap", "memory_used BETWEEN 0 AND memory_cap"),
    check("reported_within_cap", "core_reported <= core_cap AND memory_reported <= memory_cap"),
    check("exclusive_alone", "exclusive_holders = 0 OR tenants = 1"),
    check("counts", "tenants >= 0 AND exclusive_holders >= 0 AND observed_holders >= 0"),
    *within(
        **_like("minor"),
        core_reported=bounds_of("core_percent"),
        memory_reported=bounds_of("memory_bytes"),
        core_observed=SUM,
        memory_observed=SUM,
    ),
    key="device_no",
    of={"machine_no": "ledger_machines", "node_no": "ledger_nodes"},
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
    "machine_no number, cpu number, node_no number, core number, socket number, numa number,"
    " present number, ref_reported number, ref_max number, ref_used number, ref_observed number,"
    " fact_position number",
    check("refs_within_max", "ref_used BETWEEN 0 AND ref_max"),
    check("reported_within_max", "ref_reported <= ref_max"),
    check("observed", "ref_observed >= 0"),
    *within(
        cpu=bounds_of("id"),
        **_like("core", "socket", "numa"),
        ref_reported=bounds_of("cpu_ref_count_max"),
    ),
    key="machine_no cpu",
    of={"machine_no": "ledger_machines", "node_no": "ledger_nodes"},
    rowid=False,
)
"""Logical CPUs of machines and their holders; `ref_max` is to `ref_reported` as cap above."""

ledger_reservations: Final = _table(
    "ledger_reservations",
    "position number, pod_uid text, attempt number, namespace text, pod_name text, owner text,"
    " labels text, priority number, qos text, dialect text, policy text, source text,"
    " node_no number, cpu_milli number, memory_bytes number, gpu_core_percent number,"
    " gpu_count number, device_count number, cpuset text, cpu_count number, kind text,"
    " phase text, phase_position number, created_at_us number, opened_at_us number,"
    " decided_on number?, holder text, lost_position number?, counted_until_us number?,"
    " lost_boot_id text?, closed_at_us number?, closed_position number?, end_reason text?",
    index("position", name="ix_ledger_reservations_open", where="closed_position IS NULL"),
    index("namespace pod_name"),
    index("pod_uid attempt", name="ix_ledger_reservations_voided", where="phase = 'voided'"),
    # Of what ended alone, so that a reservation enters it once, behind all others.
    index("closed_position", where="closed_position IS NOT NULL"),
    check("holder", "holder IN ('pod', 'claim')"),
    check("kind", "kind IN ('granted', 'observed')"),
    check("closed", "(closed_at_us IS NULL) = (closed_position IS NULL)"),
    check(
        "open",
        "closed_position IS NOT NULL"
        " OR (end_reason IS NULL AND phase NOT IN ('released', 'voided'))",
    ),
    *within(
        **_like("attempt", "priority", "cpu_milli", "memory_bytes"),
        gpu_core_percent=PRODUCT,
        **_like("created_at_us"),
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
    key="position",
    of={"node_no": "ledger_nodes"},
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
    "position number, device_no number, minor number, core_percent number, memory_bytes number,"
    " memory_ratio_percent number, exclusive number, instances number, kind text,"
    " opened_at_us number, closed_at_us number?, closed_position number?",
    # The first two are for the rule that adds up what is open on a card, with every grant; all four
    # let `audit_holdings` look for a moment in the index alone, however long a card's history is.
    index("device_no closed_at_us opened_at_us minor"),
    check("kind", "kind IN ('granted', 'observed')"),
    check("exclusive", "exclusive IN (0, 1)"),
    *within(**_like("minor", "core_percent", "memory_bytes", "memory_ratio_percent", "instances")),
    key="position device_no",
    of={"position": "ledger_reservations", "device_no": "ledger_devices"},
    rowid=False,
)
"""One row per reservation and device. Inserting it takes from the device, closing gives back."""

ledger_cpu_holdings: Final = _table(
    "ledger_cpu_holdings",
    "position number, cpu number, machine_no number, kind text, opened_at_us number,"
    " closed_at_us number?, closed_position number?",
    index("machine_no cpu closed_at_us"),
    check("kind", "kind IN ('granted', 'observed')"),
    key="position cpu",
    of={"position": "ledger_reservations"},
    rowid=False,
)
"""One row per reservation and logical CPU."""

ledger_slot_holdings: Final = _table(
    "ledger_slot_holdings",
    "position number, slot text, machine_no number, device_no number?, kind text,"
    " opened_at_us number, closed_at_us number?, closed_position number?",
    index(
        "machine_no slot",
        name="uq_ledger_slot_holdings_granted",
        unique=True,
        where="closed_position IS NULL AND kind = 'granted'",
    ),
    index("machine_no slot", name="ix_ledger_slot_holdings_open", where="closed_position IS NULL"),
    check("kind", "kind IN ('granted', 'observed')"),
    key="position slot",
    of={"position": "ledger_reservations"},
    rowid=False,
)
"""
Indivisible parts, one granted holder each: virtual functions by bus id, unique in their machine.

An observed holder of cards that nobody can name has the slot `unknown/<device type>`: while it is
open, the machine grants nothing of that type.
"""

ledger_device_health: Final = _table(
    "ledger_device_health",
    "position number, device_no number, at_us number, healthy number, reason text",
    index("device_no at_us"),
    key="position device_no",
    of={"device_no": "ledger_devices"},
    rowid=False,
)
"""When a device was closed to grants or opened again, by an event of its own or an inventory."""

ledger_refusals: Final = _table(
    "ledger_refusals",
    "position number, at_us number, pod_uid text, namespace text, pod_name text, stage text,"
    " message text, shape text, gpu_core_percent number, policy text, owner text",
    index("namespace pod_name"),
    index("pod_uid"),
    *within(**_like("gpu_core_percent")),
    key="position",
)
"""Pods that were refused, and in which words; the reasons as values are in the event body."""

ledger_tree: Final = _table(
    "ledger_tree",
    "id number, size number, range bytes",
    check("one_row", "id = 1"),
    check("range_hashes", "length(range) % 32 = 0"),
    key="id",
)
"""
One row: the Merkle tree over the leaf hashes of positions 1..size, as its compact range (roots of
its perfect subtrees, largest first, 32 bytes each). Moves in the commit that appends.
"""

ledger_tiles: Final = _table(
    "ledger_tiles",
    "level number, number number, hashes bytes",
    check("full", "length(hashes) = 8192"),
    key="level number",
    rowid=False,
)
"""
Full tiles of the Merkle tree: 256 hashes of level `8 * level`, the `number`th from the left. They
stay when events move to an archive, so that a proof about an archived event still works.
"""

ledger_checkpoints: Final = _table(
    "ledger_checkpoints",
    "size number, note text",
    key="size",
)
"""Signed checkpoints (C2SP signed notes) by the size of their tree, as the log says them."""

ledger_snapshots: Final = _table(
    "ledger_snapshots",
    "position number, format text, body bytes, digest bytes",
    check("digest_length", "length(digest) = 32"),
    key="position",
)
"""The folded state after `position`, compressed; the log commits to its digest (snapshot.taken)."""

ledger_segments: Final = _table(
    "ledger_segments",
    "last number, first number, position number, file_name text, digest bytes, root bytes,"
    " chain_hash bytes, state_digest bytes, state bytes, at_us number",
    check("digest_length", "length(digest) = 32"),
    check("root_length", "length(root) = 32"),
    check("chain_hash_length", "length(chain_hash) = 32"),
    check("state_digest_length", "length(state_digest) = 32"),
    key="last",
)
"""
Events `first`..`last` that moved to an archive file, as the event at `position` says.

`digest` is of the file, `root` of the tree of size `last`; `chain_hash` and `at_us` are those of
the last event. `state` is what a reader that starts behind it must know, compressed.
"""

ledger_archived: Final = _table(
    "ledger_archived",
    "position number, idempotency_key text, stream text, event_type text, args_hash bytes,"
    " at_us number",
    UniqueConstraint("idempotency_key"),
    check("args_hash_length", "length(args_hash) = 32"),
    key="position",
)
"""What stays of an event that moved: enough to know its command when it comes again."""

ledger_planned_cards: Final = _table(
    "ledger_planned_cards",
    "position number, device_no number, node_no number, group_name text, pod_uid text,"
    " opened_at_us number, closed_at_us number?, closed_position number?",
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
