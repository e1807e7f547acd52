"""Files that need not outlive the tests: in memory, where nobody waits for a disk."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

_MEMORY: Final = Path("/dev/shm")
"""Linux keeps files in memory here. A disk takes long for all the files of a thousand ledgers."""
_ROOM_BYTES: Final = 2 << 30


def memory(place: Path = _MEMORY, room_bytes: int = _ROOM_BYTES) -> Path | None:
    """Return where files live in memory, None where there is no such place, or no room in it."""
    if not place.is_dir() or shutil.disk_usage(place).free < room_bytes:
        return None
    return place


def unlock_what_dead_runs_left(place: Path) -> None:
    """Let the next run of pytest remove the folders of runs that were killed."""
    for lock in place.glob("pytest-of-*/pytest-*/.lock"):
        with suppress(OSError, ValueError):  # another run's, or one that has just ended
            try:
                os.kill(int(lock.read_text()), 0)
            except ProcessLookupError:
                lock.unlink()
