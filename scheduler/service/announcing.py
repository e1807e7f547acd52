"""
Announces on Nodes that room came free, and on Namespaces that Pods there hold something.

Rule: design section 5; GPU-sharing contract C.4, "Ours".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np

from certs.ports import ApiError, ConflictError, Object, Objects, api_path
from ledger.domain.annotations.tenure import encode_released_at
from ledger.domain.annotations.wire import TRUE
from ledger.domain.log.recorded_request import recorded_request, request_digest
from ledger.domain.request.requests import PodRequest
from ledger.domain.resources import ANNOTATION_TENURE_RELEASED_AT, LABEL_TENURE_HOLDING
from scheduler.decide.outcome import Placement
from scheduler.service.ending import Wakes, namespace_labels
from scheduler.service.kept import Namespaces
from scheduler.service.ports import Clock, WhyNot
from scheduler.service.view import ClusterView

LABEL_SECONDS: Final = 1.0
AGO_SECONDS_MAX: Final = 60.0
"""A release that is older was told of by whoever recorded it: a Lease lapses much sooner."""
KINDS_MAX: Final = 256
"""Kinds of waiting Pods that a new leader looks for room for: each is a look at every node."""
NODES_OF_KIND: Final = 16
"""Nodes that a kind is woken on: kube-scheduler's own checks may keep its Pods from some."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_log: Final = logging.getLogger("tenure.scheduler.announcing")


@dataclass(slots=True, eq=False)
class Announcing:
    """
    Marks Nodes and Namespaces.

    Attributes:
        planned: returns the place that a plan keeps for a member of a group, if there is one.

    Attributes:
        mislabelled: name of a Namespace -> why its label can't be mended, in words.
    """

    view: ClusterView
    api: Objects
    clock: Clock
    why_not: WhyNot
    planned: Callable[[PodRequest], Placement | None]
    _has_looked: bool = False
    _label_at: float = 0.0
    namespaces: Namespaces = field(default_factory=Namespaces)
    mislabelled: dict[str, str] = field(default_factory=dict)
    _wakes: Wakes = field(init=False)

    def __post_init__(self) -> None:
        self._wakes = Wakes(self.clock.monotonic)
        self.view.wakeups.room_freed.subscribe(self.freed)

    def freed(self, name: str) -> None:
        """Take note that room came free on a node that only memory had kept."""
        self._wakes.released(name)

    def stand_by(self) -> None:
        """Forget what whoever records has announced."""
        self._wakes.forget(AGO_SECONDS_MAX)

    async def tell(self) -> None:
        """
        Wake the Pods that wait for room, and keep the label of the namespaces that hold some.

        Raises:
            ApiError: the API is away; it is told again.
        """
        if not (self._has_looked or self.why_not()):
            self._has_looked = True
            await self._find_room()
        await _all(*map(self._wake, self._wakes.take()))
        now = self.clock.monotonic()
        if now < self._label_at or self.why_not():
            return
        self._label_at = now + LABEL_SECONDS
        wrong = namespace_labels(self.namespaces.labelled, self.view.namespaces())
        for name in self.mislabelled.keys() - wrong.keys():
            del self.mislabelled[name]
        await _all(*(self._label(name, has=has) for name, has in wrong.items()))

    async def _find_room(self) -> None:
        """
        Wake Pods that wait since before we led: of room that came free until then we know nothing.

        Pods alike are looked at once, and calls are answered between two Pods.
        """
        view, kinds = self.view, set[tuple[int, int, str]]()
        pods = list(view.pods.seen.values())
        for pod in (one for one in pods if one.is_ours and not (one.node or one.ended)):
            await asyncio.sleep(0)
            request = view.requests.by_uid(pod.uid)
            if isinstance(request, str):
                continue
            place = self.planned(request)
            if place is not None:
                self._wakes.released(place.node_name)
                continue
            alone = recorded_request(replace(request, group=None, gang=None))
            kind = (request.cpu_milli, request.memory_bytes, request_digest(alone))
            if kind in kinds:
                continue
            if len(kinds) == KINDS_MAX:
                _log.warning("not every Pod that waits is woken", extra={"kinds": KINDS_MAX})
                return
            kinds.add(kind)
            names = view.directory.names()
            found = view.engine.filter(request, view.directory.ask(names).nodes)
            best = np.argsort(-found.ratings, kind="stable")[:NODES_OF_KIND]
            for node in found.passing[best].tolist():
                self._wakes.released(names[node])

    async def _wake(self, name: str) -> None:
        """
        Say on a Node that room came free.

        Rule: GPU-sharing contract C.4, "Ours": a changed annotation of a Node makes kube-scheduler
        look again at Pods that an extender refused.
        """
        moment = _EPOCH + timedelta(microseconds=self.clock.wall_us())
        node = self.view.nodes.nodes.body(name)
        if node is None:
            return
        text = encode_released_at(moment)
        path = api_path("v1", "nodes", name)
        try:
            await self.api.patch(path, _annotate(ANNOTATION_TENURE_RELEASED_AT, text, node))
        except (ApiError, ConflictError):
            self._wakes.released(name)
            raise

    async def _label(self, name: str, *, has: bool) -> None:
        key = LABEL_TENURE_HOLDING.replace("/", "~1")
        path = f"/metadata/labels/{key}"  # every Namespace has one of its name
        operation = {"op": "add", "path": path, "value": TRUE}
        try:
            await self.api.patch(
                api_path("v1", "namespaces", name),
                [operation if has else {"op": "remove", "path": path}],
            )
        except ApiError as error:
            self.mislabelled[name] = f"must {'have' if has else 'lose'} its label: {error}"
            raise
        self.mislabelled.pop(name, None)


def _annotate(key: str, text: str, seen: Object) -> list[Object]:
    """Return the patch that sets an annotation of an object, which may have none."""
    path = "/metadata/annotations"
    uid: Object = {"op": "test", "path": "/metadata/uid", "value": seen["metadata"]["uid"]}
    if seen["metadata"].get("annotations") is None:
        none: Object = {"op": "test", "path": path, "value": None}
        return [uid, none, {"op": "add", "path": path, "value": {key: text}}]
    return [uid, {"op": "add", "path": f"{path}/{key.replace('/', '~1')}", "value": text}]


async def _all(*calls: Awaitable[None]) -> None:
    """Make all calls; raise what the first of them came to that failed, unless it is a conflict."""
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None and not isinstance(outcome, ConflictError):
            raise outcome
