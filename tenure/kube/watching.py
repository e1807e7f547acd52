"""A collection of the API as it was last told to us: what is worth keeping of each object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from certs.ports import Object
from tenure.kube.reflector import ListerWatcher, Reflector

OBJECTS_MAX: Final = 100_000
"""More are not kept: whoever asks then reads the API, object by object."""

_T = TypeVar("_T")


class Watched(Generic[_T]):
    """
    What is worth keeping of every object of a collection, by namespace and name.

    An object without a namespace is its own.

    Attributes:
        reflector: follows the collection, and tells how old this is.
    """

    def __init__(
        self,
        source: ListerWatcher,
        path: str,
        keep: Callable[[Object], _T],
        monotonic: Callable[[], float],
    ) -> None:
        self._keep = keep
        self._known: dict[str, dict[str, _T]] = {}
        self._places: dict[str, tuple[str, str]] = {}  # by UID
        self.reflector = Reflector(source, path, self, monotonic=monotonic, objects_max=OBJECTS_MAX)

    async def follow(self) -> None:
        """
        Follow the collection; see `Reflector.follow`.

        Raises:
            ApiError: the API could not be asked; call it again.
        """
        await self.reflector.follow()

    def of(self, namespace: str) -> Mapping[str, _T]:
        """Return what is known in a namespace, by name."""
        return self._known.get(namespace, {})

    def put(self, uid: str, item: Object) -> None:
        """Keep what is worth it of an object that came or changed."""
        name = str(item["metadata"]["name"])
        namespace = str(item["metadata"].get("namespace") or name)
        self._known.setdefault(namespace, {})[name] = self._keep(item)
        self._places[uid] = namespace, name

    def drop(self, uid: str) -> None:
        """Forget an object that is gone."""
        namespace, name = self._places.pop(uid)
        there = self._known[namespace]
        del there[name]
        if not there:
            del self._known[namespace]
