"""Rules for reservations and for what they hold of cards: taken once, given back once."""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.texts import card_of, fail, only_closes, same

_HELD_CARD: Final = """(
  SELECT 'card ' || n.node_name || '/' || d.device_type || '/' || d.minor
    || CASE d.device_id WHEN '' THEN '' ELSE ' (' || d.device_id || ')' END
    || ' has ' || (d.core_reported - d.core_used - d.core_observed) || ' of ' || d.core_reported
    || ' percent core left, ' || NEW.core_percent || ' asked'
  FROM ledger_devices AS d JOIN ledger_nodes AS n ON n.node_no = d.node_no
  WHERE d.device_no = NEW.device_no
)"""
RESERVATIONS_INSERT: Final = f"""
CREATE TRIGGER ledger_reservations_insert BEFORE INSERT ON ledger_reservations
BEGIN
  SELECT CASE
    WHEN EXISTS (SELECT 1 FROM ledger_reservations WHERE position = NEW.position)
      OR NOT EXISTS (
        SELECT 1 FROM ledger_events WHERE position = NEW.position
        AND substr(event_type, 1, 14) = CASE NEW.kind
          WHEN 'granted' THEN 'pod.reserved.v' ELSE 'pod.observed.v' END
      )
      OR NEW.phase_position <> NEW.position
      OR NEW.phase <> CASE NEW.kind WHEN 'granted' THEN 'reserved' ELSE 'observed' END
    THEN {
    fail(
        "'tenure ledger: no event at position ' || NEW.position || ' opens this reservation'",
        "tenure ledger: no event opens this reservation",
    )
}
    WHEN NEW.closed_position IS NOT NULL OR NEW.lost_position IS NOT NULL
    THEN {
    fail(
        "'tenure ledger: a reservation opens before it closes: position ' || NEW.position",
        "tenure ledger: a reservation opens before it closes",
    )
}
    WHEN NEW.kind = 'granted' AND n.lost_position IS NOT NULL
    THEN {
    fail("'tenure ledger: node ' || n.node_name || ' is lost'", "tenure ledger: the node is lost")
}
    WHEN NEW.kind = 'granted' AND EXISTS (
      SELECT 1 FROM ledger_nodes AS m
      WHERE m.machine_no = n.machine_no AND m.moved_position IS NOT NULL AND EXISTS (
        SELECT 1 FROM ledger_reservations AS r WHERE r.closed_position IS NULL
          AND r.node_no = m.node_no AND r.position < m.moved_position
      )
    )
    THEN {
    fail(
        "'tenure ledger: node ' || n.node_name || ' has holders from another machine'",
        "tenure ledger: the node has holders from another machine",
    )
}
  END FROM (SELECT 1) LEFT JOIN ledger_nodes AS n ON n.node_no = NEW.node_no;
END
"""
FIXED_RESERVATION: Final = [
    "position",
    "pod_uid",
    "attempt",
    "namespace",
    "pod_name",
    "owner",
    "labels",
    "priority",
    "qos",
    "dialect",
    "policy",
    "source",
    "node_no",
    "cpu_milli",
    "memory_bytes",
    "gpu_core_percent",
    "gpu_count",
    "device_count",
    "cpuset",
    "cpu_count",
    "kind",
    "created_at_us",
    "opened_at_us",
]


# A witness spoke after the loss, and of the machine on which the Pod got what it holds.
_CLEARED: Final = """e.event_type LIKE 'node.cleared.v%' AND NEW.phase = 'released'
            AND NEW.end_reason = 'cleared: ' || json_extract(e.body, '$.evidence') AND EXISTS (
            SELECT 1 FROM ledger_nodes AS n
            LEFT JOIN ledger_nodes AS w ON w.machine_no = n.machine_no AND w.lost_position IS NULL
              AND w.node_uid = json_extract(e.body, '$.witness_uid')
              AND OLD.position > coalesce(n.moved_position, 0)
            LEFT JOIN ledger_stands AS s ON s.node_no = w.node_no AND s.machine_no = w.machine_no
              AND s.fact_position > OLD.lost_position
            WHERE n.node_no = OLD.node_no AND n.node_uid = json_extract(e.body, '$.node_uid')
              AND CASE json_extract(e.body, '$.evidence')
                WHEN 'act' THEN 1
                WHEN 'agent' THEN s.by_agent = 1
                WHEN 'boot' THEN s.boot_id <> '' AND OLD.lost_boot_id <> ''
                  AND s.boot_id <> OLD.lost_boot_id AND NOT EXISTS (
                    SELECT 1 FROM ledger_stands AS a
                    WHERE a.machine_no = n.machine_no AND a.by_agent = 1
                  )
                ELSE 0
              END
          )"""
RESERVATIONS_UPDATE: Final = f"""
CREATE TRIGGER ledger_reservations_update BEFORE UPDATE ON ledger_reservations
BEGIN
  SELECT CASE
    WHEN OLD.closed_position IS NOT NULL
    THEN {
    fail(
        "'tenure ledger: a reservation only ends, it does not change: position '"
        " || OLD.position || ', pod ' || OLD.namespace || '/' || OLD.pod_name",
        "tenure ledger: a reservation only ends, it does not change",
    )
}
    WHEN NEW.closed_position IS NOT NULL AND NOT EXISTS (
      SELECT 1 FROM ledger_events AS e
      WHERE e.position = NEW.closed_position AND e.position > OLD.position
        AND e.at_us = NEW.closed_at_us AND CASE
          WHEN OLD.lost_position IS NOT NULL THEN {_CLEARED}
          ELSE (e.event_type LIKE 'pod.released.v%' OR e.event_type LIKE 'pod.voided.v%')
            AND json_extract(e.body, '$.pod_uid') = OLD.pod_uid
            AND json_extract(e.body, '$.attempt') = OLD.attempt
            AND json_extract(e.body, '$.reason') = NEW.end_reason
            AND e.event_type LIKE 'pod.' || NEW.phase || '.v%'
        END
    )
    THEN {
    fail(
        "'tenure ledger: no event at position ' || NEW.closed_position"
        " || ' ends the reservation of pod ' || OLD.namespace || '/' || OLD.pod_name",
        "tenure ledger: no event ends this reservation",
    )
}
  END;
END
"""
RESERVATIONS_FIXED: Final = f"""
CREATE TRIGGER ledger_reservations_fixed BEFORE UPDATE OF rowid, _rowid_, oid,
  {", ".join(FIXED_RESERVATION)}
ON ledger_reservations
WHEN NOT {same(FIXED_RESERVATION)}
BEGIN
  SELECT {
    fail(
        "'tenure ledger: a reservation only ends, it does not change: position '"
        " || OLD.position || ', pod ' || OLD.namespace || '/' || OLD.pod_name",
        "tenure ledger: a reservation only ends, it does not change",
    )
};
END
"""
"""Apart from the rule for endings, which name none of these columns."""

# SQLite makes a table for the keys of an UPDATE that may touch several rows, and for the rows of an
# INSERT from a query. So a statement names one whole key where it can, or is not begun.
NEWEST_BOOT: Final = """(
      SELECT s.boot_id FROM ledger_stands AS s
      WHERE s.machine_no = n.machine_no ORDER BY s.fact_position DESC LIMIT 1
    )"""
"""The newest boot of the machine of the Node `n`, whoever told it and wherever he stands now."""
RESERVATIONS_LOST: Final = f"""
CREATE TRIGGER ledger_reservations_lost BEFORE UPDATE OF lost_position, counted_until_us,
  lost_boot_id
ON ledger_reservations
WHEN OLD.lost_position IS NOT NULL OR OLD.closed_position IS NOT NULL OR NEW.phase <> 'lost'
  OR NOT EXISTS (
    SELECT 1 FROM ledger_events AS e JOIN ledger_nodes AS n ON n.node_no = OLD.node_no
    WHERE e.position = NEW.lost_position AND e.position > OLD.position
      AND e.event_type LIKE 'node.lost.v%' AND e.at_us = NEW.counted_until_us
      AND json_extract(e.body, '$.node_uid') = n.node_uid AND NEW.lost_boot_id = {NEWEST_BOOT}
  )
BEGIN
  SELECT {
    fail(
        "'tenure ledger: no event at position ' || coalesce(NEW.lost_position, 0)"
        " || ' loses the node of pod ' || OLD.namespace || '/' || OLD.pod_name",
        "tenure ledger: no event loses the node of this reservation",
    )
};
END
"""
# What is lost or ended keeps the position: another rule asks for the event that says so.
RESERVATIONS_PHASE: Final = f"""
CREATE TRIGGER ledger_reservations_phase BEFORE UPDATE OF phase, phase_position
ON ledger_reservations
WHEN NOT CASE
    WHEN NEW.closed_position IS NOT NULL THEN NEW.phase_position = OLD.phase_position
    WHEN NEW.lost_position IS NOT NULL
    THEN NEW.phase = 'lost' AND NEW.phase_position = OLD.phase_position
    ELSE NEW.phase IN ('bound', 'assigned') AND NEW.phase_position > OLD.phase_position AND EXISTS (
      SELECT 1 FROM ledger_events AS e JOIN ledger_nodes AS n ON n.node_no = OLD.node_no
      WHERE e.position = NEW.phase_position AND e.event_type LIKE 'pod.' || NEW.phase || '.v%'
        AND json_extract(e.body, '$.pod_uid') = OLD.pod_uid
        AND json_extract(e.body, '$.attempt') = OLD.attempt
        AND json_extract(e.body, '$.node_uid') = n.node_uid
    )
  END
BEGIN
  SELECT {
    fail(
        "'tenure ledger: no event at position ' || NEW.phase_position || ' says that pod '"
        " || OLD.namespace || '/' || OLD.pod_name || ' is ' || NEW.phase",
        "tenure ledger: no event says this phase",
    )
};
END
"""

_ENDED: Final = "closed_at_us = NEW.closed_at_us, closed_position = NEW.closed_position"
CLOSE_CARD: Final = f"""
CREATE TRIGGER ledger_reservations_close AFTER UPDATE OF closed_position ON ledger_reservations
WHEN NEW.closed_position IS NOT NULL AND NEW.device_count = 1
BEGIN
  UPDATE ledger_holdings SET {_ENDED}
  WHERE position = NEW.position
    AND device_no = (SELECT device_no FROM ledger_holdings WHERE position = NEW.position);
END
"""
CLOSE_MORE: Final = f"""
CREATE TRIGGER ledger_reservations_close_more AFTER UPDATE OF closed_position
ON ledger_reservations
WHEN NEW.closed_position IS NOT NULL AND (NEW.device_count <> 1 OR NEW.cpu_count > 0
  OR EXISTS (SELECT 1 FROM ledger_slot_holdings WHERE position = NEW.position))
BEGIN
  UPDATE ledger_holdings SET {_ENDED}
  WHERE NEW.device_count <> 1 AND position = NEW.position;
  UPDATE ledger_cpu_holdings SET {_ENDED}
  WHERE NEW.cpu_count > 0 AND position = NEW.position;
  UPDATE ledger_slot_holdings SET {_ENDED}
  WHERE position = NEW.position;
END
"""

HOLDINGS_INSERT: Final = f"""
CREATE TRIGGER ledger_holdings_insert BEFORE INSERT ON ledger_holdings
BEGIN
  SELECT CASE
    WHEN NEW.core_percent < 0 OR NEW.memory_bytes < 0
    THEN {
    fail(
        "'tenure ledger: a holding is never less than nothing: position ' || NEW.position"
        " || ', core_percent=' || NEW.core_percent || ', memory_bytes=' || NEW.memory_bytes",
        "tenure ledger: a holding is never less than nothing",
    )
}
    WHEN NEW.closed_position IS NOT NULL OR EXISTS (
      SELECT 1 FROM ledger_holdings
      WHERE position = NEW.position AND device_no = NEW.device_no
    )
    THEN {
    fail(
        f"'tenure ledger: a holding opens once: position ' || NEW.position || ', ' || {_HELD_CARD}",
        "tenure ledger: a holding opens once",
    )
}
  END;
END
"""
HOLDINGS_TAKE: Final = f"""
CREATE TRIGGER ledger_holdings_take AFTER INSERT ON ledger_holdings
BEGIN
  UPDATE ledger_devices
  SET core_used = core_used + NEW.core_percent,
    memory_used = memory_used + NEW.memory_bytes,
    tenants = tenants + 1,
    exclusive_holders = exclusive_holders + NEW.exclusive
  WHERE device_no = NEW.device_no AND NEW.kind = 'granted';
  UPDATE ledger_devices
  SET core_observed = core_observed + NEW.core_percent,
    memory_observed = memory_observed + NEW.memory_bytes,
    observed_holders = observed_holders + 1
  WHERE device_no = NEW.device_no AND NEW.kind <> 'granted';
  SELECT CASE WHEN NOT EXISTS (
      SELECT 1 FROM ledger_reservations AS r JOIN ledger_nodes AS n ON n.node_no = r.node_no
      JOIN ledger_devices AS d ON d.machine_no = n.machine_no
      WHERE r.position = NEW.position AND r.kind = NEW.kind AND r.closed_position IS NULL
        AND r.opened_at_us = NEW.opened_at_us AND d.device_no = NEW.device_no
        AND (d.device_id <> '' OR d.node_no = n.node_no)
        AND (NEW.kind <> 'granted' OR NEW.minor = d.minor)
        AND r.device_count >= (
          SELECT count(*) FROM ledger_holdings WHERE position = NEW.position
        )
    )
    THEN {
    fail(
        "'tenure ledger: no reservation at position ' || NEW.position || ' asks for this card'",
        "tenure ledger: no reservation asks for this card",
    )
}
  END;
END
"""
FIXED_HOLDING: Final = [
    "position",
    "device_no",
    "minor",
    "core_percent",
    "memory_bytes",
    "memory_ratio_percent",
    "exclusive",
    "instances",
    "kind",
    "opened_at_us",
]


HOLDINGS_UPDATE: Final = only_closes("ledger_holdings", FIXED_HOLDING, "a holding")
HOLDINGS_GIVE_BACK: Final = """
CREATE TRIGGER ledger_holdings_give_back AFTER UPDATE OF closed_position ON ledger_holdings
WHEN OLD.closed_position IS NULL AND NEW.closed_position IS NOT NULL
BEGIN
  UPDATE ledger_devices
  SET core_used = core_used - NEW.core_percent,
    core_cap = max(core_reported, core_used - NEW.core_percent),
    memory_used = memory_used - NEW.memory_bytes,
    memory_cap = max(memory_reported, memory_used - NEW.memory_bytes),
    tenants = tenants - 1,
    exclusive_holders = exclusive_holders - NEW.exclusive
  WHERE device_no = NEW.device_no AND NEW.kind = 'granted';
  UPDATE ledger_devices
  SET core_observed = core_observed - NEW.core_percent,
    memory_observed = memory_observed - NEW.memory_bytes,
    observed_holders = observed_holders - 1
  WHERE device_no = NEW.device_no AND NEW.kind = 'observed';
END
"""

_CORE_ASKED: Final = "(NEW.core_used - OLD.core_used)"
_MEMORY_ASKED: Final = "(NEW.memory_used - OLD.memory_used)"
_CORE_LEFT: Final = "(OLD.core_reported - OLD.core_used - OLD.core_observed)"
_MEMORY_LEFT: Final = "(OLD.memory_reported - OLD.memory_used - OLD.memory_observed)"
_BY_OTHERS: Final = "OLD.observed_holders > 0"
_MEMORY_FULL: Final = f"(OLD.memory_reported > 0 AND {_MEMORY_LEFT} <= 0)"


def _card(fact: str) -> str:
    return fail(
        f"'tenure ledger: ' || {card_of('OLD')} || {fact}", "tenure ledger: the card is full"
    )


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

# An id that is unique in the world is on two machines: one of them is wrong, or has not let go yet.
_CLAIMS: Final = """c.device_type = {row}.device_type AND c.device_id = {row}.device_id
        AND c.machine_no <> {row}.machine_no
        AND (c.present = 1 OR c.tenants > 0 OR c.observed_holders > 0)"""
CLAIMED_BY: Final = f"""' is also ' || (
      SELECT n.node_name || '/' || c.device_type || '/' || c.minor
      FROM ledger_devices AS c JOIN ledger_nodes AS n ON n.node_no = c.node_no
      WHERE {_CLAIMS.format(row="OLD")}
      ORDER BY c.device_no LIMIT 1
    )"""


def claimed(row: str) -> str:
    """Return the condition that another machine has, or is held on by, a device of this id."""
    return f"""{row}.unique_id = 1 AND EXISTS (
      SELECT 1 FROM ledger_devices AS c
      WHERE {_CLAIMS.format(row=row)}
    )"""


def unnamed_holder(row: str) -> str:
    """
    Return the condition that the node had a device without an id there, which is held: maybe this.

    It is another row only where another Node of the machine told the id first.
    """
    return f"""{row}.device_id <> '' AND EXISTS (
      SELECT 1 FROM ledger_devices AS c
      WHERE c.machine_no = {row}.machine_no AND c.device_type = {row}.device_type
        AND c.minor = {row}.minor AND c.device_id = '' AND c.node_no = {row}.node_no
        AND (c.tenants > 0 OR c.observed_holders > 0)
    )"""


DEVICES_COUNTERS: Final = f"""
CREATE TRIGGER ledger_devices_counters BEFORE UPDATE OF core_cap, memory_cap, core_used,
  memory_used, tenants, exclusive_holders, core_observed, memory_observed, observed_holders
ON ledger_devices
BEGIN
  SELECT CASE
    WHEN NEW.tenants <= OLD.tenants AND NEW.core_used <= OLD.core_used
      AND NEW.memory_used <= OLD.memory_used THEN NULL
    WHEN OLD.present <> 1 THEN {_card("' is gone'")}
    WHEN OLD.healthy <> 1 THEN {_card("' is unhealthy'")}
    WHEN {_CORE_ASKED} > {_CORE_LEFT} THEN {_core(_WHY)}
    WHEN {_MEMORY_ASKED} > {_MEMORY_LEFT} THEN {_memory(_WHY)}
    WHEN OLD.exclusive_holders > 0 THEN {_core(_WHY)}
    WHEN {_BY_OTHERS} AND OLD.core_observed >= OLD.core_reported
    THEN {_core("' (held by others)'")}
    WHEN {_BY_OTHERS} AND OLD.memory_reported > 0 AND OLD.memory_observed >= OLD.memory_reported
    THEN {_memory("' (held by others)'")}
    WHEN {_ASKS_NOTHING} AND {_CORE_LEFT} <= 0 THEN {_core()}
    WHEN {_ASKS_NOTHING} AND {_MEMORY_FULL} THEN {_memory()}
    WHEN NEW.exclusive_holders > OLD.exclusive_holders
      AND OLD.tenants + OLD.observed_holders > 0
    THEN {_core(_HOLDERS)}
    WHEN EXISTS (
      SELECT 1 FROM ledger_slot_holdings AS s
      WHERE s.machine_no = OLD.machine_no AND s.slot = 'unknown/' || OLD.device_type
        AND s.closed_position IS NULL
    )
    THEN {_card("' may be held by a Pod on an unknown card'")}
    WHEN {claimed("OLD")}
    THEN {_card(CLAIMED_BY)}
    WHEN {unnamed_holder("OLD")}
    THEN {_card("' may be held from before it had an id'")}
  END;
  SELECT CASE
    WHEN NEW.core_cap <> max(NEW.core_reported, NEW.core_used)
      OR NEW.memory_cap <> max(NEW.memory_reported, NEW.memory_used)
      OR (NEW.core_used, NEW.memory_used, NEW.tenants, NEW.exclusive_holders, NEW.core_observed,
    NEW.memory_observed, NEW.observed_holders) IS NOT (
    SELECT coalesce(sum(core_percent) FILTER (WHERE kind = 'granted'), 0),
      coalesce(sum(memory_bytes) FILTER (WHERE kind = 'granted'), 0),
      count(*) FILTER (WHERE kind = 'granted'),
      coalesce(sum(exclusive) FILTER (WHERE kind = 'granted'), 0),
      coalesce(sum(core_percent) FILTER (WHERE kind <> 'granted'), 0),
      coalesce(sum(memory_bytes) FILTER (WHERE kind <> 'granted'), 0),
      count(*) FILTER (WHERE kind <> 'granted')
    FROM ledger_holdings WHERE device_no = NEW.device_no AND closed_at_us IS NULL
  )
    THEN {
    fail(
        "'tenure ledger: what is used of a card is the sum of its holdings: '"
        " || (SELECT n.node_name FROM ledger_nodes AS n WHERE n.node_no = OLD.node_no)"
        " || '/' || OLD.device_type || '/' || OLD.minor",
        "tenure ledger: what is used of a card is the sum of its holdings",
    )
}
  END;
END
"""

RULES: Final = (
    RESERVATIONS_INSERT,
    RESERVATIONS_UPDATE,
    RESERVATIONS_FIXED,
    RESERVATIONS_LOST,
    RESERVATIONS_PHASE,
    CLOSE_CARD,
    CLOSE_MORE,
    HOLDINGS_INSERT,
    HOLDINGS_TAKE,
    HOLDINGS_UPDATE,
    HOLDINGS_GIVE_BACK,
    DEVICES_COUNTERS,
)
"""These rules in the order in which they are made."""
