"""
Groups and gangs of a live scheduler: what a member is answered and given, and what ends a plan.

Rule: design section 5, Groups; GPU-topology proposal, "main steps". A plan is made in memory when
kube-scheduler asks about the first member. It takes its places in the engine that answers filters,
so that no soft hold and no other plan gets them. The ledger has it from the first member's
reservation on; until then it is in `Plans`. Nothing in here waits; `gangs` does what has to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ledger.domain.log import events as log
from ledger.domain.log.recorded import NewEvent
from ledger.domain.log.recorded_request import recorded_request, request_digest
from ledger.domain.log.state import Holding
from ledger.domain.request.requests import PodRequest, group_name
from scheduler.decide.extender import AskedNodes
from scheduler.decide.filter.filtering import Filtered
from scheduler.decide.group import life as lived
from scheduler.decide.group.groups import MEMBERS_MISSING, Among, same_again
from scheduler.decide.outcome import Placement, Unfit
from scheduler.record import events
from scheduler.record.grouping import Grouping, past_deadline
from scheduler.service import starts
from scheduler.service.beginning import Beginning
from scheduler.service.budgets import Delays
from scheduler.service.holds import seconds_of
from scheduler.service.members import Members, Waiting
from scheduler.service.ports import Chosen, Clock
from scheduler.service.to_come import TO_COME_SECONDS, ToCome
from scheduler.service.view import ClusterView, Judged

RECORDING: Final = "the plan of its group, or the end of one, is being recorded"
PLANNING_SECONDS: Final = 2.0
"""How long a bind waits for that; it is one commit, unless an answer was lost."""
UNKNOWN_MEMBER: Final = "the watch has not shown the Pod yet"
MEMBERS_COME: Final = "members of the group are still being created"
MEMBERS_SECONDS: Final = 2.0
"""How long a group's first member waits for the others, whose number its label says."""
EVICTIONS_SECONDS: Final = 600
"""At most so often bound members of a gang are evicted: what fails again needs a person."""
SETTLING_SECONDS: Final = 30
"""
So long after a deadline bound members may be evicted: the others are fenced and voided first, and
a disruption budget may not allow it at once. Later they stay.
"""
GATES_MAX: Final = 3
"""So many gates are named in one reason; of the others the number is enough."""


class LiveGroups:
    """The groups and gangs beside a view; of `all_or_nothing` see `Plans.partial`."""

    def __init__(
        self,
        view: ClusterView,
        clock: Clock,
        begun: Beginning,
        *,
        all_or_nothing: bool = False,
    ) -> None:
        self._view = view
        self._clock = clock
        self.groups = Grouping((), view.engine, {}, runs=self._runs)
        self.groups.follow(view.numbers)
        self.members = Members(view, clock, came=self._came, left=self._left)
        self.plans = Plans(
            view, clock, self.groups, self.members, self._forget, all_or_nothing=all_or_nothing
        )
        self.starts = starts.Starts(
            view, clock, self.groups, self.members, give_back=self.plans.give_back
        )
        self._taken: dict[str, Placement] = {}  # UID -> its place, on its way into the ledger
        self._unfit: dict[str, Unfit] = {}  # gang -> why nobody of it got a place last
        view.wakeups.event_folded.subscribe(self._take_event)
        view.wakeups.node_dropped.subscribe(self.node_gone)
        for event, at_us in begun.groups:
            self.groups.fold(event, at_us)
            self._note(event)
        for name in list(self.groups.lives):
            self._forget(name)

    def _runs(self, uid: str) -> bool:
        seen = self._view.pods.seen.get(uid)
        return seen is not None and not seen.ended

    def __len__(self) -> int:
        return sum(1 for life in self.groups.lives.values() if life.places)

    # --- the ledger -----------------------------------------------------------------------------

    def _take_event(self, _position: int, event: log.LedgerEvent, _holding: Holding | None) -> None:
        if self.plans.has_told(event):
            return
        if isinstance(event, log.PodReserved) and event.group:
            self._taken.pop(event.pod_uid, None)
            self.starts.coming(event.pod_uid, 0.0)
            if self.groups.taken(event.pod_uid) is not None:
                self._view.engine.release(event.pod_uid)
        self.groups.fold(event, self._clock.wall_us())
        self._note(event)

    def _note(self, event: log.LedgerEvent) -> None:
        if isinstance(event, log.PodReserved) and event.group:
            if event.pod_uid in self._holders_on(event.node_uid):
                self.groups.given_by(event)
        elif isinstance(event, log.NodeCleared):
            uid = event.node_uid
            self.groups.cleared(uid, self._holders_on(uid) | self._taken.keys())
        elif isinstance(event, log.PodReleased | log.PodVoided):
            name = self.groups.group_of(event.pod_uid)
            if name and event.pod_uid not in self._holders_on(event.node_uid):
                self.groups.released(name, event.pod_uid)
                self._forget(name)

    def _holders_on(self, node_uid: str) -> set[str]:
        state = self._view.recorded(node_uid)
        return set() if state is None else {one.pod_uid for one in state.holdings.values()}

    # --- Pods -----------------------------------------------------------------------------------

    def _came(self, request: PodRequest) -> None:
        name = group_name(request)
        self.groups.life_of(request)
        self.groups.came(name, request.uid)
        if request.uid not in self.members.pods(name):
            self.starts.no_delay(name)

    def _left(self, uid: str, before: str, now: str) -> None:
        self.groups.left(before, uid, now or None)
        self._view.wakeups.member_given_up.publish(uid, starts.GONE)
        self.starts.coming(uid, 0.0)
        self.starts.no_delay(before)
        life = self.groups.lives.get(before)  # None where its start ended with the last member
        if life is not None and self.plans.leads and uid in life.places:
            self.plans.review(before)
        self._forget(before)

    def _forget(self, name: str) -> None:
        life = self.groups.lives.get(name)
        if life is None or not life.is_over or self.members.pods(name):
            return
        self.members.forget(name)
        self._unfit.pop(name, None)
        self.starts.forget(name)
        self.groups.forget(name)
        self.plans.give_up_to_come(name)
        if _was_evicted_lately(life, self._clock.wall_us()):
            self.groups.lives[name] = lived.GroupLife(name=name, evicted_us=life.evicted_us)

    def together(self, uid: str) -> frozenset[str]:
        """Return the Pods that stand or fall with a Pod: its gang's that have begun, and itself."""
        name = self.members.name_of(uid)
        if not name or self.groups.gang_of(name) is None:
            return frozenset((uid,))
        waiting = self.members.without_node(name).keys() - self.groups.lives[name].held.keys()
        return frozenset((uid, *(self.members.pods(name) - waiting)))

    def planned_now(self, name: str) -> dict[str, Waiting]:
        """
        Return the members of a gang that are gated and have a place, planned if need be.

        Nobody while too many of those who have one are behind somebody else's gates. Once a gang
        has begun also those who are placed alone: they have nobody to wait for.
        """
        self.plans.lead()
        if self.starts.is_backing_off(name):
            return {}
        gated = {uid: one for uid, one in self.members.waiting(name).items() if one.is_gated}
        if not gated:
            return {}
        is_new, first = name not in self.plans, next(iter(gated.values()))
        place = self._place_of(first.request, self._view.directory.numbers())
        found = {uid: one for uid, one in gated.items() if self.groups.kept(one.request)}
        if found and self._is_short(name):
            return {}
        if found:
            self.plans.extend(name)
        elif is_new and name in self.plans:
            self.plans.undo(name)  # of those whom kube-scheduler asks about, at their turn
        is_alone = place is None and not found and self.groups.is_complete(name)
        return gated if is_alone else found

    def _is_short(self, name: str) -> bool:
        """Tell whether too few of a planned gang are free to begin; its plan stands meanwhile."""
        needed, members = self.starts.needed(name), self.members.waiting(name).values()
        ready = sum(1 for one in members if self.groups.kept(one.request) is not None)
        if ready >= needed:
            return False
        self.plans.extend(name)
        self._unfit[name] = Unfit(
            reason=starts.MEMBERS_GATED, requested=needed, available=ready, unit="pods"
        )
        return True

    def place_kept(self, request: PodRequest) -> Placement | None:
        """Return the place that a plan keeps for a member, the ledger's or one of ours."""
        self.plans.lead()
        return self.groups.kept(request)

    def why_nowhere(self, name: str) -> Unfit | None:
        """Return why a gang got no places, or did not begin, when it was planned last."""
        if self.starts.is_backing_off(name):
            return Unfit(reason=starts.GANG_BACKOFF)
        return self._unfit.get(name)

    def gates_of_others(self, name: str) -> str:
        """Return which gates but Kueue's keep back which members; empty without any."""
        behind = [one for one in self.members.behind_gates(name).values() if not one.is_queued]
        found = [f"{gate} of {one.request.path}" for one in behind for gate in one.gates_of_others]
        more = f" and {len(found) - GATES_MAX} more" if len(found) > GATES_MAX else ""
        return ", ".join(found[:GATES_MAX]) + more

    @contextmanager
    def place_lifted(self, request: PodRequest) -> Iterator[Placement | None]:
        """Let the block look at the nodes as if a member's place were not taken; yield it."""
        placement = self.groups.kept(request)
        if placement is not None:
            self._view.engine.release(request.uid)
        try:
            yield placement
        finally:
            if placement is not None:
                self._view.engine.reserve(placement)

    # --- filter ---------------------------------------------------------------------------------

    def why_not_yet(self, request: PodRequest) -> str:
        """
        Return why a group or gang is not planned yet, empty where it is or may be.

        kube-scheduler may know a Pod before our watch shows it; then nobody knows yet who else is
        there. The label of a group says how many Pods it has. kube-scheduler asks about the first
        before the last is created, so the first waits for them a moment.
        """
        name = group_name(request)
        if not name:
            return ""
        if request.uid not in self.members.pods(name):
            return UNKNOWN_MEMBER
        life = self.groups.lives[name]
        if request.group is None or request.gang is not None:
            return ""
        if life.plans or life.held or len(self.members.pods(name)) >= request.group.replica:
            return ""
        waits = self._clock.monotonic() < self._first_at(name) + MEMBERS_SECONDS
        return MEMBERS_COME if waits else ""

    def _first_at(self, name: str) -> float:
        """Return when the watch showed the first of a group's members without a node."""
        waiting = self.members.without_node(name).values()
        return min((one.since for one in waiting), default=self._clock.monotonic())

    def judge(self, request: PodRequest, names: Sequence[str]) -> Judged:
        """
        Judge these nodes for a member: if it has a place, only the node of it passes.

        Raises:
            InputError: a name that is no text.
        """
        view, uid, name = self._view, request.uid, group_name(request)
        asked = view.directory.ask(names)
        life = self.groups.life_of(request)
        if uid in self._taken:  # on its way into the ledger, with its gang
            return view.remember(_only(request, asked, self._taken[uid].node))
        if uid in life.held:
            number = view.numbers.get(life.held[uid].node_uid)
            return view.remember(_only(request, asked, number))
        if self.starts.is_backing_off(name):
            return view.remember(_only(request, asked, None, reason=starts.GANG_BACKOFF))
        self.plans.review(name, only=uid)
        among = frozenset(asked.nodes.tolist())
        placement = self._place_of(request, among)
        if isinstance(placement, Unfit):
            return view.remember(_only(request, asked, None, reason=placement.reason))
        if placement is not None:
            self.plans.extend(name)
            if placement.node in among:
                self.starts.coming(uid, self._clock.monotonic() + starts.COMING_SECONDS)
            return view.remember(_only(request, asked, placement.node))
        beside = self.plans.to_come.give(name, uid, among) | (among & self.groups.nodes_of(name))
        if beside:
            found = view.engine.filter(request, sorted(beside)).best
            if found is not None:
                return view.remember(_only(request, asked, found.node, found))
        return view.judge(request, names)

    def _place_of(self, request: PodRequest, among: Collection[int]) -> Placement | Unfit | None:
        """Return the place of a member, planned now if need be; None = it is placed alone."""
        found, name = self._find_place(request, among), group_name(request)
        if isinstance(found, Unfit):
            self._unfit[name] = found
        else:
            self._unfit.pop(name, None)
        return found

    def _find_place(self, request: PodRequest, among: Collection[int]) -> Placement | Unfit | None:
        name = group_name(request)
        placement = self.groups.kept(request)
        if placement is not None:
            if placement.node in among or self.plans.is_under_way(name):
                return placement
            if self.starts.others_come(name, request.uid):
                return self.plans.move(name, placement, among)
            self.plans.drop(name, lived.NODE_REFUSES, request.uid)
        if self.plans.partial(name):
            return past_deadline(request)
        life, has_group = self.groups.life_of(request), request.group is not None
        if (
            lived.next_step(life, request.uid, has_group=has_group)
            is not lived.MemberAction.PLAN_GROUP
        ):
            return None
        refusal = self.plan(request, among)
        return self.groups.kept(request) if refusal is None else refusal

    def plan(self, request: PodRequest, among: Collection[int]) -> Unfit | None:
        """
        Plan all who wait of a group where this one may go; return why a gang gets nothing.

        A group is planned for the number on its label, where all of it fits: members to come are
        like the first, for a bounded time after it. Who is behind somebody else's gate comes after
        those who are free. Whom Kueue keeps back does not count for a gang's minimum.
        """
        name = group_name(request)
        behind = self.members.planned_behind_gates(name)
        waiting = {**self.members.waiting(name), **behind}
        queued = [uid for uid, one in behind.items() if request.gang and one.is_queued]
        members = {uid: one.request for uid, one in waiting.items() if uid not in queued}
        members.setdefault(request.uid, request)
        held = self.groups.life_of(request).held.keys() | self._taken.keys()
        members = {uid: each for uid, each in members.items() if uid not in held}
        if not members:  # a watch that is late tells of it as it was
            return None
        for uid in members:
            self._view.wakeups.member_planned.publish(uid)
        engine = self._view.engine
        if request.gang and not request.group:  # others may go where this one can't
            among = self._view.directory.numbers() - {*engine.candidates(request)} | {*among}
        here, cluster = list(members.values()), Among(engine, among)
        self.plans.give_up_to_come(name)
        missing, until = 0, self._first_at(name) + TO_COME_SECONDS
        if request.group and not request.gang and self._clock.monotonic() < until:
            missing = request.group.replica - len(self.members.pods(name) | members.keys())
        later = self.plans.to_come.like(here[0], missing)
        if request.gang and len(here) >= self.starts.needed(name):
            later = [waiting[uid].request for uid in queued]
        answer = self.groups.plan(here, later, cluster)
        if later and not answer.whole:
            later, answer = [], self.groups.plan(here, (), cluster)
        known = [*here, *later] if request.gang else here
        places = answer.placements
        taken = [placement for placement in places[: len(known)] if placement is not None]
        if answer.refusal is None and taken:
            self.plans.keep(name, known, taken)
            self.plans.to_come.keep(name, [each for each in places[len(known) :] if each], until)
        return answer.refusal

    # --- bind -----------------------------------------------------------------------------------

    def choose(self, request: PodRequest, node_name: str) -> Placement | str:
        """Return what a member gets on the node that was named, or why it gets nothing there."""
        view, nodes, name = self._view, self.nodes_of(request, node_name), group_name(request)
        number = view.directory.number(node_name)
        if number is None:
            return view.directory.closed(node_name)
        if self.plans.is_dropping(name) or self.plans.is_under_way(name):
            return RECORDING
        is_planned = self.groups.kept(request) is not None
        if self.starts.not_begun(request.uid) and not (
            is_planned and not self.starts.why_not(name, self.starts.permitted(name))
        ):
            unfit = self.why_nowhere(name)  # else the others were chosen for by another plan
            return starts.ELSEWHERE if unfit is None else unfit.reason
        stays = not is_planned and self.starts.is_awaited(request.uid)
        placement = None if stays else self._place_of(request, view.directory.numbers())
        if isinstance(placement, Unfit):
            return placement.reason
        if not set(nodes).issuperset(self.nodes_of(request, node_name)):
            return (
                starts.ELSEWHERE
            )  # planned now, and others' places give way on the nodes of before
        if placement is None:
            chosen = view.choose(request.uid, node_name)
            return chosen if isinstance(chosen, str) else self._give(chosen)
        if placement.node != number:
            return starts.ELSEWHERE
        if self._lacks_members(request):
            return MEMBERS_MISSING
        return self._take(placement) or lived.NODE_REFUSES

    def _lacks_members(self, request: PodRequest) -> bool:
        name = group_name(request)
        needed = self.starts.needed(name)
        if needed <= 1:
            return False
        refused = self.groups.refused(name)
        waiting = self.members.waiting(name).items()
        ready = {uid for uid, one in waiting if uid not in refused and self._is_ready(one)}
        return len(ready) < needed or not self.starts.permitted(name).keys() <= ready

    def _is_ready(self, one: Waiting) -> bool:
        placement = self.groups.kept(one.request)
        if placement is None or one.is_gated:
            return False
        return self._view.directory.number(placement.node_name) == placement.node

    def nodes_of(self, request: PodRequest, node_name: str) -> list[str]:
        """Return the nodes on which something is chosen when a Pod is bound to this one."""
        places = self.groups.places(group_name(request)) if request.gang is not None else ()
        return list(dict.fromkeys((node_name, *(place.node_name for place in places))))

    def others(self, request: PodRequest) -> Iterator[tuple[Placement, str]]:
        """
        Yield what the other members of a gang get that are planned, with their Pods' versions.

        Rule: design section 5, Gangs: all their reservations are one transaction. Each is chosen
        on what those before it got, which the caller lets count.
        """
        if request.gang is None:
            return
        for uid, one in self.members.waiting(group_name(request)).items():
            placement = self.groups.kept(one.request)
            if placement is None or uid == request.uid or not self._is_ready(one):
                continue
            taken = self._take(placement)
            if taken is not None:
                yield taken, one.version

    def _take(self, placement: Placement) -> Placement | None:
        """
        Give a member its place, on the plan's GPUs, chosen again from what is held.

        None where the node does not take it any more; a review ends the plan.
        """
        engine, uid = self._view.engine, placement.request.uid
        self.groups.taken(uid)
        engine.release(uid)
        again = same_again(engine, placement)
        if again is None:
            self.groups.keep(group_name(placement.request), placement)
        return None if again is None else self._give(again)

    def _give(self, placement: Placement) -> Placement:
        seen = self.groups.with_seen(placement)
        self.groups.given(placement)
        self._taken[placement.request.uid] = placement
        return seen

    def refused(self, chosen: Chosen) -> None:
        """Take back what the ledger has not recorded, and will not."""
        name = chosen.reservation.group
        for event in chosen.reservations:
            self.groups.released(name, event.pod_uid)
        self.plans.refused(name, chosen)
        for event in chosen.reservations:
            placement = self._taken.pop(event.pod_uid, None)
            life = self.groups.lives.get(name)  # None where all members went meanwhile
            if placement is None or life is None or event.pod_uid not in life.places:
                continue
            if not self.plans.keep_again(name, placement):
                self.plans.drop(name, lived.NODE_REFUSES, event.pod_uid)

    def node_gone(self, pod_uids: Sequence[str]) -> None:
        """End plans whose places the engine gave back when their node went."""
        for uid in pod_uids:
            self.plans.to_come.gone(uid)
        places = [*filter(None, map(self.groups.taken, pod_uids))]
        for name, uid in {group_name(one.request): one.request.uid for one in places}.items():
            if not self.plans.is_under_way(name):
                self.plans.drop(name, lived.NODE_GONE, uid)


def _only(
    request: PodRequest,
    asked: AskedNodes,
    number: int | None,
    best: Placement | None = None,
    *,
    reason: str = starts.ELSEWHERE,
) -> Judged:
    """Return that one node passes, if it was asked about."""
    here = asked.nodes == (-1 if number is None else number)
    failing = np.flatnonzero(~here)
    passing = np.flatnonzero(here)
    filtered = Filtered(
        best=best,
        passing=passing,
        ratings=np.zeros(len(passing), dtype=np.int64),
        failing=failing,
        codes=np.zeros(len(failing), dtype=np.int64),
        hopeless=np.ones(len(failing), dtype=np.bool_),
        reasons=(reason,),
    )
    return Judged(request=request, asked=asked, filtered=filtered)


def _was_evicted_lately(life: lived.GroupLife, now_us: int) -> bool:
    return bool(life.evicted_us) and now_us < life.evicted_us + EVICTIONS_SECONDS * 1_000_000


@dataclass(slots=True, kw_only=True)
class _Plan:
    """
    A plan that the ledger does not have.

    Attributes:
        until: it ends then, unless kube-scheduler asks about a member.
        under_way: it is in a command whose answer has not come.
        known: set once that came, or the plan ended.
    """

    event: NewEvent
    members: Sequence[PodRequest]
    until: float
    under_way: bool = False
    known: asyncio.Event = field(default_factory=asyncio.Event)


class Plans:
    """
    Plans of groups that only memory has; what ends plans and waits; ends that are to be recorded.

    Args:
        over: called with the name of a group whose plan ended.
        all_or_nothing: of a gang that missed its deadline bound members go, too.

    Attributes:
        leads: this process decides, and has the open places of the ledger's plans.
        to_come: the places of members that are not created yet, which no event tells.
    """

    def __init__(
        self,
        view: ClusterView,
        clock: Clock,
        groups: Grouping,
        members: Members,
        over: Callable[[str], None],
        *,
        all_or_nothing: bool,
    ) -> None:
        self._view = view
        self._clock = clock
        self._groups = groups
        self._members = members
        self._over = over
        self._all_or_nothing = all_or_nothing
        self.leads = False
        self.to_come = ToCome(view.engine, clock)
        self._plans: dict[str, _Plan] = {}
        self._drops: dict[str, NewEvent] = {}  # group -> what the ledger is to be told
        self._dropping: dict[str, NewEvent] = {}  # likewise, and it is being told
        self._delays = Delays[str](clock.monotonic)  # of ends that the ledger refused

    def __contains__(self, name: object) -> bool:
        return name in self._plans

    # --- what is made ---------------------------------------------------------------------------

    def keep(self, name: str, members: Sequence[PodRequest], taken: Sequence[Placement]) -> None:
        """Take the places of a plan, which is recorded with the first reservation."""
        at_us = self._clock.wall_us()
        new = events.group_planned(
            name,
            taken,
            at_us,
            at_us,
            waiting=[
                events.group_member(each, request_digest(recorded_request(each)))
                for each in members
            ],
            to_come=(),
            running=self._groups.running(name),
        )
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

    def move(self, name: str, placement: Placement, among: Collection[int]) -> Placement:
        """Return another place among these nodes for one member, or its old one without any."""
        plan, engine = self._plans.get(name), self._view.engine
        if plan is None:
            return placement
        self._groups.taken(placement.request.uid)
        engine.release(placement.request.uid)
        best = engine.filter(placement.request, sorted(among)).best
        if best is None:
            self._groups.keep(name, placement)
            return placement
        places = [*self._groups.places(name), best]
        self.undo(name)
        self.keep(name, plan.members, places)
        self._tell_room((placement.node_name,))
        return best

    # --- what gives way -------------------------------------------------------------------------

    @contextmanager
    def lifted(self, pod_uid: str, node_name: str) -> Iterator[bool]:
        """
        Let the block choose for a Pod that is bound to this node, without plans of other groups.

        Only what the ledger does not have is lifted, as soft holds are. A group whose cards the Pod
        took is planned again, on the same nodes or not at all. The value tells whether there was
        anything to lift.
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
        """Take a place again that was given back; tell whether it was free."""
        again = same_again(self._view.engine, placement)
        if again is not None:
            self._groups.keep(name, again)
        return again is not None

    def _plan_again(self, name: str, lifted: Sequence[Placement]) -> None:
        """Plan a group anew whose cards went to another Pod, if its members keep their nodes."""
        plan = self._plans[name]
        places = {place.request.uid: place.node for place in (*lifted, *self._groups.places(name))}
        self._tell_room(self.undo(name))
        nodes = frozenset(places.values())
        for member in plan.members:
            self._view.wakeups.member_planned.publish(member.uid)
        answer = self._groups.plan(plan.members, (), Among(self._view.engine, nodes))
        taken = [placement for placement in answer.placements if placement is not None]
        if {placement.request.uid: placement.node for placement in taken} == places:
            self.keep(name, plan.members, taken)
            self._plans[name].until = plan.until
        else:
            self.give_up_to_come(name)

    # --- what ends ------------------------------------------------------------------------------

    def is_under_way(self, name: str) -> bool:
        """Tell whether the plan is on its way into the ledger."""
        plan = self._plans.get(name)
        return plan is not None and plan.under_way

    async def recorded(self, name: str) -> None:
        """Come back once the plan is not on its way into the ledger, or after a while."""
        if self.is_under_way(name):
            with suppress(TimeoutError):
                async with asyncio.timeout(PLANNING_SECONDS):
                    await self._plans[name].known.wait()

    def under_way(self, node_name: str) -> set[str]:
        """Return the groups with places on a node whose plans are on their way into the ledger."""
        return {
            name
            for name, plan in self._plans.items()
            if plan.under_way
            and any(place.node_name == node_name for place in self._groups.places(name))
        }

    def ends_due(self) -> tuple[str, ...]:
        """Return the groups whose plans have ended, which the ledger does not have yet."""
        return (*self._drops, *self._dropping)

    def is_dropping(self, name: str) -> bool:
        """Tell whether the ledger is being told of the end of a plan."""
        return name in self._dropping

    def expire(self) -> None:
        """End the plans that nobody has asked about, and the wait for members that did not come."""
        self._tell_room(self.to_come.expire())
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
        dropped = log.PlanDropped(group=name, reason=reason, pod_uid=pod_uid)
        for placement in self._groups.dropped(name):
            self._view.engine.release(placement.request.uid)
            self._view.wakeups.room_freed.publish(placement.node_name)
        self._groups.fold(dropped, at_us)
        self._drops[name] = events.plan_dropped(dropped, at_us, at_us)

    def give_back(self, name: str) -> None:
        """End the plan of a gang that did not begin."""
        life = self._groups.lives.get(name)
        if life is not None and life.places and not self.is_under_way(name):
            self.drop(name, MEMBERS_MISSING, "")

    def _unplan(self, name: str) -> None:
        """End a plan that the ledger does not have."""
        self._tell_room([*self.undo(name), *self.to_come.drop(name)])

    def give_up_to_come(self, name: str) -> None:
        """Keep nothing any more for members of a group that are still to be created."""
        self._tell_room(self.to_come.drop(name))

    def _tell_room(self, node_names: Sequence[str]) -> None:
        for node_name in node_names:
            self._view.wakeups.room_freed.publish(node_name)

    def undo(self, name: str) -> list[str]:
        """Take such a plan back, and return the nodes of its places."""
        self._plans.pop(name).known.set()
        places = self._groups.unplanned(name)
        for placement in places:
            self._view.engine.release(placement.request.uid)
        self._over(name)
        return [placement.node_name for placement in places]

    def lead(self) -> None:
        """Take the open places of the ledger's plans, once this process decides."""
        if self.leads:
            return
        self.leads = True
        engine, lives = self._view.engine, self._groups.lives
        for name, life in list(lives.items()):
            members = {uid: one.request for uid, one in self._members.without_node(name).items()}
            gone = [uid for uid in life.places if uid not in members]
            for uid in gone:
                self._groups.left(name, uid, None)
            taken = lived.take_again(life, members, self._view.numbers, engine)
            for placement in (taken or {}).values():
                engine.undo(placement)
            for placement in (taken or {}).values():
                self._groups.keep(name, placement)
            if taken is None:
                self.drop(
                    name, lived.MEMBER_GONE if gone else lived.NODE_REFUSES, next(iter(gone), "")
                )
            self._over(name)

    def review_all(self) -> None:
        """End what is over of every plan and wait."""
        self.lead()
        self.expire()
        for name in list(self._groups.lives):
            self.review(name)
            self._over(name)

    def review(self, name: str, *, only: str = "") -> None:
        """End a plan that is no longer valid, or the wait of a gang; `only` as in `ends`."""
        life = self._groups.lives.get(name)
        if life is None or self.is_under_way(name):
            return
        if not life.places and (not life.held or self._groups.gang_of(name) is None):
            return
        self._end_wait(name, life)
        for end in self._groups.ends(name, self._clock.wall_us(), only=only):
            if isinstance(end, log.PodVoided):
                self._view.wakeups.member_given_up.publish(end.pod_uid, end.reason)
            elif life.places or not life.gave_up:
                self.drop(name, end.reason, end.pod_uid)
        life = self._groups.lives.get(name, life)
        behind = [uid for uid in self._members.behind_gates(name) if uid in life.places]
        if behind and not self._members.planned_behind_gates(name):
            self.drop(name, starts.MEMBERS_GATED, behind[0])

    def _end_wait(self, name: str, life: lived.GroupLife) -> None:
        """
        Give up the members of a gang that are not bound so long after they were reserved for.

        Rule: design section 5, Gangs. The ledger has the whole gang at once; bound members count.
        A gang that has begun misses no deadline by those who come later, such as a new worker.
        """
        gang = self._groups.gang_of(name)
        if gang is None or not life.held:
            return
        wait_us = gang.waiting_seconds * 1_000_000
        before_us, first_us = self._clock.wall_us() - wait_us, life.waiting_since_us + wait_us
        unbound = {uid: held for uid, held in life.held.items() if not held.bound}
        late = {uid: held for uid, held in unbound.items() if held.since_us <= before_us}
        for uid in late:
            self._view.wakeups.member_given_up.publish(uid, lived.DEADLINE)
        if not late or any(held.since_us >= first_us for held in late.values()):
            return
        started = len(life.held) - len(late) + self._groups.running(name) >= gang.min_available
        if not started and (not life.gave_up or self._groups.is_complete(name)):
            self.drop(name, lived.DEADLINE, "")

    def partial(self, name: str) -> tuple[str, ...]:
        """
        Return the bound members of a gang that missed its deadline, if they are to go.

        Rule: design section 5, Gangs: evicting bound members is a setting. They go once each other
        member is bound or given up. Until they are gone, no member is placed. Nobody goes where one
        has run longer than the gang may wait, nor soon after members went at an earlier deadline.
        """
        life, gang = self._groups.lives.get(name), self._groups.gang_of(name)
        if not self._all_or_nothing or life is None or gang is None or not life.gave_up:
            return ()
        if life.places or self._groups.is_complete(name):
            return ()
        now_us, seen = self._clock.wall_us(), self._view.pods.seen
        if life.evicted_us <= life.waiting_since_us and _was_evicted_lately(life, now_us):
            return ()
        oldest_us = now_us - (gang.waiting_seconds + SETTLING_SECONDS) * 1_000_000
        old = (uid for uid, held in life.held.items() if held.since_us < oldest_us)
        if not all(uid in seen and seen[uid].leaving for uid in old):
            return ()
        is_settled = all(held.bound for held in life.held.values())
        enough = len(life.held) + self._groups.running(name) >= gang.min_available
        return tuple(life.held) if is_settled and not enough else ()

    def partials(self) -> list[str]:
        """Return all such members, in the order of their gangs."""
        return [uid for name in sorted(self._groups.lives) for uid in self.partial(name)]

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
        self.drops_failed(chosen.events)
        plan = self._plans.get(name)
        if plan is not None and plan.event in chosen.events:
            self._unplan(name)

    def begin_drops(self) -> list[NewEvent]:
        """Return the ends to record, and count them as under way."""
        due = {name: drop for name, drop in self._drops.items() if self._delays.is_due(name)}
        self._dropping |= due
        self._drops = {name: drop for name, drop in self._drops.items() if name not in due}
        return list(due.values())

    def drops_failed(self, drops: Sequence[NewEvent]) -> None:
        """Let ends that could not be recorded be recorded again, unless the feed told of them."""
        for name, drop in list(self._dropping.items()):
            if drop in drops:
                self._drops[name] = self._dropping.pop(name)

    def drop_refused(self, dropped: log.PlanDropped) -> None:
        """Let an end that the ledger refused be recorded under a new key, after a while."""
        if self._dropping.pop(dropped.group, None) is not None:
            at_us = self._clock.wall_us()
            self._drops[dropped.group] = events.plan_dropped(dropped, at_us, at_us)
            self._delays.failed(dropped.group)

    def has_told(self, event: log.LedgerEvent) -> bool:
        """Take note of an event that is in the ledger now; tell whether it was made here."""
        if isinstance(event, log.GroupPlanned) and event.group in self._plans:
            if self._plans[event.group].event.event == event:
                self._plans.pop(event.group).known.set()
                return True
        elif isinstance(event, log.PlanDropped):
            for due in (self._dropping, self._drops):  # the answer may have been lost
                if event.group in due and due[event.group].event == event:
                    del due[event.group]
                    self._delays.over(event.group)
                    return True
        return False
