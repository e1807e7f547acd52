"""A collection of the API as it was last told to us: listed once, then watched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import quote

from certs.ports import ApiError, Object

PAGE: Final = 500
OBJECTS_MAX: Final = 100_000
"""More are not kept: whoever asks then reads the API, object by object."""
WATCH_SECONDS: Final = 30
"""How long one watch lasts: a connection that died without a word is noticed by then."""
PAUSE_SECONDS: Final = 0.5
PAUSE_SECONDS_MAX: Final = 30.0

_GONE: Final = 410
_T = TypeVar("_T")


class Source(Protocol):
    """What is watched; every method raises ApiError."""

    async def read(self, path: str) -> Object | None:
        """Return a list as the API server has it now."""
        ...

    def watch(self, path: str, seconds: int) -> AsyncGenerator[Object, None]:
        """Yield the events of a watch until the API server ends it."""
        ...


class Watched(Generic[_T]):
    """
    What is worth keeping of every object of a collection, by namespace and name.

    An object without a namespace is its own.
    """

    def __init__(
        self,
        source: Source,
        path: str,
        keep: Callable[[Object], _T],
        monotonic: Callable[[], float],
    ) -> None:
        self._source = source
        self._path = path
        self._keep = keep
        self._monotonic = monotonic
        self._known: dict[str, dict[str, _T]] = {}
        self._count = 0
        self._version = ""
        self._failures = 0
        self.open = False
        self._lost_at: float | None = None

    def age(self) -> float | None:
        """Return for how many seconds no watch has been open; None where none was before."""
        return None if self._lost_at is None else self._monotonic() - self._lost_at

    def of(self, namespace: str) -> Mapping[str, _T]:
        """Return what is known in a namespace, by name."""
        return self._known.get(namespace, {})

    async def follow(self) -> None:
        """
        List where nothing is known, then watch, again and again; longer apart the more it fails.

        Raises:
            ApiError: the API could not be asked; call it again.
        """
        try:
            while True:
                if not self._version:
                    await self._list()
                self.open = True
                await self._watch()
                self._failures = 0
        except ApiError:
            self._lose()
            pause = min(PAUSE_SECONDS * 2**self._failures, PAUSE_SECONDS_MAX)
            self._failures = min(self._failures + 1, 16)
            await asyncio.sleep(pause)
            raise
        finally:
            self._lose()

    def _lose(self) -> None:
        if self.open:
            self.open, self._lost_at = False, self._monotonic()

    async def _list(self) -> None:
        known: dict[str, dict[str, _T]] = {}
        count, following = 0, ""
        while True:
            page = f"{self._path}?limit={PAGE}&continue={quote(following)}"
            found = await self._source.read(page)
            for item in (found or {}).get("items") or ():
                namespace, name = _place(item)
                known.setdefault(namespace, {})[name] = self._keep(item)
                count += 1
            if count > OBJECTS_MAX:
                raise ApiError(f"too many to keep: path={self._path}, objects_max={OBJECTS_MAX}")
            metadata = (found or {}).get("metadata") or {}
            following = metadata.get("continue") or ""
            if not following:
                break
        version = metadata.get("resourceVersion")
        if not version:
            raise ApiError(f"not a list: path={self._path}")
        self._known, self._count, self._version = known, count, version

    async def _watch(self) -> None:
        path = f"{self._path}?watch=1&allowWatchBookmarks=true&resourceVersion={self._version}"
        async with aclosing(self._source.watch(path, WATCH_SECONDS)) as events:
            async for event in events:
                self._take(event.get("type"), event.get("object") or {})

    def _take(self, kind: object, item: Mapping[str, Any]) -> None:
        if kind == "ERROR":
            self._version = ""  # too old, most likely: only a new list says what was missed
            if item.get("code") != _GONE:
                raise ApiError(f"the watch failed: path={self._path}: {item.get('message')}")
            return
        version = (item.get("metadata") or {}).get("resourceVersion")
        if not version:
            self._version = ""
            raise ApiError(f"not a watch's event: path={self._path}, type={kind!r}")
        if kind in {"ADDED", "MODIFIED"}:
            self._put(item)
        elif kind == "DELETED":
            self._drop(item)
        self._version = version

    def _put(self, item: Object) -> None:
        namespace, name = _place(item)
        there = self._known.setdefault(namespace, {})
        self._count += name not in there
        there[name] = self._keep(item)
        if self._count > OBJECTS_MAX:
            self._version = ""
            raise ApiError(f"too many to keep: path={self._path}, objects_max={OBJECTS_MAX}")

    def _drop(self, item: Object) -> None:
        namespace, name = _place(item)
        there = self._known.get(namespace, {})
        self._count -= there.pop(name, None) is not None
        if not there:
            self._known.pop(namespace, None)


def _place(item: Object) -> tuple[str, str]:
    try:
        metadata = item["metadata"]
        name = str(metadata["name"])
        return str(metadata.get("namespace") or name), name
    except (AttributeError, KeyError, TypeError) as error:
        raise ApiError("the API's answer has an object without a name") from error
