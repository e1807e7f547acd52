"""What admission looks up in the API: remembered for seconds, so that a burst asks once."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from certs.ports import ApiError, Objects
from ledger.domain.annotations.wire import TRUE, an_object
from ledger.domain.errors import InputError
from ledger.domain.pod_spec import Amounts
from ledger.domain.quantity import Quantity, parse_quantity
from ledger.domain.resources import LABEL_TENURE_MANAGED
from webhook.decide.facts import QuotaFact
from webhook.server.metrics import Metrics
from webhook.server.ports import LookupFailedError

REMEMBERED_SECONDS: Final = 5.0
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
"""What a namespace or a Pod can be called: anything else is no part of a path."""
_REMEMBERED_MAX: Final = 10_000
_NAMESPACE: Final = "namespace"
_T = TypeVar("_T")


class KubeLookups:
    """
    Reads namespaces, quotas and Pods; see `webhook.server.ports.Lookups`.

    Quotas and managed namespaces are as they were at most `REMEMBERED_SECONDS` ago, and however
    many ask at once, the API is asked once. A namespace that is not managed is read anew each
    time: the API server sends us managed ones only, so it has been labelled just now. So is a Pod,
    because what it says decides whether a Binding is foreign.
    """

    def __init__(
        self,
        objects: Objects,
        metrics: Metrics,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._objects = objects
        self._metrics = metrics
        self._monotonic = monotonic
        self._remembered: dict[tuple[str, str], tuple[float, Any]] = {}
        self._asking: dict[tuple[str, str], asyncio.Task[Any]] = {}

    async def namespace_labels(self, namespace: str) -> Mapping[str, str]:
        """Return the labels of a namespace; none for one that does not exist."""
        if not _NAME.fullmatch(namespace):
            return {}
        return await self._recent(_NAMESPACE, namespace, self._labels)

    async def quotas(self, namespace: str) -> tuple[QuotaFact, ...]:
        """Return the namespace's ResourceQuotas."""
        if not _NAME.fullmatch(namespace):
            return ()
        return await self._recent("resourcequota", namespace, self._quotas)

    async def pod(self, namespace: str, name: str) -> Mapping[str, object] | None:
        """Return a Pod; None for one that does not exist."""
        if not (_NAME.fullmatch(namespace) and _NAME.fullmatch(name)):
            return None
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        return await self._asked("pod", self._objects.read(path))

    async def _labels(self, namespace: str) -> Mapping[str, str]:
        found = await self._objects.read(f"/api/v1/namespaces/{namespace}")
        labels = (found or {}).get("metadata", {}).get("labels") or {}
        return dict(labels)

    async def _quotas(self, namespace: str) -> tuple[QuotaFact, ...]:
        found = await self._objects.read(f"/api/v1/namespaces/{namespace}/resourcequotas")
        return tuple(_quota(item) for item in (found or {}).get("items", ()))

    async def _recent(self, kind: str, namespace: str, ask: Callable[[str], Awaitable[_T]]) -> _T:
        key = (kind, namespace)
        known = self._remembered.get(key)
        if known is not None and self._monotonic() - known[0] < REMEMBERED_SECONDS:
            found: _T = known[1]
            return found
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
            self._remembered[key] = (self._monotonic(), found)
        return found

    def _learnt(self, key: tuple[str, str], done: asyncio.Task[Any]) -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # whoever waits has it; perhaps nobody does any more

    async def _asked(self, kind: str, answer: Awaitable[_T]) -> _T:
        try:
            found = await answer
        except (ApiError, InputError) as error:
            self._metrics.lookups.labels(kind, "failed").inc()
            raise LookupFailedError(str(error)) from error
        self._metrics.lookups.labels(kind, "answered").inc()
        return found


def _is_managed(labels: object) -> bool:
    return isinstance(labels, Mapping) and labels.get(LABEL_TENURE_MANAGED) == TRUE


def _quota(item: Mapping[str, Any]) -> QuotaFact:
    path = "spec.hard"
    hard = an_object(item["spec"].get("hard"), path)
    amounts: dict[str, Quantity] = {
        name: parse_quantity(str(value)) for name, value in hard.items()
    }
    counted: Amounts = amounts
    return QuotaFact(name=item["metadata"]["name"], hard=counted)
