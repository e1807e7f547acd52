"""What a member of a topology group sees, reckoned from the events of a ledger alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from ledger.domain.log.events import (
    GroupPlanned,
    LedgerEvent,
    PlanDropped,
    PlannedMember,
    PodObserved,
    PodReleased,
    PodReserved,
    PodVoided,
)
from ledger.domain.resources import ANNOTATION_GPU_TOPOLOGY

Having = dict[str, PodReserved | PodObserved]


def wrongly_visible(log: Sequence[LedgerEvent]) -> list[str]:
    """Return the members whose `visibleGPUs` are not all cards of their group on their node."""
    reserved = {f"{one.pod_uid}/{one.attempt}": one for one in log if isinstance(one, PodReserved)}
    wrong: list[str] = []
    for position, event in enumerate(log, start=1):
        if not isinstance(event, PodReserved) or not event.group.startswith("group/"):
            continue
        text = event.annotations[ANNOTATION_GPU_TOPOLOGY]
        visible = {int(each) for each in json.loads(text)["visibleGPUs"]}
        cards = _cards(event, log[: position - 1], reserved)
        if visible != cards:
            wrong.append(f"{position} {event.pod_name}: {sorted(visible)}, not {sorted(cards)}")
    return wrong


def _cards(
    event: PodReserved, before: Sequence[LedgerEvent], reserved: Mapping[str, PodReserved]
) -> set[int]:
    """
    Return the cards of a member's group on its node, as it was decided.

    They are what members had there, what is recorded to have been on its way, and the places of
    the plan that nobody has taken; where its end was on its way, of one made anew since.
    """
    decided = len(before) if event.decided_on is None else event.decided_on
    having = _having(event.group, before[:decided])
    having |= {each.pod_uid: each for each in map(reserved.__getitem__, event.beside or ())}
    having[event.pod_uid] = event
    there = [one for one in having.values() if one.group == event.group]
    cards = {share.minor for one in there if one.node_uid == event.node_uid for share in one.shares}
    made = before[decided:] if event.group in event.dropped else before
    places = _places(event.group, made, decided)
    # Who holds something through a node that was lost is planned again.
    taken = {event.pod_uid, *(key.rpartition("/")[0] for key in event.beside or ())}
    left = [one for one in places if one.pod_uid not in taken and one.node_uid == event.node_uid]
    return cards | {minor for one in left for minor in one.minors}


def _having(group: str, log: Sequence[LedgerEvent]) -> Having:
    having: Having = {}
    for event in log:
        if isinstance(event, PodReserved | PodObserved) and event.group == group:
            having[event.pod_uid] = event
        elif isinstance(event, PodReleased | PodVoided):
            having.pop(event.pod_uid, None)
    return having


def _places(group: str, log: Sequence[LedgerEvent], decided: int) -> tuple[PlannedMember, ...]:
    """Return the places of the newest plan; a first reservation is recorded with its own plan."""
    places: tuple[PlannedMember, ...] = ()
    for number, event in enumerate(log, start=1):
        if isinstance(event, GroupPlanned) and event.group == group:
            places = event.members
        elif isinstance(event, PlanDropped) and event.group == group and number <= decided:
            places = ()
        elif isinstance(event, PodReserved):  # its place is taken, whatever becomes of it
            places = tuple(one for one in places if one.pod_uid != event.pod_uid)
    return places
