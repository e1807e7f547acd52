"""Files that outlive us: whole or as before, whenever the machine ends; and only files are read."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

_FIRST_BYTES: Final = 64 << 10  # room for all that may come costs more than a small file's read


def read_regular(path: Path, bytes_max: int, *, follows: bool = False) -> bytes:
    """Return so much of a file. Raises OSError: none, a pipe, or a link that it may not follow."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follows else os.O_NOFOLLOW)
    with os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        first = file.read(min(bytes_max, _FIRST_BYTES))
        return first if len(first) < _FIRST_BYTES else first + file.read(bytes_max - len(first))


def write_durably(path: Path, content: bytes) -> None:
    """Write a file of our own. Raises OSError: the file is as it was."""
    fresh = path.with_name(path.name + ".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
