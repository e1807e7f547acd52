"""
Tells the cluster in words: Kubernetes Events about Pods and Nodes, bounded in number and rate.

Rule: design section 6; an Event is for people who look at an object, and is never read by us. Who
has something to say calls `tell`, which does not wait; `send` writes what is due, from a loop of
its own. An Event that can't be written is dropped: what matters is in the ledger.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import quote

from certs.ports import ApiError, ConflictError, Object
from scheduler.service.ports import Api, Clock

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
    """
    Writes Events by `events.k8s.io/v1`, each subject and reason at most once in a while.

    Args:
        reporter: who says it, such as `scheduler/<replica>`.

    Attributes:
        counts: what became of what was told: `written`, `repeated`, `dropped`.
    """

    api: Api
    clock: Clock
    reporter: str
    counts: Counter[str] = field(default_factory=Counter)
    _said: OrderedDict[tuple[Subject, str], _Said] = field(default_factory=OrderedDict)
    _due: dict[tuple[Subject, str], None] = field(default_factory=dict)
    _tokens: float = BURST
    _filled: float = float("-inf")
    _number: int = 0

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
        for key in [key for key in self._due if self._may(self._said[key])]:
            if not self._took_token():
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

    def _may(self, said: _Said) -> bool:
        return self.clock.monotonic() - said.at >= AGAIN_SECONDS

    def _took_token(self) -> bool:
        now = self.clock.monotonic()
        self._tokens = min(BURST, self._tokens + (now - self._filled) * PER_SECOND)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

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
        where = f"/apis/events.k8s.io/v1/namespaces/{quote(namespace, safe='')}/events"
        await self.api.create(where, event)
        said.path, said.written = f"{where}/{event['metadata']['name']}", said.note
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
    """Return a note that the API server takes."""
    raw = note.encode()
    if len(raw) <= NOTE_BYTES_MAX:
        return note
    return raw[: NOTE_BYTES_MAX - 3].decode(errors="ignore") + "..."


def _time(wall_us: int) -> str:
    """Return a moment as `metav1.MicroTime` is written."""
    moment = _EPOCH + timedelta(microseconds=wall_us)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
