"""An API server in memory: versions, preconditions, Bindings, watches and lost answers."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from certs.ports import ApiError, ConflictError, Object
from scheduler.service.binding import pod_path

_T = TypeVar("_T")
Json = dict[str, Any]
Sleep = Callable[[float], Awaitable[None]]

ANSWERED: Final = "answered"
REFUSED: Final = "refused"
LOST: Final = "lost"
"""It was done, and the answer did not come."""
DROPPED: Final = "dropped"
"""It never arrived."""
LATE: Final = "late"
"""It arrives long after the caller gave up."""

DRY_RUN: Final = "?dryRun=All"
LEFT_AT: Final = "2026-01-31T14:05:00Z"
"""When a Pod is to be gone that is being deleted."""


@dataclass(slots=True)
class ApiServer:
    """
    Objects by path.

    Attributes:
        watchers: called with type and object of each change, in order.
        written: verb and path of what changed something.
        minor: of its version of Kubernetes.
        ends: ends an evicted Pod by its path; None = it is gone at once.
    """

    objects: dict[str, Json] = field(default_factory=dict)
    version: int = 0
    watchers: list[Callable[[str, Json], None]] = field(default_factory=list)
    written: list[tuple[str, str]] = field(default_factory=list)
    minor: str = "36"
    ends: Callable[[str], None] | None = None

    def put(self, path: str, value: Json, verb: str = "MODIFIED") -> Json:
        """Store an object under a version of its own, and tell who watches."""
        self.version += 1
        value = copy.deepcopy(value)
        value["metadata"]["resourceVersion"] = str(self.version)
        kind = verb if path in self.objects else "ADDED"
        self.objects[path] = value
        self.tell(kind, value)
        return copy.deepcopy(value)

    def change(self, path: str, change: Callable[[Json], None]) -> None:
        """Change an object as somebody else would; one that is gone stays so."""
        if path in self.objects:
            value = copy.deepcopy(self.objects[path])
            change(value)
            self.put(path, value)

    def delete(self, path: str) -> None:
        """Remove an object."""
        value = self.objects.pop(path, None)
        if value is not None:
            self.version += 1
            last = copy.deepcopy(value)
            last["metadata"]["resourceVersion"] = str(self.version)
            self.tell("DELETED", last)

    def tell(self, kind: str, value: Json) -> None:
        """Tell who watches."""
        for watcher in self.watchers:
            watcher(kind, copy.deepcopy(value))

    def read(self, path: str) -> Json | None:
        """Return an object as it is now, or the version."""
        if path == "/version":
            return {"major": "1", "minor": self.minor}
        return copy.deepcopy(self.objects.get(path))

    def create(self, path: str, body: Object) -> Json:
        """Create an object; a Binding gives a Pod its node and annotations in one step."""
        if path.endswith("/binding"):
            self._bind(path.removesuffix("/binding"), body)
        elif path.endswith(("/eviction", f"/eviction{DRY_RUN}")):
            self._evict(path, body)
        else:
            place = f"{path}/{body['metadata']['name']}"
            if place in self.objects:
                raise ConflictError(f"it exists: path={place}")
            self.put(place, dict(body))
        self.written.append(("create", path))
        return {}

    def replace(self, path: str, body: Object) -> Json:
        """Replace an object that is still what was read."""
        value, wanted = self.read(path), body["metadata"]["resourceVersion"]
        if value is None or value["metadata"]["resourceVersion"] != wanted:
            raise ConflictError(f"it changed or is gone: path={path}")
        self.written.append(("replace", path))
        return self.put(path, dict(body))

    def patch(self, path: str, operations: Sequence[Object]) -> Json:
        """Apply a JSON patch; one that changes nothing moves no version."""
        path = path.removesuffix("/status")
        value = self.read(path)
        if value is None:
            raise ConflictError(f"the object is gone: path={path}")
        for operation in operations:
            _apply(value, operation)
        if value == self.objects[path]:
            return value
        self.written.append(("patch", path))
        return self.put(path, value)

    def _evict(self, path: str, body: Object) -> None:
        path, _, query = path.partition("/eviction")
        pod = self.read(path)
        if pod is None:
            raise ApiError(f"pods not found: {path}", status=404)
        if body["deleteOptions"]["preconditions"]["uid"] != pod["metadata"]["uid"]:
            raise ConflictError("precondition failed: uid")
        if not query:
            (self.ends or self.delete)(path)

    def _bind(self, path: str, body: Object) -> None:
        pod = self.read(path)
        if pod is None:
            raise ApiError(f"pods not found: {path}", status=404)
        wanted, metadata = body["metadata"], pod["metadata"]
        for key in ("uid", "resourceVersion"):
            if wanted.get(key, metadata[key]) != metadata[key]:
                raise ConflictError(f"precondition failed: {key}")
        if metadata.get("deletionTimestamp"):
            raise ConflictError("pod is being deleted, cannot be assigned to a host")
        if pod["spec"].get("nodeName"):
            raise ConflictError("pod is already assigned to node")
        pod["spec"]["nodeName"] = body["target"]["name"]
        annotations = {**metadata.get("annotations", {}), **wanted.get("annotations", {})}
        metadata["annotations"] = annotations
        self.put(path, pod)


@dataclass(slots=True)
class ApiClient:
    """
    What one process has of it; see `scheduler.service.ports.Api`.

    Args:
        fate: what becomes of the next call, by verb: one of the words above, or a status.
        later: does something after so many seconds, whatever becomes of the caller.
    """

    server: ApiServer
    sleep: Sleep
    fate: Callable[[str], str | int] = lambda _: ANSWERED
    later: Callable[[float, Callable[[], object]], object] | None = None
    seconds: float = 0.01
    timeout_seconds: float = 2.0
    late_seconds: float = 20.0
    calls: list[tuple[str, str]] = field(default_factory=list)

    async def read(self, path: str) -> Object | None:
        """Return an object as the server has it."""
        return await self._call("read", path, lambda: self.server.read(path))

    async def create(self, path: str, body: Object) -> Object:
        """Create an object, or a Binding."""
        sent = copy.deepcopy(dict(body))
        return await self._call("create", path, lambda: self.server.create(path, sent))

    async def replace(self, path: str, body: Object) -> Object:
        """Replace an object."""
        sent = copy.deepcopy(dict(body))
        return await self._call("replace", path, lambda: self.server.replace(path, sent))

    async def remove(self, path: str) -> None:
        """Delete an object."""
        await self._call("remove", path, lambda: self.server.delete(path))

    async def patch(self, path: str, operations: Sequence[Object]) -> Object:
        """Apply a JSON patch."""
        sent = copy.deepcopy(list(operations))
        return await self._call("patch", path, lambda: self.server.patch(path, sent))

    async def _call(self, verb: str, path: str, done: Callable[[], _T]) -> _T:
        self.calls.append((verb, path))
        fate = self.fate(verb)
        await self.sleep(self.seconds)
        if isinstance(fate, int):
            raise ApiError("the API refused", status=fate)
        if fate == ANSWERED:
            return done()
        if fate == LOST:
            _unheard(done)
        if fate == LATE:
            assert self.later is not None
            self.later(self.late_seconds, lambda: _unheard(done))
        await self.sleep(self.timeout_seconds)
        raise ApiError("the API did not answer")


def _unheard(done: Callable[[], object]) -> None:
    """Do what nobody hears of, its refusal least of all."""
    try:
        done()
    except (ApiError, ConflictError):
        return


def _apply(value: Json, operation: Object) -> None:
    """Apply one operation on members of objects."""
    *parents, last = [part.replace("~1", "/") for part in operation["path"].split("/")[1:]]
    place = value
    for name in parents:
        if not isinstance(place.get(name), dict):
            raise ConflictError(f"no such path: {operation['path']}")
        place = place[name]
    match operation["op"]:
        case "test":
            if place.get(last) != operation["value"]:
                raise ConflictError(f"the test failed: {operation['path']}")
        case "add":
            place[last] = copy.deepcopy(operation["value"])
        case "remove":
            if last not in place:
                raise ConflictError(f"no such path: {operation['path']}")
            del place[last]
        case other:
            raise AssertionError(other)


def pod(name: str, uid: str, *, namespace: str = "team-a", **spec: Any) -> Json:  # noqa: ANN401
    """Return a Pod of the profile that admission has seen."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": uid,
            "annotations": {"tenure.sh/admitted": "true"},
        },
        "spec": {"schedulerName": "tenure", "containers": []} | spec,
        "status": {"phase": "Pending"},
    }


def path_of(value: Object) -> str:
    """Return the path of a Pod object."""
    return pod_path(value["metadata"]["namespace"], value["metadata"]["name"])
