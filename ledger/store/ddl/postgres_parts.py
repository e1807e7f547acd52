"""
Rules on Postgres for logical CPUs and slots, as `ledger.store.ddl.parts` has them on SQLite.

What takes and gives back runs as the owner of the functions, as for cards.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.parts import ALONE, MEETS_ALONE
from ledger.store.ddl.postgres_texts import ends_with, fail, only_closes, rule

_HOLDERS_NODE: Final = """(
      SELECT n.node_name FROM ledger_reservations AS r
      JOIN ledger_nodes AS n ON n.node_no = r.node_no
      WHERE r.position = NEW.position
    )"""
_CPU: Final = f"'cpu ' || {_HOLDERS_NODE} || '/cpu/' || NEW.cpu"
_CPU_GONE: Final = fail(f"'tenure ledger: ' || {_CPU} || ' is gone'", "the CPU is gone")
_CPU_TAKEN: Final = fail(
    f"'tenure ledger: ' || {_CPU} || ' has ' || (c.ref_used + c.ref_observed)"
    " || ' of ' || c.ref_reported || ' holders, one more asked'",
    "the CPU is taken",
)
_CPU_ALONE: Final = fail(
    f"'tenure ledger: ' || {_CPU} || ' has ' || (c.ref_used + c.ref_observed) || {ALONE}",
    "the CPU has a holder",
)
_CPU_NOT_ASKED: Final = fail(
    "'tenure ledger: no reservation at position ' || NEW.position || ' asks for CPU ' || NEW.cpu",
    "no reservation asks for this CPU",
)
CPU_HOLDINGS_INSERT: Final = rule(
    "ledger_cpu_holdings_insert",
    "ledger_cpu_holdings",
    "INSERT",
    f"""
  SELECT * INTO c FROM ledger_cpus WHERE machine_no = NEW.machine_no AND cpu = NEW.cpu;
  IF NEW.kind = 'granted' AND c.present <> 1 THEN
    {_CPU_GONE}
  ELSIF NEW.kind = 'granted' AND c.ref_used + c.ref_observed >= c.ref_reported THEN
    {_CPU_TAKEN}
  ELSIF NEW.kind = 'granted' AND {MEETS_ALONE} THEN
    {_CPU_ALONE}
  ELSIF EXISTS (
      SELECT 1 FROM ledger_cpu_holdings WHERE position = NEW.position AND cpu = NEW.cpu
    )
    OR NEW.closed_position IS NOT NULL
    OR c.cpu IS NULL
    OR NOT EXISTS (
      SELECT 1 FROM ledger_reservations AS r JOIN ledger_nodes AS n ON n.node_no = r.node_no
      WHERE r.position = NEW.position AND r.kind = NEW.kind AND r.closed_position IS NULL
        AND r.opened_at_us = NEW.opened_at_us AND n.machine_no = NEW.machine_no
        AND r.cpu_count > (
          SELECT count(*) FROM ledger_cpu_holdings WHERE position = NEW.position
        )
    )
  THEN
    {_CPU_NOT_ASKED}
  END IF;""",
    variables="c ledger_cpus;",
)
CPU_HOLDINGS_TAKE: Final = rule(
    "ledger_cpu_holdings_take",
    "ledger_cpu_holdings",
    "INSERT",
    """
  UPDATE ledger_cpus AS u
  SET ref_used = u.ref_used + (c.kind = 'granted')::int,
    ref_observed = u.ref_observed + (c.kind = 'observed')::int
  FROM changed AS c WHERE u.machine_no = c.machine_no AND u.cpu = c.cpu;""",
    when="AFTER",
    level="STATEMENT",
    definer=True,
)
CPU_HOLDINGS_UPDATE: Final = only_closes(
    "ledger_cpu_holdings",
    ["position", "cpu", "machine_no", "kind", "opened_at_us"],
    "a holding of a CPU",
)
CPU_HOLDINGS_GIVE_BACK: Final = rule(
    "ledger_cpu_holdings_give_back",
    "ledger_cpu_holdings",
    "UPDATE",
    f"""{ends_with("a holding of a CPU")}
  UPDATE ledger_cpus AS u
  SET ref_used = u.ref_used - g.granted,
    ref_max = greatest(u.ref_reported, u.ref_used - g.granted),
    ref_observed = u.ref_observed - g.observed
  FROM (
    SELECT machine_no, cpu, count(*) FILTER (WHERE kind = 'granted') AS granted,
      count(*) FILTER (WHERE kind = 'observed') AS observed
    FROM changed GROUP BY machine_no, cpu
  ) AS g
  WHERE u.machine_no = g.machine_no AND u.cpu = g.cpu;""",
    when="AFTER",
    level="STATEMENT",
    variables="wrong bigint;",
    definer=True,
)

_SLOT_TAKEN: Final = fail(
    f"'tenure ledger: ' || {_HOLDERS_NODE} || '/' || NEW.slot || ' has a holder, one more asked'",
    "the slot has a holder",
)
_SLOT_NOT_ASKED: Final = fail(
    "'tenure ledger: no reservation at position ' || NEW.position || ' asks for slot ' || NEW.slot",
    "no reservation asks for this slot",
)
SLOT_HOLDINGS_INSERT: Final = rule(
    "ledger_slot_holdings_insert",
    "ledger_slot_holdings",
    "INSERT",
    f"""
  IF NEW.kind = 'granted' AND EXISTS (
    SELECT 1 FROM ledger_slot_holdings
    WHERE machine_no = NEW.machine_no AND slot = NEW.slot AND closed_position IS NULL
  ) THEN
    {_SLOT_TAKEN}
  ELSIF EXISTS (
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
  THEN
    {_SLOT_NOT_ASKED}
  END IF;""",
)
SLOT_HOLDINGS_UPDATE: Final = only_closes(
    "ledger_slot_holdings",
    ["position", "slot", "machine_no", "device_no", "kind", "opened_at_us"],
    "a holding of a slot",
)

SLOT_HOLDINGS_END: Final = rule(
    "ledger_slot_holdings_end",
    "ledger_slot_holdings",
    "UPDATE",
    ends_with("a holding of a slot"),
    when="AFTER",
    level="STATEMENT",
    variables="wrong bigint;",
)

RULES: Final = (
    *CPU_HOLDINGS_INSERT,
    *CPU_HOLDINGS_TAKE,
    *CPU_HOLDINGS_UPDATE,
    *CPU_HOLDINGS_GIVE_BACK,
    *SLOT_HOLDINGS_INSERT,
    *SLOT_HOLDINGS_UPDATE,
    *SLOT_HOLDINGS_END,
)
"""These rules in the order in which they are made."""
