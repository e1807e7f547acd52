"""Rules for the places of planned groups: a whole card waits for one Pod, and for no other."""

from __future__ import annotations

from typing import Final

from ledger.domain.devices import GPU
from ledger.store.ddl.rules import rule
from ledger.store.ddl.rules.holdings import CLOUDED, clouded

_FIXED: Final = ("position", "device_no", "node_no", "group_name", "pod_uid", "opened_at_us")
_WAITING: Final = (
    "ledger_planned_cards AS p WHERE p.device_no = NEW.device_no AND p.closed_position IS NULL"
)
_WAITS: Final = rule.said(
    f"{{{rule.held_card('NEW')}}} waits for {{(SELECT p.pod_uid FROM {_WAITING})}}"
    f" of group {{(SELECT p.group_name FROM {_WAITING})}}",
    "the card waits for a group",
)
KEPT_FOR_ANOTHER: Final = rule.Case(
    f"""NEW.kind = 'granted' AND EXISTS (
      SELECT 1 FROM {_WAITING} AND NOT EXISTS (
        SELECT 1 FROM ledger_reservations AS r
        WHERE r.position = NEW.position AND r.pod_uid = p.pod_uid
      )
    )""",
    _WAITS,
)
_HOLDINGS_PLACE: Final = rule.rule(
    "ledger_holdings_place", "ledger_holdings", "INSERT", KEPT_FOR_ANOTHER
)

_PLANNED: Final = f"""EXISTS (
        SELECT 1 FROM ledger_devices AS c
        JOIN ledger_nodes AS n ON n.machine_no = c.machine_no AND n.node_no = NEW.node_no
        JOIN ledger_events AS e ON e.position = NEW.position
        $body(e) CROSS JOIN $each(e.body, members, m)
        WHERE c.device_no = NEW.device_no AND c.device_type = '{GPU}'
          AND {rule.event_is("group.planned")} AND e.at_us = NEW.opened_at_us
          AND $says(e.body, group, NEW.group_name) AND $says(m.value, pod_uid, NEW.pod_uid)
          AND $says(m.value, node_uid, n.node_uid) AND $has(m.value, whole, c.minor)
      )"""


def _card(fact: str) -> rule.RefusalWords:
    return rule.said(f"{{{rule.card_of('card')}}} {fact}", "the card is not free to wait")


_PLACES_INSERT: Final = rule.rule(
    "ledger_planned_cards_insert",
    "ledger_planned_cards",
    "INSERT",
    rule.Case(
        f"""NEW.closed_at_us IS NOT NULL OR NEW.closed_position IS NOT NULL
      OR EXISTS (
        SELECT 1 FROM ledger_planned_cards
        WHERE position = NEW.position AND device_no = NEW.device_no
      ) OR NOT {_PLANNED}""",
        rule.no_event("opens this place"),
    ),
    rule.Case(f"EXISTS (SELECT 1 FROM {_WAITING})", _WAITS),
    rule.Case("card.present <> 1", _card("is gone")),
    rule.Case("card.healthy <> 1", _card("is unhealthy")),
    rule.Case(
        "card.tenants + card.observed_holders > 0",
        _card("has {(card.tenants + card.observed_holders)} holders, a place of a group has none"),
    ),
    rule.Case(clouded("card"), _card(CLOUDED)),
    reads=("ledger_devices", "card", ("device_no",)),
)
_CLOSED: Final = f"""EXISTS (
    SELECT 1 FROM ledger_events AS e $body(e)
    WHERE e.position = NEW.closed_position AND e.position > OLD.position
      AND e.at_us = NEW.closed_at_us AND CASE
        WHEN {rule.event_is("pod.reserved")}
        THEN $says(e.body, pod_uid, OLD.pod_uid) AND $text(e.body, node_uid) = (
            SELECT n.node_uid FROM ledger_nodes AS n WHERE n.node_no = OLD.node_no
          )
        WHEN {rule.event_is("group.planned", "group.plan_dropped")}
        THEN $says(e.body, group, OLD.group_name)
        ELSE false
      END
  )"""
_PLACES_UPDATE: Final = rule.rule(
    "ledger_planned_cards_update",
    "ledger_planned_cards",
    "UPDATE",
    rule.Case(
        f"OLD.closed_position IS NOT NULL OR NOT {rule.unchanged(_FIXED)} OR NOT {_CLOSED}",
        rule.said("a place only closes, with its Pod or its plan: position {OLD.position}"),
    ),
)
RULES: Final = (_PLACES_INSERT, _PLACES_UPDATE, _HOLDINGS_PLACE)
"""These rules in the order in which they are made."""
