"""
The places of planned groups as a fold over events: whole cards that wait for one member.

Kept apart from the state of the nodes, because one plan is about many of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from ledger.domain.bounds import Exact, Index
from ledger.domain.log.events import GroupPlanned, LedgerEvent, PlanDropped, PodReserved


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCard:
    """
    One whole GPU that waits for one Pod.

    Attributes:
        minor: the card's when the group was planned.
        opened_position: position of the plan.
    """

    node_uid: str
    minor: Index
    group: str
    pod_uid: str
    opened_position: Exact


def apply_planned_cards(
    planned_cards: tuple[PlannedCard, ...], position: int, event: LedgerEvent
) -> tuple[PlannedCard, ...]:
    """
    Fold one event into the open places, in the order in which they were opened. Pure and total.

    Rule: design section 5, groups. A plan opens its places and closes those of the group's plan
    before it; a dropped plan closes its own; a Pod's reservation closes what waits for that Pod on
    that node, used or not. Nothing else closes a place.
    """
    match event:
        case GroupPlanned():
            left = tuple(place for place in planned_cards if place.group != event.group)
            return left + tuple(
                PlannedCard(
                    node_uid=member.node_uid,
                    minor=minor,
                    group=event.group,
                    pod_uid=member.pod_uid,
                    opened_position=position,
                )
                for member in event.members
                for minor in member.whole
            )
        case PlanDropped():
            return tuple(place for place in planned_cards if place.group != event.group)
        case PodReserved() if planned_cards:
            taken = (event.pod_uid, event.node_uid)
            return tuple(
                place for place in planned_cards if (place.pod_uid, place.node_uid) != taken
            )
        case _:
            return planned_cards
