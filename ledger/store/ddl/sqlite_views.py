"""
The audit views on SQLite. Names, columns and units are an interface (docs/audit.md).

Fields of a body are read with `json_each`, which any reader may call; SQLite 3.40 keeps the JSON
functions from views wherever the schema is not trusted, as it is for every reader of ours.
"""

from __future__ import annotations

from typing import Final

from ledger.store.ddl import audit_views
from ledger.store.ddl.rules.holdings import claimed, unnamed_holder

DEVICES: Final = f"""
CREATE VIEW audit_devices AS
SELECT n.node_uid, n.node_name, d.device_type, d.minor, d.device_id, d.model,
  d.core_reported AS core_capacity_percent, d.memory_reported AS memory_capacity_bytes,
  d.core_used AS core_used_percent, d.memory_used AS memory_used_bytes, d.tenants,
  d.core_observed AS core_observed_percent, d.memory_observed AS memory_observed_bytes,
  d.observed_holders, d.healthy,
  CASE
    WHEN n.lost_position IS NOT NULL THEN 'lost'
    WHEN d.present = 0 THEN 'gone'
    WHEN d.healthy = 0 THEN 'unhealthy'
    WHEN d.core_used + d.core_observed > d.core_reported
      OR d.memory_used + d.memory_observed > d.memory_reported THEN 'over-full'
    WHEN d.observed_holders > 0 AND (d.core_observed >= d.core_reported
      OR (d.memory_reported > 0 AND d.memory_observed >= d.memory_reported)) THEN 'held by others'
    WHEN EXISTS (
      SELECT 1 FROM ledger_slot_holdings AS s
      WHERE s.machine_no = d.machine_no AND s.slot = 'unknown/' || d.device_type
        AND s.closed_position IS NULL
    ) THEN 'unknown holder'
    WHEN {claimed("d")} THEN 'claimed twice'
    WHEN {unnamed_holder("d")} THEN 'held before its id'
  END AS closed_reason, d.device_no
FROM ledger_devices AS d
JOIN ledger_nodes AS n ON n.node_no = d.node_no
"""

NODES: Final = """
CREATE VIEW audit_nodes AS
SELECT n.node_uid, n.node_name, n.cpu_milli, n.memory_bytes, n.machine_id, n.labels,
  n.system_uuid, s.boot_id, n.machine_no, n.lost_position
FROM ledger_nodes AS n
JOIN ledger_stands AS s ON s.node_no = n.node_no AND s.machine_no = n.machine_no
"""


class SqliteWords:
    """SQLite's words; see `audit_views.Words`."""

    def iso(self, us: str) -> str:
        """Return a moment as text."""
        return f"strftime('%Y-%m-%dT%H:%M:%SZ', {us} / 1000000, 'unixepoch')"

    def date(self, day: str) -> str:
        """Return a day as text."""
        return f"date({day} * 86400, 'unixepoch')"

    def least(self, a: str, b: str) -> str:
        """Return the smaller number."""
        return f"min({a}, {b})"

    def greatest(self, a: str, b: str) -> str:
        """Return the greater number."""
        return f"max({a}, {b})"

    def text(self, body: str, name: str) -> str:
        """Return a field as text."""
        return f"(SELECT f.value FROM json_each({body}, '$.{name}') AS f)"

    def number(self, body: str, name: str) -> str:
        """Return a field as an integer."""
        return self.text(body, name)

    def json(self, body: str, name: str) -> str:
        """Return a field as JSON text."""
        return f"(SELECT f.value FROM json_each({body}) AS f WHERE f.key = '{name}')"

    def elements(self, body: str, name: str, alias: str) -> str:
        """Return the elements of an array."""
        return f"json_each({body}, '$.{name}') AS {alias}"

    def pairs(self, body: str, alias: str) -> str:
        """Return the fields of an object."""
        return f"json_each({body}) AS {alias}"


VIEWS: Final = (
    *(text.strip() for text in (DEVICES, NODES)),
    *audit_views.create_views(SqliteWords()),
)
"""Every view, in the order in which they are made. The first two have no words of their own."""
CORRECTED: Final = audit_views.corrected_views(SqliteWords())
"""The views of a ledger whose clock was corrected, by name: in the place of those above."""
