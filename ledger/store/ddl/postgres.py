"""
The rules that Postgres itself enforces, whoever connects.

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
    ("ledger_machines", "machines"),
    ("ledger_nodes", "nodes"),
    ("ledger_stands", "nodes on machines"),
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

RULES: Final[tuple[str, ...]] = (
    postgres_guard.ALLOW,
    *postgres_log.RULES,
    *postgres_facts.RULES,
    *postgres_holdings.RULES,
    *postgres_parts.RULES,
    *never_changes("ledger_device_health", "a change of health"),
    *never_changes("ledger_refusals", "a refusal"),
    *(text for table, what in _KEPT for text in refuse_delete(table, what)),
    *(text for table, what in _KEPT for text in refuse_truncate(table, what)),
    _FIRST_PARTITION,
    *postgres_proof.PROOF,
    *postgres_life.LIFE,
    *postgres_places.RULES,
    *postgres_views.VIEWS,
    *postgres_deferred.HEAD_SETTLED,
    *postgres_append.APPEND,
    *postgres_guard.RULES,
)
"""Functions, triggers and views, in the order in which they are made."""
