"""An API server's Secrets, Leases and webhook configurations in memory, with a clock of its own."""

from __future__ import annotations

import base64
import copy
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

from certs.ports import ApiError, ConflictError, Object

START = datetime(2026, 3, 2, 10, tzinfo=UTC)


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        """Return what time it is."""
        return self.now

    def pass_by(self, **much: float) -> None:
        """Let time go by, in the words of `timedelta`."""
        self.now += timedelta(**much)


async def _at_once(_method: str, _path: str) -> None:
    """Let a call go through at once."""


@dataclass(slots=True)
class MemoryObjects:
    """Objects by path, with resourceVersions, conflicts and failures like an API server's."""

    objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    before: Callable[[str, str], Awaitable[None]] = _at_once
    version: int = 0

    async def read(self, path: str) -> Object | None:
        """Return an object, or the list of a labelled collection."""
        await self.before("read", path)
        collection, _, query = path.partition("?labelSelector=")
        if query:
            key, value = unquote(query).split("=")
            items = [
                copy.deepcopy(one)
                for name, one in self.objects.items()
                if name.startswith(f"{collection}/")
                and one["metadata"].get("labels", {}).get(key) == value
            ]
            return {"items": items}
        return copy.deepcopy(self.objects.get(path))

    async def create(self, path: str, body: Object) -> Object:
        """Create an object."""
        await self.before("create", path)
        place = f"{path}/{body['metadata']['name']}"
        if place in self.objects:
            raise ConflictError(f"it exists: {place}")
        return self._stored(place, body)

    async def replace(self, path: str, body: Object) -> Object:
        """Replace an object that is still what was read."""
        await self.before("replace", path)
        known = self.objects.get(path)
        if (
            known is None
            or known["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]
        ):
            raise ConflictError(f"it changed: {path}")
        return self._stored(path, body)

    async def patch(self, path: str, operations: Sequence[Object]) -> Object:
        """Apply the patch that publishes a bundle: one test, then one bundle for each webhook."""
        await self.before("patch", path)
        changed = copy.deepcopy(self.objects[path])
        test, *bundles = operations
        if changed["metadata"]["resourceVersion"] != test["value"]:
            raise ConflictError(f"it changed: {path}")
        for operation in bundles:
            number = int(operation["path"].split("/")[2])
            changed["webhooks"][number]["clientConfig"]["caBundle"] = operation["value"]
        return self._stored(path, changed)

    async def remove(self, path: str) -> None:
        """Delete an object."""
        await self.before("remove", path)
        self.objects.pop(path, None)

    def add_configuration(self, path: str, *, webhooks: int = 1) -> None:
        """Register webhooks without a bundle."""
        made = [{"name": f"w{number}", "clientConfig": {}} for number in range(webhooks)]
        self._stored(path, {"metadata": {"name": path.rpartition("/")[2]}, "webhooks": made})

    def bundle(self, path: str, number: int = 0) -> bytes:
        """Return what one webhook of a configuration trusts."""
        said = self.objects[path]["webhooks"][number]["clientConfig"].get("caBundle", "")
        return base64.b64decode(said)

    def _stored(self, path: str, body: Object) -> Object:
        self.version += 1
        kept = copy.deepcopy(dict(body))
        kept["metadata"] = {**kept["metadata"], "resourceVersion": str(self.version)}
        self.objects[path] = kept
        return copy.deepcopy(kept)


def fail_with(message: str) -> ApiError:
    """Return the error of an API that can't be reached."""
    return ApiError(message)
