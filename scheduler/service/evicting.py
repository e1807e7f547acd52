"""
Ends Pods for one that waits for what sums do not show, for which kube-scheduler ends nobody.

Rule: docs/adr/0045. Off unless a setting says otherwise.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal

from scheduler.service.kept import Namespaces
from scheduler.service.ports import Clock, WhyNot
from scheduler.service.preempting import Preempting, Room
from scheduler.service.telling import NORMAL, Telling, about_pod
from scheduler.service.view import ClusterView

Mode = Literal["off", "dry-run"]
LOOK_SECONDS: Final = 10.0
"""Between two looks for room for one Pod: each is up to 300 sets of victims, some 0.2 s."""
WOULD: Final = "WouldPreempt"
_NAMES_MAX: Final = 8


class Evicting:
    """
    Makes room, one Pod after the other, the highest first.

    Attributes:
        counts: what became of looks for room.
    """

    def __init__(
        self,
        view: ClusterView,
        preempting: Preempting,
        namespaces: Namespaces,
        telling: Telling,
        clock: Clock,
        *,
        mode: Mode,
        why_not: WhyNot,
    ) -> None:
        self._view = view
        self._preempting = preempting
        self._namespaces = namespaces
        self._telling = telling
        self._clock = clock
        self._mode = mode
        self._why_not = why_not
        self._looked: dict[str, float] = {}  # UID -> when room was looked for
        self.counts: Counter[str] = Counter()

    def settle(self) -> None:
        """Look for room for one Pod."""
        if self._mode == "off" or self._why_not():
            return
        room = self._next()
        if room is not None:
            self._tell(room)

    def _next(self) -> Room | None:
        """Return room for the highest Pod that waits and has not been looked at lately."""
        now = self._clock.monotonic()
        self._looked = {uid: at for uid, at in self._looked.items() if now - at < LOOK_SECONDS}
        for request in self._preempting.stuck():
            takes_part = request.namespace in self._namespaces.preempt
            if takes_part and request.uid not in self._looked:
                self._looked[request.uid] = now
                room = self._preempting.room_for(request, self._is_able)
                self.counts["no room" if room is None else "room"] += 1
                return room
        return None

    def _is_able(self, uid: str) -> bool:
        """Tell whether a Pod may end for others: it is ours, and its namespace takes part."""
        pod = self._view.pods.seen[uid]
        return pod.is_ours and pod.namespace in self._namespaces.preempt

    def _tell(self, room: Room) -> None:
        pods = [self._view.pods.seen[uid] for uid in room.victims]
        names = ", ".join(f"{pod.namespace}/{pod.name}" for pod in pods[:_NAMES_MAX])
        more = f" and {len(pods) - _NAMES_MAX} more" if len(pods) > _NAMES_MAX else ""
        count = "1 Pod" if len(pods) == 1 else f"{len(pods)} Pods"
        note = f"would end {count} on node {room.node_name}: {names}{more}"
        request = room.request
        subject = about_pod(request.namespace, request.name, request.uid)
        self._telling.tell(subject, WOULD, note, action="Preempting", kind=NORMAL)
