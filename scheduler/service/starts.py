"""
How gangs begin: who is on the way to a bind, what must be true before all are bound, and backoff.

Rule: docs/adr/0043. A gang whose start failed gave its plan back. It is refused by filter for
a while, for its own members would take the room one after the other. Then they are woken.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from ledger.domain.kube.object_fields import items_in
from scheduler.decide.group.life import NODE_REFUSES, MemberAction, deadline_us, next_step
from scheduler.decide.group.permit import CALLS_MAX, WAIT_SECONDS
from scheduler.record.grouping import Grouping
from scheduler.service.budgets import Delays
from scheduler.service.members import Members
from scheduler.service.ports import Clock
from scheduler.service.view import ClusterView

GANG_BACKOFF: Final = "GangBackoff"
MEMBERS_GATED: Final = "GangMembersGated"
"""A gang has its places, and somebody else's scheduling gates keep back members that it needs."""
ELSEWHERE: Final = "PlannedOnAnotherNode"
"""The node may take the Pod, and its group has a place for it on another one."""
GONE: Final = "the Pod is gone"
COMING_SECONDS: Final = 5.0
"""So long kube-scheduler may take from the filter of a member to its bind call."""
REVIEW_SECONDS: Final = 1.0
"""So long before the end of its plan a gang gives up, before a review ends the plan."""
MESSAGE_MAX: Final = 200
"""Characters of what kube-scheduler says of a member that has not come."""


class Starts:
    """What is known of starts of gangs. `give_back`: ends the plan of a gang."""

    def __init__(
        self,
        view: ClusterView,
        clock: Clock,
        groups: Grouping,
        members: Members,
        *,
        give_back: Callable[[str], None],
    ) -> None:
        self._view = view
        self._clock = clock
        self._groups = groups
        self._members = members
        self._give_back = give_back
        self._coming: dict[str, float] = {}  # UID -> until when its bind is expected
        self._permitted: dict[str, dict[str, str]] = {}  # gang -> UID -> node; "" = it was refused
        self._backing_off: set[str] = set()
        self._delays = Delays[str](clock.monotonic)  # each attempt blocks the room of its plan

    # --- members --------------------------------------------------------------------------------

    def coming(self, pod_uid: str, until: float) -> None:
        """Take note that a member is on its way to its planned node until then; 0 = no more."""
        if until:
            self._coming[pod_uid] = until
        else:
            self._coming.pop(pod_uid, None)

    def is_coming(self, pod_uid: str) -> bool:
        """Tell whether kube-scheduler has assumed a member on its node, or is about to."""
        return self._clock.monotonic() < self.comes_until(pod_uid)

    def comes_until(self, pod_uid: str) -> float:
        """Return by when a member is bound or has given up; 0 for one that is not on its way."""
        if self.permitted(self._members.name_of(pod_uid)).get(pod_uid):
            return self._clock.monotonic() + COMING_SECONDS
        return self._coming.get(pod_uid, 0.0)

    def others_come(self, name: str, pod_uid: str) -> bool:
        """Tell whether others of a gang are on their way, whose places must stay."""
        if self._groups.gang_of(name) is None:
            return False
        return any(map(self.is_coming, self._members.pods(name) - {pod_uid}))

    def no_delay(self, name: str) -> None:
        """Let a gang be tried at once: it began, or a member came or went."""
        self._delays.over(name)

    # --- bind -----------------------------------------------------------------------------------

    def permit(self, name: str, pod_uid: str, node_name: str) -> None:
        """Let a member be bound with all others of its gang that are permitted."""
        self._permitted.setdefault(name, {})[pod_uid] = node_name

    def permitted(self, name: str) -> Mapping[str, str]:
        """Return who is being bound of a gang, and where; empty for one without such calls."""
        return self._permitted.get(name, {})

    def end_permit(self, name: str, pod_uid: str) -> None:
        """Take note that a permitted call is answered: of a gang not begun the others fail, too."""
        nodes = self._permitted.get(name, {})
        nodes[pod_uid] = ""
        if not any(nodes.values()):
            self._permitted.pop(name, None)

    def not_begun(self, pod_uid: str) -> str:
        """
        Return the gang of a Pod whose bind waits for others; empty for every other Pod.

        Claims are allocated before a bind, and so may volumes be: such members wait for nobody. Nor
        does one of a topology group that is placed alone, since others of it hold something.
        """
        name = self._members.name_of(pod_uid)
        if not name or self._groups.gang_of(name) is None or self._groups.is_complete(name):
            return ""
        life, one = self._groups.lives[name], self._members.without_node(name).get(pod_uid)
        has_group = one is not None and one.request.group is not None
        step = next_step(life, pod_uid, has_group=has_group)
        is_alone = has_group and bool(life.held) and step is MemberAction.PLACE_ALONE
        return "" if is_alone or pod_uid in life.held or self._why_in_part(name) else name

    def is_awaited(self, pod_uid: str) -> bool:
        """Tell whether a gang that has begun waits for this member to be bound, too."""
        name = self._members.name_of(pod_uid)
        waits = pod_uid in self._members.without_node(name)
        return waits and self._groups.gang_of(name) is not None and self._groups.is_complete(name)

    def in_part(self) -> dict[str, str]:
        """Return why gangs may start in part, by the `namespace/name` of Pods without a node."""
        return {
            one.request.path: why
            for name in self._groups.lives
            if self.needed(name) > 0 and (why := self._why_in_part(name))
            for one in self._members.without_node(name).values()
        }

    def _why_in_part(self, name: str) -> str:
        """Return what of a gang is given before the bind, or that it is too large to wait."""
        gang = self._groups.gang_of(name)
        if gang is not None and gang.min_available > CALLS_MAX:
            return f"more than {CALLS_MAX} must start together, so its gang may start in part"
        members = self._members.without_node(name).values()
        return next((f"{one.request.path}: {why}" for one in members for why in one.in_part), "")

    def needed(self, name: str) -> int:
        """Return how many members must come to be bound together."""
        gang = self._groups.gang_of(name)
        if gang is None or self._groups.is_complete(name):
            return 0
        return gang.min_available - len(self._groups.lives[name].held) - self._groups.running(name)

    def seconds_left(self, name: str) -> float:
        """Return how long the first of a gang's calls may wait: its plan has an end, too."""
        due = deadline_us(self._groups.lives[name], self._groups.gang_of(name))
        if due is None:
            return WAIT_SECONDS
        left = (due - self._clock.wall_us()) / 1e6
        return min(WAIT_SECONDS, max(left - REVIEW_SECONDS, left / 2))

    def why_not(self, name: str, nodes: Mapping[str, str], *, closely: bool = False) -> str:
        """
        Return why one of these Pods can't be bound to its node, empty if all can.

        Args:
            closely: look at nodes and cards again, too.
        """
        if name in self._backing_off:
            return GANG_BACKOFF
        places = {place.request.uid: place for place in self._groups.places(name)}
        refused = self._groups.refused(name) if closely else frozenset[str]()
        for uid, node_name in nodes.items():
            place = places.get(uid)
            if place is None or place.node_name != node_name:
                return ELSEWHERE
            if uid in refused or self._view.directory.number(node_name) != place.node:
                return f"{place.request.path}: {NODE_REFUSES}: {node_name}"
        return ""

    def missing(self, name: str, come: Collection[str]) -> tuple[str, ...]:
        """Return the members that have not come, with what kube-scheduler says of them."""
        return tuple(
            f"{one.request.path}: {self._message_of(uid)}".removesuffix(": ")
            for uid, one in self._members.without_node(name).items()
            if uid not in come
        )

    def _message_of(self, uid: str) -> str:
        for one in items_in(self._view.pods.pending(uid), "status", "conditions"):
            if one.get("type") == "PodScheduled":
                return str(one.get("message") or "")[:MESSAGE_MAX]
        return ""

    # --- backoff --------------------------------------------------------------------------------

    def back_off(self, name: str) -> None:
        """Give a gang's plan back, and refuse its members for a while."""
        self._backing_off.add(name)
        self._delays.failed(name)
        self._give_back(name)

    def is_backing_off(self, name: str) -> bool:
        """Tell whether the members of a gang are refused for a while."""
        return name in self._backing_off

    def due(self) -> Sequence[str]:
        """Return the gangs whose members are to be woken now."""
        return sorted(filter(self._delays.is_due, self._backing_off))

    def try_again(self, name: str) -> None:
        """Let a gang be planned again."""
        self._backing_off.discard(name)

    def forget(self, name: str) -> None:
        """Forget a gang without Pods."""
        self.try_again(name)
        self.no_delay(name)
