"""
The life of one group or gang: from its plan over its members' places to the end of its wait.

Pure: the ledger's events make the state, and state, facts and time say which events come next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from ledger.domain.log import events
from ledger.domain.request.requests import GangRef, PodRequest
from scheduler.decide.group.groups import TrialCluster, gpu_minors
from scheduler.decide.outcome import Placement

MEMBER_GONE: Final = "PlannedMemberGone"
MEMBER_CHANGED: Final = "PlannedMemberChanged"
NODE_GONE: Final = "PlannedNodeGone"
NODE_REFUSES: Final = "PlannedNodeRefuses"
DEVICE_UNUSABLE: Final = "PlannedDeviceUnusable"
DEADLINE: Final = "GangDeadlinePassed"

_SECOND_US: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """
    What the ledger needs to name a member's reservation, and whether it is bound.

    Attributes:
        since_us: when it was reserved; of one that is bound, when it was bound.
    """

    node_uid: str
    attempt: int
    since_us: int
    bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLife:
    """
    What the ledger says about one group or gang.

    Attributes:
        name: as events name it; it carries namespace, name and the replica label.
        places: Pod UID -> the place that waits for it, in the order of the plan.
        held: Pod UID -> reservation, of members that hold their devices.
        observed: Pod UID -> what it holds, of members that others gave their devices.
        waiting_since_us: time of the plan with which the first of those now held began.
        held_at_once: the most members that ever held their devices at one time, whoever gave them.
        gave_up_us: when the deadline passed last without enough members; -1 = never.
        evicted_us: when a member ended last that was bound as its gang missed the deadline. It may
            have been evicted, also where whoever recorded its end does not know that.
    """

    name: str
    places: Mapping[str, events.PlannedMember] = field(default_factory=dict)
    held: Mapping[str, Held] = field(default_factory=dict)
    observed: Mapping[str, events.PodObserved] = field(default_factory=dict)
    waiting_since_us: int = 0
    held_at_once: int = 0
    plans: int = 0
    drops: int = 0
    gave_up_us: int = -1
    evicted_us: int = 0

    @property
    def gave_up(self) -> bool:
        """Tell whether the deadline has passed without enough members."""
        return self.gave_up_us >= 0

    @property
    def is_over(self) -> bool:
        """Tell whether nobody holds anything or has a place."""
        return not (self.held or self.places or self.observed)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """
    What is known of the cluster beside the ledger.

    Attributes:
        groups: Pod UID -> the name of its group now, of every Pod that exists or is to come.
        usable: node UID -> minors of its GPUs that may be granted, of every node that exists.
        refused: UIDs of Pods whose planned node does not pass the filters for them now.
    """

    groups: Mapping[str, str]
    usable: Mapping[str, frozenset[int]]
    refused: frozenset[str] = frozenset()


class MemberAction(StrEnum):
    """What is done with a member that is to be scheduled."""

    TAKE_PLACE = "take the place that the plan keeps for it"
    PLAN_GROUP = "plan all members that have no place"
    PLACE_ALONE = "find a node for this Pod alone, one of its group's if it can be"


def apply_life(life: GroupLife, event: events.LedgerEvent, at_us: int) -> GroupLife:
    """
    Fold one event into the group's life. Pure and total; events of others change nothing.

    Rule: design section 5, Groups. A plan replaces the one before it; a reservation takes its
    Pod's place, wherever it is; what is released or voided holds nothing any more, and at a gang's
    deadline only who is bound has started, or was given its devices by others. What a lost node's
    Pods hold is no help to their group: they count as gone.
    """
    match event:
        case events.GroupPlanned() if event.group == life.name and event.members:
            return replace(
                life,
                places={member.pod_uid: member for member in event.members},
                waiting_since_us=at_us if life.gave_up or not life.held else life.waiting_since_us,
                plans=life.plans + 1,
            )
        case events.PlanDropped() if event.group == life.name:
            dropped = replace(life, places={}, drops=life.drops + 1)
            if event.reason != DEADLINE:
                return dropped
            started = sum(held.bound for held in life.held.values()) + len(life.observed)
            return replace(dropped, gave_up_us=at_us, held_at_once=started)
        case events.PodReserved() if event.group == life.name:
            left = {uid: place for uid, place in life.places.items() if uid != event.pod_uid}
            held = Held(node_uid=event.node_uid, attempt=event.attempt, since_us=at_us)
            now = {**life.held, event.pod_uid: held}
            return _counted(replace(life, places=left, held=now))
        case events.PodObserved() if event.group == life.name:
            return _counted(replace(life, observed={**life.observed, event.pod_uid: event}))
        case events.PodBound() if event.pod_uid in life.held:
            bound = replace(life.held[event.pod_uid], bound=True, since_us=at_us)
            return replace(life, held={**life.held, event.pod_uid: bound})
        case events.PodReleased() | events.PodVoided() if event.pod_uid in life.held:
            others = {uid: held for uid, held in life.held.items() if uid != event.pod_uid}
            was_there = life.held[event.pod_uid].since_us <= life.gave_up_us
            may_be = was_there and isinstance(event, events.PodReleased)
            return replace(life, held=others, evicted_us=at_us if may_be else life.evicted_us)
        case events.PodReleased() if event.pod_uid in life.observed:
            left_over = {uid: at for uid, at in life.observed.items() if uid != event.pod_uid}
            return replace(life, observed=left_over)
        case events.NodeLost():
            there = {uid: at for uid, at in life.held.items() if at.node_uid != event.node_uid}
            seen = {uid: at for uid, at in life.observed.items() if at.node_uid != event.node_uid}
            is_same = len(there) == len(life.held) and len(seen) == len(life.observed)
            return life if is_same else replace(life, held=there, observed=seen)
        case _:
            return life


def _counted(life: GroupLife) -> GroupLife:
    return replace(life, held_at_once=max(life.held_at_once, len(life.held) + len(life.observed)))


def next_step(life: GroupLife, pod_uid: str, *, has_group: bool) -> MemberAction:
    """
    Return what is done with a member that is to be scheduled now.

    Rule: Koordinator GPU-topology proposal, "main steps": the first member's turn plans all that
    are not scheduled, a member takes its place. Where the plan is no longer valid, the whole
    group is planned again as long as none of it is scheduled; otherwise, and for a member that a
    standing plan does not name, only a suitable node for this Pod is looked for. Members of a
    gang without the topology labels have no links to lose: those that wait are planned together,
    whoever is scheduled.

    Args:
        has_group: the Pod has the topology labels.
    """
    if pod_uid in life.places:
        return MemberAction.TAKE_PLACE
    if life.places or (has_group and life.plans and life.held):
        return MemberAction.PLACE_ALONE
    return MemberAction.PLAN_GROUP


def why_invalid(life: GroupLife, facts: ClusterFacts) -> tuple[str, str]:
    """
    Return why the plan is no longer valid and by whose place, empty while it is.

    Rule: GPU-topology proposal, "main steps"; design section 5: a plan is dropped when it stops
    being valid. It is as a whole: every member that still waits for its place must exist, in this
    group (the replica label is part of its name), on a node that exists and passes the filters,
    with GPUs that may be granted. Members that hold their devices are past it.
    """
    for uid, place in life.places.items():
        reason = _why_not_there(uid, place, life.name, facts)
        if reason:
            return reason, uid
    return "", ""


def _why_not_there(uid: str, place: events.PlannedMember, group: str, facts: ClusterFacts) -> str:
    if uid not in facts.groups:
        return MEMBER_GONE
    if facts.groups[uid] != group:
        return MEMBER_CHANGED
    if place.node_uid not in facts.usable:
        return NODE_GONE
    if not facts.usable[place.node_uid].issuperset(place.minors):
        return DEVICE_UNUSABLE
    return NODE_REFUSES if uid in facts.refused else ""


def is_complete(life: GroupLife, gang: GangRef | None, *, running: int = 0) -> bool:
    """
    Tell whether as many members held their devices at once as must start together.

    Rule: Koordinator contract 10, match policy `once-satisfied`: a member that ends later takes
    nothing from the others, and one that comes later has nobody to wait for. It holds as long as
    the group has Pods: whoever keeps lives forgets that of a group without any.

    Args:
        running: how many members run of whom no event tells.
    """
    return gang is None or life.held_at_once + running >= gang.min_available


def deadline_us(life: GroupLife, gang: GangRef | None, *, running: int = 0) -> int | None:
    """
    Return when an incomplete gang has to give back what it holds, None when nothing is due.

    Rule: Koordinator contract 10 (`waiting-time`). The wait begins with the plan that the first
    reservation came with; a new plan does not prolong it.
    """
    if gang is None or not (life.held or life.places):
        return None
    if is_complete(life, gang, running=running):
        return None
    return life.waiting_since_us + gang.waiting_seconds * _SECOND_US


def review(
    life: GroupLife, gang: GangRef | None, facts: ClusterFacts, now_us: int, *, running: int = 0
) -> tuple[events.PodVoided | events.PlanDropped, ...]:
    """
    Return the events that facts and time call for: nothing, or the end of the plan.

    Rule: design section 5, Groups and Gangs. At the deadline of an incomplete gang the members
    that are not bound are voided (fenced first, where there is an API server) and the plan is
    dropped; bound ones stay. A plan that stopped being valid is dropped; reservations stay.
    """
    due = deadline_us(life, gang, running=running)
    if due is not None and now_us >= due:
        voided = [
            events.PodVoided(
                pod_uid=uid, attempt=held.attempt, node_uid=held.node_uid, reason=DEADLINE
            )
            for uid, held in life.held.items()
            if not held.bound
        ]
        return (*voided, events.PlanDropped(group=life.name, reason=DEADLINE))
    reason, uid = why_invalid(life, facts)
    return (events.PlanDropped(group=life.name, reason=reason, pod_uid=uid),) if reason else ()


def take_again(
    life: GroupLife,
    members: Mapping[str, PodRequest],
    nodes: Mapping[str, int],
    cluster: TrialCluster,
) -> dict[str, Placement] | None:
    """
    Take the open places in a cluster made anew from the ledger, after what is held in it.

    Rule: design section 6. The plan names nodes and GPUs, so the places are the same; CPUs and
    other devices are chosen again.

    Args:
        members: Pod UID -> request, of the Pods that exist or are to come.
        nodes: node UID -> the cluster's own number.

    Returns:
        Pod UID -> placement; None when the plan can't stand any more, and nothing is taken.
    """
    taken: dict[str, Placement] = {}
    for uid, place in life.places.items():
        request, node = members.get(uid), nodes.get(place.node_uid)
        placement = None
        if request is not None and node is not None:
            placement = cluster.try_place(request, node, frozenset(place.minors) or None)
        if placement is not None:
            taken[uid] = placement
        if placement is None or gpu_minors(placement) != place.minors:
            for wrong in reversed(taken.values()):
                cluster.undo(wrong)
            return None
    return taken
