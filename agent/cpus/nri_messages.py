"""
The few messages of NRI that a plugin of CPUs reads and writes, as values.

Rule: containerd/nri pkg/api/api.proto. The tables name what is read; other fields are left out.
Pure: bytes in, values out, and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from google.protobuf.message import DecodeError

from agent.decide.cgroups import NO_QUOTA
from agent.protobuf import Tables, classes
from ledger.domain.cpuset import EMPTY, CpuSet
from ledger.domain.errors import InputError

PACKAGE: Final = "nri.pkg.api.v1alpha1"
RUNTIME_SERVICE: Final = f"{PACKAGE}.Runtime"
_TABLES: Final[Tables] = {
    "RegisterPluginRequest": ((1, "plugin_name", "string"), (2, "plugin_idx", "string")),
    "ConfigureResponse": ((2, "events", "int32"),),
    "Synchronize": ((3, "more", "bool"),),
    "SynchronizeResponse": ((2, "more", "bool"),),
    "OptionalInt64": ((1, "value", "int64"),),
    "LinuxCPU": ((2, "quota", "OptionalInt64"), (6, "cpus", "string"), (7, "mems", "string")),
    "LinuxResources": ((2, "cpu", "LinuxCPU"),),
    "PodSandbox": ((3, "uid", "string"),),
    "LinuxContainer": ((3, "resources", "LinuxResources"),),
    "Container": ((1, "id", "string"), (3, "name", "string"), (11, "linux", "LinuxContainer")),
    "Call": (
        (1, "pod", "PodSandbox"),
        (2, "container", "Container"),
        (3, "linux_resources", "LinuxResources"),  # of UpdateContainer: what is asked for
    ),
    "StateChangeEvent": (
        (1, "event", "int32"),
        (2, "pod", "PodSandbox"),
        (3, "container", "Container"),
    ),
    "LinuxContainerAdjustment": ((2, "resources", "LinuxResources"),),
    "ContainerAdjustment": ((6, "linux", "LinuxContainerAdjustment"),),
    "CreateContainerResponse": ((1, "adjust", "ContainerAdjustment"),),
    "LinuxContainerUpdate": ((1, "resources", "LinuxResources"),),
    "ContainerUpdate": (
        (1, "container_id", "string"),
        (2, "linux", "LinuxContainerUpdate"),
        (3, "ignore_failure", "bool"),
    ),
    "UpdateContainerResponse": ((1, "update", "every ContainerUpdate"),),
}
message: Final = classes(PACKAGE, _TABLES)


class Happening(IntEnum):
    """What a plugin is called on, by NRI's numbers; any release of NRI knows these."""

    RUN_POD_SANDBOX = 1
    STOP_POD_SANDBOX = 2
    CREATE_CONTAINER = 4
    POST_CREATE_CONTAINER = 5
    POST_START_CONTAINER = 7
    UPDATE_CONTAINER = 8
    REMOVE_CONTAINER = 11


_METHODS: Final = {one.name.title().replace("_", ""): one for one in Happening}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """
    What one container is bound to; an empty set = it is left as it is.

    Attributes:
        quota: whether its CFS quota stays.
    """

    cpus: CpuSet = EMPTY
    mems: CpuSet = EMPTY
    quota: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """
    One call about a Pod or a container of it, whose fields are empty then.

    Attributes:
        cpus: the container's CPUs as everybody before us left them, or as an update asks.
    """

    happening: Happening
    pod_uid: str
    container: str
    container_id: str
    cpus: str
    mems: str


CONFIGURED: Final = message("ConfigureResponse")(
    events=sum(1 << (one - 1) for one in Happening)
).SerializeToString()
"""The answer to Configure: what to be called on. One that names nothing is called on everything."""


def register(name: str, index: str) -> bytes:
    """Return what a plugin says first; those of a lower index are called before it."""
    return bytes(
        message("RegisterPluginRequest")(plugin_name=name, plugin_idx=index).SerializeToString()
    )


def synchronized(payload: bytes) -> bytes:
    """Return the answer to Synchronize, or to a part of it. Raises InputError: it is none."""
    more = _read("Synchronize", payload).more
    return bytes(message("SynchronizeResponse")(more=more).SerializeToString())


def call_of(method: str, payload: bytes) -> Call | None:
    """Return a call, None = of no interest. Raises InputError: the payload is no such message."""
    if method == "StateChange":  # of NRI before 0.12, for what had no method of its own
        read = _read("StateChangeEvent", payload)
        happening = Happening(read.event) if read.event in set(Happening) else None
    else:
        read = _read("Call", payload)
        happening = _METHODS.get(method)
    if happening is None:
        return None
    cpu = read.container.linux.resources.cpu
    if method == "UpdateContainer":
        cpu.MergeFrom(read.linux_resources.cpu)
    return Call(
        happening=happening,
        pod_uid=read.pod.uid,
        container=read.container.name,
        container_id=read.container.id,
        cpus=cpu.cpus,
        mems=cpu.mems,
    )


def adjusted(bound: Bound) -> bytes:
    """Return the answer to CreateContainer that binds the container."""
    made = message("CreateContainerResponse")()
    _bind(made.adjust.linux.resources.cpu, bound)
    return bytes(made.SerializeToString())


def updated(container_id: str, bound: Bound) -> bytes:
    """Return the answer to UpdateContainer that binds it; beside another's wish ours is dropped."""
    made = message("UpdateContainerResponse")()
    one = made.update.add(container_id=container_id, ignore_failure=True)
    _bind(one.linux.resources.cpu, bound)
    return bytes(made.SerializeToString())


def _bind(cpu: Any, bound: Bound) -> None:  # noqa: ANN401 - a message
    cpu.cpus, cpu.mems = str(bound.cpus), str(bound.mems)
    if not bound.quota:
        cpu.quota.value = NO_QUOTA


def _read(kind: str, payload: bytes) -> Any:  # noqa: ANN401 - a message
    try:
        return message(kind).FromString(payload)
    except DecodeError as error:
        raise InputError(f"no message of NRI: {error}") from error
