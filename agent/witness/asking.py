"""Asks kubelet and the container runtime over their sockets; every call ends in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from agent.decide.runtime_cdi import RuntimeSaid
from agent.discover.host_files import HostFiles
from agent.witness import said
from agent.witness.said import EXITED, Inside, KubeletSaid, Listed
from agent.witness.seen import Place, place_of
from ledger.domain.cpuset import CpuSet, cpuset_of
from ledger.domain.errors import InputError, TenureError

CALL_SECONDS: Final = 10.0
MESSAGE_MAX: Final = 16 * 2**20
"""What kubelet and containerd let their own clients receive."""
CONTAINERS_MAX: Final = 4096
"""Of so many a node tells; kubelet takes 110 Pods, and containers that ended are listed a while."""
_T = TypeVar("_T")


class AwayError(TenureError):
    """Somebody on this node does not answer, or in words that nobody knows. Ask again later."""


class PodResources:
    """Kubelet's answer of who was given which devices: `pod-resources/kubelet.sock`."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    async def answer(self) -> KubeletSaid:
        """Return containers' devices and claims. Raises AwayError: kubelet does not answer."""
        call = f"/{said.POD_RESOURCES}.PodResourcesLister/List"
        async with _channel(self._socket) as channel:
            answer = await _answer(
                channel, call, said.ListPodResourcesRequest(), said.ListPodResourcesResponse
            )
        return _read(said.said_by_kubelet, answer)

    async def offered(self, resource: str) -> frozenset[str]:
        """Return the ids of a resource that kubelet would give. Raises AwayError."""
        devices = (await self._allocatable()).devices
        found = (one for one in devices if one.resource_name == resource)
        return frozenset(each for one in found for each in one.device_ids)

    async def offered_cpus(self) -> CpuSet:
        """Return the CPUs that kubelet's static policy would give. Raises AwayError."""
        return _read(cpuset_of, (await self._allocatable()).cpu_ids)

    async def _allocatable(self) -> Any:  # noqa: ANN401 - a message
        call = f"/{said.POD_RESOURCES}.PodResourcesLister/GetAllocatableResources"
        asked = said.AllocatableResourcesRequest()
        async with _channel(self._socket) as channel:
            return await _answer(channel, call, asked, said.AllocatableResourcesResponse)


class Runtime:
    """The container runtime, by CRI. A container's spec never changes, so it is read once."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._inside: dict[str, Inside] = {}

    async def containers(self) -> tuple[tuple[Listed, ...], Mapping[str, Inside]]:
        """
        Return the containers of Pods, and what those were made with that have not ended.

        Of one that can't be told of, nothing is there.

        Raises:
            AwayError: the runtime does not answer, or lists too many.
        """
        call = f"/{said.RUNTIME}.RuntimeService/ListContainers"
        async with _channel(self._socket) as channel:
            answer = await _answer(
                channel, call, said.ListContainersRequest(), said.ListContainersResponse
            )
            found = said.listed(answer)
            if len(found) > CONTAINERS_MAX:
                raise AwayError(f"too many containers: count={len(found)}, max={CONTAINERS_MAX}")
            there = [one.container_id for one in found if one.state != EXITED]
            self._inside = {key: self._inside[key] for key in there if key in self._inside}
            for key in there:
                if key not in self._inside:
                    await self._ask(channel, key)
        return found, dict(self._inside)

    async def itself(self) -> RuntimeSaid:
        """Return what the runtime says of itself. Raises AwayError: it does not answer."""
        async with _channel(self._socket) as channel:
            of = f"/{said.RUNTIME}.RuntimeService"
            asked = said.VersionRequest()
            version = await _answer(channel, f"{of}/Version", asked, said.VersionResponse)
            verbose = said.StatusRequest(verbose=True)
            status = await _answer(channel, f"{of}/Status", verbose, said.StatusResponse)
        return RuntimeSaid(
            name=version.runtime_name,
            version=version.runtime_version,
            config=status.info.get(said.CONFIG, ""),
        )

    async def _ask(self, channel: grpc.aio.Channel, container_id: str) -> None:
        """Ask what a container was made with; one that is gone meanwhile is left out."""
        call = f"/{said.RUNTIME}.RuntimeService/ContainerStatus"
        request = said.ContainerStatusRequest(container_id=container_id, verbose=True)
        try:
            answer = await _answer(channel, call, request, said.ContainerStatusResponse)
            self._inside[container_id] = said.inside(answer)
        except (AwayError, InputError):
            return  # the look says that this container could not be told of


def places(host: HostFiles, pids: Iterable[int]) -> dict[int, Place | None]:
    """Return whose processes are, by host pids; one that can't be read is missing."""
    found: dict[int, Place | None] = {}
    for pid in dict.fromkeys(pids):
        try:
            found[pid] = place_of(host.text(f"proc/{pid:d}/cgroup"))
        except (OSError, ValueError):
            continue
    return found


def _read(read: Callable[[Any], _T], answer: Any) -> _T:  # noqa: ANN401 - a message
    try:
        return read(answer)
    except InputError as error:
        raise AwayError(f"not an answer: {error}") from error


def _channel(socket: Path) -> grpc.aio.Channel:
    options = [("grpc.max_receive_message_length", MESSAGE_MAX)]
    return grpc.aio.insecure_channel(f"unix:{socket}", options=options)


async def _answer(
    channel: grpc.aio.Channel,
    call: str,
    request: Any,  # noqa: ANN401 - a message
    answer: Any,  # noqa: ANN401 - a message's class
) -> Any:  # noqa: ANN401 - a message
    asked = channel.unary_unary(
        call,
        request_serializer=type(request).SerializeToString,
        response_deserializer=bytes,  # what can't be read is no failure of the call
    )
    try:
        content = await asked(request, timeout=CALL_SECONDS)
        return answer.FromString(content)
    except grpc.aio.AioRpcError as error:
        raise AwayError(f"no answer: call={call}, code={error.code().name}") from error
    except DecodeError as error:
        raise AwayError(f"not an answer: call={call}: {error}") from error
