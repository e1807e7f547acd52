"""
What Postgres does for holdings beside the rules of the table: rows are looked at together.

Taking and giving back run once per statement as the owner of the functions: the role that appends
may move no counter. A statement with two holders of one card is refused, as the second would not
be seen; the store sends them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ledger.store.ddl.postgres_text import (
    NOT_NEW,
    Tuned,
    at_changed,
    fail,
    fires,
    follows,
    of_changed,
    only_ends,
    questions,
)
from ledger.store.ddl.rules import holdings, parts, planned_cards
from ledger.store.ddl.rules.rule import Case, held_card

# The row's own rule says more of it sooner.
_RESERVATIONS_INSERT: Final = fires(
    "ledger_reservations_insert",
    "ledger_reservations",
    "INSERT",
    questions((holdings.OPENED_BEFORE, holdings.NOT_OPENED, holdings.CLOSED_AT_ONCE)),
    only_if=f"{holdings.CLOSED_AT_ONCE.condition} OR {NOT_NEW}",
)
_RESERVATIONS_OPEN: Final = follows(
    "ledger_reservations_open",
    "ledger_reservations",
    "INSERT",
    of_changed(
        holdings.NOT_OPENED,
        holdings.NODE_LOST,
        holdings.NODE_MOVED,
        join="LEFT JOIN ledger_nodes AS n ON n.node_no = c.node_no",
    ),
    variables="wrong ledger_reservations;",
)
_RESERVATIONS_UPDATE: Final = only_ends("ledger_reservations", holdings.FIXED, holdings.ONLY_ENDS)
# That an event says the phase is asked once the row is there.
_RESERVATIONS_PHASE: Final = fires(
    "ledger_reservations_phase",
    "ledger_reservations",
    "UPDATE OF phase, phase_position",
    f"  {fail(holdings.NO_PHASE)}",
    only_if="CASE WHEN NEW.closed_position IS NULL AND NEW.lost_position IS NULL"
    " THEN NEW.phase_position <= OLD.phase_position"
    " ELSE NEW.phase_position <> OLD.phase_position END",
)
_SAID: Final = at_changed(f"""CASE
      WHEN NEW.lost_position IS NOT NULL THEN NEW.phase = 'lost'
      WHEN {holdings.FIRST_PHASE} THEN true
      ELSE {holdings.IN_PHASE} END""")
_ENDED: Final = at_changed(holdings.ENDED)
_OPEN: Final = "NEW.closed_position IS NULL"
_CLOSED: Final = "c.closed_position IS NOT NULL"


def _ends(table: str) -> str:
    return f"""UPDATE {table} AS h
    SET closed_at_us = c.closed_at_us, closed_position = c.closed_position
    FROM changed AS c WHERE {_CLOSED} AND h.position = c.position;"""


# A reservation changes and ends with an event of its own, and what it held ends with it.
_RESERVATIONS_CLOSE: Final = follows(
    "ledger_reservations_close",
    "ledger_reservations",
    "UPDATE",
    f"""
  SELECT bool_and({_SAID}) FILTER (WHERE c.closed_position IS NULL),
    bool_and({_ENDED}) FILTER (WHERE {_CLOSED}),
    bool_or(c.cpu_count > 0) FILTER (WHERE {_CLOSED}),
    bool_or(EXISTS (
      SELECT 1 FROM ledger_slot_holdings AS s WHERE s.position = c.position
    )) FILTER (WHERE {_CLOSED})
  INTO said, ended, cpus, slots FROM changed AS c;
  IF NOT said THEN{of_changed(Case(f"{_OPEN} AND NOT {_SAID}", holdings.NO_PHASE))}
  ELSIF ended IS NULL THEN
    RETURN NULL;
  ELSIF NOT ended THEN{of_changed(Case(f"{_CLOSED} AND NOT {_ENDED}", holdings.NOT_ENDED))}
  END IF;
  {_ends("ledger_holdings")}
  IF cpus THEN
    {_ends("ledger_cpu_holdings")}
  END IF;
  IF slots THEN
    {_ends("ledger_slot_holdings")}
  END IF;""",
    variables="said boolean; ended boolean; cpus boolean; slots boolean;"
    " wrong ledger_reservations;",
    definer=True,
)

_CLOUDED: Final = Case(
    """EXISTS (
      SELECT 1 FROM ledger_devices AS d JOIN ledger_slot_holdings AS s
      ON s.machine_no = d.machine_no AND s.slot = 'unknown/' || d.device_type
      WHERE d.device_no = NEW.device_no AND NEW.kind = 'granted' AND s.closed_position IS NULL
    )""",
    holdings.full_card(holdings.CLOUDED, held_card("NEW")),
)
# What waits is asked behind the statement that writes the card's row, so that what somebody did who
# wrote it meanwhile is seen.
_HOLDINGS_TAKE: Final = follows(
    "ledger_holdings_take",
    "ledger_holdings",
    "INSERT",
    f"""
  UPDATE ledger_devices AS d
  SET core_used = d.core_used + c.granted * c.core_percent,
    memory_used = d.memory_used + c.granted * c.memory_bytes,
    tenants = d.tenants + c.granted,
    exclusive_holders = d.exclusive_holders + c.granted * c.exclusive,
    core_observed = d.core_observed + (1 - c.granted) * c.core_percent,
    memory_observed = d.memory_observed + (1 - c.granted) * c.memory_bytes,
    observed_holders = d.observed_holders + 1 - c.granted
  FROM (
    SELECT device_no, core_percent, memory_bytes, exclusive, (kind = 'granted')::int AS granted
    FROM changed
  ) AS c
  WHERE d.device_no = c.device_no;{
        of_changed(_CLOUDED, holdings.NOT_ASKED, planned_cards.KEPT_FOR_ANOTHER)
    }""",
    variables="wrong ledger_holdings;",
    definer=True,
)


def _held(table: str, columns: tuple[str, ...], what: str, then: str = "") -> tuple[str, ...]:
    """Return the rules that a holding only ends with its reservation, and what it gives back."""
    case = holdings.not_with_reservation(what)
    return (
        *only_ends(table, columns, case.refusal),
        *follows(
            f"{table}_{'give_back' if then else 'end'}",
            table,
            "UPDATE",
            of_changed(case) + then,
            variables=f"wrong {table};",
            definer=bool(then),
        ),
    )


# Every row of the statement was open before it, which the rule on the update sees to.
_GIVE_BACK: Final = f"""
  UPDATE ledger_devices AS d
  SET core_used = d.core_used - g.core_used,
    core_cap = greatest(d.core_reported, d.core_used - g.core_used),
    memory_used = d.memory_used - g.memory_used,
    memory_cap = greatest(d.memory_reported, d.memory_used - g.memory_used),
    tenants = d.tenants - g.tenants,
    exclusive_holders = d.exclusive_holders - g.exclusive_holders,
    core_observed = d.core_observed - g.core_observed,
    memory_observed = d.memory_observed - g.memory_observed,
    observed_holders = d.observed_holders - g.observed_holders
  FROM (SELECT h.device_no, {holdings.SUMS} FROM changed AS h GROUP BY h.device_no) AS g
  WHERE d.device_no = g.device_no;"""
# What is used of a card, whoever moved it, is the sum of its holdings.
_DEVICES_SUM: Final = follows(
    "ledger_devices_sum",
    "ledger_devices",
    "UPDATE",
    of_changed(holdings.NOT_THE_SUM),
    variables="wrong ledger_devices;",
)

_CPUS_TAKE: Final = follows(
    "ledger_cpu_holdings_take",
    "ledger_cpu_holdings",
    "INSERT",
    """
  UPDATE ledger_cpus AS u
  SET ref_used = u.ref_used + (c.kind = 'granted')::int,
    ref_observed = u.ref_observed + (c.kind = 'observed')::int
  FROM changed AS c WHERE u.machine_no = c.machine_no AND u.cpu = c.cpu;""",
    definer=True,
)
_CPUS_GIVE_BACK: Final = """
  UPDATE ledger_cpus AS u
  SET ref_used = u.ref_used - g.granted,
    ref_max = greatest(u.ref_reported, u.ref_used - g.granted),
    ref_observed = u.ref_observed - g.observed
  FROM (
    SELECT machine_no, cpu, count(*) FILTER (WHERE kind = 'granted') AS granted,
      count(*) FILTER (WHERE kind = 'observed') AS observed
    FROM changed GROUP BY machine_no, cpu
  ) AS g
  WHERE u.machine_no = g.machine_no AND u.cpu = g.cpu;"""

RULES: Final = (
    *_RESERVATIONS_INSERT,
    *_RESERVATIONS_OPEN,
    *_RESERVATIONS_UPDATE,
    *_RESERVATIONS_PHASE,
    *_RESERVATIONS_CLOSE,
    *_HOLDINGS_TAKE,
    *_held("ledger_holdings", holdings.FIXED_HOLDING, "a holding", _GIVE_BACK),
    *_DEVICES_SUM,
    *_CPUS_TAKE,
    *_held("ledger_cpu_holdings", parts.FIXED_CPU, "a holding of a CPU", _CPUS_GIVE_BACK),
    *_held("ledger_slot_holdings", parts.FIXED_SLOT, "a holding of a slot"),
)
"""These rules in the order in which they are made."""

# Of most grants one expression says that they fit; the questions in turn say why one does not.
_FITS: Final = f"""OLD.present = 1 AND OLD.healthy = 1 AND OLD.observed_holders = 0
      AND OLD.exclusive_holders = 0 AND NEW.core_used + OLD.core_observed <= OLD.core_reported
      AND NEW.memory_used + OLD.memory_observed <= OLD.memory_reported
      AND (OLD.tenants = 0 OR NEW.exclusive_holders = 0)
      AND NOT ({holdings.ASKS_NOTHING})
      AND NOT ({holdings.claimed("OLD")}) AND NOT ({holdings.unnamed_holder("OLD")})"""
# The card's row is written anew, though nothing of it changes: who takes a share of the card at the
# same time writes it too, so that one of them waits for the other, and then sees what it did.
_FIND_ALONE: Final = (
    "UPDATE ledger_devices SET tenants = tenants WHERE device_no = NEW.device_no"
    " RETURNING * INTO card;"
)
TUNED: Final[Mapping[str, Tuned]] = {
    "ledger_devices_counters": Tuned(first=f"  IF {_FITS} THEN\n    RETURN NEW;\n  END IF;"),
    # Keys and checks would refuse the first two cases as well, but before our words. Without a
    # closed position there is nothing more to ask of a row of a new reservation before it is there.
    "ledger_holdings_insert": Tuned(
        only_if="NEW.core_percent < 0 OR NEW.memory_bytes < 0 OR NEW.closed_position IS NOT NULL"
        f" OR NEW.closed_at_us IS NOT NULL OR {NOT_NEW}",
        more=(
            Case(
                "NOT EXISTS (SELECT 1 FROM ledger_reservations WHERE position = NEW.position)"
                " OR NOT EXISTS (SELECT 1 FROM ledger_devices WHERE device_no = NEW.device_no)",
                holdings.NOT_ASKED.refusal,
            ),
        ),
    ),
    "ledger_planned_cards_insert": Tuned(reads=_FIND_ALONE, definer=True),
}
"""
What of the rules of the table is asked in another way here.

That a Pod on an unknown card may hold a card is asked where holdings are taken, for all together.
"""
