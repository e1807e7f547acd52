"""Every rule, in the order in which the databases are given them."""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.rules import facts, holdings, log, parts, planned_cards, proof
from ledger.store.ddl.rules.rule import TableRule, never_changes, never_goes

_PROJECTED: Final = (
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
    ("ledger_planned_cards", "planned cards"),
)
"""The tables whose rows the events say, and what a row of them is called."""
KEPT: Final = (
    ("ledger_head", "heads"),
    *_PROJECTED,
    ("ledger_tree", "trees"),
    ("ledger_tiles", "tiles"),
    ("ledger_checkpoints", "checkpoints"),
    ("ledger_segments", "segments"),
    ("ledger_archived", "archived keys"),
)
"""The tables of which no row ever goes."""

RULES: Final[tuple[TableRule, ...]] = (
    *log.RULES,
    *holdings.RULES,
    *facts.RULES,
    *parts.RULES,
    never_changes("ledger_device_health", "a change of health"),
    never_changes("ledger_refusals", "a refusal"),
    *proof.RULES,
    *planned_cards.RULES,
    *(never_goes(table, what) for table, what in KEPT),
)
"""The table of rules: what both databases refuse, in the same words."""
REBUILDING: Final = (
    "ledger_streams_insert",
    "ledger_streams_update",
    *(f"{table}_no_delete" for table, _ in _PROJECTED),
)
"""The rules that stand in the way of making the projections again from the events."""
