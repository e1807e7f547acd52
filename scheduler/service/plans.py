"""
Plans of groups that only memory has, and ends of plans that the ledger is still to be told of.

Rule: design section 5, Groups. A plan takes its places in the engine that filters are answered
from; the ledger has it from the first member's reservation on. Until then it gives way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec import structs

from ledger.domain.log.events import GroupPlanned, LedgerEvent, PlanDropped
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.recorded_request import recorded_request, request_digest
from ledger.domain.request.requests import PodRequest
from scheduler.decide.group.groups import Among, gpu_minors
from scheduler.decide.outcome import Placement
from scheduler.record import events
from scheduler.record.grouping import Grouping
from scheduler.service.holds import seconds_of
from scheduler.service.members import Members
from scheduler.service.ports import Chosen, Clock
from scheduler.service.view import ClusterView


@dataclass(slots=True, kw_only=True)
class _Plan:
    """
    A plan that the ledger does not have.

    Attributes:
        members: whom it was made for.
        until: it ends then, unless somebody asks.
        under_way: it is in a command whose answer has not come.
    """

    event: NewEvent
    members: Sequence[PodRequest]
    until: float
    under_way: bool = False


class Plans:
    """
    What was planned here, or ended, and is not in the ledger.

    Args:
        over: told the name of a group of which a plan ended.

    Attributes:
        freed: told the name of a node on which a place ended that nobody took.
        planned: told the UID of a Pod that a plan is to be made for: its soft hold is over.
    """

    def __init__(
        self,
        view: ClusterView,
        clock: Clock,
        groups: Grouping,
        members: Members,
        *,
        over: Callable[[str], None],
    ) -> None:
        self._view = view
        self._clock = clock
        self._groups = groups
        self._members = members
        self._over = over
        self.freed: Callable[[str], None] = lambda _: None
        self.planned: Callable[[str], None] = lambda _: None
        self._plans: dict[str, _Plan] = {}
        self._drops: dict[str, NewEvent] = {}  # group -> what the ledger is to be told
        self._dropping: dict[str, NewEvent] = {}  # likewise, and it is being told

    def __contains__(self, name: object) -> bool:
        return name in self._plans

    # --- what is made ---------------------------------------------------------------------------

    def keep(self, name: str, members: Sequence[PodRequest], taken: Sequence[Placement]) -> None:
        """Take the places of a plan that the ledger is told of with the first reservation."""
        at_us = self._clock.wall_us()
        new = events.group_planned(
            name,
            taken,
            1,
            at_us,
            waiting=[
                events.group_member(each, request_digest(recorded_request(each)))
                for each in members
            ],
            to_come=(),
            running=self._groups.running(name),
        )
        new = structs.replace(new, idempotency_key=f"plan:{name}:{at_us}")
        for placement in taken:
            self._groups.keep(name, placement)
        self._groups.fold(new.event, at_us)
        self._plans[name] = _Plan(event=new, members=members, until=0.0)
        self.extend(name)

    def extend(self, name: str) -> None:
        """Let a plan that the ledger does not have stand as long as a soft hold from now on."""
        plan = self._plans.get(name)
        if plan is not None:
            seconds = [one.hold_seconds for one in self._members.without_node(name).values()]
            plan.until = self._clock.monotonic() + max(seconds, default=seconds_of({}))

    # --- what gives way -------------------------------------------------------------------------

    @contextmanager
    def lifted(self, pod_uid: str, node_name: str) -> Iterator[bool]:
        """
        Let the block choose for a Pod that is bound to this node, without plans of other groups.

        Only what the ledger does not have is lifted, as soft holds are. Where the Pod got what a
        plan was for, the group is planned again on the same nodes, and else not at all. The value
        tells whether there was anything to lift.
        """
        own = self._members.name_of(pod_uid)
        lifted = [
            (name, place)
            for name, plan in self._plans.items()
            if name != own and not plan.under_way
            for place in self._groups.places(name)
            if place.node_name == node_name
        ]
        for _, place in lifted:
            self._groups.taken(place.request.uid)
            self._view.engine.release(place.request.uid)
        try:
            yield bool(lifted)
        finally:
            broken = {name: None for name, place in lifted if not self.keep_again(name, place)}
            for name in broken:
                self._plan_again(name, [place for each, place in lifted if each == name])

    def keep_again(self, name: str, placement: Placement) -> bool:
        """Take a place again that was given back; tell whether it is there."""
        engine = self._view.engine
        minors = frozenset(gpu_minors(placement)) or None
        again = engine.try_place(placement.request, placement.node, minors)
        if again is None:
            return False
        engine.undo(again)
        self._groups.keep(name, again)
        return True

    def _plan_again(self, name: str, lifted: Sequence[Placement]) -> None:
        """Plan a group anew whose cards went to another Pod, if its members keep their nodes."""
        plan = self._plans[name]
        places = {place.request.uid: place.node for place in (*lifted, *self._groups.places(name))}
        self._unplan(name)
        nodes = frozenset(places.values())
        for member in plan.members:
            self.planned(member.uid)
        answer = self._groups.plan(plan.members, (), Among(self._view.engine, nodes))
        taken = [placement for placement in answer.placements if placement is not None]
        if {placement.request.uid: placement.node for placement in taken} == places:
            self.keep(name, plan.members, taken)
            self._plans[name].until = plan.until

    # --- what ends ------------------------------------------------------------------------------

    def may_drop(self, name: str) -> bool:
        """Tell whether the plan is not on its way into the ledger."""
        plan = self._plans.get(name)
        return plan is None or not plan.under_way

    def is_dropping(self, name: str) -> bool:
        """Tell whether the ledger is being told of the end of a plan."""
        return name in self._dropping

    def expire(self) -> None:
        """End the plans that nobody has asked about."""
        now = self._clock.monotonic()
        for name, plan in list(self._plans.items()):
            if plan.until <= now and not plan.under_way:
                self._unplan(name)

    def drop(self, name: str, reason: str, pod_uid: str) -> None:
        """End a plan; the ledger is told if it has it."""
        if name in self._plans:
            self._unplan(name)
            return
        at_us = self._clock.wall_us()
        dropped = PlanDropped(group=name, reason=reason, pod_uid=pod_uid)
        for placement in self._groups.dropped(name):
            self._view.engine.release(placement.request.uid)
            self.freed(placement.node_name)
        self._groups.fold(dropped, at_us)
        new = events.plan_dropped(dropped, 1, at_us)
        self._drops[name] = structs.replace(new, idempotency_key=f"drop:{name}:{at_us}")

    def _unplan(self, name: str) -> None:
        """End a plan that the ledger does not have."""
        for node_name in self.undo(name):
            self.freed(node_name)

    def undo(self, name: str) -> list[str]:
        """Take such a plan back, and return the nodes of its places."""
        del self._plans[name]
        places = self._groups.unplanned(name)
        for placement in places:
            self._view.engine.release(placement.request.uid)
        self._over(name)
        return [placement.node_name for placement in places]

    # --- the ledger -----------------------------------------------------------------------------

    def before(self, name: str) -> tuple[list[NewEvent], Sequence[PodRequest]]:
        """Return what the ledger must be told before a reservation, and whose requests before."""
        told: list[NewEvent] = []
        drop = self._drops.pop(name, None)
        if drop is not None:
            self._dropping[name] = drop
            told.append(drop)
        plan = self._plans.get(name)
        if plan is None or plan.under_way:
            return told, ()
        plan.under_way = True
        return [*told, plan.event], plan.members

    def refused(self, name: str, chosen: Chosen) -> None:
        """Take back what the ledger has not recorded with these reservations, and will not."""
        drop = self._dropping.get(name)
        if drop is not None and drop in chosen.events:
            self._drops[name] = self._dropping.pop(name)
        plan = self._plans.get(name)
        if plan is not None and plan.event in chosen.events:
            self._unplan(name)

    def begin_drops(self) -> list[NewEvent]:
        """Return what the ledger is to be told of ends, and take it for being told."""
        drops = list(self._drops.values())
        self._dropping.update(self._drops)
        self._drops.clear()
        return drops

    def drop_failed(self, name: str) -> None:
        """Take note that the ledger was not told of an end: it is again."""
        drop = self._dropping.pop(name, None)
        if drop is not None:
            self._drops[name] = drop

    def has_told(self, event: LedgerEvent) -> bool:
        """Take note of an event that is in the ledger now; tell whether it was made here."""
        if isinstance(event, GroupPlanned) and event.group in self._plans:
            if self._plans[event.group].event.event == event:
                del self._plans[event.group]
                return True
        elif isinstance(event, PlanDropped) and event.group in self._dropping:
            del self._dropping[event.group]
            return True
        return False
