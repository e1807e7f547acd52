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
_SERVING: Final = 50_000
"""
Likewise later: a look takes some milliseconds then. The usual 700 are what ten agents' questions
make that wait for changes: with 6,000 of them looks took two fifths of the thread that answers.
"""
_LARGE: Final = 256 << 10
"""
What is larger is mapped by itself, in bytes: it goes back whole wherever it lies. A connection of
TLS has a buffer of this size: 150 that came and went left 108 MB of holes in the heap.
"""
_TOP: Final = 8 << 20
"""What may be free at the end of the heap, which else comes and goes."""
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_ARENA_MAX: Final = -8
"""Of glibc's malloc.h."""


def look_seldom() -> None:
    """
    Look for cycles among what is new, and then seldom until `give_back`.

    Next to all that a start makes stays, but for what imports leave behind. All threads share one
    heap of the allocator, glibc's, as they share the interpreter: one of each thread's own keeps
    what that thread has freed.
    """
    gc.collect(0)
    gc.set_threshold(_EVERY, *_USUAL[1:])
    with suppress(AttributeError, OSError):
        tune = ctypes.CDLL(None).mallopt
        tune(_ARENA_MAX, 1)
        tune(_MMAP_THRESHOLD, _LARGE)
        tune(_TRIM_THRESHOLD, _TOP)


def give_back() -> None:
    """Look no more for cycles in what a start made, which stays, and return what is free."""
    gc.set_threshold(_SERVING, *_USUAL[1:])
    gc.freeze()
    trim()


def trim() -> None:
    """
    Return the pages that are free: in 33 to 45 ms where 803 MB have many holes, else in a few.

    Connections that ended are cycles with a buffer of TLS each, 256 KiB: too few objects to be
    looked for, and 33 MB after a flood. What is new is looked at for them first.

    The allocator keeps what was freed between what stays, until it is told: glibc's is, where the
    process has that one.
    """
    gc.collect(1)
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
