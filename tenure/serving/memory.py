"""What a start took and needs no more, given back to the machine."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress


def give_back() -> None:
    """
    Look no more for cycles in what a start made, which stays, and return the pages that are free.

    The allocator keeps what was freed between what stays, until it is told: glibc's is, where the
    process has that one.
    """
    gc.freeze()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
