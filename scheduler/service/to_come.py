"""
Room that groups keep for members that are still to be created: in memory alone, like soft holds.

Rule: GPU-topology proposal, "How to identify pods are in the same group": the label says how many
Pods a group has. A plan is made for all of them, those to come being like the first.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from ledger.domain.request.requests import PodRequest, group_name
from scheduler.decide.engine import Engine
from scheduler.decide.group.groups import gpu_minors
from scheduler.decide.outcome import Placement
from scheduler.service.ports import Clock

TO_COME_SECONDS: Final = 30.0
"""
After its first member a group is planned for members to come so long, as a soft hold lasts: a job
whose Pods never come keeps cards from others no longer.
"""
TO_COME_MAX: Final = 64
"""
So many members to come of one group are planned: a label may name any number, and no filter is
answered meanwhile.
"""


@dataclass(slots=True, kw_only=True)
class _Room:
    """
    What is kept for a group.

    Attributes:
        places: by the name of a member to come.
        taken_by: UIDs of the Pods that came and were given a place of these.
    """

    places: dict[str, Placement]
    until: float
    taken_by: set[str] = field(default_factory=set)


class ToCome:
    """The places of an engine that are kept for members to come."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._rooms: dict[str, _Room] = {}  # by group

    def like(self, first: PodRequest, count: int) -> list[PodRequest]:
        """Return so many members to come that are like the first one."""
        names = (f"{group_name(first)}/{each}" for each in range(min(count, TO_COME_MAX)))
        return [replace(first, uid=name, name=name) for name in names]

    def keep(self, group: str, places: Sequence[Placement], until: float) -> None:
        """Keep these places for a group, which has none so far."""
        for place in places:
            self._engine.reserve(place)
        if places:
            by_name = {place.request.uid: place for place in places}
            self._rooms[group] = _Room(places=by_name, until=until)

    def give(self, group: str, pod_uid: str, among: Collection[int]) -> frozenset[int]:
        """Free a place for a member that came, once for each, and return its node."""
        room = self._rooms.get(group)
        if room is None or pod_uid in room.taken_by:
            return frozenset()
        for name, place in room.places.items():
            if place.node in among:
                del room.places[name]
                room.taken_by.add(pod_uid)
                self._engine.release(name)
                return frozenset((place.node,))
        return frozenset()

    def drop(self, group: str) -> list[str]:
        """End what is kept for a group; return the names of its nodes."""
        room = self._rooms.pop(group, None)
        if room is None:
            return []
        for name in room.places:
            self._engine.release(name)
        return [place.node_name for place in room.places.values()]

    def expire(self) -> list[str]:
        """End what is too old; return the names of its nodes."""
        now = self._clock.monotonic()
        old = [group for group, room in self._rooms.items() if room.until <= now]
        return [name for group in old for name in self.drop(group)]

    def gone(self, name: str) -> None:
        """Forget a place that the engine gave back when its node went."""
        for room in self._rooms.values():
            room.places.pop(name, None)

    @contextmanager
    def lifted(self, node_name: str) -> Iterator[bool]:
        """
        Let the block choose on a node as if nothing were kept there; tell whether something was.

        Also for a member of the same group: the ledger knows nothing of members to come, and what
        is bound is decided from it alone. A place whose cards were taken goes to others of the
        node, or ends.
        """
        lifted = [
            (group, room, place)
            for group, room in self._rooms.items()
            for place in room.places.values()
            if place.node_name == node_name
        ]
        for _, room, place in lifted:
            del room.places[place.request.uid]
            self._engine.release(place.request.uid)
        try:
            yield bool(lifted)
        finally:
            for group, room, place in lifted:
                again = self._again(place) if self._rooms.get(group) is room else None
                if again is not None:
                    room.places[place.request.uid] = again

    def _again(self, place: Placement) -> Placement | None:
        minors = frozenset(gpu_minors(place)) or None
        again = self._engine.try_place(place.request, place.node, minors)
        return again or self._engine.try_place(place.request, place.node)
