"""
Kubelet's record of which device ids it gave to which container, read and verified.

Rule: GPU-sharing contract D.3. Pure: bytes in, values out. The file is kubelet's private state, so
whatever is not exactly what kubelet writes is refused by name, and a refused file frees nothing.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from ledger.domain.errors import InputError

FILE_NAME: Final = "kubelet_internal_checkpoint"
BYTES_MAX: Final = 8 << 20
"""Kubelet takes 4 MiB of a plugin's ids at once: 65,536 of them, all given, stand in 6.3 MB."""
ENTRIES_MAX: Final = 16_384
"""Containers and resources of a node."""
TEXT_MAX: Final = 10 << 20
"""Of what the checksum is over, which takes two seconds: `CheckpointFile` reads it once."""
_NUMA: Final = re.compile(r"0|-?[1-9][0-9]{0,17}")
_FNV_OFFSET: Final = 2166136261
_FNV_PRIME: Final = 16777619
_DECIMALS: Final = tuple(map(str, range(256)))


class CheckpointFault(StrEnum):
    """Why a file is no checkpoint of kubelet's."""

    TOO_LARGE = "too large"
    NOT_JSON = "not JSON"
    OTHER_SHAPE = "not of kubelet's shape"
    WRONG_CHECKSUM = "its checksum is another"
    OTHER_VERSION = "of a version that nobody knows"


class CheckpointError(InputError):
    """The file can't be trusted: torn, changed by hand, or of a kubelet that nobody knows."""

    def __init__(self, fault: CheckpointFault, detail: str, *, name: str = FILE_NAME) -> None:
        self.fault = fault
        super().__init__(f"{fault}: {detail}", place=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEntry:
    """
    What one container was given of one resource.

    Attributes:
        device_ids: by NUMA node; -1 for ids without one. Their order says nothing.
        response: the plugin's answer, a serialized ContainerAllocateResponse.
    """

    pod_uid: str
    container: str
    resource: str
    device_ids: Mapping[int, tuple[str, ...]]
    response: bytes

    def ids(self) -> frozenset[str]:
        """Return the ids of all NUMA nodes."""
        return frozenset(each for ids in self.device_ids.values() for each in ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCheckpoint:
    """What kubelet has given. Entries of a Pod that is gone stay until the next admission."""

    entries: tuple[DeviceEntry, ...]


class _Entry(msgspec.Struct):
    pod_uid: str = msgspec.field(name="PodUID")
    container: str = msgspec.field(default="", name="ContainerName")
    resource: str = msgspec.field(default="", name="ResourceName")
    ids: list[str] | dict[str, list[str] | None] | None = msgspec.field(
        default=None, name="DeviceIDs"
    )
    response: str | None = msgspec.field(default=None, name="AllocResp")


class _Data(msgspec.Struct):
    entries: list[_Entry] | None = msgspec.field(default=None, name="PodDeviceEntries")
    registered: dict[str, list[str] | None] | None = msgspec.field(
        default=None, name="RegisteredDevices"
    )


class _File(msgspec.Struct):
    data: _Data = msgspec.field(name="Data")
    checksum: int = msgspec.field(name="Checksum")


_T = TypeVar("_T")
_DECODER: Final = msgspec.json.Decoder(_File)


def decoded(decoder: msgspec.json.Decoder[_T], content: bytes, name: str = FILE_NAME) -> _T:
    """Return what a file of kubelet's says. Raises CheckpointError: too large, or another shape."""
    if len(content) > BYTES_MAX:
        fact = f"bytes={len(content)}, max={BYTES_MAX}"
        raise CheckpointError(CheckpointFault.TOO_LARGE, fact, name=name)
    try:
        return decoder.decode(content)
    except msgspec.ValidationError as error:
        raise CheckpointError(CheckpointFault.OTHER_SHAPE, str(error), name=name) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(CheckpointFault.NOT_JSON, str(error), name=name) from error


def read_device_checkpoint(content: bytes) -> DeviceCheckpoint:
    """Return what a checkpoint says, V2 or V1. Raises CheckpointError: kubelet did not write it."""
    file = decoded(_DECODER, content)
    count = len(file.data.entries or ())
    if count > ENTRIES_MAX:
        raise CheckpointError(CheckpointFault.TOO_LARGE, f"entries={count}, max={ENTRIES_MAX}")
    entries = tuple(_entry(each) for each in file.data.entries or ())
    responses = [
        None if raw.response is None else entry.response
        for raw, entry in zip(file.data.entries or (), entries, strict=True)
    ]
    texts = {_dump(file.data, responses, by_numa=kind) for kind in _kinds(file.data)}
    if (most := max(map(len, texts))) > TEXT_MAX:
        raise CheckpointError(CheckpointFault.TOO_LARGE, f"text={most}, max={TEXT_MAX}")
    found = set(map(checksum, texts))
    if file.checksum not in found:
        said = f"stored={file.checksum}, computed={','.join(map(str, sorted(found)))}"
        raise CheckpointError(CheckpointFault.WRONG_CHECKSUM, said)
    return DeviceCheckpoint(entries=entries)


def checksum(dump: str) -> int:
    """Return the 32-bit FNV-1a of a text."""
    value = _FNV_OFFSET
    for byte in dump.encode():
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value


def _entry(raw: _Entry) -> DeviceEntry:
    """Read an entry; one without a Pod's UID makes the whole file invalid."""
    if not raw.pod_uid:
        raise CheckpointError(CheckpointFault.OTHER_SHAPE, "an entry has no PodUID")
    try:
        response = base64.b64decode(raw.response or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise CheckpointError(CheckpointFault.OTHER_SHAPE, f"AllocResp: {error}") from error
    ids = raw.ids
    if not isinstance(ids, dict):
        ids = {"-1": ids or []}
    for numa in ids:
        if not _NUMA.fullmatch(numa):
            raise CheckpointError(CheckpointFault.OTHER_SHAPE, f"NUMA node: value={numa!r}")
    return DeviceEntry(
        pod_uid=raw.pod_uid,
        container=raw.container,
        resource=raw.resource,
        device_ids={int(numa): tuple(each or ()) for numa, each in ids.items()},
        response=response,
    )


def _kinds(data: _Data) -> tuple[bool, ...]:
    """Return whether ids are by NUMA node: as the entries say, or both where none says."""
    said = {isinstance(each.ids, dict) for each in data.entries or () if each.ids is not None}
    if len(said) > 1:
        raise CheckpointError(CheckpointFault.OTHER_SHAPE, "DeviceIDs of both formats")
    return tuple(said) or (True, False)


def _dump(data: _Data, responses: Sequence[bytes | None], *, by_numa: bool) -> str:
    """Return the text that kubelet's checksum is over: Go's own dump of the data, types named."""
    entries = "<nil>"
    if data.entries is not None:
        pairs = zip(data.entries, responses, strict=True)
        entries = f"[{' '.join(_dumped(raw, got, by_numa=by_numa) for raw, got in pairs)}]"
    return (
        f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){entries}"
        f" RegisteredDevices:(map[string][]string){_map(data.registered)}}}"
    )


def _dumped(raw: _Entry, response: bytes | None, *, by_numa: bool) -> str:
    if by_numa:
        assert not isinstance(raw.ids, list)
        ids = f"(checkpoint.DevicesPerNUMA){_map(raw.ids, numbers=True)}"
    else:
        assert not isinstance(raw.ids, dict)
        ids = f"([]string){_list(raw.ids)}"
    answer = _list(None if response is None else map(_DECIMALS.__getitem__, response))
    return (
        f"{{PodUID:(string){raw.pod_uid} ContainerName:(string){raw.container}"
        f" ResourceName:(string){raw.resource} DeviceIDs:{ids} AllocResp:([]uint8){answer}}}"
    )


def _map(of: Mapping[str, list[str] | None] | None, *, numbers: bool = False) -> str:
    if of is None:
        return "<nil>"
    keys = sorted(of, key=int) if numbers else sorted(of, key=str.encode)
    return f"map[{' '.join(f'{key}:{_list(of[key])}' for key in keys)}]"


def _list(of: Iterable[str] | None) -> str:
    return "<nil>" if of is None else f"[{' '.join(of)}]"
