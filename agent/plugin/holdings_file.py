"""
Who holds what on this node, from a file that somebody else writes.

    {"format": 1, "holdings": [{"pod_uid": "fa8ef004", "containers": [
      {"name": "main", "devices": [{"device_id": "GPU-5d0f6c1e"}]}]}]}

It is what the service answers a node's agent (docs/contracts/agents.md), with the containers by
name, for kubelet's record has names and no places; whatever else is in it is not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from agent.documents import json_document
from agent.plugin.files import read_file
from ledger.domain.errors import InputError

FORMAT: Final = 1


class _Device(msgspec.Struct):
    device_id: str


class _Container(msgspec.Struct):
    name: str
    devices: list[_Device]


class _Holding(msgspec.Struct):
    pod_uid: str
    containers: list[_Container]


class _File(msgspec.Struct):
    format: int
    holdings: list[_Holding]


class HoldingsFile:
    """The holdings as the file says them now."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def devices_of(self, pod_uid: str, container: str) -> Sequence[str] | None:
        """
        Return the ids of a container's devices; None where the file does not name it.

        Raises:
            InputError: the file can't be read.
        """
        found = [
            [device.device_id for device in one.devices]
            for holding in self._read().holdings
            for one in holding.containers
            if (holding.pod_uid, one.name) == (pod_uid, container)
        ]
        if len(found) > 1:
            fact = f"said twice: pod_uid={pod_uid}, container={container}"
            raise InputError(fact, place=str(self._path))
        return found[0] if found else None

    def _read(self) -> _File:
        try:
            file = msgspec.convert(json_document(read_file(self._path)), type=_File)
        except InputError as error:
            raise error.at(str(self._path)) from error
        except (OSError, msgspec.ValidationError, ValueError, RecursionError) as error:
            raise InputError(f"can't be read: {error}", place=str(self._path)) from error
        if file.format != FORMAT:
            raise InputError(f"unknown format: value={file.format}", place=str(self._path))
        return file
