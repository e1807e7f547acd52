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
SERVER_ERROR: Final = 500  # from then on no answer to whether a Pod may end
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
    _asked: set[str] = field(default_factory=set)  # UIDs of those who were asked to end
    _version: tuple[int, ...] = ()
    _version_at: float = 0.0
    _records: RecordUntilKnown = field(init=False)  # by UID

    def __post_init__(self) -> None:
        self._records = RecordUntilKnown(self.binder.recorder, self.binder.books.recorded)

    async def settle(self) -> None:
        """Go on with what has begun; look for room. Raises LedgerError, ApiError: call it again."""
        if self.why_not():
            return
        self.preempting.renew()
        for begun in [act for act in self.preempting.own.values() if not act.over]:
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
        is_free = not any(uid in each.victims for each in own if not each.over)
        is_ours = pod.is_ours and not pod.static_uid
        return is_free and is_ours and self.namespaces.preempt.get(pod.namespace, False)

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
            await self._announce(found)
            await self._go_on(found)

    async def _go_on(self, begun: PreemptionDecided) -> None:
        """Ask those to end who have not been asked, or record that nobody else is."""
        uid, over = begun.pod_uid, ""
        if not self.preempting.waits(uid):
            over = "the Pod waits no more"
        elif self.binder.clock.wall_us() >= begun.until_us:
            over = "the time is over"
        elif self.mode != "on":
            over = "no more Pods end, by the setting"
        elif uid not in self._records.unsure and (over := await self._ask(begun) or ""):
            asked = ", ".join(sorted(set(begun.victims).difference(self._left(begun))))
            over += f"; asked to end, or gone: {asked or 'none'}"
        if over or uid in self._records.unsure:
            await self._record(structs.replace(begun, over=over))
            self._asked.difference_update(begun.victims)

    def _left(self, begun: PreemptionDecided) -> list[str]:
        """Return who is to end, and neither does nor was asked to."""
        pods = ((uid, self.view.pods.seen.get(uid)) for uid in begun.victims)
        living = [uid for uid, pod in pods if pod and not (pod.ended or pod.leaving)]
        return [uid for uid in living if uid not in self._asked]

    async def _ask(self, begun: PreemptionDecided) -> str | None:
        """Ask in turn who is needed yet; return why no others are, empty or None: not for now."""
        while self._left(begun):
            if not await self._is_needed():
                return "kube-scheduler asks for such Pods itself, or is of an unknown version"
            left = self._left(begun)
            about = {begun.namespace, *(self.view.pods.seen[uid].namespace for uid in left)}
            if not all(map(self.namespaces.preempt.get, about)):
                return "a namespace has the label no more"
            self.preempting.begin_own(begun)
            if not self.preempting.needs(begun, left):
                return ""
            why = await self._evict(left[:1])
            if why != "":
                return why
            self._asked.add(left[0])
        return ""

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
                if error.status == NOT_FOUND:
                    continue
                if not query and (error.status or SERVER_ERROR) >= SERVER_ERROR:
                    return None  # it may have been done: asked again, of the same UID
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
        pods = [(uid, self.view.pods.seen.get(uid)) for uid in room.victims]
        names = ", ".join(f"{pod.namespace}/{pod.name}" if pod else uid for uid, pod in pods)
        count = "1 Pod" if len(pods) == 1 else f"{len(pods)} Pods"
        subject = about_pod(room.namespace, room.pod_name, room.pod_uid)
        note = f"{verb} {count} on node {room.node_name}: {names}"
        self.binder.telling.tell(subject, reason, note, action="Preempting", kind=NORMAL)
