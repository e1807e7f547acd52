"""Rules for what reservations hold beside cards: logical CPUs and slots such as functions."""

from __future__ import annotations

from typing import Final

from ledger.domain.annotations.qos import QosClass
from ledger.store.ddl.texts import fail, only_closes

_CPU: Final = """(
  SELECT 'cpu ' || n.node_name || '/cpu/' || NEW.cpu
  FROM ledger_reservations AS r JOIN ledger_nodes AS n ON n.node_no = r.node_no
  WHERE r.position = NEW.position
)"""
_SLOT: Final = """(
  SELECT n.node_name || '/' || NEW.slot
  FROM ledger_reservations AS r JOIN ledger_nodes AS n ON n.node_no = r.node_no
  WHERE r.position = NEW.position
)"""

MEETS_ALONE: Final = f"""c.ref_used + c.ref_observed > 0 AND EXISTS (
      SELECT 1 FROM ledger_reservations AS r
      WHERE r.qos = '{QosClass.LSE}' AND r.position IN (
        SELECT NEW.position UNION ALL
        SELECT h.position FROM ledger_cpu_holdings AS h
        WHERE h.machine_no = NEW.machine_no AND h.cpu = NEW.cpu AND h.closed_position IS NULL
      )
    )"""
"""
The condition that the CPU `c` has a holder, and it or the new one shares with nobody.

Rule: CPU proposal, QoS principle 2, whatever the count of holders allows.
"""
ALONE: Final = "' holders, and an LSE Pod shares with nobody'"

CPU_HOLDINGS_INSERT: Final = f"""
CREATE TRIGGER ledger_cpu_holdings_insert BEFORE INSERT ON ledger_cpu_holdings
BEGIN
  SELECT CASE
    WHEN NEW.kind = 'granted' AND c.present <> 1
    THEN {fail(f"'tenure ledger: ' || {_CPU} || ' is gone'", "tenure ledger: the CPU is gone")}
    WHEN NEW.kind = 'granted' AND c.ref_used + c.ref_observed >= c.ref_reported
    THEN {
    fail(
        f"'tenure ledger: ' || {_CPU} || ' has ' || (c.ref_used + c.ref_observed)"
        " || ' of ' || c.ref_reported || ' holders, one more asked'",
        "tenure ledger: the CPU is taken",
    )
}
    WHEN NEW.kind = 'granted' AND {MEETS_ALONE}
    THEN {
    fail(
        f"'tenure ledger: ' || {_CPU} || ' has ' || (c.ref_used + c.ref_observed) || {ALONE}",
        "tenure ledger: the CPU has a holder",
    )
}
  END
  FROM ledger_cpus AS c WHERE c.machine_no = NEW.machine_no AND c.cpu = NEW.cpu;
  SELECT CASE
    WHEN EXISTS (
      SELECT 1 FROM ledger_cpu_holdings WHERE position = NEW.position AND cpu = NEW.cpu
    )
    OR NEW.closed_position IS NOT NULL
    OR NOT EXISTS (
      SELECT 1 FROM ledger_cpus WHERE machine_no = NEW.machine_no AND cpu = NEW.cpu
    )
    OR NOT EXISTS (
      SELECT 1 FROM ledger_reservations AS r JOIN ledger_nodes AS n ON n.node_no = r.node_no
      WHERE r.position = NEW.position AND r.kind = NEW.kind AND r.closed_position IS NULL
        AND r.opened_at_us = NEW.opened_at_us AND n.machine_no = NEW.machine_no
        AND r.cpu_count > (
          SELECT count(*) FROM ledger_cpu_holdings WHERE position = NEW.position
        )
    )
    THEN {
    fail(
        "'tenure ledger: no reservation at position ' || NEW.position || ' asks for CPU '"
        " || NEW.cpu",
        "tenure ledger: no reservation asks for this CPU",
    )
}
  END;
END
"""
CPU_HOLDINGS_TAKE: Final = """
CREATE TRIGGER ledger_cpu_holdings_take AFTER INSERT ON ledger_cpu_holdings
BEGIN
  UPDATE ledger_cpus
  SET ref_used = ref_used + (NEW.kind = 'granted'),
    ref_observed = ref_observed + (NEW.kind = 'observed')
  WHERE machine_no = NEW.machine_no AND cpu = NEW.cpu;
END
"""
CPU_HOLDINGS_UPDATE: Final = only_closes(
    "ledger_cpu_holdings",
    ["position", "cpu", "machine_no", "kind", "opened_at_us"],
    "a holding of a CPU",
)
CPU_HOLDINGS_GIVE_BACK: Final = """
CREATE TRIGGER ledger_cpu_holdings_give_back AFTER UPDATE OF closed_position
ON ledger_cpu_holdings
WHEN OLD.closed_position IS NULL AND NEW.closed_position IS NOT NULL
BEGIN
  UPDATE ledger_cpus
  SET ref_used = ref_used - (NEW.kind = 'granted'),
    ref_max = max(ref_reported, ref_used - (NEW.kind = 'granted')),
    ref_observed = ref_observed - (NEW.kind = 'observed')
  WHERE machine_no = NEW.machine_no AND cpu = NEW.cpu;
END
"""

SLOT_HOLDINGS_INSERT: Final = f"""
CREATE TRIGGER ledger_slot_holdings_insert BEFORE INSERT ON ledger_slot_holdings
BEGIN
  SELECT CASE
    WHEN NEW.kind = 'granted' AND EXISTS (
      SELECT 1 FROM ledger_slot_holdings
      WHERE machine_no = NEW.machine_no AND slot = NEW.slot AND closed_position IS NULL
    )
    THEN {
    fail(
        f"'tenure ledger: ' || {_SLOT} || ' has a holder, one more asked'",
        "tenure ledger: the slot has a holder",
    )
}
    WHEN EXISTS (
      SELECT 1 FROM ledger_slot_holdings WHERE position = NEW.position AND slot = NEW.slot
    )
    OR NEW.closed_position IS NOT NULL
    OR NOT EXISTS (
      SELECT 1 FROM ledger_reservations AS r JOIN ledger_nodes AS n ON n.node_no = r.node_no
      LEFT JOIN ledger_holdings AS h ON h.position = r.position AND h.device_no = NEW.device_no
      WHERE r.position = NEW.position AND r.kind = NEW.kind AND r.closed_position IS NULL
        AND n.machine_no = NEW.machine_no AND r.opened_at_us = NEW.opened_at_us
        AND (h.position IS NOT NULL OR (NEW.kind = 'observed' AND NEW.device_no IS NULL))
    )
    THEN {
    fail(
        "'tenure ledger: no reservation at position ' || NEW.position || ' asks for slot '"
        " || NEW.slot",
        "tenure ledger: no reservation asks for this slot",
    )
}
  END;
END
"""
SLOT_HOLDINGS_UPDATE: Final = only_closes(
    "ledger_slot_holdings",
    ["position", "slot", "machine_no", "device_no", "kind", "opened_at_us"],
    "a holding of a slot",
)

RULES: Final = (
    CPU_HOLDINGS_INSERT,
    CPU_HOLDINGS_TAKE,
    CPU_HOLDINGS_UPDATE,
    CPU_HOLDINGS_GIVE_BACK,
    SLOT_HOLDINGS_INSERT,
    SLOT_HOLDINGS_UPDATE,
)
"""These rules in the order in which they are made."""
