"""
Rules on Postgres for what an inventory says, as `ledger.store.ddl.facts` has them on SQLite.

A row is born or changes only as the body of its event says. A body is parsed once per check, and
its values are compared as JSON, so that a value of another kind is another value, not an error.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.postgres_texts import (
    BODY,
    card_of,
    equal,
    event_is,
    fail,
    node_name,
    rule,
    same,
    says,
    says_whether,
)

_NEXT: Final = "(SELECT coalesce(max({key}), 0) + 1 FROM {table})"


def _of_new(columns: list[str]) -> list[str]:
    return [f"NEW.{each}" for each in columns]


def _entries(path: str) -> str:
    return f"jsonb_array_elements(j.b->'{path}') AS r(value)"


_NODE_SAYS: Final = f"""EXISTS (
      SELECT 1 FROM ledger_events AS e {BODY}
      JOIN ledger_machines AS m ON m.machine_no = NEW.machine_no
      WHERE e.position = NEW.fact_position AND {event_is("node.inventoried")}
        AND {says("j.b", "node_uid", "NEW.node_uid")}
        AND {says("j.b", "node_name", "NEW.node_name")}
        AND {says("j.b", "system_uuid", "NEW.system_uuid")}
        AND {says("j.b", "machine_id", "NEW.machine_id")}
        AND NEW.lost_position IS NULL
        AND (NEW.system_uuid = '' OR NEW.machine_id = ''
          OR (m.system_uuid, m.machine_id) = (NEW.system_uuid, NEW.machine_id))
        AND e.body::json->>'labels' = NEW.labels
        AND {says("j.b", "cpu_milli", "NEW.cpu_milli")}
        AND {says("j.b", "memory_bytes", "NEW.memory_bytes")}
        AND {says("j.b", "cpu_ref_count_max", "NEW.cpu_ref_max")}
    )"""
_NODE_SEEN: Final = f"""EXISTS (
      SELECT 1 FROM ledger_events AS e {BODY}
      WHERE e.position = NEW.fact_position AND {event_is("pod.observed")}
        AND {says("j.b", "node_uid", "NEW.node_uid")}
        AND {says("j.b", "node_name", "NEW.node_name")}
        AND (NEW.system_uuid, NEW.machine_id, NEW.labels, NEW.cpu_milli, NEW.memory_bytes,
          NEW.cpu_ref_max) = ('', '', '{{}}', 0, 0, 0)
    )"""
_MACHINE_SAYS: Final = f"""EXISTS (
      SELECT 1 FROM ledger_events AS e {BODY}
      WHERE e.position = NEW.fact_position AND CASE NEW.system_uuid
        WHEN '' THEN {event_is("pod.observed")} OR ({event_is("node.inventoried")}
          AND '' IN (j.b->>'system_uuid', j.b->>'machine_id'))
        ELSE {event_is("node.inventoried")} AND {says("j.b", "system_uuid", "NEW.system_uuid")}
          AND {says("j.b", "machine_id", "NEW.machine_id")}
      END
    )"""


def _inventory_says(row: str, condition: str) -> str:
    """Return that the newest inventory of the row's node is the row's event, and says so."""
    return f"""EXISTS (
      SELECT 1 FROM ledger_nodes AS n JOIN ledger_events AS e ON e.position = n.fact_position
      {BODY}
      WHERE n.node_no = {row}.node_no AND n.fact_position = NEW.fact_position
        AND {event_is("node.inventoried")} AND {condition}
    )"""


def _event_says(row: str, kind: str, condition: str, of: str = "") -> str:
    """
    Return that the row's event is of this type, names the row's node, and says so.

    `of` is what else the node `n` that it names may be.
    """
    of = of or f"n.node_no = {row}.node_no"
    return f"""EXISTS (
      SELECT 1 FROM ledger_nodes AS n CROSS JOIN ledger_events AS e
      {BODY}
      WHERE {of} AND e.position = NEW.fact_position
        AND {event_is(kind)} AND {says("j.b", "node_uid", "n.node_uid")} AND {condition}
    )"""


def _not_brought_in(what: str) -> str:
    return fail(
        f"'tenure ledger: no event at position ' || NEW.fact_position || ' brings in {what}'",
        f"no event brings in {what}",
    )


def _not_changed(what: str) -> str:
    return fail(
        f"'tenure ledger: {what} change with an event that says so, at a later position than '"
        " || OLD.fact_position",
        f"{what} change with an event that says so",
    )


MACHINES_INSERT: Final = rule(
    "ledger_machines_insert",
    "ledger_machines",
    "INSERT",
    f"""
  IF NEW.machine_no <> {_NEXT.format(key="machine_no", table="ledger_machines")}
    OR EXISTS (
      SELECT 1 FROM ledger_machines AS m WHERE m.system_uuid <> ''
        AND (m.system_uuid, m.machine_id) = (NEW.system_uuid, NEW.machine_id)
    )
    OR (NEW.system_uuid = '') <> (NEW.machine_id = '')
    OR NOT {_MACHINE_SAYS}
  THEN
    {_not_brought_in("a machine")}
  END IF;""",
)
MACHINES_FACTS: Final = rule(
    "ledger_machines_facts",
    "ledger_machines",
    "UPDATE",
    f"""
  IF OLD.machine_no <> NEW.machine_no OR OLD.system_uuid <> '' OR NEW.system_uuid = ''
    OR NEW.machine_id = '' OR NEW.fact_position <= OLD.fact_position OR NOT {_MACHINE_SAYS}
    OR EXISTS (
      SELECT 1 FROM ledger_machines AS m
      WHERE (m.system_uuid, m.machine_id) = (NEW.system_uuid, NEW.machine_id)
    )
    OR NOT EXISTS (
      SELECT 1 FROM ledger_nodes AS n JOIN ledger_events AS e ON e.position = NEW.fact_position
      {BODY}
      WHERE n.machine_no = OLD.machine_no AND {says("j.b", "node_uid", "n.node_uid")}
    )
  THEN
    {_not_changed("facts of a machine")}
  END IF;""",
)
# A Node's own machine has no other Node: whoever tells no name stands alone on it.
_ALONE: Final = """EXISTS (
      SELECT 1 FROM ledger_nodes AS o JOIN ledger_machines AS m ON m.machine_no = o.machine_no
      WHERE o.machine_no = NEW.machine_no AND o.node_no <> NEW.node_no AND m.system_uuid = ''
    )"""
NODES_INSERT: Final = rule(
    "ledger_nodes_insert",
    "ledger_nodes",
    "INSERT",
    f"""
  IF NEW.node_no <> {_NEXT.format(key="node_no", table="ledger_nodes")}
    OR EXISTS (SELECT 1 FROM ledger_nodes WHERE node_uid = NEW.node_uid)
    OR NEW.moved_position IS NOT NULL OR NEW.lost_position IS NOT NULL
    OR {_ALONE} OR NOT ({_NODE_SAYS} OR {_NODE_SEEN})
  THEN
    {_not_brought_in("a node")}
  END IF;""",
)
# A Node stays on its machine for as long as it tells no other name.
_STAYS: Final = """(NEW.machine_no <> OLD.machine_no AND EXISTS (
      SELECT 1 FROM ledger_machines AS m WHERE m.machine_no = OLD.machine_no
        AND ('' IN (NEW.system_uuid, NEW.machine_id)
          OR (m.system_uuid, m.machine_id) = (NEW.system_uuid, NEW.machine_id))
    ))"""
NODES_FACTS: Final = rule(
    "ledger_nodes_facts",
    "ledger_nodes",
    "UPDATE OF node_no, node_uid, node_name, machine_no, system_uuid, machine_id, labels,"
    " cpu_milli, memory_bytes, cpu_ref_max, moved_position, fact_position",
    f"""
  IF NOT {same(["node_no", "node_uid"])}
    OR NEW.fact_position <= OLD.fact_position
    OR NEW.moved_position IS DISTINCT FROM (CASE
      WHEN NEW.machine_no = OLD.machine_no THEN OLD.moved_position ELSE NEW.fact_position END)
    OR {_STAYS} OR {_ALONE} OR NOT {_NODE_SAYS}
  THEN
    {_not_changed("facts of a node")}
  END IF;""",
)
_NOT_LOST: Final = fail(
    "'tenure ledger: no event at position ' || coalesce(NEW.lost_position, 0)"
    " || ' loses node ' || OLD.node_name",
    "no event loses this node",
)
NODES_LOST: Final = rule(
    "ledger_nodes_lost",
    "ledger_nodes",
    "UPDATE OF lost_position",
    f"""
  IF NOT (NEW.lost_position IS NULL AND NEW.fact_position > OLD.fact_position)
    AND (NEW.fact_position <> OLD.fact_position
      OR NOT EXISTS (
        SELECT 1 FROM ledger_events AS e {BODY}
        WHERE e.position = NEW.lost_position AND e.position > coalesce(OLD.lost_position, 0)
          AND e.position > OLD.fact_position AND {event_is("node.lost")}
          AND {says("j.b", "node_uid", "OLD.node_uid")}
      ))
  THEN
    {_NOT_LOST}
  END IF;""",
)


def _stand(told: str) -> str:
    """Return that the row is of the machine on which the Node's newest event finds it, and so."""
    return f"""EXISTS (
      SELECT 1 FROM ledger_nodes AS n JOIN ledger_events AS e ON e.position = n.fact_position
      {BODY}
      WHERE n.node_no = NEW.node_no AND n.machine_no = NEW.machine_no
        AND n.fact_position = NEW.fact_position AND {told}
    )"""


_STAND_TOLD: Final = f"""{event_is("node.inventoried")}
        AND {says("j.b", "boot_id", "NEW.boot_id")} AND NEW.by_agent = {{by_agent}}"""
_STAND_SEEN: Final = f"{event_is('pod.observed')} AND (NEW.boot_id, NEW.by_agent) = ('', 0)"
_BY_AGENT: Final = "(j.b->'by_agent' = 'true'::jsonb)::int"
STANDS_INSERT: Final = rule(
    "ledger_stands_insert",
    "ledger_stands",
    "INSERT",
    f"""
  IF EXISTS (
      SELECT 1 FROM ledger_stands WHERE node_no = NEW.node_no AND machine_no = NEW.machine_no
    )
    OR NOT {_stand(f"({_STAND_TOLD.format(by_agent=_BY_AGENT)} OR {_STAND_SEEN})")}
  THEN
    {_not_brought_in("a node on a machine")}
  END IF;""",
)
STANDS_FACTS: Final = rule(
    "ledger_stands_facts",
    "ledger_stands",
    "UPDATE",
    f"""
  IF NOT {same(["node_no", "machine_no"])} OR NEW.fact_position <= OLD.fact_position
    OR NOT {_stand(_STAND_TOLD.format(by_agent=f"greatest(OLD.by_agent, {_BY_AGENT})"))}
  THEN
    {_not_changed("facts of a node on a machine")}
  END IF;""",
)

_RECORD: Final = f"""{says("r.value", "device_type", "NEW.device_type")}
          AND {says("r.value", "minor", "NEW.minor")}
          AND {says("r.value", "model", "NEW.model")}
          AND {says_whether("r.value", "healthy", "NEW.healthy")}
          AND {says("r.value", "core_percent", "NEW.core_reported")}
          AND {says("r.value", "memory_bytes", "NEW.memory_reported")}
          AND {says_whether("r.value", "unique_id", "NEW.unique_id")}"""
_BORN_INVENTORIED: Final = _inventory_says(
    "NEW",
    f"""NEW.present = 1 AND EXISTS (
        SELECT 1 FROM {_entries("devices")}
        WHERE {_RECORD} AND {says("r.value", "device_id", "NEW.device_id")}
      )""",
)
_BORN_OBSERVED: Final = _event_says(
    "NEW",
    "pod.observed",
    f"""(NEW.present, NEW.healthy, NEW.model, NEW.core_reported, NEW.memory_reported,
        NEW.unique_id) = (0, 1, '', 0, 0, 0) AND EXISTS (
        SELECT 1 FROM {_entries("shares")}
        WHERE {says("r.value", "device_type", "NEW.device_type")}
          AND {says("r.value", "minor", "NEW.minor")}
          AND {says("r.value", "device_id", "NEW.device_id")}
      )""",
)
_NEGATIVE: Final = fail(
    f"'tenure ledger: ' || {card_of('NEW')} || ' has less than nothing: core_percent='"
    " || NEW.core_reported || ', memory_bytes=' || NEW.memory_reported",
    "a card has less than nothing",
)
_TWICE: Final = fail(
    f"'tenure ledger: ' || {card_of('NEW')} || ' is named twice: position=' || NEW.fact_position",
    "a card is named twice",
)
_COUNTERS: Final = [
    "core_used",
    "memory_used",
    "tenants",
    "exclusive_holders",
    "core_observed",
    "memory_observed",
    "observed_holders",
]
_CAPS: Final = ["core_cap", "memory_cap"]
_REPORTED: Final = ["core_reported", "memory_reported"]
DEVICES_INSERT: Final = rule(
    "ledger_devices_insert",
    "ledger_devices",
    "INSERT",
    f"""
  IF NEW.device_no <> {_NEXT.format(key="device_no", table="ledger_devices")}
    OR NOT {equal(_of_new(_COUNTERS), ["0"] * len(_COUNTERS))}
    OR NOT {equal(_of_new(_CAPS), _of_new(_REPORTED))}
    OR NOT ({_BORN_INVENTORIED} OR {_BORN_OBSERVED})
    OR NEW.machine_no <> (SELECT n.machine_no FROM ledger_nodes AS n WHERE n.node_no = NEW.node_no)
  THEN
    {_not_brought_in("a device")}
  ELSIF NEW.core_reported < 0 OR NEW.memory_reported < 0 THEN
    {_NEGATIVE}
  ELSIF EXISTS (
    SELECT 1 FROM ledger_devices AS d
    WHERE d.machine_no = NEW.machine_no AND d.device_type = NEW.device_type
      AND ((d.device_id = NEW.device_id AND d.device_id <> '')
        OR (d.node_no = NEW.node_no AND d.minor = NEW.minor AND (d.device_id = NEW.device_id
          OR d.present = 1 AND NEW.present = 1)))
  ) THEN
    {_TWICE}
  END IF;""",
)

_SAME_MACHINE: Final = "n.machine_no = OLD.machine_no"
_FOUND_AGAIN: Final = f"""NEW.present = 1 AND {_SAME_MACHINE} AND EXISTS (
        SELECT 1 FROM {_entries("devices")}
        WHERE {_RECORD} AND CASE
          WHEN OLD.device_id <> '' AND r.value->>'device_id' = OLD.device_id
          THEN NEW.device_id = OLD.device_id
          WHEN OLD.device_id = ''
          THEN NEW.minor = OLD.minor AND NEW.device_id = r.value->>'device_id'
          ELSE r.value->>'device_id' = '' AND OLD.present = 1
            AND NEW.minor = OLD.minor AND NEW.device_id = OLD.device_id
        END
      )"""
_WITHDRAWN: Final = f"""NEW.present = 0 AND OLD.present = 1
        AND (NEW.core_reported, NEW.memory_reported) = (0, 0)
        AND {same(["node_no", "minor", "device_id", "unique_id", "model", "healthy"])}"""
_GONE: Final = f"""{_WITHDRAWN} AND (n.machine_no <> OLD.machine_no OR NOT EXISTS (
        SELECT 1 FROM {_entries("devices")}
        WHERE {says("r.value", "device_type", "OLD.device_type")} AND CASE r.value->>'device_id'
          WHEN '' THEN {says("r.value", "minor", "OLD.minor")}
            AND (OLD.device_id = '' OR NOT EXISTS (
              SELECT 1 FROM ledger_devices AS d
              WHERE d.node_no = OLD.node_no AND d.device_type = OLD.device_type
                AND d.minor = OLD.minor AND d.device_id = ''
            ))
          ELSE r.value->>'device_id' = OLD.device_id
        END
      ))"""
_LOST: Final = f"""EXISTS (
      SELECT 1 FROM ledger_nodes AS n
      WHERE n.node_no = OLD.node_no AND n.lost_position = NEW.fact_position AND {_WITHDRAWN}
    )"""
_OTHER_FACTS: Final = [
    "node_no",
    "minor",
    "device_id",
    "unique_id",
    "model",
    "present",
    "core_reported",
    "memory_reported",
]
_HEALTH: Final = _event_says(
    "OLD",
    "device.health_changed",
    f"""{says("j.b", "device_type", "OLD.device_type")}
        AND {says_whether("j.b", "healthy", "NEW.healthy")}
        AND ((OLD.device_id <> '' AND {says("j.b", "device_id", "OLD.device_id")})
          OR ({says("j.b", "minor", "OLD.minor")}
            AND (OLD.device_id = '' OR j.b->>'device_id' = '')))
        AND {same(_OTHER_FACTS)}""",
    of="(n.node_no = OLD.node_no OR n.machine_no = OLD.machine_no)",
)
DEVICES_FACTS: Final = rule(
    "ledger_devices_facts",
    "ledger_devices",
    "UPDATE OF device_no, machine_no, node_no, device_type, minor, device_id, unique_id, model,"
    " present, healthy, core_reported, memory_reported, fact_position",
    f"""
  IF NOT {same(["device_no", "machine_no", "device_type"])}
    OR NEW.device_id <> OLD.device_id AND OLD.device_id <> ''
    OR NEW.node_no <> OLD.node_no AND OLD.device_id = ''
    OR NEW.fact_position <= OLD.fact_position
    OR NOT ({_inventory_says("NEW", f"(({_FOUND_AGAIN}) OR ({_GONE}))")} OR {_LOST} OR {_HEALTH})
  THEN
    {_not_changed("facts of a card")}
  ELSIF NEW.core_reported < 0 OR NEW.memory_reported < 0 THEN
    {_NEGATIVE}
  ELSIF EXISTS (
    SELECT 1 FROM ledger_devices AS d
    WHERE d.machine_no = OLD.machine_no AND d.device_type = OLD.device_type
      AND d.device_no <> OLD.device_no
      AND (d.device_id = NEW.device_id
          AND (d.device_id <> '' OR d.node_no = NEW.node_no AND d.minor = NEW.minor)
        OR (d.node_no = NEW.node_no AND d.minor = NEW.minor AND d.present = 1
          AND NEW.present = 1 AND EXISTS (
          SELECT 1 FROM ledger_events AS e {BODY}
          CROSS JOIN LATERAL {_entries("devices")}
          WHERE e.position = NEW.fact_position
            AND {says("r.value", "device_type", "OLD.device_type")}
            AND {says("r.value", "minor", "NEW.minor")}
            AND ({says("r.value", "device_id", "d.device_id")}
              OR (r.value->>'device_id' = '' AND d.device_no < OLD.device_no))
        )))
  ) THEN
    {_TWICE}
  END IF;""",
)

_NO_CHANGE_OF_HEALTH: Final = fail(
    "'tenure ledger: no event at position ' || NEW.position || ' is a change of health'",
    "no event is a change of health",
)
HEALTH_INSERT: Final = rule(
    "ledger_device_health_insert",
    "ledger_device_health",
    "INSERT",
    f"""
  IF EXISTS (
      SELECT 1 FROM ledger_device_health
      WHERE position = NEW.position AND device_no = NEW.device_no
    )
    OR NOT EXISTS (
      SELECT 1 FROM ledger_devices AS d JOIN ledger_events AS e ON e.position = d.fact_position
      {BODY}
      WHERE d.device_no = NEW.device_no AND e.position = NEW.position AND e.at_us = NEW.at_us
        AND CASE
          WHEN {event_is("device.health_changed")}
          THEN NEW.healthy = d.healthy AND {says("j.b", "reason", "NEW.reason")}
          WHEN {event_is("node.lost")} THEN (NEW.healthy, NEW.reason) = (0, 'lost')
          WHEN {event_is("node.inventoried")}
          THEN NEW.healthy = (d.healthy = 1 AND d.present = 1)::int AND CASE d.present
            WHEN 1 THEN NEW.reason IN ('returned', 'inventory') ELSE NEW.reason = 'gone' END
        END
    )
  THEN
    {_NO_CHANGE_OF_HEALTH}
  END IF;""",
)

_CPU_SAYS: Final = f"""(NEW.present = 1
        AND {says("j.b", "cpu_ref_count_max", "NEW.ref_reported")} AND EXISTS (
        SELECT 1 FROM {_entries("cpus")}
        WHERE {says("r.value", "id", "NEW.cpu")} AND {says("r.value", "core", "NEW.core")}
          AND {says("r.value", "socket", "NEW.socket")} AND {says("r.value", "numa", "NEW.numa")}
      ))"""
_CPU_UNNAMED: Final = """(NEW.present, NEW.ref_reported, NEW.core, NEW.socket, NEW.numa)
        = (0, 0, -1, -1, -1)"""
_CPU_GONE: Final = f"""({_CPU_UNNAMED} AND {same(["node_no"])}
        AND (n.machine_no <> OLD.machine_no OR NOT EXISTS (
        SELECT 1 FROM {_entries("cpus")} WHERE {says("r.value", "id", "NEW.cpu")}
      )))"""
CPUS_INSERT: Final = rule(
    "ledger_cpus_insert",
    "ledger_cpus",
    "INSERT",
    f"""
  IF EXISTS (SELECT 1 FROM ledger_cpus WHERE machine_no = NEW.machine_no AND cpu = NEW.cpu)
    OR NEW.machine_no <> (SELECT n.machine_no FROM ledger_nodes AS n WHERE n.node_no = NEW.node_no)
    OR (NEW.ref_used, NEW.ref_observed, NEW.ref_max)
      IS DISTINCT FROM (0, 0, NEW.ref_reported)
    OR NOT ({_inventory_says("NEW", _CPU_SAYS)}
      OR {_event_says("NEW", "pod.observed", _CPU_UNNAMED)})
  THEN
    {_not_brought_in("a CPU")}
  END IF;""",
)
CPUS_FACTS: Final = rule(
    "ledger_cpus_facts",
    "ledger_cpus",
    "UPDATE OF core, socket, numa, present, ref_reported, machine_no, node_no, cpu, fact_position",
    f"""
  IF NOT {same(["machine_no", "cpu"])} OR NEW.fact_position <= OLD.fact_position
    OR NOT {_inventory_says("NEW", f"(({_SAME_MACHINE} AND {_CPU_SAYS}) OR {_CPU_GONE})")}
  THEN
    {_not_changed("facts of a CPU")}
  END IF;""",
)
_CPU_COUNT: Final = fail(
    "'tenure ledger: what is used of a CPU is the count of its holders: '"
    f" || {node_name('OLD')} || '/cpu/' || OLD.cpu",
    "what is used of a CPU is the count of its holders",
)
CPUS_COUNTERS: Final = rule(
    "ledger_cpus_counters",
    "ledger_cpus",
    "UPDATE OF ref_max, ref_used, ref_observed",
    f"""
  SELECT count(*) FILTER (WHERE kind = 'granted'), count(*) FILTER (WHERE kind = 'observed')
  INTO granted, observed FROM ledger_cpu_holdings
  WHERE machine_no = NEW.machine_no AND cpu = NEW.cpu AND closed_at_us IS NULL;
  IF NEW.ref_max <> greatest(NEW.ref_reported, NEW.ref_used)
    OR (NEW.ref_used, NEW.ref_observed) IS DISTINCT FROM (granted, observed)
  THEN
    {_CPU_COUNT}
  END IF;""",
    variables="granted bigint; observed bigint;",
)

RULES: Final = (
    *MACHINES_INSERT,
    *MACHINES_FACTS,
    *NODES_INSERT,
    *NODES_FACTS,
    *NODES_LOST,
    *STANDS_INSERT,
    *STANDS_FACTS,
    *DEVICES_INSERT,
    *DEVICES_FACTS,
    *HEALTH_INSERT,
    *CPUS_INSERT,
    *CPUS_FACTS,
    *CPUS_COUNTERS,
)
"""These rules in the order in which they are made."""
