"""Containers made by CRI alone, as kubelet makes them, on a containerd without one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import grpc

from agent.protobuf import MAP, Tables, classes
from tests.support.node.node import SHOWS
from tests.support.node.room import Room

SECONDS: Final = 60.0
_HOSTS: Final = 2
"""The namespace of the machine itself."""
_TABLES: Final[Tables] = {
    "Metadata": ((1, "name", "string"), (2, "uid", "string"), (3, "namespace", "string")),
    "NamespaceOption": ((1, "network", "int32"), (2, "pid", "int32"), (3, "ipc", "int32")),
    "SecurityContext": ((1, "namespace_options", "NamespaceOption"),),
    "LinuxSandbox": ((1, "cgroup_parent", "string"), (2, "security_context", "SecurityContext")),
    "PodSandboxConfig": (
        (1, "metadata", "Metadata"),
        (3, "log_directory", "string"),
        (6, "labels", MAP),
        (8, "linux", "LinuxSandbox"),
    ),
    "RunPodSandboxRequest": ((1, "config", "PodSandboxConfig"),),
    "RunPodSandboxResponse": ((1, "pod_sandbox_id", "string"),),
    "PodSandboxRequest": ((1, "pod_sandbox_id", "string"),),
    "ImageSpec": ((1, "image", "string"),),
    "LinuxContainerResources": (
        (1, "cpu_period", "int64"),
        (2, "cpu_quota", "int64"),
        (6, "cpuset_cpus", "string"),
    ),
    "LinuxContainer": ((1, "resources", "LinuxContainerResources"),),
    "ContainerConfig": (
        (1, "metadata", "Metadata"),
        (2, "image", "ImageSpec"),
        (9, "labels", MAP),
        (15, "linux", "LinuxContainer"),
    ),
    "CreateContainerRequest": (
        (1, "pod_sandbox_id", "string"),
        (2, "config", "ContainerConfig"),
        (3, "sandbox_config", "PodSandboxConfig"),
    ),
    "CreateContainerResponse": ((1, "container_id", "string"),),
    "ContainerRequest": ((1, "container_id", "string"), (2, "timeout", "int64")),
    "UpdateContainerResourcesRequest": (
        (1, "container_id", "string"),
        (2, "linux", "LinuxContainerResources"),
    ),
    "Empty": (),
}
_message: Final = classes("runtime.v1", _TABLES)


@dataclass(slots=True, kw_only=True)
class Sandbox:
    """A Pod of the machine's own namespaces, without a kubelet."""

    channel: grpc.Channel
    config: Any
    identity: str = ""

    def create(self, name: str, **resources: object) -> str:
        """Make a container, and return its id. Raises grpc.RpcError: the runtime refuses it."""
        request = _message("CreateContainerRequest")(
            pod_sandbox_id=self.identity,
            sandbox_config=self.config,
            config={
                "metadata": {"name": name},
                "image": {"image": SHOWS},
                "labels": {"io.kubernetes.container.name": name},
                "linux": {"resources": resources},
            },
        )
        made = _call(self.channel, "CreateContainer", request, "CreateContainerResponse")
        return str(made.container_id)

    def start(self, identity: str) -> None:
        """Let a container run."""
        _call(self.channel, "StartContainer", _message("ContainerRequest")(container_id=identity))

    def update(self, identity: str, **resources: object) -> None:
        """Change what a container may use."""
        request = _message("UpdateContainerResourcesRequest")(
            container_id=identity, linux=resources
        )
        _call(self.channel, "UpdateContainerResources", request)

    def remove(self, identity: str) -> None:
        """End a container, and take it away."""
        request = _message("ContainerRequest")(container_id=identity)
        _call(self.channel, "StopContainer", request)
        _call(self.channel, "RemoveContainer", request)


@contextmanager
def sandbox(made: Room, uid: str) -> Iterator[Sandbox]:
    """Run a Pod by its UID until the block ends."""
    hosts = {"network": _HOSTS, "pid": _HOSTS, "ipc": _HOSTS}
    config = _message("PodSandboxConfig")(
        metadata={"name": "alone", "uid": uid, "namespace": "default"},
        log_directory=str(made.folder),
        labels={"io.kubernetes.pod.uid": uid},
        linux={
            "cgroup_parent": f"/{made.cgroup}/kubepods/pod{uid}",
            "security_context": {"namespace_options": hosts},
        },
    )
    with grpc.insecure_channel(f"unix:{made.folder}/containerd.sock") as channel:
        own = Sandbox(channel=channel, config=config)
        request = _message("RunPodSandboxRequest")(config=config)
        run = _call(channel, "RunPodSandbox", request, "RunPodSandboxResponse")
        own.identity = str(run.pod_sandbox_id)
        try:
            yield own
        finally:
            request = _message("PodSandboxRequest")(pod_sandbox_id=own.identity)
            _call(channel, "StopPodSandbox", request)
            _call(channel, "RemovePodSandbox", request)


def _call(channel: grpc.Channel, method: str, request: Any, answer: str = "Empty") -> Any:  # noqa: ANN401 - messages
    call: grpc.UnaryUnaryMultiCallable[Any, Any] = channel.unary_unary(
        f"/runtime.v1.RuntimeService/{method}",
        request_serializer=lambda one: one.SerializeToString(),
        response_deserializer=_message(answer).FromString,
    )
    return call(request, timeout=SECONDS)
