"""Who belongs to groups and gangs, and who of them waits for a node, by the API's Pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from certs.ports import Object
from ledger.domain import resources as res
from ledger.domain.annotations.gang import WAITING_TIME_DEFAULT_NS
from ledger.domain.errors import InputError
from ledger.domain.kube.pod_spec import why_in_part
from ledger.domain.request.requests import PodRequest, group_name
from scheduler.service.ending import life_of
from scheduler.service.holds import seconds_of
from scheduler.service.ports import Clock
from scheduler.service.view import ClusterView

MEMBER_LABELS: Final = (res.LABEL_GPU_GROUP_NAME, res.LABEL_POD_GROUP, res.LABEL_POD_GROUP_NAME)

GATED_SECONDS: Final = WAITING_TIME_DEFAULT_NS / 1e9
"""So long a topology group keeps places behind gates of others: as a gang's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """
    A member without a node.

    Attributes:
        gates: names of its scheduling gates.
        order: members of a group are planned in this order.
        hold_seconds: how long kube-scheduler may take from its filter to its bind.
        since: when the watch showed it first, by the monotonic clock.
        in_part: why its gang may start in part.
    """

    request: PodRequest
    version: str
    gates: tuple[str, ...]
    order: tuple[str, str]
    hold_seconds: float
    since: float
    in_part: tuple[str, ...]

    @property
    def is_gated(self) -> bool:
        """Tell whether it waits for its gang."""
        return res.GATE_TENURE_GANG in self.gates

    @property
    def is_free(self) -> bool:
        """Tell whether no gate but ours keeps it from being scheduled."""
        return not self.gates_of_others

    @property
    def gates_of_others(self) -> tuple[str, ...]:
        """Return the gates that somebody else lifts."""
        return tuple(gate for gate in self.gates if gate != res.GATE_TENURE_GANG)

    @property
    def is_queued(self) -> bool:
        """Tell whether Kueue has no quota for it yet."""
        return any(gate.startswith(res.GATES_KUEUE) for gate in self.gates)


class Members:
    """
    The Pods of groups and gangs: a sink of Pods.

    Args:
        came: called with the request of a Pod that names a group, before it counts as a member.
        left: called with the UID of a member, the group that it left, and the one that it is in
            now, empty without one.
    """

    def __init__(
        self,
        view: ClusterView,
        clock: Clock,
        *,
        came: Callable[[PodRequest], None],
        left: Callable[[str, str, str], None],
    ) -> None:
        self._view = view
        self._clock = clock
        self._came = came
        self._left = left
        self._waiting: dict[str, dict[str, Waiting]] = {}  # group -> UID -> who waits
        self._pods: dict[str, set[str]] = {}  # group -> UIDs of its Pods
        self._group_of: dict[str, str] = {}  # UID of such a Pod -> its group
        self._behind: dict[str, float] = {}  # group -> first planned with gates of others when

    def put(self, uid: str, item: Object) -> None:
        """Take a Pod that came or changed."""
        request = self._member(item)
        name = "" if request is None else group_name(request)
        if not name and uid not in self._group_of:
            return
        metadata, life = item["metadata"], life_of(item)
        before = self._group_of.get(uid, "")
        if life.ended or (metadata.get("deletionTimestamp") and not life.node):
            name = ""
        if before and before != name:
            self._leave(uid, before, name)
        if not name or request is None:
            return
        self._came(request)
        self._group_of[uid] = name
        self._pods.setdefault(name, set()).add(uid)
        waiting = self._waiting.setdefault(name, {})
        if life.node:
            waiting.pop(uid, None)
            return
        known = waiting.get(uid)
        spec = item.get("spec") or {}
        gates = spec.get("schedulingGates") or ()
        waiting[uid] = Waiting(
            request=request,
            version=str(metadata.get("resourceVersion") or ""),
            gates=tuple(str(gate["name"]) for gate in gates),
            order=(str(metadata.get("creationTimestamp") or ""), life.name),
            hold_seconds=seconds_of(item),
            since=self._clock.monotonic() if known is None else known.since,
            in_part=why_in_part(spec),
        )

    def drop(self, uid: str) -> None:
        """Forget a Pod that is gone."""
        before = self._group_of.get(uid)
        if before is not None:
            self._leave(uid, before, "")

    def ungated(self, uid: str, pod: Object) -> None:
        """Take note that a Pod's gate was lifted; its watch may tell of that later."""
        known = self._waiting.get(self._group_of.get(uid, ""), {}).get(uid)
        if known is not None and known.is_gated:
            self.put(uid, pod)

    def _member(self, item: Object) -> PodRequest | None:
        if not may_be_member(item):
            return None
        try:
            asked = self._view.requests.read(item)
        except InputError:
            return None
        return asked if isinstance(asked, PodRequest) else None

    def _leave(self, uid: str, before: str, now: str) -> None:
        del self._group_of[uid]
        self._pods[before].discard(uid)
        self._waiting.get(before, {}).pop(uid, None)
        self._left(uid, before, now)

    def forget(self, name: str) -> None:
        """Forget a group that has no Pods."""
        self._pods.pop(name, None)
        self._waiting.pop(name, None)
        self._behind.pop(name, None)

    def pods(self, name: str) -> AbstractSet[str]:
        """Return the UIDs of a group's Pods."""
        return self._pods.get(name, frozenset())

    def without_node(self, name: str) -> Mapping[str, Waiting]:
        """Return the members without a node, by UID."""
        return self._waiting.get(name, {})

    def waiting(self, name: str) -> dict[str, Waiting]:
        """Return the members without a node that nobody else keeps back, in their order."""
        return self._in_order(name, lambda one: one.is_free)

    def behind_gates(self, name: str) -> dict[str, Waiting]:
        """Return the members without a node that somebody else keeps back, in their order."""
        return self._in_order(name, lambda one: not one.is_free)

    def planned_behind_gates(self, name: str) -> dict[str, Waiting]:
        """
        Return the members behind gates of others, for as long as they get places.

        The time runs from the first plan with one; it ends when a plan finds nobody behind gates.
        """
        behind = self.behind_gates(name)
        if not behind:
            self._behind.pop(name, None)
            return {}
        gang = next(iter(behind.values())).request.gang
        seconds = GATED_SECONDS if gang is None else gang.waiting_seconds
        now = self._clock.monotonic()
        return behind if now < self._behind.setdefault(name, now) + seconds else {}

    def _in_order(self, name: str, matches: Callable[[Waiting], bool]) -> dict[str, Waiting]:
        some = [(uid, one) for uid, one in self.without_node(name).items() if matches(one)]
        return dict(sorted(some, key=lambda each: each[1].order))

    def gated(self) -> list[str]:
        """Return the gangs with a member that waits for the others, by name."""
        return sorted(
            name
            for name, members in self._waiting.items()
            if any(one.is_gated and one.is_free for one in members.values())
        )

    def name_of(self, pod_uid: str) -> str:
        """Return the group of a Pod, empty without one."""
        return self._group_of.get(pod_uid, "")


def may_be_member(item: Object) -> bool:
    """Tell whether a Pod's labels or annotations may name a group or a gang: cheap."""
    metadata = item["metadata"]
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    return any(key in labels for key in MEMBER_LABELS) or res.ANNOTATION_GANG_NAME in annotations
