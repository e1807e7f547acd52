"""The leader's label, by which the Service of the extender finds it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote

from certs.ports import ApiError, ConflictError, Object
from ledger.domain.annotations.wire import TRUE
from ledger.domain.resources import LABEL_TENURE_LEADER
from tenure.kube.objects import KubeObjects
from tenure.serving.scheduling.process import Process

LABEL_SECONDS: Final = 1.0
GOODBYE_SECONDS: Final = 3.0
_LABELS: Final = "/metadata/labels"
_LABEL: Final = f"{_LABELS}/{LABEL_TENURE_LEADER.replace('/', '~1')}"

_log: Final = logging.getLogger("tenure.scheduler")


class LeaderLabel:
    """The label of one Pod of several, of which it alone should have it."""

    def __init__(self, objects: KubeObjects, namespace: str, pod: str) -> None:
        self._objects = objects
        self._path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods"
        self._pod = pod

    async def take(self) -> None:
        """
        Label our Pod, and no other of the namespace.

        Raises:
            ApiError, ConflictError: not all of it was done; do it again.
        """
        selector = quote(f"{LABEL_TENURE_LEADER}={TRUE}", safe="")
        found = await self._objects.read(f"{self._path}?labelSelector={selector}")
        names = [str(one["metadata"]["name"]) for one in (found or {}).get("items") or ()]
        for name in names:
            if name != self._pod:
                await self._patch(name, {"op": "remove", "path": _LABEL})
        if self._pod not in names:
            await self._add()

    async def _add(self) -> None:
        pod = await self._objects.read(self._path_of(self._pod))
        if pod is None:
            raise ApiError(f"there is no such Pod to label: path={self._path_of(self._pod)}")
        if pod["metadata"].get("labels") is None:
            none: Object = {"op": "test", "path": _LABELS, "value": None}
            all_of_it: Object = {LABEL_TENURE_LEADER: TRUE}
            await self._patch(self._pod, none, {"op": "add", "path": _LABELS, "value": all_of_it})
        else:
            await self._patch(self._pod, {"op": "add", "path": _LABEL, "value": TRUE})

    def _path_of(self, name: str) -> str:
        return f"{self._path}/{quote(name, safe='')}"

    async def leave(self) -> None:
        """Take the label off our Pod, if it has it."""
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                test = {"op": "test", "path": _LABEL, "value": TRUE}
                await self._patch(self._pod, test, {"op": "remove", "path": _LABEL})
        except ConflictError:
            return  # it had none
        except (ApiError, TimeoutError) as error:
            _log.warning("the label stays", extra={"reason": str(error) or "no answer"})

    async def _patch(self, name: str, *operations: Object) -> None:
        await self._objects.patch(self._path_of(name), list(operations))


async def label_the_leader(process: Process) -> None:
    """
    Label our Pod from when the ledger is ours until that ends; outside of a cluster there is none.

    Whoever took the ledger over last has the label, also where its Lease ran out since: it says
    why it gives nothing, while nobody else leads. So does who may not take it over.
    """
    options, leading = process.options, process.leading
    if not options.pod:
        return
    label = LeaderLabel(process.objects, options.namespace, options.pod)

    leaving = False

    async def keep() -> None:
        ours = leading.epoch or process.freshness.quarantine
        if ours and not (leading.is_deposed or leaving):
            await label.take()

    @asynccontextmanager
    async def until_the_end() -> AsyncIterator[None]:
        nonlocal leaving
        try:
            yield
        finally:
            leaving = True
            await label.leave()

    process.repeat(LABEL_SECONDS, "leader label", keep)
    await process.stack.enter_async_context(until_the_end())
