"""
The device plugin as kubelet sees it: registered, connected to, called; again after each restart.

Kubelet takes all sockets away when it starts, and makes its own anew, often with the number of the
old inode: what it was registered with is told by number and time of change, and by our own socket.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from agent.decide.slots import Given, qualified
from agent.plugin import messages
from agent.plugin.metrics import Metrics
from agent.plugin.preparing import NotYetError, Slots
from ledger.domain.errors import InputError, TenureError
from ledger.domain.resources import SLOT

KUBELET_SOCKET: Final = "kubelet.sock"
PATH_MAX: Final = 107
"""The longest path of a Unix socket on Linux."""
MESSAGE_MAX: Final = 4 * 2**20
"""Kubelet takes no longer message, such as the list of all slots."""
LOOK_SECONDS: Final = 1.0
SWEEP_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 20.0
"""How long a container's start waits for what is not known yet: kubelet gives up after 30 s."""
AGAIN_SECONDS: Final = 0.1
CALL_SECONDS: Final = 10.0
STOP_SECONDS: Final = 2.0
CONNECT_SECONDS: Final = 1.0
_PREFIX: Final = "tenure-"

_Context = grpc.aio.ServicerContext[Any, Any]
_log: Final = logging.getLogger("tenure.agent.plugin")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Registration:
    """What we are registered with: kubelet's socket, and ours beside it."""

    kubelet: tuple[int, int]
    own: Path


class DevicePlugin:
    """Serves kubelet's calls over sockets in its folder of device plugins."""

    def __init__(self, slots: Slots, *, folder: Path, start: str, metrics: Metrics) -> None:
        """
        Be ready to serve.

        Raises:
            InputError: kubelet could not take the list of slots, or the folder's path is too long.
        """
        self._slots = slots
        self._folder = folder
        self._prefix = f"{_PREFIX}{start[:8]}"
        self._metrics = metrics
        self._listenings = 0
        self._registered: _Registration | None = None
        self._server: grpc.aio.Server | None = None
        self._ended = asyncio.Event()
        devices = [{"ID": each, "health": "Healthy"} for each in slots.ids]
        self._all: Final = messages.ListAndWatchResponse(devices=devices)
        if self._all.ByteSize() > MESSAGE_MAX:
            fact = f"kubelet takes no list of so many slots: count={len(slots.ids)}"
            raise InputError(fact, field="--slots")
        if len(os.fsencode(self._socket(999))) > PATH_MAX:
            raise InputError(f"the path of a socket is too long: {self._socket(999)}")

    def why_not_ready(self) -> str:
        """Return why kubelet could not call us; nothing when it can."""
        return "" if self._stands() else "not registered with kubelet"

    async def run(self) -> None:
        """Keep registered until cancelled; what fails is tried again."""
        swept = time.monotonic()
        try:
            while True:
                if not self._stands():
                    await self._register()
                if time.monotonic() - swept > SWEEP_SECONDS:
                    swept = time.monotonic()
                    self._sweep()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            await self._stop()

    def _stands(self) -> bool:
        return (
            self._registered is not None
            and self._registered.kubelet == self._kubelet()
            and self._registered.own.exists()
        )

    def _kubelet(self) -> tuple[int, int] | None:
        """Return what tells kubelet's socket from the one that it had before its restart."""
        try:
            found = (self._folder / KUBELET_SOCKET).stat()
        except OSError:
            return None
        return found.st_ino, found.st_ctime_ns

    async def _register(self) -> None:
        """Listen on a new socket, and tell kubelet of it."""
        self._registered = None
        self._metrics.registered.set(0)
        await self._stop()
        kubelet = self._kubelet()
        if kubelet is None:
            return
        self._listenings += 1
        own = self._socket(self._listenings)
        self._clear()
        try:
            await self._listen(own)
            await self._tell(own)
        except (OSError, RuntimeError, grpc.aio.AioRpcError) as error:
            _log.warning("kubelet does not take us", extra={"reason": str(error)})
            return
        self._registered = _Registration(kubelet=kubelet, own=own)
        self._metrics.registered.set(1)
        self._metrics.registrations.inc()
        _log.info("registered with kubelet", extra={"endpoint": own.name})

    async def _listen(self, own: Path) -> None:
        self._ended = asyncio.Event()
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((self._calls(),))
        self._server.add_insecure_port(f"unix:{own}")
        await self._server.start()

    async def _tell(self, own: Path) -> None:
        target = f"unix:{self._folder / KUBELET_SOCKET}"
        async with grpc.aio.insecure_channel(target) as channel:
            register = channel.unary_unary(
                f"/{messages.VERSION}.Registration/Register",
                request_serializer=messages.RegisterRequest.SerializeToString,
                response_deserializer=messages.Empty.FromString,
            )
            request = messages.RegisterRequest(
                version=messages.VERSION,
                endpoint=own.name,
                resource_name=SLOT,
                options=self._options(),
            )
            await register(request, timeout=CALL_SECONDS)

    async def _stop(self) -> None:
        self._ended.set()
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(STOP_SECONDS)

    def _socket(self, number: int) -> Path:
        """
        Return the path of a socket; each time another one.

        A server that ends takes the file away by its name, which must not be its successor's.
        """
        return self._folder / f"{self._prefix}-{number}.sock"

    def _clear(self) -> None:
        """Take sockets of ours away that nobody listens on: of an agent that was killed."""
        for path in self._folder.glob(f"{_PREFIX}*.sock"):
            with socket.socket(socket.AF_UNIX) as probe, suppress(FileNotFoundError):
                probe.settimeout(CONNECT_SECONDS)
                try:
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink()
                except OSError:
                    continue  # somebody listens and is late, or it is nothing to be called

    def _sweep(self) -> None:
        try:
            removed = self._slots.sweep()
        except (TenureError, OSError) as error:
            _log.warning("names can't be swept", extra={"reason": str(error)})
            return
        if removed:
            _log.info("names removed", extra={"names": len(removed)})

    def _calls(self) -> grpc.GenericRpcHandler:
        """Return what answers which call."""
        unary = {
            "GetDevicePluginOptions": (self._get_options, messages.Empty),
            "Allocate": (self._allocate, messages.AllocateRequest),
            "PreStartContainer": (self._pre_start, messages.PreStartContainerRequest),
        }
        handlers: dict[str, Any] = {
            name: grpc.unary_unary_rpc_method_handler(
                answer,
                request_deserializer=request.FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for name, (answer, request) in unary.items()
        }
        handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(
            self._list,
            request_deserializer=messages.Empty.FromString,
            response_serializer=messages.ListAndWatchResponse.SerializeToString,
        )
        return grpc.method_handlers_generic_handler(f"{messages.VERSION}.DevicePlugin", handlers)

    def _options(self) -> Any:  # noqa: ANN401 - a message
        return messages.DevicePluginOptions(pre_start_required=True)

    async def _get_options(self, _: object, __: _Context) -> Any:  # noqa: ANN401 - a message
        return self._options()

    async def _list(self, _: object, __: _Context) -> AsyncIterator[Any]:
        """Tell all slots once: no card is behind one of them, so that none gets unhealthy."""
        yield self._all
        await self._ended.wait()

    async def _allocate(self, request: Any, context: _Context) -> Any:  # noqa: ANN401 - messages
        """Answer each container with a name of its own."""
        answers = []
        for each in request.container_requests:
            try:
                name = self._slots.name_for(each.devices_ids)
            except InputError as error:
                _log.warning("slots refused", extra={"reason": str(error)})
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            _log.info("slots given", extra={"slots": sorted(each.devices_ids), "cdi_name": name})
            self._metrics.names.inc()
            answers.append({"cdi_devices": [{"name": qualified(name)}]})
        return messages.AllocateResponse(container_responses=answers)

    async def _pre_start(self, request: Any, context: _Context) -> Any:  # noqa: ANN401 - messages
        """Let a container start when its names mean something; wait a while where one may come."""
        slots = frozenset(request.devices_ids)
        until, waits = time.monotonic() + WAIT_SECONDS, False
        while True:
            try:
                prepared = self._slots.prepare(slots)
                break
            except NotYetError as error:
                if time.monotonic() >= until:
                    await self._refuse(context, slots, grpc.StatusCode.UNAVAILABLE, error)
                if not waits:
                    waits = True
                    extra = {"slots": sorted(slots), "reason": str(error)}
                    _log.info("container waits", extra=extra)
            except (TenureError, OSError, ValueError) as error:
                await self._refuse(context, slots, grpc.StatusCode.FAILED_PRECONDITION, error)
            await asyncio.sleep(AGAIN_SECONDS)
        self._metrics.starts.labels("prepared").inc()
        _log.info("container may start", extra={"slots": sorted(slots), **_told(prepared)})
        return messages.PreStartContainerResponse()

    async def _refuse(
        self, context: _Context, slots: Iterable[str], code: grpc.StatusCode, error: Exception
    ) -> None:
        """Let kubelet try again later: the container waits, and nothing else happens to it."""
        self._metrics.starts.labels("refused").inc()
        extra = {"slots": sorted(slots), "reason": str(error)}
        _log.warning("container may not start", extra=extra)
        await context.abort(code, str(error))


def _told(new: Iterable[Given]) -> dict[str, list[str]]:
    return {"new": [f"{one.pod_uid}/{one.container}={one.name}" for one in new]}
