"""What a start makes, which mostly stays: looked at seldom, and then no more; the rest goes."""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress
from typing import Final

_EVERY: Final = 2_000_000
"""
So many objects that may refer to others are made in a start between two looks for cycles: more than
5,000 nodes and 20,000 Pods take, for a look finds next to nothing once all is imported.
"""
_USUAL: Final = gc.get_threshold()


def look_seldom() -> None:
    """
    Look for cycles among what is new, and then seldom until `give_back`.

    Next to all that a start makes stays, but for what imports leave behind.
    """
    gc.collect(0)
    gc.set_threshold(_EVERY, *_USUAL[1:])


def give_back() -> None:
    """
    Look no more for cycles in what a start made, which stays, and return the pages that are free.

    The allocator keeps what was freed between what stays, until it is told: glibc's is, where the
    process has that one.
    """
    gc.set_threshold(*_USUAL)
    gc.freeze()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
