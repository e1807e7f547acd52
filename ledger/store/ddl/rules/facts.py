"""
Rules for what an inventory says: machines, nodes, where they stand, devices, health, CPUs.

A row is born or changes only as the body of its event says. A node's row moves with every inventory
of that node, so the inventory that its devices and CPUs must agree with is the one its
`fact_position` names; a later event is one beyond the position that the row has.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl.rules import rule


def _next(table: str, key: str) -> str:
    return f"(SELECT coalesce(max({key}), 0) + 1 FROM {table})"


def _says(value: str, *fields: str) -> str:
    """Return that fields have what the columns of NEW have that are called so."""
    return " AND ".join(f"$says({value}, {each}, NEW.{each})" for each in fields)


_INVENTORIED: Final = rule.event_is("node.inventoried")
_OBSERVING: Final = ("pod.observed", "claim.observed")
_OBSERVED: Final = rule.event_is(*_OBSERVING)
_EVENT: Final = "ledger_events AS e $body(e)"
_OWN_EVENT: Final = "JOIN ledger_events AS e ON e.position = n.fact_position $body(e)"
_NODE_SAYS: Final = f"""EXISTS (
    SELECT 1 FROM {_EVENT} JOIN ledger_machines AS m ON m.machine_no = NEW.machine_no
    WHERE e.position = NEW.fact_position AND {_INVENTORIED} AND NEW.lost_position IS NULL
      AND {_says("e.body", "node_uid", "node_name", "system_uuid", "machine_id")}
      AND $json(e.body, labels) = NEW.labels AND {_says("e.body", "cpu_milli", "memory_bytes")}
      AND $says(e.body, cpu_ref_count_max, NEW.cpu_ref_max)
      AND (NEW.system_uuid = '' OR NEW.machine_id = ''
        OR (m.system_uuid, m.machine_id) = (NEW.system_uuid, NEW.machine_id))
  )"""
_NODE_SEEN: Final = f"""EXISTS (
    SELECT 1 FROM {_EVENT}
    WHERE e.position = NEW.fact_position AND {_OBSERVED}
      AND {_says("e.body", "node_uid", "node_name")}
      AND (NEW.system_uuid, NEW.machine_id, NEW.labels, NEW.cpu_milli, NEW.memory_bytes,
        NEW.cpu_ref_max) = ('', '', '{{}}', 0, 0, 0)
  )"""
_MACHINE_SAYS: Final = f"""EXISTS (
    SELECT 1 FROM {_EVENT}
    WHERE e.position = NEW.fact_position AND CASE NEW.system_uuid
      WHEN '' THEN {_OBSERVED} OR ({_INVENTORIED}
        AND '' IN ($text(e.body, system_uuid), $text(e.body, machine_id)))
      ELSE {_INVENTORIED} AND {_says("e.body", "system_uuid", "machine_id")}
    END
  )"""


def _inventory_says(condition: str) -> str:
    """Return that the newest inventory of the row's node is the row's event, and says so."""
    return f"""EXISTS (
    SELECT 1 FROM ledger_nodes AS n {_OWN_EVENT}
    WHERE n.node_no = NEW.node_no AND n.fact_position = NEW.fact_position
      AND {_INVENTORIED} AND {condition}
  )"""


def _event_says(row: str, kinds: tuple[str, ...], condition: str, of: str = "") -> str:
    """
    Return that the row's event is of these types, names the row's node, and says so.

    `of`: what else the node `n` may be.
    """
    of = of or f"n.node_no = {row}.node_no"
    return f"""EXISTS (
    SELECT 1 FROM ledger_nodes AS n CROSS JOIN {_EVENT}
    WHERE {of} AND e.position = NEW.fact_position AND {rule.event_is(*kinds)}
      AND $says(e.body, node_uid, n.node_uid) AND {condition}
  )"""


def _not_brought_in(what: str) -> rule.RefusalWords:
    return rule.no_event(f"brings in {what}", at="NEW.fact_position")


def _not_changed(what: str) -> rule.RefusalWords:
    change = f"{what} change with an event that says so"
    return rule.said(f"{change}, at a later position than {{OLD.fact_position}}", change)


_LATER: Final = "NEW.fact_position <= OLD.fact_position"
_KNOWN_MACHINE: Final = """EXISTS (
    SELECT 1 FROM ledger_machines AS m WHERE m.system_uuid <> ''
      AND (m.system_uuid, m.machine_id) = (NEW.system_uuid, NEW.machine_id)
  )"""
# A machine gets its name from a Node that stands on it.
_NODE_ON_IT: Final = """EXISTS (
    SELECT 1 FROM ledger_nodes AS n JOIN ledger_events AS e ON e.position = NEW.fact_position
    $body(e)
    WHERE n.machine_no = OLD.machine_no AND $says(e.body, node_uid, n.node_uid)
  )"""
_MACHINES: Final = (
    rule.rule(
        "ledger_machines_insert",
        "ledger_machines",
        "INSERT",
        rule.Case(
            f"NEW.machine_no <> {_next('ledger_machines', 'machine_no')} OR {_KNOWN_MACHINE}"
            f" OR (NEW.system_uuid = '') <> (NEW.machine_id = '') OR NOT {_MACHINE_SAYS}",
            _not_brought_in("a machine"),
        ),
    ),
    rule.rule(
        "ledger_machines_facts",
        "ledger_machines",
        "UPDATE",
        rule.Case(
            "OLD.machine_no <> NEW.machine_no OR OLD.system_uuid <> ''"
            f" OR NEW.system_uuid = '' OR NEW.machine_id = '' OR {_LATER}"
            f" OR NOT {_MACHINE_SAYS} OR {_KNOWN_MACHINE} OR NOT {_NODE_ON_IT}",
            _not_changed("facts of a machine"),
        ),
    ),
)

# A Node's own machine has no other Node: whoever tells no name stands alone on it.
_ALONE: Final = """EXISTS (
    SELECT 1 FROM ledger_nodes AS o JOIN ledger_machines AS m ON m.machine_no = o.machine_no
    WHERE o.machine_no = NEW.machine_no AND o.node_no <> NEW.node_no AND m.system_uuid = ''
  )"""
# A Node stays on its machine for as long as it tells no other name.
_STAYS: Final = """(NEW.machine_no <> OLD.machine_no AND EXISTS (
    SELECT 1 FROM ledger_machines AS m WHERE m.machine_no = OLD.machine_no
      AND ('' IN (NEW.system_uuid, NEW.machine_id)
        OR (m.system_uuid, m.machine_id) = (NEW.system_uuid, NEW.machine_id))
  ))"""
_NODE_LOST: Final = f"""EXISTS (
    SELECT 1 FROM {_EVENT}
    WHERE e.position = NEW.lost_position AND e.position > coalesce(OLD.lost_position, 0)
      AND e.position > OLD.fact_position AND {rule.event_is("node.lost")}
      AND $says(e.body, node_uid, OLD.node_uid)
  )"""
_NODES: Final = (
    rule.rule(
        "ledger_nodes_insert",
        "ledger_nodes",
        "INSERT",
        rule.Case(
            f"""NEW.node_no <> {_next("ledger_nodes", "node_no")}
  OR EXISTS (SELECT 1 FROM ledger_nodes WHERE node_uid = NEW.node_uid)
  OR NEW.moved_position IS NOT NULL OR NEW.lost_position IS NOT NULL
  OR {_ALONE} OR NOT ({_NODE_SAYS} OR {_NODE_SEEN})""",
            _not_brought_in("a node"),
        ),
    ),
    rule.rule(
        "ledger_nodes_facts",
        "ledger_nodes",
        "UPDATE",
        rule.Case(
            f"""NOT {rule.unchanged(["node_no", "node_uid"])} OR {_LATER}
  OR $differ(NEW.moved_position, (CASE WHEN NEW.machine_no = OLD.machine_no
    THEN OLD.moved_position ELSE NEW.fact_position END))
  OR {_STAYS} OR {_ALONE} OR NOT {_NODE_SAYS}""",
            _not_changed("facts of a node"),
        ),
        columns=(
            *("node_no", "node_uid", "node_name", "machine_no", "system_uuid", "machine_id"),
            *("labels", "cpu_milli", "memory_bytes", "cpu_ref_max", "moved_position"),
            "fact_position",
        ),
    ),
    rule.rule(
        "ledger_nodes_lost",
        "ledger_nodes",
        "UPDATE",
        rule.Case(
            "NOT (NEW.lost_position IS NULL AND NEW.fact_position > OLD.fact_position)"
            f" AND (NEW.fact_position <> OLD.fact_position OR NOT {_NODE_LOST})",
            rule.no_event(
                "loses node {OLD.node_name}",
                "loses this node",
                at="coalesce(NEW.lost_position, 0)",
            ),
        ),
        columns=("lost_position",),
    ),
)


def _stand(told: str) -> str:
    """Return that the row is of the machine on which the Node's newest event finds it, and so."""
    return f"""EXISTS (
    SELECT 1 FROM ledger_nodes AS n {_OWN_EVENT}
    WHERE n.node_no = NEW.node_no AND n.machine_no = NEW.machine_no
      AND n.fact_position = NEW.fact_position AND {told}
  )"""


def _stand_told(by_agent: str) -> str:
    return f"{_INVENTORIED} AND $says(e.body, boot_id, NEW.boot_id) AND NEW.by_agent = {by_agent}"


_BY_AGENT: Final = "$flag(e.body, by_agent)"
_STAND_SEEN: Final = f"{_OBSERVED} AND (NEW.boot_id, NEW.by_agent) = ('', 0)"
_STANDS: Final = (
    rule.rule(
        "ledger_stands_insert",
        "ledger_stands",
        "INSERT",
        rule.Case(
            f"""EXISTS (
    SELECT 1 FROM ledger_stands WHERE node_no = NEW.node_no AND machine_no = NEW.machine_no
  ) OR NOT {_stand(f"(({_stand_told(_BY_AGENT)}) OR ({_STAND_SEEN}))")}""",
            _not_brought_in("a node on a machine"),
        ),
    ),
    rule.rule(
        "ledger_stands_facts",
        "ledger_stands",
        "UPDATE",
        rule.Case(
            f"NOT {rule.unchanged(['node_no', 'machine_no'])} OR {_LATER}"
            f" OR NOT {_stand(_stand_told(f'$max(OLD.by_agent, {_BY_AGENT})'))}",
            _not_changed("facts of a node on a machine"),
        ),
    ),
)

_RECORD: Final = f"""{_says("r.value", "device_type", "minor", "model")}
        AND $tells(r.value, healthy, NEW.healthy) AND $tells(r.value, unique_id, NEW.unique_id)
        AND $says(r.value, core_percent, NEW.core_reported)
        AND $says(r.value, memory_bytes, NEW.memory_reported)"""
_DEVICES_TOLD: Final = "SELECT 1 FROM $each(e.body, devices, r)"
_BORN_INVENTORIED: Final = _inventory_says(
    f"NEW.present = 1 AND EXISTS ({_DEVICES_TOLD} WHERE {_RECORD}"
    " AND $says(r.value, device_id, NEW.device_id))",
)
_BORN_OBSERVED: Final = _event_says(
    "NEW",
    _OBSERVING,
    f"""(NEW.present, NEW.healthy, NEW.model, NEW.core_reported, NEW.memory_reported,
        NEW.unique_id) = (0, 1, '', 0, 0, 0) AND EXISTS (
        SELECT 1 FROM $each(e.body, shares, r)
        WHERE {_says("r.value", "device_type", "minor", "device_id")}
      )""",
)
_NEGATIVE: Final = rule.Case(
    "NEW.core_reported < 0 OR NEW.memory_reported < 0",
    rule.said(
        f"{{{rule.card_of('NEW')}}} has less than nothing: core_percent={{NEW.core_reported}},"
        " memory_bytes={NEW.memory_reported}",
        "a card has less than nothing",
    ),
)
_TWICE: Final = rule.said(
    f"{{{rule.card_of('NEW')}}} is named twice: position={{NEW.fact_position}}",
    "a card is named twice",
)
_NAMED: Final = """EXISTS (
      SELECT 1 FROM ledger_devices AS d
      WHERE d.machine_no = NEW.machine_no AND d.device_type = NEW.device_type
        AND ((d.device_id = NEW.device_id AND d.device_id <> '')
          OR (d.node_no = NEW.node_no AND d.minor = NEW.minor AND (d.device_id = NEW.device_id
            OR d.present = 1 AND NEW.present = 1)))
    )"""
_NAMED_ANEW: Final = f"""EXISTS (
      SELECT 1 FROM ledger_devices AS d
      WHERE d.machine_no = OLD.machine_no AND d.device_type = OLD.device_type
        AND d.device_no <> OLD.device_no
        AND (d.device_id = NEW.device_id
            AND (d.device_id <> '' OR d.node_no = NEW.node_no AND d.minor = NEW.minor)
          OR (d.node_no = NEW.node_no AND d.minor = NEW.minor AND d.present = 1
            AND NEW.present = 1 AND EXISTS (
            SELECT 1 FROM {_EVENT} CROSS JOIN $each(e.body, devices, r)
            WHERE e.position = NEW.fact_position
              AND $says(r.value, device_type, OLD.device_type) AND $says(r.value, minor, NEW.minor)
              AND ($says(r.value, device_id, d.device_id)
                OR ($text(r.value, device_id) = '' AND d.device_no < OLD.device_no))
          )))
    )"""

_SAME_MACHINE: Final = "n.machine_no = OLD.machine_no"
_FOUND_AGAIN: Final = f"""NEW.present = 1 AND {_SAME_MACHINE} AND EXISTS (
        {_DEVICES_TOLD}
        WHERE {_RECORD} AND CASE
          WHEN OLD.device_id <> '' AND $text(r.value, device_id) = OLD.device_id
          THEN NEW.device_id = OLD.device_id
          WHEN OLD.device_id = ''
          THEN NEW.minor = OLD.minor AND NEW.device_id = $text(r.value, device_id)
          ELSE $text(r.value, device_id) = '' AND OLD.present = 1
            AND NEW.minor = OLD.minor AND NEW.device_id = OLD.device_id
        END
      )"""
_WITHDRAWN: Final = f"""NEW.present = 0 AND OLD.present = 1
        AND (NEW.core_reported, NEW.memory_reported) = (0, 0)
        AND {rule.unchanged(["node_no", "minor", "device_id", "unique_id", "model", "healthy"])}"""
_GONE: Final = f"""{_WITHDRAWN} AND (n.machine_no <> OLD.machine_no OR NOT EXISTS (
        {_DEVICES_TOLD}
        WHERE $says(r.value, device_type, OLD.device_type) AND CASE $text(r.value, device_id)
          WHEN '' THEN $says(r.value, minor, OLD.minor) AND (OLD.device_id = '' OR NOT EXISTS (
            SELECT 1 FROM ledger_devices AS d
            WHERE d.node_no = OLD.node_no AND d.device_type = OLD.device_type
              AND d.minor = OLD.minor AND d.device_id = ''
          ))
          ELSE $text(r.value, device_id) = OLD.device_id
        END
      ))"""
_LOST: Final = f"""EXISTS (
    SELECT 1 FROM ledger_nodes AS n
    WHERE n.node_no = OLD.node_no AND n.lost_position = NEW.fact_position AND {_WITHDRAWN}
  )"""
_BUT_HEALTH: Final = (
    *("node_no", "minor", "device_id", "unique_id", "model", "present"),
    *("core_reported", "memory_reported"),
)
# Every Node of the machine may tell of it: the card is the machine's.
_HEALTH: Final = _event_says(
    "OLD",
    ("device.health_changed",),
    f"""$says(e.body, device_type, OLD.device_type) AND $tells(e.body, healthy, NEW.healthy)
      AND ((OLD.device_id <> '' AND $says(e.body, device_id, OLD.device_id))
        OR ($says(e.body, minor, OLD.minor)
          AND (OLD.device_id = '' OR $text(e.body, device_id) = '')))
      AND {rule.unchanged(_BUT_HEALTH)}""",
    of="(n.node_no = OLD.node_no OR n.machine_no = OLD.machine_no)",
)
_MACHINE_OF_NODE: Final = (
    "(SELECT n.machine_no FROM ledger_nodes AS n WHERE n.node_no = NEW.node_no)"
)
_DEVICES: Final = (
    rule.rule(
        "ledger_devices_insert",
        "ledger_devices",
        "INSERT",
        rule.Case(
            f"""NEW.device_no <> {_next("ledger_devices", "device_no")}
      OR $differ((NEW.core_used, NEW.memory_used, NEW.tenants, NEW.exclusive_holders,
        NEW.core_observed, NEW.memory_observed, NEW.observed_holders), (0, 0, 0, 0, 0, 0, 0))
      OR $differ((NEW.core_cap, NEW.memory_cap), (NEW.core_reported, NEW.memory_reported))
      OR NOT ({_BORN_INVENTORIED} OR {_BORN_OBSERVED}) OR NEW.machine_no <> {_MACHINE_OF_NODE}""",
            _not_brought_in("a device"),
        ),
        _NEGATIVE,
        rule.Case(_NAMED, _TWICE),
    ),
    rule.rule(
        "ledger_devices_facts",
        "ledger_devices",
        "UPDATE",
        rule.Case(
            f"""NOT {rule.unchanged(["device_no", "machine_no", "device_type"])}
      OR NEW.device_id <> OLD.device_id AND OLD.device_id <> ''
      OR NEW.node_no <> OLD.node_no AND OLD.device_id = '' OR {_LATER}
      OR NOT ({_inventory_says(f"(({_FOUND_AGAIN}) OR ({_GONE}))")}
        OR {_LOST} OR {_HEALTH})""",
            _not_changed("facts of a card"),
        ),
        _NEGATIVE,
        rule.Case(_NAMED_ANEW, _TWICE),
        columns=(
            *("device_no", "machine_no", "node_no", "device_type", "minor", "device_id"),
            *("unique_id", "model", "present", "healthy", "core_reported", "memory_reported"),
            "fact_position",
        ),
    ),
    rule.rule(
        "ledger_device_health_insert",
        "ledger_device_health",
        "INSERT",
        rule.Case(
            f"""EXISTS (
    SELECT 1 FROM ledger_device_health
    WHERE position = NEW.position AND device_no = NEW.device_no
  ) OR NOT EXISTS (
    SELECT 1 FROM ledger_devices AS d JOIN ledger_events AS e ON e.position = d.fact_position
    $body(e)
    WHERE d.device_no = NEW.device_no AND e.position = NEW.position AND e.at_us = NEW.at_us
      AND CASE
        WHEN {rule.event_is("device.health_changed")}
        THEN NEW.healthy = d.healthy AND $says(e.body, reason, NEW.reason)
        WHEN {rule.event_is("node.lost")} THEN (NEW.healthy, NEW.reason) = (0, 'lost')
        WHEN {_INVENTORIED}
        THEN NEW.healthy = d.healthy * d.present AND CASE
          WHEN d.present = 0 THEN NEW.reason = 'gone'
          WHEN NEW.reason = 'inventory' THEN NEW.healthy <> coalesce((
            SELECT b.healthy FROM ledger_device_health AS b
            WHERE b.device_no = NEW.device_no AND b.at_us < NEW.at_us ORDER BY b.at_us DESC LIMIT 1
          ), 1)
          ELSE NEW.reason = 'returned' END
      END
  )""",
            rule.no_event("is a change of health"),
        ),
    ),
)

_CPU_SAYS: Final = f"""(NEW.present = 1
      AND $says(e.body, cpu_ref_count_max, NEW.ref_reported) AND EXISTS (
        SELECT 1 FROM $each(e.body, cpus, r)
        WHERE $says(r.value, id, NEW.cpu) AND {_says("r.value", "core", "socket", "numa")}
      ))"""
_CPU_UNNAMED: Final = """(NEW.present, NEW.ref_reported, NEW.core, NEW.socket, NEW.numa)
        = (0, 0, -1, -1, -1)"""
_CPU_OBSERVED: Final = f"""{_CPU_UNNAMED} AND EXISTS (
        SELECT 1 FROM $ranges($text(e.body, cpuset), p) WHERE NEW.cpu BETWEEN p.first AND p.last
      )"""
_CPU_GONE: Final = f"""({_CPU_UNNAMED} AND {rule.unchanged(["node_no"])}
        AND (n.machine_no <> OLD.machine_no OR NOT EXISTS (
        SELECT 1 FROM $each(e.body, cpus, r) WHERE $says(r.value, id, NEW.cpu)
      )))"""
_CPUS: Final = (
    rule.rule(
        "ledger_cpus_insert",
        "ledger_cpus",
        "INSERT",
        rule.Case(
            f"""EXISTS (
    SELECT 1 FROM ledger_cpus WHERE machine_no = NEW.machine_no AND cpu = NEW.cpu
  ) OR NEW.machine_no <> {_MACHINE_OF_NODE}
  OR $differ((NEW.ref_used, NEW.ref_observed, NEW.ref_max), (0, 0, NEW.ref_reported))
  OR NOT ({_inventory_says(_CPU_SAYS)}
    OR {_event_says("NEW", _OBSERVING, _CPU_OBSERVED)})""",
            _not_brought_in("a CPU"),
        ),
    ),
    rule.rule(
        "ledger_cpus_facts",
        "ledger_cpus",
        "UPDATE",
        rule.Case(
            f"NOT {rule.unchanged(['machine_no', 'cpu'])} OR {_LATER} OR NOT "
            + _inventory_says(f"(({_SAME_MACHINE} AND {_CPU_SAYS}) OR {_CPU_GONE})"),
            _not_changed("facts of a CPU"),
        ),
        columns=(
            *("core", "socket", "numa", "present", "ref_reported", "machine_no", "node_no"),
            *("cpu", "fact_position"),
        ),
    ),
    rule.rule(
        "ledger_cpus_counters",
        "ledger_cpus",
        "UPDATE",
        rule.Case(
            """NEW.ref_max <> $max(NEW.ref_reported, NEW.ref_used) OR EXISTS (
    SELECT 1 FROM (
      SELECT count(*) FILTER (WHERE kind = 'granted') AS granted,
        count(*) FILTER (WHERE kind = 'observed') AS observed
      FROM ledger_cpu_holdings
      WHERE machine_no = NEW.machine_no AND cpu = NEW.cpu AND closed_at_us IS NULL
    ) AS held WHERE held.granted <> NEW.ref_used OR held.observed <> NEW.ref_observed
  )""",
            rule.said(
                "what is used of a CPU is the count of its holders:"
                f" {{{rule.node_name('OLD')}}}/cpu/{{OLD.cpu}}"
            ),
        ),
        columns=("ref_max", "ref_used", "ref_observed"),
    ),
)

RULES: Final = (*_MACHINES, *_NODES, *_STANDS, *_DEVICES, *_CPUS)
"""These rules in the order in which they are made."""
