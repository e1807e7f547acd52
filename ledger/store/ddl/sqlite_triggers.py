"""
The rules that SQLite itself enforces, whoever opens the file.

They hold on a connection with default pragmas: no foreign keys, no recursive triggers, and
`ignore_check_constraints` on. So every rule is a BEFORE trigger, and an INSERT OR REPLACE, whose
silent deletion fires no trigger there, is refused before it deletes. RAISE takes only a literal
before SQLite 3.47, so the message with the card or the position in it is raised as the error of a
JSON path, and a literal RAISE stands behind it.
"""

from __future__ import annotations

from typing import Final


def _fail(message: str, literal: str) -> str:
    """Return an expression that fails with the text of the SQL expression `message`."""
    return f"coalesce(json_extract('{{}}', {message}), RAISE(ABORT, '{literal}'))"


def _refuse_delete(table: str, what: str) -> str:
    name = f"{table}_no_delete"
    body = _fail(f"'tenure ledger: {what} are never deleted'", f"{what} are never deleted")
    return f"CREATE TRIGGER {name} BEFORE DELETE ON {table} BEGIN SELECT {body}; END"


_CARD: Final = """(
  SELECT 'card ' || n.node_name || '/' || OLD.device_type || '/' || OLD.minor
    || CASE OLD.device_id WHEN '' THEN '' ELSE ' (' || OLD.device_id || ')' END
  FROM ledger_nodes AS n WHERE n.node_no = OLD.node_no
)"""
_HELD_CARD: Final = """(
  SELECT 'card ' || n.node_name || '/' || d.device_type || '/' || d.minor
    || CASE d.device_id WHEN '' THEN '' ELSE ' (' || d.device_id || ')' END
    || ' has ' || (d.core_reported - d.core_used - d.core_observed) || ' of ' || d.core_reported
    || ' percent core left, ' || NEW.core_percent || ' asked'
  FROM ledger_devices AS d JOIN ledger_nodes AS n ON n.node_no = d.node_no
  WHERE d.device_no = NEW.device_no
)"""
_CPU: Final = """(
  SELECT 'cpu ' || n.node_name || '/cpu/' || NEW.cpu
  FROM ledger_nodes AS n WHERE n.node_no = NEW.node_no
)"""

EVENTS_NO_UPDATE: Final = f"""
CREATE TRIGGER ledger_events_no_update BEFORE UPDATE ON ledger_events
BEGIN
  SELECT {
    _fail(
        "'tenure ledger: events are append-only: position '"
        " || OLD.position || ' cannot be changed'",
        "tenure ledger: events are append-only",
    )
};
END
"""
EVENTS_NO_DELETE: Final = f"""
CREATE TRIGGER ledger_events_no_delete BEFORE DELETE ON ledger_events
BEGIN
  SELECT {
    _fail(
        "'tenure ledger: events are append-only: position '"
        " || OLD.position || ' cannot be deleted'",
        "tenure ledger: events are append-only",
    )
};
END
"""
EVENTS_APPEND: Final = f"""
CREATE TRIGGER ledger_events_append BEFORE INSERT ON ledger_events
BEGIN
  SELECT CASE
    WHEN NEW.position <> (SELECT coalesce(max(position), 0) + 1 FROM ledger_events)
    THEN {
    _fail(
        "'tenure ledger: events are append-only: the next position is '"
        " || (SELECT coalesce(max(position), 0) + 1 FROM ledger_events)"
        " || ', not ' || NEW.position",
        "tenure ledger: events are append-only",
    )
}
    WHEN NEW.position > (SELECT position FROM ledger_head)
    THEN {
    _fail(
        "'tenure ledger: position ' || NEW.position || ' is beyond the head: only the writer"
        " of the current epoch appends'",
        "tenure ledger: only the writer of the current epoch appends",
    )
}
    WHEN NEW.stream_version <> coalesce(
      (SELECT version FROM ledger_streams WHERE stream = NEW.stream), 0
    ) + 1
    THEN {
    _fail(
        "'tenure ledger: stream ' || NEW.stream || ' is not at version '"
        " || (NEW.stream_version - 1)",
        "tenure ledger: stream moved on",
    )
}
    WHEN EXISTS (SELECT 1 FROM ledger_events WHERE idempotency_key = NEW.idempotency_key)
    THEN {
    _fail(
        "'tenure ledger: already recorded: ' || NEW.idempotency_key",
        "tenure ledger: already recorded",
    )
}
  END;
END
"""

EVENTS_COUNT: Final = """
CREATE TRIGGER ledger_events_count AFTER INSERT ON ledger_events
BEGIN
  UPDATE ledger_streams SET version = NEW.stream_version
  WHERE stream = NEW.stream AND NEW.stream_version > 1;
  INSERT INTO ledger_streams (stream, version)
  SELECT NEW.stream, 1 WHERE NEW.stream_version = 1;
END
"""
_STREAM: Final = _fail(
    "'tenure ledger: a stream moves by one with each event: ' || NEW.stream",
    "tenure ledger: a stream moves by one with each event",
)
STREAMS_INSERT: Final = f"""
CREATE TRIGGER ledger_streams_insert BEFORE INSERT ON ledger_streams
WHEN NEW.version <> 1 OR EXISTS (SELECT 1 FROM ledger_streams WHERE stream = NEW.stream)
BEGIN
  SELECT {_STREAM};
END
"""
STREAMS_UPDATE: Final = f"""
CREATE TRIGGER ledger_streams_update BEFORE UPDATE ON ledger_streams
WHEN NEW.version <> OLD.version + 1 OR NEW.stream <> OLD.stream
BEGIN
  SELECT {_STREAM};
END
"""

HEAD_FORWARD: Final = f"""
CREATE TRIGGER ledger_head_forward BEFORE UPDATE ON ledger_head
WHEN NEW.id <> OLD.id OR NEW.position < OLD.position OR NEW.epoch < OLD.epoch
  OR NEW.at_us < OLD.at_us OR (NEW.origin <> OLD.origin AND OLD.epoch > 0)
BEGIN
  SELECT {
    _fail(
        "'tenure ledger: the head only moves forward: it is at position ' || OLD.position",
        "tenure ledger: the head only moves forward",
    )
};
END
"""
HEAD_ONE: Final = f"""
CREATE TRIGGER ledger_head_one BEFORE INSERT ON ledger_head
WHEN EXISTS (SELECT 1 FROM ledger_head)
BEGIN
  SELECT {_fail("'tenure ledger: there is one head'", "tenure ledger: there is one head")};
END
"""

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
    THEN {
    _fail(
        "'tenure ledger: no event at position ' || NEW.position || ' opens this reservation'",
        "tenure ledger: no event opens this reservation",
    )
}
    WHEN NEW.closed_position IS NOT NULL
    THEN {
    _fail(
        "'tenure ledger: a reservation opens before it closes: position ' || NEW.position",
        "tenure ledger: a reservation opens before it closes",
    )
}
  END;
END
"""
_FIXED_RESERVATION: Final = [
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


def _same(columns: list[str]) -> str:
    new = ", ".join(f"NEW.{column}" for column in columns)
    old = ", ".join(f"OLD.{column}" for column in columns)
    return f"({new}) IS ({old})"


RESERVATIONS_UPDATE: Final = f"""
CREATE TRIGGER ledger_reservations_update BEFORE UPDATE ON ledger_reservations
BEGIN
  SELECT CASE
    WHEN OLD.closed_position IS NOT NULL OR NOT {_same(_FIXED_RESERVATION)}
    THEN {
    _fail(
        "'tenure ledger: a reservation only ends, it does not change: position '"
        " || OLD.position || ', pod ' || OLD.namespace || '/' || OLD.pod_name",
        "tenure ledger: a reservation only ends, it does not change",
    )
}
    WHEN NEW.closed_position IS NOT NULL AND NOT EXISTS (
      SELECT 1 FROM ledger_events AS e
      WHERE e.position = NEW.closed_position AND e.position > OLD.position
        AND (e.event_type LIKE 'pod.released.v%' OR e.event_type LIKE 'pod.voided.v%')
        AND e.at_us = NEW.closed_at_us
        AND json_extract(e.body, '$.pod_uid') = OLD.pod_uid
        AND json_extract(e.body, '$.attempt') = OLD.attempt
    )
    THEN {
    _fail(
        "'tenure ledger: no event at position ' || NEW.closed_position"
        " || ' ends the reservation of pod ' || OLD.namespace || '/' || OLD.pod_name",
        "tenure ledger: no event ends this reservation",
    )
}
  END;
END
"""
RESERVATIONS_CLOSE: Final = """
CREATE TRIGGER ledger_reservations_close AFTER UPDATE OF closed_position ON ledger_reservations
WHEN NEW.closed_position IS NOT NULL
BEGIN
  UPDATE ledger_holdings
  SET closed_at_us = NEW.closed_at_us, closed_position = NEW.closed_position
  WHERE position = NEW.position;
  UPDATE ledger_cpu_holdings
  SET closed_at_us = NEW.closed_at_us, closed_position = NEW.closed_position
  WHERE NEW.cpu_count > 0 AND position = NEW.position;
  UPDATE ledger_slot_holdings
  SET closed_at_us = NEW.closed_at_us, closed_position = NEW.closed_position
  WHERE position = NEW.position;
END
"""

HOLDINGS_INSERT: Final = f"""
CREATE TRIGGER ledger_holdings_insert BEFORE INSERT ON ledger_holdings
BEGIN
  SELECT CASE
    WHEN NEW.core_percent < 0 OR NEW.memory_bytes < 0 OR NEW.closed_position IS NOT NULL
    OR EXISTS (
      SELECT 1 FROM ledger_holdings
      WHERE position = NEW.position AND device_no = NEW.device_no
    )
    THEN {
    _fail(
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
      SELECT 1 FROM ledger_reservations AS r, ledger_devices AS d
      WHERE r.position = NEW.position AND r.kind = NEW.kind AND r.closed_position IS NULL
        AND r.opened_at_us = NEW.opened_at_us
        AND d.device_no = NEW.device_no AND d.node_no = r.node_no
        AND r.device_count >= (
          SELECT count(*) FROM ledger_holdings WHERE position = NEW.position
        )
    )
    THEN {
    _fail(
        "'tenure ledger: no reservation at position ' || NEW.position || ' asks for this card'",
        "tenure ledger: no reservation asks for this card",
    )
}
  END;
END
"""
_FIXED_HOLDING: Final = [
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


def _only_closes(table: str, columns: list[str], what: str) -> str:
    fail = _fail(
        f"'tenure ledger: {what} only ends with its reservation: position ' || OLD.position",
        f"tenure ledger: {what} only ends with its reservation",
    )
    return f"""
CREATE TRIGGER {table}_update BEFORE UPDATE ON {table}
WHEN OLD.closed_position IS NOT NULL OR NOT {_same(columns)}
  OR NOT EXISTS (
    SELECT 1 FROM ledger_reservations AS r
    WHERE r.position = OLD.position AND r.closed_position = NEW.closed_position
      AND r.closed_at_us = NEW.closed_at_us
  )
BEGIN
  SELECT {fail};
END
"""


HOLDINGS_UPDATE: Final = _only_closes("ledger_holdings", _FIXED_HOLDING, "a holding")
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

_CORE_LEFT: Final = "(OLD.core_reported - OLD.core_used - OLD.core_observed)"
_MEMORY_LEFT: Final = "(OLD.memory_reported - OLD.memory_used - OLD.memory_observed)"
_FILLED_BY_OTHERS: Final = """(OLD.observed_holders > 0 AND (OLD.core_observed >= OLD.core_reported
      OR (OLD.memory_reported > 0 AND OLD.memory_observed >= OLD.memory_reported)))"""


def _card(fact: str) -> str:
    return _fail(f"'tenure ledger: ' || {_CARD} || {fact}", "tenure ledger: the card is full")


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
    WHEN OLD.exclusive_holders > 0
    THEN {_card("' is held exclusively, it has nothing left'")}
    WHEN NEW.core_used + OLD.core_observed > OLD.core_reported
    THEN {
    _card(
        f"' has ' || {_CORE_LEFT} || ' of ' || OLD.core_reported"
        " || ' percent core left, ' || (NEW.core_used - OLD.core_used) || ' asked'"
    )
}
    WHEN NEW.memory_used + OLD.memory_observed > OLD.memory_reported
    THEN {
    _card(
        f"' has ' || {_MEMORY_LEFT} || ' of ' || OLD.memory_reported"
        " || ' bytes memory left, ' || (NEW.memory_used - OLD.memory_used) || ' asked'"
    )
}
    WHEN {_FILLED_BY_OTHERS} THEN {_card("' is held by others, it has nothing left'")}
    WHEN NEW.exclusive_holders > OLD.exclusive_holders
      AND OLD.tenants + OLD.observed_holders > 0
    THEN {
    _card(
        "' has ' || (OLD.tenants + OLD.observed_holders) || ' holders, an exclusive one was asked'"
    )
}
    WHEN EXISTS (
      SELECT 1 FROM ledger_slot_holdings AS s
      WHERE s.node_no = OLD.node_no AND s.slot = 'unknown/' || OLD.device_type
        AND s.closed_position IS NULL
    )
    THEN {_card("' may be held by a Pod on an unknown card'")}
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
    _fail(
        "'tenure ledger: what is used of a card is the sum of its holdings: '"
        " || (SELECT n.node_name FROM ledger_nodes AS n WHERE n.node_no = OLD.node_no)"
        " || '/' || OLD.device_type || '/' || OLD.minor",
        "tenure ledger: what is used of a card is the sum of its holdings",
    )
}
  END;
END
"""


_NODE_NAME: Final = "(SELECT node_name FROM ledger_nodes WHERE node_no = {row}.node_no)"


def _event(position: str, *types: str) -> str:
    """Return the condition that an event of one of these types is recorded at `position`."""
    kinds = " OR ".join(f"e.event_type LIKE '{kind}.v%'" for kind in types)
    return f"EXISTS (SELECT 1 FROM ledger_events AS e WHERE e.position = {position} AND ({kinds}))"


def _facts(table: str, what: str, columns: str, fixed: list[str], *types: str) -> str:
    """Return the trigger that lets facts change only with the later event that says so."""
    fail = _fail(
        f"'tenure ledger: {what} change with an event that says so, at a later position than '"
        " || OLD.fact_position",
        f"tenure ledger: {what} change with an event that says so",
    )
    return f"""
CREATE TRIGGER {table}_facts BEFORE UPDATE OF {columns}, {", ".join(fixed)}, fact_position
ON {table}
WHEN NOT {_same(fixed)} OR NEW.fact_position <= OLD.fact_position
  OR NOT {_event("NEW.fact_position", *types)}
BEGIN
  SELECT {fail};
END
"""


def _born(table: str, what: str, taken: tuple[str, ...], counters: list[str], *types: str) -> str:
    """Return the trigger that lets a row in only with its event, once, and with nothing held."""
    known = " OR ".join(f"EXISTS (SELECT 1 FROM {table} WHERE {key})" for key in taken)
    held = " OR ".join(f"NEW.{column} <> 0" for column in counters)
    fail = _fail(
        f"'tenure ledger: no event at position ' || NEW.fact_position || ' brings in {what}'",
        f"tenure ledger: no event brings in {what}",
    )
    return f"""
CREATE TRIGGER {table}_insert BEFORE INSERT ON {table}
WHEN {known} OR {held or "0"}
  OR NOT {_event("NEW.fact_position", *types)}
BEGIN
  SELECT {fail};
END
"""


NODES_INSERT: Final = _born(
    "ledger_nodes",
    "a node",
    ("node_no = NEW.node_no", "node_uid = NEW.node_uid"),
    [],
    "node.inventoried",
    "pod.observed",
)
NODES_FACTS: Final = _facts(
    "ledger_nodes",
    "facts of a node",
    "node_name, machine_id, labels, cpu_milli, memory_bytes, cpu_ref_max",
    ["node_no", "node_uid"],
    "node.inventoried",
)
DEVICES_INSERT: Final = _born(
    "ledger_devices",
    "a device",
    (
        "device_no = NEW.device_no",
        (
            "node_no = NEW.node_no AND device_type = NEW.device_type"
            " AND device_id = NEW.device_id AND device_id <> ''"
        ),
        (
            "node_no = NEW.node_no AND device_type = NEW.device_type"
            " AND minor = NEW.minor AND device_id = '' AND NEW.device_id = ''"
        ),
    ),
    [
        "core_used",
        "memory_used",
        "tenants",
        "exclusive_holders",
        "core_observed",
        "memory_observed",
        "observed_holders",
    ],
    "node.inventoried",
    "pod.observed",
)
DEVICES_FACTS: Final = _facts(
    "ledger_devices",
    "facts of a card",
    "minor, device_id, model, present, healthy, core_reported, memory_reported",
    ["device_no", "node_no", "device_type"],
    "node.inventoried",
    "device.health_changed",
)
CPUS_INSERT: Final = _born(
    "ledger_cpus",
    "a CPU",
    ("node_no = NEW.node_no AND cpu = NEW.cpu",),
    ["ref_used", "ref_observed"],
    "node.inventoried",
    "pod.observed",
)
CPUS_FACTS: Final = _facts(
    "ledger_cpus",
    "facts of a CPU",
    "core, socket, numa, present, ref_reported",
    ["node_no", "cpu"],
    "node.inventoried",
)
CPUS_COUNTERS: Final = f"""
CREATE TRIGGER ledger_cpus_counters BEFORE UPDATE OF ref_max, ref_used, ref_observed
ON ledger_cpus
WHEN NEW.ref_max <> max(NEW.ref_reported, NEW.ref_used)
  OR (NEW.ref_used, NEW.ref_observed) IS NOT (
    SELECT count(CASE kind WHEN 'granted' THEN 1 END), count(CASE kind WHEN 'observed' THEN 1 END)
    FROM ledger_cpu_holdings
    WHERE node_no = NEW.node_no AND cpu = NEW.cpu AND closed_at_us IS NULL
  )
BEGIN
  SELECT {
    _fail(
        "'tenure ledger: what is used of a CPU is the count of its holders: '"
        f" || {_NODE_NAME.format(row='OLD')} || '/cpu/' || OLD.cpu",
        "tenure ledger: what is used of a CPU is the count of its holders",
    )
};
END
"""

CPU_HOLDINGS_INSERT: Final = f"""
CREATE TRIGGER ledger_cpu_holdings_insert BEFORE INSERT ON ledger_cpu_holdings
BEGIN
  SELECT CASE
    WHEN NEW.kind = 'granted' AND c.present <> 1
    THEN {_fail(f"'tenure ledger: ' || {_CPU} || ' is gone'", "tenure ledger: the CPU is gone")}
    WHEN NEW.kind = 'granted' AND c.ref_used + c.ref_observed >= c.ref_reported
    THEN {
    _fail(
        f"'tenure ledger: ' || {_CPU} || ' has ' || (c.ref_used + c.ref_observed)"
        " || ' of ' || c.ref_reported || ' holders, one more asked'",
        "tenure ledger: the CPU is taken",
    )
}
  END
  FROM ledger_cpus AS c WHERE c.node_no = NEW.node_no AND c.cpu = NEW.cpu;
  SELECT CASE
    WHEN EXISTS (
      SELECT 1 FROM ledger_cpu_holdings WHERE position = NEW.position AND cpu = NEW.cpu
    )
    OR NEW.closed_position IS NOT NULL
    OR NOT EXISTS (SELECT 1 FROM ledger_cpus WHERE node_no = NEW.node_no AND cpu = NEW.cpu)
    OR NOT EXISTS (
      SELECT 1 FROM ledger_reservations AS r
      WHERE r.position = NEW.position AND r.kind = NEW.kind AND r.closed_position IS NULL
        AND r.opened_at_us = NEW.opened_at_us AND r.node_no = NEW.node_no
        AND r.cpu_count > (
          SELECT count(*) FROM ledger_cpu_holdings WHERE position = NEW.position
        )
    )
    THEN {
    _fail(
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
  WHERE node_no = NEW.node_no AND cpu = NEW.cpu;
END
"""
CPU_HOLDINGS_UPDATE: Final = _only_closes(
    "ledger_cpu_holdings",
    ["position", "cpu", "node_no", "kind", "opened_at_us"],
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
  WHERE node_no = NEW.node_no AND cpu = NEW.cpu;
END
"""

SLOT_HOLDINGS_INSERT: Final = f"""
CREATE TRIGGER ledger_slot_holdings_insert BEFORE INSERT ON ledger_slot_holdings
BEGIN
  SELECT CASE
    WHEN NEW.kind = 'granted' AND EXISTS (
      SELECT 1 FROM ledger_slot_holdings
      WHERE node_no = NEW.node_no AND slot = NEW.slot AND closed_position IS NULL
    )
    THEN {
    _fail(
        f"'tenure ledger: ' || {_NODE_NAME.format(row='NEW')} || '/' || NEW.slot"
        " || ' has a holder, one more asked'",
        "tenure ledger: the slot has a holder",
    )
}
    WHEN EXISTS (
      SELECT 1 FROM ledger_slot_holdings WHERE position = NEW.position AND slot = NEW.slot
    )
    OR NEW.closed_position IS NOT NULL
    OR NOT EXISTS (
      SELECT 1 FROM ledger_reservations AS r
      LEFT JOIN ledger_holdings AS h ON h.position = r.position AND h.device_no = NEW.device_no
      WHERE r.position = NEW.position AND r.kind = NEW.kind AND r.closed_position IS NULL
        AND r.node_no = NEW.node_no AND r.opened_at_us = NEW.opened_at_us
        AND (h.position IS NOT NULL OR (NEW.kind = 'observed' AND NEW.device_no IS NULL))
    )
    THEN {
    _fail(
        "'tenure ledger: no reservation at position ' || NEW.position || ' asks for slot '"
        " || NEW.slot",
        "tenure ledger: no reservation asks for this slot",
    )
}
  END;
END
"""
SLOT_HOLDINGS_UPDATE: Final = _only_closes(
    "ledger_slot_holdings",
    ["position", "slot", "node_no", "device_no", "kind", "opened_at_us"],
    "a holding of a slot",
)


def _written_once(table: str, key: str, what: str, *types: str) -> tuple[str, str]:
    """Return the triggers of a table whose rows are written with their event and never again."""
    no_event = _fail(
        f"'tenure ledger: no event at position ' || NEW.position || ' is {what}'",
        f"tenure ledger: no event is {what}",
    )
    no_change = _fail(
        f"'tenure ledger: {what} does not change: position ' || OLD.position",
        f"tenure ledger: {what} does not change",
    )
    return (
        f"""
CREATE TRIGGER {table}_insert BEFORE INSERT ON {table}
WHEN EXISTS (SELECT 1 FROM {table} WHERE {key}) OR NOT {_event("NEW.position", *types)}
BEGIN
  SELECT {no_event};
END
""",
        f"""
CREATE TRIGGER {table}_no_update BEFORE UPDATE ON {table}
BEGIN
  SELECT {no_change};
END
""",
    )


_NO_DELETE: Final = (
    ("ledger_head", "heads"),
    ("ledger_streams", "streams"),
    ("ledger_nodes", "nodes"),
    ("ledger_devices", "cards"),
    ("ledger_cpus", "CPUs"),
    ("ledger_reservations", "reservations"),
    ("ledger_holdings", "holdings"),
    ("ledger_cpu_holdings", "CPU holdings"),
    ("ledger_slot_holdings", "slot holdings"),
    ("ledger_device_health", "changes of health"),
    ("ledger_refusals", "refusals"),
)

V1: Final = tuple(
    text.strip()
    for text in (
        EVENTS_NO_UPDATE,
        EVENTS_NO_DELETE,
        EVENTS_APPEND,
        EVENTS_COUNT,
        STREAMS_INSERT,
        STREAMS_UPDATE,
        HEAD_FORWARD,
        HEAD_ONE,
        NODES_INSERT,
        NODES_FACTS,
        DEVICES_INSERT,
        DEVICES_FACTS,
        DEVICES_COUNTERS,
        CPUS_INSERT,
        CPUS_FACTS,
        CPUS_COUNTERS,
        RESERVATIONS_INSERT,
        RESERVATIONS_UPDATE,
        RESERVATIONS_CLOSE,
        HOLDINGS_INSERT,
        HOLDINGS_TAKE,
        HOLDINGS_UPDATE,
        HOLDINGS_GIVE_BACK,
        CPU_HOLDINGS_INSERT,
        CPU_HOLDINGS_TAKE,
        CPU_HOLDINGS_UPDATE,
        CPU_HOLDINGS_GIVE_BACK,
        SLOT_HOLDINGS_INSERT,
        SLOT_HOLDINGS_UPDATE,
        *_written_once(
            "ledger_device_health",
            "position = NEW.position AND device_no = NEW.device_no",
            "a change of health",
            "node.inventoried",
            "device.health_changed",
        ),
        *_written_once(
            "ledger_refusals", "position = NEW.position", "a refusal", "request.refused"
        ),
        *(_refuse_delete(table, what) for table, what in _NO_DELETE),
    )
)
"""Every trigger of revision 0001, in the order in which they are made."""


def named(text: str) -> str:
    """Return the name of the trigger that this text makes."""
    return text.split(maxsplit=3)[2]


REBUILDING: Final = tuple(
    text
    for text in V1
    if named(text).startswith("ledger_streams_")
    or (
        named(text).endswith("_no_delete")
        and not named(text).startswith(("ledger_e", "ledger_head"))
    )
)
"""The triggers that stand in the way of making the projections again from the events."""
