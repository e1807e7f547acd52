"""The lives of all groups in a ledger, told from its events alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ledger.domain.log.events import (
    GroupPlanned,
    LedgerEvent,
    NodeLost,
    PlanDropped,
    PodBound,
    PodObserved,
    PodReleased,
    PodReserved,
    PodVoided,
)
from scheduler.decide.group.life import GroupLife, apply_life


def lives_of(events: Iterable[tuple[LedgerEvent, int]]) -> dict[str, GroupLife]:
    """Return every group's life out of a ledger's events with their times."""
    lives: dict[str, GroupLife] = {}
    member_of: dict[str, str] = {}
    for event, at_us in events:
        if isinstance(event, NodeLost):
            lives = {name: apply_life(life, event, at_us) for name, life in lives.items()}
        name = _group_of(event, member_of)
        if not name:
            continue
        if isinstance(event, PodReserved | PodObserved):
            member_of[event.pod_uid] = name
        lives[name] = apply_life(lives.get(name) or GroupLife(name=name), event, at_us)
    return lives


def _group_of(event: LedgerEvent, member_of: Mapping[str, str]) -> str:
    match event:
        case GroupPlanned() if not event.members:
            return ""
        case GroupPlanned() | PlanDropped() | PodReserved() | PodObserved():
            return event.group
        case PodBound() | PodReleased() | PodVoided():
            return member_of.get(event.pod_uid, "")
        case _:
            return ""
