"""
The audit views for SQLite. Names, columns and units are an interface (docs/audit.md).

A view on another database has the same columns, so that a question has one SQL text.
"""

from __future__ import annotations

from typing import Final

DAY_US: Final = 86_400_000_000
HOUR_US: Final = 3_600_000_000

HOLDINGS: Final = """
CREATE VIEW audit_holdings AS
SELECT h.position, r.pod_uid, r.attempt, r.namespace, r.pod_name, r.owner, n.node_uid,
  n.node_name, d.device_type, h.minor, d.device_id, d.model, h.core_percent, h.memory_bytes,
  h.memory_ratio_percent, h.exclusive, h.kind, r.phase, r.dialect, h.opened_at_us, h.closed_at_us,
  h.closed_position, r.end_reason
FROM ledger_holdings AS h
JOIN ledger_reservations AS r ON r.position = h.position
JOIN ledger_devices AS d ON d.device_no = h.device_no
JOIN ledger_nodes AS n ON n.node_no = d.node_no
"""

CPU_HOLDINGS: Final = """
CREATE VIEW audit_cpu_holdings AS
SELECT c.position, r.pod_uid, r.attempt, r.namespace, r.pod_name, n.node_uid, n.node_name, c.cpu,
  c.opened_at_us, c.closed_at_us, r.end_reason
FROM ledger_cpu_holdings AS c
JOIN ledger_reservations AS r ON r.position = c.position
JOIN ledger_nodes AS n ON n.node_no = c.node_no
"""

RESERVATIONS: Final = """
CREATE VIEW audit_reservations AS
SELECT r.position, r.pod_uid, r.attempt, r.namespace, r.pod_name, r.owner, r.labels, r.priority,
  r.qos, r.dialect, r.policy, r.source, n.node_uid, n.node_name, r.cpu_milli, r.memory_bytes,
  r.gpu_core_percent, r.gpu_count, r.cpuset, r.kind, r.phase, r.created_at_us, r.opened_at_us,
  r.closed_at_us, r.closed_position, r.end_reason
FROM ledger_reservations AS r
JOIN ledger_nodes AS n ON n.node_no = r.node_no
"""

DEVICES: Final = """
CREATE VIEW audit_devices AS
SELECT n.node_uid, n.node_name, d.device_type, d.minor, d.device_id, d.model,
  d.core_reported AS core_capacity_percent, d.memory_reported AS memory_capacity_bytes,
  d.core_used AS core_used_percent, d.memory_used AS memory_used_bytes, d.tenants,
  d.core_observed AS core_observed_percent, d.memory_observed AS memory_observed_bytes,
  d.observed_holders, d.healthy,
  CASE
    WHEN d.present = 0 THEN 'gone'
    WHEN d.healthy = 0 THEN 'unhealthy'
    WHEN d.core_used + d.core_observed > d.core_reported
      OR d.memory_used + d.memory_observed > d.memory_reported THEN 'over-full'
    WHEN d.observed_holders > 0 AND (d.core_observed >= d.core_reported
      OR (d.memory_reported > 0 AND d.memory_observed >= d.memory_reported)) THEN 'held by others'
    WHEN EXISTS (
      SELECT 1 FROM ledger_slot_holdings AS s
      WHERE s.node_no = d.node_no AND s.slot = 'unknown/' || d.device_type
        AND s.closed_position IS NULL
    ) THEN 'unknown holder'
  END AS closed_reason
FROM ledger_devices AS d
JOIN ledger_nodes AS n ON n.node_no = d.node_no
"""

NODES: Final = """
CREATE VIEW audit_nodes AS
SELECT node_uid, node_name, cpu_milli, memory_bytes, machine_id, labels
FROM ledger_nodes
"""

DEVICE_HEALTH: Final = """
CREATE VIEW audit_device_health AS
SELECT x.position, x.at_us, n.node_uid, n.node_name, d.device_type, d.minor, x.healthy, x.reason
FROM ledger_device_health AS x
JOIN ledger_devices AS d ON d.device_no = x.device_no
JOIN ledger_nodes AS n ON n.node_no = d.node_no
"""

REFUSALS: Final = """
CREATE VIEW audit_refusals AS
SELECT position, at_us, pod_uid, namespace, pod_name, stage, message, shape, gpu_core_percent,
  policy, owner
FROM ledger_refusals
"""

USAGE_DAYS: Final = f"""
CREATE VIEW audit_usage_days AS
WITH RECURSIVE parts (position, day, from_us, until_us) AS (
  SELECT r.position, r.opened_at_us / {DAY_US}, r.opened_at_us,
    coalesce(r.closed_at_us, max(r.opened_at_us, (SELECT at_us FROM ledger_head)))
  FROM ledger_reservations AS r
  UNION ALL
  SELECT p.position, p.day + 1, (p.day + 1) * {DAY_US}, p.until_us
  FROM parts AS p WHERE (p.day + 1) * {DAY_US} < p.until_us
)
SELECT r.namespace, date(p.day * 86400, 'unixepoch') AS day,
  sum(r.gpu_core_percent / 100.0
    * ((min(p.until_us, (p.day + 1) * {DAY_US}) - p.from_us) / {HOUR_US}.0)) AS gpu_hours,
  sum(r.cpu_milli / 1000.0
    * ((min(p.until_us, (p.day + 1) * {DAY_US}) - p.from_us) / {HOUR_US}.0)) AS cpu_hours
FROM parts AS p
JOIN ledger_reservations AS r ON r.position = p.position
GROUP BY r.namespace, p.day
"""

EVENTS: Final = """
CREATE VIEW audit_events AS
SELECT position, at_us, stream, stream_version, event_type, actor, correlation_id, body
FROM ledger_events
"""

V1: Final = tuple(
    text.strip()
    for text in (
        HOLDINGS,
        CPU_HOLDINGS,
        RESERVATIONS,
        DEVICES,
        NODES,
        DEVICE_HEALTH,
        REFUSALS,
        USAGE_DAYS,
        EVENTS,
    )
)
"""Every view of revision 0001."""
