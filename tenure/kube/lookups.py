"""What admission looks up in the API: watched, else asked, once for a whole burst."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from certs.ports import ApiError, Object, Objects, api_path
from ledger.domain.annotations.wire import TRUE, an_object
from ledger.domain.errors import InputError
from ledger.domain.kube.object_fields import is_name
from ledger.domain.kube.pod_spec import Amounts
from ledger.domain.quantity import Quantity, parse_quantity
from ledger.domain.resources import LABEL_TENURE_MANAGED
from tenure.kube.reflector import ListerWatcher, Reflector
from webhook.decide.facts import QuotaFact
from webhook.server.metrics import Metrics
from webhook.server.ports import LookupFailedError

REMEMBERED_SECONDS: Final = 5.0
OUTDATED_SECONDS: Final = 300.0
"""How old an answer may be that is given because the API does not answer."""
ATTEMPTS: Final = 4
PAUSE_SECONDS: Final = 0.1
_REMEMBERED_MAX: Final = 10_000
_NAMESPACE: Final = "namespace"
_QUOTAS: Final = "resourcequota"
_T = TypeVar("_T")
OBJECTS_MAX: Final = 100_000
"""More are not kept: whoever asks then reads the API, object by object."""


class _UnreadableError(LookupFailedError):
    """What the API says can't be read: neither asking again nor what was known is an answer."""


class KubeWatches:
    """All namespaces and quotas of the cluster, each as a watch has told it."""

    def __init__(
        self, source: ListerWatcher, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.namespaces = Watched(source, "/api/v1/namespaces", _labels, monotonic)
        self.quotas = Watched(source, "/api/v1/resourcequotas", _quota, monotonic)


@dataclass(slots=True, eq=False)
class KubeLookups:
    """
    Reads namespaces, quotas and Pods; see `webhook.server.ports.Lookups`.

    Managed namespaces and quotas are as the watch has told them. While none is open, they are as
    they were at most `REMEMBERED_SECONDS` ago, and however many ask at once, the API is asked once,
    again when it fails, and at last what was known before is taken, if it is not too old. A
    namespace that is not managed is always read anew: the API server sends us managed ones only, so
    it has been labelled just now. So is a Pod, because what it says decides whether a Binding is
    foreign.
    """

    objects: Objects
    metrics: Metrics
    monotonic: Callable[[], float] = time.monotonic
    watches: KubeWatches | None = None
    _remembered: dict[tuple[str, str], tuple[float, Any]] = field(default_factory=dict)
    _asking: dict[tuple[str, str], asyncio.Task[Any]] = field(default_factory=dict)

    async def namespace_labels(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a namespace; none for one that does not exist."""
        if not is_name(namespace):
            return {}
        return await self._recent(_NAMESPACE, namespace, self._labels)

    async def quotas(self, namespace: str) -> tuple[QuotaFact, ...]:
        """Return the namespace's ResourceQuotas."""
        if not is_name(namespace):
            return ()
        return await self._recent(_QUOTAS, namespace, self._quotas)

    async def pod(self, namespace: str, name: str) -> Mapping[str, object] | None:
        """Return a Pod; None for one that does not exist."""
        if not (is_name(namespace) and is_name(name)):
            return None
        path = api_path("v1", "namespaces", namespace, "pods", name)
        return await self._asked("pod", self.objects.read(path))

    async def _labels(self, namespace: str) -> Mapping[str, str]:
        found = await self.objects.read(api_path("v1", "namespaces", namespace))
        return {} if found is None else _labels(found)

    async def _quotas(self, namespace: str) -> tuple[QuotaFact, ...]:
        path = api_path("v1", "namespaces", namespace, "resourcequotas")
        found = await self.objects.read(path)
        return _readable(_quota(item) for item in (found or {}).get("items", ()))

    def _watched(self, kind: str, namespace: str, seconds: float = 0.0) -> Any:  # noqa: ANN401
        """
        Return what a watch says that was open so long ago; None where it is not to be believed.

        Raises:
            LookupFailedError: a quota can't be read.
        """
        watches = self.watches
        if watches is None:
            return None
        watched = watches.quotas if kind == _QUOTAS else watches.namespaces
        age = watched.reflector.age()
        if not watched.reflector.open and (age is None or age >= seconds):
            return None
        if kind == _QUOTAS:
            try:
                return _readable(watches.quotas.of(namespace).values())
            except InputError as error:
                raise _UnreadableError(str(error)) from error
        labels = watches.namespaces.of(namespace).get(namespace)
        return labels if _is_managed(labels) else None

    async def _recent(self, kind: str, namespace: str, ask: Callable[[str], Awaitable[_T]]) -> _T:
        """
        Return what a watch says, or the API, asked again when it fails; else what was known.

        Raises:
            LookupFailedError: the API failed each time, and nothing was known.
        """
        for left in reversed(range(ATTEMPTS)):
            watched: _T | None = self._watched(kind, namespace)
            if watched is not None:
                return watched
            try:
                return await self._asked_once(kind, namespace, ask)
            except _UnreadableError:
                raise
            except LookupFailedError:
                known: _T | None = self._known(kind, namespace, OUTDATED_SECONDS)
                if known is None:
                    known = self._watched(kind, namespace, OUTDATED_SECONDS)
                if known is not None:
                    self.metrics.lookups.labels(kind, "outdated").inc()
                    return known
                if not left:
                    raise
            await asyncio.sleep(PAUSE_SECONDS)
        raise AssertionError("the last attempt returns or raises")

    def _known(self, kind: str, namespace: str, seconds: float) -> Any:  # noqa: ANN401
        known = self._remembered.get((kind, namespace))
        return known[1] if known is not None and self.monotonic() - known[0] < seconds else None

    async def _asked_once(
        self, kind: str, namespace: str, ask: Callable[[str], Awaitable[_T]]
    ) -> _T:
        key = (kind, namespace)
        known: _T | None = self._known(kind, namespace, REMEMBERED_SECONDS)
        if known is not None:
            return known
        asking = self._asking.get(key)
        if asking is None:
            asking = asyncio.create_task(self._learn(key, ask))
            self._asking[key] = asking
            asking.add_done_callback(lambda done: self._learnt(key, done))
        answer: _T = await asyncio.shield(asking)  # others may wait for it too
        return answer

    async def _learn(self, key: tuple[str, str], ask: Callable[[str], Awaitable[_T]]) -> _T:
        kind, namespace = key
        found = await self._asked(kind, ask(namespace))
        if len(self._remembered) >= _REMEMBERED_MAX:
            self._remembered.clear()
        if kind != _NAMESPACE or _is_managed(found):
            self._remembered[key] = (self.monotonic(), found)
        return found

    def _learnt(self, key: tuple[str, str], done: asyncio.Task[Any]) -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # whoever waits has it; perhaps nobody does any more

    async def _asked(self, kind: str, answer: Awaitable[_T]) -> _T:
        try:
            found = await answer
        except (ApiError, InputError) as error:
            self.metrics.lookups.labels(kind, "failed").inc()
            unreadable = isinstance(error, InputError)
            failed = _UnreadableError if unreadable else LookupFailedError
            raise failed(str(error)) from error
        self.metrics.lookups.labels(kind, "answered").inc()
        return found


def _is_managed(labels: object) -> bool:
    return isinstance(labels, Mapping) and labels.get(LABEL_TENURE_MANAGED) == TRUE


def _labels(item: Object) -> Mapping[str, str]:
    return dict((item.get("metadata") or {}).get("labels") or {})


def _quota(item: Object) -> QuotaFact | InputError:
    """Return what a quota allows, or why it can't be read: whoever needs it has to know."""
    try:
        hard = an_object(item["spec"].get("hard"), "spec.hard")
        amounts: dict[str, Quantity] = {
            name: parse_quantity(str(value)) for name, value in hard.items()
        }
    except InputError as error:
        return error
    counted: Amounts = amounts
    return QuotaFact(name=item["metadata"]["name"], hard=counted)


def _readable(found: Iterable[QuotaFact | InputError]) -> tuple[QuotaFact, ...]:
    """Return quotas by name. Raises InputError: one can't be read, so the sum is unknown."""
    quotas = []
    for one in found:
        if isinstance(one, InputError):
            raise one
        quotas.append(one)
    return tuple(sorted(quotas, key=lambda quota: quota.name))


class Watched(Generic[_T]):
    """
    What is worth keeping of every object of a collection, by namespace and name.

    An object without a namespace is its own.
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
        """Follow the collection; see `Reflector.follow`. Raises ApiError: call it again."""
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
