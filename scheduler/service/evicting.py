"""
Ends Pods for one that waits for what sums do not show, for which kube-scheduler ends nobody.

Rule: docs/adr/0045. Off unless a setting says otherwise.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from msgspec import structs

from certs.ports import ApiError, ConflictError
from ledger.domain.log.events import PreemptionDecided
from ledger.domain.request.requests import PodRequest
from scheduler.record import events
from scheduler.service.binding import Binder, pod_path
from scheduler.service.gangs import NOT_FOUND, eviction
from scheduler.service.kept import Namespaces
from scheduler.service.ports import WhyNot
from scheduler.service.preempting import Preempting
from scheduler.service.recording import RecordUntilKnown
from scheduler.service.telling import NORMAL, about_pod
from scheduler.service.victims import ENDS_MAX
from scheduler.service.view import ClusterView

Mode = Literal["off", "dry-run", "on"]
LOOK_SECONDS: Final = 10.0  # between two looks for room for one Pod, of some 0.2 s
MINUTE_SECONDS: Final = 60.0  # in which `ENDS_MAX` Pods end at most
ASKS_FOR_SUMS: Final = (1, 38)  # from then on kube-scheduler asks where it sees no victims
_log: Final = logging.getLogger("tenure.scheduler.evicting")


@dataclass(slots=True, kw_only=True)
class Evicting:
    """Makes room for the highest first; whoever leads next goes on with what the ledger has."""

    view: ClusterView
    preempting: Preempting
    namespaces: Namespaces
    binder: Binder
    mode: Mode
    why_not: WhyNot
    counts: Counter[str] = field(default_factory=Counter)
    _looked: dict[str, float] = field(default_factory=dict)  # UID -> when room was looked for
    _asked: set[str] = field(default_factory=set)  # UIDs of those for whom all were asked to end
    _version: tuple[int, ...] = ()
    _version_at: float = 0.0
    _records: RecordUntilKnown = field(init=False)  # by UID

    def __post_init__(self) -> None:
        self._records = RecordUntilKnown(self.binder.recorder, self.binder.books.recorded)

    async def settle(self) -> None:
        """Go on with what has begun; look for room. Raises LedgerError, ApiError: call it again."""
        if self.why_not():
            return
        for begun in list(self.preempting.own.values()):
            await self._go_on(begun)
        if self.mode == "off" or not await self._is_needed():
            return
        for request, room in self._next():
            if self.mode == "on":
                await self._begin(request, room)
            else:
                self._tell(room, "WouldPreempt", "would end")

    async def _is_needed(self) -> bool:
        """Tell whether kube-scheduler does not ask for such Pods itself, as far as known."""
        now = self.binder.clock.monotonic()
        if not self._version or now >= self._version_at + MINUTE_SECONDS:
            found = await self.binder.api.read("/version") or {}
            numbers = [str(found.get(key, "")).rstrip("+") for key in ("major", "minor")]
            is_known = all(map(str.isdecimal, numbers))
            self._version, self._version_at = tuple(map(int, numbers)) if is_known else (), now
        return () < self._version < ASKS_FOR_SUMS and not self.preempting.asks_for_sums

    def _next(self) -> Iterator[tuple[PodRequest, PreemptionDecided]]:
        """Yield room for the highest Pod that waits and has not been looked at lately, if any."""
        now = self.binder.clock.monotonic()
        self._looked = {uid: at for uid, at in self._looked.items() if now - at < LOOK_SECONDS}
        for request in self.preempting.stuck():
            if self.namespaces.preempt.get(request.namespace) and request.uid not in self._looked:
                self._looked[request.uid] = now
                room = self.preempting.room_for(request, self._is_able)
                self.counts["no room" if room is None else "room"] += 1
                if room is not None:
                    yield request, room
                return

    def _is_able(self, uid: str) -> bool:
        """Tell whether a Pod of ours may end, and does not for another."""
        pod, own = self.view.pods.seen[uid], self.preempting.own.values()
        is_free = not any(uid in each.victims for each in own)
        return is_free and pod.is_ours and self.namespaces.preempt.get(pod.namespace, False)

    async def _begin(self, request: PodRequest, room: PreemptionDecided) -> None:
        """Begin to end Pods if all may end, and the same ones would still be chosen."""
        if self.preempting.ends_since(MINUTE_SECONDS) + len(room.victims) > ENDS_MAX:
            self.counts["too many in a minute"] += 1
            return
        if await self._evict(room.victims, "?dryRun=All") != "":
            self.counts["refused"] += 1
            return
        found = self.preempting.room_for(request, self._is_able)
        if found is None or (found.node_uid, found.victims) != (room.node_uid, room.victims):
            return
        self.preempting.begin_own(found)
        if await self._record(found):
            self._tell(found, "Preempts", "ends")
            await self._go_on(found)

    async def _go_on(self, begun: PreemptionDecided) -> None:
        """Ask those to end who have not been asked, or record that nobody else is."""
        uid, pod = begun.pod_uid, self.view.pods.seen.get(begun.pod_uid)
        over: str | None = ""
        if pod is None or pod.ended or pod.leaving or pod.node:
            over = "the Pod waits no more"
        elif self.binder.clock.wall_us() >= begun.until_us:
            over = "the time is over"
        elif self.mode != "on":
            over = "no more Pods end, by the setting"
        elif uid not in self._asked and uid not in self._records.unsure:
            await self._announce(begun)
            over = await self._evict(begun.victims)
            if over == "":
                self._asked.add(uid)
        if over or uid in self._records.unsure:
            self._asked.discard(uid)
            await self._record(structs.replace(begun, over=over or ""))

    async def _announce(self, begun: PreemptionDecided) -> None:
        """Nominate the node, as kube-scheduler does; it may be of another mind."""
        uid = {"op": "test", "path": "/metadata/uid", "value": begun.pod_uid}
        node = {"op": "add", "path": "/status/nominatedNodeName", "value": begun.node_name}
        try:
            path = pod_path(begun.namespace, begun.pod_name, "status")
            await self.binder.api.patch(path, [uid, node])
        except (ApiError, ConflictError) as error:
            _log.warning("not nominated", extra={"pod_uid": begun.pod_uid, "error": str(error)})

    async def _evict(self, uids: Sequence[str], query: str = "") -> str | None:
        """Ask Pods to end until one is refused; return why, None where we may ask no more."""
        for uid in uids:
            pod = self.view.pods.seen.get(uid)
            if self.why_not():
                return None
            if pod is None or pod.ended or pod.leaving:
                continue
            path = pod_path(pod.namespace, pod.name, "eviction") + query
            try:
                await self.binder.api.create(path, eviction(pod.namespace, pod.name, uid))
            except ConflictError:
                continue  # it is another Pod now
            except ApiError as error:
                if error.status != NOT_FOUND:
                    return f"the end of {pod.namespace}/{pod.name} was refused: {error}"
        return ""

    async def _record(self, event: PreemptionDecided) -> bool:
        """Record an event, and tell whether the ledger has it; without, nobody ends."""
        new = events.preemption(event, self.binder.clock.wall_us())
        error = await self._records.record(event.pod_uid, (events.by(self.binder.actor, new),))
        if error is not None:
            _log.error("a preemption can't be recorded", extra={"reason": str(error)})
            self.preempting.forget_own(event.pod_uid)
        return error is None

    def _tell(self, room: PreemptionDecided, reason: str, verb: str) -> None:
        pods = [self.view.pods.seen[uid] for uid in room.victims]
        names = ", ".join(f"{pod.namespace}/{pod.name}" for pod in pods)
        count = "1 Pod" if len(pods) == 1 else f"{len(pods)} Pods"
        subject = about_pod(room.namespace, room.pod_name, room.pod_uid)
        note = f"{verb} {count} on node {room.node_name}: {names}"
        self.binder.telling.tell(subject, reason, note, action="Preempting", kind=NORMAL)
