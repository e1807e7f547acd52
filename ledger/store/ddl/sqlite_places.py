"""Rules for the places of planned groups: a whole card waits for one Pod, and for no other."""

from __future__ import annotations

from typing import Final

from ledger.domain.devices import GPU
from ledger.store.ddl.texts import card_of, fail, refuse_delete, same

_WAITS: Final = """' waits for ' || p.pod_uid || ' of group ' || p.group_name"""
_TAKEN: Final = fail(
    f"'tenure ledger: ' || {card_of('d')} || {_WAITS}", "tenure ledger: the card waits for a group"
)


def _card(fact: str) -> str:
    return fail(
        f"'tenure ledger: ' || {card_of('d')} || {fact}",
        "tenure ledger: the card is not free to wait",
    )


PLACES_INSERT: Final = f"""
CREATE TRIGGER ledger_places_insert BEFORE INSERT ON ledger_places
BEGIN
  SELECT CASE
    WHEN NEW.closed_at_us IS NOT NULL OR NEW.closed_position IS NOT NULL
      OR EXISTS (
        SELECT 1 FROM ledger_places WHERE position = NEW.position AND device_no = NEW.device_no
      )
      OR NOT EXISTS (
        SELECT 1 FROM ledger_devices AS d
        JOIN ledger_nodes AS n ON n.machine_no = d.machine_no AND n.node_no = NEW.node_no
        JOIN ledger_events AS e ON e.position = NEW.position,
        json_each(e.body, '$.members') AS m, json_each(m.value, '$.whole') AS w
        WHERE d.device_no = NEW.device_no AND d.device_type = '{GPU}' AND d.minor = w.value
          AND e.event_type LIKE 'group.planned.v%' AND e.at_us = NEW.opened_at_us
          AND json_extract(e.body, '$.group') = NEW.group_name
          AND json_extract(m.value, '$.pod_uid') = NEW.pod_uid
          AND json_extract(m.value, '$.node_uid') = n.node_uid
      )
    THEN {
    fail(
        "'tenure ledger: no event at position ' || NEW.position || ' opens this place'",
        "tenure ledger: no event opens this place",
    )
}
  END;
  SELECT {_TAKEN}
  FROM ledger_places AS p JOIN ledger_devices AS d ON d.device_no = p.device_no
  WHERE p.device_no = NEW.device_no AND p.closed_position IS NULL;
  SELECT CASE
    WHEN d.present <> 1 THEN {_card("' is gone'")}
    WHEN d.healthy <> 1 THEN {_card("' is unhealthy'")}
    WHEN d.tenants + d.observed_holders > 0 THEN {
    _card("' has ' || (d.tenants + d.observed_holders) || ' holders, a place of a group has none'")
}
    WHEN EXISTS (
      SELECT 1 FROM ledger_slot_holdings AS s
      WHERE s.machine_no = d.machine_no AND s.slot = 'unknown/' || d.device_type
        AND s.closed_position IS NULL
    )
    THEN {_card("' may be held by a Pod on an unknown card'")}
  END
  FROM ledger_devices AS d WHERE d.device_no = NEW.device_no;
END
"""

PLACES_UPDATE: Final = f"""
CREATE TRIGGER ledger_places_update BEFORE UPDATE ON ledger_places
WHEN OLD.closed_position IS NOT NULL
  OR NOT {same(["position", "device_no", "node_no", "group_name", "pod_uid", "opened_at_us"])}
  OR NOT EXISTS (
    SELECT 1 FROM ledger_events AS e
    WHERE e.position = NEW.closed_position AND e.position > OLD.position
      AND e.at_us = NEW.closed_at_us
      AND CASE
        WHEN e.event_type LIKE 'pod.reserved.v%'
        THEN json_extract(e.body, '$.pod_uid') = OLD.pod_uid
          AND json_extract(e.body, '$.node_uid') = (
            SELECT n.node_uid FROM ledger_nodes AS n WHERE n.node_no = OLD.node_no
          )
        WHEN e.event_type LIKE 'group.planned.v%' OR e.event_type LIKE 'group.plan_dropped.v%'
        THEN json_extract(e.body, '$.group') = OLD.group_name
        ELSE 0
      END
  )
BEGIN
  SELECT {
    fail(
        "'tenure ledger: a place only closes, with its Pod or its plan: position ' || OLD.position",
        "tenure ledger: a place only closes, with its Pod or its plan",
    )
};
END
"""

HOLDINGS_PLACE: Final = f"""
CREATE TRIGGER ledger_holdings_place BEFORE INSERT ON ledger_holdings
WHEN NEW.kind = 'granted'
BEGIN
  SELECT {_TAKEN}
  FROM ledger_places AS p JOIN ledger_devices AS d ON d.device_no = p.device_no
  WHERE p.device_no = NEW.device_no AND p.closed_position IS NULL
    AND NOT EXISTS (
      SELECT 1 FROM ledger_reservations AS r
      WHERE r.position = NEW.position AND r.pod_uid = p.pod_uid
    );
END
"""

RULES: Final = tuple(
    text.strip()
    for text in (
        PLACES_INSERT,
        PLACES_UPDATE,
        HOLDINGS_PLACE,
        refuse_delete("ledger_places", "places"),
    )
)
"""These rules in the order in which they are made."""
