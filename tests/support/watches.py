"""A source of lists and watches that does what a test tells it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from certs.ports import ApiError, Object


@dataclass(slots=True)
class ScriptedWatch:
    """
    Lists by path, and the events of whatever watch is open.

    Attributes:
        listed: path -> the objects there, told as a list of pages of `page` objects.
        opened: every path that was read or watched, with its query.
        absent: paths that the API server does not serve.
        failures: what the next watches fail with before they open, one each.
    """

    listed: dict[str, list[Object]] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    page: int = 2
    version: int = 1
    opened: list[str] = field(default_factory=list)
    failures: list[ApiError] = field(default_factory=list)
    events: dict[str, asyncio.Queue[Object | None]] = field(default_factory=dict)

    async def read(self, path: str) -> Object | None:
        """Return one page of a list."""
        self.opened.append(path)
        collection, _, query = path.partition("?")
        if collection in self.absent:
            return None
        start = int(query.rpartition("continue=")[2] or 0)
        there = self.listed.get(collection, [])
        end = start + self.page
        following = str(end) if end < len(there) else ""
        metadata = {"resourceVersion": str(self.version), "continue": following}
        return {"metadata": metadata, "items": there[start:end]}

    async def watch(self, path: str, seconds: int) -> AsyncGenerator[Object, None]:
        """Yield what is told until it ends, or fails."""
        assert seconds > 0
        self.opened.append(path)
        if self.failures:
            raise self.failures.pop(0)
        queue = self.events[path.partition("?")[0]] = asyncio.Queue()
        while True:
            event = await queue.get()
            if event is None:
                raise ApiError("the watch broke off")
            if event.get("type") == "END":
                return
            yield event

    def tell(self, path: str, kind: str, item: Object) -> None:
        """Tell an event to the watch that is open there."""
        self.events[path].put_nowait({"type": kind, "object": item})

    def fail(self) -> None:
        """Break off every watch."""
        for queue in self.events.values():
            queue.put_nowait(None)

    async def told(self) -> None:
        """Wait until everything told has been taken."""
        for _ in range(50):
            await asyncio.sleep(0)
