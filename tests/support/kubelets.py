"""A kubelet as a device plugin sees it: it takes registrations, calls back, keeps a checkpoint."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc

from agent.checkpoint import FILE_NAME, CheckpointError, read_device_checkpoint
from agent.plugin import messages
from ledger.domain.resources import SLOT

SECONDS: Final = 60.0


def checkpoint_of(entries: Iterable[dict[str, Any]]) -> bytes:
    """Return a checkpoint with the checksum that kubelet would give it."""
    data = {"PodDeviceEntries": list(entries), "RegisteredDevices": {}}
    try:
        read_device_checkpoint(json.dumps({"Data": data, "Checksum": 0}).encode())
    except CheckpointError as error:
        computed = int(str(error).rpartition("=")[2].split(",")[0])
        return json.dumps({"Data": data, "Checksum": computed}).encode()
    raise AssertionError("no checkpoint has the checksum 0")


def entry(pod_uid: str, container: str, slot: str, *names: str) -> dict[str, Any]:
    """Return kubelet's record of a container that was given a slot, and these CDI names for it."""
    devices = [{"name": name} for name in names]
    answer = messages.ContainerAllocateResponse(cdi_devices=devices).SerializeToString()
    return {
        "PodUID": pod_uid,
        "ContainerName": container,
        "ResourceName": SLOT,
        "DeviceIDs": {"-1": [slot]},
        "AllocResp": base64.b64encode(answer).decode(),
    }


class FakeKubelet:
    """Kubelet's end of the device plugin API, on real sockets in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: list[dict[str, Any]] = []
        self.registered: list[Any] = []
        self._streams: list[tuple[Any, Any]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Take registrations until the block ends; as kubelet does, remove all sockets first."""
        for path in self.folder.glob("*.sock"):
            path.unlink()

        def register(request: Any, _: object) -> Any:  # noqa: ANN401 - messages
            self.registered.append(request)
            return messages.Empty()

        handler = grpc.unary_unary_rpc_method_handler(
            register,
            request_deserializer=messages.RegisterRequest.FromString,
            response_serializer=messages.Empty.SerializeToString,
        )
        service = f"{messages.VERSION}.Registration"
        with ThreadPoolExecutor(2) as threads:
            server = grpc.server(threads)
            server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(service, {"Register": handler}),)
            )
            server.add_insecure_port(f"unix:{self.folder / 'kubelet.sock'}")
            server.start()
            try:
                yield
            finally:
                self.drop()
                server.stop(None).wait()

    def call(
        self,
        method: str,
        request: Any,  # noqa: ANN401 - a message
        answer: Any,  # noqa: ANN401 - a message's class
        seconds: float = SECONDS,
    ) -> Any:  # noqa: ANN401 - a message
        """Call the plugin that registered last."""
        with grpc.insecure_channel(f"unix:{self.folder / self.registered[-1].endpoint}") as channel:
            calls = channel.unary_unary(
                f"/{messages.VERSION}.DevicePlugin/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=answer.FromString,
            )
            return calls(request, timeout=seconds)

    def slots(self) -> list[tuple[str, str]]:
        """Return the ids and healths of the first list that the plugin tells; listen on."""
        channel = grpc.insecure_channel(f"unix:{self.folder / self.registered[-1].endpoint}")
        listing = channel.unary_stream(
            f"/{messages.VERSION}.DevicePlugin/ListAndWatch",
            request_serializer=messages.Empty.SerializeToString,
            response_deserializer=messages.ListAndWatchResponse.FromString,
        )(messages.Empty())
        self._streams.append((channel, listing))
        told = next(iter(listing))
        return [(device.ID, device.health) for device in told.devices]

    def drop(self) -> None:
        """Drop the streams of all plugins."""
        for channel, listing in self._streams:
            listing.cancel()
            channel.close()
        self._streams.clear()

    def admit(self, pod_uid: str, container: str, slot: str) -> str:
        """Give a container a slot, keep the plugin's answer for it, and return its CDI name."""
        request = messages.AllocateRequest(container_requests=[{"devices_ids": [slot]}])
        answer = self.call("Allocate", request, messages.AllocateResponse)
        (given,) = answer.container_responses
        (device,) = given.cdi_devices
        self.entries = [one for one in self.entries if one["PodUID"] == pod_uid]
        self.entries.append(entry(pod_uid, container, slot, device.name))
        self.keep()
        return str(device.name)

    def give(self, pod_uid: str, container: str, resource: str, *ids: str) -> Any:  # noqa: ANN401 - a message
        """Give a container ids, keep the plugin's answer for it, and return that."""
        request = messages.AllocateRequest(container_requests=[{"devices_ids": ids}])
        (answer,) = self.call("Allocate", request, messages.AllocateResponse).container_responses
        self.entries.append(
            {
                "PodUID": pod_uid,
                "ContainerName": container,
                "ResourceName": resource,
                "DeviceIDs": {"-1": list(ids)},
                "AllocResp": base64.b64encode(answer.SerializeToString()).decode(),
            }
        )
        self.keep()
        return answer

    def preferred(self, available: Iterable[str], size: int) -> list[str]:
        """Return the ids that the plugin likes best."""
        wanted = {"available_deviceIDs": list(available), "allocation_size": size}
        request = messages.PreferredAllocationRequest(container_requests=[wanted])
        answer = self.call("GetPreferredAllocation", request, messages.PreferredAllocationResponse)
        return list(answer.container_responses[0].deviceIDs)

    def keep(self) -> None:
        """Write the checkpoint."""
        written = self.folder / "new"
        written.write_bytes(checkpoint_of(self.entries))
        written.rename(self.folder / FILE_NAME)

    def start(self, *ids: str, seconds: float = SECONDS) -> None:
        """Ask before a container starts. Raises grpc.RpcError when it may not."""
        request = messages.PreStartContainerRequest(devices_ids=ids)
        self.call("PreStartContainer", request, messages.PreStartContainerResponse, seconds)
