"""What a ledger of a cluster at work says elsewhere than decisions were made on."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from ledger.domain.log.events import GroupPlanned, PodReserved, RequestDescribed
from ledger.domain.log.recorded import RecordedEvent, is_recovered
from ledger.domain.log.recorded_request import RecordedRequest, request_digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Later:
    """
    A reservation that was decided on a state before it.

    Attributes:
        meanwhile: positions of the reservations that counted as well, each of another Pod.
        plans: positions of plans that kept places as well.
        dropped: groups whose plans kept no places any more.
        lacking: keys of what is said to have counted as well and the ledger does not have.
    """

    position: int
    meanwhile: tuple[int, ...]
    plans: tuple[int, ...]
    dropped: tuple[str, ...]
    lacking: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reserved:
    """One reservation, as far as it is told on what it was decided."""

    position: int
    wall_us: int
    node_uid: str
    group: str
    decided_on: int
    beside: tuple[str, ...] | None
    dropped: tuple[str, ...]


@dataclass(slots=True)
class Ahead:
    """
    What a ledger of a cluster at work says elsewhere than was decided on it: read before a replay.

    Rule: docs/adr/0011. Cards and CPUs on the node that was named were chosen on the state at the
    position that the reservation tells, and on what was on its way into the ledger then: one
    process decides, and knows what it has chosen before it is recorded.

    Args:
        event_at: returns the event at a position.
    """

    event_at: Callable[[int], RecordedEvent]
    requests: dict[str, RecordedRequest] = field(default_factory=dict)  # by digest
    _decided_on: dict[int, list[_Reserved]] = field(default_factory=dict)  # by that position
    _by_key: dict[str, _Reserved] = field(default_factory=dict)  # <Pod UID>/<attempt>
    _on_node: dict[str, list[int]] = field(default_factory=dict)  # positions, by UID of the node
    _plans: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # position, wall_us

    def add(self, recorded: RecordedEvent) -> None:
        """Take the next event."""
        position = recorded.envelope.position
        match event := recorded.event:
            case RequestDescribed():
                self.requests[request_digest(event.request)] = event.request
            case GroupPlanned():
                plans = self._plans.setdefault(event.group, [])
                plans.append((position, recorded.envelope.wall_us))
            case PodReserved():
                self._on_node.setdefault(event.node_uid, []).append(position)
                if event.decided_on is None or is_recovered(recorded.envelope):
                    return
                reserved = _Reserved(
                    position=position,
                    wall_us=recorded.envelope.wall_us,
                    node_uid=event.node_uid,
                    group=event.group,
                    decided_on=event.decided_on,
                    beside=event.beside,
                    dropped=event.dropped,
                )
                self._decided_on.setdefault(event.decided_on, []).append(reserved)
                self._by_key[f"{event.pod_uid}/{event.attempt}"] = reserved
            case _:
                pass

    def decided_on(self, position: int) -> list[Later]:
        """Return what was decided on the state at a position, in order, and forget it."""
        return [
            self._later(each)
            for each in self._decided_on.pop(position, ())
            if each.position > position  # said where the event is met
        ]

    def _later(self, reserved: _Reserved) -> Later:
        found = self._counted(reserved)
        counted = [each for each in found.values() if each is not None]
        meanwhile = [each.position for each in counted]
        if reserved.beside is None:
            there = self._on_node[reserved.node_uid]
            after, end = bisect_right(there, reserved.decided_on), there.index(reserved.position)
            meanwhile = there[after:end]
        plans = (self._plan(each.group, reserved, each.position) for each in (*counted, reserved))
        return Later(
            position=reserved.position,
            meanwhile=tuple(meanwhile),
            plans=tuple(dict.fromkeys(filter(None, plans))),
            dropped=reserved.dropped,
            lacking=tuple(key for key, each in found.items() if each is None),
        )

    def _counted(self, reserved: _Reserved) -> dict[str, _Reserved | None]:
        """
        Return what counted as well, by key.

        A command names of its own reservations the last one, which counted those before it.
        """
        command = reserved.group, reserved.decided_on
        found: dict[str, _Reserved | None] = {}
        for key in (due := list(reserved.beside or ())):
            each = found.setdefault(key, self._by_key.get(key))
            if each is not None and each.group and (each.group, each.decided_on) == command:
                due += (before for before in each.beside or () if before not in found)
        return found

    def _plan(self, group: str, by: _Reserved, before: int) -> int:
        """Return the position of the plan of a group that was made before and told later, or 0."""
        made = [
            at
            for at, wall_us in self._plans.get(group, ())
            if by.decided_on < at < before and wall_us <= by.wall_us
        ]
        return made[-1] if made else 0

    def only(self, position: int) -> None:
        """Leave out what need not be decided for the reservation at this position."""
        self._decided_on = {
            on: [each for each in made if each.position == position]
            for on, made in self._decided_on.items()
            if any(each.position == position for each in made)
        }
