"""
Rules for what an inventory says: machines, nodes, where they stand, devices, health, CPUs.

A row is born or changes only as the body of its event says. A node's row moves with every inventory
of that node, so the inventory that its devices and CPUs must agree with is the one its
`fact_position` names; a later event is one beyond the position that the row has.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.texts import card_of, fail, node_name, same

_NEXT: Final = "(SELECT coalesce(max({key}), 0) + 1 FROM {table})"


def _body(path: str) -> str:
    return f"json_extract(e.body, '$.{path}')"


def _entry(path: str) -> str:
    return f"json_extract(r.value, '$.{path}')"


_NODE_SAYS: Final = f"""EXISTS (
    SELECT 1 FROM ledger_events AS e
    JOIN ledger_machines AS m ON m.machine_no = NEW.machine_no
    WHERE e.position = NEW.fact_position AND e.event_type LIKE 'node.inventoried.v%'
      AND (NEW.node_uid, NEW.node_name, NEW.system_uuid, NEW.machine_id, NEW.labels,
    NEW.cpu_milli, NEW.memory_bytes, NEW.cpu_ref_max) IS ({_body("node_uid")},
    {_body("node_name")}, {_body("system_uuid")}, {_body("machine_id")}, {_body("labels")},
    {_body("cpu_milli")}, {_body("memory_bytes")}, {_body("cpu_ref_count_max")})
      AND NEW.lost_position IS NULL
      AND (NEW.system_uuid = '' OR NEW.machine_id = ''
        OR (m.system_uuid, m.machine_id) IS (NEW.system_uuid, NEW.machine_id))
  )"""
_NODE_SEEN: Final = f"""EXISTS (
    SELECT 1 FROM ledger_events AS e
    WHERE e.position = NEW.fact_position AND e.event_type LIKE 'pod.observed.v%'
      AND (NEW.node_uid, NEW.node_name) IS ({_body("node_uid")}, {_body("node_name")})
      AND (NEW.system_uuid, NEW.machine_id, NEW.labels, NEW.cpu_milli, NEW.memory_bytes,
    NEW.cpu_ref_max) IS ('', '', '{{}}', 0, 0, 0)
  )"""
_MACHINE_SAYS: Final = f"""EXISTS (
    SELECT 1 FROM ledger_events AS e
    WHERE e.position = NEW.fact_position AND CASE NEW.system_uuid
      WHEN '' THEN e.event_type LIKE 'pod.observed.v%' OR (e.event_type LIKE 'node.inventoried.v%'
        AND '' IN ({_body("system_uuid")}, {_body("machine_id")}))
      ELSE e.event_type LIKE 'node.inventoried.v%'
        AND (NEW.system_uuid, NEW.machine_id) IS ({_body("system_uuid")}, {_body("machine_id")})
    END
  )"""


def _inventory_says(row: str, condition: str) -> str:
    """Return that the newest inventory of the row's node is the row's event, and says so."""
    return f"""EXISTS (
    SELECT 1 FROM ledger_nodes AS n JOIN ledger_events AS e ON e.position = n.fact_position
    WHERE n.node_no = {row}.node_no AND n.fact_position = NEW.fact_position
      AND e.event_type LIKE 'node.inventoried.v%' AND {condition}
  )"""


def _event_says(row: str, kind: str, condition: str, of: str = "") -> str:
    """
    Return that the row's event is of this type, names the row's node, and says so.

    `of` is what else the node `n` that it names may be.
    """
    of = of or f"n.node_no = {row}.node_no"
    return f"""EXISTS (
    SELECT 1 FROM ledger_nodes AS n, ledger_events AS e
    WHERE {of} AND e.position = NEW.fact_position
      AND e.event_type LIKE '{kind}.v%' AND {_body("node_uid")} = n.node_uid
      AND {condition}
  )"""


def _not_brought_in(what: str) -> str:
    return fail(
        f"'tenure ledger: no event at position ' || NEW.fact_position || ' brings in {what}'",
        f"tenure ledger: no event brings in {what}",
    )


def _not_changed(what: str) -> str:
    return fail(
        f"'tenure ledger: {what} change with an event that says so, at a later position than '"
        " || OLD.fact_position",
        f"tenure ledger: {what} change with an event that says so",
    )


MACHINES_INSERT: Final = f"""
CREATE TRIGGER ledger_machines_insert BEFORE INSERT ON ledger_machines
WHEN NEW.machine_no <> {_NEXT.format(key="machine_no", table="ledger_machines")}
  OR EXISTS (
    SELECT 1 FROM ledger_machines
    WHERE system_uuid <> '' AND (system_uuid, machine_id) IS (NEW.system_uuid, NEW.machine_id)
  )
  OR (NEW.system_uuid = '') <> (NEW.machine_id = '')
  OR NOT {_MACHINE_SAYS}
BEGIN
  SELECT {_not_brought_in("a machine")};
END
"""
MACHINES_FACTS: Final = f"""
CREATE TRIGGER ledger_machines_facts BEFORE UPDATE ON ledger_machines
WHEN OLD.machine_no <> NEW.machine_no OR OLD.system_uuid <> '' OR NEW.system_uuid = ''
  OR NEW.machine_id = '' OR NEW.fact_position <= OLD.fact_position OR NOT {_MACHINE_SAYS}
  OR EXISTS (
    SELECT 1 FROM ledger_machines
    WHERE (system_uuid, machine_id) IS (NEW.system_uuid, NEW.machine_id)
  )
  OR NOT EXISTS (
    SELECT 1 FROM ledger_nodes AS n JOIN ledger_events AS e ON e.position = NEW.fact_position
    WHERE n.machine_no = OLD.machine_no AND n.node_uid = {_body("node_uid")}
  )
BEGIN
  SELECT {_not_changed("facts of a machine")};
END
"""
# A Node's own machine has no other Node: whoever tells no name stands alone on it.
_ALONE: Final = """EXISTS (
    SELECT 1 FROM ledger_nodes AS o JOIN ledger_machines AS m ON m.machine_no = o.machine_no
    WHERE o.machine_no = NEW.machine_no AND o.node_no <> NEW.node_no AND m.system_uuid = ''
  )"""
NODES_INSERT: Final = f"""
CREATE TRIGGER ledger_nodes_insert BEFORE INSERT ON ledger_nodes
WHEN NEW.node_no <> {_NEXT.format(key="node_no", table="ledger_nodes")}
  OR EXISTS (SELECT 1 FROM ledger_nodes WHERE node_uid = NEW.node_uid)
  OR (NEW.moved_position, NEW.lost_position) IS NOT (NULL, NULL)
  OR {_ALONE} OR NOT ({_NODE_SAYS} OR {_NODE_SEEN})
BEGIN
  SELECT {_not_brought_in("a node")};
END
"""
# A Node stays on its machine for as long as it tells no other name.
_STAYS: Final = """(NEW.machine_no <> OLD.machine_no AND EXISTS (
    SELECT 1 FROM ledger_machines AS m WHERE m.machine_no = OLD.machine_no
      AND ('' IN (NEW.system_uuid, NEW.machine_id)
        OR (m.system_uuid, m.machine_id) IS (NEW.system_uuid, NEW.machine_id))
  ))"""
NODES_FACTS: Final = f"""
CREATE TRIGGER ledger_nodes_facts BEFORE UPDATE OF rowid, _rowid_, oid, node_no, node_uid,
  node_name, machine_no, system_uuid, machine_id, labels, cpu_milli, memory_bytes, cpu_ref_max,
  moved_position, fact_position
ON ledger_nodes
WHEN NOT {same(["node_no", "node_uid"])} OR NEW.fact_position <= OLD.fact_position
  OR NEW.moved_position IS NOT CASE
    WHEN NEW.machine_no = OLD.machine_no THEN OLD.moved_position ELSE NEW.fact_position END
  OR {_STAYS} OR {_ALONE} OR NOT {_NODE_SAYS}
BEGIN
  SELECT {_not_changed("facts of a node")};
END
"""


def _stand(told: str) -> str:
    """Return that the row is of the machine on which the Node's newest event finds it, and so."""
    return f"""EXISTS (
    SELECT 1 FROM ledger_nodes AS n JOIN ledger_events AS e ON e.position = n.fact_position
    WHERE n.node_no = NEW.node_no AND n.machine_no = NEW.machine_no
      AND n.fact_position = NEW.fact_position AND {told}
  )"""


_STAND_TOLD: Final = f"""e.event_type LIKE 'node.inventoried.v%'
      AND NEW.boot_id = {_body("boot_id")} AND NEW.by_agent = {{by_agent}}"""
_STAND_SEEN: Final = (
    "e.event_type LIKE 'pod.observed.v%' AND (NEW.boot_id, NEW.by_agent) IS ('', 0)"
)
STANDS_INSERT: Final = f"""
CREATE TRIGGER ledger_stands_insert BEFORE INSERT ON ledger_stands
WHEN EXISTS (
    SELECT 1 FROM ledger_stands WHERE node_no = NEW.node_no AND machine_no = NEW.machine_no
  )
  OR NOT {_stand(f"({_STAND_TOLD.format(by_agent=_body('by_agent'))} OR {_STAND_SEEN})")}
BEGIN
  SELECT {_not_brought_in("a node on a machine")};
END
"""
STANDS_FACTS: Final = f"""
CREATE TRIGGER ledger_stands_facts BEFORE UPDATE ON ledger_stands
WHEN NOT {same(["node_no", "machine_no"])} OR NEW.fact_position <= OLD.fact_position
  OR NOT {_stand(_STAND_TOLD.format(by_agent=f"max(OLD.by_agent, {_body('by_agent')})"))}
BEGIN
  SELECT {_not_changed("facts of a node on a machine")};
END
"""

NODES_LOST: Final = f"""
CREATE TRIGGER ledger_nodes_lost BEFORE UPDATE OF lost_position ON ledger_nodes
WHEN NOT (NEW.lost_position IS NULL AND NEW.fact_position > OLD.fact_position)
  AND (NEW.fact_position <> OLD.fact_position
    OR NOT EXISTS (
      SELECT 1 FROM ledger_events AS e
      WHERE e.position = NEW.lost_position AND e.position > coalesce(OLD.lost_position, 0)
        AND e.position > OLD.fact_position AND e.event_type LIKE 'node.lost.v%'
        AND {_body("node_uid")} = OLD.node_uid
    ))
BEGIN
  SELECT {
    fail(
        "'tenure ledger: no event at position ' || coalesce(NEW.lost_position, 0)"
        " || ' loses node ' || OLD.node_name",
        "tenure ledger: no event loses this node",
    )
};
END
"""

_RECORD: Final = f"""{_entry("device_type")} = NEW.device_type AND {_entry("minor")} = NEW.minor
        AND {_entry("model")} = NEW.model AND {_entry("healthy")} = NEW.healthy
        AND {_entry("core_percent")} = NEW.core_reported
        AND {_entry("memory_bytes")} = NEW.memory_reported
        AND {_entry("unique_id")} = NEW.unique_id"""
_BORN_INVENTORIED: Final = _inventory_says(
    "NEW",
    f"""NEW.present = 1 AND EXISTS (
        SELECT 1 FROM json_each(e.body, '$.devices') AS r
        WHERE {_RECORD} AND {_entry("device_id")} = NEW.device_id
      )""",
)
_BORN_OBSERVED: Final = _event_says(
    "NEW",
    "pod.observed",
    f"""(NEW.present, NEW.healthy, NEW.model, NEW.core_reported, NEW.memory_reported,
        NEW.unique_id) IS (0, 1, '', 0, 0, 0) AND EXISTS (
        SELECT 1 FROM json_each(e.body, '$.shares') AS r
        WHERE ({_entry("device_type")}, {_entry("minor")}, {_entry("device_id")})
          IS (NEW.device_type, NEW.minor, NEW.device_id)
      )""",
)
_NEGATIVE: Final = fail(
    f"'tenure ledger: ' || {card_of('NEW')} || ' has less than nothing: core_percent='"
    " || NEW.core_reported || ', memory_bytes=' || NEW.memory_reported",
    "tenure ledger: a card has less than nothing",
)
_TWICE: Final = fail(
    f"'tenure ledger: ' || {card_of('NEW')} || ' is named twice: position=' || NEW.fact_position",
    "tenure ledger: a card is named twice",
)
DEVICES_INSERT: Final = f"""
CREATE TRIGGER ledger_devices_insert BEFORE INSERT ON ledger_devices
BEGIN
  SELECT CASE
    WHEN NEW.device_no <> {_NEXT.format(key="device_no", table="ledger_devices")}
      OR (NEW.core_used, NEW.memory_used, NEW.tenants, NEW.exclusive_holders, NEW.core_observed,
    NEW.memory_observed, NEW.observed_holders) IS NOT (0, 0, 0, 0, 0, 0, 0)
      OR (NEW.core_cap, NEW.memory_cap) IS NOT (NEW.core_reported, NEW.memory_reported)
      OR NOT ({_BORN_INVENTORIED} OR {_BORN_OBSERVED})
      OR NEW.machine_no <> (SELECT machine_no FROM ledger_nodes WHERE node_no = NEW.node_no)
    THEN {_not_brought_in("a device")}
    WHEN NEW.core_reported < 0 OR NEW.memory_reported < 0 THEN {_NEGATIVE}
    WHEN EXISTS (
      SELECT 1 FROM ledger_devices AS d
      WHERE d.machine_no = NEW.machine_no AND d.device_type = NEW.device_type
        AND ((d.device_id = NEW.device_id AND d.device_id <> '')
          OR (d.node_no = NEW.node_no AND d.minor = NEW.minor AND (d.device_id = NEW.device_id
            OR d.present = 1 AND NEW.present = 1)))
    )
    THEN {_TWICE}
  END;
END
"""

_SAME_MACHINE: Final = "n.machine_no = OLD.machine_no"
_FOUND_AGAIN: Final = f"""NEW.present = 1 AND {_SAME_MACHINE} AND EXISTS (
        SELECT 1 FROM json_each(e.body, '$.devices') AS r
        WHERE {_RECORD} AND CASE
          WHEN OLD.device_id <> '' AND {_entry("device_id")} = OLD.device_id
          THEN NEW.device_id = OLD.device_id
          WHEN OLD.device_id = ''
          THEN NEW.minor = OLD.minor AND NEW.device_id = {_entry("device_id")}
          ELSE {_entry("device_id")} = '' AND OLD.present = 1
            AND NEW.minor = OLD.minor AND NEW.device_id = OLD.device_id
        END
      )"""
_WITHDRAWN: Final = f"""NEW.present = 0 AND OLD.present = 1
        AND (NEW.core_reported, NEW.memory_reported) IS (0, 0)
        AND {same(["node_no", "minor", "device_id", "unique_id", "model", "healthy"])}"""
_GONE: Final = f"""{_WITHDRAWN} AND (n.machine_no <> OLD.machine_no OR NOT EXISTS (
        SELECT 1 FROM json_each(e.body, '$.devices') AS r
        WHERE {_entry("device_type")} = OLD.device_type AND CASE {_entry("device_id")}
          WHEN '' THEN {_entry("minor")} = OLD.minor AND (OLD.device_id = '' OR NOT EXISTS (
            SELECT 1 FROM ledger_devices AS d
            WHERE d.node_no = OLD.node_no AND d.device_type = OLD.device_type
              AND d.minor = OLD.minor AND d.device_id = ''
          ))
          ELSE {_entry("device_id")} = OLD.device_id
        END
      ))"""
_LOST: Final = f"""EXISTS (
    SELECT 1 FROM ledger_nodes AS n
    WHERE n.node_no = OLD.node_no AND n.lost_position = NEW.fact_position AND {_WITHDRAWN}
  )"""
_BUT_HEALTH: Final = [
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
    f"""{_body("device_type")} = OLD.device_type AND {_body("healthy")} = NEW.healthy
      AND ((OLD.device_id <> '' AND {_body("device_id")} = OLD.device_id)
        OR ({_body("minor")} = OLD.minor AND (OLD.device_id = '' OR {_body("device_id")} = '')))
      AND {same(_BUT_HEALTH)}""",
    of="(n.node_no = OLD.node_no OR n.machine_no = OLD.machine_no)",
)
"""Every Node of the machine may tell of it: the card is the machine's."""
# A key that is the rowid has these names too, and UPDATE OF goes by the name that was written.
DEVICES_FACTS: Final = f"""
CREATE TRIGGER ledger_devices_facts BEFORE UPDATE OF device_no, rowid, _rowid_, oid, machine_no,
  node_no, device_type, minor, device_id, unique_id, model, present, healthy, core_reported,
  memory_reported, fact_position
ON ledger_devices
BEGIN
  SELECT CASE
    WHEN NOT {same(["device_no", "machine_no", "device_type"])}
      OR NEW.device_id <> OLD.device_id AND OLD.device_id <> ''
      OR NEW.node_no <> OLD.node_no AND OLD.device_id = ''
      OR NEW.fact_position <= OLD.fact_position
      OR NOT ({_inventory_says("NEW", f"(({_FOUND_AGAIN}) OR ({_GONE}))")} OR {_LOST} OR {_HEALTH})
    THEN {_not_changed("facts of a card")}
    WHEN NEW.core_reported < 0 OR NEW.memory_reported < 0 THEN {_NEGATIVE}
    WHEN EXISTS (
      SELECT 1 FROM ledger_devices AS d
      WHERE d.machine_no = OLD.machine_no AND d.device_type = OLD.device_type
        AND d.device_no <> OLD.device_no
        AND (d.device_id = NEW.device_id
            AND (d.device_id <> '' OR d.node_no = NEW.node_no AND d.minor = NEW.minor)
          OR (d.node_no = NEW.node_no AND d.minor = NEW.minor AND d.present = 1
            AND NEW.present = 1 AND EXISTS (
            SELECT 1 FROM ledger_events AS e, json_each(e.body, '$.devices') AS r
            WHERE e.position = NEW.fact_position
              AND {_entry("device_type")} = OLD.device_type AND {_entry("minor")} = NEW.minor
              AND ({_entry("device_id")} = d.device_id
                OR ({_entry("device_id")} = '' AND d.device_no < OLD.device_no))
          )))
    )
    THEN {_TWICE}
  END;
END
"""

HEALTH_INSERT: Final = f"""
CREATE TRIGGER ledger_device_health_insert BEFORE INSERT ON ledger_device_health
WHEN EXISTS (
    SELECT 1 FROM ledger_device_health
    WHERE position = NEW.position AND device_no = NEW.device_no
  )
  OR NOT EXISTS (
    SELECT 1 FROM ledger_devices AS d JOIN ledger_events AS e ON e.position = d.fact_position
    WHERE d.device_no = NEW.device_no AND e.position = NEW.position AND e.at_us = NEW.at_us
      AND CASE
        WHEN e.event_type LIKE 'device.health_changed.v%'
        THEN NEW.healthy = d.healthy AND NEW.reason = {_body("reason")}
        WHEN e.event_type LIKE 'node.lost.v%'
        THEN (NEW.healthy, NEW.reason) IS (0, 'lost')
        WHEN e.event_type LIKE 'node.inventoried.v%'
        THEN NEW.healthy = (d.healthy AND d.present) AND CASE d.present
          WHEN 1 THEN NEW.reason IN ('returned', 'inventory') ELSE NEW.reason = 'gone' END
      END
  )
BEGIN
  SELECT {
    fail(
        "'tenure ledger: no event at position ' || NEW.position || ' is a change of health'",
        "tenure ledger: no event is a change of health",
    )
};
END
"""

_CPU_RECORD: Final = f"""({_entry("id")}, {_entry("core")}, {_entry("socket")}, {_entry("numa")})
          IS (NEW.cpu, NEW.core, NEW.socket, NEW.numa)"""
_CPU_SAYS: Final = f"""(NEW.present = 1 AND NEW.ref_reported = {_body("cpu_ref_count_max")}
        AND EXISTS (
        SELECT 1 FROM json_each(e.body, '$.cpus') AS r WHERE {_CPU_RECORD}
      ))"""
_CPU_UNNAMED: Final = """(NEW.present, NEW.ref_reported, NEW.core, NEW.socket, NEW.numa)
        IS (0, 0, -1, -1, -1)"""
_CPU_GONE: Final = f"""({_CPU_UNNAMED} AND {same(["node_no"])}
        AND (n.machine_no <> OLD.machine_no OR NOT EXISTS (
        SELECT 1 FROM json_each(e.body, '$.cpus') AS r WHERE {_entry("id")} = NEW.cpu
      )))"""
CPUS_INSERT: Final = f"""
CREATE TRIGGER ledger_cpus_insert BEFORE INSERT ON ledger_cpus
WHEN EXISTS (SELECT 1 FROM ledger_cpus WHERE machine_no = NEW.machine_no AND cpu = NEW.cpu)
  OR NEW.machine_no <> (SELECT machine_no FROM ledger_nodes WHERE node_no = NEW.node_no)
  OR (NEW.ref_used, NEW.ref_observed, NEW.ref_max) IS NOT (0, 0, NEW.ref_reported)
  OR NOT ({_inventory_says("NEW", _CPU_SAYS)} OR {_event_says("NEW", "pod.observed", _CPU_UNNAMED)})
BEGIN
  SELECT {_not_brought_in("a CPU")};
END
"""
CPUS_FACTS: Final = f"""
CREATE TRIGGER ledger_cpus_facts BEFORE UPDATE OF core, socket, numa, present, ref_reported,
  machine_no, node_no, cpu, fact_position
ON ledger_cpus
WHEN NOT {same(["machine_no", "cpu"])} OR NEW.fact_position <= OLD.fact_position
  OR NOT {_inventory_says("NEW", f"(({_SAME_MACHINE} AND {_CPU_SAYS}) OR {_CPU_GONE})")}
BEGIN
  SELECT {_not_changed("facts of a CPU")};
END
"""
CPUS_COUNTERS: Final = f"""
CREATE TRIGGER ledger_cpus_counters BEFORE UPDATE OF ref_max, ref_used, ref_observed
ON ledger_cpus
WHEN NEW.ref_max <> max(NEW.ref_reported, NEW.ref_used)
  OR (NEW.ref_used, NEW.ref_observed) IS NOT (
    SELECT count(CASE kind WHEN 'granted' THEN 1 END), count(CASE kind WHEN 'observed' THEN 1 END)
    FROM ledger_cpu_holdings
    WHERE machine_no = NEW.machine_no AND cpu = NEW.cpu AND closed_at_us IS NULL
  )
BEGIN
  SELECT {
    fail(
        "'tenure ledger: what is used of a CPU is the count of its holders: '"
        f" || {node_name('OLD')} || '/cpu/' || OLD.cpu",
        "tenure ledger: what is used of a CPU is the count of its holders",
    )
};
END
"""

RULES: Final = (
    MACHINES_INSERT,
    MACHINES_FACTS,
    NODES_INSERT,
    NODES_FACTS,
    NODES_LOST,
    STANDS_INSERT,
    STANDS_FACTS,
    DEVICES_INSERT,
    DEVICES_FACTS,
    HEALTH_INSERT,
    CPUS_INSERT,
    CPUS_FACTS,
    CPUS_COUNTERS,
)
"""These rules in the order in which they are made."""
