"""
The rules that Postgres itself enforces, whoever connects.

Every rule is one of the table, asked of each row as the table says, or of all rows of a statement
at once, with the table's conditions and words (`postgres_holdings`, `postgres_log`). Triggers are
ENABLE ALWAYS, so that `session_replication_role` does not silence them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.store.ddl import (
    audit_views,
    postgres_append,
    postgres_deferred,
    postgres_guard,
    postgres_holdings,
    postgres_log,
)
from ledger.store.ddl.postgres_text import Tuned, never_emptied, rows_of
from ledger.store.ddl.rules import table

TOGETHER: Final[Mapping[str, str]] = {
    "ledger_events_append": "ledger_events_append",
    "ledger_reservations_insert": "ledger_reservations_open",
    "ledger_reservations_update": "ledger_reservations_close",
    "ledger_reservations_fixed": "ledger_reservations_update",
    "ledger_reservations_phase": "ledger_reservations_close",
    "ledger_holdings_place": "ledger_holdings_take",
    "ledger_holdings_take": "ledger_holdings_take",
    "ledger_holdings_update": "ledger_holdings_give_back",
    "ledger_cpu_holdings_update": "ledger_cpu_holdings_give_back",
    "ledger_slot_holdings_update": "ledger_slot_holdings_end",
}
"""The rules that are asked of all rows of a statement, and the function that does."""
_TUNED: Final[Mapping[str, Tuned]] = {
    **postgres_holdings.TUNED,
    "ledger_head_forward": postgres_log.HEAD_FORWARD,
}
_FIRST_PARTITION: Final = "SELECT ledger_add_partition(1)"

RULES: Final[tuple[str, ...]] = (
    postgres_guard.ALLOW,
    *(
        text
        for rule in table.RULES
        if rule.name not in TOGETHER
        for text in rows_of(rule, _TUNED.get(rule.name, Tuned()))
    ),
    *postgres_holdings.RULES,
    *(
        text
        for each, what in (("ledger_events", "events"), *table.KEPT)
        for text in never_emptied(each, what)
    ),
    *postgres_log.RULES,
    _FIRST_PARTITION,
    *audit_views.create_views("postgresql"),
    *postgres_deferred.HEAD_SETTLED,
    *postgres_append.APPEND,
    *postgres_guard.RULES,
)
"""Functions, triggers and views, in the order in which they are made."""
