"""Rules for what reservations hold beside cards: logical CPUs and slots such as functions."""

from __future__ import annotations

from typing import Final

from ledger.domain.annotations.qos import QosClass
from ledger.store.ddl.rules.holdings import only_closes, share_of
from ledger.store.ddl.rules.rule import Case, rule, said

_HOLDERS_NODE: Final = """(
      SELECT n.node_name FROM ledger_reservations AS r
      JOIN ledger_nodes AS n ON n.node_no = r.node_no
      WHERE r.position = NEW.position
    )"""
_CPU: Final = f"cpu {{{_HOLDERS_NODE}}}/cpu/{{NEW.cpu}}"
_HOLDERS: Final = "{(c.ref_used + c.ref_observed)}"
# Rule: CPU proposal, QoS principle 2, whatever the count of holders allows.
_MEETS_ALONE: Final = f"""c.ref_used + c.ref_observed > 0 AND EXISTS (
      SELECT 1 FROM ledger_reservations AS r
      WHERE r.qos = '{QosClass.LSE}' AND r.position IN (
        SELECT NEW.position UNION ALL
        SELECT h.position FROM ledger_cpu_holdings AS h
        WHERE h.machine_no = NEW.machine_no AND h.cpu = NEW.cpu AND h.closed_position IS NULL
      )
    )"""
_CPUS_INSERT: Final = rule(
    "ledger_cpu_holdings_insert",
    "ledger_cpu_holdings",
    "INSERT",
    Case("NEW.kind = 'granted' AND c.present <> 1", said(f"{_CPU} is gone", "the CPU is gone")),
    Case(
        "NEW.kind = 'granted' AND c.ref_used + c.ref_observed >= c.ref_reported",
        said(
            f"{_CPU} has {_HOLDERS} of {{c.ref_reported}} holders, one more asked",
            "the CPU is taken",
        ),
    ),
    Case(
        f"NEW.kind = 'granted' AND {_MEETS_ALONE}",
        said(
            f"{_CPU} has {_HOLDERS} holders, and an LSE Pod shares with nobody",
            "the CPU has a holder",
        ),
    ),
    Case(
        """EXISTS (
      SELECT 1 FROM ledger_cpu_holdings WHERE position = NEW.position AND cpu = NEW.cpu
    )
    OR NEW.closed_position IS NOT NULL OR NEW.closed_at_us IS NOT NULL OR c.cpu IS NULL
    OR NOT EXISTS (
      SELECT 1 FROM ledger_reservations AS r JOIN ledger_nodes AS n ON n.node_no = r.node_no
      WHERE r.position = NEW.position AND r.kind = NEW.kind AND r.closed_position IS NULL
        AND r.opened_at_us = NEW.opened_at_us AND n.machine_no = NEW.machine_no
        AND coalesce(n.moved_position, 0) < r.position
        AND r.cpuset <> '' AND EXISTS (
          SELECT 1 FROM $ranges(r.cpuset, p) WHERE NEW.cpu BETWEEN p.first AND p.last
        )
    )""",
        said(
            "no reservation at position {NEW.position} asks for CPU {NEW.cpu}",
            "no reservation asks for this CPU",
        ),
    ),
    reads=("ledger_cpus", "c", ("machine_no", "cpu")),
)
FIXED_CPU: Final = ("position", "cpu", "machine_no", "kind", "opened_at_us")
"""The columns of a holding of a CPU that never change."""

_SLOTS_INSERT: Final = rule(
    "ledger_slot_holdings_insert",
    "ledger_slot_holdings",
    "INSERT",
    Case(
        """NEW.kind = 'granted' AND EXISTS (
      SELECT 1 FROM ledger_slot_holdings
      WHERE machine_no = NEW.machine_no AND slot = NEW.slot AND closed_position IS NULL
    )""",
        said(
            f"{{{_HOLDERS_NODE}}}/{{NEW.slot}} has a holder, one more asked",
            "the slot has a holder",
        ),
    ),
    Case(
        f"""EXISTS (
      SELECT 1 FROM ledger_slot_holdings WHERE position = NEW.position AND slot = NEW.slot
    )
    OR NEW.closed_position IS NOT NULL OR NEW.closed_at_us IS NOT NULL
    OR NOT EXISTS (
      SELECT 1 FROM ledger_reservations AS r JOIN ledger_nodes AS n ON n.node_no = r.node_no
      JOIN ledger_events AS e ON e.position = r.position $body(e)
      WHERE r.position = NEW.position AND r.kind = NEW.kind AND r.closed_position IS NULL
        AND n.machine_no = NEW.machine_no AND r.opened_at_us = NEW.opened_at_us
        AND coalesce(n.moved_position, 0) < r.position
        AND CASE WHEN NEW.device_no IS NULL
          THEN $begins(NEW.slot, 'unknown/') AND $has(e.body, unknown_types, substr(NEW.slot, 9))
          ELSE EXISTS (
            SELECT 1 FROM ledger_holdings AS h JOIN ledger_devices AS d ON d.device_no = h.device_no
            CROSS JOIN $each(e.body, shares, s)
            WHERE h.position = r.position AND h.device_no = NEW.device_no
              AND {share_of("d", "h.minor")} AND $has(s.value, vf_bus_ids, NEW.slot)
          ) END
    )""",
        said(
            "no reservation at position {NEW.position} asks for slot {NEW.slot}",
            "no reservation asks for this slot",
        ),
    ),
)
FIXED_SLOT: Final = ("position", "slot", "machine_no", "device_no", "kind", "opened_at_us")
"""The columns of a holding of a slot that never change."""

RULES: Final = (
    _CPUS_INSERT,
    only_closes("ledger_cpu_holdings", FIXED_CPU, "a holding of a CPU"),
    _SLOTS_INSERT,
    only_closes("ledger_slot_holdings", FIXED_SLOT, "a holding of a slot"),
)
"""These rules in the order in which they are made."""
