"""What changed in folders, as the kernel tells it (inotify): an idle tree costs no look."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

_MASK: Final = 0x2 | 0x100 | 0x200 | 0x01000000
"""A file was written; something was made in it, or taken away; only folders."""
_OVERFLOW: Final = 0x4000
_HEAD: Final = struct.Struct("iIII")
_BYTES: Final = 65_536


class Changes:
    """
    The folders that changed since the last time.

    Attributes:
        handle: can be read once one has.
    """

    def __init__(self) -> None:
        """Begin. Raises OSError: this user watches too much already."""
        self._kernel = ctypes.CDLL(None, use_errno=True)
        self.handle: Final[int] = self._called(
            self._kernel.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        )

    def add(self, folder: int) -> int:
        """Watch an open folder, and return its number. Raises OSError."""
        path = f"/proc/self/fd/{folder}".encode()
        return self._called(self._kernel.inotify_add_watch(self.handle, path, _MASK))

    def read(self) -> set[int] | None:
        """Return the numbers of folders that changed; None = too many did to tell them."""
        found: set[int] = set()
        lost = False
        while True:
            try:
                events = os.read(self.handle, _BYTES)
            except BlockingIOError:
                return None if lost else found
            at = 0
            while at < len(events):
                number, mask, _, length = _HEAD.unpack_from(events, at)
                lost = lost or bool(mask & _OVERFLOW)
                found.add(number)
                at += _HEAD.size + length

    def close(self) -> None:
        """Watch nothing more."""
        os.close(self.handle)

    def _called(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
