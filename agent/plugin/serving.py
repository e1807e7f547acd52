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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import grpc
import grpc.aio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agent.plugin import messages
from agent.plugin.messages import MESSAGE_MAX, Allocated, NotYetError
from agent.witness.asking import AwayError
from ledger.domain.errors import InputError, TenureError

SECONDS: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 20.0)

KUBELET_SOCKET: Final = "kubelet.sock"
HEALTHY: Final = "Healthy"
PATH_MAX: Final = 107
"""The longest path of a Unix socket on Linux."""
LOOK_SECONDS: Final = 1.0
UPGRADE_SECONDS: Final = 0.1
"""Beside another of us: until we have registered again, kubelet refuses what starts, and waits."""
LIST_SECONDS: Final = 30.0
"""Kubelet asks for the ids as soon as it has taken us; one that has not by then never will."""
SWEEP_SECONDS: Final = 10.0
"""Also between two questions of which ids kubelet would give."""
OFFERED_SECONDS: Final = 2.0
"""So long kubelet has to say which: no registration is looked at in between."""
OTHERS_MAX: Final = 2
"""So often in turn kubelet would give other ids than ours: another plugin registered its own."""
WAIT_SECONDS: Final = 20.0
"""How long a container's start waits for what is not known yet: kubelet gives up after 30 s."""
AGAIN_SECONDS: Final = 0.005
AGAIN_SECONDS_MAX: Final = 0.1
"""Between two tries, of which each waits twice as long as the one before."""
IDS_SAID_MAX: Final = 4
CALL_SECONDS: Final = 10.0
STOP_SECONDS: Final = 2.0
CONNECT_SECONDS: Final = 1.0
_PREFIX: Final = "tenure-"

_Context = grpc.aio.ServicerContext[Any, Any]
_T = TypeVar("_T")
_log: Final = logging.getLogger("tenure.agent.plugin")


class Metrics:
    """Counters and gauges of one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, registry=registry)
        self.registered = Gauge(
            "tenure_agent_registered", "Whether kubelet knows our slots", registry=registry
        )
        self.registrations = counter(
            "tenure_agent_registrations",
            "How often we registered with kubelet; again too after another plugin of the resource",
        )
        self.names = counter("tenure_agent_names", "Names given to containers with devices")
        self.starts = counter(
            "tenure_agent_container_starts",
            "Starts of containers with devices, by whether they may",
            ["result"],
        )
        for result in ("prepared", "refused"):
            self.starts.labels(result)
        self.start_seconds = Histogram(
            "tenure_agent_start_seconds",
            "How long kubelet waited for us before a container that may start",
            buckets=SECONDS,
            registry=registry,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Registration:
    """What we are registered with: kubelet's socket, ours beside it, and since when."""

    kubelet: tuple[int, int]
    own: Path
    at: float


class Served(Protocol):
    """
    One resource of kubelet's: its ids, and what is answered for them.

    What raises NotYetError is called again for a while, any other TenureError, OSError or
    ValueError is told to kubelet.
    """

    resource: str
    allocate_seconds: float
    """How long an Allocate may wait for what is not known yet; one that fails ends its Pod."""
    prefers: bool
    """Whether kubelet is to ask which ids it should take."""

    def begin(self) -> None:
        """Hear that kubelet knows the resource anew: it started, or we did."""

    def why_not(self) -> str:
        """Return why kubelet must not know the resource now; nothing when it may."""

    def listing(self) -> Any:  # noqa: ANN401 - a message
        """Return all ids as a ListAndWatchResponse, the same object while nothing changed."""

    async def allocate(self, ids: Sequence[str]) -> Allocated:
        """Return the answer to a container that is given these ids."""

    async def prefer(self, available: Sequence[str], must: Sequence[str], size: int) -> list[str]:
        """Return the ids that kubelet should take."""

    async def prepare(self, ids: frozenset[str]) -> Mapping[str, object]:
        """Make sure that a container with these ids may start; return what is said of it."""

    def sweep(self) -> int:
        """Take away what nobody needs any more; return how much that was."""


class DevicePlugin:
    """Serves kubelet's calls over sockets in its folder of device plugins."""

    def __init__(
        self,
        served: Served,
        *,
        folder: Path,
        start: str,
        metrics: Metrics,
        list_seconds: float = LIST_SECONDS,
        offered: Callable[[str], Awaitable[frozenset[str]]] | None = None,
    ) -> None:
        """
        Be ready to serve.

        Args:
            offered: asks kubelet which ids of a resource it would give, and raises AwayError;
                None = another plugin of the resource is not noticed.
            list_seconds: how long kubelet may take to ask for the ids once it has taken us.

        Raises:
            InputError: the folder's path is too long.
        """
        self._served = served
        self._folder = folder
        self._prefix = f"{_PREFIX}{start[:8]}"
        self._metrics = metrics
        self._listenings = 0
        self._registered: _Registration | None = None
        self._server: grpc.aio.Server | None = None
        self._ended = asyncio.Event()
        self._withdrawn = ""
        self._dropped = self._listed = False
        self._list_seconds = list_seconds
        self._offered = offered
        self._others_offered = 0
        self._others: frozenset[str] = frozenset()
        if len(os.fsencode(self._socket(999))) > PATH_MAX:
            raise InputError(f"the path of a socket is too long: {self._socket(999)}")

    def why_not_ready(self) -> str:
        """Return why kubelet could not call us; nothing when it can."""
        return self._why_not() or ("" if self._stands() else "not registered with kubelet")

    async def run(self) -> None:
        """Keep registered until cancelled; what fails is tried again."""
        swept = time.monotonic()
        try:
            while True:
                is_alone = self._is_alone_again()
                if why := self._why_not():
                    await self._withdraw(why)
                elif is_alone or not self._stands():
                    await self._register()
                if time.monotonic() - swept > SWEEP_SECONDS:
                    swept = time.monotonic()
                    self._sweep()
                    await self._compare_offered()
                await asyncio.sleep(UPGRADE_SECONDS if self._others else LOOK_SECONDS)
        finally:
            await self._stop()

    def _why_not(self) -> str:
        why = self._served.why_not()
        if not why and self._served.listing().ByteSize() > MESSAGE_MAX:
            count = len(self._served.listing().devices)
            why = f"kubelet takes no list of so many ids: count={count}, bytes_max={MESSAGE_MAX}"
        return why

    async def _withdraw(self, why: str) -> None:
        """Be unknown to kubelet, which then admits no Pod that asks for the resource."""
        if why != self._withdrawn:
            self._withdrawn = why
            _log.error("not registered", extra={"reason": why})
        if self._registered is not None:
            self._registered = None
            self._metrics.registered.set(0)
            await self._stop()

    def _stands(self) -> bool:
        return (
            self._registered is not None
            and self._registered.kubelet == self._kubelet()
            and self._registered.own.exists()
            and self._others_offered < OTHERS_MAX
        )

    def _is_alone_again(self) -> bool:
        """
        Tell whether kubelet may call nobody by now, though we have registered.

        Kubelet knows one plugin of a resource: the one that registered last. When it loses its
        stream of another, as at the end of an upgrade, it takes that for the end of ours. So the
        end of another is noticed by its socket, and ours of the stream by its being cancelled;
        while another of us is there, a stream that kubelet drops is the other's turn. Where it
        took that end for ours before it asked for the ids, no stream ever begins.
        """
        others = self._listening()
        is_other_gone, self._others = bool(self._others - others), others
        return is_other_gone or ((self._dropped or self._is_unasked()) and not others)

    async def _compare_offered(self) -> None:
        """Compare what kubelet would give: it tells no plugin that another took its place."""
        if self._offered is None or self._registered is None or self._others:
            return
        ours = {one.ID for one in self._served.listing().devices if one.health == HEALTHY}
        with suppress(AwayError, TimeoutError):
            found = await asyncio.wait_for(self._offered(self._served.resource), OFFERED_SECONDS)
            self._others_offered = self._others_offered + 1 if found != ours else 0

    def _is_unasked(self) -> bool:
        if self._registered is None or self._listed:
            return False
        return time.monotonic() > self._registered.at + self._list_seconds

    def _kubelet(self) -> tuple[int, int] | None:
        """Return what tells kubelet's socket from the one that it had before its restart."""
        try:
            found = (self._folder / KUBELET_SOCKET).stat()
        except OSError:
            return None
        return found.st_ino, found.st_ctime_ns

    async def _register(self) -> None:
        self._registered = None
        self._metrics.registered.set(0)
        await self._stop()
        kubelet = self._kubelet()
        if kubelet is None:
            return
        self._listenings += 1
        own = self._socket(self._listenings)
        self._others = self._listening()
        self._dropped = self._listed = False
        self._others_offered = 0
        self._served.begin()
        try:
            await self._listen(own)
            await self._tell(own)
        except (OSError, RuntimeError, grpc.aio.AioRpcError) as error:
            _log.warning("kubelet does not take us", extra={"reason": str(error)})
            return
        self._registered = _Registration(kubelet=kubelet, own=own, at=time.monotonic())
        self._withdrawn = ""
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
                resource_name=self._served.resource,
                options=self._options(),
            )
            await register(request, timeout=CALL_SECONDS)

    async def _stop(self) -> None:
        self._ended.set()
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop(STOP_SECONDS)

    def _socket(self, number: int) -> Path:
        """Return another path each time: a server that ends removes its file by its name."""
        return self._folder / f"{self._prefix}-{number}.sock"

    def _listening(self) -> frozenset[str]:
        """Return sockets on which other agents listen; remove those of agents that were killed."""
        found = set()
        for path in self._folder.glob(f"{_PREFIX}*.sock"):
            if path.name.startswith(f"{self._prefix}-"):
                continue
            with socket.socket(socket.AF_UNIX) as probe, suppress(FileNotFoundError):
                probe.settimeout(CONNECT_SECONDS)
                try:
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink()
                    continue
                except FileNotFoundError:
                    continue
                except OSError:
                    pass  # somebody listens and is late, or it is nothing to be called
                found.add(path.name)
        return frozenset(found)

    def _sweep(self) -> None:
        try:
            removed = self._served.sweep()
        except (TenureError, OSError) as error:
            _log.warning("names can't be swept", extra={"reason": str(error)})
            return
        if removed:
            _log.info("names removed", extra={"names": removed})

    def _calls(self) -> grpc.GenericRpcHandler:
        unary = {
            "GetDevicePluginOptions": (self._get_options, messages.Empty),
            "Allocate": (self._allocate, messages.AllocateRequest),
            "GetPreferredAllocation": (self._prefer, messages.PreferredAllocationRequest),
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
        return messages.DevicePluginOptions(
            pre_start_required=True, get_preferred_allocation_available=self._served.prefers
        )

    async def _get_options(self, _: object, __: _Context) -> Any:  # noqa: ANN401 - a message
        return self._options()

    async def _list(self, _: object, __: _Context) -> AsyncIterator[Any]:
        told, ended = None, self._ended
        self._listed = True
        try:
            while not ended.is_set():
                now = self._served.listing()
                if now is not told:
                    told = now
                    yield now
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await ended.wait()
        finally:
            if not ended.is_set():
                self._dropped = True  # by kubelet: nobody ends it but us

    async def _prefer(self, request: Any, _: _Context) -> Any:  # noqa: ANN401 - messages
        answers = [
            await self._served.prefer(
                each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size
            )
            for each in request.container_requests
        ]
        return messages.PreferredAllocationResponse(
            container_responses=[{"deviceIDs": ids} for ids in answers]
        )

    async def _allocate(self, request: Any, context: _Context) -> Any:  # noqa: ANN401 - messages
        """Answer each container; what fails here ends its Pod."""
        answers = []
        for each in request.container_requests:
            ids = sorted(each.devices_ids)
            given = await self._waited(
                partial(self._served.allocate, ids), self._served.allocate_seconds, ids
            )
            if isinstance(given, _Refusal):
                _log.warning("ids refused", extra={"ids": _few(ids), "reason": given.reason})
                await context.abort(given.code, given.reason)
            _log.info("ids given", extra={"ids": _few(ids), **given.told})
            self._metrics.names.inc()
            answers.append(given.answer)
        return messages.AllocateResponse(container_responses=answers)

    async def _pre_start(self, request: Any, context: _Context) -> Any:  # noqa: ANN401 - messages
        """Let a container start once it may; one that may not is tried again by kubelet."""
        ids, began = frozenset(request.devices_ids), time.monotonic()
        told = await self._waited(partial(self._served.prepare, ids), WAIT_SECONDS, sorted(ids))
        if isinstance(told, _Refusal):
            self._metrics.starts.labels("refused").inc()
            extra = {"ids": _few(ids), "reason": told.reason}
            _log.warning("container may not start", extra=extra)
            await context.abort(told.code, told.reason)
        self._metrics.starts.labels("prepared").inc()
        self._metrics.start_seconds.observe(time.monotonic() - began)
        _log.info("container may start", extra={"ids": _few(ids), **told})
        return messages.PreStartContainerResponse()

    async def _waited(
        self, act: Callable[[], Awaitable[_T]], seconds: float, ids: Sequence[str]
    ) -> _T | _Refusal:
        """Act until what is needed is known, no longer than so; return why it can't be done."""
        until, waits, again = time.monotonic() + seconds, False, AGAIN_SECONDS
        while True:
            try:
                return await act()
            except NotYetError as error:
                if time.monotonic() >= until:
                    return _Refusal(code=grpc.StatusCode.UNAVAILABLE, reason=str(error))
                if not waits:
                    waits = True
                    _log.info("container waits", extra={"ids": _few(ids), "reason": str(error)})
            except (TenureError, OSError, ValueError) as error:
                return _Refusal(code=grpc.StatusCode.FAILED_PRECONDITION, reason=str(error))
            await asyncio.sleep(again)
            again = min(2 * again, AGAIN_SECONDS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """Why kubelet's call is not answered as it asked."""

    code: grpc.StatusCode
    reason: str


def _few(ids: Iterable[str]) -> list[str]:
    """Return the first of the ids: a share of a card may have hundreds."""
    return sorted(ids)[:IDS_SAID_MAX]
