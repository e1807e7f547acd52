"""
Equal parts of values that were just read made the same: each is in memory once.

A large ledger says a few words ten thousands of times, and decoding makes a text of each. Only
what nobody else has yet is changed: to whoever reads them, these values never change.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, Final, TypeVar

from msgspec.structs import force_setattr

from ledger.domain.devices import DeviceRecord, DeviceShare

_Value = TypeVar("_Value", bound=Hashable)
_DEVICE: Final = ("device_type", "device_id", "model", "topology", "memory_bytes")
_SHARE: Final = ("device_type", "device_id", "memory_bytes", "containers")


class Sharing:
    """What has been seen of one ledger; dropped once that is read."""

    def __init__(self) -> None:
        self._seen: dict[tuple[type, Hashable], Any] = {}
        self._nothing: Mapping[str, str] = {}

    def same(self, value: _Value) -> _Value:
        """Return the first of the values that are equal to this one."""
        found: _Value = self._seen.setdefault((type(value), value), value)
        return found

    def device(self, device: DeviceRecord) -> DeviceRecord:
        """Return a device that was just read."""
        set_once = object.__setattr__
        for name in _DEVICE:
            set_once(device, name, self.same(getattr(device, name)))
        if not device.labels:
            set_once(device, "labels", self._nothing)
        return device

    def share(self, share: DeviceShare) -> None:
        """Take a share that was just read."""
        self.words(share, *_SHARE)

    def words(self, value: Any, *names: str) -> None:  # noqa: ANN401 - a struct of any type
        """Take these fields of a struct that was just read."""
        for name in names:
            force_setattr(value, name, self.same(getattr(value, name)))
