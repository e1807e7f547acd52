"""A collection of the API followed: listed once, then watched, and told on as single changes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from sys import intern
from typing import Any, Final, Protocol
from urllib.parse import quote

from certs.ports import ApiError, Object
from ledger.domain.errors import TenureError
from ledger.domain.kube.object_fields import section, version_number

PAGE: Final = 500
OBJECTS_MAX: Final = 1_000_000
"""More are not followed: a view that lacks objects is none."""
WATCH_SECONDS: Final = 30
"""How long one watch lasts: a connection that died without a word is noticed by then."""
PAUSE_SECONDS: Final = 0.5
PAUSE_SECONDS_MAX: Final = 30.0
HEALTHY_SECONDS: Final = 120.0
"""A watch that was open for so long has recovered: the next failure is a first one."""
RETRY_AFTER_SECONDS_MAX: Final = 60.0
AT_ONCE_SECONDS: Final = 1.0
"""A watch that ends sooner, and told nothing, has failed."""
BRIEF_MAX: Final = 3
"""So many in a row that end as soon, and told something, are opened again at once."""
ABSENT_SECONDS: Final = 10.0
"""How long a kind that the API server does not serve is left alone."""

GONE: Final = 410
TOO_LARGE: Final = "Too large resource version"
"""An API server's words for a version that it has not come to; only a list says which it has."""
_DOUBLINGS_MAX: Final = 16


class SetBackError(TenureError):
    """The API server has forgotten what it told: its store was put back."""


class ListerWatcher(Protocol):
    """What is followed; every method raises ApiError."""

    async def read(self, path: str) -> Object | None:
        """Return a list as the API server has it now."""

    def watch(self, path: str, seconds: int) -> AsyncGenerator[Object, None]:
        """Yield the events of a watch until the API server ends it."""


class Sink(Protocol):
    """Who is told. Neither method waits, and what one raises is a fault of ours, not the API's."""

    def put(self, uid: str, item: Object) -> None:
        """Take an object that came or changed; `item` is whole, and nobody else keeps it."""

    def drop(self, uid: str) -> None:
        """Forget an object that is gone."""


class Reflector:
    """
    Follows one collection for as long as `follow` is called again.

    Objects are told apart by UID, so that one that was made anew under its name is another one,
    dropped before the new one is put. After a list that was not the first, only what differs is
    told: by resourceVersion, which means nothing else to us.

    Attributes:
        synced: the sink has all there was at some moment, and is told of changes since.
        open: a watch is open.
        relists: why lists were read, by reason: `first`, `gone` (410), `broken` (no event, or one
            that is older than the one before).
    """

    def __init__(
        self,
        source: ListerWatcher,
        path: str,
        sink: Sink,
        *,
        monotonic: Callable[[], float],
        jitter: Callable[[], float] = random.random,
        objects_max: int | None = None,
        may_be_absent: bool = False,
        may_be_set_back: bool = True,
        name: str = "",
    ) -> None:
        """
        Make one.

        Args:
            jitter: draws from [0, 1).
            may_be_absent: where the API server does not serve the kind, there is no object of it.
            may_be_set_back: an API server whose store was put back is followed on; else nothing
                that it lists is told.
            name: follow the object of this name alone, for which a right can be given.
        """
        self._source = source
        self._path = path
        self._sink = sink
        self._monotonic = monotonic
        self._jitter = jitter
        self._objects_max = OBJECTS_MAX if objects_max is None else objects_max
        self._may_be_absent = may_be_absent
        self._only = f"&fieldSelector=metadata.name%3D{quote(name)}" if name else ""
        self._may_be_set_back = may_be_set_back
        self._highest = 0
        self._absent = False
        self._versions: dict[str, str] = {}  # UID -> resourceVersion of what the sink was told
        self._named: dict[tuple[str, str], str] = {}  # namespace and name -> UID
        self._names: dict[str, tuple[str, str]] = {}
        self._version = ""
        self._why = "first"
        self._failures = 0
        self._brief = 0  # watches in a row that ended as soon as they had told something
        self._opened_at: float | None = None
        self._lost_at: float | None = None
        self._told_at: float | None = None
        self.relists: Counter[str] = Counter()

    @property
    def open(self) -> bool:
        """Tell whether a watch is open."""
        return self._opened_at is not None

    @property
    def synced(self) -> bool:
        """Tell whether the sink has all there was at some moment, and hears of changes since."""
        return bool(self._version) or self._absent

    @property
    def version(self) -> str:
        """Return the resourceVersion up to which all was told; empty where a list is needed."""
        return self._version

    def age(self) -> float | None:
        """Return for how many seconds no watch has been open; None where none was before."""
        return None if self._lost_at is None else self._monotonic() - self._lost_at

    def staleness(self) -> float | None:
        """Return the seconds since news: an event, a bookmark or a watch that lasted its time."""
        return None if self._told_at is None else self._monotonic() - self._told_at

    def __len__(self) -> int:
        return len(self._versions)

    async def follow(self) -> None:
        """
        List where nothing is known, then watch, again and again; longer apart the more it fails.

        Raises:
            ApiError: the API could not be asked; call it again.
            SetBackError: the API server has forgotten what it told.
        """
        try:
            while True:
                if not self._version:
                    await self._list()
                if self._absent:
                    await asyncio.sleep(ABSENT_SECONDS)
                    continue
                self._opened_at = self._monotonic()
                await self._watch()
                if self._brief > BRIEF_MAX:
                    self._lose()
                    await asyncio.sleep(AT_ONCE_SECONDS)
        except ApiError as error:
            if error.status == GONE or TOO_LARGE in str(error):
                self._forget_version("gone")
            self._lose()
            await asyncio.sleep(self._pause(error))
            raise
        finally:
            self._lose()

    def _pause(self, error: ApiError) -> float:
        """Return how long to leave the API alone: any part of a bound that doubles, or as told."""
        bound = min(PAUSE_SECONDS * 2**self._failures, PAUSE_SECONDS_MAX)
        self._failures = min(self._failures + 1, _DOUBLINGS_MAX)
        told = min(error.retry_after_seconds or 0.0, RETRY_AFTER_SECONDS_MAX)
        pause: float = max(bound * self._jitter(), told)
        return pause

    def _lose(self) -> None:
        if self._opened_at is None:
            return
        now = self._monotonic()
        if now - self._opened_at >= HEALTHY_SECONDS:
            self._failures = 0
        self._opened_at, self._lost_at = None, now

    async def _list(self) -> None:
        """Tell the sink what differs from what it was told; a page is put as it comes."""
        self.relists[self._why] += 1
        seen: set[str] = set()
        following: str = ""
        version: str = ""
        while True:
            asked = f"{self._path}?limit={PAGE}{self._only}&continue={quote(following)}"
            page = await self._source.read(asked)
            self._absent = page is None and self._may_be_absent
            self._look_back(((page or {}).get("metadata") or {}).get("resourceVersion") or "")
            for item in (page or {}).get("items") or ():
                seen.add(self._put(item))
            metadata = (page or {}).get("metadata") or {}
            following = metadata.get("continue") or ""
            version = metadata.get("resourceVersion") or ""
            if not following:
                break
        if not (version or self._absent):
            raise ApiError(f"not a list: path={self._path}")
        for uid in [uid for uid in self._versions if uid not in seen]:
            self._drop(uid)
        self._version, self._told_at = version, self._monotonic()

    def _look_back(self, version: str) -> None:
        """Compare a list's version with the highest one so far (design section 8, "Restore")."""
        now = version_number(version) or 0
        if 0 < now < self._highest and not self._may_be_set_back:
            fact = f"resourceVersion={now}, told={self._highest}, path={self._path}"
            raise SetBackError(f"the API server's store was put back: {fact}")
        self._highest = now or self._highest

    async def _watch(self) -> None:
        path = f"{self._path}?watch=1&allowWatchBookmarks=true&resourceVersion={self._version}"
        path += self._only
        began, is_told = self._monotonic(), False
        async with aclosing(self._source.watch(path, WATCH_SECONDS)) as events:
            async for event in events:
                self._take(event.get("type"), event.get("object") or {})
                is_told = True
        lasted = self._monotonic() - began
        if lasted > WATCH_SECONDS - AT_ONCE_SECONDS:  # two clocks are not equally fast
            self._told_at = self._monotonic()
        is_brief = lasted < AT_ONCE_SECONDS
        self._brief = self._brief + 1 if is_brief else 0
        if is_brief and not is_told:
            raise ApiError(f"the watch ended at once: path={self._path}")

    def _take(self, kind: object, item: Object) -> None:
        """
        Take an event.

        Raises:
            ApiError: it is none, or older than the one before, which no API server tells: what came
                late, only a new list says.
        """
        if kind == "ERROR":
            self._forget_version("broken")
            said, code = item.get("message"), item.get("code")
            status = code if isinstance(code, int) else None
            raise ApiError(f"the watch failed: path={self._path}: {said}", status=status)
        version = (item.get("metadata") or {}).get("resourceVersion")
        if not version:
            self._forget_version("broken")
            raise ApiError(f"not a watch's event: path={self._path}, type={kind!r}")
        if 0 < (version_number(version) or 0) < (version_number(self._version) or 0):
            fact = f"resourceVersion={version}, told={self._version}, path={self._path}"
            self._forget_version("broken")
            raise ApiError(f"the watch went backwards: {fact}")
        if kind in {"ADDED", "MODIFIED"}:
            self._put(item)
        elif kind == "DELETED":
            self._drop(_key(item))
        self._version, self._told_at = version, self._monotonic()
        self._highest = max(self._highest, version_number(version) or 0)

    def _forget_version(self, why: str) -> None:
        """Only a new list says what was missed."""
        self._version, self._why = "", why

    def _put(self, item: Object) -> str:
        uid, place = _key(item), _place(item)
        version = str(item["metadata"].get("resourceVersion", ""))
        before = self._named.get(place)
        if before is not None and before != uid:
            self._drop(before)
        if version and self._versions.get(uid) == version:
            return uid
        if uid not in self._versions and len(self._versions) >= self._objects_max:
            self._forget_version("broken")
            raise ApiError(f"too many to keep: path={self._path}, objects_max={self._objects_max}")
        self._versions[uid] = version
        self._named[place], self._names[uid] = uid, place
        self._sink.put(uid, item)
        return uid

    def _drop(self, uid: str) -> None:
        if self._versions.pop(uid, None) is None:
            return
        place = self._names.pop(uid)
        if self._named.get(place) == uid:
            del self._named[place]
        self._sink.drop(uid)


def _key(item: Object) -> str:
    metadata = _metadata(item)
    return intern(str(metadata.get("uid") or "/".join(_place(item))))


def _place(item: Object) -> tuple[str, str]:
    """Return namespace and name; an object without a namespace is its own."""
    metadata = _metadata(item)
    name = intern(str(metadata["name"]))
    return intern(str(metadata.get("namespace") or name)), name


def _metadata(item: Object) -> Mapping[str, Any]:
    metadata = section(item, "metadata")
    if not metadata.get("name"):
        raise ApiError("the API's answer has an object without a name")
    return metadata
