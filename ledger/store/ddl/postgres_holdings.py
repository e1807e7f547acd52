"""
Rules on Postgres for reservations and what they hold of cards, as `ledger.store.ddl.holdings`.

What takes and gives back runs as the owner of the functions: the role that appends may not move a
counter by itself, and once for all rows of a statement. A statement that puts two holders on one
card is refused: the second would not be seen to be one too many; the store sends them apart.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.holdings import (
    CLAIMED_BY,
    FIXED_HOLDING,
    FIXED_RESERVATION,
    NEWEST_BOOT,
    claimed,
    unnamed_holder,
)
from ledger.store.ddl.postgres_texts import (
    BODY,
    card_of,
    ends_with,
    event_is,
    fail,
    not_new,
    only_closes,
    only_ends,
    rule,
    says,
)

_HELD_CARD: Final = """(
      SELECT 'card ' || n.node_name || '/' || d.device_type || '/' || d.minor
        || CASE d.device_id WHEN '' THEN '' ELSE ' (' || d.device_id || ')' END
        || ' has ' || (d.core_reported - d.core_used - d.core_observed)
        || ' of ' || d.core_reported
        || ' percent core left, ' || NEW.core_percent || ' asked'
      FROM ledger_devices AS d JOIN ledger_nodes AS n ON n.node_no = d.node_no
      WHERE d.device_no = NEW.device_no
    )"""
_NOT_OPENED: Final = fail(
    "'tenure ledger: no event at position ' || NEW.position || ' opens this reservation'",
    "no event opens this reservation",
)
_OPENS_FIRST: Final = fail(
    "'tenure ledger: a reservation opens before it closes: position ' || NEW.position",
    "a reservation opens before it closes",
)
_FIRST_PHASE: Final = """{row}.phase_position = {row}.position
      AND {row}.phase = CASE {row}.kind WHEN 'granted' THEN 'reserved' ELSE 'observed' END"""
_OPENS: Final = f"""starts_with(e.event_type, CASE {{row}}.kind
        WHEN 'granted' THEN 'pod.reserved.v' ELSE 'pod.observed.v' END)
      AND {_FIRST_PHASE}"""
RESERVATIONS_INSERT: Final = rule(
    "ledger_reservations_insert",
    "ledger_reservations",
    "INSERT",
    f"""
  IF EXISTS (SELECT 1 FROM ledger_reservations WHERE position = NEW.position)
    OR NOT EXISTS (
      SELECT 1 FROM ledger_events AS e WHERE e.position = NEW.position
      AND {_OPENS.format(row="NEW")}
    )
  THEN
    {_NOT_OPENED}
  ELSIF NEW.closed_position IS NOT NULL OR NEW.lost_position IS NOT NULL THEN
    {_OPENS_FIRST}
  END IF;""",
    only_if=f"NEW.closed_position IS NOT NULL OR NEW.lost_position IS NOT NULL OR {not_new()}",
)
_CLOSED_NODE: Final = """c.kind = 'granted' AND (n.lost_position IS NOT NULL
    OR EXISTS (
      SELECT 1 FROM ledger_nodes AS m
      WHERE m.machine_no = n.machine_no AND m.moved_position IS NOT NULL AND EXISTS (
        SELECT 1 FROM ledger_reservations AS r WHERE r.closed_position IS NULL
          AND r.node_no = m.node_no AND r.position < m.moved_position
      )
    ))"""
_NODE_LOST: Final = fail(
    "'tenure ledger: node ' || node.node_name || ' is lost'", "the node is lost"
)
_NODE_MOVED: Final = fail(
    "'tenure ledger: node ' || node.node_name || ' has holders from another machine'",
    "the node has holders from another machine",
)
RESERVATIONS_OPEN: Final = rule(
    "ledger_reservations_open",
    "ledger_reservations",
    "INSERT",
    f"""
  SELECT c.position INTO wrong FROM changed AS c
  WHERE NOT EXISTS (
    SELECT 1 FROM ledger_events AS e WHERE e.position = c.position
    AND {_OPENS.format(row="c")}
  ) LIMIT 1;
  IF FOUND THEN
    {_NOT_OPENED.replace("NEW.position", "wrong")}
  END IF;
  SELECT n.* INTO node FROM changed AS c JOIN ledger_nodes AS n ON n.node_no = c.node_no
  WHERE {_CLOSED_NODE} LIMIT 1;
  IF FOUND AND node.lost_position IS NOT NULL THEN
    {_NODE_LOST}
  ELSIF FOUND THEN
    {_NODE_MOVED}
  END IF;""",
    when="AFTER",
    level="STATEMENT",
    variables="wrong bigint; node ledger_nodes;",
)
"""Every reservation is one that its event opens; the row's own rule says more of it sooner."""
_ONLY_ENDS: Final = fail(
    "'tenure ledger: a reservation only ends, it does not change: position '"
    " || OLD.position || ', pod ' || OLD.namespace || '/' || OLD.pod_name",
    "a reservation only ends, it does not change",
)
_NOT_ENDED: Final = fail(
    "'tenure ledger: no event at position ' || wrong.closed_position"
    " || ' ends the reservation of pod ' || wrong.namespace || '/' || wrong.pod_name",
    "no event ends this reservation",
)
RESERVATIONS_UPDATE: Final = only_ends("ledger_reservations", FIXED_RESERVATION, _ONLY_ENDS)
_CLEARED: Final = f"""{event_is("node.cleared")} AND c.phase = 'released'
            AND c.end_reason = 'cleared: ' || (j.b->>'evidence') AND EXISTS (
            SELECT 1 FROM ledger_nodes AS n
            LEFT JOIN ledger_nodes AS w ON w.machine_no = n.machine_no AND w.lost_position IS NULL
              AND w.node_uid = j.b->>'witness_uid'
              AND c.position > coalesce(n.moved_position, 0)
            LEFT JOIN ledger_stands AS s ON s.node_no = w.node_no AND s.machine_no = w.machine_no
              AND s.fact_position > c.lost_position
            WHERE n.node_no = c.node_no AND {says("j.b", "node_uid", "n.node_uid")}
              AND CASE j.b->>'evidence'
                WHEN 'act' THEN true
                WHEN 'agent' THEN s.by_agent = 1
                WHEN 'boot' THEN s.boot_id <> '' AND c.lost_boot_id <> ''
                  AND s.boot_id <> c.lost_boot_id AND NOT EXISTS (
                    SELECT 1 FROM ledger_stands AS a
                    WHERE a.machine_no = n.machine_no AND a.by_agent = 1
                  )
                ELSE false
              END
          )"""
_ENDED_BY: Final = f"""EXISTS (
      SELECT 1 FROM ledger_events AS e {BODY}
      WHERE e.position = c.closed_position AND e.position > c.position
        AND e.at_us = c.closed_at_us AND CASE
          WHEN c.lost_position IS NOT NULL THEN {_CLEARED}
          ELSE ({event_is("pod.released")} OR {event_is("pod.voided")})
            AND {says("j.b", "pod_uid", "c.pod_uid")} AND {says("j.b", "attempt", "c.attempt")}
            AND {says("j.b", "reason", "c.end_reason")}
            AND starts_with(e.event_type, 'pod.' || c.phase || '.v')
        END
    )"""
_NOT_LOST: Final = fail(
    "'tenure ledger: no event at position ' || coalesce(NEW.lost_position, 0)"
    " || ' loses the node of pod ' || OLD.namespace || '/' || OLD.pod_name",
    "no event loses the node of this reservation",
)
RESERVATIONS_LOST: Final = rule(
    "ledger_reservations_lost",
    "ledger_reservations",
    "UPDATE OF lost_position, counted_until_us, lost_boot_id",
    f"""
  IF OLD.lost_position IS NOT NULL OR OLD.closed_position IS NOT NULL OR NEW.phase <> 'lost'
    OR NOT EXISTS (
      SELECT 1 FROM ledger_events AS e {BODY}
      JOIN ledger_nodes AS n ON n.node_no = OLD.node_no
      WHERE e.position = NEW.lost_position AND e.position > OLD.position
        AND {event_is("node.lost")} AND e.at_us = NEW.counted_until_us
        AND {says("j.b", "node_uid", "n.node_uid")} AND NEW.lost_boot_id = {NEWEST_BOOT}
    )
  THEN
    {_NOT_LOST}
  END IF;""",
)
_NO_PHASE: Final = fail(
    "'tenure ledger: no event at position ' || {row}.phase_position || ' says that pod '"
    " || {row}.namespace || '/' || {row}.pod_name || ' is ' || {row}.phase",
    "no event says this phase",
)
RESERVATIONS_PHASE: Final = rule(
    "ledger_reservations_phase",
    "ledger_reservations",
    "UPDATE OF phase, phase_position",
    f"  {_NO_PHASE.format(row='NEW')}",
    only_if="CASE WHEN NEW.closed_position IS NULL AND NEW.lost_position IS NULL"
    " THEN NEW.phase_position <= OLD.phase_position"
    " ELSE NEW.phase_position <> OLD.phase_position END",
)
"""What is lost or ended keeps the position; that an event says the phase is asked behind."""
_PHASE_SAID: Final = f"""CASE
      WHEN c.lost_position IS NOT NULL THEN c.phase = 'lost'
      WHEN {_FIRST_PHASE.format(row="c")} THEN true
      ELSE c.phase IN ('bound', 'assigned') AND EXISTS (
        SELECT 1 FROM ledger_events AS e {BODY} JOIN ledger_nodes AS n ON n.node_no = c.node_no
        WHERE e.position = c.phase_position AND starts_with(e.event_type, 'pod.' || c.phase || '.v')
          AND {says("j.b", "pod_uid", "c.pod_uid")} AND {says("j.b", "attempt", "c.attempt")}
          AND {says("j.b", "node_uid", "n.node_uid")}
      ) END"""
RESERVATIONS_CLOSE: Final = rule(
    "ledger_reservations_close",
    "ledger_reservations",
    "UPDATE",
    f"""
  SELECT bool_and({_PHASE_SAID}) FILTER (WHERE c.closed_position IS NULL),
    bool_and({_ENDED_BY}) FILTER (WHERE c.closed_position IS NOT NULL),
    bool_or(c.cpu_count > 0) FILTER (WHERE c.closed_position IS NOT NULL),
    bool_or(EXISTS (
      SELECT 1 FROM ledger_slot_holdings AS s WHERE s.position = c.position
    )) FILTER (WHERE c.closed_position IS NOT NULL)
  INTO said, ended, cpus, slots FROM changed AS c;
  IF NOT said THEN
    SELECT c.* INTO wrong FROM changed AS c
    WHERE c.closed_position IS NULL AND NOT {_PHASE_SAID} LIMIT 1;
    {_NO_PHASE.format(row="wrong")}
  ELSIF ended IS NULL THEN
    RETURN NULL;
  ELSIF NOT ended THEN
    SELECT c.* INTO wrong FROM changed AS c
    WHERE c.closed_position IS NOT NULL AND NOT {_ENDED_BY} LIMIT 1;
    {_NOT_ENDED}
  END IF;
  UPDATE ledger_holdings AS h
  SET closed_at_us = c.closed_at_us, closed_position = c.closed_position
  FROM changed AS c WHERE c.closed_position IS NOT NULL AND h.position = c.position;
  IF cpus THEN
    UPDATE ledger_cpu_holdings AS h
    SET closed_at_us = c.closed_at_us, closed_position = c.closed_position
    FROM changed AS c WHERE c.closed_position IS NOT NULL AND h.position = c.position;
  END IF;
  IF slots THEN
    UPDATE ledger_slot_holdings AS h
    SET closed_at_us = c.closed_at_us, closed_position = c.closed_position
    FROM changed AS c WHERE c.closed_position IS NOT NULL AND h.position = c.position;
  END IF;""",
    when="AFTER",
    level="STATEMENT",
    variables="said boolean; ended boolean; cpus boolean; slots boolean;"
    " wrong ledger_reservations;",
    definer=True,
)
"""A reservation changes and ends with an event of its own, and what it held ends with it."""

_LESS_THAN_NOTHING: Final = fail(
    "'tenure ledger: a holding is never less than nothing: position ' || NEW.position"
    " || ', core_percent=' || NEW.core_percent || ', memory_bytes=' || NEW.memory_bytes",
    "a holding is never less than nothing",
)
_OPENS_ONCE: Final = fail(
    f"'tenure ledger: a holding opens once: position ' || NEW.position || ', ' || {_HELD_CARD}",
    "a holding opens once",
)
_NOT_ASKED: Final = fail(
    "'tenure ledger: no reservation at position ' || NEW.position || ' asks for this card'",
    "no reservation asks for this card",
)


def _sum(column: str, kind: str) -> str:
    """Return the sum of a column over holdings of a kind, as the numbers that it is made of."""
    return f"coalesce(sum({column}) FILTER (WHERE {kind}), 0)::bigint"


_GRANTED: Final = "kind = 'granted'"
_OBSERVED: Final = "kind <> 'granted'"
_SUMS: Final = f"""{_sum("core_percent", _GRANTED)} AS core_used,
      {_sum("memory_bytes", _GRANTED)} AS memory_used,
      count(*) FILTER (WHERE {_GRANTED}) AS tenants,
      {_sum("exclusive", _GRANTED)} AS exclusive_holders,
      {_sum("core_percent", _OBSERVED)} AS core_observed,
      {_sum("memory_bytes", _OBSERVED)} AS memory_observed,
      count(*) FILTER (WHERE {_OBSERVED}) AS observed_holders"""
HOLDINGS_INSERT: Final = rule(
    "ledger_holdings_insert",
    "ledger_holdings",
    "INSERT",
    f"""
  IF NEW.core_percent < 0 OR NEW.memory_bytes < 0 THEN
    {_LESS_THAN_NOTHING}
  ELSIF NEW.closed_position IS NOT NULL OR EXISTS (
    SELECT 1 FROM ledger_holdings
    WHERE position = NEW.position AND device_no = NEW.device_no
  ) THEN
    {_OPENS_ONCE}
  ELSIF NOT EXISTS (SELECT 1 FROM ledger_reservations WHERE position = NEW.position)
    OR NOT EXISTS (SELECT 1 FROM ledger_devices WHERE device_no = NEW.device_no)
  THEN
    {_NOT_ASKED}
  END IF;""",
    only_if="NEW.core_percent < 0 OR NEW.memory_bytes < 0 OR NEW.closed_position IS NOT NULL"
    f" OR {not_new()}",
)
"""
Keys and checks would refuse all but the third case as well, but before our words. Without a closed
position there is nothing more to ask of a row of a new reservation before it is there.
"""
_NOT_ASKED_AFTER: Final = _NOT_ASKED.replace("NEW.position", "wrong")
_ASKED: Final = """EXISTS (
      SELECT 1 FROM ledger_reservations AS r JOIN ledger_nodes AS n ON n.node_no = r.node_no
      JOIN ledger_devices AS d ON d.machine_no = n.machine_no
      WHERE r.position = c.position AND r.kind = c.kind AND r.closed_position IS NULL
        AND r.opened_at_us = c.opened_at_us AND d.device_no = c.device_no
        AND (d.device_id <> '' OR d.node_no = n.node_no)
        AND (c.kind <> 'granted' OR c.minor = d.minor)
        AND r.device_count >= (
          SELECT count(*) FROM ledger_holdings AS h WHERE h.position = c.position
        )
    )"""


_CLOUDED: Final = f"""EXISTS (
      SELECT 1 FROM ledger_devices AS d JOIN ledger_slot_holdings AS s
      ON s.machine_no = d.machine_no AND s.slot = 'unknown/' || d.device_type
      WHERE d.device_no = c.device_no AND c.{_GRANTED} AND s.closed_position IS NULL
    )"""
_MAY_BE_HELD: Final = fail(
    f"'tenure ledger: ' || {card_of('card')} || ' may be held by a Pod on an unknown card'",
    "the card is full",
)


def waits(card: str, place: str) -> str:
    """Return the refusal of a card that waits for a member of a group."""
    return fail(
        f"'tenure ledger: ' || {card_of(card)} || ' waits for ' || {place}.pod_uid"
        f" || ' of group ' || {place}.group_name",
        "the card waits for a group",
    )


# Asked behind the statement that writes the card's row, so that what somebody did who wrote it
# meanwhile is seen.
_KEPT_FOR_ANOTHER: Final = """EXISTS (
      SELECT 1 FROM ledger_places AS w
      WHERE w.device_no = c.device_no AND w.closed_position IS NULL AND c.kind = 'granted'
        AND NOT EXISTS (
          SELECT 1 FROM ledger_reservations AS r
          WHERE r.position = c.position AND r.pod_uid = w.pod_uid
        )
    )"""
_REFUSE_KEPT: Final = f"""
    SELECT w.* INTO place FROM changed AS c
    JOIN ledger_places AS w ON w.device_no = c.device_no AND w.closed_position IS NULL
    WHERE {_KEPT_FOR_ANOTHER} LIMIT 1;
    SELECT * INTO card FROM ledger_devices WHERE device_no = place.device_no;
    {waits("card", "place")}"""
HOLDINGS_TAKE: Final = rule(
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
    SELECT device_no, core_percent, memory_bytes, exclusive, ({_GRANTED})::int AS granted
    FROM changed
  ) AS c
  WHERE d.device_no = c.device_no;
  SELECT c.position INTO wrong FROM changed AS c
  WHERE NOT {_ASKED} OR {_CLOUDED} OR {_KEPT_FOR_ANOTHER} LIMIT 1;
  IF FOUND THEN
    SELECT d.* INTO card FROM changed AS c JOIN ledger_devices AS d ON d.device_no = c.device_no
    WHERE {_CLOUDED} LIMIT 1;
    IF FOUND THEN
      {_MAY_BE_HELD}
    END IF;
    SELECT c.position INTO wrong FROM changed AS c WHERE NOT {_ASKED} LIMIT 1;
    IF FOUND THEN
      {_NOT_ASKED_AFTER}
    END IF;{_REFUSE_KEPT}
  END IF;""",
    when="AFTER",
    level="STATEMENT",
    variables="wrong bigint; card ledger_devices; place ledger_places;",
    definer=True,
)
"""What is held is taken; what waits for one Pod is taken by no other."""
HOLDINGS_UPDATE: Final = only_closes("ledger_holdings", FIXED_HOLDING, "a holding")
HOLDINGS_GIVE_BACK: Final = rule(
    "ledger_holdings_give_back",
    "ledger_holdings",
    "UPDATE",
    f"""{ends_with("a holding")}
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
  FROM (SELECT device_no, {_SUMS} FROM changed GROUP BY device_no) AS g
  WHERE d.device_no = g.device_no;""",
    when="AFTER",
    level="STATEMENT",
    variables="wrong bigint;",
    definer=True,
)
"""Every row of the statement was open before it, which the rule on the update sees to."""

_CORE_ASKED: Final = "(NEW.core_used - OLD.core_used)"
_MEMORY_ASKED: Final = "(NEW.memory_used - OLD.memory_used)"
_CORE_LEFT: Final = "(OLD.core_reported - OLD.core_used - OLD.core_observed)"
_MEMORY_LEFT: Final = "(OLD.memory_reported - OLD.memory_used - OLD.memory_observed)"
_BY_OTHERS: Final = "OLD.observed_holders > 0"
_MEMORY_FULL: Final = f"(OLD.memory_reported > 0 AND {_MEMORY_LEFT} <= 0)"


def _card(fact: str) -> str:
    return fail(f"'tenure ledger: ' || {card_of('OLD')} || {fact}", "the card is full")


def _core(more: str = "''") -> str:
    """Return the refusal of a card whose core is short, or that is closed by who is on it."""
    return _card(
        f"' has ' || {_CORE_LEFT} || ' of ' || OLD.core_reported"
        f" || ' percent core left, ' || {_CORE_ASKED} || ' asked' || {more}"
    )


def _memory(more: str = "''") -> str:
    """Return the refusal of a card whose memory is short."""
    return _card(
        f"' has ' || {_MEMORY_LEFT} || ' of ' || OLD.memory_reported"
        f" || ' bytes memory left, ' || {_MEMORY_ASKED} || ' asked' || {more}"
    )


_WHY: Final = "CASE WHEN OLD.exclusive_holders > 0 THEN ' (held exclusively)' ELSE '' END"
_HOLDERS: Final = (
    "' (' || (OLD.tenants + OLD.observed_holders) || ' holders, an exclusive one was asked)'"
)
_ASKS_NOTHING: Final = f"NEW.tenants > OLD.tenants AND {_CORE_ASKED} = 0 AND {_MEMORY_ASKED} = 0"
_NOT_THE_SUM: Final = fail(
    "'tenure ledger: what is used of a card is the sum of its holdings: '"
    " || (SELECT n.node_name FROM ledger_nodes AS n WHERE n.node_no = wrong.node_no)"
    " || '/' || wrong.device_type || '/' || wrong.minor",
    "what is used of a card is the sum of its holdings",
)
# Of most grants one expression says that they fit; the questions in turn say why one does not.
_FITS: Final = f"""OLD.present = 1 AND OLD.healthy = 1 AND OLD.observed_holders = 0
      AND OLD.exclusive_holders = 0 AND NEW.core_used + OLD.core_observed <= OLD.core_reported
      AND NEW.memory_used + OLD.memory_observed <= OLD.memory_reported
      AND (OLD.tenants = 0 OR NEW.exclusive_holders = 0)
      AND NOT ({_ASKS_NOTHING})
      AND NOT ({claimed("OLD")}) AND NOT ({unnamed_holder("OLD")})"""
DEVICES_COUNTERS: Final = rule(
    "ledger_devices_counters",
    "ledger_devices",
    "UPDATE OF core_cap, memory_cap, core_used, memory_used, tenants, exclusive_holders,"
    " core_observed, memory_observed, observed_holders",
    f"""
    IF {_FITS} THEN
      RETURN NEW;
    ELSIF OLD.present <> 1 THEN
      {_card("' is gone'")}
    ELSIF OLD.healthy <> 1 THEN
      {_card("' is unhealthy'")}
    ELSIF {_CORE_ASKED} > {_CORE_LEFT} THEN
      {_core(_WHY)}
    ELSIF {_MEMORY_ASKED} > {_MEMORY_LEFT} THEN
      {_memory(_WHY)}
    ELSIF OLD.exclusive_holders > 0 THEN
      {_core(_WHY)}
    ELSIF {_BY_OTHERS} AND OLD.core_observed >= OLD.core_reported THEN
      {_core("' (held by others)'")}
    ELSIF {_BY_OTHERS} AND OLD.memory_reported > 0
      AND OLD.memory_observed >= OLD.memory_reported
    THEN
      {_memory("' (held by others)'")}
    ELSIF {_ASKS_NOTHING} AND {_CORE_LEFT} <= 0 THEN
      {_core()}
    ELSIF {_ASKS_NOTHING} AND {_MEMORY_FULL} THEN
      {_memory()}
    ELSIF NEW.exclusive_holders > OLD.exclusive_holders
      AND OLD.tenants + OLD.observed_holders > 0
    THEN
      {_core(_HOLDERS)}
    ELSIF {claimed("OLD")} THEN
      {_card(CLAIMED_BY)}
    ELSIF {unnamed_holder("OLD")} THEN
      {_card("' may be held from before it had an id'")}
    END IF;""",
    only_if="NEW.tenants > OLD.tenants OR NEW.core_used > OLD.core_used"
    " OR NEW.memory_used > OLD.memory_used",
)
"""
A grant is compared with what the card had left before it, whoever takes it.

That a Pod on an unknown card may hold it is asked where holdings are taken, for all rows at once.
"""
DEVICES_SUM: Final = rule(
    "ledger_devices_sum",
    "ledger_devices",
    "UPDATE",
    f"""
  SELECT c.* INTO wrong FROM changed AS c
  CROSS JOIN LATERAL (
    SELECT {_SUMS}
    FROM ledger_holdings AS h WHERE h.device_no = c.device_no AND h.closed_at_us IS NULL
  ) AS held
  WHERE c.core_cap <> greatest(c.core_reported, c.core_used)
    OR c.memory_cap <> greatest(c.memory_reported, c.memory_used)
    OR (c.core_used, c.memory_used, c.tenants, c.exclusive_holders, c.core_observed,
      c.memory_observed, c.observed_holders) IS DISTINCT FROM (held.core_used,
      held.memory_used, held.tenants, held.exclusive_holders, held.core_observed,
      held.memory_observed, held.observed_holders)
  LIMIT 1;
  IF FOUND THEN
    {_NOT_THE_SUM}
  END IF;""",
    when="AFTER",
    level="STATEMENT",
    variables="wrong ledger_devices;",
)
"""What is used of a card, whoever moved it, is the sum of its holdings."""

RULES: Final = (
    *RESERVATIONS_INSERT,
    *RESERVATIONS_OPEN,
    *RESERVATIONS_UPDATE,
    *RESERVATIONS_LOST,
    *RESERVATIONS_PHASE,
    *RESERVATIONS_CLOSE,
    *HOLDINGS_INSERT,
    *HOLDINGS_TAKE,
    *HOLDINGS_UPDATE,
    *HOLDINGS_GIVE_BACK,
    *DEVICES_COUNTERS,
    *DEVICES_SUM,
)
"""These rules in the order in which they are made."""
