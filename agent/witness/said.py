"""
What kubelet and the container runtime answer about containers, as values.

Rule: podresources v1 and CRI runtime.v1. The tables name what is read; other fields are left out.
Pure: messages in, values out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from agent.protobuf import MAP, Tables, classes
from ledger.domain.cpuset import CpuSet, cpuset_of
from ledger.domain.errors import InputError

POD_RESOURCES: Final = "v1"
RUNTIME: Final = "runtime.v1"
INFO: Final = "info"
"""Where containerd and CRI-O keep what a verbose answer has besides."""
CONFIG: Final = "config"
"""Where containerd has its configuration in the answer to a verbose Status."""
CREATED, RUNNING, EXITED, UNKNOWN = range(4)
"""States of a container, by CRI's numbers."""
_POD_UID: Final = "io.kubernetes.pod.uid"
_POD_NAME: Final = "io.kubernetes.pod.name"
_NAMESPACE: Final = "io.kubernetes.pod.namespace"
_CONTAINER: Final = "io.kubernetes.container.name"
_CDI_PREFIX: Final = "cdi.k8s.io/"

_OF_KUBELET: Final[Tables] = {
    "ListPodResourcesRequest": (),
    "ListPodResourcesResponse": ((1, "pod_resources", "every PodResources"),),
    "AllocatableResourcesRequest": (),
    "AllocatableResourcesResponse": (
        (1, "devices", "every ContainerDevices"),
        (2, "cpu_ids", "every int64"),
    ),
    "PodResources": (
        (1, "name", "string"),
        (2, "namespace", "string"),
        (3, "containers", "every ContainerResources"),
    ),
    "ContainerResources": (
        (1, "name", "string"),
        (2, "devices", "every ContainerDevices"),
        (3, "cpu_ids", "every int64"),
        (5, "dynamic_resources", "every DynamicResource"),
    ),
    "DynamicResource": ((2, "claim_name", "string"), (3, "claim_namespace", "string")),
    "ContainerDevices": ((1, "resource_name", "string"), (2, "device_ids", "every string")),
}
_OF_RUNTIME: Final[Tables] = {
    "ListContainersRequest": (),
    "ListContainersResponse": ((1, "containers", "every Container"),),
    "Container": ((1, "id", "string"), (6, "state", "int32"), (8, "labels", MAP)),
    "ContainerStatusRequest": ((1, "container_id", "string"), (2, "verbose", "bool")),
    "ContainerStatusResponse": ((1, "status", "ContainerStatus"), (2, "info", MAP)),
    "ContainerStatus": (
        (1, "id", "string"),
        (3, "state", "int32"),
        (12, "labels", MAP),
        (14, "mounts", "every Mount"),
    ),
    "Mount": ((1, "container_path", "string"), (2, "host_path", "string")),
    "VersionRequest": ((1, "version", "string"),),
    "VersionResponse": ((2, "runtime_name", "string"), (3, "runtime_version", "string")),
    "StatusRequest": ((1, "verbose", "bool"),),
    "StatusResponse": ((2, "info", MAP),),
}
_kubelets: Final = classes(POD_RESOURCES, _OF_KUBELET)
_runtimes: Final = classes(RUNTIME, _OF_RUNTIME)
ListPodResourcesRequest: Final = _kubelets("ListPodResourcesRequest")
ListPodResourcesResponse: Final = _kubelets("ListPodResourcesResponse")
AllocatableResourcesRequest: Final = _kubelets("AllocatableResourcesRequest")
AllocatableResourcesResponse: Final = _kubelets("AllocatableResourcesResponse")
ListContainersRequest: Final = _runtimes("ListContainersRequest")
ListContainersResponse: Final = _runtimes("ListContainersResponse")
ContainerStatusRequest: Final = _runtimes("ContainerStatusRequest")
ContainerStatusResponse: Final = _runtimes("ContainerStatusResponse")
VersionRequest: Final = _runtimes("VersionRequest")
VersionResponse: Final = _runtimes("VersionResponse")
StatusRequest: Final = _runtimes("StatusRequest")
StatusResponse: Final = _runtimes("StatusResponse")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What kubelet gave a container of one resource; it names a Pod without its UID."""

    pod: tuple[str, str]
    container: str
    resource: str
    ids: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSaid:
    """What kubelet answers: devices, claims and own CPUs, by a Pod's namespace and name."""

    given: tuple[Given, ...] = ()
    claims: frozenset[tuple[str, str]] = frozenset()
    cpus: Mapping[tuple[str, str], Mapping[str, CpuSet]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """A container that the runtime lists, of a Pod."""

    container_id: str
    state: int
    pod_uid: str
    namespace: str
    pod_name: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """
    What a container was made with.

    Attributes:
        visible: its `NVIDIA_VISIBLE_DEVICES`; None = it has none.
        mounts: paths in the container.
        cdi: CDI devices that were asked for it, in order.
        nodes: paths of the device nodes that it was given.
        privileged: it sees every device of the host, and uses whichever it likes.
    """

    visible: str | None = None
    mounts: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    privileged: bool = False


class _Named(msgspec.Struct):
    name: str = ""
    path: str = ""
    destination: str = ""


class _Security(msgspec.Struct):
    privileged: bool = False


class _Linux(msgspec.Struct):
    security_context: _Security | None = None
    devices: list[_Named] | None = None


class _Config(msgspec.Struct):
    linux: _Linux | None = None
    annotations: dict[str, str] | None = None
    cdi: list[_Named] | None = msgspec.field(default=None, name="CDI_devices")


class _Process(msgspec.Struct):
    env: list[str] | None = None


class _Spec(msgspec.Struct):
    process: _Process | None = None
    mounts: list[_Named] | None = None
    linux: _Linux | None = None
    annotations: dict[str, str] | None = None


class _Info(msgspec.Struct):
    """As containerd and CRI-O write it; CRI-O says `privileged` itself and has no `config`."""

    privileged: bool = False
    config: _Config | None = None
    spec: _Spec | None = msgspec.field(default=None, name="runtimeSpec")


_INFO: Final = msgspec.json.Decoder(_Info)


def said_by_kubelet(answer: Any) -> KubeletSaid:  # noqa: ANN401 - a message
    """Return what a ListPodResourcesResponse says; kubelet says a resource's ids in parts."""
    found: dict[tuple[tuple[str, str], str, str], frozenset[str]] = {}
    claims: set[tuple[str, str]] = set()
    cpus: dict[tuple[str, str], dict[str, CpuSet]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            claims |= {(one.claim_namespace, one.claim_name) for one in container.dynamic_resources}
            if container.cpu_ids:
                named = cpus.setdefault((pod.namespace, pod.name), {})
                named[container.name] = cpuset_of(container.cpu_ids)
            for devices in container.devices:
                key = ((pod.namespace, pod.name), container.name, devices.resource_name)
                found[key] = found.get(key, frozenset()) | set(devices.device_ids)
    given = tuple(
        Given(pod=pod, container=container, resource=resource, ids=ids)
        for (pod, container, resource), ids in found.items()
    )
    return KubeletSaid(given=given, claims=frozenset(claims), cpus=cpus)


def listed(answer: Any) -> tuple[Listed, ...]:  # noqa: ANN401 - a message
    """Return the containers of Pods in a ListContainersResponse; what is of no Pod is left out."""
    return tuple(
        Listed(
            container_id=one.id,
            state=one.state,
            pod_uid=one.labels[_POD_UID],
            namespace=one.labels.get(_NAMESPACE, ""),
            pod_name=one.labels.get(_POD_NAME, ""),
            name=one.labels.get(_CONTAINER, ""),
        )
        for one in answer.containers
        if one.labels.get(_POD_UID)
    )


def inside(answer: Any) -> Inside:  # noqa: ANN401 - a message
    """Return what a container was made with. Raises InputError: unknown words of the runtime."""
    text = answer.info.get(INFO, "")
    if not text:
        raise InputError(f"the runtime tells nothing of a container: id={answer.status.id}")
    try:
        info = _INFO.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"what the runtime tells of a container: {error}") from error
    config, spec = info.config or _Config(), info.spec or _Spec()
    security = (config.linux or _Linux()).security_context or _Security()
    env = [] if spec.process is None else spec.process.env or []
    mounts = {one.container_path for one in answer.status.mounts}
    mounts |= {one.destination for one in spec.mounts or ()}
    asked = [one.name for one in config.cdi or ()]
    for said in (config.annotations or {}, spec.annotations or {}):
        asked.extend(_cdi_names(said))
    return Inside(
        visible=_last(env, "NVIDIA_VISIBLE_DEVICES"),
        mounts=tuple(sorted(mounts)),
        cdi=tuple(dict.fromkeys(name for name in asked if name)),
        nodes=tuple(one.path for one in (spec.linux or _Linux()).devices or ()),
        privileged=info.privileged or security.privileged,
    )


def _cdi_names(annotations: Mapping[str, str]) -> Iterable[str]:
    return (
        name
        for key, value in sorted(annotations.items())
        if key.startswith(_CDI_PREFIX)
        for name in value.split(",")
    )


def _last(env: Iterable[str], key: str) -> str | None:
    """Return a variable's value; of several the last one counts, as for the process."""
    values = [each.partition("=")[2] for each in env if each.partition("=")[0] == key]
    return values[-1] if values else None
