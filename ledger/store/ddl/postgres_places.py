"""Rules for the places of planned groups on Postgres, as on SQLite: a card waits for one Pod."""

from __future__ import annotations

from typing import Final

from ledger.domain.devices import GPU
from ledger.store.ddl.postgres_holdings import waits
from ledger.store.ddl.postgres_texts import (
    BODY,
    card_of,
    event_is,
    fail,
    refuse_delete,
    refuse_truncate,
    rule,
    same,
    says,
)

_FIXED: Final = ["position", "device_no", "node_no", "group_name", "pod_uid", "opened_at_us"]
_DEVICE: Final = "d ledger_devices"
_CARD_AND_PLACE: Final = f"{_DEVICE}; p ledger_places;"


# The card's row is written anew, though nothing of it changes: who takes a share of the card at the
# same time writes it too, so that one of them waits for the other, and then sees what it did.
_FIND_ALONE: Final = (
    "UPDATE ledger_devices SET tenants = tenants WHERE device_no = NEW.device_no"
    " RETURNING * INTO d;"
)


def _card(fact: str) -> str:
    message = f"'tenure ledger: ' || {card_of('d')} || {fact}"
    return fail(message, "the card is not free to wait")


_INSERT: Final = f"""
  IF NEW.closed_at_us IS NOT NULL OR NEW.closed_position IS NOT NULL
    OR NOT EXISTS (
      SELECT 1 FROM ledger_devices AS c
      JOIN ledger_nodes AS n ON n.machine_no = c.machine_no AND n.node_no = NEW.node_no
      JOIN ledger_events AS e ON e.position = NEW.position
      {BODY}
      CROSS JOIN LATERAL jsonb_array_elements(j.b->'members') AS m(value)
      WHERE c.device_no = NEW.device_no AND c.device_type = '{GPU}'
        AND {event_is("group.planned")} AND e.at_us = NEW.opened_at_us
        AND {says("j.b", "group", "NEW.group_name")}
        AND {says("m.value", "pod_uid", "NEW.pod_uid")}
        AND {says("m.value", "node_uid", "n.node_uid")}
        AND m.value->'whole' @> to_jsonb(c.minor)
    )
  THEN
    {
    fail(
        "'tenure ledger: no event at position ' || NEW.position || ' opens this place'",
        "no event opens this place",
    )
}
  END IF;
  {_FIND_ALONE}
  SELECT * INTO p FROM ledger_places
  WHERE device_no = NEW.device_no AND closed_position IS NULL;
  IF FOUND THEN
    {waits("d", "p")}
  END IF;
  IF d.present <> 1 THEN
    {_card("' is gone'")}
  ELSIF d.healthy <> 1 THEN
    {_card("' is unhealthy'")}
  ELSIF d.tenants + d.observed_holders > 0 THEN
    {
    _card("' has ' || (d.tenants + d.observed_holders) || ' holders, a place of a group has none'")
}
  ELSIF EXISTS (
    SELECT 1 FROM ledger_slot_holdings AS s
    WHERE s.machine_no = d.machine_no AND s.slot = 'unknown/' || d.device_type
      AND s.closed_position IS NULL
  ) THEN
    {_card("' may be held by a Pod on an unknown card'")}
  END IF;"""

_UPDATE: Final = f"""
  IF OLD.closed_position IS NOT NULL OR NOT {same(_FIXED)}
    OR NOT EXISTS (
      SELECT 1 FROM ledger_events AS e {BODY}
      WHERE e.position = NEW.closed_position AND e.position > OLD.position
        AND e.at_us = NEW.closed_at_us
        AND CASE
          WHEN {event_is("pod.reserved")}
          THEN {says("j.b", "pod_uid", "OLD.pod_uid")} AND EXISTS (
            SELECT 1 FROM ledger_nodes AS n
            WHERE n.node_no = OLD.node_no AND {says("j.b", "node_uid", "n.node_uid")}
          )
          WHEN {event_is("group.planned")} OR {event_is("group.plan_dropped")}
          THEN {says("j.b", "group", "OLD.group_name")}
          ELSE false
        END
    )
  THEN
    {
    fail(
        "'tenure ledger: a place only closes, with its Pod or its plan: position ' || OLD.position",
        "a place only closes, with its Pod or its plan",
    )
}
  END IF;"""

RULES: Final = (
    *rule(
        "ledger_places_insert",
        "ledger_places",
        "INSERT",
        _INSERT,
        variables=_CARD_AND_PLACE,
        definer=True,
    ),
    *rule("ledger_places_update", "ledger_places", "UPDATE", _UPDATE),
    *refuse_delete("ledger_places", "places"),
    *refuse_truncate("ledger_places", "places"),
)
"""These rules in the order in which they are made."""
