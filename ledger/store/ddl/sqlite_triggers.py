"""
The rules that SQLite itself enforces, whoever opens the file, and what its triggers do besides.

They hold on a connection with default pragmas: no foreign keys, no recursive triggers, and
`ignore_check_constraints` on. So every rule is a BEFORE trigger, and an INSERT OR REPLACE, whose
silent deletion fires no trigger there, is refused before it deletes.

SQLite makes a table for the keys of an UPDATE that may touch several rows, and for the rows of an
INSERT from a query. So a statement names one whole key where it can, or is not begun.

RAISE takes only a literal before SQLite 3.47, so a message with the card or the position in it is
raised as the error of a JSON path, and a literal RAISE stands behind it.
"""

from __future__ import annotations

from typing import Final

from ledger.store import schema
from ledger.store.ddl.rules import table
from ledger.store.ddl.rules.rule import ALWAYS, PREFIX, Case, RefusalWords, TableRule, words
from ledger.store.ddl.words import OF_RULES, written

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
_ROW_ID: Final = ("rowid", "_rowid_", "oid")
"""A key that is one number has these names too, and UPDATE OF goes by the name that was written."""


def fail(refusal: RefusalWords | None) -> str:
    """Return an expression that fails with these words; NULL for none."""
    return "NULL" if refusal is None else _fail(words(PREFIX + refusal.text), refusal.short)


def _fail(message: str, short: str) -> str:
    literal = f"{PREFIX}{short}".replace("'", "''")
    return f"coalesce(json_extract('{{}}', {message}), RAISE(ABORT, '{literal}'))"


def trigger(rule: TableRule, *, does: str = "") -> str:
    """Return the trigger of a rule; what it `does` comes first, once the row is there."""
    cases, when = rule.cases, ""
    if cases[0].refusal is None and not rule.besides:
        when = f"WHEN NOT ({cases[0].condition})\n"
        cases = cases[1:]
    elif len(cases) == 1 and rule.reads is None and not does:
        ((condition, refusal),) = cases
        when = f"WHEN {condition}\n" if condition else ""
        cases = (Case(ALWAYS, refusal),)
    where = ""
    if rule.reads is not None:
        table, alias, keys = rule.reads
        condition = " AND ".join(f"{alias}.{key} = NEW.{key}" for key in keys)
        where = f"\n  FROM (SELECT 1) LEFT JOIN {table} AS {alias} ON {condition}"
    asked = f"  SELECT {_choice(cases)}{where};\n"
    if rule.besides:
        asked += f"  SELECT {_choice((rule.besides,))};\n"
    event = " OF ".join((rule.event, ", ".join(_names(rule)))) if rule.columns else rule.event
    text = (
        f"CREATE TRIGGER {rule.name} {'AFTER' if does else 'BEFORE'} {event} ON {rule.table}\n"
        f"{when}BEGIN\n{does}{asked}END"
    )
    return written(text, OF_RULES, "sqlite")


def _choice(cases: tuple[Case, ...]) -> str:
    if cases[0].condition == ALWAYS:
        return fail(cases[0].refusal)
    subjects = {(_subject(refusal), refusal.short) for _, refusal in cases if refusal}
    if len(cases) > 1 and len(subjects) == 1:
        ((subject, short),) = subjects
        if subject:
            return _choice_of_facts(cases, subject, short)
    lines = (f"    WHEN {condition}\n    THEN {fail(refusal)}\n" for condition, refusal in cases)
    return f"CASE\n{''.join(lines)}  END"


def _subject(refusal: RefusalWords) -> str:
    """Return the expression that the words begin with, in its braces; nothing if with words."""
    before, brace, _ = refusal.text.partition("}")
    return before + brace if before.startswith("{") else ""


def _choice_of_facts(cases: tuple[Case, ...], subject: str, short: str) -> str:
    """
    Return the choice of cases about one subject, which is put into words once.

    Whenever a trigger starts, SQLite makes room for all that it might say, and clears it.
    """
    conditions, facts = "", ""
    for number, (condition, refusal) in enumerate(cases):
        conditions += f"    WHEN {condition}\n    THEN {number if refusal else 'NULL'}\n"
        if refusal:
            facts += f"    WHEN {number} THEN {words(refusal.text.removeprefix(subject))}\n"
    failed = _fail(f"{words(PREFIX + subject)} || CASE met.number\n{facts}    END", short)
    return (
        f"CASE WHEN met.number IS NOT NULL THEN {failed} END\n"
        f"  FROM (SELECT CASE\n{conditions}  END AS number) AS met"
    )


def _names(rule: TableRule) -> tuple[str, ...]:
    """Return the columns that are asked, with the other names of the row's number."""
    keys = [each.name for each in schema.METADATA.tables[rule.table].primary_key]
    known = len(keys) == 1 and keys[0] in rule.columns
    return (*_ROW_ID, *rule.columns) if known else rule.columns


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
