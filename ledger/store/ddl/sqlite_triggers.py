"""
The rules that SQLite itself enforces, whoever opens the file.

They hold on a connection with default pragmas: no foreign keys, no recursive triggers, and
`ignore_check_constraints` on. So every rule is a BEFORE trigger, and an INSERT OR REPLACE, whose
silent deletion fires no trigger there, is refused before it deletes.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl import (
    facts,
    holdings,
    log,
    parts,
    sqlite_life,
    sqlite_places,
    sqlite_proof,
)
from ledger.store.ddl.texts import never_changes, refuse_delete

_NO_DELETE: Final = (
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

TRIGGERS: Final = tuple(
    text.strip()
    for text in (
        *log.RULES,
        *holdings.RULES,
        *facts.RULES,
        *parts.RULES,
        never_changes("ledger_device_health", "a change of health"),
        never_changes("ledger_refusals", "a refusal"),
        *(refuse_delete(table, what) for table, what in _NO_DELETE),
        *sqlite_proof.PROOF,
        *sqlite_life.LIFE,
        *sqlite_places.RULES,
    )
)
"""Every trigger, in the order in which they are made."""


def named(text: str) -> str:
    """Return the name of the trigger that this text makes."""
    return text.split(maxsplit=3)[2]


_PROJECTED: Final = tuple(
    f"{table}_no_delete"
    for table, _ in (*_NO_DELETE, ("ledger_places", ""))
    if table != "ledger_head"
)
REBUILDING: Final = tuple(
    text
    for text in TRIGGERS
    if named(text).startswith("ledger_streams_") or named(text) in _PROJECTED
)
"""The triggers that stand in the way of making the projections again from the events."""
