"""The groups and gangs of a cluster: plans, the places kept for members to come, deadlines."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from ledger.domain.devices import GPU
from ledger.domain.log import events as recorded
from ledger.domain.nodes import NodeFacts
from ledger.domain.request.requests import GangRef, PodRequest, group_name
from scheduler.decide.engine import Engine
from scheduler.decide.group.groups import (
    GANG_UNFIT,
    GroupPlan,
    TrialCluster,
    gpu_minors,
    place_beside,
    plan,
    same_again,
)
from scheduler.decide.group.life import (
    DEADLINE,
    ClusterFacts,
    GroupLife,
    apply_life,
    deadline_us,
    is_complete,
    review,
)
from scheduler.decide.outcome import NodeReasons, Placement, Unfit, Unplaced
from scheduler.decide.refusal.reasons import message

LEFT_MAX: Final = 256
_NOT_YET: Final = Unfit(reason=GANG_UNFIT)
"""Only members that are still to come would fit: there is nothing to begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """
    What a review of a group came to.

    Attributes:
        events: to be recorded and folded, in this order.
        voided: UIDs of members that lost their reservation, in the order in which they got it.
        nodes: where something became free.
        is_deadline: the gang's time is over.
    """

    events: tuple[recorded.PodVoided | recorded.PlanDropped, ...] = ()
    voided: tuple[str, ...] = ()
    nodes: tuple[int, ...] = ()
    is_deadline: bool = False


@dataclass(frozen=True, slots=True)
class _Given:
    """The UID of the node of a member that holds its devices, and its GPUs there."""

    node_uid: str
    minors: tuple[int, ...]


def refused_everywhere(
    request: PodRequest, refusal: Unfit, nodes: int, remedy: str = ""
) -> Unplaced:
    """Return a refusal for which every one of so many nodes has the same reason."""
    asked = f"asks {refusal.requested} {refusal.unit}".rstrip()
    detail = asked if refusal.available < 0 else f"{asked}, {refusal.available} available"
    return Unplaced(
        request=request,
        message=message(nodes, [(refusal.reason, nodes)]),
        reasons=(
            recorded.RefusalReason(
                reason=refusal.reason,
                nodes=nodes,
                detail=detail if refusal.requested >= 0 else "",
                remedy=remedy,
            ),
        ),
        nodes=NodeReasons(texts=((refusal.reason,),), codes=(0,) * nodes),
    )


def past_deadline(request: PodRequest) -> Unfit:
    """Return why a member is refused whose gang missed its deadline."""
    assert request.gang is not None, request
    return Unfit(reason=DEADLINE, requested=request.gang.min_available, unit="pods")


class Grouping:
    """
    Keeps the life of every group beside the engine: an open place is taken in the engine.

    Rule: design section 5, Groups; cli.md, Order. The life is folded from the events that are
    recorded, so that whoever reads them from a ledger knows the same.

    Args:
        nodes: those of the engine, in its order.
        elsewhere: group -> how many of its members run where no event tells of them.
        runs: tells whether a Pod runs that others gave its devices: the end of one may not be
            recorded yet.
    """

    def __init__(
        self,
        nodes: Sequence[NodeFacts],
        engine: Engine,
        elsewhere: Mapping[str, int],
        *,
        runs: Callable[[str], bool] = lambda _uid: True,
    ) -> None:
        self._runs = runs
        self.lives: dict[str, GroupLife] = {}
        self.use(nodes, engine)
        self._elsewhere = dict(elsewhere)
        self._left: dict[str, dict[str, str | None]] = {}  # group -> UID -> its group now
        self._gangs: dict[str, GangRef | None] = {}
        self._member_of: dict[str, str] = {}  # UID of a member that holds -> group
        self._open: dict[str, dict[str, Placement]] = {}  # group -> UID -> the place kept for it
        self._given: dict[str, dict[str, _Given]] = {}  # group -> UID -> where, and its GPUs
        self._due: dict[str, int] = {}  # gangs that are not complete -> when their time is over

    def use(self, nodes: Sequence[NodeFacts], engine: Engine) -> None:
        """Go on with another engine, of these nodes; what it has taken is the caller's matter."""
        self.engine = engine
        self._places: Mapping[str, int] = {node.uid: place for place, node in enumerate(nodes)}

    def follow(self, places: Mapping[str, int]) -> None:
        """Find nodes by a mapping of UIDs to the engine's numbers that somebody keeps current."""
        self._places = places

    def life_of(self, request: PodRequest) -> GroupLife:
        """Return the life of a member's group."""
        name = group_name(request)
        self._gangs[name] = request.gang
        return self.lives.setdefault(name, GroupLife(name=name))

    def gang_of(self, name: str) -> GangRef | None:
        """Return the gang of this name, None for a group that is none."""
        return self._gangs.get(name)

    def running(self, name: str) -> int:
        """Return how many members run that were not decided here."""
        here = sum(1 for pod in self._observed(name) if self._runs(pod.pod_uid))
        return here + self._elsewhere.get(name, 0)

    def _observed(self, name: str) -> Collection[recorded.PodObserved]:
        life = self.lives.get(name)
        return () if life is None else life.observed.values()

    def _untold(self, name: str) -> int:
        return max(0, self._elsewhere.get(name, 0))

    def count_running(self, name: str, running: int) -> None:
        """Take it that so many members run, wherever the others are than those observed."""
        self._elsewhere[name] = running - len(self._observed(name))

    def is_complete(self, name: str) -> bool:
        """Tell whether the group has started: enough members of a gang hold their devices."""
        return is_complete(self.lives[name], self._gangs[name], running=self._untold(name))

    def plan(
        self,
        arrived: Sequence[PodRequest],
        expected: Sequence[PodRequest],
        cluster: TrialCluster | None = None,
    ) -> GroupPlan:
        """
        Plan members that are there and members that are still to come.

        Rule: cli.md, Order: over all members in the input. What does not fit whole is planned
        for members that are there, and of a gang for its minimum; a gang that missed its deadline
        once is not planned for members to come.

        Args:
            cluster: as far as it may be planned with; None = all of it.
        """
        name = group_name(arrived[0])
        life, gang = self.life_of(arrived[0]), arrived[0].gang
        held = len(life.held) + self.running(name)
        if gang is not None and self.is_complete(name):
            held = max(held, gang.min_available)
        members = [*arrived, *(() if life.gave_up else expected)]
        trials = self.engine if cluster is None else cluster
        answer = plan(members, trials, running=held, in_use=self.nodes_of(name))
        here = answer.placements[: len(arrived)]
        if gang is not None and any(answer.placements) and not any(here):
            return GroupPlan(placements=(None,) * len(arrived), refusal=_NOT_YET)
        return answer if answer.whole or gang is not None else replace(answer, placements=here)

    def beside(self, request: PodRequest) -> Placement | None:
        """Return a place where the Pod's group is, None without one or without a group."""
        return place_beside(request, self.engine, self.nodes_of(group_name(request)))

    def keep(self, name: str, placement: Placement) -> None:
        """Take a place in the engine for a member that is still to come."""
        self.engine.reserve(placement)
        self._open.setdefault(name, {})[placement.request.uid] = placement

    def kept(self, request: PodRequest) -> Placement | None:
        """Return the place that is kept for a member; the engine has taken it already."""
        return self._open.get(group_name(request), {}).get(request.uid)

    def with_seen(self, placement: Placement) -> Placement:
        """
        Return the placement with all GPUs that its group has on the node.

        Rule: GPU-topology proposal, "Record the allocation information to the pod annotation"; with
        `groups.shareVisible` those that it has whole, which outsiders are not given from then on.
        """
        if placement.request.group is None:
            return placement
        name = group_name(placement.request)
        seen = {*gpu_minors(placement)}
        for held in self._given.get(name, {}).values():
            if held.node_uid == placement.node_uid:
                seen.update(held.minors)
        for open_place in self._open.get(name, {}).values():
            if open_place.node == placement.node:
                seen.update(gpu_minors(open_place))
        for pod in self._observed(name):
            if pod.node_uid == placement.node_uid:
                seen.update(share.minor for share in pod.shares if share.device_type == GPU)
        shown = self.engine.shown(placement, seen)
        if shown is not None:
            return shown
        seen.update(placement.visible_minors)
        return structs.replace(placement, visible_minors=tuple(sorted(seen)))

    def all_kept(self) -> Iterator[Placement]:
        """Yield every place that is kept for a member to come."""
        for places in self._open.values():
            yield from places.values()

    def left(self, name: str, uid: str, now: str | None) -> None:
        """
        Note that a Pod left the group for another, or is gone (None).

        The plan that names it may be told of later; so many are remembered of a group.
        """
        if name in self.lives:
            left = self._left.setdefault(name, {})
            left[uid] = now
            if len(left) > LEFT_MAX:
                del left[next(iter(left))]

    def came(self, name: str, uid: str) -> None:
        """Note that a Pod is in this group, also where it left it before."""
        self._left.get(name, {}).pop(uid, None)

    def group_of(self, uid: str) -> str:
        """Return the group of a member that holds its devices, empty for other Pods."""
        return self._member_of.get(uid, "")

    def given(self, placement: Placement) -> None:
        """Note what a member holds now; its place is over."""
        name, uid = group_name(placement.request), placement.request.uid
        self._open.get(name, {}).pop(uid, None)
        self._given.setdefault(name, {})[uid] = _Given(placement.node_uid, gpu_minors(placement))

    def given_by(self, event: recorded.PodReserved) -> None:
        """Note what a member holds by a reservation that is recorded."""
        minors = tuple(share.minor for share in event.shares if share.device_type == GPU)
        self._given.setdefault(event.group, {})[event.pod_uid] = _Given(event.node_uid, minors)

    def cleared(self, node_uid: str, held: Container[str]) -> None:
        """Forget what members had on a node that was cleared; `held`: UIDs of who has it again."""
        for name, given in list(self._given.items()):
            for uid in [u for u, at in given.items() if at.node_uid == node_uid and u not in held]:
                self.released(name, uid)

    def unplanned(self, name: str) -> list[Placement]:
        """Take a plan back that was never recorded, and return its places as `dropped` does."""
        life = self.lives[name]
        self._put(name, replace(life, places={}, plans=life.plans - 1))
        return self.dropped(name)

    def forget(self, name: str) -> None:
        """Forget a group without Pods, but for what they hold through lost nodes."""
        given = self._given.get(name, {})
        members = self._member_of.items()
        self._member_of = {uid: of for uid, of in members if of != name or uid in given}
        for kept in (self.lives, self._gangs, self._due, self._open, self._left):
            kept.pop(name, None)

    def fold(self, event: recorded.LedgerEvent, at_us: int) -> None:
        """Take an event into the life of its group; the loss of a node into each."""
        match event:
            case recorded.NodeLost():
                for name in self.lives:
                    self._apply(name, event, at_us)
                return
            case recorded.GroupPlanned() | recorded.PlanDropped():
                name = event.group
            case recorded.PodReserved() | recorded.PodObserved():
                name = event.group
                if name:
                    self._member_of[event.pod_uid] = name
            case _:
                uid = str(getattr(event, "pod_uid", ""))
                name = self._member_of.get(uid, "")
        if name:
            self._apply(name, event, at_us)

    def _apply(self, name: str, event: recorded.LedgerEvent, at_us: int) -> None:
        life = self.lives.get(name) or GroupLife(name=name)
        self._put(name, apply_life(life, event, at_us))

    def _put(self, name: str, life: GroupLife) -> None:
        self.lives[name] = life
        due = deadline_us(life, self._gangs.get(name), running=self._untold(name))
        if due is not None:
            self._due[name] = due
        else:
            self._due.pop(name, None)

    def released(self, name: str, uid: str) -> None:
        """Forget what a member held."""
        if self._given.get(name, {}).pop(uid, None) and not self._given[name]:
            del self._given[name]
        self._member_of.pop(uid, None)

    def taken(self, uid: str) -> Placement | None:
        """Forget the place that is kept for a Pod, and return it; the engine has it."""
        for places in self._open.values():
            if uid in places:
                return places.pop(uid)
        return None

    def places(self, name: str) -> list[Placement]:
        """Return the places that are kept for a group."""
        return list(self._open.get(name, {}).values())

    def dropped(self, name: str) -> list[Placement]:
        """Forget the places that are kept for a group, and return them; the engine has them."""
        return list(self._open.pop(name, {}).values())

    def next_deadline(self) -> int | None:
        """Return when the first incomplete gang has to give back what it holds."""
        return min(self._due.values(), default=None)

    def due(self, now_us: int) -> list[str]:
        """Return the gangs whose deadline has come, the earliest first, then by name."""
        deadlines = [(due, name) for name, due in self._due.items() if due <= now_us]
        return [name for _, name in sorted(deadlines)]

    def planned_on(self, node: int) -> list[str]:
        """Return the groups with an open place on a node, in the order of their first plans."""
        return [
            name
            for name, places in self._open.items()
            if any(placement.node == node for placement in places.values())
        ]

    def review(self, name: str, now_us: int) -> Ended:
        """End in the engine what facts and time say is over; return the events that say so."""
        ends = self.ends(name, now_us)
        nodes: list[int] = []
        voided: list[str] = []
        for end in ends:
            if isinstance(end, recorded.PodVoided):
                voided.append(end.pod_uid)
                nodes.append(self._places[end.node_uid])
                self.engine.release(end.pod_uid)
                self._given[name].pop(end.pod_uid)
            else:
                for placement in self.dropped(name):
                    nodes.append(placement.node)
                    self.engine.release(placement.request.uid)
        return Ended(
            events=ends,
            voided=tuple(voided),
            nodes=tuple(nodes),
            is_deadline=any(
                isinstance(end, recorded.PlanDropped) and end.reason == DEADLINE for end in ends
            ),
        )

    def ends(
        self, name: str, now_us: int, *, only: str = ""
    ) -> tuple[recorded.PodVoided | recorded.PlanDropped, ...]:
        """
        Return the events that facts and time call for; the engine is as it was.

        Args:
            only: the UID of a member; the places of the others are not looked at.
        """
        life = self.lives[name]
        if only:
            places = {uid: place for uid, place in life.places.items() if uid == only}
            life = replace(life, places=places)
        left = self._left.get(name, {})
        groups = {uid: left.get(uid, name) for uid in life.places}
        facts = ClusterFacts(
            groups={uid: group for uid, group in groups.items() if group is not None},
            usable=self._usable(life),
            refused=frozenset(self._refused(name, life.places)),
        )
        return review(life, self._gangs.get(name), facts, now_us, running=self._untold(name))

    def nodes_of(self, name: str) -> frozenset[int]:
        """Return the nodes where members hold something or have a place kept for them."""
        kept = [each.node for each in self._open.get(name, {}).values()]
        held = [each.node_uid for each in self._given.get(name, {}).values()]
        held += [pod.node_uid for pod in self._observed(name)]
        there = (self._places.get(uid) for uid in held)
        return frozenset((*kept, *(place for place in there if place is not None)))

    def _usable(self, life: GroupLife) -> dict[str, frozenset[int]]:
        uids: Iterable[str] = dict.fromkeys(place.node_uid for place in life.places.values())
        there = {uid: self._places[uid] for uid in uids if uid in self._places}
        views = {uid: self.engine.view(at, life.name) for uid, at in there.items()}
        return {
            uid: frozenset(
                card.record.minor
                for card in view.cards
                if card.record.device_type == GPU and not card.closed
            )
            for uid, view in views.items()
            if not view.facts.lost
        }

    def refused(self, name: str) -> frozenset[str]:
        """Return the members to come whose planned node would not take them now."""
        return frozenset(self._refused(name, self._open.get(name, {})))

    def _refused(self, name: str, uids: Iterable[str]) -> Iterator[str]:
        places = self._open.get(name, {})
        for uid, placement in [(uid, places[uid]) for uid in uids if uid in places]:
            self.engine.release(uid)
            if same_again(self.engine, placement) is None:
                yield uid
            self.engine.reserve(placement)
