"""
Kubernetes Events about Pods and Nodes, bounded in number and rate.

Rule: design section 6; an Event is for people who look at an object, and is never read by us.
`tell` does not wait; `send` writes what is due, from a loop of its own. An Event that the API
server refuses is dropped: what matters is in the ledger.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from certs.ports import ApiError, ConflictError, Object, Objects, api_path
from ledger.domain.amounts import format_bytes
from ledger.domain.cpuset import format_cpuset
from ledger.domain.devices import DeviceShare
from ledger.domain.log.events import LedgerEvent, PodBound, PodReleased, RequestRefused
from ledger.domain.log.state import Holding
from scheduler.cluster.objects import ALONE
from scheduler.decide.outcome import what_release_means
from scheduler.service.budgets import Budgets
from scheduler.service.ports import Clock, WhyNot
from scheduler.service.view import ClusterView

NORMAL: Final = "Normal"
WARNING: Final = "Warning"
AGAIN_SECONDS: Final = 30.0
"""Between two Events about one object for one reason; what is said meanwhile waits."""
PER_SECOND: Final = 10.0
BURST: Final = 50.0
SUBJECTS_MAX: Final = 4_096
"""Objects and reasons that are remembered, of those that were spoken of last."""
WAITING_MAX: Final = 1_024
"""Of them, how many wait to be written; more are dropped, and counted."""
NOTE_BYTES_MAX: Final = 1_024
"""The API server refuses longer ones."""
_CONTROLLER: Final = "tenure.sh/scheduler"
_NODES_NAMESPACE: Final = "default"
"""Where the API server wants the Events about objects that are in no namespace."""
_NAME_MAX: Final = 200
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_log: Final = logging.getLogger("tenure.scheduler.telling")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A Pod or a Node that something is said of; `namespace` is empty for a Node."""

    kind: str
    name: str
    uid: str
    namespace: str = ""


def about_pod(namespace: str, name: str, uid: str) -> Subject:
    """Return a Pod as a subject."""
    return Subject(kind="Pod", namespace=namespace, name=name, uid=uid)


def about_node(name: str, uid: str) -> Subject:
    """Return a Node as a subject."""
    return Subject(kind="Node", name=name, uid=uid)


@dataclass(slots=True, kw_only=True)
class _Said:
    """
    What is said of one subject for one reason.

    Attributes:
        note, kind, action: as told last.
        waiting: times that it was told since the last Event.
        path: of the last Event; empty before there is one, and where it can't be counted on.
        written: the note of that Event.
        count: times that it stands for.
        at: when it was written, by the monotonic clock.
    """

    note: str = ""
    kind: str = WARNING
    action: str = ""
    waiting: int = 0
    path: str = ""
    written: str = ""
    count: int = 0
    at: float = float("-inf")


@dataclass(slots=True, kw_only=True)
class Telling:
    """Writes Events by `events.k8s.io/v1`, each subject and reason once in `AGAIN_SECONDS`."""

    api: Objects
    clock: Clock
    reporter: str
    counts: Counter[str] = field(default_factory=Counter)
    _said: OrderedDict[tuple[Subject, str], _Said] = field(default_factory=OrderedDict)
    _due: dict[tuple[Subject, str], None] = field(default_factory=dict)
    _budget: Budgets = field(init=False)
    _number: int = 0

    def __post_init__(self) -> None:
        self._budget = Budgets(self.clock.monotonic, burst=BURST, seconds=1 / PER_SECOND)

    def tell(
        self, subject: Subject, reason: str, note: str, *, action: str, kind: str = WARNING
    ) -> None:
        """
        Say something of an object, as soon as that may be; the newest words count.

        Args:
            reason: one word, CamelCase: people filter by it.
            action: what was done or tried, one word, CamelCase.
        """
        key = (subject, reason)
        if key not in self._due and len(self._due) >= WAITING_MAX:
            self.counts["dropped"] += 1
            return
        said = self._said.setdefault(key, _Said())
        self._said.move_to_end(key)
        said.note, said.kind, said.action = _cut(note), kind, action
        said.waiting += 1
        self._due[key] = None
        while len(self._said) > SUBJECTS_MAX:
            old, _ = self._said.popitem(last=False)
            if self._due.pop(old, "none") is None:
                self.counts["dropped"] += 1

    async def send(self) -> None:
        """
        Write what is due, as far as the rate allows.

        Raises:
            ApiError: the API is away; what was to be written then is written later.
        """
        latest = self.clock.monotonic() - AGAIN_SECONDS
        for key in [key for key in self._due if self._said[key].at <= latest]:
            if not self._budget.take(self.reporter):
                return
            said = self._said.get(key)
            if said is None:
                continue
            del self._due[key]
            times, said.waiting = said.waiting, 0
            said.at = self.clock.monotonic()
            try:
                await self._write(key, said, times)
            except ConflictError:
                said.path = ""
                self.counts["dropped"] += times
            except ApiError as error:
                said.path = ""
                if error.status is None or error.status == 429 or error.status >= 500:
                    said.waiting += times
                    self._due[key] = None
                    raise
                self.counts["dropped"] += times
                words = {"subject": key[0].name, "reason": key[1], "error": str(error)}
                _log.warning("an Event was refused", extra=words)

    async def _write(self, key: tuple[Subject, str], said: _Said, times: int) -> None:
        """Write a new Event, or count on in the last one where that says the same."""
        now = _time(self.clock.wall_us())
        if said.path and said.written == said.note:
            series = {"count": said.count + times, "lastObservedTime": now}
            repeated: Object = {"op": "add", "path": "/series", "value": series}
            try:
                await self.api.patch(said.path, [repeated])
            except (ConflictError, ApiError) as error:
                if isinstance(error, ApiError) and error.status != 404:
                    raise
            else:
                said.count += times
                self.counts["repeated"] += 1
                return
        subject, reason = key
        event = self._event(subject, reason, said, now)
        namespace = event["metadata"]["namespace"]
        where = "events.k8s.io/v1", "namespaces", namespace, "events"
        await self.api.create(api_path(*where), event)
        said.path, said.written = api_path(*where, event["metadata"]["name"]), said.note
        said.count = times
        self.counts["written"] += 1

    def _event(self, subject: Subject, reason: str, said: _Said, now: str) -> Object:
        self._number += 1
        told = f"{self.reporter}/{subject.uid}/{reason}/{now}/{self._number}"
        name = f"{subject.name[:_NAME_MAX]}.{hashlib.sha256(told.encode()).hexdigest()[:16]}"
        regarding = {
            "apiVersion": "v1",
            "kind": subject.kind,
            "name": subject.name,
            "uid": subject.uid,
        }
        if subject.namespace:
            regarding["namespace"] = subject.namespace
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": subject.namespace or _NODES_NAMESPACE},
            "eventTime": now,
            "reportingController": _CONTROLLER,
            "reportingInstance": self.reporter[:128],
            "action": said.action,
            "reason": reason,
            "type": said.kind,
            "note": said.note,
            "regarding": regarding,
        }


def _cut(note: str) -> str:
    raw = note.encode()
    if len(raw) <= NOTE_BYTES_MAX:
        return note
    return raw[: NOTE_BYTES_MAX - 3].decode(errors="ignore") + "..."


def _time(wall_us: int) -> str:
    """Return a moment as `metav1.MicroTime` is written."""
    moment = _EPOCH + timedelta(microseconds=wall_us)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


WAITS: Final = "DevicesRefused"
BOUND: Final = "DevicesBound"
RELEASED: Final = "DevicesReleased"


class Saying:
    """Tells of each recorded event about a Pod, while this replica is the one that decides."""

    def __init__(self, view: ClusterView, telling: Telling, *, why_not: WhyNot) -> None:
        self._view = view
        self._telling = telling
        self._why_not = why_not
        view.wakeups.event_folded.subscribe(self._take_event)

    def _take_event(self, _position: int, event: LedgerEvent, holding: Holding | None) -> None:
        if not isinstance(event, PodBound | PodReleased | RequestRefused) or self._why_not():
            return
        if isinstance(event, RequestRefused):
            if event.pod_uid in self._view.pods.seen:  # one that admission refused is not there
                pod = about_pod(event.namespace, event.pod_name, event.pod_uid)
                note = refusal_words(event)
                self._telling.tell(pod, WAITS, note, action="Scheduling", kind=WARNING)
            return
        if holding is None or not (holding.shares or holding.cpuset) or holding.namespace == ALONE:
            return
        pod = about_pod(holding.namespace, holding.pod_name, holding.pod_uid)
        state = self._view.recorded(event.node_uid)
        node = event.node_uid if state is None else state.name
        held = held_words(holding)
        if isinstance(event, PodBound):
            self._telling.tell(pod, BOUND, f"{held} of {node}", action="Binding", kind=NORMAL)
        else:
            note = f"{held} of {node}: {event.reason}"
            self._telling.tell(pod, RELEASED, note, action="Releasing", kind=NORMAL)


def refusal_words(event: RequestRefused) -> str:
    """Return why a Pod waits, and what would help at the node that came closest."""
    first = max(event.reasons, key=lambda each: each.nodes, default=None)
    if first is None or not first.remedy:
        return event.message
    where = f" on {first.nearest_node}" if first.nearest_node else ""
    said = f"{event.message} Nearest{where}: {first.remedy}."
    told = what_release_means([first.remedy])
    return f"{said} {told[0].upper()}{told[1:]}." if told else said


def held_words(holding: Holding) -> str:
    """Return what is held in short: `gpu 0 (GPU-1): 50 core, 8 GiB; cpus 0-3`."""
    parts = [_share_words(share) for share in holding.shares]
    if holding.cpuset:
        parts.append(f"cpus {format_cpuset(holding.cpuset)}")
    return "; ".join(parts)


def _share_words(share: DeviceShare) -> str:
    name = f"{share.device_type} {share.minor}"
    if share.device_id:
        name += f" ({share.device_id})"
    amounts = ", ".join(_amounts(share))
    return f"{name}: {amounts}" if amounts else name


def _amounts(share: DeviceShare) -> Iterator[str]:
    if share.exclusive:
        yield "whole"
        return
    if share.core_percent:
        yield f"{share.core_percent} % core"
    if share.memory_bytes:
        yield format_bytes(share.memory_bytes)
