"""What `tenure serve agent` does in the mode `gpushare` beside answering kubelet: marks of Pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import quote

from agent.decide.gpushare import marking
from agent.plugin.sharing import GpuShare, ShareSlots
from certs.ports import ConflictError

ROUND_SECONDS: Final = 30.0
SETTLE_SECONDS: Final = 0.5
"""After a start, so that the Pods of a burst are read once."""

_log: Final = logging.getLogger("tenure.agent.sharing")


class Objects(Protocol):
    """The API as far as this needs it. Both raise ApiError, `patch` also ConflictError."""

    async def read(self, path: str) -> Mapping[str, Any] | None:
        """Return an object, None if there is none."""
        ...

    async def patch(self, path: str, operations: Sequence[Mapping[str, Any]]) -> object:
        """Apply a JSON patch whole or not at all."""
        ...


class Marker:
    """Reads what the Node's labels say, and marks Pods whose share is assigned."""

    def __init__(self, objects: Objects, node: str, served: GpuShare | ShareSlots) -> None:
        self._objects = objects
        self._node = node
        self._served = served
        self._marked: set[str] = set()

    async def round(self) -> None:
        """
        Do once what there is to do, then wait for a start of a container, not for ever.

        Raises:
            ApiError: the API does not answer.
            NotYetError: kubelet does not.
        """
        self._served.started.clear()
        try:
            node = await self._objects.read(f"/api/v1/nodes/{_of(self._node)}")
            if node is not None:
                self._served.labelled(node["metadata"].get("labels") or {})
            await self._mark()
        finally:
            try:
                async with asyncio.timeout(ROUND_SECONDS):
                    await self._served.started.wait()
                await asyncio.sleep(SETTLE_SECONDS)
            except TimeoutError:
                pass

    async def _mark(self) -> None:
        """Mark each Pod once, which kubelet may tell of as it was for a while after."""
        pods = await self._served.to_mark()
        for pod in pods:
            if pod.uid in self._marked:
                continue
            path = f"/api/v1/namespaces/{_of(pod.namespace)}/pods/{_of(pod.name)}"
            try:
                await self._objects.patch(path, marking(pod))
            except ConflictError as error:  # it is gone, another one, or marked
                _log.info("not marked", extra={"pod_uid": pod.uid, "reason": str(error)})
            else:
                _log.info("marked as assigned", extra={"pod_uid": pod.uid})
            self._marked.add(pod.uid)
        self._marked &= {pod.uid for pod in pods}


def _of(name: str) -> str:
    return quote(name, safe="")
