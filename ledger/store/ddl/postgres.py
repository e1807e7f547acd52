"""
The rules that Postgres itself enforces, whoever connects: one list per revision.

Every rule is the one of the same name on SQLite, with the same words in its refusal; only streams
are counted here by `ledger_events_append`. Triggers are ENABLE ALWAYS, so that
`session_replication_role` does not silence them.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl import (
    postgres_append,
    postgres_deferred,
    postgres_facts,
    postgres_feed,
    postgres_guard,
    postgres_holdings,
    postgres_life,
    postgres_log,
    postgres_parts,
    postgres_places,
    postgres_proof,
    postgres_views,
)
from ledger.store.ddl.postgres_texts import never_changes, refuse_delete, refuse_truncate

_KEPT: Final = (
    ("ledger_head", "heads"),
    ("ledger_streams", "streams"),
    ("ledger_nodes", "nodes"),
    ("ledger_devices", "cards"),
    ("ledger_cpus", "CPUs"),
    ("ledger_reservations", "reservations"),
    ("ledger_holdings", "holdings"),
    ("ledger_cpu_holdings", "CPU holdings"),
    ("ledger_slot_holdings", "slot holdings"),
    ("ledger_device_health", "changes of health"),
    ("ledger_refusals", "refusals"),
)
_FIRST_PARTITION: Final = "SELECT ledger_add_partition(1)"

V1: Final[tuple[str, ...]] = (
    postgres_guard.ALLOW,
    *postgres_log.V1,
    *postgres_facts.V1,
    *postgres_holdings.V1,
    *postgres_parts.V1,
    *never_changes("ledger_device_health", "a change of health"),
    *never_changes("ledger_refusals", "a refusal"),
    *(text for table, what in _KEPT for text in refuse_delete(table, what)),
    *(text for table, what in _KEPT for text in refuse_truncate(table, what)),
    _FIRST_PARTITION,
    *postgres_guard.V1,
)
"""Functions and triggers of revision 0001, in the order in which they are made."""

V2: Final[tuple[str, ...]] = (
    postgres_guard.ALLOW,
    *postgres_proof.PROOF,
    *postgres_feed.FEED,
    *postgres_life.LIFE,
    *postgres_places.V2,
    *postgres_views.V2,
    *postgres_deferred.HEAD_SETTLED,
    *postgres_append.APPEND,
)
"""Functions, triggers and views of revision 0002, in the order in which they are made."""
