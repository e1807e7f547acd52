"""What a ledger of a cluster at work says later than decisions were made on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from ledger.domain.log.events import (
    GroupPlanned,
    PlanDropped,
    PlannedMember,
    PodReserved,
    RequestDescribed,
)
from ledger.domain.log.recorded import RecordedEvent, is_recovered
from ledger.domain.log.recorded_request import RecordedRequest, request_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """
    A reservation that was decided on a state before it.

    Attributes:
        meanwhile: positions of what was reserved on its node between that state and itself.
        minors: the GPUs that a plan of its group gives it there; None without one.
        plan: position of that plan, if it too is said later than it was decided on; else 0.
    """

    position: int
    meanwhile: tuple[int, ...]
    minors: frozenset[int] | None
    plan: int = 0


@dataclass(slots=True)
class Ahead:
    """
    What a ledger of a cluster at work says later than it was decided on: read before the replay.

    Rule: docs/adr/0011. Cards and CPUs on the node that was named were chosen on the state at the
    position that the reservation tells, and on what was reserved since: one process decides, and
    knows what it has chosen before it is recorded.

    Args:
        event_at: returns the event at a position.
    """

    event_at: Callable[[int], RecordedEvent]
    requests: dict[str, RecordedRequest] = field(default_factory=dict)  # by digest
    decided_on: dict[int, list[Later]] = field(default_factory=dict)  # by that position
    _reserved: dict[str, list[int]] = field(default_factory=dict)  # positions, by UID of the node
    _places: dict[str, dict[str, PlannedMember]] = field(default_factory=dict)  # open, by group
    _plans: dict[str, int] = field(default_factory=dict)  # position of the newest, by group

    def add(self, recorded: RecordedEvent) -> None:
        """Take the next event."""
        match event := recorded.event:
            case RequestDescribed():
                self.requests[request_digest(event.request)] = event.request
            case GroupPlanned():
                self._places[event.group] = {place.pod_uid: place for place in event.members}
                self._plans[event.group] = recorded.envelope.position
            case PlanDropped():
                self._places.pop(event.group, None)
            case PodReserved():
                place = self._places.get(event.group, {}).pop(event.pod_uid, None)
                before = self._reserved.setdefault(event.node_uid, [])
                before.append(recorded.envelope.position)
                if event.decided_on is None or is_recovered(recorded.envelope):
                    return
                there = place is not None and place.node_uid == event.node_uid
                plan = self._plans.get(event.group, 0)
                later = Later(
                    position=recorded.envelope.position,
                    meanwhile=tuple(before[bisect_right(before, event.decided_on) : -1]),
                    minors=frozenset(place.minors) or None if place and there else None,
                    plan=plan if there and plan > event.decided_on else 0,
                )
                self.decided_on.setdefault(event.decided_on, []).append(later)
            case _:
                pass

    def only(self, position: int) -> None:
        """Leave out what need not be decided for the reservation at this position."""
        self.decided_on = {
            on: made
            for on, made in self.decided_on.items()
            if any(later.position == position for later in made)
        }
