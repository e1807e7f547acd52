"""
The rules that SQLite itself enforces, whoever opens the file, and what its triggers do besides.

They hold on a connection with default pragmas: no foreign keys, no recursive triggers, and
`ignore_check_constraints` on. So every rule is a BEFORE trigger, and an INSERT OR REPLACE, whose
silent deletion fires no trigger there, is refused before it deletes.

SQLite makes a table for the keys of an UPDATE that may touch several rows, and for the rows of an
INSERT from a query. So a statement names one whole key where it can, or is not begun.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.rules import table
from ledger.store.ddl.rules.rule import TableRule
from ledger.store.ddl.sqlite_text import trigger

# One more event of a stream, or its first.
_EVENTS_COUNT: Final = """CREATE TRIGGER ledger_events_count AFTER INSERT ON ledger_events
WHEN NEW.stream_version > 1
BEGIN
  UPDATE ledger_streams SET version = NEW.stream_version WHERE stream = NEW.stream;
END"""
_EVENTS_FIRST: Final = """CREATE TRIGGER ledger_events_first AFTER INSERT ON ledger_events
WHEN NEW.stream_version = 1
BEGIN
  INSERT INTO ledger_streams (stream, version) VALUES (NEW.stream, 1);
END"""

# What a reservation held ends with it.
_ENDED: Final = "closed_at_us = NEW.closed_at_us, closed_position = NEW.closed_position"
_CLOSE_CARD: Final = f"""CREATE TRIGGER ledger_reservations_close
AFTER UPDATE OF closed_position ON ledger_reservations
WHEN NEW.closed_position IS NOT NULL AND NEW.device_count = 1
BEGIN
  UPDATE ledger_holdings SET {_ENDED}
  WHERE position = NEW.position
    AND device_no = (SELECT device_no FROM ledger_holdings WHERE position = NEW.position);
END"""
_CLOSE_MORE: Final = f"""CREATE TRIGGER ledger_reservations_close_more
AFTER UPDATE OF closed_position ON ledger_reservations
WHEN NEW.closed_position IS NOT NULL AND (NEW.device_count <> 1 OR NEW.cpu_count > 0
  OR EXISTS (SELECT 1 FROM ledger_slot_holdings WHERE position = NEW.position))
BEGIN
  UPDATE ledger_holdings SET {_ENDED}
  WHERE NEW.device_count <> 1 AND position = NEW.position;
  UPDATE ledger_cpu_holdings SET {_ENDED}
  WHERE NEW.cpu_count > 0 AND position = NEW.position;
  UPDATE ledger_slot_holdings SET {_ENDED}
  WHERE position = NEW.position;
END"""

# A holding takes from its card or CPU, and gives it back once.
_GRANTED: Final = "(NEW.kind = 'granted')"
_SEEN: Final = "(NEW.kind <> 'granted')"
_TAKE: Final = f"""  UPDATE ledger_devices
  SET core_used = core_used + NEW.core_percent * {_GRANTED},
    memory_used = memory_used + NEW.memory_bytes * {_GRANTED},
    tenants = tenants + {_GRANTED},
    exclusive_holders = exclusive_holders + NEW.exclusive * {_GRANTED},
    core_observed = core_observed + NEW.core_percent * {_SEEN},
    memory_observed = memory_observed + NEW.memory_bytes * {_SEEN},
    observed_holders = observed_holders + {_SEEN}
  WHERE device_no = NEW.device_no;
"""
_GIVE_BACK: Final = f"""CREATE TRIGGER ledger_holdings_give_back
AFTER UPDATE OF closed_position ON ledger_holdings
WHEN OLD.closed_position IS NULL AND NEW.closed_position IS NOT NULL
BEGIN
  UPDATE ledger_devices
  SET core_used = core_used - NEW.core_percent * {_GRANTED},
    core_cap = max(core_reported, core_used - NEW.core_percent * {_GRANTED}),
    memory_used = memory_used - NEW.memory_bytes * {_GRANTED},
    memory_cap = max(memory_reported, memory_used - NEW.memory_bytes * {_GRANTED}),
    tenants = tenants - {_GRANTED},
    exclusive_holders = exclusive_holders - NEW.exclusive * {_GRANTED},
    core_observed = core_observed - NEW.core_percent * {_SEEN},
    memory_observed = memory_observed - NEW.memory_bytes * {_SEEN},
    observed_holders = observed_holders - {_SEEN}
  WHERE device_no = NEW.device_no;
END"""
_CPUS_TAKE: Final = """CREATE TRIGGER ledger_cpu_holdings_take AFTER INSERT ON ledger_cpu_holdings
BEGIN
  UPDATE ledger_cpus
  SET ref_used = ref_used + (NEW.kind = 'granted'),
    ref_observed = ref_observed + (NEW.kind = 'observed')
  WHERE machine_no = NEW.machine_no AND cpu = NEW.cpu;
END"""
_CPUS_GIVE_BACK: Final = """CREATE TRIGGER ledger_cpu_holdings_give_back
AFTER UPDATE OF closed_position ON ledger_cpu_holdings
WHEN OLD.closed_position IS NULL AND NEW.closed_position IS NOT NULL
BEGIN
  UPDATE ledger_cpus
  SET ref_used = ref_used - (NEW.kind = 'granted'),
    ref_max = max(ref_reported, ref_used - (NEW.kind = 'granted')),
    ref_observed = ref_observed - (NEW.kind = 'observed')
  WHERE machine_no = NEW.machine_no AND cpu = NEW.cpu;
END"""

_DOES: Final = {"ledger_holdings_take": _TAKE}
"""What is done before a rule is asked."""


def of_rule(rule: TableRule) -> str:
    """Return the trigger of a rule, with what it does besides."""
    return trigger(rule, does=_DOES.get(rule.name, ""))


TRIGGERS: Final = (
    *map(of_rule, table.RULES),
    *(_EVENTS_COUNT, _EVENTS_FIRST, _CLOSE_CARD, _CLOSE_MORE, _GIVE_BACK),
    *(_CPUS_TAKE, _CPUS_GIVE_BACK),
)
"""Every trigger, in the order in which they are made."""


def named(text: str) -> str:
    """Return the name of the trigger that this text makes."""
    return text.split(maxsplit=3)[2]


REBUILDING: Final = tuple(text for text in TRIGGERS if named(text) in table.REBUILDING)
"""The triggers that stand in the way of making the projections again from the events."""
