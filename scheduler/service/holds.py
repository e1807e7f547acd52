"""
Soft holds: what kube-scheduler was told a Pod would get, until it says where the Pod goes.

Rule: design section 5.2. Kube-scheduler asks for the next Pod before it binds the last one, so that
a burst would be sent to one card. A hold takes room in the engine that answers filters. A bind is
decided from what the ledger holds alone, so that no hold refuses it. Where a hold was decided on
just that, it is not decided again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

from certs.ports import Object
from ledger.domain.kube.pod_spec import has_volume_claims
from ledger.domain.request.requests import PodRequest
from scheduler.decide.engine import Engine
from scheduler.decide.outcome import Placement
from scheduler.service.wakeups import Wakeups

HOLD_SECONDS: Final = 30.0
HOLD_WITH_VOLUMES_SECONDS: Final = 660.0
"""Binding volumes may take kube-scheduler ten minutes."""
HOLDS_MAX: Final = 4_096

BOUND: Final = "bound"
ASKED_AGAIN: Final = "asked again"
DELETED: Final = "deleted"
UNSCHEDULABLE: Final = "unschedulable"
TOO_OLD: Final = "too old"
MOVED: Final = "moved"
CROWDED_OUT: Final = "crowded out"
NODE_GONE: Final = "node gone"
TOO_MANY: Final = "too many"
NO_ROOM: Final = "no room"


@dataclass(frozen=True, slots=True)
class _Hold:
    """
    A place that is taken.

    Attributes:
        condition: PodScheduled, as it was then.
        taken_at: the log's position then.
        promised: for a Pod that is asked about next. kube-scheduler writes the condition of the
            attempt before, with its nomination, after that.
    """

    placement: Placement
    until: float
    condition: str
    taken_at: int
    promised: bool = False


@dataclass(slots=True, eq=False)
class Holds:
    """
    The soft holds of one engine, and a sink of Pods that may end or move them.

    Attributes:
        now: seconds that never run backwards.
        number_of: the engine's number of a node by its name.
        most: at once; further Pods get none.

    Attributes:
        ended: why holds ended, and how often; `TOO_MANY` and `NO_ROOM` of those that never began.
    """

    engine: Engine
    now: Callable[[], float]
    number_of: Callable[[str], int | None]
    wakeups: Wakeups
    most: int = HOLDS_MAX
    _holds: dict[str, _Hold] = field(default_factory=dict)
    ended: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.wakeups.node_dropped.subscribe(self.dropped)
        self.wakeups.member_planned.subscribe(self.planned)

    def __len__(self) -> int:
        return len(self._holds)

    def node_of(self, pod_uid: str) -> str:
        """Return the node that a Pod has a hold on, empty without one."""
        hold = self._holds.get(pod_uid)
        return "" if hold is None else hold.placement.node_name

    def placements(self) -> list[Placement]:
        """Return what is held, in the order in which it was taken."""
        return [hold.placement for hold in self._holds.values()]

    def asked_again(self, pod_uid: str) -> None:
        """Take back what a Pod was expected to get: it is filtered anew. End what is too old."""
        self.end(pod_uid, ASKED_AGAIN)
        self.expire()

    def planned(self, pod_uid: str) -> None:
        """Take back what a member of a group was expected to get: a plan is made for it."""
        self.end(pod_uid, ASKED_AGAIN)

    def expected(self, placement: Placement, pod: Object, decided_at: int = -1) -> None:
        """
        Hold what a filter found best, on the node that is expected to win, if it is still free.

        Args:
            pod: as kube-scheduler sent it.
            decided_at: the engine's position then; -1 = not known.
        """
        uid = placement.request.uid
        if self.node_of(uid) == placement.node_name:
            self._end(uid, ASKED_AGAIN)
        else:
            self.end(uid, ASKED_AGAIN)
        if len(self._holds) >= self.most:
            self.ended[TOO_MANY] += 1
            return
        taken = self.engine.place(placement, decided_at)
        if taken is None:
            self.ended[NO_ROOM] += 1
            return
        until = self.now() + seconds_of(pod)
        self._holds[uid] = _Hold(taken, until, _condition(pod), self.engine.position)

    def promise(self, request: PodRequest, node_name: str, seconds: float = 0.0) -> bool:
        """
        Hold what came free for a Pod, if it has a place there; tell whether it has a hold then.

        What was promised to Pods of a lower priority there gives way. What is for so many
        `seconds`, and not `HOLD_SECONDS`, replaces what was promised to the Pod.
        """
        number, hold = self.number_of(node_name), self._holds.get(request.uid)
        if seconds and hold is not None and hold.promised:
            self.engine.release(request.uid)
            del self._holds[request.uid]
            hold = None
        if number is None or hold is not None or len(self._holds) >= self.most:
            return hold is not None
        lower = {
            uid: hold
            for uid, hold in self._holds.items()
            if hold.promised
            and hold.placement.node == number
            and hold.placement.request.snapshot.priority < request.snapshot.priority
        }
        for uid in lower:
            self.engine.release(uid)
            del self._holds[uid]
        taken = self.engine.try_place(request, number)
        if taken is not None:
            until, at = self.now() + (seconds or HOLD_SECONDS), self.engine.position
            self._holds[request.uid] = _Hold(taken, until, "", at, promised=True)
        for uid, hold in lower.items():
            self._take(uid, hold, number, CROWDED_OUT)
        return taken is not None

    def end(self, pod_uid: str, why: str) -> None:
        """End a Pod's hold, if it has one, and publish that its room is free."""
        node_name = self._end(pod_uid, why)
        if node_name:
            self.wakeups.room_freed.publish(node_name)

    def _end(self, pod_uid: str, why: str) -> str:
        """End a Pod's hold and return its node, empty without one."""
        hold = self._holds.pop(pod_uid, None)
        if hold is None:
            return ""
        self.engine.release(pod_uid)
        self.ended[why] += 1
        return hold.placement.node_name

    def expire(self) -> None:
        """End what is older than a hold may be."""
        now = self.now()
        for uid in [uid for uid, hold in self._holds.items() if hold.until <= now]:
            self.end(uid, TOO_OLD)

    def put(self, uid: str, item: Object) -> None:
        """
        Take a Pod that came or changed.

        Its hold ends when it is bound, is being deleted, or became unschedulable after the filter;
        the last is nothing to a hold that was promised.
        The hold follows it to the node that kube-scheduler nominated, and ends if that has no room.
        """
        hold = self._holds.get(uid)
        if hold is None:
            return
        condition = _condition(item)
        if (item.get("spec") or {}).get("nodeName"):
            self._bound(uid, item["spec"]["nodeName"])
        elif item["metadata"].get("deletionTimestamp"):
            self.end(uid, DELETED)
        elif condition.startswith("False") and condition != hold.condition and not hold.promised:
            self.end(uid, UNSCHEDULABLE)
        else:
            nominated = (item.get("status") or {}).get("nominatedNodeName")
            if nominated and nominated != hold.placement.node_name:
                self._move(uid, hold, nominated)

    def drop(self, uid: str) -> None:
        """Take note of a Pod that is gone."""
        self.end(uid, DELETED)

    def dropped(self, pod_uids: Iterable[str]) -> None:
        """Forget holds that the engine gave back when their node went."""
        for uid in pod_uids:
            if self._holds.pop(uid, None) is not None:
                self.ended[NODE_GONE] += 1

    @contextmanager
    def lifted(self, pod_uid: str, node_name: str) -> Iterator[Placement | None]:
        """
        Let the block choose for a Pod that is bound to this node, and take what it chose.

        The Pod's own hold ends. The other holds on the node are lifted, and put back after the
        block where they still fit, on other cards if need be.

        The value is what the block would choose, if that is known: the Pod's hold was the only one
        there, and the node has not changed since.
        """
        hold = self._holds.get(pod_uid)
        is_as_held = (
            hold is not None
            and hold.placement.node_name == node_name
            and self.engine.is_unchanged(hold.placement.node, hold.taken_at)
        )
        self._bound(pod_uid, node_name)
        lifted = [
            (uid, other)
            for uid, other in self._holds.items()
            if other.placement.node_name == node_name
        ]
        for uid, _ in lifted:
            self.engine.release(uid)
            del self._holds[uid]
        try:
            yield hold.placement if hold is not None and is_as_held and not lifted else None
        finally:
            for uid, other in lifted:
                self._take(uid, other, other.placement.node, CROWDED_OUT)

    def _bound(self, uid: str, node_name: str) -> None:
        before = self._end(uid, BOUND)
        if before and before != node_name:
            self.wakeups.room_freed.publish(before)

    def _move(self, uid: str, hold: _Hold, node_name: str) -> None:
        self.end(uid, MOVED)
        number = self.number_of(node_name)
        if number is not None:
            self._take(uid, hold, number, NO_ROOM)

    def _take(self, uid: str, hold: _Hold, node: int, otherwise: str) -> None:
        """Let a hold that was given back take room again, or end."""
        taken = self.engine.try_place(hold.placement.request, node)
        if taken is None:
            self.ended[otherwise] += 1
            if otherwise == CROWDED_OUT:
                self.wakeups.room_freed.publish(hold.placement.node_name)
        else:
            self._holds[uid] = replace(hold, placement=taken, taken_at=self.engine.position)


def seconds_of(pod: Object) -> float:
    """Return how long a hold of a Pod may last: longer where its volumes have to be bound first."""
    claims = has_volume_claims(pod.get("spec") or {})
    return HOLD_WITH_VOLUMES_SECONDS if claims else HOLD_SECONDS


def _condition(pod: Object) -> str:
    """Return the Pod's PodScheduled as a text that is another one whenever it is set anew."""
    conditions: list[dict[str, Any]] = (pod.get("status") or {}).get("conditions") or []
    for each in conditions:
        if each.get("type") == "PodScheduled":
            words = ("status", "lastTransitionTime", "lastProbeTime", "reason", "message")
            return " ".join(str(each.get(word) or "") for word in words)
    return ""
